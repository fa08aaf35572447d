"""Performance report: queue and run times of jobs, and how well their targets (deadline or latency) were met."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hcloud.core.model import PROFILE_TAG, Event, EventKind, JobState
from hcloud.core.redone_work import RedoneWork
from hcloud.core.rows import number_of
from hcloud.report.grouping import Grouping, JobFacts, job_facts, number, text
from hcloud.report.run_costs import ended_tasks
from hcloud.report.serving import Serving
from hcloud.report.table import ReportTable, Row, Value, columns, share_pct

PERFORMANCE_KINDS: frozenset[EventKind] = frozenset(
    {
        EventKind.JOB_SUBMITTED,
        EventKind.JOB_STATE,
        EventKind.JOB_FINISHED,
        EventKind.TASKS_ENDED,
        EventKind.UNIT_STARTED,
        EventKind.UNIT_ENDED,
        EventKind.SAMPLE,
        EventKind.INSTANCE_REQUESTED,
        EventKind.INSTANCE_TERMINATED,
    }
)
"""Event kinds that the report reads."""


@dataclass(slots=True, kw_only=True)
class _JobRecord:
    """One job, as far as the log has been read."""

    facts: JobFacts
    target: str
    submitted_at: float
    deadline_at: float | None
    released_at: float | None = None
    """When the last of the jobs that it waited for had ended."""
    waits_for_jobs: bool = False
    redone: RedoneWork = field(default_factory=RedoneWork)
    serving: Serving
    """Latency samples and downtime, if the job is a service."""
    state: str = JobState.SUBMITTED.value
    pool: str = ""
    market: str = ""
    attempts: set[str] = field(default_factory=set)
    attempt_started_at: float | None = None
    ended_at: float | None = None
    run_s: float | None = None
    task_run_s: float | None = None
    """How long it ran itself, if other tasks ran in its unit."""
    target_met: float | None = None
    """Share (0..1) to which the target was met; None if it is undecided or the job has no target."""

    @property
    def started_at(self) -> float | None:
        """Return when the first unit started."""
        return self.serving.started_at

    def close(self, now: float) -> None:
        """Set the run time and ``target_met`` as of ``now``; a live job past its deadline has missed it."""
        end = self.ended_at if self.ended_at is not None else now
        if self.run_s is None and self.attempt_started_at is not None:
            self.run_s = max(0.0, end - self.attempt_started_at)
        served = self.serving.share(end, over=self.ended_at is not None)
        never_served = self.state == JobState.FAILED.value and self.serving.latency_ms is not None
        late = self.ended_at is None and self.deadline_at is not None and now > self.deadline_at
        if served is not None:
            self.target_met = served
        elif never_served or late:
            self.target_met = 0.0

    def queue_s(self, now: float) -> float:
        """Return the seconds from submission to the first start; up to the end, or ``now``, if it never started.

        What it waited for other jobs is not counted.
        """
        waited_to = self.started_at if self.started_at is not None else self.ended_at
        return max(0.0, (now if waited_to is None else waited_to) - self.submitted_at - self.held_s(now))

    def held_s(self, now: float) -> float:
        """Return the seconds from submission until the jobs that it waited for had ended; 0 if it waited for none."""
        if not self.waits_for_jobs:
            return 0.0
        until = next((at for at in (self.released_at, self.ended_at) if at is not None), now)
        return max(0.0, until - self.submitted_at)


@dataclass(slots=True)
class _PerformanceSums:
    """Sums over many jobs. Percentiles need the times of every job: 16 bytes each."""

    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    with_target: int = 0
    met: float = 0.0
    """Sum of ``target_met`` over the jobs with a target."""
    held_s: float = 0.0
    redone_s: float = 0.0
    queue_s: array[float] = field(default_factory=lambda: array("d"))
    run_s: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True, kw_only=True)
class _ArrayRecord:
    """An array and its tasks, as far as the log has been read."""

    facts: JobFacts
    target: str
    submitted_at: float
    deadline_at: float | None
    total: int
    state: str = JobState.SUBMITTED.value
    ended_at: float | None = None
    attempts: int = 0
    tasks: _PerformanceSums = field(default_factory=lambda: _PerformanceSums())


class _JobLog:
    """State while reading the log. A job is added to the rows or to its group when it, or the log, has ended.

    Profiling runs were not submitted by users; they are counted only in a report by their own tag.
    """

    def __init__(self, grouping: Grouping, since: float, now: float) -> None:
        self.grouping = grouping
        self.since = since
        self.now = now
        self.live: dict[str, _JobRecord] = {}
        self.arrays: dict[str, _ArrayRecord] = {}
        self.machines: dict[str, tuple[str, str]] = {}
        self.rows: list[Row] = []
        self.groups: dict[tuple[str, ...], _PerformanceSums] = {}
        self.omits_profiling = False

    def take(self, event: Event) -> None:
        """Apply one event."""
        if event.kind is EventKind.JOB_SUBMITTED and (total := int(number(event, "tasks"))):
            self.arrays[event.job_id or ""] = _ArrayRecord(
                facts=job_facts(event),
                target=_target_text(text(event, "target_kind"), event, event.at),
                submitted_at=event.at,
                deadline_at=_deadline(event),
                total=total,
            )
        elif event.kind is EventKind.JOB_SUBMITTED:
            record = _new_record(event, self.since)
            if PROFILE_TAG in record.facts.tags and self.grouping.tag != PROFILE_TAG:
                self.omits_profiling = True
            else:
                self.live[record.facts.id] = record
        elif event.kind is EventKind.INSTANCE_REQUESTED:
            pool = f"{text(event, 'provider')}/{text(event, 'zone')}/{text(event, 'type')}"
            self.machines[event.instance_id or ""] = (pool, text(event, "market"))
        elif event.kind is EventKind.INSTANCE_TERMINATED:
            self.machines.pop(event.instance_id or "", None)
        elif event.kind is EventKind.TASKS_ENDED:
            self._tasks_ended(event)
        elif (live := self.live.get(event.job_id or "")) is not None:
            self._apply(live, event)
        elif event.kind in _OF_ARRAYS and (array := self.arrays.get(event.job_id or "")) is not None:
            array.state = text(event, "to") or text(event, "state") or array.state
            array.ended_at = event.at if event.kind is EventKind.JOB_FINISHED else None

    def _tasks_ended(self, event: Event) -> None:
        """Add the tasks that succeeded in the unit of another one; those that failed have events of their own."""
        array, lead = self.arrays.get(event.job_id or ""), text(event, "attempt").rpartition(".")[0]
        if array is None:
            return
        for task_id, ended in ended_tasks(event):
            job_id = f"job-{number_of(array.facts.id) + 1 + ended.first}"
            run_s = ended.ended_at - ended.started_at
            if ended.cause is not None:
                continue
            if job_id == lead:
                if job_id in self.live:
                    self.live[job_id].task_run_s = run_s
                continue
            met = None if array.deadline_at is None else float(ended.ended_at <= array.deadline_at)
            record = _JobRecord(
                facts=replace(array.facts, id=job_id, array=array.facts.id, task=task_id),
                target=array.target, submitted_at=array.submitted_at, deadline_at=array.deadline_at,
                serving=Serving(since=self.since, started_at=ended.started_at), state=JobState.SUCCEEDED.value,
                attempts={f"{job_id}.1"}, ended_at=ended.ended_at, run_s=run_s, target_met=met,
            )  # fmt: skip
            record.pool, record.market = self.machines.get(event.instance_id or "", ("", ""))
            if ended.ended_at >= self.since:
                self.add(record)

    def _apply(self, record: _JobRecord, event: Event) -> None:
        record.redone.take(event)
        if event.kind is EventKind.JOB_STATE:
            record.state = text(event, "to") or record.state
            if text(event, "code") in ("released", "dependency_not_met"):
                record.released_at = event.at
        elif event.kind is EventKind.UNIT_STARTED:
            self._unit_started(record, event, event.at)
        elif event.kind is EventKind.UNIT_ENDED:
            ran_in_a_run = text(event, "attempt") not in record.attempts and "exit_code" in event.fields
            if ran_in_a_run and record.facts.array and event.fields["exit_code"] is not None:
                began_at = number(event, "started_at", event.at)
                self._unit_started(record, event, began_at)
                record.task_run_s = max(0.0, number(event, "at", event.at) - began_at)
            record.serving.unit_ended(event)
        elif event.kind is EventKind.SAMPLE:
            record.serving.count_sample(event)
        elif event.kind is EventKind.JOB_FINISHED:
            record.state = text(event, "state")
            record.ended_at = event.at
            record.run_s = number(event, "run_s") if "run_s" in event.fields else None
            record.run_s = record.task_run_s if record.task_run_s is not None else record.run_s
            met = event.fields.get("target_met")
            record.target_met = float(met) if isinstance(met, bool) else None
            del self.live[record.facts.id]
            if event.at >= self.since:
                self.add(record)

    def _unit_started(self, record: _JobRecord, event: Event, at: float) -> None:
        attempt = text(event, "attempt")
        if attempt not in record.attempts:
            record.attempts.add(attempt)
            record.attempt_started_at, record.task_run_s = at, None
        record.serving.unit_started(at)
        record.pool, record.market = self.machines.get(event.instance_id or "", (record.pool, record.market))

    def add(self, record: _JobRecord) -> None:
        """Add a job to the rows or to its group, as far as the log has been read."""
        record.close(self.now)
        array = self.arrays.get(record.facts.array)
        if self.grouping.kind == "task" or (self.grouping.kind == "job" and array is None):
            self.rows.append(_job_row(record, self.now))
        elif self.grouping.kind == "job" and array is not None:
            array.attempts += len(record.attempts)
            self._add_to(array.tasks, record)
        else:
            self._add_to(self.groups.setdefault(self._key(record), _PerformanceSums()), record)

    def array_rows(self) -> list[Row]:
        """Return a row for each array that ended in the period or is live: medians over its tasks."""
        if self.grouping.kind != "job":
            return []
        shown = (each for each in self.arrays.values() if each.ended_at is None or each.ended_at >= self.since)
        return [_array_row(each, self.now) for each in shown]

    def _add_to(self, group: _PerformanceSums, record: _JobRecord) -> None:
        group.jobs += 1
        for state in ("succeeded", "failed", "cancelled"):
            setattr(group, state, getattr(group, state) + (record.state == state))
        group.held_s += record.held_s(self.now)
        group.redone_s += record.redone.total_s
        group.queue_s.append(record.queue_s(self.now))
        if record.run_s is not None and record.started_at is not None:
            group.run_s.append(record.run_s)
        if record.target_met is not None:
            group.with_target += 1
            group.met += record.target_met

    def notes(self) -> tuple[str, ...]:
        """Return the notes below the table."""
        arrays = (_OF_TASKS,) if self.arrays and self.grouping.kind == "job" else ()
        return (*_NOTES, *arrays, _PROFILING_OMITTED) if self.omits_profiling else (*_NOTES, *arrays)

    def _key(self, record: _JobRecord) -> tuple[str, ...]:
        kind = self.grouping.kind
        if kind == "pool":
            return (record.pool or "(never started)",)
        if kind == "market":
            return (record.market or "(never started)",)
        if kind == "day":
            return ("(not ended)" if record.ended_at is None else self.grouping.day_of(record.ended_at),)
        return self.grouping.job_key(record.facts)


def performance_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return queue times, run times and met targets of the jobs that ended after ``since`` and of live jobs."""
    log = _JobLog(grouping, since, min(now, until))
    for event in events:
        log.take(event)
    for record in log.live.values():
        log.add(record)
    if grouping.kind in ("job", "task"):
        return _by_job(log)
    return _by_group(log)


