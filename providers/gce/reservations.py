"""Reservations of the project by zone and type, less the launches since they were read.

A launch targets one reservation with free capacity: Compute Engine refuses an instance that names a full one. It also
refuses one that names a reservation without ``specificReservationRequired``; any matching instance uses those.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from google.cloud import compute_v1 as compute

from hcloud.core.commitments import joined_by_end
from hcloud.core.model import CommittedCapacity
from providers.gce.api import AggregatedList
from providers.gce.instance_mapping import seconds
from providers.gce.names import last_part

UNKNOWN_COUNTED_S = 900.0
"""How long a launch of unknown outcome is counted at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Machines of one type that are kept for the project in a zone."""

    zone: str
    type_name: str
    name: str
    must_be_named: bool
    """Whether only instances that name it may use it."""
    free: int
    """How many more instances fit, as last read."""
    total: int = 0
    """How many instances it is for."""
    matches: bool = True
    """Whether HCloud's instances may use it: they have no accelerators, local disks or named processors."""
    ends_at: float | None = None
    """When Compute Engine deletes it; None: when its owner does."""


@dataclass(slots=True)
class _Launch:
    reservation: Reservation
    counted_at: float
    launched: bool = False
    """Whether its instance exists, so that a reading that begins now counts it."""


class ReservedCapacity:
    """Reservations as last read, and the launches that target them since. Not thread-safe: the catalog holds a lock."""

    def __init__(self) -> None:
        """Start without any."""
        self._read: dict[tuple[str, str], list[Reservation]] = {}
        self._launches: dict[str, _Launch] = {}
        self._full: set[tuple[str, str]] = set()
        """Zone and name of reservations that have refused an instance since they were read."""

    def launched_tokens(self) -> frozenset[str]:
        """Return the tokens of launches that a reading from now on counts, for :meth:`update`."""
        return frozenset(token for token, each in self._launches.items() if each.launched)

    def update(self, listed: AggregatedList, counted: frozenset[str], now: float) -> None:
        """Take a reading. ``counted``: tokens of launches that it includes."""
        self._read = {}
        for zone, each in listed.items:
            machine_type = each.specific_reservation.instance_properties.machine_type
            if each.status == "READY" and machine_type:
                self._read.setdefault((zone, last_part(machine_type)), []).append(_reservation(zone, each))
        self._full.clear()
        self._launches = {
            token: each
            for token, each in self._launches.items()
            if token not in counted and now < each.counted_at + UNKNOWN_COUNTED_S
        }

    def all(self) -> Iterator[Reservation]:
        """Yield all reservations as last read, full or not."""
        for found in self._read.values():
            yield from found

    def exists(self, zone: str, type_name: str) -> bool:
        """Return whether there is a reservation for HCloud's instances of a type in a zone, full or not."""
        return any(each.matches for each in self._read.get((zone, type_name), ()))

    def free(self, zone: str, type_name: str) -> int:
        """Return how many more instances of a type fit now."""
        return sum(free for _, free in self.free_capacity(zone, type_name))

    def free_capacity(self, zone: str, type_name: str) -> list[tuple[Reservation, int]]:
        """Return the reservations of a type in a zone, each with how many more instances fit now.

        The one that ends last is first, since it serves longest; of several the one that needs no name.
        """
        targeted = Counter((each.reservation.zone, each.reservation.name) for each in self._launches.values())
        found = []
        for each in (each for each in self._read.get((zone, type_name), ()) if each.matches):
            key = (zone, each.name)
            found.append((each, 0 if key in self._full else max(0, each.free - targeted[key])))
        return sorted(found, key=lambda pair: (-(pair[0].ends_at or math.inf), pair[0].must_be_named, pair[0].name))

    def capacity(self, zone: str, type_name: str) -> tuple[CommittedCapacity, ...]:
        """Return how many instances of a type fit, by the end of their reservation."""
        return joined_by_end(
            CommittedCapacity(ends_at=each.ends_at, free=free, used=each.total - free)
            for each, free in self.free_capacity(zone, type_name)
        )

    def target(self, token: str, zone: str, type_name: str, now: float) -> Reservation | None:
        """Return the reservation that a launch is to use, and count the launch; None: none has free capacity.

        A repeated token keeps its reservation.
        """
        if token not in self._launches:
            found = next((each for each, free in self.free_capacity(zone, type_name) if free > 0), None)
            if found is None:
                return None
            self._launches[token] = _Launch(found, now)
        return self._launches[token].reservation

    def confirm(self, token: str) -> None:
        """Note that the instance of a launch exists."""
        if token in self._launches:
            self._launches[token].launched = True

    def release(self, token: str, *, full: bool = False) -> None:
        """Stop counting a launch: nothing was launched. ``full``: because its reservation has no free capacity."""
        launch = self._launches.pop(token, None)
        if launch is not None and full:
            self._full.add((launch.reservation.zone, launch.reservation.name))


def _reservation(zone: str, each: compute.Reservation) -> Reservation:
    sku = each.specific_reservation
    properties = sku.instance_properties
    return Reservation(
        zone=zone,
        type_name=last_part(properties.machine_type),
        name=each.name,
        must_be_named=bool(each.specific_reservation_required),
        free=max(0, (sku.assured_count or sku.count) - sku.in_use_count),
        total=sku.assured_count or sku.count,
        matches=not (properties.guest_accelerators or properties.local_ssds or properties.min_cpu_platform),
        ends_at=ends_at_of(each),
    )


def ends_at_of(reservation: compute.Reservation) -> float | None:
    """Return when Compute Engine deletes a reservation (Unix seconds); None if only its owner does."""
    return seconds(str(reservation.delete_at_time or ""))
