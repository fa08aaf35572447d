"""Current offers of a project: machine types of each zone with their prices, and how many more the quotas allow."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from google.cloud import compute_v1 as compute

from hcloud.core.clock import Clock
from hcloud.core.commitments import CommitmentKind, next_kind, parts_by_kind
from hcloud.core.errors import InsufficientCapacity, ProviderError, ProviderUnavailable
from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.core.resources import Gpus, gpu_kind
from hcloud.provider import CommitmentUse
from providers.gce.api import AggregatedList, Api
from providers.gce.commitments import CommitmentBalances, Use, needs_of, series_of_type
from providers.gce.names import last_part
from providers.gce.prices import PriceFile
from providers.gce.reservations import Reservation, ReservedCapacity, ends_at_of
from providers.gce.settings import GceSettings, region_of

TYPES_FRESH_S = 6 * 3600.0
COMMITTED_FRESH_S = 300.0
COMMITMENTS, RESERVATIONS = "commitments", "reservations"
"""Kinds of commitments, as offers name them."""
BILLING_MINIMUM_S = 60.0
SYSTEM_DISK_GIB = 8.0
"""Part of the boot disk that the system and the worker use."""
SHARED_CORE_VCPUS: Mapping[str, float] = {
    "e2-micro": 0.25,
    "e2-small": 0.5,
    "e2-medium": 1.0,
    "f1-micro": 0.2,
    "g1-small": 0.5,
}
"""Sustained vCPUs of shared-core types; the vCPUs that they show are for bursts (docs: "Shared-core machines")."""
_SHARED_QUOTA_SERIES = ("e2", "n1", "f1", "g1", "custom")
"""Series with vCPUs that count against the quota named CPUS."""


@dataclass(frozen=True, slots=True)
class MachineTypeInfo:
    """A machine type of a zone."""

    name: str
    vcpus: float
    """Sustained vCPUs."""
    guest_cpus: int
    """vCPUs that the instance shows; quotas count these."""
    memory_mib: int
    gpus: Gpus | None = None


class GceCatalog:
    """Offers of one project. Types are cached for hours, reservations and quotas are read at each refresh.

    Launches are counted from any thread.
    """

    def __init__(self, api: Api, settings: GceSettings, prices: PriceFile, clock: Clock) -> None:
        self._api, self._settings, self._prices, self._clock = api, settings, prices, clock
        self._types: dict[str, tuple[float, tuple[MachineTypeInfo, ...]]] = {}
        self._lock = threading.RLock()
        """Held while reservations, commitments or the launches counted against them change."""
        self._reserved = ReservedCapacity()
        self._committed = CommitmentBalances((), ())
        self._committed_read_at = -math.inf
        self._launched: dict[str, Use] = {}
        """Launches counted against commitments since usage was read, by token."""
        self._reservations: AggregatedList | None = None
        self._commitments_complete = False
        self.commitments: tuple[str, ...] = ()
        self.read_errors: dict[str, str] = {}
        """Error messages by the zone whose types could not be read."""

    def offers(self, provider: str) -> tuple[Offer, ...]:
        """Return all offers, sorted by key. Zones with unreadable types are left out and listed in ``read_errors``.

        Raises ProviderUnavailable, Throttled: quotas, reservations or the types of every zone could not be
        read.
        """
        self._prices.refresh()
        quotas = {
            name: {each.metric: each for each in self._api.region(name).quotas} for name in self._settings.regions
        }
        if Market.RESERVED in self._settings.markets:
            self.refresh_reserved()
        zones = {zone: self._types_of(zone) for zone in self._settings.zones}
        if Market.RESERVED in self._settings.markets:
            self._refresh_committed()
        if all(types is None for types in zones.values()):
            raise ProviderUnavailable(f"{provider}: no zone returned its machine types: {self.read_errors}")
        offers = (
            offer
            for zone, types in zones.items()
            for info in types or ()
            for offer in self._offers_of(provider, zone, info, quotas[region_of(zone)])
        )
        return tuple(sorted(offers, key=lambda offer: offer.key))

    def refresh_reserved(self) -> None:
        """Read reservations. Raises ProviderUnavailable, Throttled."""
        with self._lock:
            counted = self._reserved.launched_tokens()
        listed = self._api.reservations()
        with self._lock:
            self._reservations = listed
            self._reserved.update(listed, counted, self._clock.now())

    def count_launch(self, token: str, zone: str, type_name: str) -> None:
        """Count an instance against commitments until usage is read again. A token counts once."""
        with self._lock:
            needs = needs_of(type_name, self._known_needs())
            if needs is not None and token not in self._launched:
                self._launched[token] = use = Use(zone, type_name, *needs)
                self._committed.use(use)

    def count_reserved_launch(self, token: str, zone: str, type_name: str) -> Reservation | None:
        """Count a reserved launch until a reading shows it; return the reservation to use, None for a commitment.

        A token counts once. Raises InsufficientCapacity: nothing is left; ProviderUnavailable, Throttled.
        """
        if self._reservations is None:
            self.refresh_reserved()
        if self._committed_read_at == -math.inf:
            self._refresh_committed()
        with self._lock:
            found = self._reserved.target(token, zone, type_name, self._clock.now())
            if found is not None or token in self._launched:
                return found
            needs = needs_of(type_name, self._known_needs())
            if needs is None or self._committed.left(zone, type_name, *needs) < 1:
                raise InsufficientCapacity(f"every reserved {type_name} in {zone} is in use")
            self.count_launch(token, zone, type_name)
            return None

    def confirm_launch(self, token: str) -> None:
        """Note that the instance of a counted launch exists: the next reading of reservations counts it."""
        with self._lock:
            self._reserved.confirm(token)

    def uncount_launch(self, token: str, *, full: bool = False) -> None:
        """Stop counting a launch: nothing was launched. ``full``: there was no free capacity where it was to go."""
        with self._lock:
            self._reserved.release(token, full=full)
            use = self._launched.pop(token, None)
            if use is not None:
                self._committed.use(replace(use, count=-use.count))

    def listed_usd_per_h(self, zone: str, type_name: str, market: Market) -> float:
        """Return the current price per hour of an instance; 0 if the last known one should be kept.

        That of a reserved one is kept until all commitments were read: without them it would be that of on demand. So
        is that of a type which commitments cover and reservations keep: which of both prices is its own is not known.
        """
        if market is Market.RESERVED:
            covered = self._committed.plan(zone, type_name) is not None
            if not self._commitments_complete or (covered and self._reserved.exists(zone, type_name)):
                return 0.0
        return self.usd_per_h(zone, type_name, market)

    def usd_per_h(self, zone: str, type_name: str, market: Market) -> float:
        """Return the current price per hour, 0 if there is none."""
        if market is Market.RESERVED:
            return self._reserved_price(zone, type_name) or 0.0
        return self._prices.usd_per_h(region_of(zone), type_name, market) or 0.0

    # ------------------------------------------------------------------------------------------------------ commitments
    def _refresh_committed(self) -> None:
        """Read commitments and their usage every few minutes. Raises ProviderUnavailable, Throttled."""
        now = self._clock.now()
        if now < self._committed_read_at + COMMITTED_FRESH_S:
            return
        listed = self._api.commitments()
        active = [each for _, each in listed.items if each.status == "ACTIVE"]
        self._commitments_complete = not listed.unanswered
        self.commitments = tuple(_described(each) for each in active)
        uses = self._commitment_uses() if active else ()
        with self._lock:
            self._launched.clear()
            self._committed = CommitmentBalances(active, uses)
            self._committed_read_at = now

    def _commitment_uses(self) -> list[Use]:
        """Return everything that uses commitments: running instances except spot, and unused reservations."""
        known, found = self._known_needs(), []
        for zone, each in self._api.running().items:
            type_name = last_part(each.machine_type)
            needs = needs_of(type_name, known)
            if needs is not None and each.scheduling.provisioning_model != "SPOT":
                found.append(Use(zone, type_name, *needs))
        with self._lock:
            for reserved in self._reserved.all():
                if (needs := needs_of(reserved.type_name, known)) is not None:
                    found.append(Use(reserved.zone, reserved.type_name, *needs, count=reserved.free))
        return found

    def commitment_uses(self) -> dict[str, tuple[CommitmentUse, ...]]:
        """Return reservations and commitments by kind; a kind of which not all was read is absent.

        An unused reservation costs the committed price of its type as far as a commitment covers it, and uses that
        commitment; beyond that it costs the price on demand.
        """
        found: dict[str, tuple[CommitmentUse, ...]] = {}
        if self._reservations is not None and not self._reservations.unanswered:
            found["reservations"] = tuple(self._reservation_uses(self._reservations))
        if self._commitments_complete:
            found["commitments"] = tuple(self._pool_uses())
        return found

    def _reservation_uses(self, listed: AggregatedList) -> Iterator[CommitmentUse]:
        beyond = {key: max(0.0, -pool.vcpus) for key, pool in self._committed.pools().items()}
        known = self._known_needs()
        for zone, each in listed.items:
            sku = each.specific_reservation
            count, name = sku.assured_count or sku.count, last_part(sku.instance_properties.machine_type)
            price, alone = self._reserved_price(zone, name), self._reservation_price(zone, name)
            if each.status == "READY" and count and price is not None:
                unused = max(0, count - sku.in_use_count)
                pool, needs = (region_of(zone), series_of_type(name)), needs_of(name, known)
                if unused and alone is not None and needs is not None and beyond.get(pool):
                    uncovered = min(float(unused), beyond[pool] / needs[0])
                    beyond[pool] -= uncovered * needs[0]
                    price += (alone - price) * uncovered / unused
                yield CommitmentUse(
                    name=f"reservation {zone}/{each.name}",
                    count=count,
                    unused=unused,
                    usd_per_h=price,
                    ends_at=ends_at_of(each),
                )

    def _pool_uses(self) -> Iterator[CommitmentUse]:
        """Yield each region's commitments of a series: priced by vCPUs, as the known type whose price is lowest."""
        for (region, series), pool in sorted(self._committed.pools().items()):
            prices = [
                usd / each.guest_cpus
                for zone, (_, known) in self._types.items()
                for each in known
                if region_of(zone) == region and series_of_type(each.name) == series
                for usd in (self._prices.committed_usd_per_h(region, each.name, min(pool.plans)),)
                if usd is not None
            ]
            if prices and pool.committed_vcpus > 0:
                yield CommitmentUse(
                    name=f"commitments {series} {region}",
                    count=1.0,
                    unused=min(1.0, max(0.0, pool.vcpus / pool.committed_vcpus)),
                    usd_per_h=min(prices) * pool.committed_vcpus,
                    ends_at=pool.last_ends_at if pool.last_ends_at < math.inf else None,
                )

    def _known_needs(self) -> dict[str, tuple[float, float]]:
        types = (each for _, known in self._types.values() for each in known)
        return {each.name: (float(each.guest_cpus), float(each.memory_mib)) for each in types}

    def _reserved_price(self, zone: str, type_name: str) -> float | None:
        """Return the committed price if a commitment covers the type, else the on-demand price of its reservation."""
        plan = self._committed.plan(zone, type_name)
        committed = self._prices.committed_usd_per_h(region_of(zone), type_name, plan) if plan else None
        return committed or self._reservation_price(zone, type_name)

    def _reservation_price(self, zone: str, type_name: str) -> float | None:
        return self._prices.usd_per_h(region_of(zone), type_name, Market.RESERVED)

    # ------------------------------------------------------------------------------------------------------------ types
    def _types_of(self, zone: str) -> tuple[MachineTypeInfo, ...] | None:
        """Return the selected types of a zone; cached ones if they cannot be read, None if they never could."""
        now = self._clock.now()
        read_at, known = self._types.get(zone, (-math.inf, None))
        if known is not None and now - read_at < TYPES_FRESH_S:
            return known
        try:
            found = tuple(
                MachineTypeInfo(
                    name=each.name,
                    vcpus=SHARED_CORE_VCPUS.get(each.name, float(each.guest_cpus)),
                    guest_cpus=each.guest_cpus,
                    memory_mib=each.memory_mb,
                    gpus=_gpus(each),
                )
                for each in self._selected_types(zone)
            )
        except ProviderError as error:
            self.read_errors[zone] = str(error)
            return known
        self.read_errors.pop(zone, None)
        self._types[zone] = (now, found)
        return found

    def _selected_types(self, zone: str) -> Iterator[compute.MachineType]:
        patterns = [pattern for pattern in self._settings.types if not _is_custom(pattern)]
        if patterns:
            for each in self._api.machine_types(zone):
                if any(fnmatchcase(each.name, pattern) for pattern in patterns) and _usable(each):
                    yield each
        for name in self._settings.types:
            if _is_custom(name) and (found := self._api.machine_type(zone, name)) is not None:
                yield found

    # ----------------------------------------------------------------------------------------------------------- offers
    def _offers_of(
        self, provider: str, zone: str, info: MachineTypeInfo, quotas: Mapping[str, compute.Quota]
    ) -> Iterator[Offer]:
        memory_mib = info.memory_mib - self._settings.system_memory_mib
        if memory_mib <= 0:
            return
        disk_gib = max(1.0, self._settings.disk_gib - SYSTEM_DISK_GIB)
        capacity = Resources(vcpus=info.vcpus, memory_mib=memory_mib, disk_gib=disk_gib, gpus=info.gpus)
        instance_type = InstanceType(
            provider=provider,
            name=info.name,
            capacity=capacity,
            boot_delay_s=self._settings.boot_delay_s,
            labels={**self._settings.labels, "family": info.name.partition("-")[0]},
        )
        for market in self._settings.markets:
            kinds = self._commitment_kinds(zone, info) if market is Market.RESERVED else []
            committed, kind = parts_by_kind(kinds), next_kind(kinds)
            if market is Market.RESERVED:
                price = kind.usd_per_h if kind is not None else None
                available: int | None = kind.free if kind is not None else 0
            else:
                price = self.usd_per_h(zone, info.name, market) or None
                available = self._available(info, market, quotas)
            after = self._prices.usd_per_h(region_of(zone), info.name, Market.ON_DEMAND)
            if price is not None:
                yield Offer(
                    provider=provider,
                    region=region_of(zone),
                    zone=zone,
                    instance_type=instance_type,
                    market=market,
                    price_usd_per_h=price,
                    priced_at=self._prices.priced_at(region_of(zone), info.name),
                    billing_minimum_s=BILLING_MINIMUM_S,
                    available=available,
                    pool=kind.pool if kind is not None else "",
                    quota=_cpu_metric(info.name, market, quotas),
                    ends_at=kind.ends_at if kind is not None else None,
                    price_after_usd_per_h=after if any(each.ends_at for each in committed) else None,
                    committed=committed,
                    commitment=kind.name if kind is not None else "",
                )

    def _commitment_kinds(self, zone: str, info: MachineTypeInfo) -> list[CommitmentKind]:
        """Return what covers instances of a type: commitments, then reservations that no commitment pays for.

        A commitment pays for an instance in a reservation, too, and until its own end.
        """
        kinds, needs = list[CommitmentKind](), (info.guest_cpus, info.memory_mib)
        with self._lock:
            reserved = self._reserved.capacity(zone, info.name)
            free = sum(each.free for each in reserved)
            # Free reservations count as use of the commitments until an instance takes their place.
            covered = self._committed.capacity(zone, info.name, *needs, kept=free)
        price, usd = self._reserved_price(zone, info.name), self._reservation_price(zone, info.name)
        paid = 0
        if covered and price is not None:
            pool = "" if reserved else f"commitments {info.name.partition('-')[0]}"
            kinds.append(CommitmentKind(name=COMMITMENTS, usd_per_h=price, parts=covered, pool=pool))
            paid = min(free, kinds[0].free)
        if reserved and usd is not None:
            parts = []
            for each in reserved:  # launches go to those that end last first, and commitments pay for the first ones
                taken = min(paid, each.free)
                paid -= taken
                parts.append(replace(each, free=each.free - taken, used=each.used + taken))
            kinds.append(CommitmentKind(name=RESERVATIONS, usd_per_h=usd, parts=tuple(parts)))
        return kinds

    def _available(self, info: MachineTypeInfo, market: Market, quotas: Mapping[str, compute.Quota]) -> int | None:
        used_each = {"INSTANCES": 1, _cpu_metric(info.name, market, quotas): info.guest_cpus}
        counts = [
            (quotas[metric].limit - quotas[metric].usage) // used
            for metric, used in used_each.items()
            if metric in quotas
        ]
        return max(0, math.floor(min(counts))) if counts else None


