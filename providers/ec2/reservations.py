"""Reserved Instances (a discount) and capacity reservations (guaranteed capacity) of the account.

A zonal Reserved Instance covers its own type in its zone. A regional one covers its whole family in every zone,
weighted by size: a large counts 4, an xlarge 8 ("normalization factors"). AWS applies it to the smallest instances
first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hcloud.core.commitments import last_end_first
from hcloud.core.paging import checked
from hcloud.core.pricing import amortised_usd_per_h
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors

LINUX = frozenset({"Linux/UNIX", "Linux/UNIX (Amazon VPC)"})
_FACTORS = {"nano": 0.25, "micro": 0.5, "small": 1.0, "medium": 2.0, "large": 4.0, "xlarge": 8.0}
_INFLEXIBLE = re.compile(r"(g4ad|g4dn|g5|g5g|g6|g6e|gr6|hpc\w*|inf\d|p[45]\w*|u\w*|trn\w*|dl\w*|vt\w*)")
"""Families without size flexibility: their Reserved Instances cover their own size only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Capacity that is billed whether used or not."""

    id: str
    zone: str
    type_name: str
    left: int
    """How many more instances fit."""
    total: int = 0
    """How many instances it is for."""
    ends_at: float | None = None
    """When it ends; None: when its owner ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedInstances:
    """Reserved Instances of one scope, type and price."""

    zone: str | None
    """The zone it applies to; None for the whole region."""
    type_name: str
    count: int
    usd_per_h: float
    """Amortised price of one instance."""
    ends_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """The account's commitments as last read."""

    reserved: tuple[ReservedInstances, ...] = ()
    capacity: tuple[CapacityReservation, ...] = ()

    def usd_per_h(self, zone: str, type_name: str) -> float | None:
        """Return the amortised price of the Reserved Instances that apply in a zone, or None.

        The highest one if there are several, since AWS does not say which one will cover an instance.
        """
        pool, factor = pool_of(type_name)
        found = [each.usd_per_h for each in self.reserved if (each.zone, each.type_name) == (zone, type_name)]
        for each in (each for each in self.reserved if each.zone is None):
            its_pool, its_factor = pool_of(each.type_name)
            if its_pool == pool:
                found.append(each.usd_per_h * factor / its_factor)
        return max(found, default=None)

    def totals_by_end(self, zone: str, type_name: str) -> list[tuple[float | None, int]]:
        """Return each end of Reserved Instances that apply to a type in a zone, the last end first, with how many
        instances all of this end or a later one cover, used or not."""
        pool, factor = pool_of(type_name)
        zonal, regional = 0, 0.0
        totals = dict[float | None, int]()
        for each in sorted(self.reserved, key=lambda each: last_end_first(each.ends_at)):
            its_pool, its_factor = pool_of(each.type_name)
            if (each.zone, each.type_name) == (zone, type_name):
                zonal += each.count
            elif each.zone is None and its_pool == pool:
                regional += each.count * its_factor
            else:
                continue
            totals[each.ends_at] = zonal + int((regional + 1e-9) / factor)
        return list(totals.items())


class Coverage:
    """Reserved Instances applied to the running instances.

    Regional ones also apply to instances in capacity reservations, zonal ones do not (EC2 user guide, "Capacity
    Reservation pricing and billing").
    """

    def __init__(
        self,
        reservations: Reservations,
        plain: Mapping[tuple[str, str], int],
        in_reservations: Mapping[tuple[str, str], int],
    ) -> None:
        """Apply them to instances by zone and type, without and in capacity reservations."""
        self._zonal: Counter[tuple[str, str]] = Counter()
        self._pools: dict[str, float] = {}
        for each in reservations.reserved:
            if each.zone is not None:
                self._zonal[each.zone, each.type_name] += each.count
            else:
                pool, factor = pool_of(each.type_name)
                self._pools[pool] = self._pools.get(pool, 0.0) + each.count * factor
        self.uncovered: dict[str, float] = {}
        """Instances by type that no Reserved Instance covers."""
        for zone, name in sorted({*plain, *in_reservations}, key=lambda one: (pool_of(one[1])[1], one)):
            self._cover(zone, name, plain.get((zone, name), 0), in_reservations.get((zone, name), 0))

    def left(self, zone: str, type_name: str) -> int:
        """Return how many more instances of a type would be covered in a zone."""
        pool, factor = pool_of(type_name)
        return self._zonal[zone, type_name] + int((self._pools.get(pool, 0.0) + 1e-9) / factor)

    def zonal_left(self, zone: str, type_name: str) -> int:
        """Return how many zonal Reserved Instances of a type cover no instance."""
        return self._zonal[zone, type_name]

    def regional_left(self, pool: str) -> float:
        """Return how much of a family's regional Reserved Instances covers no instance, by normalization factor."""
        return self._pools.get(pool, 0.0)

    def shared(self, zone: str, type_name: str) -> str:
        """Return the name of the pool that the type shares with other zones and sizes;

        "" if it has Reserved Instances alone.
        """
        return "" if self._zonal[zone, type_name] else f"reserved {pool_of(type_name)[0]}"

    def _cover(self, zone: str, name: str, plain: int, in_reservations: int) -> None:
        count, zonal = plain + in_reservations, min(plain, self._zonal[zone, name])
        self._zonal[zone, name] -= zonal
        pool, factor = pool_of(name)
        regional = min(float(count - zonal), self._pools.get(pool, 0.0) / factor)
        if regional:
            self._pools[pool] -= regional * factor
        if count - zonal - regional > 0:
            self.uncovered[name] = self.uncovered.get(name, 0.0) + count - zonal - regional


def pool_of(type_name: str) -> tuple[str, float]:
    """Return the pool of regional Reserved Instances that covers a type, and how much of it one instance uses.

    The pool is the family, by normalization factor. A family or size without size flexibility is its own pool.
    """
    family, _, size = type_name.partition(".")
    several = re.fullmatch(r"(\d+)xlarge", size)
    factor = 8.0 * int(several[1]) if several else _FACTORS.get(size)
    if factor is None or _INFLEXIBLE.fullmatch(family):
        return type_name, 1.0
    return family, factor


def read_reservations(clients: Clients) -> Reservations:
    """Read all commitments. Raises ProviderUnavailable (also without permission), Throttled."""
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
                ends_at=each["End"].timestamp() if each.get("End") else None,
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
    rows = [each for page in checked(pages, "the list of reservations") for each in page["CapacityReservations"]]
    return [
        CapacityReservation(
            id=str(each["CapacityReservationId"]),
            zone=str(each["AvailabilityZone"]),
            type_name=str(each["InstanceType"]),
            left=int(each["AvailableInstanceCount"]),
            total=int(each.get("TotalInstanceCount", each["AvailableInstanceCount"])),
            ends_at=each["EndDate"].timestamp() if each.get("EndDate") else None,
        )
        for each in rows
        if each.get("InstancePlatform", "Linux/UNIX") in LINUX and each.get("Tenancy", "default") == "default"
    ]
