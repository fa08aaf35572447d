"""What a simulated cloud knows about its machines, and what a check of a deployment needs after each cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hcloud.core.model import Market
from hcloud.planner.snapshot import Spend
from hcloud.provider import LaunchRequest, MachineSource, Provider
from hcloud.store import LiveView

SELF_TERMINATED = "ended itself"
"""Prefix of a machine's ``detail`` where no caller asked to terminate it."""
TERMINATED_ON_REQUEST = ("asked to end", "terminated on request")
"""Values of a machine's ``detail`` where a caller asked to terminate it."""


class MachineTruth(Protocol):
    """One machine as the cloud itself knows it. Times are Unix seconds."""

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
    """A mock provider with the queries and commands that only a simulated cloud has."""

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
        """Announce the preemption of a machine."""
        ...

    def next_event_at(self) -> float | None:
        """Return when a machine next changes by itself; None if none will."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpend:
    """What a daemon believed was spent."""

    spend: Spend
    at: float
    """By the daemon's clock."""
    seq: int
    """The last event it had read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleContext:
    """What a check needs besides the store after one cycle."""

    now: float
    """The simulated time."""
    live: LiveView
    """The live rows as the daemon has them cached."""
    undisturbed: bool = False
    """No fault interrupted the last cycle."""
    paused: bool = False
    """An operator's pause was in force throughout the last cycle."""
    reachable: frozenset[str] = frozenset()
    """The machines with a worker that answered in the last cycle."""
    daemon_spend: DaemonSpend | None = None
    """None if the cycle was disturbed."""
