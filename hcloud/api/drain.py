"""Routes that take machines out of use: drain and destroy. Admins only; all are safe to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.apply.directives import record_directive, set_paused, withdraw_directive
from hcloud.core.errors import BadInput, NotFound
from hcloud.core.model import FailureCause, Instance, InstanceId, InstanceState, Job, JobId
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.spec.validation import nearest
from hcloud.store import LiveView

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=JsonRoute)
_ENDING = (InstanceState.TERMINATING, InstanceState.TERMINATED)
_Name = Annotated[str, Field(min_length=1, max_length=200)]


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class DrainRequest:
    """What to take out of use: machines by id, types by pattern (``*``, ``?``), providers by name."""

    instances: tuple[_Name, ...] = ()
    types: tuple[_Name, ...] = ()
    providers: tuple[_Name, ...] = ()
    deadline_at: Annotated[float | None, Field(ge=0, le=1e11, allow_inf_nan=False)] = None
    """When running jobs are evicted (Unix seconds); absent: they may run to their end."""
    undo: bool = False
    """Allow use again."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class DestroyRequest:
    """Machines to terminate at once."""

    instances: tuple[_Name, ...] = ()
    every: bool = False
    """Terminate every machine, and pause."""
    dry_run: bool = False
    """Return the consequences only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    """An operator's order in force."""

    scope: DirectiveScope
    name: str
    by: str
    ordered_at: float
    deadline_at: float | None
    destroy: bool
    instances: tuple[InstanceId, ...]
    """Live machines that the order covers."""
    jobs: tuple[JobId, ...]
    """Jobs that still run there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedJob:
    """A job that loses its machine."""

    id: JobId
    name: str
    user: str
    target: str
    instances: tuple[InstanceId, ...]
    lost_s: float
    """Run time that is lost."""
    runs_again: bool
    """Whether it is requeued; otherwise it fails, because no retries are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedInstance:
    """A machine that is terminated."""

    id: InstanceId
    provider: str
    provider_id: str | None
    zone: str
    instance_type: str
    market: str
    state: InstanceState
    price_usd_per_h: float
    up_s: float
    spent_usd: float
    """Its cost so far, before any billing minimum."""
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destruction:
    """The machines to terminate, the jobs they affect and the hourly cost saved."""

    machines: tuple[AffectedInstance, ...]
    jobs: tuple[AffectedJob, ...]
    price_usd_per_h: float
    ordered: bool
    """Whether the termination was ordered; false for a dry run."""
    paused: str
    """Why launching and placing is paused from now on; "" if it is not."""


@router.get("/orders")
def list_orders(context: Context) -> list[OrderView]:
    """List the operators' orders in force."""
    view = context.store.live()
    return [_order_view(order, view) for order in view.directives]


@router.post("/drain")
def drain(context: Context, caller: CurrentCaller, request: DrainRequest) -> list[OrderView]:
    """Stop placing on machines, and launching of types or at providers. Admins only.

    Running jobs may end, or are evicted at the deadline; an empty machine is terminated. Returns the orders in
    force.
    """
    caller.require_admin("drain machines")
    view = context.store.live()
    now = context.clock.now()
    orders = [
        Directive(
            scope=scope,
            name=name,
            by=caller.name,
            ordered_at=now,
            deadline_at=request.deadline_at,
        )
        for scope, name in _targets(context, view, request)
    ]
    with context.store.transaction(now) as txn:
        for order in orders:
            if request.undo:
                withdraw_directive(txn, order.scope, order.name, caller.name, view.instances)
            elif not _is_being_destroyed(view, order):
                record_directive(txn, order)
    context.wake()
    return list_orders(context)


@router.post("/destroy")
def destroy(context: Context, caller: CurrentCaller, request: DestroyRequest) -> Destruction:
    """Terminate machines at once; their jobs are requeued. With ``every``, also pause. Admins only."""
    caller.require_admin("destroy machines")
    if bool(request.instances) == request.every:
        raise BadInput("name the machines to destroy, or set every; not both")
    if request.dry_run:
        return _destruction(context, request, ordered=False, paused="")
    paused = f"every machine was destroyed by {caller.name}" if request.every else ""
    now = context.clock.now()
    with context.store.transaction(now) as txn:
        # Read inside this write transaction: nothing can be launched between the read and the order.
        destruction = _destruction(context, request, ordered=True, paused=paused)
        if request.every:
            set_paused(txn, caller.name, paused)
        ordered = {order.name for order in context.store.live().directives if order.destroy}
        for machine in destruction.machines:
            if machine.id not in ordered:
                order = Directive(
                    scope=DirectiveScope.INSTANCE, name=machine.id, by=caller.name, ordered_at=now, destroy=True
                )
                record_directive(txn, order)
    context.wake()
    return destruction


