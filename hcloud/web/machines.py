"""Machines: how well they are used, and which jobs run on each beside which others."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from hcloud.api.auth import Caller
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.job_history import shown_to_others
from hcloud.classifier.applications import row_name
from hcloud.classifier.interference import neighbour_loss
from hcloud.core.co_runs import CoRun, CoRunKey
from hcloud.core.cpu_topology import cpu_list
from hcloud.core.errors import BadInput
from hcloud.core.model import INSTANCE_COMING, Event, EventKind, Instance, InstanceId, InstanceState, Job
from hcloud.core.rows import number_of
from hcloud.forecast.use_history import UseHistory
from hcloud.planner.snapshot import Snapshot
from hcloud.web import shapes
from hcloud.web.fleet import FleetNow, MachineUse, fleet_of
from hcloud.web.heat import heat_map, use_points
from hcloud.web.now import decision_text
from hcloud.web.site import Site, as_markup, is_part, page_router, pages_of
from hcloud.web.text import visible

router = page_router()
PAGE_ROWS = 25
EVENTS_SHOWN = 100
SAMPLES_READ = 2000
CHART_S = 24 * 3600.0
HEAT_SHOWN = 2000
LOSSES_SHOWN = 20
UNKNOWN_SHOWN = 4
"""Of the jobs of whose losses nothing is known, which would fill the page of a fleet without profiles."""
LOSSES_KEPT = 64
LOSSES_FRESH_S, LOSSES_OF_OTHERS_S = 30.0, 5.0
"""How long losses are kept: while the same jobs run side by side, and while others do."""
_Order = Callable[[MachineUse], tuple[float | str, ...]]
ORDERS: Mapping[str, tuple[str, _Order]] = {
    "unused": ("most money unused", lambda use: (-use.unused_usd_per_h, use.used_share, number_of(use.id))),
    "idle": ("least used", lambda use: (use.used_share, -use.usd_per_h, number_of(use.id))),
    "busy": ("most used", lambda use: (-use.used_share, number_of(use.id))),
    "price": ("dearest", lambda use: (-use.usd_per_h, number_of(use.id))),
    "age": ("oldest", lambda use: (use.instance.requested_at, number_of(use.id))),
}
_EVENTS = frozenset(EventKind) - {EventKind.SAMPLE, EventKind.INSTANCE_RENEWED, EventKind.INSTANCE_PRICE}
_Text = Annotated[str, Query(max_length=200)]
_Page = Annotated[int, Query(ge=0, le=1000)]


@router.get("/machines")
def list_machines(
    request: Request, context: Context, sort: _Text = "unused", market: _Text = "", page: _Page = 0
) -> Response:
    """Show the live machines as heat maps of their use, now and over the last day, and as a list, worst used first."""
    _check_order(sort)
    request.app.state.earlier_use.read()
    fleet, history, site = fleet_of(request), context.use_history, pages_of(request)
    asked = (sort, market, page)
    shown = site.kept_part(fleet, "_machines.html", asked, lambda: _list_values(site, fleet, history, *asked))
    if is_part(request):
        return HTMLResponse(shown)
    values: dict[str, Any] = {"sort": sort, "market": market, "page": page, "shown": as_markup(shown)}
    return site.render(request, "machines.html", **values)


def _check_order(sort: str) -> None:
    if sort not in ORDERS:
        raise BadInput(f"machines are not sorted by {sort!r}; choose one of {', '.join(ORDERS)}")


def _chosen(fleet: FleetNow, sort: str, market: str, page: int) -> tuple[list[MachineUse], list[MachineUse]]:
    """Return all machines of a market, and those of a page in their order."""
    machines = [each for each in fleet.machines.values() if market in ("", each.instance.offer.market)]
    ranked = sorted(machines, key=ORDERS[sort][1])
    return machines, ranked[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]


def _list_values(site: Site, fleet: FleetNow, history: UseHistory, sort: str, market: str, page: int) -> dict[str, Any]:
    machines, shown = _chosen(fleet, sort, market, page)
    for use in shown:
        use.row = use.row or as_markup(site.text("_machine_row.html", use=use))
    up = [each for each in machines if each.instance.state is InstanceState.READY]
    return {
        "shown": shown,
        "costs_usd": {each.id: _cost_usd(each.instance, fleet.at) for each in shown},
        "over_time": heat_map(shown, history, fleet.at),
        "heat": heat_cells(machines[:HEAT_SHOWN]),
        "heat_shown": HEAT_SHOWN,
        "total": len(machines),
        "page": page,
        "pages": max(1, math.ceil(len(machines) / PAGE_ROWS)),
        "sort": sort,
        "orders": {name: words for name, (words, _) in ORDERS.items()},
        "market": market,
        "markets": sorted({each.market for each in fleet.groups}),
        "worst": max(up, key=lambda each: each.unused_usd_per_h, default=None),
        "unused_usd_per_h": sum(each.unused_usd_per_h for each in up),
        "price_usd_per_h": sum(each.usd_per_h for each in machines),
    }


def heat_cells(machines: Sequence[MachineUse]) -> Markup:
    """Return one coloured link for each machine. Of a thousand of them a template would cost most of the page."""
    for use in machines:
        use.heat_cell = use.heat_cell or _heat_cell(use)
    return Markup("\n".join([use.heat_cell for use in machines]))


def _heat_cell(use: MachineUse) -> str:
    colour = "coming" if use.instance.state in INSTANCE_COMING else f"h{shapes.heat(use.used_share)}"
    label = escape(visible(f"{use.id} {use.instance.offer.instance_type.name} {100 * use.used_share:.0f} %"))
    return f'<a href="/machines/{use.id}" class="{colour}" title="{label}" aria-label="{label}"></a>'


@router.get("/machines/part/neighbours")
async def show_neighbours(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    sort: _Text = "unused",
    market: _Text = "",
    page: _Page = 0,
) -> Response:
    """Return what the jobs on a page's machines lose by their neighbours, the largest losses first."""
    _check_order(sort)
    cache: LossCache = request.app.state.loss_cache

    def made() -> Response:
        losses = cache.losses((sort, market, page), lambda: _chosen(fleet_of(request), sort, market, page)[1])
        known = [each for each in losses if each.expected is not None or each.measured is not None]
        unknown = [each for each in losses if each.expected is None and each.measured is None]
        shown = [*known[:LOSSES_SHOWN], *unknown[:UNKNOWN_SHOWN]]
        values = {"known": len(known), "known_shown": LOSSES_SHOWN, "unknown": len(unknown)}
        return pages_of(request).render(request, "_neighbours.html", losses=shown, **values)

    response: Response = await context.long_work.result(made, at_once=caller.is_admin)
    return response


