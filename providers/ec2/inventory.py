"""Remaining capacity of the account: quotas, Reserved Instances, capacity reservations and savings plans, less usage.

Launches count as usage from the moment they are sent, because a new instance may be missing from listings for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hcloud.core.commitments import (
    CommitmentKind,
    capacity_by_end,
    joined_by_end,
    last_end_first,
    next_kind,
    parts_by_kind,
)
from hcloud.core.errors import ProviderUnavailable, Throttled
from hcloud.core.model import CommittedCapacity, InstanceType, Market
from providers.ec2.account_usage import RunningInstance, quota_of, read_quotas, read_running, vcpus_used
from providers.ec2.clients import Clients
from providers.ec2.prices import Price
from providers.ec2.reservations import CapacityReservation, Coverage, Reservations, read_reservations
from providers.ec2.savings_plans import PlanBalances, SavingsPlan, read_savings_plans

COMMITMENTS = frozenset({"reservations", "savings plans"})
"""The parts of :attr:`Inventory.read_errors` that are commitments."""
RESERVED, PLANS, CAPACITY = "Reserved Instances", "savings plans", "capacity reservations"
"""Kinds of commitments, as offers name them."""
READ_ERRORS = (ProviderUnavailable, Throttled)
SHOWN_AFTER_S = 120.0
"""How long a new instance may be missing from listings."""


@dataclass(frozen=True, slots=True)
class Prepaid:
    """Prepaid capacity for a type in a zone."""

    next: CommitmentKind
    """What the next instance uses."""
    committed: tuple[CommittedCapacity, ...]
    """The commitments of all kinds."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that was sent and does not appear in the last usage count."""

    zone: str
    type_name: str
    market: Market
    at: float


