"""Who of the running jobs rests: nothing is to be done about it before some time, unless something of it changes.

Of thousands that run few were sampled, changed, or are due since the last plan: only those are looked at.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hcloud.forecast.watch import JobSamples, sampled_since
from hcloud.known import Classification
from hcloud.model import Job, JobId
from hcloud.planner.roster import Occupancy
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from hcloud.rows import row_changes

KEPT_ALARMS = 1000
"""So many times to look again are kept beside those of jobs that rest; most are of what was looked at before."""


class RecheckAt(NamedTuple):
    """That nothing is to be done about a job before ``until``, while its samples and what is believed of it are these:
    the very same."""

    until: float
    samples: JobSamples | None
    application: str
    belief: Classification | None


class RecheckQueue:
    """All running jobs, as those that rest and those that do not; follows the snapshots of one deployment."""

    def __init__(self) -> None:
        """Know of nobody."""
        self._resting: dict[JobId, RecheckAt] = {}
        self._awake: dict[JobId, Job] = {}
        self._alarms: list[tuple[float, JobId]] = []
        self._jobs: Sequence[Job] = ()
        self._watched: Mapping[JobId, JobSamples] = {}
        self._beliefs: Mapping[str, Classification] = {}
        self._policy: Policy | None = None

    def awake(self, snapshot: Snapshot, policy: Policy, jobs: Sequence[Job]) -> Collection[Job]:
        """Return the running ones of ``jobs`` that do not rest, in no order; the roster has followed ``jobs``."""
        occupancy, now = snapshot.plan_cache.occupancy, snapshot.now
        self._follow(jobs, occupancy)
        for job_id in self._woken(snapshot, policy):
            del self._resting[job_id]
            self._awake[job_id] = occupancy.rows[job_id]
        while self._alarms and self._alarms[0][0] <= now:
            _, job_id = heapq.heappop(self._alarms)
            if job_id in self._resting and self._resting[job_id].until <= now:
                del self._resting[job_id]
                self._awake[job_id] = occupancy.rows[job_id]
        self._watched, self._beliefs, self._policy = snapshot.job_samples, snapshot.applications, policy
        return list(self._awake.values())

    def rest(self, job: Job, until: float) -> None:
        """Let an awake job rest until some time (infinite: until something of it changes)."""
        del self._awake[job.id]
        samples, belief = self._watched.get(job.id), self._beliefs.get(job.application)
        self._resting[job.id] = RecheckAt(until, samples, job.application, belief)
        if until < math.inf:
            heapq.heappush(self._alarms, (until, job.id))
        if len(self._alarms) > 2 * len(self._resting) + KEPT_ALARMS:
            self._alarms = [(rest.until, name) for name, rest in self._resting.items() if rest.until < math.inf]
            heapq.heapify(self._alarms)

    def _follow(self, jobs: Sequence[Job], occupancy: Occupancy) -> None:
        for before, job in row_changes(self._jobs, jobs):
            if before is not None:
                self._resting.pop(before.id, None)
                self._awake.pop(before.id, None)
            if job is not None and occupancy.runs(job):
                self._awake[job.id] = job
        self._jobs = jobs

    def _woken(self, snapshot: Snapshot, policy: Policy) -> set[JobId]:
        """Return who rests no more, as they are judged by something else now."""
        if policy is not self._policy:
            return set(self._resting)
        watched, beliefs, resting = snapshot.job_samples, snapshot.applications, self._resting
        sampled = sampled_since(self._watched, watched)
        if sampled is None:
            woken = {name for name, rest in resting.items() if watched.get(name) is not rest.samples}
        else:
            woken = resting.keys() & sampled
        if beliefs is not self._beliefs:
            woken |= {name for name, rest in resting.items() if beliefs.get(rest.application) is not rest.belief}
        return woken