_NOTES = (
    "held: from submission to the end of the jobs it waited for; queue: from then to the first start; run: the last "
    "attempt, from its first start to its last end",
    "redone: what attempts that were lost had done since their last checkpoint, and the next one did again",
    "target_met: batch jobs by their deadline (100 or 0), services by the share of latency samples within the target "
    "times the share of the time since the first start in which they ran",
)
_OF_TASKS = "arrays: medians of their tasks' queue and run times, attempts of all; --by task shows each task"
_OF_ARRAYS = (EventKind.JOB_STATE, EventKind.JOB_FINISHED)
_PROFILING_OMITTED = f"profiling runs are left out; --by tag:{PROFILE_TAG} shows them"


def _by_job(log: _JobLog) -> ReportTable:
    kind = log.grouping.kind
    names = columns(
        kind,
        "name",
        "user",
        "target",
        "state",
        "held_s",
        "queue_s",
        "run_s",
        "redone_s",
        "total_s",
        "attempts",
        "target_met_pct",
    )
    return ReportTable(
        title=f"Performance by {kind}",
        columns=names,
        rows=tuple(sorted([*log.rows, *log.array_rows()], key=lambda row: _numbers_in(str(row[0])))),
        notes=log.notes(),
    )


def _numbers_in(label: str) -> tuple[int, ...]:
    """Return the numbers of ``job-7`` or ``job-7[3]``, by which rows are in order."""
    return tuple(int(each) for each in re.findall(r"\d+", label))


