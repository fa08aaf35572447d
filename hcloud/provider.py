"""The two ports of HCloud: :class:`Provider` rents instances, :class:`Runner` runs programs on them.

Every implementation passes the contract suite of its port (``tests/contract``). Both ports are called from several
threads. A *read* that fails raises or reports a partial result, never an empty one. A *write* is idempotent by its
token; if its outcome is unknown, it raises OutcomeUnknown or returns ``unknown``, and is repeated with the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from hcloud.core.arrays import Interval
from hcloud.core.cpu_topology import CpuTopology
from hcloud.core.estimates import Findings
from hcloud.core.model import (
    MARKED_BY,
    Checkpoint,
    FailureCause,
    Framework,
    InstanceId,
    Market,
    MetricsHook,
    Offer,
    ProfileRequest,
    ProgressHook,
    Resources,
    UnitId,
)
from hcloud.core.resources import GpuDevice
from hcloud.core.task_runs import TaskProgress, UnitTasks

WIREGUARD = "wireguard"
GANG_PORTS = range(51_820, 52_844)
"""UDP ports that hosts of a gang must let each other reach; 51820 is WireGuard's own."""
"""What a worker reports that can connect the nodes of a gang across hosts."""
PAUSED_MOST_S = 3600.0
"""A worker resumes by itself what was paused for so long: the daemon never pauses anything that long."""
MOST_RESERVED = 1_000_000
"""Limit of reserved instances of one type in one place."""


# ------------------------------------------------------------------------------------------------------------ provider
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBootstrap:
    """What a new instance needs to become a worker of this deployment."""

    gateway_addresses: tuple[str, ...]
    """``host:port`` at which instances reach the gateways of all daemons."""
    authority_pem: str
    """Certificate of the deployment's authority, by which instances know the gateway. It is no secret."""
    enrolment_port_offset: int = 1
    """How much higher the port is at which each of them gives new instances their certificate."""
    isolation: Literal["require", "best_effort"] | None = None
    """``require``: refuse units that cannot be isolated; None: providers of rented machines require it."""
    lease_s: float = 600.0
    """Without a renewal for this long, the instance powers itself off."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the worker."""
    enrolment_secret: str = ""
    """With it the instance of one launch gets its first certificate, once."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the agent's archives that the gateway serves, by architecture and Python, as in ``x86_64-3.11``."""

    def at(self, gateway_addresses: Sequence[str] = ()) -> dict[str, list[str]]:
        """Return the addresses of gateways and of enrolment as a bootstrap file has them.

        ``gateway_addresses``: as the instances of one provider reach them, if differently.
        """
        gateways = [*(gateway_addresses or self.gateway_addresses)]
        ports = [each.rpartition(":") for each in gateways]
        enrolment = [f"{host}:{int(port) + self.enrolment_port_offset}" for host, _, port in ports]
        return {"gateway_addresses": gateways, "enrolment_addresses": enrolment}


BootstrapOf = Callable[[str], WorkerBootstrap]
"""Returns what the instance of a launch needs, by that launch's token: the same each time.

Raises ProviderUnavailable: it is not known yet, and the launch is to wait.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One instance to launch."""

    token: str
    """Idempotency token: the same token never launches a second instance."""
    instance_id: InstanceId
    owner: str
    """Value of the owner tag, by which :meth:`Provider.instances` lists."""
    offer: Offer
    expires_at: float
    """When the instance powers itself off, unless it is renewed."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Further tags."""
    bootstrap: WorkerBootstrap | None = None
    """None: start no worker."""


class CloudState(StrEnum):
    """An instance's state according to its provider."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudInstance:
    """An instance according to its provider."""

    provider_id: str
    """The provider's own id."""
    instance_id: InstanceId
    """From its tags, as are ``token`` and ``owner``."""
    token: str
    owner: str
    state: CloudState
    zone: str
    launched_at: float
    """Billing starts here."""
    price_usd_per_h: float
    """Current price."""
    terminated_at: float | None = None
    """Billing ends here."""
    preempt_at: float | None = None
    """When the provider will reclaim it, according to its notice."""
    expires_at: float | None = None
    """When it will power itself off, if the provider knows."""
    detail: str = ""
    """The provider's reason for its state."""
    addresses: tuple[str, ...] | None = ()
    """From which it may connect; None: not known yet; empty: the provider names none, so any will do."""
    market: Market | None = None
    """The market it was launched in, which ``price_usd_per_h`` is of; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The instances with our owner tag. Terminated ones may be listed for a while, or not at all."""

    instances: tuple[CloudInstance, ...]
    complete: bool = True
    """False if a zone or page did not answer: then the absence of an instance means nothing."""
    unanswered: tuple[str, ...] = ()
    """The zones or pages that did not answer."""
    consistent_after_s: float = 0.0
    """An instance launched less than this long ago may be absent even from a complete listing."""


