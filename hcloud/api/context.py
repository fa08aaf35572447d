"""What the request handlers use of the daemon, and the shapes of its status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from fastapi import Depends, Request

from hcloud.api.auth import Caller
from hcloud.api.telemetry import Telemetry
from hcloud.api.turns import LongWork
from hcloud.buckets import BucketAccess
from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import BadInput, SecretUnreadable
from hcloud.core.estimates import Classification
from hcloud.core.model import InstanceId, Job, JobId, JobSpec, Offer
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.use_history import UseHistory
from hcloud.image_registries import ImageRegistries
from hcloud.planner.due_times import DueTime
from hcloud.planner.plan import PlannedStart, Unprofiled
from hcloud.planner.run_times import NO_RUN_TIMES, RunTimeForecasts
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import Runner
from hcloud.secret_references import SecretReferences
from hcloud.store import Store


class PolicyInForce(TypedDict, total=False):
    """The policy in force."""

    name: str
    digest: str
    path: str
    error: str
    """Why a newer file was rejected, or ""."""


class CycleStatus(TypedDict, total=False):
    """The last cycle."""

    at: float
    duration_s: float
    actions: int
    refused: int
    error: str
    """Its error, or ""."""
    left_out: Mapping[str, str]
    """Jobs, stages and calls in quarantine, with their error."""


class EngineStatus(TypedDict, total=False):
    """The engine as of the last cycle."""

    reachable: bool
    workers: int
    """Workers that answered."""
    silent: int
    """Workers of live instances that did not answer."""
    refused: Mapping[str, int]
    """By kind, how often the gateway refused what came to it since it started."""
    facts: Mapping[str, str]
    """The facts of the ``Runner`` port."""


class ProviderStatus(TypedDict, total=False):
    """One provider as of the last cycle."""

    ok: bool
    error: str
    offers: int
    priced_at: Mapping[str, float]
    """Date of the oldest price offered in each market, Unix seconds."""
    facts: Mapping[str, str]
    """The facts of the ``Provider`` port."""
    stopped: str
    """Why and until when nothing is launched there, whatever the offer; "" if offers are launched."""
    without_wireguard: int
    """How many of its machines report no WireGuard, by which nodes of a gang get a network of their own."""


class TagSpendStatus(TypedDict):
    """Spending on jobs with one tag in this UTC day and month, with its limits (None: no limit)."""

    tag: str
    day_usd: float
    month_usd: float
    per_day_limit_usd: float | None
    per_month_limit_usd: float | None


class SpendStatus(TypedDict, total=False):
    """Spending in this UTC day and month, with the policy's limits (None: no limit)."""

    day_usd: float
    month_usd: float
    per_hour_limit_usd: float | None
    per_day_limit_usd: float | None
    per_month_limit_usd: float | None
    by_tag: Sequence[TagSpendStatus]


class DaemonStatus(TypedDict, total=False):
    """The result of ``ApiContext.status``. Every key may be absent while the daemon starts."""

    started_at: float
    leader: bool
    holder: str
    policy: PolicyInForce
    cycle: CycleStatus
    engine: EngineStatus
    providers: Mapping[str, ProviderStatus]
    spend: SpendStatus
    event_seq: int
    notes: Sequence[str]
    unaccepted_changes: Sequence[str]
    """What would loosen a limit, and waits until an admin accepts it."""


def _accept_nothing(changes: Sequence[str], actor: str) -> None:
    raise BadInput("nothing waits to be accepted")


def _accept_all(specs: Sequence[JobSpec]) -> None:
    pass


def _seal_nothing(user: str, secrets: Mapping[str, str]) -> Mapping[str, str]:
    raise SecretUnreadable("no secrets can be kept here: there is no key")


def _know_nothing(_job: Job) -> None:
    return None


