"""What the account has reserved: Reserved Instances (a discount) and capacity reservations (room)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hcloud.pricing import amortised_usd_per_h
from providers.ec2.clients import Clients
from providers.ec2.failures import Call, calling

LINUX = frozenset({"Linux/UNIX", "Linux/UNIX (Amazon VPC)"})
_PLAIN = {"Name": "tenancy", "Values": ["default"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Room for machines that is paid whether used or not; ``left`` more fit in."""

    id: str
    zone: str
    type_name: str
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Reserved Instances of one scope (a zone, or None for the region), type and price."""

    zone: str | None
    type_name: str
    count: int
    usd_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """As last read. ``running`` counts the account's machines by zone and type that use up Reserved Instances."""

    reserved: tuple[Reserved, ...] = ()
    rooms: tuple[CapacityReservation, ...] = ()
    running: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def left(self, zone: str, type_name: str) -> int:
        """Return how many more machines would be covered in a zone."""
        return max(0, self._discounted_left(zone, type_name)) + sum(each.left for each in self._rooms(zone, type_name))

    def room(self, zone: str, type_name: str) -> CapacityReservation | None:
        """Return a capacity reservation with room."""
        return next((each for each in self._rooms(zone, type_name) if each.left > 0), None)

    def usd_per_h(self, zone: str, type_name: str) -> float | None:
        """Return the amortised price of Reserved Instances that count in a zone (the dearest: none is promised)."""
        return max((each.usd_per_h for each in self._scoped(zone, type_name)), default=None)

    def _discounted_left(self, zone: str, type_name: str) -> int:
        in_zone = sum(each.count for each in self.reserved if (each.zone, each.type_name) == (zone, type_name))
        regional = sum(each.count for each in self.reserved if each.zone is None and each.type_name == type_name)
        left_here = max(0, in_zone - self.running.get((zone, type_name), 0))
        return left_here + max(0, regional - self._beyond_zonal(type_name))

    def _beyond_zonal(self, type_name: str) -> int:
        """Machines of a type that zonal reservations do not cover, over all zones: they use up the regional ones."""
        zonal = Counter[str]()
        for each in self.reserved:
            if each.zone is not None and each.type_name == type_name:
                zonal[each.zone] += each.count
        running = {zone: count for (zone, name), count in self.running.items() if name == type_name}
        return sum(max(0, count - zonal[zone]) for zone, count in running.items())

    def _scoped(self, zone: str, type_name: str) -> list[Reserved]:
        return [each for each in self.reserved if each.type_name == type_name and each.zone in (None, zone)]

    def _rooms(self, zone: str, type_name: str) -> list[CapacityReservation]:
        return [each for each in self.rooms if (each.zone, each.type_name) == (zone, type_name)]


def read_reservations(clients: Clients) -> Reservations:
    """Ask for all of it. Raises ProviderUnavailable (also: not allowed to), Throttled."""
    with calling(Call.READ, "reading reservations"):
        reserved = tuple(_reserved_instances(clients))
        rooms = tuple(_capacity_reservations(clients))
        names = sorted({each.type_name for each in reserved})
        return Reservations(reserved=reserved, rooms=rooms, running=_running(clients, names) if names else {})


def _reserved_instances(clients: Clients) -> list[Reserved]:
    answer = clients.reading().describe_reserved_instances(Filters=[{"Name": "state", "Values": ["active"]}])
    found = []
    for each in answer["ReservedInstances"]:
        if each.get("ProductDescription") not in LINUX or each.get("InstanceTenancy", "default") != "default":
            continue
        zone = each.get("AvailabilityZone") if each.get("Scope") == "Availability Zone" else None
        found.append(
            Reserved(
                zone=zone,
                type_name=str(each["InstanceType"]),
                count=int(each["InstanceCount"]),
                usd_per_h=_amortised(each),
            )
        )
    return found


def _amortised(told: Mapping[str, Any]) -> float:
    recurring = sum(float(c["Amount"]) for c in told.get("RecurringCharges", ()) if c.get("Frequency") == "Hourly")
    hourly = float(told.get("UsagePrice") or 0.0) + recurring
    return amortised_usd_per_h(
        upfront_usd=float(told.get("FixedPrice") or 0.0), usd_per_h=hourly, term_s=float(told["Duration"])
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


def _running(clients: Clients, type_names: list[str]) -> Counter[tuple[str, str]]:
    """Count the account's machines, whoever launched them: a Reserved Instance discounts any of them.

    Spot machines and those in capacity reservations of ours (counted there) use up none.
    """
    filters = [
        {"Name": "instance-type", "Values": type_names},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = clients.reading().get_paginator("describe_instances").paginate(Filters=filters)
    rows = (each for page in pages for group in page["Reservations"] for each in group["Instances"])
    return Counter(
        (str(each["Placement"]["AvailabilityZone"]), str(each["InstanceType"]))
        for each in rows
        if each.get("InstanceLifecycle") != "spot" and not each.get("CapacityReservationId")
    )