def is_machine(answer: object) -> bool:
    """Return whether a plug-in's result of a launch has the right type."""
    return isinstance(answer, CloudInstance)


def is_listing(answer: object) -> bool:
    """Return whether a plug-in's listing has the right type."""
    return isinstance(answer, Listing) and _are_all(answer.instances, CloudInstance)


def is_offer_list(answer: object) -> bool:
    """Return whether a plug-in's offers have the right type."""
    return isinstance(answer, tuple) and _are_all(answer, Offer)


def _are_all(rows: Iterable[object], kind: type) -> bool:
    return all(issubclass(each, kind) for each in set(map(type, rows)))


class Provider(Protocol):
    """A source of instances; its entry point is a :class:`ProviderFactory`.

    The optional attribute ``launches_at_once`` is the number of concurrent calls of ``launch``; without it, launches
    are made one after the other.
    """

    name: str

    def offers(self) -> tuple[Offer, ...]:
        """Return the instances that can be launched, sorted by key. Raises ProviderUnavailable, Throttled."""
        ...

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one instance, or return the one that this token launched before, even if it has ended since.

        Raises:
            InsufficientCapacity, QuotaExceeded, LaunchRejected, Throttled: certainly not launched.
            OutcomeUnknown: repeat with the same token.
            ProviderUnavailable: certainly not sent.
        """
        ...

    def instances(self, owner: str) -> Listing:
        """List instances by owner tag. Raises ProviderUnavailable, Throttled."""
        ...

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Start terminating instances; ids that have ended or are unknown are no error. Raises like ``launch``."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Return sentences about what works here and what does not, such as the isolation in force, by topic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of a provider account."""

    check: str
    """Name of the check."""
    verdict: Literal["ok", "warn", "fail"]
    finding: str
    """What was found, in one sentence."""
    do: str = ""
    """What would fix it; empty if nothing is wrong."""


@runtime_checkable
class Examinable(Protocol):
    """A provider that can check its account: credentials, single permissions, quotas, image, clock."""

    def examine(self) -> Sequence[Finding]:
        """Check, without side effects, everything that the provider needs.

        Never raises ProviderError: failures are findings. Missing permissions are named as the cloud names them.
        """
        ...


@runtime_checkable
class ImageSupport(Protocol):
    """A provider that can know that none of its instances will run container images."""

    def why_no_images(self) -> str:
        """Return why no instance can run a container image; empty if one may. Makes no calls."""
        ...


@runtime_checkable
class GangNetworkSupport(Protocol):
    """A provider whose instances are all on one host, where nodes of a gang share a network, and need no addresses.

    Nodes on instances of any other provider reach each other by the addresses that it names, so where it names none
    a gang of several instances is refused."""

    def why_no_gang_network(self) -> str:
        """Return why they can have no network of their own; empty if they can. Makes no calls."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentUse:
    """A commitment of the account, which is paid for whether used or not, and how much of it no machine uses."""

    name: str
    """Unique within the provider: ``zone/type`` if it is for one type in one zone."""
    count: float
    """Size: machines of a type; 1 for a commitment to spend or to resources."""
    unused: float
    """How much of ``count`` no machine of the account uses now."""
    usd_per_h: float
    """Amortised price per hour of one of ``count``."""
    ends_at: float | None = None
    """When it ends; None: not known, or never."""


@runtime_checkable
class CommitmentSource(Protocol):
    """A provider that can list the account's commitments."""

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return the commitments by kind, as of the last call of ``offers``. Makes no calls.

        A kind that could not be read is absent; without any commitment it has an empty sequence.
        """
        ...


def is_commitment_mapping(answer: object) -> bool:
    """Return whether a plug-in's commitments have the right type."""
    return isinstance(answer, Mapping) and all(
        isinstance(kind, str) and all(isinstance(each, CommitmentUse) for each in found)
        for kind, found in answer.items()
    )