def _usable(each: compute.MachineType) -> bool:
    # Arm types would need another image. Accelerators other than the GPUs below would not be known to agents.
    right = each.architecture in ("X86_64", "") and not each.deprecated.state
    return right and (not each.accelerators or _gpus(each) is not None)


GPU_MEMORY_GIB: Mapping[str, float] = {
    "t4": 16.0,
    "p4": 8.0,
    "p100": 16.0,
    "v100": 16.0,
    "l4": 24.0,
    "a100": 40.0,
    "a100-80gb": 80.0,
    "h100-80gb": 80.0,
    "h100-mega-80gb": 80.0,
    "h200-141gb": 141.0,
}
"""Memory of each GPU, which the API does not say. Source: "GPU machine types" of Compute Engine's documentation."""


def _gpus(each: compute.MachineType) -> Gpus | None:
    """Return the GPUs that a machine type brings; None if it brings none, or accelerators that are not listed above."""
    kinds = {gpu_kind(found.guest_accelerator_type): found.guest_accelerator_count for found in each.accelerators}
    if len(kinds) != 1:
        return None
    [(kind, count)] = kinds.items()
    if kind not in GPU_MEMORY_GIB or count < 1:
        return None
    return Gpus(count=count, kind=kind, memory_gib=GPU_MEMORY_GIB[kind])


def _is_custom(name: str) -> bool:
    return "custom-" in name


def _cpu_metric(type_name: str, market: Market, quotas: Mapping[str, compute.Quota]) -> str:
    """Return the quota for a type's vCPUs. Spot vCPUs have their own only in projects that were granted one."""
    if market is Market.SPOT and (own := quotas.get("PREEMPTIBLE_CPUS")) is not None and own.limit > 0:
        return "PREEMPTIBLE_CPUS"
    series = type_name.partition("-")[0]
    return "CPUS" if series in _SHARED_QUOTA_SERIES else f"{series.upper()}_CPUS"


def _described(commitment: compute.Commitment) -> str:
    amounts = ", ".join(f"{each.amount} {each.type_}" for each in commitment.resources)
    return (
        f"{commitment.name} in {last_part(commitment.region)}: {amounts} of {commitment.type_} until "
        f"{commitment.end_timestamp[:10]}"
    )
