"""Routes for operators: machines, offers, events, status, reports, pause, health and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from starlette.concurrency import run_in_threadpool

from hcloud import __version__
from hcloud.api.arrays import find_job
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.job_history import shown_to_others
from hcloud.api.metrics import Gauges, exposition
from hcloud.api.schemas import InstanceView, instance_views
from hcloud.api.telemetry import RecentWaits
from hcloud.api.unit_logs import poll_until
from hcloud.apply.directives import PAUSED, set_paused
from hcloud.apply.machines import resume_provider
from hcloud.core.errors import BadInput, NotFound
from hcloud.core.model import Event, EventKind, Market, Offer
from hcloud.core.units import utc_text
from hcloud.report import build_report, report_kinds
from hcloud.spec.validation import nearest

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=JsonRoute)
probes = APIRouter(tags=["probes"])
MAX_INT64 = 2**63 - 1

UnixTime = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds (UTC)")]
WaitS = Annotated[
    float, Query(ge=0, le=30, allow_inf_nan=False, description="how long to wait for new events, in seconds")
]


class ReportName(StrEnum):
    """Available reports."""

    COST = "cost"
    PERFORMANCE = "performance"
    SAVINGS = "savings"
    UTILISATION = "utilisation"
    COMMITMENTS = "commitments"
    ACCURACY = "accuracy"
    DECISIONS = "decisions"
    RIGHT_SIZING = "right-sizing"
    FOCUS = "focus"
    NEIGHBOURS = "neighbours"
    RUN_TIMES = "run-times"


class IdleCost(StrEnum):
    """Where the cost report has idle and boot cost: in rows of its own, or shared among the jobs."""

    SEPARATE = "separate"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The daemon's status and a summary of the fleet."""

    version: str
    now: float
    you: str
    """Name of the caller."""
    role: str
    """Role of the caller."""
    paused: str
    """Why launching and placing is paused, or ""."""
    jobs: dict[str, int]
    instances: dict[str, int]
    price_usd_per_h: float
    priced_at: float | None
    max_upload_bytes: int
    waits: dict[str, RecentWaits]
    """By class of jobs (kind of their target, or ``profiling``)."""
    daemon: dict[str, Any]
    """Has the keys of ``hcloud.api.DaemonStatus``."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class PauseRequest:
    """Why the fleet is paused; shown to every user."""

    reason: Annotated[str, Field(min_length=1, max_length=500)] = "paused by an operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Whether launching and placing is paused."""

    paused: str
    """The reason, or "" if it is not paused."""