@runtime_checkable
class PriceFeed(Protocol):
    """A provider that knows by itself when prices of this owner's instances change, so that none is charged late."""

    def price_changed_at(self) -> float:
        """Return when the price of an instance that is up last changed (Unix seconds); minus infinity if none has.

        Makes no calls. The next listing has the new price.
        """
        ...


class ProviderFactory(Protocol):
    """The class or function that an entry point of the group ``hcloud.providers`` names.

    Raises ConfigError for unknown settings, naming the key and the closest known one. The optional static method
    ``check_settings(name, settings)`` raises the same without building anything, for ``hcloud config check``.
    """

    def __call__(
        self, name: str, settings: Mapping[str, object], clock: object, owner: str, state_dir: str
    ) -> Provider:
        """Build the provider. ``state_dir`` is a private, persistent directory for its own files."""
        ...


# ------------------------------------------------------------------------------------------------ simulated instances
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """A running simulated instance, as a fake engine sees it."""

    instance_id: InstanceId
    capacity: Resources
    ready_at: float
    expires_at: float
    quality: float = 1.0
    """Speed factor around 1."""
    preempt_at: float | None = None
    type_name: str = ""
    market: Market = Market.ON_DEMAND
    cpu_topology: CpuTopology | None = None
    """None: it reports none."""


class Journal(Protocol):
    """Persistent rows by name, for simulated state that survives a killed process; the last row of a name counts."""

    def hold(self) -> AbstractContextManager[Mapping[str, object]]:
        """Lock out all other threads and processes; enters with the rows that others wrote since the last time."""
        ...

    def write(self, rows: Mapping[str, object]) -> None:
        """Write rows of JSON values atomically; only while the lock is held."""
        ...


@runtime_checkable
class MachineSource(Protocol):
    """The source of the instances of a fake engine; a simulated Provider is one."""

    def running(self, now: float) -> Mapping[InstanceId, SimulatedMachine]:
        """Return the instances that are running at ``now``; the same object while nothing has changed."""
        ...

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Set the expiry of instances; return those that are running and accepted it."""
        ...

    def journal(self, name: str) -> Journal | None:
        """Return the engine's journal for its units, or None if they are kept in memory only."""
        ...


# -------------------------------------------------------------------------------------------------------------- runner
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """One rank of an attempt, as the engine starts it; the fields mirror :class:`hcloud.core.model.JobSpec`."""

    id: UnitId
    """The fence: at most one unit is ever started per id."""
    instance_id: InstanceId
    rank: int
    command: tuple[str, ...]
    resources: Resources
    image: str | None = None
    setup: str | None = None
    workdir: str | None = None
    """Path of the uploaded archive (tar.gz) on the daemon's host; the unit starts in a copy of its content."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The engine adds HCLOUD_UNIT_ID, HCLOUD_RANK and HCLOUD_PEERS (comma-separated)."""
    secrets: tuple[str, ...] = ()
    """Names in ``env`` whose values a runner never writes to a disk."""
    network: Literal["none", "host"] = "none"
    peers: tuple[InstanceId, ...] = ()
    """Instances of all ranks, in order."""
    max_runtime_s: float | None = None
    stop_grace_s: float = 10.0
    progress: ProgressHook | None = None
    metrics: MetricsHook | None = None
    profile: ProfileRequest | None = None
    """If set, the unit measures the command instead of running it once; the findings are in its exit record."""
    refusal: str = ""
    """Why the unit must never start; the runner refuses it with this text, unless it was started before."""
    refusal_cause: FailureCause = FailureCause.START_REFUSED
    """The cause of failure that goes with it."""
    inputs: str | None = None
    """Path of a list (JSON) on the daemon's host of what its machine fetches into the work directory."""
    outputs: tuple[str, ...] = ()
    """Patterns of files below its work directory that are wanted once it has ended."""
    bucket_outputs: tuple[str, ...] = ()
    """Patterns of files that are to go to buckets once it has ended."""
    checkpoint: Checkpoint | None = None
    tasks: UnitTasks | None = None
    """Tasks that run one after the other instead of the command once; ``max_runtime_s`` holds for each of them."""
    restore: str | None = None
    """Path of an archive (tar) on the daemon's host, from the last checkpoint, unpacked over the work directory."""
    cpus: tuple[int, ...] = ()
    """The CPUs of its instance that it is pinned to; empty: any of them."""
    gpus: tuple[int, ...] = ()
    """The GPUs of its instance that it has to itself, by number from 0; it finds no others."""
    framework: Framework | None = None
    """The engine in which the command runs, on all ranks together."""
    addresses: tuple[str, ...] = ()
    """Where the ranks of a ``framework`` reach each other, in their order."""


