"""Schedules: a job that is submitted again and again, at times that a cron expression names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hcloud.core.cron import last_fires
from hcloud.core.model import JobId, JobSpec

Missed = Literal["skip", "once", "all"]
"""What becomes of runs that were due while no daemon ran: none is made up for, the last one is, or all are."""
Overlap = Literal["skip", "queue", "allow", "replace"]
"""What happens when a run is due and the one before has not ended: the new one is left out, waits for it (one at most),
starts beside it, or takes its place."""
ScheduleId = str
"""``sched-<n>``, assigned by the store."""
ON_TIME_S: Final = 60.0
"""A run counts as missed if it could not be submitted within so long."""
ALL_MOST: Final = 100
"""So many missed runs are made up for at most, the last ones."""
NODES_MOST: Final = 1000
"""So many nodes of one run are planned for before it is submitted."""
JOBS_KEPT: Final = 50
"""So many of the last jobs of a schedule are known to it."""
SCHEDULE_TAG: Final = "hcloud.schedule"
"""Tag of the jobs of a schedule; its value is the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """When a job is submitted."""

    cron: str
    timezone: str = "UTC"
    missed: Missed = "skip"
    overlap: Overlap = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is submitted by a recurrence."""

    id: ScheduleId
    spec: JobSpec
    """What is submitted each time, by the user of the spec."""
    recurrence: Recurrence
    created_at: float
    next_at: float | None
    """When it fires next; None: it is paused, or never fires again."""
    paused_by: str = ""
    """User who paused it; empty: it is not paused."""
    fired_at: float | None = None
    """For which time it submitted a job last."""
    jobs: tuple[JobId, ...] = ()
    """Its last jobs, oldest first."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Encrypted values of the secret environment variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """The next run of a schedule."""

    schedule: ScheduleId
    due_at: float
    spec: JobSpec

    @property
    def nodes(self) -> int:
        """How many nodes start together, of an array how many tasks run at once, at most ``NODES_MOST``."""
        tasks = self.spec.tasks
        return min(NODES_MOST, self.spec.nodes.count if tasks is None else tasks.at_most or len(tasks))


def runs_due(recurrence: Recurrence, first_at: float, now: float) -> tuple[list[float], int]:
    """Return the times of which runs are submitted at ``now``, and how many runs were missed and are not made up for.

    ``first_at``: the first time that was not dealt with yet. Of more than ``ALL_MOST`` that many are counted.
    """
    due = last_fires(recurrence.cron, recurrence.timezone, first_at, now, ALL_MOST)
    on_time = [at for at in due if now - at <= ON_TIME_S]
    if recurrence.missed == "all":
        return due, 0
    if recurrence.missed == "once" and not on_time:
        return due[-1:], len(due[:-1])
    return on_time, len(due) - len(on_time)
