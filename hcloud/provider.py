"""Ports: what HCloud needs of a place that rents machines (Provider) and of an engine that runs programs (Runner).

Every implementation passes the one contract suite of its port (``tests/contract``). Both may be called from several
threads. Rules common to both: a *read* that fails raises or says it is partial, and never reads as "nothing there"; a
*write* is idempotent by its token; when its outcome is unknown it raises so and may be repeated with the same token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from hcloud.core.estimates import Findings
from hcloud.core.model import (
    MARKED_BY,
    FailureCause,
    InstanceId,
    Market,
    MetricsHook,
    Offer,
    ProfileRequest,
    ProgressHook,
    Resources,
    UnitId,
)

MOST_RESERVED = 1_000_000
"""Machines of one type in one place: far more than anybody has, and few enough to be counted one by one."""


# ------------------------------------------------------------------------------------------------------------ provider
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBootstrap:
    """What a new machine needs to become a worker of this deployment; secrets as file paths on the daemon's host.

    ``lease_s``: without a renewal for so long the machine finishes nothing new and powers itself off.
    """

    scheduler_address: str
    tls_dir: str
    isolation: Literal["require", "best_effort"] = "require"
    lease_s: float = 600.0
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One machine to be launched. ``token`` makes it idempotent: the same token never yields a second machine."""

    token: str
    instance_id: InstanceId
    owner: str
    offer: Offer
    expires_at: float
    tags: Mapping[str, str] = field(default_factory=dict)
    bootstrap: WorkerBootstrap | None = None


class CloudState(StrEnum):
    """A machine's state as its provider tells it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudInstance:
    """A machine as its provider tells it. ``instance_id``, ``token`` and ``owner`` are read from its tags."""

    provider_id: str
    instance_id: InstanceId
    token: str
    owner: str
    state: CloudState
    zone: str
    launched_at: float
    price_usd_per_h: float
    terminated_at: float | None = None
    preempt_at: float | None = None
    expires_at: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All machines with our owner tag that the provider told of.

    ``complete`` is False when a zone or page did not answer: then an absent machine means nothing.
    ``consistent_after_s``: a machine launched less than this long ago may be absent even from a complete listing.
    Terminated machines may be listed for a while, or not at all.
    """

    instances: tuple[CloudInstance, ...]
    complete: bool = True
    unanswered: tuple[str, ...] = ()
    consistent_after_s: float = 0.0


def is_machine(answer: object) -> bool:
    """Return whether a plug-in's answer to a launch is a machine at all."""
    return isinstance(answer, CloudInstance)


def is_listing(answer: object) -> bool:
    """Return whether a plug-in's answer is a listing of machines."""
    return isinstance(answer, Listing) and all(isinstance(each, CloudInstance) for each in answer.instances)


def is_offer_list(answer: object) -> bool:
    """Return whether a plug-in's answer is offers, and nothing else."""
    return isinstance(answer, tuple) and all(isinstance(each, Offer) for each in answer)