def _classify_nothing(_names: Collection[str]) -> Mapping[str, Classification]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What handlers need of the daemon. Called from several threads at once."""

    store: Store
    runner: Runner
    clock: Clock
    wake: Callable[[], None]
    """Requests a cycle now."""
    status: Callable[[], DaemonStatus]
    offers: Callable[[], Sequence[Offer]]
    """Returns the last known offers, without a cloud call."""
    preview: Callable[[Sequence[JobSpec]], Sequence[Mapping[str, object]]]
    """Runs ``make_plan`` on the live snapshot plus the given jobs and changes nothing.

    Returns one mapping per job, with the keys of :class:`hcloud.api.schemas.PlannedJob`.
    """
    run_times: Callable[[], RunTimeForecasts] = lambda: NO_RUN_TIMES
    """Returns what is known of run times as of the last cycle."""
    expected_run_time: Callable[[Job], RunTimes | None] = _know_nothing
    """Returns the run time that plans count with: by earlier runs of the job's program, or its profile."""
    planned_starts: Callable[[], Mapping[JobId, PlannedStart]] = dict
    """Returns when waiting jobs are to start, by the last plan."""
    unprofiled: Callable[[], Mapping[str, Unprofiled]] = dict
    """Returns why running unknown programs are not profiled, by the last plan."""
    due_times: Callable[[], Mapping[JobId, DueTime]] = dict
    """Returns by when jobs that others wait for must end, as of the last cycle."""
    fair_share: Callable[[JobSpec], str] = lambda spec: ""
    """Returns a sentence about what the owner of a waiting job used lately; "" without fair share."""
    admit: Callable[[Sequence[JobSpec]], None] = _accept_all
    """Raises Refused if policy forbids submitting these jobs."""
    accept: Callable[[Sequence[str], str], None] = _accept_nothing
    """Accepts changes that wait, for an actor. Raises BadInput if other ones wait."""
    seal: Callable[[str, Mapping[str, str]], Mapping[str, str]] = _seal_nothing
    """Encrypts a user's secrets, by name of the variable. Raises SecretUnreadable if the key cannot be used."""
    buckets: BucketAccess | None = None
    """What is in buckets of which users; None: there are none."""
    images: ImageRegistries = field(default_factory=lambda: ImageRegistries(SystemClock(), is_asked=False))
    """Whether container images are there."""
    seen_at: Callable[[], Mapping[InstanceId, float]] = dict
    """Returns when workers last answered (Unix seconds), by instance."""
    snapshot: Callable[[], Snapshot] = lambda: Snapshot(now=0.0)
    """Returns the snapshot that the last plan was made from."""
    classifications: Callable[[Collection[str]], Mapping[str, Classification]] = _classify_nothing
    """Returns what is believed of known applications, by name of their row."""
    socket_path: Path | None = None
    """Where programs on this machine reach the daemon; None: nowhere."""
    uploads_dir: Path
    logs_dir: Path
    outputs_dir: Path
    checkpoints_dir: Path
    readers: frozenset[str] = frozenset()
    """Users who may only read."""
    admins: frozenset[str] = frozenset()
    """Admins in addition to root."""
    check_secrets: Callable[[str, Mapping[str, str]], None] = field(default_factory=lambda: SecretReferences().check)
    """Reads a user's references to secrets once, by name of the variable. Raises BadInput."""
    has_exec: bool = True
    """Whether commands may be run inside running jobs."""
    max_upload_bytes: int = 64 * 2**20
    max_user_upload_bytes: int = 2**30
    """Bytes of all archives of one user."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Counters and histograms of this process."""
    use_history: UseHistory = field(default_factory=UseHistory)
    """How busy machines were over the last day."""
    long_work: LongWork = field(default_factory=LongWork)
    """Runs long computations, a few at once."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set while the server stops: waiting requests are answered at once, and clients retry with the next daemon."""


async def get_context(request: Request) -> ApiContext:
    """Return the context that the application was built with."""
    context: ApiContext = request.app.state.context
    return context


async def get_caller(request: Request) -> Caller:
    """Return the authenticated caller."""
    caller: Caller = request.state.caller
    return caller


Context = Annotated[ApiContext, Depends(get_context)]
CurrentCaller = Annotated[Caller, Depends(get_caller)]
