"""What the account has reserved: Reserved Instances (a discount) and capacity reservations (room).

A zonal Reserved Instance covers its own type in its zone. A regional one covers its whole family in every zone, by
size: a large counts two, an xlarge four ("normalization factors"), smallest machines first, as Amazon applies them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hcloud.core.pricing import amortised_usd_per_h
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors

LINUX = frozenset({"Linux/UNIX", "Linux/UNIX (Amazon VPC)"})
_FACTORS = {"nano": 0.25, "micro": 0.5, "small": 1.0, "medium": 2.0, "large": 4.0, "xlarge": 8.0}
_INFLEXIBLE = re.compile(r"(g4ad|g4dn|g5|g5g|g6|g6e|gr6|hpc\w*|inf\d|p[45]\w*|u\w*|trn\w*|dl\w*|vt\w*)")
"""Families whose Reserved Instances cover their own size only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Room for machines that is paid whether used or not; ``left`` more fit in."""

    id: str
    zone: str
    type_name: str
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedInstances:
    """Reserved Instances of one scope (a zone, or None for the region), type and price."""

    zone: str | None
    type_name: str
    count: int
    usd_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """As last read."""

    reserved: tuple[ReservedInstances, ...] = ()
    capacity: tuple[CapacityReservation, ...] = ()

    def capacity_reservation(self, zone: str, type_name: str) -> CapacityReservation | None:
        """Return a capacity reservation with room."""
        return next((each for each in self._capacity_of(zone, type_name) if each.left > 0), None)

    def has_capacity_reservation(self, zone: str, type_name: str) -> bool:
        """Whether there is a capacity reservation at all, full or not."""
        return bool(self._capacity_of(zone, type_name))

    def capacity_left(self, zone: str, type_name: str) -> int:
        """Return how many machines fit into capacity reservations."""
        return sum(each.left for each in self._capacity_of(zone, type_name))

    def usd_per_h(self, zone: str, type_name: str) -> float | None:
        """Return the amortised price of Reserved Instances that count in a zone (the dearest: none is promised)."""
        pool, factor = pool_of(type_name)
        found = [each.usd_per_h for each in self.reserved if (each.zone, each.type_name) == (zone, type_name)]
        for each in (each for each in self.reserved if each.zone is None):
            its_pool, its_factor = pool_of(each.type_name)
            if its_pool == pool:
                found.append(each.usd_per_h * factor / its_factor)
        return max(found, default=None)

    def _capacity_of(self, zone: str, type_name: str) -> list[CapacityReservation]:
        return [each for each in self.capacity if (each.zone, each.type_name) == (zone, type_name)]


class Coverage:
    """Reserved Instances spread over what runs. ``uncovered``: machines by type that none of them covers."""

    def __init__(self, reservations: Reservations, running: Mapping[tuple[str, str], int]) -> None:
        """``running``: machines by zone and type that may use Reserved Instances."""
        self._zonal: Counter[tuple[str, str]] = Counter()
        self._pools: dict[str, float] = {}
        for each in reservations.reserved:
            if each.zone is not None:
                self._zonal[each.zone, each.type_name] += each.count
            else:
                pool, factor = pool_of(each.type_name)
                self._pools[pool] = self._pools.get(pool, 0.0) + each.count * factor
        self.uncovered: dict[str, float] = {}
        for (zone, name), count in sorted(running.items(), key=lambda one: (pool_of(one[0][1])[1], one[0])):
            self._cover(zone, name, count)

    def left(self, zone: str, type_name: str) -> int:
        """Return how many more machines would be covered in a zone."""
        pool, factor = pool_of(type_name)
        return self._zonal[zone, type_name] + int((self._pools.get(pool, 0.0) + 1e-9) / factor)

    def shared(self, zone: str, type_name: str) -> str:
        """Return the name of what machines of this type share with other zones and sizes; "": theirs alone."""
        return "" if self._zonal[zone, type_name] else f"reserved {pool_of(type_name)[0]}"

    def _cover(self, zone: str, name: str, count: int) -> None:
        zonal = min(count, self._zonal[zone, name])
        self._zonal[zone, name] -= zonal
        pool, factor = pool_of(name)
        regional = min(float(count - zonal), self._pools.get(pool, 0.0) / factor)
        if regional:
            self._pools[pool] -= regional * factor
        if count - zonal - regional > 0:
            self.uncovered[name] = self.uncovered.get(name, 0.0) + count - zonal - regional


def pool_of(type_name: str) -> tuple[str, float]:
    """Return what regional Reserved Instances of a type are shared with, and how much of it one machine takes.

    That is its family by size; a family or size without that rule is shared with nothing but the type itself.
    """
    family, _, size = type_name.partition(".")
    several = re.fullmatch(r"(\d+)xlarge", size)
    factor = 8.0 * int(several[1]) if several else _FACTORS.get(size)
    if factor is None or _INFLEXIBLE.fullmatch(family):
        return type_name, 1.0
    return family, factor


def read_reservations(clients: Clients) -> Reservations:
    """Ask for all of it. Raises ProviderUnavailable (also: not allowed to), Throttled."""
    with translating_errors(Call.READ, "reading reservations"):
        return Reservations(
            reserved=tuple(_reserved_instances(clients)), capacity=tuple(_capacity_reservations(clients))
        )


def _reserved_instances(clients: Clients) -> list[ReservedInstances]:
    answer = clients.reading().describe_reserved_instances(Filters=[{"Name": "state", "Values": ["active"]}])
    found = []
    for each in answer["ReservedInstances"]:
        if each.get("ProductDescription") not in LINUX or each.get("InstanceTenancy", "default") != "default":
            continue
        zone = each.get("AvailabilityZone") if each.get("Scope") == "Availability Zone" else None
        found.append(
            ReservedInstances(
                zone=zone,
                type_name=str(each["InstanceType"]),
                count=int(each["InstanceCount"]),
                usd_per_h=_amortised(each),
            )
        )
    return found


def _amortised(reserved: Mapping[str, Any]) -> float:
    recurring = sum(float(c["Amount"]) for c in reserved.get("RecurringCharges", ()) if c.get("Frequency") == "Hourly")
    hourly = float(reserved.get("UsagePrice") or 0.0) + recurring
    return amortised_usd_per_h(
        upfront_usd=float(reserved.get("FixedPrice") or 0.0), usd_per_h=hourly, term_s=float(reserved["Duration"])
    )


def _capacity_reservations(clients: Clients) -> list[CapacityReservation]:
    pages = (
        clients.reading()
        .get_paginator("describe_capacity_reservations")
        .paginate(Filters=[{"Name": "state", "Values": ["active"]}])
    )
    rows = [each for page in pages for each in page["CapacityReservations"]]
    return [
        CapacityReservation(
            id=str(each["CapacityReservationId"]),
            zone=str(each["AvailabilityZone"]),
            type_name=str(each["InstanceType"]),
            left=int(each["AvailableInstanceCount"]),
        )
        for each in rows
        if each.get("InstancePlatform", "Linux/UNIX") in LINUX and each.get("Tenancy", "default") == "default"
    ]
