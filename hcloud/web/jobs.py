"""Jobs: the list, page by page, and everything about one of them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from hcloud.api import arrays
from hcloud.api.auth import Caller
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.forecasts import RunTimeForecast, forecast_run_time
from hcloud.api.jobs import timeline_of
from hcloud.api.schemas import JobView
from hcloud.api.unit_logs import LogQuery, read_log_part
from hcloud.classifier.applications import identify, known_as
from hcloud.core.errors import BadInput, HCloudError, NotFound, WorkerUnreachable
from hcloud.core.model import (
    JOB_ENDED,
    JOB_ON_INSTANCE,
    Event,
    EventKind,
    Job,
    JobState,
    ServiceTarget,
)
from hcloud.core.rows import number_of
from hcloud.forecast.runtimes.prediction import RECORDED_IN, RunTimePrediction
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import Stream
from hcloud.report import build_report
from hcloud.report.decisions import DECISION_KINDS
from hcloud.report.table import ReportTable
from hcloud.store import Store
from hcloud.web.fleet import fleet_of
from hcloud.web.site import as_markup, form_of, is_part, page_router, pages_of
from hcloud.web.timeline import job_periods, period_totals, timeline_entries

router = page_router()
PAGE_ROWS = 50
LOG_BYTES = 64 * 1024
EVENTS_MAX = 2000
STEPS_MAX = 200
"""Of a longer timeline the last steps are shown."""
TABS: Mapping[str, frozenset[JobState] | None] = {
    "all": None,
    "waiting": frozenset(JobState) - JOB_ENDED - JOB_ON_INSTANCE,
    "running": JOB_ON_INSTANCE,
    "succeeded": frozenset({JobState.SUCCEEDED}),
    "failed": frozenset({JobState.FAILED}),
    "cancelled": frozenset({JobState.CANCELLED}),
}
RANKS_SHOWN = 16
ATTEMPTS_SHOWN = 8
_Text = Annotated[str, Query(max_length=200)]
_Rank = Annotated[int, Query(ge=0, le=100_000)]
_Attempt = Annotated[int | None, Query(ge=1, le=2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are listed; what is empty does not matter."""

    states: frozenset[JobState] | None
    user: str = ""
    name: str = ""
    tag: str = ""
    """A key, or ``key=value``."""
    before: str = ""
    """Only jobs that are older than this one."""

    def found(self, store: Store, limit: int) -> Sequence[Job]:
        """Return the newest ``limit`` jobs. Raises NotFound: ``before`` is no job's id."""
        if self.states is not None and self.states.isdisjoint(JOB_ENDED):
            # They are in memory; in the database, those of several states would have to be sorted.
            last = number_of(store.job(self.before).id) if self.before else math.inf
            matching = (job for job in store.live().newest_submitted() if self.matches(job))
            return list(islice((job for job in matching if number_of(job.id) < last), limit))
        return store.jobs(
            states=self.states,
            user=self.user or None,
            name=self.name or None,
            tag=self.tag or None,
            limit=limit,
            before=self.before or None,
        )

    def matches(self, job: Job) -> bool:
        """Return whether it is listed, but for its age."""
        if self.states is not None and job.state not in self.states:
            return False
        if self.user not in ("", job.spec.user) or self.name not in ("", job.spec.name):
            return False
        key, equals, value = self.tag.partition("=")
        return not key or (key in job.spec.tags and (not equals or job.spec.tags[key] == value))


@router.get("/jobs")
def list_jobs(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    state: _Text = "all",
    user: _Text = "",
    name: _Text = "",
    tag: _Text = "",
    job: _Text = "",
    before: _Text = "",
) -> Response:
    """Show jobs, the newest first. Only the rows of this page are read."""
    if job:
        return RedirectResponse(f"/jobs/{job if not job.isdigit() else f'job-{job}'}", status_code=303)
    if state not in TABS:
        raise BadInput(f"there is no state {state!r}; choose one of {', '.join(TABS)}")
    wanted = JobFilter(states=TABS[state], user=user, name=name, tag=tag, before=before)
    asked, fleet = {"user": user, "name": name, "tag": tag}, fleet_of(request)

    def rows() -> dict[str, Any]:
        found = wanted.found(context.store, PAGE_ROWS + 1)
        return {
            # What is shown of them is shown to everybody.
            "jobs": arrays.views(context.store, found[:PAGE_ROWS], caller),
            "older": found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else "",
            "state": state,
            "asked": asked,
            "before": before,
        }

    shown = pages_of(request).kept_part(fleet, "_jobs.html", (state, user, name, tag, before), rows)
    if is_part(request):
        return HTMLResponse(shown)
    counts = fleet.counts
    tabs = {
        each: sum(counts.values()) if states is None else sum(counts.get(one, 0) for one in states)
        for each, states in TABS.items()
    }
    values: dict[str, Any] = {"tabs": tabs, "state": state, "asked": asked, "before": before, "shown": as_markup(shown)}
    return pages_of(request).render(request, "jobs.html", **values)


