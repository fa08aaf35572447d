"""The domain model: jobs, targets, offers, instances, intents and events.

Units are part of a field's name: ``*_at`` is Unix seconds (UTC), ``*_s`` seconds, ``*_mib`` and ``*_gib`` binary sizes,
``*_usd`` US dollars. All classes are frozen. A state changes only through :func:`move_job` and :func:`move_instance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

from hcloud.core.arrays import TaskList, TaskRecord
from hcloud.core.bucket_urls import BucketInput, BucketOutput
from hcloud.core.cpu_topology import CpuTopology
from hcloud.core.dependencies import Dependency, Ending
from hcloud.core.errors import InvalidTransition
from hcloud.core.estimates import Reading
from hcloud.core.failures import FailureCause as FailureCause
from hcloud.core.resources import NOTHING as NOTHING
from hcloud.core.resources import Gpus as Gpus
from hcloud.core.resources import Resources as Resources
from hcloud.core.rows import number_of, replace_fields
from hcloud.core.task_runs import TaskRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressHook:
    """Where a batch job reports its progress: in the last line of a file, as a number or ``done/total``."""

    file: str
    """Path relative to the work directory."""
    total: float = 1.0
    """The number that means done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a job writes so that its next attempt goes on from there: copied off its machines while it runs."""

    path: str
    """File or folder below the work directory."""
    every_s: float
    """It is copied so often, and when a provider announces to take the machine back."""
    signal: str = ""
    """Sent to the command before each copy, such as ``USR1``, upon which it writes its state; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsHook:
    """How to read a service's request rate and latency, from inside the job's network; either ``url`` or ``probe``."""

    url: str | None = None
    """Address of metrics in Prometheus text format."""
    probe: tuple[str, ...] | None = None
    """A command whose last line is a JSON object ``{"requests_per_s": r, "latency_ms": {"50": .., "99": ..}}``."""
    every_s: float = 5.0
    """Time between two readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What one profiling run measures, on an instance that it has to itself (Quasar, Dissertation §4.3.2)."""

    job_id: str
    """The job that is profiled; empty for a job that is itself a measurement."""
    type_column: str
    """The instance type, as the utility matrix names it."""
    steps_vcpus: tuple[float, ...]
    """The numbers of vCPUs to run at, the job's own first."""
    sources: tuple[str, ...] = ()
    """Interference sources: each is raised until the job loses 5 % (tolerated), then slowed by the job (caused)."""
    nodes: int = 1
    """Node count of this run."""
    run_s: float = 5.0
    """Duration of each copy of the job."""
    total_s: float = 60.0
    """Duration of the whole run; cells that are not measured by then stay unknown."""
    warm_up_s: float = 0.0
    """Time before a stateful job is measured."""
    promised_ms: float | None = None
    """The latency within which a service's requests count; None: any."""
    look: bool = False
    """Run one short copy only, to check that a known program still behaves as recorded."""
    knees: bool = False
    """Also run at sizes at which scaling may end (:func:`hcloud.core.estimates.next_knee`)."""
    unit_id: str = ""
    """The running unit that is measured in place of copies, on its own instance; empty: copies are measured."""
    expected: tuple[Reading, ...] = ()
    """What is expected of that unit; only this is measured, and a source presses no harder than it should tolerate."""


