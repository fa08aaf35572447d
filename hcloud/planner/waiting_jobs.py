"""The jobs that wait for an instance: found by the first stages of a plan, put in order by admission, then served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from hcloud.core.model import Job, JobId
from hcloud.core.rows import number_of
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import JobQueue
from hcloud.planner.queued_jobs import JOB, SimilarJobs

GroupKey = tuple[object, ...]


@dataclass(slots=True, eq=False)
class WaitingJobs:
    """The waiting jobs of one plan. Stages read the fields, and change them by the methods only."""

    similar: Sequence[SimilarJobs]
    """Queued jobs that differ in age only."""
    single: list[Job] = field(default_factory=list)
    """All others."""
    excluded: Set[JobId] = frozenset()
    """Jobs of ``similar`` that may not be planned."""
    queues: dict[bool, JobQueue] = field(default_factory=lambda: {True: JobQueue(), False: JobQueue()})
    """Admitted jobs in order, with a target (True) and best effort (False)."""
    groups: dict[GroupKey, JobGroup] = field(default_factory=dict)
    """By everything that distinguishes one group from another."""

    def __bool__(self) -> bool:
        """Return whether any job waits for an instance; true until admission if all that wait may not be planned."""
        return bool(self.single or self.similar)

    def all_jobs(self) -> list[Job]:
        """Return all jobs that wait for an instance, in no order."""
        jobs = [each[JOB] for similar in self.similar for each in similar.members]
        return self.single + [job for job in jobs if job.id not in self.excluded]

    def add(self, job: Job) -> None:
        """Add a job that waits from now on."""
        self.single.append(job)

    def add_sorted(self, jobs: Iterable[Job]) -> None:
        """Add jobs, and sort all single ones by number."""
        self.single = sorted([*self.single, *jobs], key=lambda job: number_of(job.id))

    def exclude(self, job_ids: Set[JobId]) -> None:
        """Plan none of the jobs ``job_ids`` of :attr:`similar`."""
        self.excluded = job_ids

    def drop_excluded(self) -> None:
        """Leave out similar jobs of which all are excluded."""
        if self.excluded:
            self.similar = [
                each for each in self.similar if any(job[JOB].id not in self.excluded for job in each.members)
            ]

    def drop_waiting_for(self, wait_code: str) -> None:
        """Leave out similar jobs that wait for this reason already."""
        self.similar = [each for each in self.similar if each.wait_code != wait_code]

    def make_single(self) -> None:
        """Count all jobs as single ones, sorted by number."""
        self.single = sorted(self.all_jobs(), key=lambda job: number_of(job.id))
        self.similar, self.excluded = (), frozenset()