class LossCache:
    """Keeps what jobs lose by their neighbours: it is computed from what is believed of each, for all who look."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is computed yet."""
        self._context = context
        self._kept: dict[tuple[object, ...], tuple[float, frozenset[tuple[str, str]], list[NeighbourView]]] = {}
        self._lock = threading.Lock()

    def losses(self, asked: tuple[object, ...], uses: Callable[[], Sequence[MachineUse]]) -> list[NeighbourView]:
        """Return the losses on the machines that ``uses`` returns, the largest first; kept for ``LOSSES_FRESH_S``, or
        ``LOSSES_OF_OTHERS_S`` where other jobs run there now."""
        now = self._context.clock.now()
        with self._lock:
            shared = [use for use in uses() if len(use.jobs) > 1]
            together = frozenset((use.id, job.id) for use in shared for job in use.jobs)
            known = self._kept.get(asked)
            fresh_s = LOSSES_FRESH_S if known is not None and known[1] == together else LOSSES_OF_OTHERS_S
            if known is not None and 0.0 <= now - known[0] < fresh_s:
                return known[2]
            snapshot = self._context.snapshot()
            records = {record.key: record for _, record in self._context.store.co_runs()} if shared else {}
            found = [loss for use in shared for loss in neighbour_losses(use, snapshot, records)]
            found.sort(key=lambda loss: -max(loss.measured or 0.0, loss.expected or 0.0))
            if len(self._kept) >= LOSSES_KEPT:
                self._kept.clear()
            self._kept[asked] = now, together, found
            return found