@dataclass(slots=True)
class Inventory:
    """Remaining capacity as of the last reads. Not thread-safe: the catalog holds its lock."""

    types: Mapping[str, InstanceType] = field(default_factory=dict)
    """Known instance types by name."""
    on_demand: Mapping[str, Price] = field(default_factory=dict)
    """On-demand prices by type."""
    reservations: Reservations = field(default_factory=Reservations)
    plans: tuple[SavingsPlan, ...] = ()
    running: tuple[RunningInstance, ...] = ()
    """Instances of the account in this region, HCloud's and others."""
    quotas: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """vCPU quotas by market and class of types."""
    read_errors: dict[str, str] = field(default_factory=dict)
    """Error messages by the part that could not be read."""
    _launched: dict[str, Launched] = field(default_factory=dict)
    _targeted_reservations: dict[str, str] = field(default_factory=dict)
    """By token, the capacity reservation that launches target which the last read of reservations does not show."""
    _coverage: tuple[Coverage, PlanBalances] | None = None

    # --------------------------------------------------------------------------------------------------------- reading
    def read_quotas(self, clients: Clients) -> None:
        """Read the account's quotas. If that fails, EC2 itself still rejects launches above the quota."""
        self._try("quotas", lambda: setattr(self, "quotas", read_quotas(clients, self.types)))

    def read_running(self, clients: Clients, now: float) -> None:
        """Read the running instances."""
        self._try("running machines", lambda: self._set_running(read_running(clients), now))

    def read(self, clients: Clients, region: str, now: float, *, reserved: bool) -> None:
        """Read usage and, if ``reserved``, commitments. A part that cannot be read keeps its last value."""
        self.read_running(clients, now)
        if reserved:
            self._try("reservations", lambda: self._set_reservations(read_reservations(clients)))
            self._try("savings plans", lambda: setattr(self, "plans", read_savings_plans(clients, region)))
        self._coverage = None

    def _set_reservations(self, reservations: Reservations) -> None:
        self.reservations = reservations
        self._targeted_reservations = {
            token: each for token, each in self._targeted_reservations.items() if token in self._launched
        }

    def _set_running(self, running: tuple[RunningInstance, ...], now: float) -> None:
        # A new instance may be missing from listings for a while; count its launch until it appears.
        self.running, self._coverage = running, None
        shown = {each.token for each in running}
        self._launched = {
            token: each
            for token, each in self._launched.items()
            if token not in shown and now < each.at + SHOWN_AFTER_S
        }

    def _try(self, part: str, read: Callable[[], None]) -> None:
        try:
            read()
            self.read_errors.pop(part, None)
        except READ_ERRORS as trouble:
            self.read_errors[part] = str(trouble)

    # -------------------------------------------------------------------------------------------------------- launches
    def count_launch(self, token: str, launched: Launched) -> None:
        """Count a launch until its instance is listed. A token counts once.

        One of prepaid capacity targets the capacity reservation that ends last of those with free capacity.
        """
        self._launched[token] = launched
        if launched.market is Market.RESERVED:
            reservations = self._free_capacity(launched.zone, launched.type_name)
            reservations.sort(key=lambda each: last_end_first(each[0].ends_at))
            target = next((each for each, free in reservations if free > 0), None)
            if target is not None:
                self._targeted_reservations[token] = target.id
        self._coverage = None

    def uncount_launch(self, token: str) -> None:
        """Stop counting a launch: nothing was launched."""
        self._launched.pop(token, None)
        self._targeted_reservations.pop(token, None)
        self._coverage = None

    def is_counted(self, token: str) -> bool:
        """Return whether a launch with this token is counted already."""
        return token in self._launched

    # -------------------------------------------------------------------------------------------------------- balances
    def prepaid(self, zone: str, type_name: str) -> Prepaid | None:
        """Return the prepaid capacity for a type, or None.

        Reserved Instances come first, then savings plans, then capacity reservations that neither pays for. What the
        former two cover may run in a capacity reservation: their numbers do not add up.
        """
        coverage, savings = self._covered()
        usd, price, plans = (
            self.reservations.usd_per_h(zone, type_name),
            self.on_demand.get(type_name),
            savings.covers(type_name),
        )
        kinds = []
        if usd:
            totals, left = self.reservations.totals_by_end(zone, type_name), coverage.left(zone, type_name)
            pool = coverage.shared(zone, type_name) if left else ""
            kinds.append(CommitmentKind(name=RESERVED, usd_per_h=usd, parts=capacity_by_end(totals, left), pool=pool))
        if plans is not None:
            kinds.append(
                CommitmentKind(name=PLANS, usd_per_h=plans.usd_per_h, parts=plans.committed, pool="savings plans")
            )
        capacity = joined_by_end(
            CommittedCapacity(ends_at=each.ends_at, free=free, used=max(0, each.total - free))
            for each, free in self._free_capacity(zone, type_name)
        )
        if capacity and price is not None:  # a capacity reservation alone is billed at the full price
            kinds.append(CommitmentKind(name=CAPACITY, usd_per_h=price.usd_per_h, parts=capacity))
        chosen = next_kind(kinds)
        return Prepaid(chosen, parts_by_kind(kinds)) if chosen is not None else None

    def may_cover(self, zone: str, type_name: str) -> bool:
        """Return whether a commitment may cover instances of a type, used up or not, or may and could not be read."""
        return not COMMITMENTS.isdisjoint(self.read_errors) or self.prepaid(zone, type_name) is not None

    def capacity_reservation(self, token: str) -> str | None:
        """Return the id of the capacity reservation that a counted launch targets, or None."""
        return self._targeted_reservations.get(token)

    def _free_capacity(self, zone: str, type_name: str) -> list[tuple[CapacityReservation, int]]:
        """Return the capacity reservations of a type, each with how many more instances fit now."""
        return [(each, free) for each, free in self.capacity_left() if (each.zone, each.type_name) == (zone, type_name)]

    def quota_left(self, type_name: str, market: Market) -> int | None:
        """Return how many more instances of a type the quota allows; None if the quota is unknown."""
        key = quota_of(type_name, market)
        limit, vcpus = self.quotas.get(key), self._vcpus().get(type_name)
        if limit is None or not vcpus:
            return None
        used = vcpus_used(self.running, self._vcpus())[key]
        for each in self._launched.values():
            if quota_of(each.type_name, each.market) == key:
                used += self._vcpus().get(each.type_name, 0.0)  # type: ignore[assignment]
        return max(0, int((limit - used) // vcpus))

    def exceeds_quota(self, type_name: str, market: Market) -> bool:
        """Return whether one instance of the type needs more than the whole quota."""
        limit = self.quotas.get(quota_of(type_name, market))
        return limit is not None and self._vcpus().get(type_name, 0.0) > limit

    def _vcpus(self) -> dict[str, float]:
        return {name: each.capacity.vcpus for name, each in self.types.items()}

    def coverage(self) -> Coverage:
        """Return the Reserved Instances as applied to the running and launched instances."""
        return self._covered()[0]

    def plan_balances(self) -> PlanBalances:
        """Return the Savings Plans as charged for the running and launched instances."""
        return self._covered()[1]

    def plans_left(self) -> Mapping[str, float]:
        """Return what is left of each Savings Plan by its id, in USD per hour."""
        return self._covered()[1].left

    def capacity_left(self) -> list[tuple[CapacityReservation, int]]:
        """Return all capacity reservations, each with how many more instances fit now."""
        targeted = Counter(self._targeted_reservations.values())
        return [(each, max(0, each.left - targeted[each.id])) for each in self.reservations.capacity]

    def _covered(self) -> tuple[Coverage, PlanBalances]:
        """Apply reservations, then plans, to the running and launched instances. Cached until either changes."""
        if self._coverage is None:
            plain, in_reservations = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
            for each in self.running:
                if not each.spot:
                    (in_reservations if each.in_capacity_reservation else plain)[each.zone, each.type_name] += 1
            for token, launched in self._launched.items():
                if launched.market is not Market.SPOT:
                    is_targeted = token in self._targeted_reservations
                    (in_reservations if is_targeted else plain)[launched.zone, launched.type_name] += 1
            coverage = Coverage(self.reservations, plain, in_reservations)
            prices = {name: each.usd_per_h for name, each in self.on_demand.items()}
            self._coverage = (coverage, PlanBalances(self.plans, coverage.uncovered, prices))
        return self._coverage
