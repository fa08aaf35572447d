"""The vocabulary: what a job, a target, an offer, an instance and an event are.

Conventions: ``*_at`` is Unix seconds (UTC), ``*_s`` a duration in seconds, ``*_mib``/``*_gib`` binary units, ``*_usd``
money. Everything is frozen; change is ``dataclasses.replace``, and a state changes only through :func:`move_job` and
:func:`move_instance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

from hcloud.core.errors import InvalidTransition
from hcloud.core.rows import replace_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressHook:
    """How a batch job's progress (0..1) is read: by the last line (number or ``done/total``) of a file."""

    file: str
    total: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsHook:
    """How a service's rate and latency are read, inside its own network: a URL (Prometheus text) or a probe command.

    A probe prints one JSON object ``{"requests_per_s": r, "latency_ms": {"50": .., "99": ..}}`` as its last line.
    """

    url: str | None = None
    probe: tuple[str, ...] | None = None
    every_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What one profiling run measures on the one machine it has for itself (Quasar, Dissertation §4.3.2).

    ``job_id`` is who is profiled. ``type_column`` names the machine's type in the utility matrix; ``steps_vcpus`` are
    the scale-up settings to run at, first what it is for; ``sources`` the sources of interference that are tuned to the
    5 % point (tolerated) and measured beside it (caused); ``nodes`` the node count of this run. ``run_s`` ends each
    copy of the job, ``total_s`` the whole run; what is not measured by then stays unknown. ``warm_up_s`` passes before
    a stateful job is measured. ``look``: only one short run, to see whether a known program still behaves as known.
    ``knees``: also at the sizes between where it seems to stop growing (:func:`hcloud.core.estimates.next_knee`).
    """

    job_id: str
    type_column: str
    steps_vcpus: tuple[float, ...]
    sources: tuple[str, ...] = ()
    nodes: int = 1
    run_s: float = 5.0
    total_s: float = 60.0
    warm_up_s: float = 0.0
    look: bool = False
    knees: bool = False


Spread = Literal["none", "host", "zone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a user demands of the machines of a job. Patterns know ``*`` and ``?``; empty: no demand.

    ``zones``: patterns of zones. ``labels``: names a machine must have, each with a pattern of its value.
    ``apart_from``: patterns of names of jobs of the same user, with which it shares no machine (and they none with it);
    where that includes its own name, its own nodes share none either. ``spread``: no two of its nodes on one machine
    (``host``), or in one zone (``zone``).
    """

    zones: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    apart_from: tuple[str, ...] = ()
    spread: Spread = "none"

    def in_zone(self, zone: str) -> bool:
        """Return whether machines of ``zone`` will do."""
        return not self.zones or matches(zone, self.zones)

    def labelled(self, labels: Mapping[str, str]) -> bool:
        """Return whether machines with these ``labels`` will do."""
        return all(name in labels and fnmatchcase(labels[name], wanted) for name, wanted in self.labels)

    def words(self, name: str) -> str:
        """Return one of the demands as its author wrote it, for a sentence."""
        if name == "labels":
            return ", ".join(f"{key}={value}" for key, value in self.labels)
        return self.spread if name == "spread" else ", ".join(getattr(self, name))


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Return whether one of ``patterns`` describes ``text``."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


JobId = str
"""``job-<n>``, assigned by the store."""
InstanceId = str
"""``inst-<n>``, assigned by the store before launch; also the worker's name and, with the owner, the name tag."""
AttemptId = str
"""``job-<n>.<k>``: the k-th attempt (from 1) to run a job. At most one unit per attempt and rank is ever started."""
UnitId = str
"""``job-<n>.<k>.<rank>_<mark>``: one node's part of an attempt, from rank 0; started anew elsewhere ``<rank>-1``."""
MARKED_BY = "_"

PROFILE_TAG = "hcloud.profile"
"""Tag of profiling runs; its value is the job that is profiled."""
Number = float | int | str | bool | None