def _array_row(array: _ArrayRecord, now: float) -> Row:
    tasks, facts, end = array.tasks, array.facts, now if array.ended_at is None else array.ended_at
    ended = tasks.succeeded + tasks.failed + tasks.cancelled
    state = f"{array.state}, {ended} of {array.total} tasks" if array.ended_at is None else array.state
    run_s = _percentiles(tasks.run_s)[0]
    times = (tasks.held_s, _percentiles(tasks.queue_s)[0], run_s, tasks.redone_s, end - array.submitted_at)
    began = (facts.id, facts.name, facts.user, array.target, state)
    return (*began, *times, array.attempts, share_pct(tasks.met, tasks.with_target))


def _job_row(record: _JobRecord, now: float) -> Row:
    end = now if record.ended_at is None else record.ended_at
    met = None if record.target_met is None else 100.0 * record.target_met
    facts = record.facts
    began = (facts.label, facts.name, facts.user, record.target, record.state)
    run_s = record.run_s if record.started_at is not None else None
    times = (record.held_s(now), record.queue_s(now), run_s, record.redone.total_s, end - record.submitted_at)
    return (*began, *times, len(record.attempts), met)


def _by_group(log: _JobLog) -> ReportTable:
    names = columns(
        *log.grouping.columns,
        "jobs",
        "live",
        "succeeded",
        "failed",
        "cancelled",
        "held_s",
        "queue_p50_s",
        "queue_p95_s",
        "run_p50_s",
        "run_p95_s",
        "redone_s",
        "with_target",
        "target_met_pct",
    )
    whole = _PerformanceSums()
    for group in log.groups.values():
        _add_group(whole, group)
    return ReportTable(
        title=f"Performance by {log.grouping.text}",
        columns=names,
        rows=tuple((*key, *_group_values(group)) for key, group in sorted(log.groups.items())),
        total=("total", *("" for _ in log.grouping.columns[1:]), *_group_values(whole)),
        notes=log.notes(),
    )


