"""What the handlers need of the daemon, and the shapes in which the daemon hands it to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from fastapi import Depends, Request

from hcloud.api.auth import Caller
from hcloud.core.clock import Clock
from hcloud.core.model import InstanceId, JobSpec, Offer
from hcloud.provider import Runner
from hcloud.store import Store


class PolicyInForce(TypedDict, total=False):
    """The policy in force. ``error`` says why a newer file was not taken ("" when it was)."""

    name: str
    digest: str
    path: str
    error: str


class CycleStatus(TypedDict, total=False):
    """The last cycle. ``error`` is "" when it went through; ``left_out``: what HCloud fails on."""

    at: float
    duration_s: float
    actions: int
    refused: int
    error: str
    left_out: Mapping[str, str]


class EngineStatus(TypedDict, total=False):
    """What the engine said last; ``facts`` is ``Runner.facts()``."""

    reachable: bool
    workers: int
    silent: int
    facts: Mapping[str, str]


class ProviderStatus(TypedDict, total=False):
    """What one provider said last; ``facts`` is ``Provider.facts()``."""

    ok: bool
    error: str
    offers: int
    facts: Mapping[str, str]


class SpendStatus(TypedDict, total=False):
    """Money so far in this UTC day and month, with the policy's limits (None: no limit)."""

    day_usd: float
    month_usd: float
    per_hour_limit_usd: float | None
    per_day_limit_usd: float | None
    per_month_limit_usd: float | None


class DaemonStatus(TypedDict, total=False):
    """What ``Desk.status`` returns; every key may be absent while the daemon starts."""

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


def _admit_everything(specs: Sequence[JobSpec]) -> None:
    """Stand in where no policy limits submissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What handlers need. Called from several threads at once.

    ``wake`` asks for a cycle now. ``offers`` returns the last known offers (no cloud call).
    ``preview`` runs ``make_plan`` on the live snapshot plus the given jobs and returns the outcome of each, in order,
    with the keys of :class:`hcloud.api.schemas.PlannedJob`; it changes nothing. ``admit`` raises Refused when policy
    forbids submitting these. ``seen_at``: when workers last answered. ``readers`` and ``admins`` are user names;
    root and the daemon's own user are admins.
    """

    store: Store
    runner: Runner
    clock: Clock
    wake: Callable[[], None]
    status: Callable[[], DaemonStatus]
    offers: Callable[[], Sequence[Offer]]
    preview: Callable[[Sequence[JobSpec]], Sequence[Mapping[str, object]]]
    admit: Callable[[Sequence[JobSpec]], None] = _admit_everything
    seen_at: Callable[[], Mapping[InstanceId, float]] = dict
    uploads_dir: Path
    logs_dir: Path
    readers: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    max_upload_bytes: int = 64 * 2**20
    closing: threading.Event = field(default_factory=threading.Event)
    """Set while the server stops: those who wait are answered at once, and ask the next daemon."""


async def get_context(request: Request) -> ApiContext:
    """Return the context the app was built with."""
    context: ApiContext = request.app.state.context
    return context


async def the_caller(request: Request) -> Caller:
    """Return the caller that authentication let in."""
    caller: Caller = request.state.caller
    return caller


Context = Annotated[ApiContext, Depends(get_context)]
TheCaller = Annotated[Caller, Depends(the_caller)]