# ------------------------------------------------------------------------------------------------------------- one job
@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """One type that was considered when a job was placed."""

    shape: str
    """Its type and market."""
    usd_per_h: float
    predicted: float | None
    low: float | None
    high: float | None
    rejected: str
    """Why it was not chosen; empty for the chosen one."""


@dataclass(frozen=True, slots=True)
class RunTimeRange:
    """A predicted run time, from start to end."""

    median_s: float
    within_80_pct_s: float
    within_90_pct_s: float
    source: str
    """By what it was predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedComparison:
    """Predicted performance per second beside what was measured."""

    measure: str
    predicted: float
    low: float
    high: float
    measured: float | None
    measured_by: str
    """When it was measured: now, or at the end."""


@router.get("/jobs/{job_id}")
async def show_job(
    request: Request, context: Context, caller: CurrentCaller, job_id: str, rank: _Rank = 0, attempt: _Attempt = None
) -> Response:
    """Show one job, array or task: why it waits, where it runs, what was predicted and measured, and every decision.

    ``rank``, ``attempt``: of which the output is shown; None: of the current or last attempt.
    """
    work = partial(_job_values, context, caller, job_id)
    values = await context.long_work.result(work, at_once=True)
    output = _output_parts(values["raw"], rank, attempt)
    return await run_in_threadpool(partial(pages_of(request).render, request, "job.html", output=output, **values))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParts:
    """Of which rank and attempt the output is shown, and which others there are."""

    rank: int
    attempt: int
    ranks: Sequence[int]
    """Those that can be chosen with one click; empty: there is one."""
    more_ranks: int
    """Number of all ranks, if there are more than can be shown; else 0."""
    attempts: Sequence[int]
    machines: Mapping[int, str]
    """By rank of the current attempt."""
    asked: Mapping[str, int]
    """Rank, and attempt if one was chosen, as in the page's address."""


def _output_parts(job: Job, rank: int, attempt: int | None) -> OutputParts:
    """Return what the output's part of the page offers. Raises NotFound: the job has no such rank or attempt."""
    count, made = job.spec.nodes.count, job.attempts_made
    if rank >= count:
        raise NotFound(f"{job.id} has no rank {rank}; it has ranks 0 to {count - 1}")
    if attempt is not None and attempt > made:
        raise NotFound(f"{job.id} has no attempt {attempt}; it has made {made}")
    held = job.attempt.allocations if job.attempt is not None else ()
    return OutputParts(
        rank=rank,
        attempt=attempt or made,
        ranks=range(min(count, RANKS_SHOWN)) if count > 1 else (),
        more_ranks=count if count > RANKS_SHOWN else 0,
        attempts=range(max(1, made - ATTEMPTS_SHOWN + 1), made + 1) if made > 1 else (),
        machines={each.rank: each.instance_id for each in held} if attempt in (None, made) else {},
        asked={"rank": rank} if attempt is None else {"rank": rank, "attempt": attempt},
    )


def _job_values(context: ApiContext, caller: Caller, job_id: str) -> dict[str, Any]:
    store = context.store
    job = arrays.find_job(store, job_id)
    timeline = timeline_of(context, caller, job_id)
    own, snapshot = caller.may_see(job.spec.user), context.snapshot()
    events = store.events(job_id=job.id, limit=EVENTS_MAX, kinds=_PAGE_KINDS)
    view = arrays.view(store, job, caller)
    ended = job.state in JOB_ENDED
    phases = [] if job.is_array else job_periods(job, events, context.clock.now())
    return {
        "job": view,
        "raw": job,
        "own": own,
        "now": context.clock.now(),
        "is_waiting": not ended and job.state not in JOB_ON_INSTANCE,
        "is_ended": ended,
        "timeline": timeline,
        "entries": timeline_entries(timeline.steps[-STEPS_MAX:]),
        "steps_before": max(0, len(timeline.steps) - STEPS_MAX),
        "phases": phases,
        "period_totals": period_totals(phases),
        "cost": next((each for each in reversed(timeline.steps) if each.code == "cost"), None),
        "forecast": _forecast(context, caller, job_id) if own and not ended else None,
        "run_time": _run_time(context, caller, job, events) if own else None,
        "ran_s": _ran_s(job, context.clock.now()) if ended or job.state in JOB_ON_INSTANCE else None,
        "why_it_waits": job.wait_text or "accepted; the next plan looks at it",
        "application": known_name(job, snapshot) if own else "",
        "speeds": _speeds(job, events, snapshot) if own else [],
        "class_words": _class_words(job, events),
        "choices": _choices(events),
        "regret": _regret(events, context.clock.now()),
        "corrections": [each for each in events if each.kind in (EventKind.CORRECTION, EventKind.TARGET_MISSED)],
        "target": target_words(view),
        "tasks": _tasks(context, caller, job),
        "may_cancel": own and not ended and caller.role != "reader",
        "may_rerun": job.spec.user == caller.name and ended and job.spec.profile is None and caller.role != "reader",
    }