def unmarked(unit: UnitId) -> str:
    """Return a unit's id without the mark of its attempt: ``job-<n>.<k>.<rank>``."""
    return unit.partition(MARKED_BY)[0]


class UnitState(StrEnum):
    """A unit's state according to the engine."""

    STARTING = "starting"  # its directory exists, so no other start can succeed; setup may be running
    RUNNING = "running"
    ENDED = "ended"  # its exit record is on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSample:
    """A unit's resource use and performance at one time; None: not measured here."""

    at: float
    cpu_s: float | None = None
    """CPU time since the start."""
    taken_s: float | None = None
    """CPU time since the start that the host gave to others although the unit wanted and was promised it."""
    memory_mib: float | None = None
    read_mib: float | None = None
    """Total since the start."""
    written_mib: float | None = None
    """Total since the start."""
    progress: float | None = None
    """0..1."""
    requests_per_s: float | None = None
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """Latency over the last interval by percentile ("50", "99")."""
    cpus: tuple[int, ...] = ()
    """The CPUs on which its processes may run; empty: all of the instance, or not known."""
    paused_s: float = 0.0
    """How long it was paused since its start, in sum."""
    looks: int = 1
    """Readings that this sample stands for: workers omit readings of a unit that continues steadily."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What became of a command that was run inside a unit."""

    exit_code: int | None
    """None: it was killed when its time was over."""
    stdout: bytes
    stderr: bytes
    is_cut: bool = False
    """Whether there was more output than is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a unit ended; the worker writes it to disk before it reports the end."""

    exit_code: int | None
    cause: FailureCause | None
    """None: success."""
    started_at: float
    ended_at: float
    detail: str = ""
    cpu_s: float | None = None
    memory_mib_max: float | None = None
    findings: Findings | None = None
    """Measurements of a profiling run, also of one that failed or was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """One unit as its worker reports it."""

    id: UnitId
    state: UnitState
    started_at: float | None = None
    sample: UnitSample | None = None
    exit: ExitRecord | None = None
    wrote: tuple[UnitStream, ...] | None = None
    """The streams to which an ended unit has written anything; None: not known."""
    tasks: TaskProgress | None = None
    """What became of its tasks so far; None: it runs no tasks, or says nothing of them yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One registered worker."""

    instance_id: InstanceId
    units: tuple[UnitReport, ...]
    """All units with a directory on the instance, ended ones included."""
    isolation: tuple[str, ...] = ()
    """The isolation in force ("cgroup1", "bwrap", ...), and WIREGUARD."""
    preempt_at: float | None = None
    """A preemption notice that the instance itself received."""
    cpu_topology: CpuTopology | None = None
    """None: it reports none, or one that cannot be."""
    gpus: tuple[GpuDevice, ...] = ()
    """The GPUs that its driver shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """The engine's state. Instances in neither ``workers`` nor ``silent`` have not registered."""

    workers: tuple[WorkerReport, ...]
    silent: frozenset[InstanceId] = frozenset()
    """Registered workers that did not answer: nothing can be concluded about their units."""
    reachable: bool = True
    """False if the engine itself did not answer: nothing at all can be concluded."""
    answered: frozenset[UnitId] = frozenset()
    """Units whose pending start or resize has been answered: the next call for them returns how."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By kind, how often the engine refused what came to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """The outcome of a start."""

    outcome: Literal["started", "refused", "unknown", "pending", "not_sent"]
    """``started``: now or by an earlier call; ``refused``: not started, and no later call with this id will be;
    ``unknown``: it may start, repeat; ``pending``: it goes on, and a later call returns how; ``not_sent``: this call
    certainly started nothing, as the worker does not respond."""
    detail: str = ""
    """Why it was refused, or not sent."""
    cause: FailureCause = FailureCause.START_REFUSED
    """The cause of failure of a unit that was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeResult:
    """The outcome of a resize."""

    outcome: Literal["resized", "refused", "unknown"]
    """``resized``: now or by an earlier call; ``refused``: not resized, do not repeat; ``unknown``: repeat."""
    detail: str = ""
    """Why it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseResult:
    """The outcome of pausing or resuming a unit."""

    outcome: Literal["done", "refused", "unknown"]
    """``done``: it is as wanted, or soon; ``refused``: it is as before, do not repeat; ``unknown``: repeat."""
    detail: str = ""
    """Why it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a unit's output."""

    content: bytes
    next_offset: int
    """Where to continue reading."""
    end: bool
    """The unit has ended, and there is no more output."""