class Provider(Protocol):
    """A place that rents machines. Built by its entry point as ``factory(name, settings, clock, owner, state_dir)``.

    One that takes several launches at the same time says how many in an attribute ``launches_at_once``; without it the
    launches of a plan are made one after the other.
    """

    name: str

    def offers(self) -> tuple[Offer, ...]:
        """Return what can be had, sorted by key. Raises ProviderUnavailable, Throttled."""
        ...

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one machine, or return the one this token launched before (also if it has ended since).

        Raises:
            InsufficientCapacity, QuotaExceeded, LaunchRejected, Throttled: certainly not launched.
            OutcomeUnknown: repeat with the same token.
            ProviderUnavailable: certainly not sent.
        """
        ...

    def instances(self, owner: str) -> Listing:
        """List machines by owner tag. Raises ProviderUnavailable, Throttled."""
        ...

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Begin to end machines; ids ended or unknown are no error. Raises like ``launch`` (retry is harmless)."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Say in words what this provider can and cannot do here (isolation in force, what the machine lacks)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one look at an account found. ``do`` says what would help, "" where nothing is wrong."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    finding: str
    do: str = ""


@runtime_checkable
class Examinable(Protocol):
    """A provider that can look its account over: credentials, permissions one by one, quotas, image, clock."""

    def examine(self) -> Sequence[Finding]:
        """Try out, without any effect, what the provider will need; never raises ProviderError: troubles are findings.

        A permission that is missing is named as the cloud names it.
        """
        ...


class ProviderFactory(Protocol):
    """What an entry point of group ``hcloud.providers`` names: a class or function with this signature.

    Raises ConfigError on settings it does not know, naming the key and the nearest right one. It may also have a static
    method ``check_settings(name, settings)`` that raises the same and builds nothing: ``hcloud config check`` calls it.
    """

    def __call__(
        self, name: str, settings: Mapping[str, object], clock: object, owner: str, state_dir: str
    ) -> Provider:
        """Build the provider. ``state_dir`` is a private directory it may write to and which outlives the daemon."""
        ...


# ------------------------------------------------------------------------------------------- machines for fake engines
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """A simulated machine that is up, as a fake engine on it sees it. ``quality`` is a speed factor around 1."""

    instance_id: InstanceId
    capacity: Resources
    ready_at: float
    expires_at: float
    quality: float = 1.0
    preempt_at: float | None = None
    type_name: str = ""
    market: Market = Market.ON_DEMAND


class Journal(Protocol):
    """What simulated things write down so that a killed process finds them as they were: named rows, latest wins."""

    def hold(self) -> AbstractContextManager[Mapping[str, object]]:
        """Keep every other thread and process out; gives the rows others have written since it was last held."""
        ...

    def write(self, rows: Mapping[str, object]) -> None:
        """Write rows of JSON values, all or none; only while holding."""
        ...


@runtime_checkable
class MachineSource(Protocol):
    """Where a fake engine finds the machines it runs on; a simulated Provider is one."""

    def running(self, now: float) -> Mapping[InstanceId, SimulatedMachine]:
        """Return the machines that are up at ``now``; the same object again while nothing has changed."""
        ...

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Move the time at which machines end themselves; returns those that are up and took it."""
        ...

    def journal(self, name: str) -> Journal | None:
        """Return where the engine on these machines writes down its units; None: they live in memory."""
        ...


# -------------------------------------------------------------------------------------------------------------- runner
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """One node's part of one attempt, as given to the engine. ``id`` is the fence: at most one start per id, ever.

    ``workdir`` is the path, on the daemon's host, of the uploaded archive (tar.gz) to unpack, or None.
    ``peers`` are the instance ids of all ranks in order. The unit finds ``env`` in its environment, and of the engine
    HCLOUD_UNIT_ID, HCLOUD_RANK and HCLOUD_PEERS (comma-separated).
    """

    id: UnitId
    instance_id: InstanceId
    rank: int
    command: tuple[str, ...]
    resources: Resources
    image: str | None = None
    setup: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    network: Literal["none", "host"] = "none"
    peers: tuple[InstanceId, ...] = ()
    max_runtime_s: float | None = None
    stop_grace_s: float = 10.0
    progress: ProgressHook | None = None
    metrics: MetricsHook | None = None
    profile: ProfileRequest | None = None
    """Given: the unit does not run the command once but measures it; what it finds is in its exit record."""


def unmarked(unit: UnitId) -> str:
    """Return the job, attempt and rank of a unit's id, ``job-<n>.<k>.<rank>``, whenever the attempt was placed."""
    return unit.partition(MARKED_BY)[0]