_PAGE_KINDS = DECISION_KINDS | {
    EventKind.JOB_CLASSIFIED,
    EventKind.JOB_PROFILED,
    EventKind.CORRECTION,
    EventKind.TARGET_MISSED,
    EventKind.JOB_STATE,
}


def target_words(job: JobView) -> str:
    """Return what was promised for a job, in words."""
    target = job.spec.target
    if isinstance(target, ServiceTarget):
        return f"{target.requests_per_s:g} requests/s, {target.percentile:g} % within {target.latency_ms:g} ms"
    if job.deadline_at is not None:
        return "finish by"
    return "best effort" if target.kind == "best_effort" else "as soon as possible"


def _class_words(job: Job, events: Sequence[Event]) -> str:
    """Return how a job came to its class, by its newest classification; empty: it is not classified."""
    for each in reversed(events):
        if (
            each.kind is EventKind.JOB_PROFILED
            and job.application
            and job.application == each.fields.get("application")
        ):
            runs = each.fields.get("runs")
            by = ", ".join(map(str, runs)) if isinstance(runs, list | tuple) else "a run"
            return f"profiled in {by}, while it ran or waited"
        if each.kind is EventKind.JOB_CLASSIFIED:
            return str(each.fields.get("text") or each.fields.get("source"))
    return ""


def known_name(job: Job, snapshot: Snapshot) -> str:
    """Return the name under which the job's program is known, if only by earlier runs; empty: it is not."""
    if job.application:
        return job.application
    identity = identify(job.spec)
    row = known_as(identity, snapshot.programs.get(identity.program, ()), own_runs=True)
    return "" if row is None else row.name


def _ran_s(job: Job, now: float) -> float | None:
    parts = job.attempt.allocations if job.attempt is not None else ()
    began = [each.started_at for each in parts if each.started_at is not None]
    if not began:
        return None
    ended = [each.ended_at for each in parts if each.ended_at is not None]
    return (max(ended) if len(ended) == len(parts) else now) - min(began)


def _forecast(context: ApiContext, caller: Caller, job_id: str) -> RunTimeForecast | None:
    with suppress(HCloudError):
        return forecast_run_time(context, caller, job_id)
    return None


def _run_time(context: ApiContext, caller: Caller, job: Job, events: Sequence[Event]) -> RunTimeRange | None:
    """Return the run time predicted now, or of a job that has ended the one predicted when it was placed last."""
    if job.state not in JOB_ENDED:
        found = _forecast(context, caller, job.id)
        if found is None:
            return None
        source = f"{found.runs} past runs"
        return RunTimeRange(found.median_s, found.within_80_pct_s, found.within_90_pct_s, source)
    placed = next((each for each in reversed(events) if each.kind is EventKind.ATTEMPT_PLACED), None)
    predicted = None if placed is None else RunTimePrediction.from_fields(placed.fields.get(RECORDED_IN))
    if predicted is None:
        return None
    median_s, within_80_pct_s, within_90_pct_s = (predicted.quantile_s(each) for each in (0.5, 0.8, 0.9))
    return RunTimeRange(median_s, within_80_pct_s, within_90_pct_s, predicted.source)


def _float(event: Event, key: str) -> float | None:
    value = event.fields.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _speeds(job: Job, events: Sequence[Event], snapshot: Snapshot) -> list[SpeedComparison]:
    """Return what was predicted of its speed, with limits, beside what was measured: at its end, or lately."""
    found = []
    for event in events:
        value, low, high = (_float(event, key) for key in ("predicted", "low", "high"))
        if event.kind is EventKind.PREDICTION and value is not None and low is not None and high is not None:
            measured = _float(event, "measured")
            found.append(
                SpeedComparison(
                    measure=f"{event.fields.get('measure') or 'speed'} on {event.fields.get('instance_type')}",
                    predicted=value,
                    low=low,
                    high=high,
                    measured=measured,
                    measured_by="measured",
                )
            )
    classified = next((each for each in reversed(events) if each.kind is EventKind.JOB_CLASSIFIED), None)
    if not found and classified is not None:
        value, low, high = (_float(classified, key) for key in ("predicted", "predicted_low", "predicted_high"))
        if value is not None and low is not None and high is not None:
            known = snapshot.applications.get(job.application)
            measure = "" if known is None or known.measure is None else known.measure.value
            measured = _measured_now(job, measure, snapshot)
            found.append(
                SpeedComparison(
                    measure=f"{measure or 'performance'} alone, with what it asked for",
                    predicted=value,
                    low=low,
                    high=high,
                    measured=measured,
                    measured_by="measured lately",
                )
            )
    return found[-3:]