Stream = Literal["stdout", "stderr"]
UnitStream = Literal["stdout", "stderr", "tasks"]
"""``tasks``: where the output of each task of a unit is (:mod:`hcloud.engine.task_log`); others have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """Which part of a unit's output is to be read."""

    unit: UnitId
    instance_id: InstanceId
    stream: UnitStream
    offset: int
    """The first byte."""
    limit: int
    """The number of bytes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsManifest:
    """What an ended unit left of the files its job wants back."""

    files: int = 0
    bytes: int = 0
    """Size of the archive (tar); 0: there is none."""
    sha256: str = ""
    """Of the archive, in hexadecimal."""
    note: str = ""
    """What is missing and why, in one sentence; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsPiece:
    """A piece of the archive of a unit's outputs."""

    content: Iterable[bytes]
    """Its parts, in order, some of which may still come: then iterating raises WorkerUnreachable if they do not."""
    manifest: OutputsManifest | None
    """Of the whole; None: it is not packed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadState:
    """How far a machine is with sending files to a bucket."""

    sent: int | None
    """Files that arrived; None: it is still sending."""
    problem: str = ""
    """Why the first other file did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedMachine:
    """An instance whose worker may connect."""

    instance_id: InstanceId
    launch_token: str
    has_registered: bool
    """Whether its worker has ever answered."""
    addresses: tuple[str, ...] | None
    """As in :class:`CloudInstance`."""