# --------------------------------------------------------------------------------------------------------- one machine
@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourView:
    """What one job on a machine loses by the others there."""

    job: Job
    machine: InstanceId
    cpus: str
    """The CPUs on which it may run (``0-3,8``); empty: all."""
    beside: tuple[str, ...]
    """The other jobs."""
    expected: float | None
    """Share of its performance (0..1) that it is expected to lose; None: nothing is known of it."""
    expected_high: float | None
    """Upper 80 % limit."""
    source: str
    """By what it is expected."""
    measured: float | None
    """The share that it lost, when it was observed among these programs on this type; None: it was not."""
    measured_s: float
    """For how long that was observed."""


@router.get("/machines/{instance_id}")
def show_machine(request: Request, context: Context, caller: CurrentCaller, instance_id: str) -> Response:
    """Show one machine: its jobs, what they cost each other, its lease, its price and its use over the last day."""
    instance = context.store.instance(instance_id)
    use = fleet_of(request).machines.get(instance.id, MachineUse(instance=instance))
    events = context.store.events(instance_id=instance.id, kinds=_EVENTS, newest=True, limit=EVENTS_SHOWN)
    now = context.clock.now()
    return pages_of(request).render(
        request,
        "machine.html",
        use=use,
        instance=instance,
        seen_at=context.seen_at().get(instance.id, instance.seen_at),
        losses=neighbour_losses(use, context.snapshot(), _records_for(context, use)),
        now=now,
        cost_usd=_cost_usd(instance, now),
        events=[_event_row(each) for each in reversed(events)],
        chart=_chart(context, caller, use, now),
    )


def _cost_usd(instance: Instance, now: float) -> float | None:
    """Return what it cost so far at today's price; None: it was not launched."""
    if instance.launched_at is None:
        return None
    ended_at = now if instance.terminated_at is None else instance.terminated_at
    billed_s = max(ended_at - instance.launched_at, instance.offer.billing_minimum_s)
    return billed_s / 3600.0 * instance.offer.price_usd_per_h


def _event_row(event: Event) -> tuple[Event, str]:
    shown = shown_to_others(event)
    return shown, decision_text(shown).replace("_", " ")


def _records_for(context: ApiContext, use: MachineUse) -> Mapping[CoRunKey, CoRun]:
    """Return what was observed of programs together, if there are neighbours to ask about."""
    if len(use.jobs) < 2:
        return {}
    return {record.key: record for _, record in context.store.co_runs()}


def neighbour_losses(use: MachineUse, snapshot: Snapshot, records: Mapping[CoRunKey, CoRun]) -> list[NeighbourView]:
    """Return for each job of a machine what it is expected to lose by its neighbours there, and what was measured."""
    offer = use.instance.offer
    column, found = f"{offer.provider}/{offer.instance_type.name}", []
    for job in use.jobs:
        others = [each for each in use.jobs if each is not job and not _is_paused(each, use.id)]
        known = snapshot.applications.get(job.application)
        expected = high = None
        source = "nothing is known of it yet"
        if known is not None:
            names = [each.application for each in others]
            by_pressure = neighbour_loss(known, [snapshot.applications.get(each) for each in names])
            loss = snapshot.slowdowns.loss(job.application, names, column, by_pressure)
            expected, high, source = loss.value, loss.high, "what was observed of these programs"
            if loss is by_pressure:
                source = "pressures on shared resources"
            elif not snapshot.slowdowns.has_met(job.application, names):
                source = "pressures on shared resources, and what others lost by them on this type"
        measured, measured_s = _measured_loss(job, others, column, records)
        found.append(
            NeighbourView(
                job=job,
                machine=use.id,
                cpus=_cpus_on(job, use.id),
                beside=tuple(each.id for each in others),
                expected=expected if others else 0.0,
                expected_high=high if others else None,
                source=source if others else "it is alone",
                measured=measured,
                measured_s=measured_s,
            )
        )
    return found


