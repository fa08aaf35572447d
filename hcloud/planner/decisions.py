"""What a plan has decided so far: actions, each with its reason. Stages add decisions and never take one back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from hcloud.core.model import FailureCause, InstanceId, Job, JobId, JobState, Reason, with_memory
from hcloud.planner.plan import Action, Enqueue, PlannedStart, StopAttempt, Terminate, Unprofiled, Wait
from hcloud.planner.text import as_wait

MOST_RECORDED = 4_000
"""Jobs that one plan admits, and waits that it records, at most. Others follow in the next plan, at once."""


@dataclass(slots=True, eq=False)
class Decisions:
    """The plan so far. Stages read it, and change it by its methods only."""

    actions: list[Action] = field(default_factory=list)
    enqueued: set[JobId] = field(default_factory=set)
    """Jobs that this plan put into the queue."""
    stopping: set[JobId] = field(default_factory=set)
    """Jobs with an attempt that was asked to stop, by this plan or before."""
    terminating: set[int] = field(default_factory=set)
    """Instances that this plan terminates."""
    growing: set[JobId] = field(default_factory=set)
    """Running jobs that are to get all their nodes because they miss their target."""
    growing_on_new: list[Job] = field(default_factory=list)
    """Those of them for which instances are to be launched."""
    planned_starts: dict[JobId, PlannedStart] = field(default_factory=dict)
    """When jobs that wait for paid room are to start."""
    unprofiled: dict[str, Unprofiled] = field(default_factory=dict)
    """Why running unknown programs are not profiled now, by program."""
    waits_recorded: int = 0
    postponed: bool = False
    """Whether more than :data:`MOST_RECORDED` jobs had to be admitted, or to wait."""
    next_release_at: float = inf
    """When the next idle instance is due for release; inf: none."""
    next_pause_at: float = inf
    """When it is to be decided again which units are paused; inf: none is."""

    def add(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def enqueue(
        self,
        job: Job,
        reason: Reason,
        *,
        not_before_at: float = 0.0,
        failure: FailureCause | None = None,
        memory_mib: int | None = None,
    ) -> Job:
        """Put a job into the queue, to be considered in this same plan; return it as queued.

        ``memory_mib``: what each rank gets from now on; None: as before.
        """
        self.add(
            Enqueue(job_id=job.id, reason=reason, not_before_at=not_before_at, failure=failure, memory_mib=memory_mib)
        )
        self.enqueued.add(job.id)
        failures = (*job.failures, failure) if failure is not None else job.failures
        return replace(
            job,
            state=JobState.QUEUED,
            spec=with_memory(job.spec, memory_mib),
            not_before_at=not_before_at,
            failures=failures,
            awaiting=(),
            wait_code="",
            reserved=(),
        )

    def wait(self, job: Job, code: str, why: Callable[[], Reason], reserved: tuple[InstanceId, ...] = ()) -> None:
        """Record why ``job`` waits, if the code or the instances with ``reserved`` room are new. Nothing is recorded
        for a job that awaits its own instances."""
        if (job.wait_code == code and job.reserved == reserved) or job.state is not JobState.QUEUED:
            return
        if self.waits_recorded >= MOST_RECORDED and not (reserved or job.reserved):
            self.postponed = True
        else:
            self.waits_recorded += 1
            self.add(Wait(job_id=job.id, reason=as_wait(why()), reserved=reserved))

    def plan_start(self, job: Job, start: PlannedStart) -> None:
        """State when a job that waits for paid room is to start."""
        self.planned_starts[job.id] = start

    def leave_unprofiled(self, program: str, why: Unprofiled) -> None:
        """State why no copies of a running program are profiled now."""
        self.unprofiled[program] = why

    def stop(self, job: Job, cause: FailureCause | None, reason: Reason) -> None:
        """Ask a running attempt to stop, unless that was done already."""
        if job.id not in self.stopping:
            self.stopping.add(job.id)
            self.add(StopAttempt(job_id=job.id, cause=cause, reason=reason))

    def terminate(self, at: int, instance_id: InstanceId, reason: Reason) -> None:
        """Terminate the instance in place ``at``."""
        self.terminating.add(at)
        self.add(Terminate(instance_id=instance_id, reason=reason))

    def grow(self, job: Job, *, on_new_instances: bool = False) -> None:
        """Let a running job get all its nodes, where there is room or ``on_new_instances``, later in this plan."""
        self.growing.add(job.id)
        if on_new_instances:
            self.growing_on_new.append(job)

    def postpone(self) -> None:
        """Leave jobs to the next plan, which is due at once."""
        self.postponed = True

    def look_at_pauses(self, at: float) -> None:
        """Note when it is to be decided again which units are paused."""
        self.next_pause_at = min(self.next_pause_at, at)

    def release_due(self, at: float) -> None:
        """Note when an idle instance is due for release."""
        self.next_release_at = min(self.next_release_at, at)