def _targets(context: ApiContext, view: LiveView, request: DrainRequest) -> list[tuple[DirectiveScope, str]]:
    """Return the scopes and names of the request.

    Raises BadInput: none are given, or one is being destroyed. Raises NotFound: unknown, or not drained (for an
    undo).
    """
    targets = [
        *((DirectiveScope.INSTANCE, name) for name in request.instances),
        *((DirectiveScope.TYPE, name) for name in request.types),
        *((DirectiveScope.PROVIDER, name) for name in request.providers),
    ]
    if not targets:
        raise BadInput("name machines, types or providers to drain")
    for scope, name in targets if not request.undo else ():
        _check_known(context, view, scope, name)
    if request.undo:
        in_force = {(order.scope, order.name): order for order in view.directives}
        for scope, name in targets:
            order = in_force.get((scope, name))
            if order is None:
                hint = ", ".join(f"{s} {n}" for s, n in in_force) or "none"
                raise NotFound(f"{scope} {name} is not drained; in force: {hint}")
            if order.destroy:
                raise BadInput(f"{name} is being destroyed by {order.by}; that cannot be undone")
    return targets


def _check_known(context: ApiContext, view: LiveView, scope: DirectiveScope, name: str) -> None:
    if scope is DirectiveScope.INSTANCE:
        instance = context.store.instance(name)
        if instance.state in _ENDING:
            raise BadInput(f"{name} is {instance.state}; it cannot be drained any more")
        return
    offers = [*context.offers(), *(instance.offer for instance in view.instances)]
    order = Directive(scope=scope, name=name, by="", ordered_at=0.0)
    if not any(order.closes(offer) for offer in offers):
        by_type = scope is DirectiveScope.TYPE
        known = sorted({offer.instance_type.name if by_type else offer.provider for offer in offers})
        raise NotFound(f"unknown {scope} {name!r}; {nearest(name, known)}")


def _is_being_destroyed(view: LiveView, order: Directive) -> bool:
    return any(each.destroy and (each.scope, each.name) == (order.scope, order.name) for each in view.directives)


def _order_view(order: Directive, view: LiveView) -> OrderView:
    covered = [each.id for each in view.instances if order.covers(each)]
    return OrderView(
        scope=order.scope,
        name=order.name,
        by=order.by,
        ordered_at=order.ordered_at,
        deadline_at=order.deadline_at,
        destroy=order.destroy,
        instances=tuple(covered),
        jobs=tuple(job.id for job in view.jobs if set(_occupied_instances(job)) & set(covered)),
    )


def _occupied_instances(job: Job) -> list[InstanceId]:
    return [a.instance_id for a in job.attempt.allocations if not a.released] if job.attempt is not None else []


def _destruction(context: ApiContext, request: DestroyRequest, *, ordered: bool, paused: str) -> Destruction:
    """Return what the request means now. Raises NotFound: an unknown machine."""
    view, now = context.store.live(), context.clock.now()
    named = [context.store.instance(name) for name in dict.fromkeys(request.instances)]
    affected = [each for each in (view.instances if request.every else named) if each.state not in _ENDING]
    ids = {each.id for each in affected}
    jobs = [job for job in view.jobs if ids.intersection(_occupied_instances(job))]
    return Destruction(
        machines=tuple(_affected_instance(each, jobs, now) for each in affected),
        jobs=tuple(_affected_job(job, now) for job in jobs),
        price_usd_per_h=sum(each.offer.price_usd_per_h for each in affected),
        ordered=ordered,
        paused=paused,
    )


def _affected_instance(instance: Instance, jobs: Sequence[Job], now: float) -> AffectedInstance:
    offer = instance.offer
    up_s = max(0.0, now - instance.launched_at) if instance.launched_at is not None else 0.0
    return AffectedInstance(
        id=instance.id,
        provider=offer.provider,
        provider_id=instance.provider_id,
        zone=offer.zone,
        instance_type=offer.instance_type.name,
        market=offer.market.value,
        state=instance.state,
        price_usd_per_h=offer.price_usd_per_h,
        up_s=up_s,
        spent_usd=up_s / 3600.0 * offer.price_usd_per_h,
        jobs=tuple(job.id for job in jobs if instance.id in _occupied_instances(job)),
    )


def _affected_job(job: Job, now: float) -> AffectedJob:
    attempt = job.attempt
    started = [a.started_at for a in attempt.allocations if a.started_at is not None] if attempt is not None else []
    evicted = FailureCause.EVICTED
    return AffectedJob(
        id=job.id,
        name=job.spec.name,
        user=job.spec.user,
        target=job.spec.target.kind,
        instances=tuple(dict.fromkeys(_occupied_instances(job))),
        lost_s=max(0.0, now - min(started)) if started else 0.0,
        runs_again=job.failures.count(evicted) < job.spec.retries.limits.get(evicted.value, 0),
    )