class UnitState(StrEnum):
    """What the engine knows of a unit."""

    STARTING = "starting"  # its directory exists (fence taken); setup may be running
    RUNNING = "running"
    ENDED = "ended"  # a durable exit record exists


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSample:
    """What a unit used and achieved up to ``at``; counters are totals since its start. None: not measured here.

    ``latency_ms`` maps percentiles as text ("50", "99") to milliseconds over the last interval. ``looks``: of a worker
    that keeps to itself what only goes on, how many of its looks one stands for: this one, and those since the sample
    before, at which everything went on evenly.
    """

    at: float
    cpu_s: float | None = None
    memory_mib: float | None = None
    read_mib: float | None = None
    written_mib: float | None = None
    progress: float | None = None
    requests_per_s: float | None = None
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    looks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a unit ended; written durably on the instance before anything is told of it. ``cause`` None means success."""

    exit_code: int | None
    cause: FailureCause | None
    started_at: float
    ended_at: float
    detail: str = ""
    cpu_s: float | None = None
    memory_mib_max: float | None = None
    findings: Findings | None = None
    """Of a profiling run, also of one that was stopped or failed, as far as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """One unit as its worker reports it."""

    id: UnitId
    state: UnitState
    started_at: float | None = None
    sample: UnitSample | None = None
    exit: ExitRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One registered worker. ``units`` are all units whose directories exist on its instance, ended ones included.

    ``preempt_at`` is a notice the instance itself saw (metadata); ``isolation`` names what is in force ("cgroup1",
    "bwrap"...).
    """

    instance_id: InstanceId
    units: tuple[UnitReport, ...]
    isolation: tuple[str, ...] = ()
    preempt_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """What the engine knows now. An instance in neither ``workers`` nor ``silent`` has simply not registered.

    ``silent`` workers are known but did not answer this time: nothing may be concluded about their units.
    ``reachable`` is False when the engine itself did not answer: then nothing at all may be concluded.
    """

    workers: tuple[WorkerReport, ...]
    silent: frozenset[InstanceId] = frozenset()
    reachable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """Outcome of a start: ``started`` (now or before), ``refused`` (certainly not, and never under this id, whoever
    asks later: ``detail``), ``unknown``."""

    outcome: Literal["started", "refused", "unknown"]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeResult:
    """Outcome of a change of bounds: ``resized`` (now or before), ``refused`` (certainly not, and never: ``detail``),
    ``unknown`` (ask again)."""

    outcome: Literal["resized", "refused", "unknown"]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a unit's output. ``end``: the unit has ended and ``next_offset`` is behind the last byte."""

    content: bytes
    next_offset: int
    end: bool


Stream = Literal["stdout", "stderr"]


class Runner(Protocol):
    """The engine: starts units on instances by name, and tells what became of them."""

    def observe(self) -> RunnerView:
        """Return every worker's report. Never raises: an engine that is away gives ``reachable=False``."""
        ...

    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        """Start units; repeating it is harmless. Returns one result per unit, ``unknown`` where a worker is silent."""
        ...

    def stop(self, units: Mapping[UnitId, InstanceId], *, cause: FailureCause | None) -> frozenset[UnitId]:
        """Ask units to end (TERM, then KILL after their grace); returns those asked. Not waited for; repeatable.

        A unit whose start has not arrived yet is fenced: it can never start afterwards (its report is ENDED).
        ``cause`` is written into the exit record unless the unit had ended before.
        """
        ...

    def resize(
        self, units: Mapping[UnitId, tuple[InstanceId, Resources]], *, epoch: int = 0
    ) -> Mapping[UnitId, ResizeResult]:
        """Bound running units by other vCPUs and memory from now on; repeating it is harmless. One result per unit.

        Refused where the machine cannot bound units, for units that are not there or have ended, and where one who led
        in a later ``epoch`` has bounded the unit: the call of a daemon that stood still may come late.
        """
        ...

    def renew(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Tell machines their new expiry, which also renews their lease; returns those that took it."""
        ...

    def logs(self, unit: UnitId, instance_id: InstanceId, stream: Stream, offset: int, limit: int) -> LogChunk:
        """Read output from byte ``offset``. Raises WorkerUnreachable, NotFound (unknown unit)."""
        ...

    def forget(self, units: Mapping[UnitId, InstanceId]) -> None:
        """Delete the directories of ended units (their end is recorded and their logs are kept). Best effort."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Say in words what the engine is and where (address, workers, versions)."""
        ...

    def close(self) -> None:
        """Let go of connections; running units go on."""
        ...
