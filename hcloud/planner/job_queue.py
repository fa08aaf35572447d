"""The queue of one plan: jobs in the order in which they are served, those of one group together.

A stage goes through a :class:`JobQueue` job by job. It leaves out the rest of a :class:`QueueSegment` once it knows
that none of it can be served, so that a long queue costs time for the jobs that are served only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from hcloud.core.model import Job, JobState
from hcloud.core.rows import number_of
from hcloud.planner.queued_jobs import JOB, NUMBER, QueuedJob

if TYPE_CHECKING:
    from hcloud.planner.job_groups import JobGroup

Rank = tuple[float, ...]
"""What orders the segments of a queue before their jobs."""
Key = tuple[Rank, float, float, int]


@dataclass(slots=True, eq=False)
class QueueSegment:
    """Jobs of one group with the same reason to wait, in order."""

    group: JobGroup
    wait_code: str
    rank: Rank
    """The smallest is served first; equal ones by the jobs' own order."""
    entries: Sequence[QueuedJob]
    """By lateness if :attr:`late`, else by submission; only those from ``start`` up to ``stop`` belong to it."""
    start: int
    stop: int
    late: bool = False
    """Whether the slack of all of them has ended."""
    left_out: Set[int] = frozenset()
    """Numbers of jobs in that range that do not belong to it."""
    first_late_at: float = 0.0
    """When the slack of a member ends at the earliest; a lower bound."""
    deadline_at: float = 0.0
    """The earliest deadline of a member; a lower bound."""

    served: int = 0
    """How many of its jobs left the queue in this plan."""
    first: Job = field(init=False)
    """The first job; the only one of a job that awaits instances. Unset of an empty segment."""

    def __post_init__(self) -> None:
        if self.start < self.stop:
            self.first = self.entries[self.start][JOB]

    def __len__(self) -> int:
        """Return the number of jobs, served ones included."""
        return self.stop - self.start - len(self.left_out)

    @property
    def awaits(self) -> bool:
        """Whether its job awaits instances that were launched for it."""
        return self.first.state is JobState.AWAITING_INSTANCE

    def replace(self, job: Job) -> None:
        """Replace its only job by another row of it, in the same place."""
        submitted_at, number, late_at, _ = self.entries[self.start]
        self.entries = [(submitted_at, number, late_at, job)]
        self.start, self.stop, self.wait_code, self.first = 0, 1, job.wait_code, job

    def key(self, at: int) -> Key:
        """Return what orders entry ``at`` among those of all segments."""
        submitted_at, number, late_at, _ = self.entries[at]
        return (self.rank, late_at if self.late else 0.0, submitted_at, number)


Hopeless = Callable[[QueueSegment], bool]
"""Returns whether nothing can be done any more for the rest of a segment, whatever happens to the others."""


@dataclass(slots=True, eq=False)
class JobQueue:
    """The admitted jobs with a target, or those of best effort."""

    segments: list[QueueSegment] = field(default_factory=list)
    awaiting: list[QueueSegment] = field(default_factory=list)
    """Those of jobs that awaited instances when the plan began, in order."""
    removed: set[int] = field(default_factory=set)
    """Numbers of jobs that left the queue in this plan, or that were not admitted to it."""
    elsewhere: bool = False
    """Whether any of these is not counted in :attr:`QueueSegment.served`."""

    def __bool__(self) -> bool:
        """Return whether there is any job."""
        return bool(self.segments)

    def add(self, segment: QueueSegment) -> None:
        """Add jobs to the queue, unless ``segment`` is empty."""
        if count := len(segment):
            segment.group.state.pending += count
            self.segments.append(segment)

    def remove(self, job: Job, group: JobGroup, segment: QueueSegment | None = None) -> None:
        """Remove a job of ``group`` from the queue, and from ``segment`` if it is known."""
        group.state.pending -= 1
        self.removed.add(number_of(job.id))
        if segment is not None:
            segment.served += 1
        else:
            self.elsewhere = True

    def decide(self, group: JobGroup, count: int = 1) -> None:
        """Count members of ``group`` as decided, though they stay in the queue."""
        group.state.pending -= count

    def has(self, job: Job) -> bool:
        """Return whether ``job``, which was admitted, is still in the queue."""
        return number_of(job.id) not in self.removed

    def jobs_of(self, segment: QueueSegment) -> Iterator[Job]:
        """Yield the jobs of a segment that are still in the queue, in order."""
        for at in range(segment.start, segment.stop):
            entry = segment.entries[at]
            if entry[NUMBER] not in self.removed and entry[NUMBER] not in segment.left_out:
                yield entry[JOB]


@dataclass(slots=True, eq=False)
class QueueWalk:
    """One pass through a queue. Whether a segment is hopeless is asked before each of its jobs."""

    queue: JobQueue
    left_out: dict[QueueSegment, int] = field(default_factory=dict)
    """The segments that were left out, each with the place of the first job that was."""
    _passed: dict[QueueSegment, int] = field(default_factory=dict)
    """How many jobs of each segment were passed."""
    _heap: list[tuple[Key, int, QueueSegment]] = field(default_factory=list)
    _key: Key | None = None

    def jobs(self, hopeless: Hopeless) -> Iterator[tuple[QueueSegment, Job]]:
        """Yield the jobs in order, each with its segment, without the rest of segments that are ``hopeless``."""
        # Not kept: what decides it may ask the walk, and such a cycle of references would hold the whole plan.
        heap, removed, passed = self._heap, self.queue.removed, self._passed
        for segment in self.queue.segments:
            passed[segment] = segment.served
            self._push(segment, segment.start)
        while heap:
            self._key, at, segment = heappop(heap)
            self.left_out[segment] = at
            if hopeless(segment):
                continue
            del self.left_out[segment]
            entry = segment.entries[at]
            if entry[NUMBER] not in removed:
                passed[segment] += 1
                yield segment, entry[JOB]
            self._push(segment, at + 1)

    def rest(self, segment: QueueSegment) -> int:
        """Return how many jobs of ``segment`` were left out."""
        if not (self.queue.elsewhere or segment.left_out):
            return len(segment) - self._passed[segment]
        return self._count(segment, self.left_out[segment], segment.stop)

    def resume(self, segment: QueueSegment) -> None:
        """Take up a segment that was left out, with its jobs behind the present one."""
        at = self.left_out.pop(segment)
        key = self._key
        assert key is not None
        span = range(at, segment.stop)
        behind = at + bisect_right(span, key, key=segment.key)
        self._passed[segment] += self._count(segment, at, behind)
        self._push(segment, behind)

    def _count(self, segment: QueueSegment, start: int, stop: int) -> int:
        removed, left_out = self.queue.removed, segment.left_out
        numbers = [each[NUMBER] for each in segment.entries[start:stop]]
        return sum([number not in removed and number not in left_out for number in numbers])

    def _push(self, segment: QueueSegment, at: int) -> None:
        entries, stop, left_out = segment.entries, segment.stop, segment.left_out
        if left_out:
            while at < stop and entries[at][NUMBER] in left_out:
                at += 1
        if at < stop:
            heappush(self._heap, (segment.key(at), at, segment))