class Runner(Protocol):
    """The engine: starts units on instances and reports their state.

    Between two calls of ``observe``, ``start``, ``stop``, ``resize``, ``pause``, ``renew``, ``read_logs`` and
    ``forget`` together wait a fraction of a second for answers, whatever hangs. What is unanswered by then goes on, is
    not sent again while it does, and its answer is returned by the next equal call.
    """

    def observe(self) -> RunnerView:
        """Return the reports of all workers. Never raises; sets ``reachable=False`` if the engine does not answer."""
        ...

    def admit(self, machines: Sequence[AdmittedMachine]) -> None:
        """Let the workers of these instances connect, and no others; each leading daemon repeats it in every cycle.

        Never raises: while the engine does not answer, :meth:`observe` says so.
        """
        ...

    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        """Start units; idempotent. Returns one result per unit. Nothing is sent to a worker that does not respond."""
        ...

    def stop(
        self,
        units: Mapping[UnitId, InstanceId],
        *,
        cause: FailureCause | None,
        tasks: Mapping[UnitId, tuple[Interval, ...]] | None = None,
    ) -> frozenset[UnitId]:
        """Stop units (SIGTERM, after their grace SIGKILL) without waiting; idempotent. Returns those that were reached.

        If a unit's start has not arrived yet, the unit is fenced: it can never start, and is reported as ENDED.
        ``cause`` goes into the exit record, unless the unit had ended before. ``tasks``: of units that run many, the
        positions of those that are to be stopped; another one that runs ends first, and no further one begins.
        """
        ...

    def resize(
        self,
        units: Mapping[UnitId, tuple[InstanceId, Resources]],
        *,
        cpus: Mapping[UnitId, tuple[int, ...]] | None = None,
        epoch: int = 0,
    ) -> Mapping[UnitId, ResizeResult]:
        """Change the vCPU and memory limits of running units; idempotent. Returns one result per unit.

        ``cpus``: by unit that is to be pinned, the CPUs of its instance; empty: any of them. Units that are absent
        stay where they are.

        Refused if the instance cannot enforce limits or has no such CPUs, if the unit is unknown or has ended, or if a
        later leader ``epoch`` has already resized it: a suspended daemon's call may arrive late.
        """
        ...

    def pause(self, units: Mapping[UnitId, tuple[InstanceId, bool]], *, epoch: int = 0) -> Mapping[UnitId, PauseResult]:
        """Pause running units (True) or let them run again (False); idempotent. Returns one result per unit.

        A paused unit keeps its memory and files and gets no CPU time. Its time limit does not count that time. A stop
        ends it as any other. Its worker resumes it by itself after ``PAUSED_MOST_S``, in case no daemon is left.

        Refused if the unit is unknown, has ended, runs tasks or a measurement, or if a later leader ``epoch`` has
        already changed it.
        """
        ...

    def renew(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Send instances their new expiry, which renews their lease; return those that accepted it."""
        ...

    def logs(self, unit: UnitId, instance_id: InstanceId, stream: UnitStream, offset: int, limit: int) -> LogChunk:
        """Return up to ``limit`` bytes of output from ``offset``, for as long as the worker takes.

        Raises WorkerUnreachable, NotFound (unknown unit).
        """
        ...

    def read_logs(self, pieces: Sequence[LogPiece]) -> Mapping[LogPiece, LogChunk]:
        """Return the pieces of output that are here by now, of an unknown unit its end; ask again for the others."""
        ...

    def read_outputs(self, unit: UnitId, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Return a piece of what an ended unit left; of an unknown unit, that it left nothing. May take long.

        Without a manifest, more is to be asked for; it may come only after all content.

        Raises:
            WorkerUnreachable: it does not answer now.
        """
        ...

    def read_checkpoint(
        self, unit: UnitId, instance_id: InstanceId, number: int, offset: int, limit: int
    ) -> OutputsPiece:
        """Return a piece of what a unit keeps for its next attempt, packed when ``number`` was first asked for.

        Numbers only grow. Of an unknown unit: that there is nothing. May take long.

        Raises:
            WorkerUnreachable: it does not answer now.
        """
        ...

    def execute(self, unit: UnitId, instance_id: InstanceId, command: Sequence[str], timeout_s: float) -> CommandResult:
        """Run a command beside what a running unit runs, with its view and limits, for at most ``timeout_s``.

        Raises:
            UnitRefused: it was not run: the unit does not run, or cannot be entered there.
            WorkerUnreachable: it may or may not have been run.
        """
        ...

    def forget(self, units: Mapping[UnitId, InstanceId]) -> None:
        """Delete the directories of ended units, after their end and logs were recorded; best effort."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Return sentences about the engine, such as address, workers and versions, by topic."""
        ...

    def close(self) -> None:
        """Close connections; running units continue."""
        ...


@runtime_checkable
class ArchiveSource(Protocol):
    """A Runner whose engine serves archives of the agent to new instances."""

    def agents(self) -> Mapping[str, str] | None:
        """Return their SHA-256 by architecture and Python, as in ``x86_64-3.11``; None: not known yet."""
        ...


@runtime_checkable
class NewsSource(Protocol):
    """A runner that says when there is something new, so that it need not be asked again and again."""

    def await_news(self, timeout_s: float) -> bool:
        """Wait until a unit began or ended, a worker came or went, or an instance is to be preempted, since the call
        before; False after ``timeout_s``. Raises WorkerUnreachable if the engine does not answer."""
        ...


@runtime_checkable
class BucketSender(Protocol):
    """A runner whose machines can send files of ended units to buckets."""

    def read_listing(self, unit: UnitId, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Return a piece of the list of a unit's files that ``bucket_outputs`` match, a JSON object per line.

        Raises WorkerUnreachable.
        """
        ...

    def send_outputs(self, unit: UnitId, instance_id: InstanceId, listed: str) -> UploadState:
        """Have files sent by the URLs of a list (path of a JSON file), or return how that goes.

        Raises WorkerUnreachable, OSError.
        """
        ...
