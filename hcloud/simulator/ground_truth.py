"""What only the virtual world knows, and what one look at a deployment needs to be held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hcloud.core.model import Market
from hcloud.planner.snapshot import Spend
from hcloud.provider import LaunchRequest, MachineSource, Provider
from hcloud.store import LiveView

SELF_TERMINATED = "ended itself"
"""How a virtual cloud begins to tell of a machine that nobody asked to end."""
TERMINATED_ON_REQUEST = ("asked to end", "terminated on request")
"""How it tells of one that somebody asked."""


class MachineTruth(Protocol):
    """What the cloud itself knows of a machine."""

    provider_id: str
    instance_id: str
    token: str
    owner: str
    zone: str
    type_name: str
    market: Market
    launched_at: float
    terminated_at: float | None
    expires_at: float
    billed_usd: float
    detail: str


class VirtualCloud(Provider, MachineSource, Protocol):
    """A mock provider, with the queries and commands that only a virtual cloud has."""

    def machines(self, now: float) -> Sequence[MachineTruth]:
        """Return every machine ever launched, of all owners, as of ``now``."""
        ...

    def appear(self, request: LaunchRequest) -> str:
        """Launch a machine as another tenant; return its provider id."""
        ...

    def kill(self, provider_id: str) -> None:
        """Let a machine die now."""
        ...

    def preempt(self, provider_id: str, notice_s: float | None = None) -> None:
        """Announce that a machine is taken back."""
        ...

    def next_event_at(self) -> float | None:
        """Return when a machine next changes by itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpend:
    """What a daemon took for spent ``at`` its time, having read the log up to event ``seq``."""

    spend: Spend
    at: float
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleContext:
    """What one look needs besides the store: the world's time, and whether the last cycle went through undisturbed."""

    now: float
    live: LiveView
    undisturbed: bool = False
    paused: bool = False
    """An operator's pause was in force all through the last cycle."""
    reachable: frozenset[str] = frozenset()
    """The machines whose workers answered in the last cycle."""
    daemon_spend: DaemonSpend | None = None
