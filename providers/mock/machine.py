"""One machine of the mock cloud. Its whole life is fixed at launch; its state follows from the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hcloud.core.cpu_topology import typical_topology
from hcloud.core.model import Market, Resources
from hcloud.core.resources import resources_from
from hcloud.provider import CloudInstance, CloudState, SimulatedMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """The true state of a machine, for tests of the mock cloud and reports on it."""

    provider_id: str
    instance_id: str
    token: str
    owner: str
    zone: str
    type_name: str
    market: Market
    state: CloudState
    launched_at: float
    running_at: float | None
    terminated_at: float | None
    expires_at: float
    quality: float
    billed_usd: float
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """A machine with every moment of its life; ``math.inf`` for moments that never come."""

    provider_id: str
    instance_id: str
    token: str
    owner: str
    zone: str
    region: str
    type_name: str
    market: Market
    capacity: Resources
    price_usd_per_h: float
    billing_minimum_s: float
    quality: float
    launched_at: float
    running_at: float
    listed_at: float
    """From when on listings contain it."""
    expires_at: float
    """When it terminates itself, unless renewed."""
    dies_at: float = math.inf
    preempt_at: float = math.inf
    notice_at: float = math.inf
    """From when on listings show ``preempt_at``."""
    stop_asked_at: float = math.inf
    stopped_at: float = math.inf
    """End of a requested termination."""
    lease_ends_at: float = math.inf
    """When it terminates itself without a renewed lease."""
    tags: Mapping[str, str] = field(default_factory=dict)
    reports_cpus: int = 0
    """Logical CPUs of the topology that its worker reports; 0: it reports none."""
    ends_at: float = field(init=False, compare=False, repr=False)
    """When it is TERMINATED and billing ends."""

    def __post_init__(self) -> None:
        """Precompute the end, which is read far more often than rows change."""
        itself_at = min(self.expires_at, self.lease_ends_at)
        ends_at = max(self.launched_at, min(self.stopped_at, self.dies_at, self.preempt_at, itself_at))
        object.__setattr__(self, "ends_at", ends_at)

    def state_at(self, now: float) -> CloudState:
        """Return its state at a time after its launch."""
        if now >= self.ends_at:
            return CloudState.TERMINATED
        if now >= self.stop_asked_at:
            return CloudState.STOPPING
        return CloudState.RUNNING if now >= self.running_at else CloudState.PENDING

    def detail_at(self, now: float) -> str:
        """Return why it ended, or that its termination was requested."""
        if now < self.ends_at:
            return "asked to end" if now >= self.stop_asked_at else ""
        ends = {
            self.stopped_at: "terminated on request",
            self.expires_at: "ended itself at its expiry",
            self.lease_ends_at: "ended itself: its lease was not renewed",
            self.preempt_at: "preempted by the provider",
            self.dies_at: "died",
        }
        return ends.get(self.ends_at, "")

    def changes(self) -> tuple[float, ...]:
        """Return every time at which its listing changes, sorted."""
        times = (self.launched_at, self.listed_at, self.running_at, self.notice_at, self.stop_asked_at, self.ends_at)
        return tuple(sorted({at for at in times if at <= self.ends_at and math.isfinite(at)}))

    def listing_at(self, now: float, price_usd_per_h: float) -> CloudInstance:
        """Return the machine as the cloud lists it at a time."""
        return CloudInstance(
            provider_id=self.provider_id,
            instance_id=self.instance_id,
            token=self.token,
            owner=self.owner,
            state=self.state_at(now),
            zone=self.zone,
            launched_at=self.launched_at,
            price_usd_per_h=price_usd_per_h,
            terminated_at=self.ends_at if self.ends_at <= now else None,
            preempt_at=self.announced_preempt_at(now),
            expires_at=self.expires_at,
            detail=self.detail_at(now),
            market=self.market,
        )

    def announced_preempt_at(self, now: float) -> float | None:
        """Return when it will be preempted, if that has been announced."""
        return self.preempt_at if self.notice_at <= now and math.isfinite(self.preempt_at) else None

    def machine_at(self, now: float) -> SimulatedMachine:
        """Return the machine as the engine on it sees it."""
        return SimulatedMachine(
            instance_id=self.instance_id,
            capacity=self.capacity,
            ready_at=self.running_at,
            expires_at=self.expires_at,
            quality=self.quality,
            preempt_at=self.announced_preempt_at(now),
            type_name=self.type_name,
            market=self.market,
            cpu_topology=typical_topology(self.reports_cpus) if self.reports_cpus else None,
        )

    def record_at(self, now: float, billed_usd: float) -> MachineRecord:
        """Return its true state at a time."""
        return MachineRecord(
            provider_id=self.provider_id,
            instance_id=self.instance_id,
            token=self.token,
            owner=self.owner,
            zone=self.zone,
            type_name=self.type_name,
            market=self.market,
            state=self.state_at(now),
            launched_at=self.launched_at,
            running_at=self.running_at if self.running_at <= min(now, self.ends_at) else None,
            terminated_at=self.ends_at if self.ends_at <= now else None,
            expires_at=self.expires_at,
            quality=self.quality,
            billed_usd=billed_usd,
            detail=self.detail_at(now),
        )

    def billed_until(self, now: float) -> float:
        """Return the end of the billed time as of ``now``: at least the billing minimum after launch."""
        return max(min(now, self.ends_at), self.launched_at + self.billing_minimum_s)

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        row = asdict(self) | {"market": self.market.value, "tags": dict(self.tags)}
        del row["ends_at"]
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> MachineRow:
        """Return the row that :meth:`to_json` wrote."""
        return cls(**{**row, "market": Market(row["market"]), "capacity": resources_from(row["capacity"])})