_COUNTERS = {"progress": "progress", "cpu": "cpu_s", "output": "written_mib"}


def _measured_now(job: Job, measure: str, snapshot: Snapshot) -> float | None:
    """Return how fast a running job is by its latest samples, in the unit of the measure; None: not known."""
    samples, counter = snapshot.job_samples.get(job.id), _COUNTERS.get(measure)
    if samples is None or counter is None or job.attempt is None or samples.attempt != job.attempt.id:
        return None
    rates = []
    for kept in samples.ranks.values():
        readings = [each for each in kept if counter in each.values]
        if len(readings) > 1 and readings[-1].at > readings[0].at:
            moved = readings[-1].values[counter] - readings[0].values[counter]
            rates.append(moved / (readings[-1].at - readings[0].at))
    if not rates:
        return None
    return max(rates) if counter == "progress" else sum(rates)


def _choices(events: Sequence[Event]) -> list[PlacementChoice]:
    """Return what was considered for the last placement, the chosen first."""
    placed = next((each for each in reversed(events) if each.kind is EventKind.ATTEMPT_PLACED), None)
    given = placed.fields.get("candidates") if placed is not None else None
    found = []
    for each in given if isinstance(given, list | tuple) else ():
        shape, price, predicted, low, high, rejected = [*str(each).split("|", 5), *[""] * 5][:6]
        found.append(
            PlacementChoice(
                shape=shape,
                usd_per_h=_parsed(price) or 0.0,
                predicted=_parsed(predicted),
                low=_parsed(low),
                high=_parsed(high),
                rejected=rejected,
            )
        )
    return found


def _parsed(number: str) -> float | None:
    try:
        return float(number)
    except ValueError:
        return None


def _regret(events: Sequence[Event], now: float) -> ReportTable | None:
    """Return how the placement compares in hindsight with its alternatives, once the job has ended."""
    try:
        table = build_report("decisions", (each for each in events if each.kind in DECISION_KINDS), now, by="job")
    except HCloudError:
        return None
    if not table.rows:
        return None
    kept = [at for at, column in enumerate(table.columns) if column.name not in ("job", "name", "user")]
    rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[at] for at in kept), rows=rows, total=None)


def _tasks(context: ApiContext, caller: Caller, job: Job) -> list[JobView]:
    if not job.is_array:
        return []
    return arrays.views(context.store, context.store.tasks(job.id, limit=PAGE_ROWS), caller)


# ---------------------------------------------------------------------------------------------------------------- logs
@router.get("/jobs/{job_id}/log")
def show_log(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    job_id: str,
    stream: Annotated[Stream, Query()] = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    rank: _Rank = 0,
    attempt: _Attempt = None,
) -> Response:
    """Return the next part of a job's output, which asks for the one after it as long as more may come."""
    job = arrays.find_job(context.store, job_id)
    caller.require_owner(job.spec.user, f"read the output of {job_id}")
    content, next_offset, over, problem = b"", offset, job.is_array, ""
    try:
        if not job.is_array:
            query = LogQuery(job_id=job.id, stream=stream, offset=offset, limit=LOG_BYTES, rank=rank, attempt=attempt)
            part = read_log_part(context, query)
            content, next_offset, over = part.chunk.content, part.chunk.next_offset, part.chunk.end
    except NotFound as error:
        over, problem = True, str(error)
    except WorkerUnreachable:
        problem = ""
    # A letter that is cut in two is read again with the next part.
    text, used = codecs.utf_8_decode(content, "replace", over or len(content) < 4)
    return pages_of(request).render(
        request,
        "_log.html",
        job_id=job_id,
        stream=stream,
        rank=rank,
        attempt=attempt,
        text=text,
        offset=next_offset - (len(content) - used),
        over=over and used == len(content),
        full=len(content) >= LOG_BYTES,
        problem=problem,
        began=offset > 0,
    )


# ------------------------------------------------------------------------------------------------------------- changes
@router.post("/jobs/{job_id}/cancel")
def cancel_job(context: Context, caller: CurrentCaller, job_id: str) -> Response:
    """Request the cancellation of a job, and show it."""
    arrays.cancel(context, caller, [job_id])
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


@router.post("/jobs/{job_id}/rerun")
def rerun_job(request: Request, context: Context, caller: CurrentCaller, job_id: str) -> Response:
    """Submit a job again, and show the new one."""
    failed = form_of(request).get("failed") == "yes"
    made = arrays.rerun_job(context, caller, job_id, arrays.RerunRequest(failed=failed))
    return RedirectResponse(f"/jobs/{made.id}", status_code=303)