# ------------------------------------------------------------------------------------------------- what users ask for
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTarget:
    """Finish by an absolute time or within a span of submission; the earlier counts when both are given."""

    kind: Literal["batch"] = "batch"
    finish_by_at: float | None = None
    finish_within_s: float | None = None

    def deadline_at(self, submitted_at: float) -> float | None:
        """Return the Unix time by which the job must end, or None where no limit was stated."""
        limits = [self.finish_by_at] if self.finish_by_at is not None else []
        if self.finish_within_s is not None:
            limits.append(submitted_at + self.finish_within_s)
        return min(limits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """Serve ``requests_per_s`` with the given latency percentile (0..100) at or below ``latency_ms``."""

    kind: Literal["service"] = "service"
    requests_per_s: float
    latency_ms: float
    percentile: float = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEffortTarget:
    """No promise: runs in what is left over, is evicted first."""

    kind: Literal["best_effort"] = "best_effort"


Target = BatchTarget | ServiceTarget | BestEffortTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """An amount of one machine; ``vcpus`` may be fractional."""

    vcpus: float = 1.0
    memory_mib: int = 512
    disk_gib: float = 1.0

    def fits(self, other: Resources) -> bool:
        """Return whether this amount fits into ``other`` (with float slack on vCPUs and disk)."""
        return (
            self.vcpus <= other.vcpus + 1e-9
            and self.memory_mib <= other.memory_mib
            and self.disk_gib <= other.disk_gib + 1e-9
        )

    def plus(self, other: Resources) -> Resources:
        """Return the sum."""
        return Resources(
            vcpus=self.vcpus + other.vcpus,
            memory_mib=self.memory_mib + other.memory_mib,
            disk_gib=self.disk_gib + other.disk_gib,
        )

    def minus(self, other: Resources) -> Resources:
        """Return what is left after taking ``other`` away (may be negative)."""
        return Resources(
            vcpus=self.vcpus - other.vcpus,
            memory_mib=self.memory_mib - other.memory_mib,
            disk_gib=self.disk_gib - other.disk_gib,
        )


NOTHING = Resources(vcpus=0.0, memory_mib=0, disk_gib=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Scale-out. ``gang``: all ``count`` start together or none; else ranks start as room appears, from ``minimum``."""

    count: int = 1
    minimum: int = 1
    gang: bool = True

    @property
    def needed(self) -> int:
        """How many ranks must start together."""
        return self.count if self.gang else min(self.minimum, self.count)


class FailureCause(StrEnum):
    """Why an attempt did not succeed; the key of the retry table."""

    EXIT_CODE = "exit_code"  # the program ended with a non-zero code or a signal of its own
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    TIMEOUT = "timeout"  # ran longer than max_runtime_s
    PREEMPTED = "preempted"  # spot instance taken back
    INSTANCE_LOST = "instance_lost"  # the machine died or was confirmed gone
    START_REFUSED = "start_refused"  # the worker could not start it (no such command, sandbox, workdir)
    EVICTED = "evicted"  # stopped by the planner (budget, drain, higher priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often each cause may be retried; ``limits`` maps :class:`FailureCause` values to counts (absent = 0)."""

    limits: Mapping[str, int] = field(
        default_factory=lambda: {"preempted": 100, "instance_lost": 10, "evicted": 100, "start_refused": 1}
    )
    backoff_s: float = 5.0
    backoff_cap_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a user asks for; never changes after submission.

    ``instance_types`` are patterns (``*`` and ``?``) of type names it may run on, empty: any. ``exclusive``: nobody
    else on its machines while it runs, and all of each is its own. ``profiling``: ``never`` keeps it from being
    profiled. ``profile`` makes it a profiling run of another job, which only HCloud itself submits. ``placement``: what
    else is demanded of its machines (None: nothing). ``vcpus_within``: between what and what the planner may choose how
    many vCPUs it gets, where it is known what they are worth (None: as many as ``resources`` says).
    """

    name: str
    user: str
    command: tuple[str, ...]
    target: Target
    resources: Resources = Resources()
    nodes: Nodes = Nodes()
    image: str | None = None
    setup: str | None = None
    workdir_sha256: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    stateful: bool = False
    interruptible: bool = True
    network: Literal["none", "host"] = "none"
    retries: Retries = Retries()
    max_runtime_s: float | None = None
    stop_grace_s: float = 10.0
    budget_usd: float | None = None
    progress: ProgressHook | None = None
    metrics: MetricsHook | None = None
    instance_types: tuple[str, ...] = ()
    exclusive: bool = False
    profiling: Literal["auto", "never"] = "auto"
    profile: ProfileRequest | None = None
    placement: Constraints | None = None
    vcpus_within: tuple[float, float] | None = None

    def held_of(self, capacity: Resources) -> Resources:
        """Return what one rank holds of a machine of ``capacity``: what it asks for or, if exclusive, all of it."""
        return capacity if self.exclusive else self.resources

    def may_run_on(self, type_name: str) -> bool:
        """Return whether its ``instance_types`` include that type."""
        return not self.instance_types or any(fnmatchcase(type_name, each) for each in self.instance_types)

    def may_use(self, offer: Offer) -> bool:
        """Return whether it may run on machines of ``offer``: by type, zone and labels."""
        where = self.placement
        stated = where is None or (where.in_zone(offer.zone) and where.labelled(offer.labels))
        return stated and self.may_run_on(offer.instance_type.name)


# ---------------------------------------------------------------------------------------------------------------- jobs
class JobState(StrEnum):
    """Where a job is on its walk (architecture.md, "A job's walk")."""

    SUBMITTED = "submitted"
    PROFILED = "profiled"
    CLASSIFIED = "classified"
    QUEUED = "queued"
    AWAITING_INSTANCE = "awaiting_instance"
    PLACED = "placed"
    RUNNING = "running"
    PREEMPTED = "preempted"
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
JOB_ENDED: frozenset[JobState] = frozenset({_J.SUCCEEDED, _J.FAILED, _J.CANCELLED})
JOB_WAITING: frozenset[JobState] = frozenset({_J.QUEUED, _J.AWAITING_INSTANCE})
JOB_ON_INSTANCE: frozenset[JobState] = frozenset({_J.PLACED, _J.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One rank of an attempt: which part of which instance it holds, and what became of its unit.

    The allocation holds its resources until ``released`` (the unit is confirmed ended or the instance confirmed gone).
    """

    rank: int
    instance_id: InstanceId
    resources: Resources
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    cause: FailureCause | None = None
    detail: str = ""
    relaunch: int = 0  # how often the rank was started anew elsewhere, as a straggler
    resized_from: Resources | None = None
    """What it held before ``resources``, while not every worker of its job is known to have taken its new bounds."""

    @property
    def released(self) -> bool:
        """Whether the unit is known to be over."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to run a job. It is over when every allocation is released."""

    id: AttemptId
    number: int
    placed_at: float
    allocations: tuple[Allocation, ...]
    stop_cause: FailureCause | None = None
    """Set before stopping, so that the end of the units is read as what it was."""
    stop_requested_at: float | None = None
    mark: str = ""
    """Part of its units' ids: after an old database is restored, numbers are given again that machines still know."""

    @property
    def over(self) -> bool:
        """Whether nothing of this attempt runs any more."""
        return None not in [each.ended_at for each in self.allocations]  # asked of every job in every cycle

    @property
    def failure(self) -> FailureCause | None:
        """Why it failed: the stop's cause, else the first failed rank's. None: every rank ended well, asked or not."""
        first = next((a.cause for a in self.allocations if a.cause is not None), None)
        return self.stop_cause or first if first is not None else None

    def unit_id(self, rank: int) -> UnitId:
        """Return the id under which the engine knows this attempt's part ``rank``."""
        held = self.held(rank)
        again = f"-{held.relaunch}" if held is not None and held.relaunch else ""
        return f"{self.id}.{rank}{again}" + (f"{MARKED_BY}{self.mark}" if self.mark else "")

    def held(self, rank: int) -> Allocation | None:
        """Return the allocation of a rank; they mostly are in order of it."""
        if rank < len(self.allocations) and self.allocations[rank].rank == rank:
            return self.allocations[rank]
        return next((a for a in self.allocations if a.rank == rank), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A ``step`` (see ``planner.correction``) that was taken because a running job did not do as it should.

    ``instances``: machines to which a moved job does not go back, or where no best effort follows one evicted.
    """

    at: float
    step: str
    attempt: AttemptId
    instances: tuple[InstanceId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job and how far it has come. ``attempt`` is the present or last one."""

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    queued_at: float | None = None
    not_before_at: float = 0.0
    awaiting: tuple[InstanceId, ...] = ()
    attempt: Attempt | None = None
    attempts_made: int = 0
    failures: tuple[FailureCause, ...] = ()
    cancelled_by: str | None = None
    wait_code: str = ""
    """Why it waits, as last recorded (a reason code); an event is written only when it changes."""
    wait_text: str = ""
    """The sentence that came with ``wait_code``."""
    finished_at: float | None = None
    outcome: str = ""
    spent_usd: float = 0.0
    submission_token: str | None = None
    application: str = ""
    """The known program this is taken for: the key of its classification. Set when the job leaves SUBMITTED."""
    profile_runs: tuple[JobId, ...] = ()
    """The profiling runs made for it."""
    corrections: tuple[Correction, ...] = ()
    """What was done because it did not do as it should, oldest first."""
    revision: int = 0

    @property
    def deadline_at(self) -> float | None:
        """The time by which a batch job must end, else None."""
        target = self.spec.target
        return target.deadline_at(self.submitted_at) if isinstance(target, BatchTarget) else None


def move_job(job: Job, to: JobState, **changes: object) -> Job:
    """Return ``job`` in state ``to`` with ``changes`` applied.

    Raises:
        InvalidTransition: the table forbids the move; the message tells the job's story.
    """
    check_job_move(job, to)
    return replace_fields(job, state=to, **changes)


def check_job_move(job: Job, to: JobState) -> None:
    """Raise InvalidTransition where the table forbids the move; the message tells the job's story."""
    if to is not job.state and to not in JOB_TRANSITIONS[job.state]:
        raise InvalidTransition(
            f"{job.id} cannot go from {job.state} to {to}: submitted {job.submitted_at:.0f}, "
            f"attempts {job.attempts_made}, failures {[str(f) for f in job.failures]}, last attempt {job.attempt}; "
            f"allowed: {sorted(JOB_TRANSITIONS[job.state])}"
        )


# ------------------------------------------------------------------------------------------------------------ machines
class Market(StrEnum):
    """How a machine is paid for."""

    RESERVED = "reserved"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A machine model of one provider. ``boot_delay_s`` is the typical time from launch to a registered worker."""

    provider: str
    name: str
    capacity: Resources
    boot_delay_s: float = 60.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine that can be had now: type, place, market and price.

    ``available`` is how many more can be had (None: not stated). A RESERVED offer's price is its amortised cost, which
    is paid whether or not it is used. ``pool`` names what offers of one provider share (one host, one quota), and
    ``pool_free`` what was left of it at ``priced_at``: every machine of these offers is taken out of it.
    """

    provider: str
    region: str
    zone: str
    instance_type: InstanceType
    market: Market
    price_usd_per_h: float
    priced_at: float
    billing_minimum_s: float = 60.0
    available: int | None = None
    pool: str = ""
    pool_free: Resources | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identify the offer: provider, zone, type name, market."""
        return (self.provider, self.zone, self.instance_type.name, self.market.value)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its machines: those of the type, and ``provider``, ``region``, ``type`` and ``market``."""
        own = {"provider": self.provider, "region": self.region, "type": self.instance_type.name}
        return {**self.instance_type.labels, **own, "market": self.market.value}


class InstanceState(StrEnum):
    """Where a machine is: from the intent to launch to confirmed gone."""

    REQUESTED = "requested"  # intent recorded; the provider may or may not know of it
    BOOTING = "booting"  # the provider confirmed it; billed from here
    READY = "ready"  # its worker has registered
    DRAINING = "draining"  # nothing new is placed on it
    TERMINATING = "terminating"  # terminate intent recorded
    TERMINATED = "terminated"  # confirmed gone (or never came to be)


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
    """A machine of ours. ``token`` is the idempotency key of its one launch."""

    id: InstanceId
    offer: Offer
    state: InstanceState
    token: str
    requested_at: float
    expires_at: float
    """The machine powers itself off then, unless renewed (which the budget must allow first)."""
    provider_id: str | None = None
    launched_at: float | None = None
    """Billing starts here."""
    ready_at: float | None = None
    seen_at: float | None = None
    """When its worker last answered."""
    idle_since: float | None = None
    preempt_at: float | None = None
    """The provider announced it takes the machine back then."""
    terminated_at: float | None = None
    """Billing ends here."""
    for_running: tuple[JobId, ...] = ()
    """Running jobs that get more nodes on it, once for each: until it is up it counts against their users' budgets."""
    reason: str = ""
    revision: int = 0

    @property
    def capacity(self) -> Resources:
        """What the whole machine offers to units."""
        return self.offer.instance_type.capacity

    @property
    def retention_s(self) -> float:
        """Typical spin-up of its type: the unit in which policy states how long to keep it idle (HCloud §8.3)."""
        return self.offer.instance_type.boot_delay_s


def move_instance(instance: Instance, to: InstanceState, **changes: object) -> Instance:
    """Return ``instance`` in state ``to`` with ``changes`` applied.

    Raises:
        InvalidTransition: the table forbids the move.
    """
    check_instance_move(instance, to)
    return replace_fields(instance, state=to, **changes)


def check_instance_move(instance: Instance, to: InstanceState) -> None:
    """Raise InvalidTransition where the table forbids the move."""
    if to is not instance.state and to not in INSTANCE_TRANSITIONS[instance.state]:
        raise InvalidTransition(
            f"{instance.id} ({instance.provider_id}) cannot go from {instance.state} to {to}: requested "
            f"{instance.requested_at:.0f}, launched {instance.launched_at}, ready {instance.ready_at}; "
            f"allowed: {sorted(INSTANCE_TRANSITIONS[instance.state])}"
        )


# ------------------------------------------------------------------------------------------------------------- intents
class IntentKind(StrEnum):
    """An outside effect that must happen at most once."""

    LAUNCH = "launch"
    TERMINATE = "terminate"
    START = "start"
    STOP = "stop"
    RESIZE = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Written before an outside call, closed after it. An open intent found at start-up is simply repeated.

    ``token`` identifies the effect: the instance's launch token, ``terminate:<instance>``, ``start:<attempt>:<rank>``,
    ``stop:<attempt>`` or ``stop:<unit>``, ``resize:<unit>``.
    """

    token: str
    kind: IntentKind
    subject: str
    created_at: float
    tries: int = 0
    retry_at: float = 0.0


# -------------------------------------------------------------------------------------------------------------- events
class EventKind(StrEnum):
    """What the append-only log records. The listed keys of ``Event.fields`` are what reports rely on."""

    JOB_SUBMITTED = "job_submitted"  # name, tags, target_kind, vcpus, memory_mib, nodes, priority; target fields
    JOB_STATE = "job_state"  # from, to, code, text (+ numbers of the reason)
    JOB_FINISHED = "job_finished"  # state, outcome, deadline_at, target_met (bool|None), run_s, queue_s, attempts
    ATTEMPT_PLACED = "attempt_placed"  # attempt, allocations: "inst:rank:vcpus:memory_mib", code, text, candidates:
    #                       "type column market|usd_per_h of a rank|predicted|low|high|why not", the chosen one first
    UNIT_STARTED = "unit_started"  # attempt, rank, vcpus, memory_mib
    UNIT_ENDED = "unit_ended"  # attempt, rank, exit_code, cause, detail, started_at, cpu_s, memory_mib_max
    UNIT_RESIZED = "unit_resized"  # attempt, rank, vcpus, memory_mib
    CORRECTION = "correction"  # attempt, step, code, text, measured, wanted and other numbers of the reason
    SAMPLE = "sample"  # attempt, rank, cpu_s, memory_mib, read_mib, written_mib, progress, requests_per_s,
    #                    latency_ms_pNN
    JOB_PROFILED = (
        "job_profiled"  # application, runs, measure, readings: "question:column:value:low:high:runs", notes, text
    )
    JOB_CLASSIFIED = "job_classified"  # application, source (profiled | known | prior), quality_target, quality_class,
    #                       nearest, predicted (perf alone at its own resources), predicted_low, predicted_high, text
    PREDICTION = "prediction"  # application, measure, instance type, nodes, vcpus, predicted, low, high, measured
    INSTANCE_REQUESTED = "instance_requested"  # provider, region, zone, type, market, price_usd_per_h, priced_at,
    #                         vcpus, memory_mib, billing_minimum_s, on_demand_usd_per_h, expires_at, code, text
    INSTANCE_LAUNCHED = "instance_launched"  # provider_id, launched_at (billing starts), price_usd_per_h
    INSTANCE_READY = "instance_ready"  # boot_s
    INSTANCE_STATE = "instance_state"  # from, to, code, text
    INSTANCE_RENEWED = "instance_renewed"  # expires_at
    INSTANCE_PRICE = "instance_price"  # price_usd_per_h (spot prices move)
    INSTANCE_NOTICE = "instance_notice"  # preempt_at
    INSTANCE_TERMINATED = "instance_terminated"  # terminated_at (billing ends), billed (bool), code, text
    PROVIDER_TROUBLE = "provider_trouble"  # provider, call, error, text
    PLANNING_TROUBLE = "planning_trouble"  # left_out: the job, stage or else that HCloud fails on; error, text
    OFFER_BACKOFF = "offer_backoff"  # provider, zone, type, market, until_at, error
    ORPHAN = "orphan"  # provider_id: carries our owner tag but no record; action
    POLICY_CHANGED = "policy_changed"  # name, digest, ok (bool), text
    OPERATOR_ORDER = "operator_order"  # what: drain | undo | destroy; scope, name, deadline_at, text
    DAEMON = "daemon"  # what: started | stopped | leader | recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the audit log. ``seq`` increases with commit order; ``actor`` is a user name or ``hcloud``."""

    seq: int = 0
    at: float
    kind: EventKind
    job_id: JobId | None = None
    instance_id: InstanceId | None = None
    user: str | None = None
    actor: str = "hcloud"
    fields: Mapping[str, object] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------------- reasons
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a decision was made: a stable ``code``, one sentence, and the numbers that decided it."""

    code: str
    text: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