def _group_values(group: _PerformanceSums) -> Row:
    live = group.jobs - group.succeeded - group.failed - group.cancelled
    times = (group.held_s, *_percentiles(group.queue_s), *_percentiles(group.run_s), group.redone_s)
    counts = (group.jobs, live, group.succeeded, group.failed, group.cancelled)
    return (*counts, *times, group.with_target, share_pct(group.met, group.with_target))


def _add_group(whole: _PerformanceSums, group: _PerformanceSums) -> None:
    for name in ("jobs", "succeeded", "failed", "cancelled", "with_target", "met", "held_s", "redone_s"):
        setattr(whole, name, getattr(whole, name) + getattr(group, name))
    whole.queue_s.extend(group.queue_s)
    whole.run_s.extend(group.run_s)


def _percentiles(values: array[float]) -> tuple[Value, Value]:
    """Return the median and the 95th percentile by nearest rank; None without values."""
    if not values:
        return None, None
    ordered = sorted(values)
    return tuple(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 95))  # type: ignore[return-value]


def _new_record(event: Event, since: float) -> _JobRecord:
    kind = text(event, "target_kind")
    submitted_at = number(event, "submitted_at", event.at)  # tasks are made later than they were submitted
    return _JobRecord(
        facts=job_facts(event),
        target=_target_text(kind, event, submitted_at),
        submitted_at=submitted_at,
        deadline_at=_deadline(event),
        waits_for_jobs=bool(event.fields.get("after")),
        serving=Serving(
            latency_ms=number(event, "latency_ms") if kind == "service" else None,
            percentile=number(event, "percentile", 99.0),
            since=since,
        ),
    )


def _deadline(event: Event) -> float | None:
    deadline = event.fields.get("deadline_at")
    return float(deadline) if isinstance(deadline, (int, float)) else None


def _target_text(kind: str, event: Event, submitted_at: float) -> str:
    if kind == "service":
        rate, limit = number(event, "requests_per_s"), number(event, "latency_ms")
        return f"{rate:g}/s, p{number(event, 'percentile', 99.0):g} <= {limit:g} ms"
    deadline = event.fields.get("deadline_at")
    if isinstance(deadline, (int, float)):
        return f"within {max(0.0, deadline - submitted_at):.0f} s"
    return "best effort" if kind == "best_effort" else kind
