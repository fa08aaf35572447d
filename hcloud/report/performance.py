"""Performance: how long jobs waited and ran, and whether they got what they were promised."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from hcloud.core.model import PROFILE_TAG, Event, EventKind, JobState
from hcloud.report.grouping import Grouping, JobFacts, day_of, number, text
from hcloud.report.serving import Serving
from hcloud.report.table import ReportTable, Row, Value, columns, share_pct

PERFORMANCE_KINDS: frozenset[EventKind] = frozenset(
    {
        EventKind.JOB_SUBMITTED,
        EventKind.JOB_STATE,
        EventKind.JOB_FINISHED,
        EventKind.UNIT_STARTED,
        EventKind.UNIT_ENDED,
        EventKind.SAMPLE,
        EventKind.INSTANCE_REQUESTED,
        EventKind.INSTANCE_TERMINATED,
    }
)
"""The events this report needs."""


@dataclass(slots=True, kw_only=True)
class _JobStory:
    """One job on its way; ``serving``: how it does as a service."""

    facts: JobFacts
    target: str
    submitted_at: float
    deadline_at: float | None
    serving: Serving
    state: str = JobState.SUBMITTED.value
    pool: str = ""
    market: str = ""
    attempts: set[str] = field(default_factory=set)
    attempt_started_at: float | None = None
    ended_at: float | None = None
    run_s: float | None = None
    target_met: float | None = None

    @property
    def started_at(self) -> float | None:
        """When its first unit started."""
        return self.serving.started_at

    def close(self, now: float) -> None:
        """Work out what can be said at ``now``: a live job's times so far, whether its promise is broken already."""
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
        """Return how long the job waited for its first start."""
        waited_to = self.started_at if self.started_at is not None else self.ended_at
        return max(0.0, (now if waited_to is None else waited_to) - self.submitted_at)


@dataclass(slots=True)
class _PerformanceSums:
    """What is added up over many jobs: 16 bytes per job, for the percentiles."""

    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    promised: int = 0
    kept: float = 0.0
    queue_s: array[float] = field(default_factory=lambda: array("d"))
    run_s: array[float] = field(default_factory=lambda: array("d"))


class _JobLog:
    """Follows jobs through the log; each job becomes a row, or joins a group, when it has ended or the log has.

    Profiling runs were not submitted by users: they are reported only by their own tag.
    """

    def __init__(self, grouping: Grouping, since: float, now: float) -> None:
        self.grouping = grouping
        self.since = since
        self.now = now
        self.live: dict[str, _JobStory] = {}
        self.machines: dict[str, tuple[str, str]] = {}
        self.rows: list[Row] = []
        self.groups: dict[tuple[str, ...], _PerformanceSums] = {}
        self.leaves_out = False

    def take(self, event: Event) -> None:
        """Take in one event."""
        if event.kind is EventKind.JOB_SUBMITTED:
            self._submitted(_story(event, self.since))
        elif event.kind is EventKind.INSTANCE_REQUESTED:
            pool = f"{text(event, 'provider')}/{text(event, 'zone')}/{text(event, 'type')}"
            self.machines[event.instance_id or ""] = (pool, text(event, "market"))
        elif event.kind is EventKind.INSTANCE_TERMINATED:
            self.machines.pop(event.instance_id or "", None)
        else:
            story = self.live.get(event.job_id or "")
            if story is not None:
                self._follow(story, event)

    def _submitted(self, story: _JobStory) -> None:
        if PROFILE_TAG in story.facts.tags and self.grouping.tag != PROFILE_TAG:
            self.leaves_out = True
        else:
            self.live[story.facts.id] = story

    def _follow(self, story: _JobStory, event: Event) -> None:
        if event.kind is EventKind.JOB_STATE:
            story.state = text(event, "to") or story.state
        elif event.kind is EventKind.UNIT_STARTED:
            self._started(story, event)
        elif event.kind is EventKind.UNIT_ENDED:
            story.serving.unit_ended(event)
        elif event.kind is EventKind.SAMPLE:
            story.serving.look(event)
        elif event.kind is EventKind.JOB_FINISHED:
            story.state = text(event, "state")
            story.ended_at = event.at
            story.run_s = number(event, "run_s") if "run_s" in event.fields else None
            met = event.fields.get("target_met")
            story.target_met = float(met) if isinstance(met, bool) else None
            del self.live[story.facts.id]
            if event.at >= self.since:
                self.add(story)

    def _started(self, story: _JobStory, event: Event) -> None:
        attempt = text(event, "attempt")
        if attempt not in story.attempts:
            story.attempts.add(attempt)
            story.attempt_started_at = event.at
        story.serving.unit_started(event.at)
        story.pool, story.market = self.machines.get(event.instance_id or "", (story.pool, story.market))

    def add(self, story: _JobStory) -> None:
        """Count a job, with its events so far."""
        story.close(self.now)
        if self.grouping.kind == "job":
            self.rows.append(_job_row(story, self.now))
            return
        group = self.groups.setdefault(self._key(story), _PerformanceSums())
        group.jobs += 1
        for state in ("succeeded", "failed", "cancelled"):
            setattr(group, state, getattr(group, state) + (story.state == state))
        group.queue_s.append(story.queue_s(self.now))
        if story.run_s is not None and story.started_at is not None:
            group.run_s.append(story.run_s)
        if story.target_met is not None:
            group.promised += 1
            group.kept += story.target_met

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the numbers must know."""
        return (*_NOTES, _LEAVES_OUT) if self.leaves_out else _NOTES

    def _key(self, story: _JobStory) -> tuple[str, ...]:
        kind = self.grouping.kind
        if kind == "pool":
            return (story.pool or "(never started)",)
        if kind == "market":
            return (story.market or "(never started)",)
        if kind == "day":
            return ("(not ended)" if story.ended_at is None else day_of(story.ended_at),)
        return self.grouping.job_key(story.facts)


def performance_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return waiting and running times and promises kept, of jobs that ended since ``since`` and of live ones."""
    book = _JobLog(grouping, since, min(now, until))
    for event in events:
        book.take(event)
    for story in book.live.values():
        book.add(story)
    if grouping.kind == "job":
        return _by_job(book)
    return _by_group(book)