@router.get("/instances", response_model=list[InstanceView])
async def list_instances(
    context: Context,
    caller: CurrentCaller,
    ended: Annotated[bool, Query(description="include terminated instances")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """List machines with their jobs."""

    def views() -> list[InstanceView]:
        view = context.store.live()
        found = context.store.instances(live_only=False, limit=limit) if ended else view.instances[:limit]
        return instance_views(found, view.jobs, dict(context.seen_at()))

    return await context.long_work.response(list[InstanceView], views, at_once=caller.is_admin)


@router.get("/instances/{instance_id}")
def show_instance(context: Context, instance_id: str) -> InstanceView:
    """Show a live or terminated machine with its jobs. Raises NotFound."""
    found = context.store.instance(instance_id)
    return instance_views([found], context.store.live().jobs, dict(context.seen_at()))[0]


@router.get("/offers")
def list_offers(context: Context) -> list[Offer]:
    """List the last known offers, sorted by provider, zone, type and market."""
    return sorted(context.offers(), key=lambda offer: offer.key)


@router.get("/events", response_model=list[Event])
async def list_events(
    context: Context,
    caller: CurrentCaller,
    after_seq: Annotated[int, Query(ge=0, le=MAX_INT64)] = 0,
    before_seq: Annotated[int | None, Query(ge=0, le=MAX_INT64)] = None,
    since: UnixTime = None,
    until: UnixTime = None,
    job_id: str | None = None,
    instance_id: str | None = None,
    kind: Annotated[list[EventKind] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    newest: bool = False,
    wait_s: WaitS = 0,
) -> Response:
    """List events in order of ``seq``: the first ``limit`` after ``after_seq``.

    With ``newest``, the last ``limit`` before ``before_seq``. With ``wait_s``, wait until there is one.
    """

    if job_id is not None and "[" in job_id:
        job_id = (await run_in_threadpool(find_job, context.store, job_id)).id

    def read() -> tuple[Event, ...]:
        return context.store.events(
            after_seq=after_seq,
            before_seq=before_seq,
            since=since,
            until=until,
            job_id=job_id,
            instance_id=instance_id,
            kinds=kind,
            limit=limit,
            newest=newest,
        )

    def visible(event: Event) -> Event:
        return event if caller.may_see(event.user or "") else shown_to_others(event)

    events = [visible(event) for event in await poll_until(context, bool, read, wait_s)]
    return await context.long_work.response(list[Event], lambda: events, at_once=caller.is_admin)


@router.get("/status")
def status(context: Context, caller: CurrentCaller) -> Status:
    """Return the status of the daemon."""
    gauges = read_gauges(context)
    return Status(
        version=__version__,
        now=context.clock.now(),
        you=caller.name,
        role=caller.role.value,
        paused=context.store.get_meta(PAUSED) or "",
        jobs={state.value: count for state, count in sorted(gauges.jobs.items())},
        instances=_by_state(gauges.instances),
        price_usd_per_h=gauges.price_usd_per_h,
        priced_at=gauges.priced_at,
        max_upload_bytes=context.max_upload_bytes,
        waits=context.telemetry.recent_waits(),
        daemon=dict(gauges.daemon),
    )


def _by_state(instances: Mapping[tuple[str, str], int]) -> dict[str, int]:
    states = sorted({state for state, _ in instances})
    return {each: sum(count for (state, _), count in instances.items() if state == each) for each in states}


@router.get("/reports/{name}", response_model=dict[str, Any])
async def report(
    context: Context,
    caller: CurrentCaller,
    name: ReportName,
    of: Annotated[str | None, Query(max_length=64, description="what it is about; runtime for accuracy")] = None,
    by: Annotated[str | None, Query(max_length=64, description="group by; see the report")] = None,
    since: UnixTime = None,
    until: UnixTime = None,
    zone: Annotated[str, Query(max_length=64, description="time zone of days, such as Europe/Berlin")] = "UTC",
    idle: Annotated[IdleCost, Query(description="idle and boot cost in rows apart, or shared among jobs")] = (
        IdleCost.SEPARATE
    ),
) -> Response:
    """Compute a report from the event log, of neighbours from co-run records; by ``image``, which only a job's owner
    may see, for admins only."""
    if by == "image":
        caller.require_admin("see the images of all jobs")
    if since is not None and until is not None and since > until:
        raise BadInput(f"since ({utc_text(round(since))}) is after until ({utc_text(round(until))}); swap them")

    def computed() -> dict[str, Any]:
        kinds, now, shares_idle = report_kinds(name.value, of), context.clock.now(), idle is IdleCost.SHARE
        events = context.store.iter_events(kinds=kinds) if kinds else ()
        records = [record for _, record in context.store.co_runs()] if name is ReportName.NEIGHBOURS else ()
        table = build_report(
            name.value, events, now,
            of=of, by=by, since=since, until=until, zone=zone, shares_idle=shares_idle, co_runs=records,
        )  # fmt: skip
        return dict(table.to_json())

    return await context.long_work.response(dict[str, Any], computed, at_once=caller.is_admin)


@router.post("/pause")
def pause(context: Context, caller: CurrentCaller, request: PauseRequest) -> Paused:
    """Stop launching and placing until resumed; running jobs continue. Admins only."""
    caller.require_admin("pause the fleet")
    return _set_paused(context, caller.name, request.reason)


@router.post("/resume")
def resume(context: Context, caller: CurrentCaller) -> Paused:
    """Resume launching and placing. Admins only."""
    caller.require_admin("resume the fleet")
    return _set_paused(context, caller.name, "")


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class AcceptRequest:
    """Changes to accept, exactly as the status shows them: nothing else is accepted unseen."""

    changes: Annotated[tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What was accepted."""

    changes: tuple[str, ...]


@router.post("/accept")
def accept(context: Context, caller: CurrentCaller, request: AcceptRequest) -> Accepted:
    """Accept changes of policy, configuration or tokens file that loosen a limit, and wait for this. Admins only."""
    caller.require_admin("accept changes that loosen a limit")
    context.accept(request.changes, caller.name)
    return Accepted(changes=request.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Whether a provider was stopped, or one of its offers backed off, until now."""

    resumed: bool


@router.post("/providers/{name}/resume")
def resume_provider_now(context: Context, caller: CurrentCaller, name: str) -> Resumed:
    """Try a provider again at once, as what made it refuse launches is fixed. Admins only. Raises NotFound."""
    caller.require_admin("resume a provider")
    known = context.status().get("providers", {})
    if name not in known:
        raise NotFound(f"unknown provider {name!r}; {nearest(name, known)}")
    with context.store.transaction(context.clock.now()) as transaction:
        resumed = resume_provider(transaction, name, context.store.live(), caller.name)
    if resumed:
        context.wake()
    return Resumed(resumed=resumed)


def _set_paused(context: ApiContext, actor: str, reason: str) -> Paused:
    with context.store.transaction(context.clock.now()) as transaction:
        changed = set_paused(transaction, actor, reason)
    if changed:
        context.wake()
    return Paused(paused=reason)


def read_gauges(context: ApiContext) -> Gauges:
    """Return the values that status and metrics show."""
    instances = context.store.live().instances
    counts = Counter((each.state.value, each.offer.market.value) for each in instances)
    billed = [each for each in instances if each.launched_at is not None]
    priced_at = [offer.priced_at for offer in context.offers()]
    return Gauges(
        now=context.clock.now(),
        jobs=context.store.counts(),
        instances=counts,
        price_usd_per_h=sum(each.offer.price_usd_per_h for each in billed),
        price_usd_per_h_by_market={
            market.value: sum(each.offer.price_usd_per_h for each in billed if each.offer.market is market)
            for market in Market
        },
        priced_at=min(priced_at, default=None),
        daemon=context.status(),
    )


@probes.get("/healthz", response_class=PlainTextResponse)
def healthz(context: Context) -> str:
    """Return ``ok`` if the database can be read (503 if not)."""
    context.store.get_meta(PAUSED)
    return "ok\n"


@probes.get("/metrics", response_class=PlainTextResponse)
def metrics(context: Context) -> PlainTextResponse:
    """Return metrics in Prometheus' text format."""
    return PlainTextResponse(
        exposition(read_gauges(context), context.telemetry), media_type="text/plain; version=0.0.4"
    )
