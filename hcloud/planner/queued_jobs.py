"""The long part of the queue, kept in order from plan to plan: jobs that differ in age only.

Most jobs of a long queue are alike, and few change between two plans. :class:`SimilarJobs` holds those with the same
requirements, time from submission to deadline (about), application, priority, user, tags and reason to wait, in the
order in which they are served. A plan then decides once for all of them. It costs time for those it serves, not for
those that wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Final, TypeVar

from hcloud.core.model import Job, JobId, JobSpec, JobState
from hcloud.core.rows import number_of
from hcloud.planner.fit.arq import slack_s
from hcloud.planner.run_times import RunTimeLimits
from hcloud.spec.policy import AdmissionPolicy

QueuedJob = tuple[float, int, float, Job]
"""When the job was submitted, its number, when its slack ends (-inf: not computed), and the job."""
SUBMITTED_AT: Final = 0
NUMBER: Final = 1
LATE_AT: Final = 2
JOB: Final = 3
Key = tuple[object, ...]
Entry = TypeVar("Entry", bound=tuple[object, ...])


def is_plain(job: Job) -> bool:
    """Return whether ``job`` is queued and nothing in its row needs a decision of its own."""
    spec = job.spec
    return (
        job.state is JobState.QUEUED
        and job.queued_at is not None
        and not job.not_before_at
        and not job.failures
        and not job.corrections
        and not job.reserved
        and job.cancelled_by is None
        and spec.budget_usd is None
        and spec.profile is None
        and spec.placement is None
        and spec.vcpus_within is None
    )


def requirements(spec: JobSpec) -> Key:
    """Return everything in a spec that decides where its jobs may run, except the user."""
    need, nodes = spec.resources, spec.nodes
    return (
        *(need.vcpus, need.memory_mib, need.disk_gib, need.gpus),
        *(nodes.count, nodes.minimum, nodes.gang),
        spec.target.kind,
        spec.interruptible,
        None if spec.checkpoint is None else spec.checkpoint.every_s,
        spec.instance_types,
        *(spec.preferred_types, spec.slower_elsewhere),
        spec.exclusive,
        spec.placement,
        spec.max_runtime_s,
        spec.vcpus_within is not None,
    )


@dataclass(slots=True, eq=False)
class SimilarJobs:
    """Queued jobs that differ in age, deadline and name only; never empty."""

    key: Key
    """What they have in common, as :class:`QueuedJobs` keeps them."""
    best_effort: bool
    priority: int
    wait_code: str
    members: list[QueuedJob] = field(default_factory=list)
    """By submission and number."""
    on_time: list[QueuedJob] = field(default_factory=list)
    """Those with slack left, in the same order; the same list as ``members`` until :meth:`rank`."""
    by_lateness: list[QueuedJob] = field(default_factory=list)
    """All, by the end of their slack; the late ones come first. Empty until :meth:`rank`."""
    _deadline_at: float | None = inf
    """The earliest deadline; None: not computed since it was removed."""
    _run_time: RunTimeLimits | None = None
    _admission: AdmissionPolicy | None = None
    _now: float = 0.0

    def __post_init__(self) -> None:
        self.on_time = self.members

    @property
    def first(self) -> Job:
        """The job that was submitted first."""
        return self.members[0][JOB]

    @property
    def late(self) -> int:
        """Number of members without slack: the first ones of ``by_lateness``."""
        return len(self.members) - len(self.on_time)

    @property
    def deadline_at(self) -> float:
        """The earliest deadline; inf if there is none."""
        if self._deadline_at is None:
            self._deadline_at = min([_deadline_at(each[JOB]) for each in self.members])
        return self._deadline_at

    def add(self, job: Job, deadline_at: float) -> None:
        """Add a job at its place in the order; ``deadline_at``: inf without one."""
        entry = (job.submitted_at, number_of(job.id), self._late_at(job), job)
        insert_sorted(self.members, entry)
        if self._admission is not None:
            if entry[LATE_AT] > self._now:
                insert_sorted(self.on_time, entry)
            insort(self.by_lateness, entry, key=lateness)
        if self._deadline_at is not None:
            self._deadline_at = min(self._deadline_at, deadline_at)

    def remove(self, job: Job) -> None:
        """Remove a job, given by the row that was added."""
        place = (job.submitted_at, number_of(job.id))
        entry = self.members.pop(bisect_left(self.members, place))
        if self._admission is not None:
            if entry[LATE_AT] > self._now:
                del self.on_time[bisect_left(self.on_time, place)]
            del self.by_lateness[bisect_left(self.by_lateness, lateness(entry), key=lateness)]
        if self._deadline_at is not None and _deadline_at(job) <= self._deadline_at:
            self._deadline_at = None

    def rank(self, run_time: RunTimeLimits | None, admission: AdmissionPolicy, now: float) -> None:
        """Separate late members from the others as of ``now``; ``run_time``: of each of them, None if unknown."""
        if self._run_time != run_time or (self._admission is not admission and self._admission != admission):
            self._run_time, self._admission = run_time, admission
            self.members = [(at, number, self._late_at(job), job) for at, number, _, job in self.members]
            self.by_lateness = sorted(self.members, key=lateness)
            self.on_time = self.members.copy()
        late = bisect_right(self.by_lateness, now, key=_late_at)
        newly_late = late - self.late
        if newly_late < 0 or newly_late * _MOVED_AT_ONCE > len(self.members):
            self.on_time = [each for each in self.members if each[LATE_AT] > now]
        else:
            for each in self.by_lateness[late - newly_late : late]:
                del self.on_time[bisect_left(self.on_time, each[:LATE_AT])]
        self._now = now

    def _late_at(self, job: Job) -> float:
        if self._admission is None or job.queued_at is None:
            return -inf
        return job.queued_at + slack_s(job, job.queued_at, self._run_time, self._admission)


_MOVED_AT_ONCE = 50
"""If more than one member in this many becomes late, the list is made anew."""


class QueuedJobs:
    """All queued jobs that :func:`is_plain` holds for, as :class:`SimilarJobs`."""

    __slots__ = ("_by_id", "_by_key")

    def __init__(self) -> None:
        self._by_key: dict[Key, SimilarJobs] = {}
        self._by_id: dict[JobId, SimilarJobs] = {}

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._by_id)

    def __contains__(self, job_id: JobId) -> bool:
        """Return whether the job is among them."""
        return job_id in self._by_id

    def kinds(self) -> Sequence[SimilarJobs]:
        """Return the jobs, similar ones together."""
        return list(self._by_key.values())

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs."""
        for similar in self._by_key.values():
            for each in similar.members:
                yield each[JOB]

    def add(self, job: Job) -> None:
        """Add a job for which :func:`is_plain` holds."""
        spec, deadline_at = job.spec, job.deadline_at
        tags = tuple(sorted(spec.tags.items())) if spec.tags else ()
        count = job.run.count if job.run is not None else 1
        key = (
            requirements(spec),
            None if deadline_at is None else _span_class(deadline_at - job.submitted_at),
            job.application,
            spec.priority,
            spec.user,
            tags,
            job.wait_code,
            count,
        )
        similar = self._by_key.get(key)
        if similar is None:
            similar = SimilarJobs(key, spec.target.kind == "best_effort", spec.priority, job.wait_code)
            self._by_key[key] = similar
        self._by_id[job.id] = similar
        similar.add(job, inf if deadline_at is None else deadline_at)

    def remove(self, job: Job) -> None:
        """Remove a job, given by the row that was added."""
        similar = self._by_id.pop(job.id)
        similar.remove(job)
        if not similar.members:
            del self._by_key[similar.key]


SPAN_STEP: Final = 1.25
"""Times from submission to deadline within such a factor count as alike, so that a queue in which every job has another
deadline has few kinds. Only how risky spot is for them depends on it."""
_LOG_STEP: Final = log(SPAN_STEP)


def _span_class(span_s: float) -> int:
    return round(log(max(1.0, span_s)) / _LOG_STEP)


def insert_sorted(entries: list[Entry], entry: Entry) -> None:
    """Insert ``entry``, nearly always the newest, at its place in the order."""
    if not entries or entries[-1] < entry:
        entries.append(entry)
    else:
        insort(entries, entry)


def lateness(entry: QueuedJob) -> tuple[float, float, int]:
    """Return the sort key by the end of the slack."""
    return (entry[LATE_AT], entry[SUBMITTED_AT], entry[NUMBER])


def _late_at(entry: QueuedJob) -> float:
    return entry[LATE_AT]


def _deadline_at(job: Job) -> float:
    deadline_at = job.deadline_at
    return inf if deadline_at is None else deadline_at
