"""Plans are data: a tuple of frozen actions, each with the reason that decided it.

The applier re-checks each action against fresh rows and may refuse it; partly applied plans are normal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from hcloud.core.arrays import Interval
from hcloud.core.model import FailureCause, InstanceId, JobId, JobSpec, JobState, Market, Offer, Reason, Resources
from hcloud.forecast.runtimes.prediction import RunTimePrediction
from hcloud.planner.text import seconds, usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """Move a job to QUEUED: newly submitted, failed with retries left, or because an instance it awaited failed."""

    job_id: JobId
    reason: Reason
    not_before_at: float = 0.0
    """Earliest time of the next attempt (back-off)."""
    failure: FailureCause | None = None
    """Cause to append to the job's failures; None: the job did not fail."""
    memory_mib: int | None = None
    """What each rank gets from now on; None: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Move a job that lost its instance to PREEMPTED; a later plan enqueues it after its back-off."""

    job_id: JobId
    failure: FailureCause
    not_before_at: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Record why a queued job waits; stored only when the reason's code changes, or where room is reserved for it."""

    job_id: JobId
    reason: Reason
    reserved: tuple[InstanceId, ...] = ()
    """Instances on which room is reserved for it."""


MET = "met"
"""Code of the reason of a :class:`Miss` that ends another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Record that a running job misses its target and why nothing helps, or (code ``MET``) that this is over; stored
    only when the code changes."""

    job_id: JobId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End a job as SUCCEEDED, FAILED or CANCELLED."""

    job_id: JobId
    state: JobState
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeTasks:
    """Make the next tasks of an array, queued: each with a row of its own, or one row for many that share a unit."""

    job_id: JobId
    """The array."""
    made_before: tuple[Interval, ...]
    """What the plan saw as made (:attr:`hcloud.core.arrays.TaskRecord.made`)."""
    count: int
    """How many tasks."""
    reason: Reason
    per_unit: int = 1
    """How many of them run in one unit."""
    begin_within_s: float | None = None
    """No task of a unit begins later than so long after the first; None: there is no such limit."""
    returned: tuple[JobId, ...] = ()
    """Tasks that wait with rows of their own and count as not made from now on: they are among the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Submit the profiling runs of a submitted job, which waits for them."""

    job_id: JobId
    application: str
    """Name of the application that the runs measure."""
    runs: tuple[JobSpec, ...]
    """Specs of the runs, submitted as jobs of their own."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Classify:
    """Set the application of a job. One that waited for it is enqueued next, without its unfinished profiling runs."""

    job_id: JobId
    application: str
    """Name of the application; empty: unknown."""
    source: str
    """``profiled`` (for this job), ``known`` (from earlier jobs) or ``prior`` (a typical application)."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The instance and resources of one rank."""

    rank: int
    instance_id: InstanceId
    resources: Resources
    cpus: tuple[int, ...] | None = None
    """The CPUs of the instance on which it is to run; empty: any of them; None: as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An instance type in one market that was considered for a rank, as it was when the decision was made."""

    column: str
    """``<provider>/<type>``."""
    market: Market
    usd_per_h: float
    """Cost of one rank's share of such an instance: of the chosen instance, else of the cheapest one."""
    predicted: float | None = None
    """Expected performance of the job on this type; None: nothing is known of the job."""
    low: float | None = None
    """Lower 80 % limit of ``predicted``."""
    high: float | None = None
    """Upper 80 % limit of ``predicted``."""
    rejected: str = ""
    """Constraint that excluded this type; empty: it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Start ranks of a job on READY instances: a new attempt, or more ranks of a running incremental job."""

    job_id: JobId
    ranks: tuple[RankPlacement, ...]
    reason: Reason
    candidates: tuple[Candidate, ...] = ()
    """The types considered, the chosen one first."""
    run_time: RunTimePrediction | None = None
    """How long the new attempt is predicted to run; None: not known, or it runs already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Ask a running attempt to stop."""

    job_id: JobId
    cause: FailureCause | None
    """Cause to record when the attempt has ended; None: the user cancelled it."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch one instance, which expires at ``expires_at`` unless its lease is renewed."""

    offer: Offer
    expires_at: float
    for_jobs: tuple[JobId, ...]
    """Jobs that will await the instance, one entry for each rank to run there."""
    reason: Reason
    for_running: tuple[JobId, ...] = ()
    """Running jobs that will add ranks on the instance, one entry per rank. They await nothing, but their users are
    charged a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Extend the lease of an instance; the budget has room for it."""

    instance_id: InstanceId
    expires_at: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Place no new units on an instance."""

    instance_id: InstanceId
    reason: Reason
    undo: bool = False
    """Place units on it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """Terminate an instance. Its unreleased allocations end as INSTANCE_LOST once the provider confirms it is gone."""

    instance_id: InstanceId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """Record with a running job that a correction is taken; the actions that carry it out follow in the plan."""

    job_id: JobId
    step: str
    """The correction step, e.g. ``resize`` or ``move``."""
    reason: Reason
    instances: tuple[InstanceId, ...] = ()
    """The instances concerned."""
    learnt: Learnt | None = None
    """Change of the application's estimates; None: they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """New estimates of an application, derived from a running job."""

    column: str
    """Instance type they apply to, as ``<provider>/<type>``."""
    vcpus: float
    """vCPUs the job had."""
    performance: float | None = None
    """Performance alone on that type with ``vcpus``; None: unchanged."""
    tolerated: Mapping[str, float] = field(default_factory=dict)
    """Tolerated pressure (0..100) by resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Change the resources or CPUs of ranks of a running job on their instances: of all ranks given, or of none."""

    job_id: JobId
    ranks: tuple[RankPlacement, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Pause a rank of a running job: it keeps its room and gets no CPU time until it is resumed."""

    job_id: JobId
    rank: int
    instance_id: InstanceId
    reason: Reason
    undo: bool = False
    """Resume it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRank:
    """Stop one rank of an incremental job, to restart it on another instance; the other ranks keep running."""

    job_id: JobId
    rank: int
    reason: Reason
    yields: bool = False
    """It is optional and gives way to another job: it starts again where there is room, and need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """When a job that waits for paid room is to start, as planned now; the next plan may find another time."""

    at: float
    """Unix seconds."""
    chance: float | None
    """Probability that it then meets its deadline; None: it has none."""
    chance_now: float | None
    """The same if it started at once."""

    def sentence(self, now: float) -> str:
        """Return it in words, at time ``now``."""
        when = f"in about {seconds(self.at - now)}" if self.at > now else "now"
        text = f"planned to start {when}, on room that is paid already"
        if self.chance is None or self.chance_now is None:
            return text
        return (
            f"{text}; probability to meet the deadline then {self.chance:.2f} ({self.chance_now:.2f} if it started now)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprofiled:
    """Why no copies of a running unknown program are profiled beside it now."""

    saving_usd: float
    """What knowing the program may save, at most so much of it may be spent on profiling."""
    least_usd: float
    """What profiling costs at least; inf: nothing may be rented for it."""
    obstacle: str = ""
    """What prevents it although it would pay."""

    def sentence(self) -> str:
        """Return it in words."""
        if self.obstacle:
            return f"not profiled now: {self.obstacle}"
        if self.least_usd == inf:
            return "not profiled: the policy allows no offer for it"
        return (
            f"not profiled yet: knowing it may save {usd(self.saving_usd)} of what it is expected to cost from now on, "
            f"and profiling costs {usd(self.least_usd)} or more"
        )


Action = (
    Enqueue
    | Preempted
    | Wait
    | Miss
    | Finish
    | MakeTasks
    | Profile
    | Classify
    | Place
    | StopAttempt
    | Launch
    | Renew
    | Drain
    | Terminate
    | Correct
    | Resize
    | Pause
    | StopRank
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions to take now, in order, and when the passage of time alone calls for another plan."""

    at: float
    actions: tuple[Action, ...] = ()
    due_at: float = inf
    """Time at which an idle instance is due for release, a back-off ends or a pause is to end; inf: never. Until then,
    planning again is useful only when something else changes."""
    planned_starts: Mapping[JobId, PlannedStart] = field(default_factory=dict)
    """When jobs that wait for paid room are to start."""
    unprofiled: Mapping[str, Unprofiled] = field(default_factory=dict)
    """Running unknown programs that are not profiled now (:func:`hcloud.classifier.applications.identify`)."""
