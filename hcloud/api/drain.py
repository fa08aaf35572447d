"""Routes by which operators take machines out of use: drain, destroy. Admins only; repeating them is harmless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from hcloud.api.context import ApiContext, Context, TheCaller
from hcloud.apply.directives import record_directive, set_paused, withdraw_directive
from hcloud.core.errors import BadInput, NotFound
from hcloud.core.model import FailureCause, Instance, InstanceId, InstanceState, Job, JobId
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.spec.validation import nearest
from hcloud.store import LiveView

router = APIRouter(prefix="/v1", tags=["fleet"])
_ENDING = (InstanceState.TERMINATING, InstanceState.TERMINATED)
_Name = Annotated[str, Field(min_length=1, max_length=200)]


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class DrainRequest:
    """What to take out of use: machines by id, types by pattern (``*``, ``?``), providers by name.

    ``deadline_at``: what still runs there is stopped by then, and runs again elsewhere; absent: it may run to its end.
    ``undo``: allow it again.
    """

    instances: tuple[_Name, ...] = ()
    types: tuple[_Name, ...] = ()
    providers: tuple[_Name, ...] = ()
    deadline_at: Annotated[float | None, Field(ge=0, le=1e11, allow_inf_nan=False)] = None
    undo: bool = False


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class DestroyRequest:
    """Which machines to end at once: by id, or ``every`` one. ``dry_run`` only tells what that would mean."""

    instances: tuple[_Name, ...] = ()
    every: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    """An operator's standing order; ``instances`` are the live machines it is about, ``jobs`` what still runs there."""

    scope: DirectiveScope
    name: str
    by: str
    ordered_at: float
    deadline_at: float | None
    destroy: bool
    instances: tuple[InstanceId, ...]
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedJob:
    """A job that loses its machine. ``runs_again``: it is queued again; else it fails, for want of retries.

    ``lost_s`` is what it has run there, to be done again.
    """

    id: JobId
    name: str
    user: str
    target: str
    instances: tuple[InstanceId, ...]
    lost_s: float
    runs_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedInstance:
    """A machine that ends. ``spent_usd`` is what it has cost by the clock, before any billing minimum."""

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
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destruction:
    """What ends, what that loses and saves. ``paused``: nothing is launched afterwards until somebody resumes."""

    machines: tuple[AffectedInstance, ...]
    jobs: tuple[AffectedJob, ...]
    price_usd_per_h: float
    ordered: bool
    paused: str


@router.get("/orders")
def list_orders(context: Context) -> list[OrderView]:
    """List the operators' orders in force."""
    view = context.store.live()
    return [_order_view(order, view) for order in view.directives]


@router.post("/drain")
def drain(context: Context, caller: TheCaller, request: DrainRequest) -> list[OrderView]:
    """Place nothing new on machines and launch none of these types or at these providers. Admins only.

    What runs there may end, or is moved at the deadline; an empty machine ends. Answers with the orders in force.
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
        for scope, name in _named(context, view, request)
    ]
    with context.store.transaction(now) as txn:
        for order in orders:
            if request.undo:
                withdraw_directive(txn, order.scope, order.name, caller.name, view.instances)
            elif not _is_to_end(view, order):
                record_directive(txn, order)
    context.wake()
    return list_orders(context)


@router.post("/destroy")
def destroy(context: Context, caller: TheCaller, request: DestroyRequest) -> Destruction:
    """End machines at once; what runs there is queued again. With ``every``, also pause. Admins only."""
    caller.require_admin("destroy machines")
    if bool(request.instances) == request.every:
        raise BadInput("name the machines to destroy, or set every; not both")
    if request.dry_run:
        return _destruction(context, request, ordered=False, paused="")
    paused = f"every machine was destroyed by {caller.name}" if request.every else ""
    now = context.clock.now()
    with context.store.transaction(now) as txn:
        # Read under the lock of this very write: nothing can be launched between the look and the order.
        found = _destruction(context, request, ordered=True, paused=paused)
        if request.every:
            set_paused(txn, caller.name, paused)
        ordered = {order.name for order in context.store.live().directives if order.destroy}
        for machine in found.machines:
            if machine.id not in ordered:
                order = Directive(
                    scope=DirectiveScope.INSTANCE, name=machine.id, by=caller.name, ordered_at=now, destroy=True
                )
                record_directive(txn, order)
    context.wake()
    return found


def _named(context: ApiContext, view: LiveView, request: DrainRequest) -> list[tuple[DirectiveScope, str]]:
    """Return what is meant. Raises BadInput for nothing at all, NotFound for what there is not (but for an undo)."""
    wanted = [
        *((DirectiveScope.INSTANCE, name) for name in request.instances),
        *((DirectiveScope.TYPE, name) for name in request.types),
        *((DirectiveScope.PROVIDER, name) for name in request.providers),
    ]
    if not wanted:
        raise BadInput("name machines, types or providers to drain")
    for scope, name in wanted if not request.undo else ():
        _check_known(context, view, scope, name)
    if request.undo:
        in_force = {(order.scope, order.name): order for order in view.directives}
        for scope, name in wanted:
            order = in_force.get((scope, name))
            if order is None:
                hint = ", ".join(f"{s} {n}" for s, n in in_force) or "none"
                raise NotFound(f"{scope} {name} is not drained; in force: {hint}")
            if order.destroy:
                raise BadInput(f"{name} is being destroyed by {order.by}; that cannot be undone")
    return wanted


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
        there = sorted({offer.instance_type.name if by_type else offer.provider for offer in offers})
        raise NotFound(f"there is no {scope} {name!r}; {nearest(name, there)}")


def _is_to_end(view: LiveView, order: Directive) -> bool:
    """Whether what ``order`` would drain was ordered to end already."""
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
        jobs=tuple(job.id for job in view.jobs if set(_held(job)) & set(covered)),
    )


def _held(job: Job) -> list[InstanceId]:
    """Return the machines on which units of ``job`` are not over."""
    return [a.instance_id for a in job.attempt.allocations if not a.released] if job.attempt is not None else []


def _destruction(context: ApiContext, request: DestroyRequest, *, ordered: bool, paused: str) -> Destruction:
    """Return what the request means now. Raises NotFound for a machine there is not."""
    view, now = context.store.live(), context.clock.now()
    named = [context.store.instance(name) for name in dict.fromkeys(request.instances)]
    struck = [each for each in (view.instances if request.every else named) if each.state not in _ENDING]
    ids = {each.id for each in struck}
    jobs = [job for job in view.jobs if ids.intersection(_held(job))]
    return Destruction(
        machines=tuple(_struck_machine(each, jobs, now) for each in struck),
        jobs=tuple(_struck_job(job, now) for job in jobs),
        price_usd_per_h=sum(each.offer.price_usd_per_h for each in struck),
        ordered=ordered,
        paused=paused,
    )


def _struck_machine(instance: Instance, jobs: Sequence[Job], now: float) -> AffectedInstance:
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
        jobs=tuple(job.id for job in jobs if instance.id in _held(job)),
    )


def _struck_job(job: Job, now: float) -> AffectedJob:
    attempt = job.attempt
    began = [a.started_at for a in attempt.allocations if a.started_at is not None] if attempt is not None else []
    evicted = FailureCause.EVICTED
    return AffectedJob(
        id=job.id,
        name=job.spec.name,
        user=job.spec.user,
        target=job.spec.target.kind,
        instances=tuple(dict.fromkeys(_held(job))),
        lost_s=max(0.0, now - min(began)) if began else 0.0,
        runs_again=job.failures.count(evicted) < job.spec.retries.limits.get(evicted.value, 0),
    )
