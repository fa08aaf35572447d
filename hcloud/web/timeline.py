"""A job's life on its page: how long it waited, started and ran, and every decision, with repeated waits folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from hcloud.api.job_history import Step
from hcloud.core.model import Event, EventKind, Job, JobState

FOLDED_LEAST = 4
"""Of so many reasons to wait, one after the other, only the first and the last are shown at once."""
_STARTING = frozenset({JobState.AWAITING_INSTANCE, JobState.PLACED})


@dataclass(frozen=True, slots=True)
class JobPeriod:
    """A stretch of a job's life."""

    kind: str
    """``waiting``, ``starting`` (its machine, or its units) or ``running``."""
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A step, or several reasons to wait that are shown when asked for."""

    steps: Sequence[Step]

    @property
    def is_folded(self) -> bool:
        """Whether it stands for several steps."""
        return len(self.steps) > 1


def job_periods(job: Job, events: Iterable[Event], now: float) -> list[JobPeriod]:
    """Return the periods from submission to the end, or to ``now``, by JOB_STATE events in order."""
    cuts = [(job.submitted_at, _kind(JobState.SUBMITTED))]
    for event in events:
        if event.kind is EventKind.JOB_STATE and (to := str(event.fields.get("to"))) in set(JobState):
            cuts.append((max(event.at, cuts[-1][0]), _kind(JobState(to))))
    end = max(now if job.finished_at is None else job.finished_at, cuts[-1][0])
    found = list[JobPeriod]()
    for (since, kind), (until, _) in pairwise([*cuts, (end, "")]):
        if until <= since:
            continue
        if found and found[-1].kind == kind:
            found[-1] = JobPeriod(kind, found[-1].since, until)
        else:
            found.append(JobPeriod(kind, since, until))
    return found


def _kind(state: JobState) -> str:
    return "running" if state is JobState.RUNNING else "starting" if state in _STARTING else "waiting"


def period_totals(periods: Iterable[JobPeriod]) -> dict[str, float]:
    """Return how long all periods of each kind lasted together, in seconds."""
    totals = dict[str, float]()
    for each in periods:
        totals[each.kind] = totals.get(each.kind, 0.0) + each.seconds
    return totals


def timeline_entries(steps: Sequence[Step]) -> list[TimelineEntry]:
    """Return the steps, with many reasons to wait in a row folded into one entry between the first and the last."""
    entries = list[TimelineEntry]()
    for is_wait, run in groupby(steps, lambda step: step.text.startswith("waiting")):
        found = list(run)
        if is_wait and len(found) >= FOLDED_LEAST:
            entries += [TimelineEntry(found[:1]), TimelineEntry(found[1:-1]), TimelineEntry(found[-1:])]
        else:
            entries += [TimelineEntry([each]) for each in found]
    return entries