Spread = Literal["none", "host", "zone"]
Framework = Literal["dask", "mpi", "torchrun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Where a job may be placed. Patterns contain ``*`` and ``?``; an empty field is no constraint."""

    zones: tuple[str, ...] = ()
    """Patterns of zones."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels an instance must have: name and pattern of the value."""
    instance_id: str = ""
    """The only instance a profiling run may use, because the unit it measures runs there; empty: any."""
    apart_from: tuple[str, ...] = ()
    """Anti-affinity, in both directions: patterns of names of the same user's jobs. If its own name matches, its own
    nodes share no instance either."""
    spread: Spread = "none"
    """No two of its nodes on one instance (``host``) or in one zone (``zone``)."""
    gang_network: bool = False
    """Whether its instances must be able to give its nodes a network of their own."""

    def accepts_zone(self, zone: str) -> bool:
        """Return whether instances in ``zone`` are acceptable."""
        return not self.zones or matches(zone, self.zones)

    def accepts_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether instances with ``labels`` are acceptable."""
        return all(name in labels and fnmatchcase(labels[name], pattern) for name, pattern in self.labels)

    def words(self, name: str) -> str:
        """Return the constraint in field ``name`` as text, for a message."""
        if name == "labels":
            return ", ".join(f"{key}={value}" for key, value in self.labels)
        return self.spread if name == "spread" else ", ".join(getattr(self, name))


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Return whether ``text`` matches one of ``patterns`` (``*`` and ``?``)."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


JobId = str
"""``job-<n>``, assigned by the store. The tasks of an array have the numbers that follow its own."""
InstanceId = str
"""``inst-<n>``, assigned by the store before launch; also the worker's name and, with the owner, the name tag."""
AttemptId = str
"""``job-<n>.<k>``: the k-th attempt (from 1) to run a job. At most one unit per attempt and rank is ever started."""
UnitId = str
"""``job-<n>.<k>.<rank>_<mark>``: one node's part of an attempt, from rank 0; ``<rank>-1`` after one relaunch."""
MARKED_BY = "_"
"""Separates the mark (:attr:`Attempt.mark`) from the rest of a unit's id."""

PROFILE_TAG = "hcloud.profile"
"""Tag of profiling runs; its value is the profiled job."""
Number = float | int | str | bool | None


# ---------------------------------------------------------------------------------------------------- what users submit
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTarget:
    """Finish by a deadline; the earlier of the two limits applies. With neither, just finish."""

    kind: Literal["batch"] = "batch"
    finish_by_at: float | None = None
    """Absolute deadline."""
    finish_within_s: float | None = None
    """Deadline relative to the submission."""

    def deadline_at(self, submitted_at: float) -> float | None:
        """Return the deadline in Unix seconds, or None without one."""
        if self.finish_within_s is None:
            return self.finish_by_at
        within_at = submitted_at + self.finish_within_s
        return within_at if self.finish_by_at is None else min(self.finish_by_at, within_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """Serve a request rate with a latency percentile at or below a bound."""

    kind: Literal["service"] = "service"
    requests_per_s: float
    latency_ms: float
    """Bound on the latency."""
    percentile: float = 99.0
    """The percentile (0..100) that must meet the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEffortTarget:
    """No promise: runs on spare capacity and is evicted first."""

    kind: Literal["best_effort"] = "best_effort"


Target = BatchTarget | ServiceTarget | BestEffortTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """On how many nodes a job runs."""

    count: int = 1
    """Nodes requested."""
    minimum: int = 1
    """Nodes to start with, if this is not a gang; more are optional."""
    gang: bool = True
    """All nodes start together or none."""

    @property
    def needed(self) -> int:
        """How many ranks must start together."""
        return self.count if self.gang else min(self.minimum, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often each cause of failure is retried, and the back-off in between."""

    limits: Mapping[str, int] = field(
        default_factory=lambda: {"preempted": 100, "instance_lost": 10, "evicted": 100, "start_refused": 1, "inputs": 3}
    )
    """Retries by :class:`FailureCause`; causes that are absent are not retried."""
    backoff_s: float = 5.0
    """Delay before the first retry; doubled with each further one."""
    backoff_cap_s: float = 300.0
    """Upper limit of the delay."""
    memory_factor: float = 2.0
    """By so much memory grows when a job is tried again that ran out of it, up to the largest machine it may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a user submits; immutable for the life of the job."""

    name: str
    """Shown in listings and reports; need not be unique."""
    user: str
    command: tuple[str, ...]
    """Program and arguments."""
    target: Target
    resources: Resources = field(default_factory=Resources)
    """What each rank requests."""
    nodes: Nodes = Nodes()
    image: str | None = None
    """Container image to run in; None: the instance's own file system."""
    setup: str | None = None
    """Shell script that runs once per node before the command."""
    workdir_sha256: str | None = None
    """Digest of the uploaded work directory; each node starts in a copy."""
    workdir_content_sha256: str | None = None
    """Digest of its files without their times; None: not known."""
    inputs: tuple[BucketInput, ...] = ()
    """Objects of buckets that each rank finds in its work directory."""
    outputs: tuple[str, ...] = ()
    """Patterns of files below the work directory that are brought back from each rank once it has ended."""
    bucket_outputs: tuple[BucketOutput, ...] = ()
    """Files that each rank sends to buckets once it has ended."""
    checkpoint: Checkpoint | None = None
    """What each rank's next attempt finds in its work directory; None: it begins anew."""
    framework: Framework | None = None
    """The engine that is started on all ranks, and in which the command runs; None: the command runs on each rank."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Environment variables with secret values, which the store has encrypted beside the spec."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Names and values that reports group by."""
    priority: int = 0
    """Higher is scheduled first."""
    stateful: bool = False
    """It keeps state that a restart loses."""
    interruptible: bool = True
    """It may be stopped and started again from the beginning."""
    network: Literal["none", "host"] = "none"
    """Only its own loopback (``none``), which the nodes of a framework share, or the instance's network (``host``)."""
    retries: Retries = Retries()
    max_runtime_s: float | None = None
    """Attempts are stopped after this long."""
    stop_grace_s: float = 10.0
    """Time between SIGTERM and SIGKILL."""
    budget_usd: float | None = None
    """The job is stopped once its cost exceeds this."""
    progress: ProgressHook | None = None
    metrics: MetricsHook | None = None
    instance_types: tuple[str, ...] = ()
    """Patterns of the type names it may run on; empty: any."""
    preferred_types: tuple[str, ...] = ()
    """Patterns of the type names on which it runs fastest; empty: no preference."""
    slower_elsewhere: float = 1.0
    """How many times as long it runs on types that it does not prefer."""
    exclusive: bool = False
    """Each rank gets a whole instance, shared with no other job."""
    profiling: Literal["auto", "never"] = "auto"
    """``never``: not profiled, whatever the policy says."""
    profile: ProfileRequest | None = None
    """Set for profiling runs: the unit measures the command instead of running it once."""
    placement: Constraints | None = None
    vcpus_within: tuple[float, float] | None = None
    """Limits between which the planner may choose the vCPUs of a classified job; None: exactly ``resources``."""
    tasks: TaskList | None = None
    """The tasks of an array, which have the same spec; None: an ordinary job."""
    after: Mapping[str, Ending] = field(default_factory=dict)
    """How others must end before it starts, by their name in the same submission or their id, as written."""

    def resources_on(self, capacity: Resources) -> Resources:
        """Return what one rank allocates of an instance with ``capacity``."""
        return capacity if self.exclusive else self.resources

    def may_run_on(self, type_name: str) -> bool:
        """Return whether ``instance_types`` includes the type."""
        return not self.instance_types or any(fnmatchcase(type_name, each) for each in self.instance_types)

    def stretch_on(self, type_name: str) -> float:
        """Return how many times as long it runs on this type as on those that it prefers."""
        preferred = self.preferred_types
        return 1.0 if not preferred or matches(type_name, preferred) else self.slower_elsewhere

    def may_use(self, offer: Offer) -> bool:
        """Return whether the job may run on instances of ``offer``, by type, GPUs, zone and labels."""
        where = self.placement
        allowed = where is None or (where.accepts_zone(offer.zone) and where.accepts_labels(offer.labels))
        kind_allowed = self.may_run_on(offer.instance_type.name)
        return allowed and kind_allowed and offer.suits_gpus(self.resources.gpus, named=bool(self.instance_types))


# ---------------------------------------------------------------------------------------------------------------- jobs
class JobState(StrEnum):
    """A job's place in its life cycle."""

    SUBMITTED = "submitted"  # accepted; not admitted to the queue yet
    PROFILED = "profiled"  # its profiling runs have ended
    CLASSIFIED = "classified"  # its performance and interference are estimated
    QUEUED = "queued"  # waits for capacity, budget or its back-off
    AWAITING_INSTANCE = "awaiting_instance"  # an instance was launched for it
    PLACED = "placed"  # holds resources; its units are being started
    RUNNING = "running"
    PREEMPTED = "preempted"  # lost its instance; requeued or failed next
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_J = JobState
_END = frozenset({_J.FAILED, _J.CANCELLED})
JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        _J.SUBMITTED: frozenset({_J.PROFILED, _J.CLASSIFIED, _J.QUEUED}) | _END,
        _J.PROFILED: frozenset({_J.CLASSIFIED, _J.QUEUED}) | _END,
        _J.CLASSIFIED: frozenset({_J.QUEUED}) | _END,
        _J.QUEUED: frozenset({_J.AWAITING_INSTANCE, _J.PLACED}) | _END,
        _J.AWAITING_INSTANCE: frozenset({_J.QUEUED, _J.PLACED}) | _END,
        _J.PLACED: frozenset({_J.RUNNING, _J.QUEUED, _J.PREEMPTED, _J.SUCCEEDED}) | _END,
        _J.RUNNING: frozenset({_J.QUEUED, _J.PREEMPTED, _J.SUCCEEDED}) | _END,
        _J.PREEMPTED: frozenset({_J.QUEUED}) | _END,
        _J.SUCCEEDED: frozenset(),
        _J.FAILED: frozenset(),
        _J.CANCELLED: frozenset(),
    }
)
ARRAY_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {**JOB_TRANSITIONS, _J.QUEUED: frozenset({_J.RUNNING}) | _END, _J.RUNNING: frozenset({_J.SUCCEEDED}) | _END}
)
"""An array is QUEUED until its first task is made, and RUNNING until the last one has ended."""
JOB_ENDED: frozenset[JobState] = frozenset({_J.SUCCEEDED, _J.FAILED, _J.CANCELLED})
JOB_WAITING: frozenset[JobState] = frozenset({_J.QUEUED, _J.AWAITING_INSTANCE})
JOB_ON_INSTANCE: frozenset[JobState] = frozenset({_J.PLACED, _J.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One rank of an attempt: the resources it holds of an instance, and the outcome of its unit.

    It holds its resources until the unit is confirmed ended or the instance confirmed gone.
    """

    rank: int
    instance_id: InstanceId
    resources: Resources
    started_at: float | None = None
    ended_at: float | None = None
    """Set once the unit is known to be over; releases the resources."""
    exit_code: int | None = None
    cause: FailureCause | None = None
    """Why the unit failed; None: it succeeded, or is not over."""
    detail: str = ""
    """The worker's words about how the unit ended."""
    relaunch: int = 0
    """How often the rank was relaunched on another instance, as a straggler."""
    resized_from: Resources | None = None
    """The previous resources, until all workers of the job have confirmed their new limits."""
    cpus: tuple[int, ...] = ()
    """The CPUs of its instance on which it may run, as it was pinned or its worker last reported; empty: all."""
    gpus: tuple[int, ...] = ()
    """The GPUs of its instance that it has to itself, by number from 0; empty: it has none."""
    pinned_from: tuple[int, ...] | None = None
    """The CPUs before, until its worker has confirmed the new ones; None: it is not being pinned."""
    yielded_at: float | None = None
    """When it was stopped, as an optional rank, to make room for a job with a target; its end decides nothing."""
    paused_at: float | None = None
    """Since when it is paused, or its worker is asked to; None: it runs. ``paused_text`` says why."""
    paused_text: str = ""
    resumed_at: float | None = None
    """When its last pause ended; None: never."""
    paused_s: float = 0.0
    """How long its ended pauses were in sum."""
    refuses_pause: bool = False  # its worker refused to pause it: it is not asked again

    @property
    def released(self) -> bool:
        """Whether the unit is known to be over."""
        return self.ended_at is not None

    def total_paused_s(self, now: float) -> float:
        """Return how long it has been paused up to ``now``, or up to its end, in seconds."""
        until = now if self.ended_at is None else self.ended_at
        return self.paused_s + max(0.0, until - (until if self.paused_at is None else self.paused_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to run a job. It is over when every allocation is released."""

    id: AttemptId
    number: int
    """Counted from 1."""
    placed_at: float
    allocations: tuple[Allocation, ...]
    stop_cause: FailureCause | None = None
    """Why the planner stops it; recorded before the stop, so that the units' exit is attributed to it."""
    stop_requested_at: float | None = None
    mark: str = ""
    """Time of placement, part of its units' ids: a restored database assigns numbers again that workers still know."""

    @property
    def over(self) -> bool:
        """Whether no unit of this attempt runs any more."""
        return None not in [each.ended_at for each in self.allocations]  # a hot path: every job in every cycle

    @property
    def size(self) -> int:
        """Number of its ranks, without those that yielded."""
        return len([each for each in self.allocations if each.yielded_at is None])

    @property
    def failure(self) -> FailureCause | None:
        """Why it failed: the stop's cause, else that of the first failed one. None: every rank succeeded or yielded."""
        first = next((a.cause for a in self.allocations if a.cause is not None and a.yielded_at is None), None)
        return self.stop_cause or first if first is not None else None

    def unit_id(self, rank: int) -> UnitId:
        """Return the id of the unit that currently runs ``rank``."""
        held = self.held(rank)
        relaunch = f"-{held.relaunch}" if held is not None and held.relaunch else ""
        return f"{self.id}.{rank}{relaunch}" + (f"{MARKED_BY}{self.mark}" if self.mark else "")

    def held(self, rank: int) -> Allocation | None:
        """Return the allocation of ``rank``, or None."""
        # Allocations are usually in order of their rank.
        if rank < len(self.allocations) and self.allocations[rank].rank == rank:
            return self.allocations[rank]
        return next((a for a in self.allocations if a.rank == rank), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A corrective step that was taken for a running job that missed its target (``hcloud.planner.correction``)."""

    at: float
    step: str
    attempt: AttemptId
    instances: tuple[InstanceId, ...] = ()
    """Instances to avoid: for a moved job, or for best-effort jobs after an eviction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job and its progress through the life cycle."""

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    queued_at: float | None = None
    """When it last entered the queue."""
    not_before_at: float = 0.0
    """End of its retry back-off."""
    awaiting: tuple[InstanceId, ...] = ()
    """Instances that were launched for it."""
    attempt: Attempt | None = None
    """The current or last attempt."""
    attempts_made: int = 0
    failures: tuple[FailureCause, ...] = ()
    """Causes of its failed attempts, oldest first."""
    cancelled_by: str | None = None
    """User who cancelled it."""
    wait_code: str = ""
    """Reason code of the last recorded wait; an event is emitted only when it changes."""
    wait_text: str = ""
    """The sentence for ``wait_code``."""
    reserved: tuple[InstanceId, ...] = ()
    """Instances on which room is reserved for it while it waits."""
    finished_at: float | None = None
    outcome: str = ""
    """How it ended, in one sentence."""
    spent_usd: float = 0.0
    submission_token: str | None = None
    """Idempotency key of the submission."""
    application: str = ""
    """Key of its classification: the program it was recognised as. Set when the job leaves SUBMITTED."""
    profile_runs: tuple[JobId, ...] = ()
    """Its profiling runs."""
    corrections: tuple[Correction, ...] = ()
    """Corrective steps taken, oldest first."""
    unmet_code: str = ""
    """Why nothing helps while it runs and misses its target, by correction; empty: it is met, or not judged."""
    unmet_text: str = ""
    """The sentence for ``unmet_code``: what was measured, the target, what was tried, and why nothing helps."""
    array: JobId = ""
    """The array of which it is a task; empty: it is a job of its own."""
    task_record: TaskRecord | None = None
    """What became of an array's tasks that have no row; None: it is no array."""
    run: TaskRun | None = None
    """Tasks of its array that run in its unit beside itself; None: it runs alone."""
    waits_for: tuple[Dependency, ...] = ()
    """Jobs that must end before it is planned; those that ended as awaited are removed."""
    released_at: float | None = None
    """When the last of the jobs that it waited for had ended; None: it waited for none, or still does."""
    memory_mib: int | None = None
    """What each rank gets, in place of what was asked for, since it ran out of memory; None: that is enough so far.
    ``spec`` says it, too."""
    needed_for: JobId = ""
    """In plans only: the job by whose deadline it is planned instead of by its own; empty: its own."""
    revision: int = 0
    """Increases with every write; the store assigns it."""

    @property
    def is_array(self) -> bool:
        """Whether it stands for many tasks, which run instead of it."""
        return self.spec.tasks is not None and not self.array

    @property
    def is_held(self) -> bool:
        """Whether it waits for other jobs to end: nothing is planned for it until then."""
        return bool(self.waits_for) and self.state is JobState.SUBMITTED and self.cancelled_by is None

    @property
    def eligible_at(self) -> float:
        """Since when it can be planned: since its submission, or the end of the jobs that it waited for."""
        return self.submitted_at if self.released_at is None else self.released_at

    @property
    def task_position(self) -> int:
        """Position of a task in its array: the tasks have the numbers that follow the array's own."""
        return number_of(self.id) - number_of(self.array) - 1

    @property
    def deadline_at(self) -> float | None:
        """Deadline of a batch job, or None."""
        target = self.spec.target
        return target.deadline_at(self.submitted_at) if isinstance(target, BatchTarget) else None


def with_memory(spec: JobSpec, memory_mib: int | None) -> JobSpec:
    """Return ``spec`` with this much memory for each rank; itself if that is what it asks for, or None."""
    if memory_mib is None or memory_mib == spec.resources.memory_mib:
        return spec
    return replace_fields(spec, resources=replace_fields(spec.resources, memory_mib=memory_mib))


def move_job(job: Job, to: JobState, **changes: object) -> Job:
    """Return ``job`` in state ``to`` with ``changes`` applied.

    Raises:
        InvalidTransition: the transition is not allowed; the message includes the job's history.
    """
    check_job_move(job, to)
    return replace_fields(job, state=to, **changes)


def check_job_move(job: Job, to: JobState) -> None:
    """Raise InvalidTransition, with the job's history, if it may not go to state ``to``."""
    allowed = (ARRAY_TRANSITIONS if job.is_array else JOB_TRANSITIONS)[job.state]
    if to is not job.state and to not in allowed:
        raise InvalidTransition(
            f"{job.id} cannot go from {job.state} to {to}: submitted {job.submitted_at:.0f}, "
            f"attempts {job.attempts_made}, failures {[str(f) for f in job.failures]}, last attempt {job.attempt}; "
            f"allowed: {sorted(allowed)}"
        )


# ----------------------------------------------------------------------------------------------------------- instances
class Market(StrEnum):
    """How an instance is paid for."""

    RESERVED = "reserved"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A machine type of one provider."""

    provider: str
    name: str
    capacity: Resources
    boot_delay_s: float = 60.0
    """Typical time from launch until the worker registers."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The provider's own labels, which jobs can require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCapacity:
    """The part of the capacity behind a RESERVED offer that ends at one time, in instances of its type."""

    ends_at: float | None
    """None: not known to end."""
    free: int = 0
    used: int = 0
    """By whichever instances of the account, HCloud's and others."""
    kind: str = ""
    """Which kind of commitment, such as ``savings plans``; empty: the only one."""
    usd_per_h: float | None = None
    """Price of one instance; None: that of the offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An instance type that can be launched now: where, in which market and at what price."""

    provider: str
    region: str
    zone: str
    instance_type: InstanceType
    market: Market
    price_usd_per_h: float
    """For RESERVED the amortised price, which is paid whether or not the instance is used."""
    priced_at: float
    billing_minimum_s: float = 60.0
    available: int | None = None
    """How many more can be launched; None: unknown."""
    pool: str = ""
    """Name of a capacity pool that several offers of the provider share (one host, one quota); empty: none."""
    pool_free: Resources | None = None
    """What was free in the pool at ``priced_at``."""
    quota: str = ""
    """Name of the account's limit on vCPUs that it counts against, by region; empty: the provider names none."""
    ends_at: float | None = None
    """When the commitment that the next instance of a RESERVED offer uses ends; None: not known, or never."""
    price_after_usd_per_h: float | None = None
    """The price from ``ends_at`` on, which is that of on demand; None: there is no end, or the price is not known."""
    committed: tuple[CommittedCapacity, ...] = ()
    """Commitments behind a RESERVED offer by kind and end, the last end of a kind first, as launches use them; empty:
    not known."""
    commitment: str = ""
    """The kind of commitment (``CommittedCapacity.kind``) that the next instance uses, and an instance was launched on;
    it sets price and end."""

    @property
    def next_committed(self) -> tuple[CommittedCapacity, ...]:
        """Commitments of the kind that the next instance uses, the last end first."""
        return tuple(each for each in self.committed if each.kind == self.commitment)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identify the offer: provider, zone, type name, market."""
        return (self.provider, self.zone, self.instance_type.name, self.market.value)

    @property
    def quota_key(self) -> tuple[str, str, str]:
        """Identify the account limit: provider, region, name. Without a name, each market is taken to have its own."""
        return (self.provider, self.region, self.quota or self.market.value)

    def suits_gpus(self, wanted: Gpus | None, *, named: bool) -> bool:
        """Return whether jobs that request ``wanted`` GPUs may use it. Those that request none use instances with GPUs
        only if these are paid for anyway, or their types are ``named``: they cost more."""
        has = self.instance_type.capacity.gpus
        if wanted is not None:
            return has is not None and wanted.accepts(has)
        return has is None or named or self.market is Market.RESERVED

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its instances: those of the type, and ``provider``, ``region``, ``type`` and ``market``."""
        own = {"provider": self.provider, "region": self.region, "type": self.instance_type.name}
        return {**self.instance_type.labels, **own, "market": self.market.value}


class InstanceState(StrEnum):
    """An instance's place in its life cycle."""

    REQUESTED = "requested"  # launch intent recorded; the provider may or may not have launched it
    BOOTING = "booting"  # launched according to the provider; billed from now on
    READY = "ready"  # its worker has registered
    DRAINING = "draining"  # no new units are placed on it
    TERMINATING = "terminating"  # terminate intent recorded
    TERMINATED = "terminated"  # confirmed gone, or never launched


_I = InstanceState
INSTANCE_TRANSITIONS: Mapping[InstanceState, frozenset[InstanceState]] = MappingProxyType(
    {
        _I.REQUESTED: frozenset({_I.BOOTING, _I.TERMINATING, _I.TERMINATED}),
        _I.BOOTING: frozenset({_I.READY, _I.DRAINING, _I.TERMINATING, _I.TERMINATED}),
        _I.READY: frozenset({_I.DRAINING, _I.TERMINATING, _I.TERMINATED}),
        _I.DRAINING: frozenset({_I.READY, _I.TERMINATING, _I.TERMINATED}),
        _I.TERMINATING: frozenset({_I.TERMINATED}),
        _I.TERMINATED: frozenset(),
    }
)
INSTANCE_COMING: frozenset[InstanceState] = frozenset({_I.REQUESTED, _I.BOOTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance that HCloud launched, or intends to launch."""

    id: InstanceId
    offer: Offer
    state: InstanceState
    token: str
    """Idempotency token of its launch."""
    requested_at: float
    expires_at: float
    """End of its lease: it powers itself off then unless the lease is renewed, which the budget must allow."""
    provider_id: str | None = None
    """The provider's id, once it is launched."""
    launched_at: float | None = None
    """Billing starts here."""
    ready_at: float | None = None
    seen_at: float | None = None
    """When its worker last answered."""
    idle_since: float | None = None
    """Since when no unit is on it; None: it is in use."""
    preempt_at: float | None = None
    """When the provider will reclaim it, according to its notice."""
    terminated_at: float | None = None
    """Billing ends here."""
    for_running: tuple[JobId, ...] = ()
    """Running jobs that it was launched for, once per additional node: until it is ready, their users' budgets pay."""
    reason: str = ""
    """Why it was launched, in one sentence."""
    addresses: tuple[str, ...] | None = None
    """From which it may connect; None: not known yet; empty: its provider names none, so any will do."""
    cpu_topology: CpuTopology | None = None
    """What its worker reported of its CPUs; None: nothing."""
    has_wireguard: bool | None = None
    """Whether its worker can connect the nodes of a gang by WireGuard; None: it did not say."""
    revision: int = 0
    """Increases with every write; the store assigns it."""

    @property
    def capacity(self) -> Resources:
        """What it offers to units in total."""
        return self.offer.instance_type.capacity

    @property
    def lacks_gang_network(self) -> bool:
        """Whether nodes of a gang can have no network of their own here. Machines without address are on one host,
        where they need no WireGuard; of those that boot it is not known yet."""
        return self.ready_at is not None and self.addresses != () and not self.has_wireguard

    @property
    def retention_s(self) -> float:
        """Typical boot time of its type: the unit of the policy's idle retention (HCloud §8.3)."""
        return self.offer.instance_type.boot_delay_s


def move_instance(instance: Instance, to: InstanceState, **changes: object) -> Instance:
    """Return ``instance`` in state ``to`` with ``changes`` applied.

    Raises:
        InvalidTransition: the transition is not allowed.
    """
    check_instance_move(instance, to)
    return replace_fields(instance, state=to, **changes)


def check_instance_move(instance: Instance, to: InstanceState) -> None:
    """Raise InvalidTransition if the instance may not go to state ``to``."""
    if to is not instance.state and to not in INSTANCE_TRANSITIONS[instance.state]:
        raise InvalidTransition(
            f"{instance.id} ({instance.provider_id}) cannot go from {instance.state} to {to}: requested "
            f"{instance.requested_at:.0f}, launched {instance.launched_at}, ready {instance.ready_at}; "
            f"allowed: {sorted(INSTANCE_TRANSITIONS[instance.state])}"
        )


# ------------------------------------------------------------------------------------------------------------- intents
class IntentKind(StrEnum):
    """An external effect that must happen at most once."""

    LAUNCH = "launch"
    TERMINATE = "terminate"
    START = "start"
    STOP = "stop"
    RESIZE = "resize"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A write-ahead record of an external call: written before the call, deleted after it.

    After a crash the call of an open intent is repeated with the same token.
    """

    token: str
    """Identifies the effect: the instance's launch token, ``terminate:<instance>``, ``start:<attempt>:<rank>``,
    ``stop:<attempt>``, ``stop:<unit>``, ``resize:<unit>`` or ``pause:<unit>`` (also to resume)."""
    kind: IntentKind
    subject: str
    """Id of the instance, attempt or unit."""
    created_at: float
    tries: int = 0
    """Calls made so far."""
    retry_at: float = 0.0
    """No further call before this time."""


# -------------------------------------------------------------------------------------------------------------- events
class EventKind(StrEnum):
    """Kinds of entries in the audit log. The comments list the keys of ``Event.fields`` that reports rely on."""

    JOB_SUBMITTED = "job_submitted"  # name, tags, target_kind, vcpus, memory_mib, gpus (in words, if any), nodes,
    #                       priority, features (what predicts its run time; empty: it is not predicted); target fields;
    #                       image, framework, checkpoint ("every 30 s"), if any; of an array: tasks (how many); of a
    #                       task: array, task (its id), submitted_at; of one that waits: after ("job-7:succeeded")
    JOB_STATE = "job_state"  # from, to, code, text (+ numbers of the reason)
    JOB_FINISHED = "job_finished"  # state, outcome, deadline_at, target_met (bool|None), run_s, queue_s, paused_s,
    #                       attempts, stopped (bool: it would have run longer), features (as in job_submitted); array
    ATTEMPT_PLACED = "attempt_placed"  # attempt, allocations: "inst:rank:vcpus:memory_mib", code, text, gpus (if
    #                       any): "inst:rank:0-1", candidates:
    #                       "type column market|usd_per_h of a rank|predicted|low|high|rejection", the chosen first;
    #                       run_time (if one was predicted): source, likely_s, quantiles_s
    UNIT_STARTED = "unit_started"  # attempt, rank, vcpus, memory_mib, gpu_share (of its instance's GPUs, 0..1);
    #                        restored_at: from when its checkpoint is, if it goes on from one
    UNIT_ENDED = "unit_ended"  # attempt, rank, exit_code, cause, detail, started_at, cpu_s, memory_mib_max
    TASKS_ENDED = "tasks_ended"  # of an array: attempt (of the task that leads the run), unit, ended: "first-last|
    #                       started_at|ended_at|exit_code|cause" by position; ids: those of these tasks
    UNIT_RESIZED = "unit_resized"  # attempt, rank, vcpus, memory_mib, gpu_share; cpus ("0-3,8"; "": any) if pinned
    UNIT_PAUSED = "unit_paused"  # attempt, rank, code, text
    UNIT_RESUMED = "unit_resumed"  # attempt, rank, paused_s (this time), code, text
    TARGET_MISSED = "target_missed"  # attempt, code (met: no longer), text, by, measured, wanted
    CORRECTION = "correction"  # attempt, step, code, text, measured, wanted and other numbers of the reason
    SAMPLE = "sample"  # attempt, rank, cpu_s, taken_s, memory_mib, read_mib, written_mib, progress, requests_per_s,
    #                    latency_ms_pNN
    JOB_PROFILED = "job_profiled"  # application, runs, measure, readings ("question:column:value:low:high:runs"), text
    JOB_CLASSIFIED = "job_classified"  # application, source (profiled | known | prior), quality_target, quality_class,
    #                       nearest, predicted (perf alone at its own resources), predicted_low, predicted_high, text
    PREDICTION = "prediction"  # application, measure, instance type, nodes, vcpus, predicted, low, high, measured
    INSTANCE_REQUESTED = "instance_requested"  # provider, region, zone, type, market, price_usd_per_h, priced_at,
    #                         vcpus, memory_mib, billing_minimum_s, on_demand_usd_per_h, expires_at, code, text
    INSTANCE_LAUNCHED = "instance_launched"  # provider_id, launched_at (billing starts), price_usd_per_h
    INSTANCE_READY = "instance_ready"  # boot_s, isolation, cpus (sockets, cores, caches and nodes), gpus (in words)
    INSTANCE_STATE = "instance_state"  # from, to, code, text
    INSTANCE_RENEWED = "instance_renewed"  # expires_at
    INSTANCE_PRICE = "instance_price"  # price_usd_per_h (spot prices move); market, if its commitment has ended
    INSTANCE_NOTICE = "instance_notice"  # preempt_at
    INSTANCE_TERMINATED = "instance_terminated"  # terminated_at (billing ends), billed (bool), code, text
    PROVIDER_TROUBLE = "provider_trouble"  # provider, call, error, text
    SCHEDULE = "schedule"  # what: created | replaced | fired | skipped | missed | paused | resumed | deleted; schedule,
    #                        name, due_at (for which time), count (of missed runs), text
    EXEC = "exec"  # a command inside a running job: rank, text; command (when it begins), exit_code (when it ended)
    BUDGET = "budget"  # scope (total | user | tag), name, period (per_day | per_month), ends_at, share (0.8 | 1.0),
    #                    spent_usd, limit_usd, text
    PLANNING_TROUBLE = "planning_trouble"  # left_out: the job or stage that planning fails on; error, text
    OFFER_BACKOFF = "offer_backoff"  # provider, zone, type, market (of a quota: region, quota), until_at, error
    ORPHAN = "orphan"  # provider_id: it has our owner tag but no record; action
    POLICY_CHANGED = "policy_changed"  # name, digest, ok (bool), text
    OPERATOR_ORDER = "operator_order"  # what: drain | undo | destroy | resume; scope, name, deadline_at, text
    COMMITMENT = "commitment"  # provider, commitment_kind, commitment, count (0: ended), unused, usd_per_h, ends_at
    DAEMON = "daemon"  # what: started | stopped | leader | recovered | pruned (records, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the audit log."""

    seq: int = 0
    """Increases in the order of commits."""
    at: float
    kind: EventKind
    job_id: JobId | None = None
    instance_id: InstanceId | None = None
    user: str | None = None
    """Owner of the job, if it concerns one."""
    actor: str = "hcloud"
    """User who caused it, or ``hcloud``."""
    fields: Mapping[str, object] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------------- reasons
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why the planner made a decision."""

    code: str
    """Stable identifier, for programs."""
    text: str
    """One sentence, for people."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """The numbers that decided it."""