_NOTES = (
    "queue: from submission to the first start; run: the last attempt, first start to last end",
    "target_met: batch jobs by their deadline (100 or 0), services by the share of looks within the promised latency "
    "times the share of the time since the first start in which they ran",
)
_LEAVES_OUT = f"profiling runs are left out; --by tag:{PROFILE_TAG} tells of them"


def _by_job(book: _JobLog) -> ReportTable:
    names = columns(
        "job", "name", "user", "target", "state", "queue_s", "run_s", "total_s", "attempts", "target_met_pct"
    )
    return ReportTable(
        title="Performance by job",
        columns=names,
        rows=tuple(sorted(book.rows, key=lambda row: int(str(row[0]).removeprefix("job-") or 0))),
        notes=book.notes(),
    )


def _job_row(story: _JobStory, now: float) -> Row:
    end = now if story.ended_at is None else story.ended_at
    met = None if story.target_met is None else 100.0 * story.target_met
    facts = story.facts
    began = (facts.id, facts.name, facts.user, story.target, story.state)
    run_s = story.run_s if story.started_at is not None else None
    return (*began, story.queue_s(now), run_s, end - story.submitted_at, len(story.attempts), met)


def _by_group(book: _JobLog) -> ReportTable:
    names = columns(
        *book.grouping.columns,
        "jobs",
        "live",
        "succeeded",
        "failed",
        "cancelled",
        "queue_p50_s",
        "queue_p95_s",
        "run_p50_s",
        "run_p95_s",
        "with_target",
        "target_met_pct",
    )
    whole = _PerformanceSums()
    for group in book.groups.values():
        _add_group(whole, group)
    return ReportTable(
        title=f"Performance by {book.grouping.text}",
        columns=names,
        rows=tuple((*key, *_group_values(group)) for key, group in sorted(book.groups.items())),
        total=("total", *("" for _ in book.grouping.columns[1:]), *_group_values(whole)),
        notes=book.notes(),
    )


def _group_values(group: _PerformanceSums) -> Row:
    live = group.jobs - group.succeeded - group.failed - group.cancelled
    times = (*_percentiles(group.queue_s), *_percentiles(group.run_s))
    counts = (group.jobs, live, group.succeeded, group.failed, group.cancelled)
    return (*counts, *times, group.promised, share_pct(group.kept, group.promised))


def _add_group(whole: _PerformanceSums, group: _PerformanceSums) -> None:
    for name in ("jobs", "succeeded", "failed", "cancelled", "promised", "kept"):
        setattr(whole, name, getattr(whole, name) + getattr(group, name))
    whole.queue_s.extend(group.queue_s)
    whole.run_s.extend(group.run_s)


def _percentiles(values: array[float]) -> tuple[Value, Value]:
    """Return the median and the 95th percentile, by nearest rank."""
    if not values:
        return None, None
    ordered = sorted(values)
    return tuple(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 95))  # type: ignore[return-value]


def _story(event: Event, since: float) -> _JobStory:
    kind = text(event, "target_kind")
    tags = event.fields.get("tags")
    facts = JobFacts(
        id=event.job_id or "",
        name=text(event, "name"),
        user=event.user or "",
        tags=dict(tags) if isinstance(tags, dict) else {},
    )
    deadline = event.fields.get("deadline_at")
    return _JobStory(
        facts=facts,
        target=_target_text(kind, event),
        submitted_at=event.at,
        deadline_at=float(deadline) if isinstance(deadline, (int, float)) else None,
        serving=Serving(
            latency_ms=number(event, "latency_ms") if kind == "service" else None,
            percentile=number(event, "percentile", 99.0),
            since=since,
        ),
    )


def _target_text(kind: str, event: Event) -> str:
    if kind == "service":
        rate, limit = number(event, "requests_per_s"), number(event, "latency_ms")
        return f"{rate:g}/s, p{number(event, 'percentile', 99.0):g} <= {limit:g} ms"
    deadline = event.fields.get("deadline_at")
    if isinstance(deadline, (int, float)):
        return f"within {max(0.0, deadline - event.at):.0f} s"
    return "best effort" if kind == "best_effort" else kind
