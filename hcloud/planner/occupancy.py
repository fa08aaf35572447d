"""Which units hold what on which instance, updated from plan to plan.

A plan reads thousands of rows, of which few changed since the last one. What follows from one row is kept while the row
is the same object (rows are frozen). Sums over an instance are computed again, in the same order, if one of its rows
changed. So the result equals that of an empty start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.classifier.applications import identify
from hcloud.core.model import (
    JOB_ENDED,
    JOB_ON_INSTANCE,
    Allocation,
    FailureCause,
    Gpus,
    InstanceId,
    Job,
    JobId,
    JobState,
    Resources,
)
from hcloud.core.rows import FilteredRows, number_of, row_changes
from hcloud.planner.queued_jobs import QueuedJobs, insert_sorted, is_plain

Held = tuple[Job, Allocation]
Left = tuple[float, float, float, float]
Shape = tuple[float, float, float, Gpus | None, int]
"""What a job asks for: vCPUs, memory in MiB, disk in GiB and GPUs of a rank, and ranks."""
RESERVES_ROOM = "reserves_room"
"""Code of the reason of a job for which room is reserved."""
SECRETS_UNREADABLE = "secrets_unreadable"
"""Code of the reason of a job that waits for the key of its secrets."""
_NOT_ADMITTED = frozenset({JobState.SUBMITTED, JobState.PROFILED, JobState.CLASSIFIED})


@dataclass(slots=True)
class TaskTally:
    """The tasks of one array that have a row and have not ended."""

    live: int = 0
    waiting: int = 0
    """Those that are queued and await no instance."""


FEWEST_RANKS = 3
"""With fewer ranks, a median does not tell which one is slow."""


@dataclass(slots=True, eq=False)
class Residents:
    """The units on one instance, sorted by number of their jobs."""

    numbers: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    capacity: Resources | None = None
    """Capacity that ``left`` was computed for; None: not computed since the last change."""
    left: Left = (0.0, 0.0, 0.0, 0.0)
    """What the units leave of ``capacity``."""
    placed: list[float] | None = None
    """When each unit was placed; None: not computed since the last change."""
    names: tuple[str, ...] | None = None
    """Applications of the units; None: not computed since the last change."""
    lasting: float | None = None
    """vCPUs of services without a limit of their run time; None: not computed since the last change."""

    def left_of(self, capacity: Resources) -> Left:
        """Return what is left of ``capacity``: vCPUs, memory in MiB, disk in GiB, GPUs."""
        if self.capacity is not capacity:
            vcpus, memory_mib, disk_gib = float(capacity.vcpus), float(capacity.memory_mib), float(capacity.disk_gib)
            for _, held in self.held:
                amount = held.resources
                vcpus -= amount.vcpus
                memory_mib -= amount.memory_mib
                disk_gib -= amount.disk_gib
            gpus = float(capacity.gpu_count)
            if gpus:
                gpus -= sum([held.resources.gpu_count for _, held in self.held])
            self.capacity, self.left = capacity, (vcpus, memory_mib, disk_gib, gpus)
        return self.left

    def since(self) -> float:
        """Return when the oldest unit was placed; inf if there is none."""
        return min(self.placed_at(), default=inf)

    def placed_at(self) -> Sequence[float]:
        """Return when each unit was placed."""
        if self.placed is None:
            self.placed = [job.attempt.placed_at for job, _ in self.held if job.attempt is not None]
        return self.placed

    def applications(self) -> tuple[str, ...]:
        """Return the applications of the units; the same tuple as long as the units are the same."""
        if self.names is None:
            self.names = tuple([job.application for job, _ in self.held])
        return self.names

    def lasting_vcpus(self) -> float:
        """Return how many vCPUs services hold that have no limit of their run time."""
        if self.lasting is None:
            specs = [(job.spec, held.resources.vcpus) for job, held in self.held]
            self.lasting = sum(
                [vcpus for spec, vcpus in specs if spec.target.kind == "service" and spec.max_runtime_s is None]
            )
        return self.lasting

    def invalidate(self) -> None:
        """Discard what was computed from the former units."""
        self.capacity = self.placed = self.names = self.lasting = None


@dataclass(slots=True, eq=False)
class ProgramJobs:
    """The jobs of one program that have not ended, each as number and id, by number."""

    running: list[tuple[int, JobId]] = field(default_factory=list)
    waiting: list[tuple[int, JobId]] = field(default_factory=list)
    """Jobs in the queue, or preempted."""

    def __bool__(self) -> bool:
        """Return whether there is any job."""
        return bool(self.running or self.waiting)


@dataclass(slots=True, eq=False)
class Occupancy:
    """All jobs that have not ended, sorted by what their rows require. Sets hold job ids."""

    rows: dict[JobId, Job] = field(default_factory=dict)
    running: Sequence[Job] = ()
    """Jobs with a running attempt, by number; valid until the next plan."""
    needing_decision: Sequence[Job] = ()
    """Jobs that may require a decision of their own according to their row, by number; valid until the next plan."""
    stopping: set[JobId] = field(default_factory=set)
    """Jobs with an attempt that was asked to stop."""
    measuring: set[JobId] = field(default_factory=set)
    """Profiling runs."""
    corrected: set[JobId] = field(default_factory=set)
    """Running jobs that were corrected."""
    incomplete: set[JobId] = field(default_factory=set)
    """Jobs that run with fewer ranks than they may have."""
    surplus: set[JobId] = field(default_factory=set)
    """Jobs that run with more ranks than they need, or of which such a rank is being stopped."""
    constrained: set[JobId] = field(default_factory=set)
    """Jobs with placement constraints."""
    comparable: set[JobId] = field(default_factory=set)
    """Running incremental jobs with enough ranks to detect a straggler."""
    best_effort: set[JobId] = field(default_factory=set)
    """Running best-effort jobs."""
    paused: set[JobId] = field(default_factory=set)
    """Running jobs with a rank that is paused."""
    reserving: set[JobId] = field(default_factory=set)
    """Queued jobs for which the last plan reserved room."""
    due: dict[Shape, list[tuple[float, int, JobId]]] = field(default_factory=dict)
    """Queued jobs with a deadline: deadline, number and id, by shape, ascending."""
    unprofiled: dict[str, ProgramJobs] = field(default_factory=dict)
    """Jobs that may be profiled beside, by program (:func:`hcloud.classifier.applications.identify`)."""
    unclassified: dict[str, ProgramJobs] = field(default_factory=dict)
    """Those without a classification."""
    queued: QueuedJobs = field(default_factory=QueuedJobs)
    """Queued jobs of which nothing but their group decides."""
    retries: list[tuple[float, int]] = field(default_factory=list)
    """When the back-off of jobs ends, with their numbers; past ones included."""
    residents: dict[InstanceId, Residents] = field(default_factory=dict)
    """The units on each instance."""
    tasks: dict[JobId, TaskTally] = field(default_factory=dict)
    """The tasks of each array that have a row."""
    touched: set[InstanceId] = field(default_factory=set)
    """Instances with changed units since :meth:`take_touched`."""
    _seen: Sequence[Job] = ()
    _running: FilteredRows[Job] = field(default_factory=lambda: FilteredRows(_is_running))
    _needing_decision: FilteredRows[Job] = field(default_factory=lambda: FilteredRows(needs_decision))

    def follow(self, jobs: Sequence[Job]) -> None:
        """Update to ``jobs``, which are all that have not ended."""
        for before, job in row_changes(self._seen, jobs):
            if before is not None and job is not None and _only_waits_otherwise(before, job):
                self.rows[job.id] = job
                self.queued.remove(before)
                self.queued.add(job)
                continue
            if before is not None:
                self._remove(self.rows.pop(before.id))
            if job is not None:
                self.rows[job.id] = job
                self._add(job)
        self._seen = jobs
        self.running, self.needing_decision = self._running.of(jobs), self._needing_decision.of(jobs)

    @staticmethod
    def runs(job: Job) -> bool:
        """Return whether a job belongs to ``running``."""
        return _is_running(job)

    def next_retry_at(self, now: float) -> float:
        """Return when the next back-off ends after ``now``; inf: none does."""
        at = bisect_right(self.retries, (now, inf))
        return self.retries[at][0] if at < len(self.retries) else inf

    def earliest_due(self, now: float) -> Iterator[JobId]:
        """Yield, for each shape, the queued job with the earliest deadline that has not passed."""
        for jobs in self.due.values():
            at = bisect_left(jobs, (now, 0, ""))
            if at < len(jobs):
                yield jobs[at][2]

    def take_touched(self) -> set[InstanceId]:
        """Return :attr:`touched` and clear it."""
        taken, self.touched = self.touched, set()
        return taken

    def _add(self, job: Job) -> None:
        number = number_of(job.id)
        if job.array:
            self._count_task(job, 1)
        if is_plain(job):
            self.queued.add(job)
        for ids in self._sets_for(job):
            ids.add(job.id)
        if job.not_before_at:
            insort(self.retries, (job.not_before_at, number))
        if job.state is JobState.QUEUED and (deadline_at := job.deadline_at) is not None:
            insert_sorted(self.due.setdefault(_shape(job), []), (deadline_at, number, job.id))
        for program, jobs in self._programs_for(job):
            numbers = _of_state(jobs.setdefault(program, ProgramJobs()), job)
            insert_sorted(numbers, (number, job.id))
        for held in held_by(job):
            residents = self.residents.setdefault(held.instance_id, Residents())
            at = bisect_right(residents.numbers, number)
            residents.numbers.insert(at, number)
            residents.held.insert(at, (job, held))
            residents.invalidate()
            self.touched.add(held.instance_id)

    def _remove(self, job: Job) -> None:
        number = number_of(job.id)
        if job.array:
            self._count_task(job, -1)
        if is_plain(job):
            self.queued.remove(job)
        for ids in self._sets_for(job):
            ids.discard(job.id)
        if job.not_before_at:
            del self.retries[bisect_left(self.retries, (job.not_before_at, number))]
        if job.state is JobState.QUEUED and (deadline_at := job.deadline_at) is not None:
            due = self.due[shape := _shape(job)]
            del due[bisect_left(due, (deadline_at, number, job.id))]
            if not due:
                del self.due[shape]
        for program, jobs in self._programs_for(job):
            numbers = _of_state(jobs[program], job)
            del numbers[bisect_left(numbers, (number, job.id))]
            if not jobs[program]:
                del jobs[program]
        for held in held_by(job):
            residents = self.residents[held.instance_id]
            at = residents.numbers.index(number)
            del residents.numbers[at], residents.held[at]
            residents.invalidate()
            self.touched.add(held.instance_id)
            if not residents.held:
                del self.residents[held.instance_id]

    def _count_task(self, job: Job, by: int) -> None:
        tally = self.tasks.setdefault(job.array, TaskTally())
        tally.live += by
        tally.waiting += by * (job.state is JobState.QUEUED)
        if not tally.live:
            del self.tasks[job.array]

    def _sets_for(self, job: Job) -> Iterator[set[JobId]]:
        """Yield the sets that ``job`` belongs to, according to its row."""
        spec, attempt = job.spec, job.attempt
        if spec.profile is not None and job.state not in JOB_ENDED:
            yield self.measuring
        if spec.placement is not None:
            yield self.constrained
        if job.state is JobState.QUEUED and job.wait_code == RESERVES_ROOM:
            yield self.reserving
        if attempt is None or attempt.over:
            return
        if attempt.stop_requested_at is not None:
            yield self.stopping
        if job.corrections:
            yield self.corrected
        if job.state in JOB_ON_INSTANCE and not spec.nodes.gang and missing_ranks(job):
            yield self.incomplete
        if not spec.nodes.gang and len(running_ranks(job)) > spec.nodes.needed:
            yield self.surplus
        if not spec.nodes.gang and spec.progress is not None and len(attempt.allocations) >= FEWEST_RANKS:
            yield self.comparable
        if spec.target.kind == "best_effort":
            yield self.best_effort
        if any(each.paused_at is not None for each in attempt.allocations):
            yield self.paused

    def _programs_for(self, job: Job) -> Iterator[tuple[str, dict[str, ProgramJobs]]]:
        """Yield the program of ``job`` with each of the tables by program that it belongs to."""
        if job.spec.profile is not None or job.state in _NOT_ADMITTED or job.state in JOB_ENDED:
            return
        if job.spec.profiling != "never":
            program = identify(job.spec).program
            yield program, self.unprofiled
            if not job.application:
                yield program, self.unclassified


def _only_waits_otherwise(before: Job, job: Job) -> bool:
    """Return whether nothing but the reason to wait of a queued job changed: the most frequent change by far."""
    return (
        before.spec is job.spec
        and before.application == job.application
        and before.queued_at == job.queued_at
        and RESERVES_ROOM not in (before.wait_code, job.wait_code)
        and is_plain(before)
        and is_plain(job)
    )


def _shape(job: Job) -> Shape:
    need, nodes = job.spec.resources, job.spec.nodes
    return (need.vcpus, need.memory_mib, need.disk_gib, need.gpus, nodes.count)


def _of_state(jobs: ProgramJobs, job: Job) -> list[tuple[int, JobId]]:
    return jobs.running if job.state in JOB_ON_INSTANCE else jobs.waiting


def missing_ranks(job: Job) -> list[int]:
    """Return the ranks that never started, and stragglers that were stopped to be restarted elsewhere."""
    held = job.attempt.allocations if job.attempt is not None else ()
    taken = {a.rank for a in held if not (a.released and a.cause is FailureCause.EVICTED)}
    return [rank for rank in range(job.spec.nodes.count) if rank not in taken]


def running_ranks(job: Job) -> list[Allocation]:
    """Return the ranks that have not ended, including those being stopped."""
    held = job.attempt.allocations if job.attempt is not None else ()
    return [each for each in held if not each.released]


def needs_decision(job: Job) -> bool:
    """Return whether a job's row may require a decision; a running job of one node and a queued one normally do not."""
    attempt = job.attempt
    if job.state is JobState.QUEUED:
        return not is_plain(job)
    if job.state not in JOB_ON_INSTANCE or attempt is None or len(attempt.allocations) != 1:
        return True
    ended_at = attempt.allocations[0].ended_at
    if job.run is not None and job.run.cancelled:
        return True
    return job.cancelled_by is not None or ended_at is not None or job.spec.budget_usd is not None


def held_by(job: Job) -> list[Allocation]:
    """Return the allocations of units that have not ended, of an attempt that is not over."""
    held = job.attempt.allocations if job.attempt is not None else ()
    return [each for each in held if each.ended_at is None]


def _is_running(job: Job) -> bool:
    return job.attempt is not None and not job.attempt.over