def _is_paused(job: Job, instance_id: str) -> bool:
    held = job.attempt.allocations if job.attempt is not None else ()
    return any(each.paused_at is not None for each in held if each.instance_id == instance_id)


def _cpus_on(job: Job, instance_id: str) -> str:
    held = job.attempt.allocations if job.attempt is not None else ()
    here = [each for each in held if each.instance_id == instance_id and not each.released]
    return cpu_list(chain.from_iterable(each.cpus for each in here)) if all(each.cpus for each in here) else ""


def _measured_loss(
    job: Job, others: Sequence[Job], column: str, records: Mapping[CoRunKey, CoRun]
) -> tuple[float | None, float]:
    """Return the share that was lost beside these programs, and for how long that was observed."""
    if not job.application or not all(each.application for each in others):
        return None, 0.0
    name, beside = row_name(job.application), tuple(sorted(row_name(each.application) for each in others))
    record = records.get((name, beside, column))
    if record is None:
        return None, 0.0
    return record.lost(records.get((name, (), column))), record.seconds


def _chart(context: ApiContext, caller: Caller, use: MachineUse, now: float) -> str:
    """Return the use of a machine over the last day, for the page's script; empty: too little was measured."""
    times, shares = _sampled_use(context, caller, use, now)
    if len(times) < 2:
        times, shares = use_points(use, context.use_history, now)
    if len(times) < 2:
        return ""
    return json.dumps(
        {
            "names": ["in use"],
            "y": "vCPUs in use, %",
            "unit": " %",
            "most": 100,
            "data": [times, [round(100.0 * each, 1) for each in shares]],
        }
    )


def _sampled_use(
    context: ApiContext, caller: Caller, use: MachineUse, now: float
) -> tuple[Sequence[float], Sequence[float]]:
    """Return times, and the share of the vCPUs in use at each, by samples; nothing if some are not the caller's."""
    if not all(caller.may_see(job.spec.user) for job in use.jobs):
        return (), ()
    samples = context.store.events(
        instance_id=use.id, kinds=[EventKind.SAMPLE], since=now - CHART_S, newest=True, limit=SAMPLES_READ
    )
    if not all(caller.may_see(each.user or "") for each in samples):
        return (), ()
    times, busy = busy_history(samples)
    return times, [min(1.0, each / (use.vcpus or 1.0)) for each in busy]


def busy_history(samples: Sequence[Event]) -> tuple[list[float], list[float]]:
    """Return times, and how many vCPUs all units together kept busy up to each, from SAMPLE events in order."""
    last: dict[tuple[object, object], tuple[float, float]] = {}
    busy: dict[tuple[object, object], tuple[float, float]] = {}
    times: list[float] = []
    values: list[float] = []
    for event in samples:
        cpu_s, key = event.fields.get("cpu_s"), (event.fields.get("attempt"), event.fields.get("rank"))
        if not isinstance(cpu_s, int | float):
            continue
        before = last.get(key)
        last[key] = (event.at, float(cpu_s))
        if before is None or event.at <= before[0]:
            continue
        gap_s = event.at - before[0]
        busy[key] = (event.at + 3.0 * gap_s, max(0.0, cpu_s - before[1]) / gap_s)
        busy = {each: kept for each, kept in busy.items() if kept[0] >= event.at}
        if times and event.at <= times[-1]:
            values[-1] = sum(used for _, used in busy.values())
            continue
        times.append(event.at)
        values.append(sum(used for _, used in busy.values()))
    return times, values
