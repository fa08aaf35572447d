"""What can be had now in one region, at which price; each part is read again when it has become old."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import InstanceType, Market, Offer
from providers.ec2.clients import Clients
from providers.ec2.inventory import Inventory, Launched
from providers.ec2.prices import Price, PriceList, read_spot_prices
from providers.ec2.region_info import RegionInfo, read_region_info
from providers.ec2.reservations import CapacityReservation
from providers.ec2.savings_plans import SavingsPlan
from providers.ec2.settings import Ec2Settings

BILLING_MINIMUM_S = 60.0


@dataclass(slots=True)
class _Cache:
    """What was read, and when."""

    region_info: RegionInfo | None = None
    region_read_at: float = float("-inf")
    spot: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    market_read_at: float = float("-inf")
    recount_due: bool = False


class Ec2Catalog:
    """Reads lazily; answers from memory until a part is too old. ``troubles``: what could not be read, by part."""

    def __init__(self, provider: str, settings: Ec2Settings, clients: Clients, clock: Clock) -> None:
        self._provider, self._settings, self._clients, self._clock = provider, settings, clients, clock
        self._lock = threading.RLock()
        self._prices = PriceList(provider, settings, clock.now())
        self._cache = _Cache()
        self._inventory = Inventory()

    def region_info(self) -> RegionInfo:
        """Return the region as it is. Raises ProviderUnavailable, Throttled."""
        with self._lock:
            now = self._clock.now()
            if self._cache.region_info is None or now >= self._cache.region_read_at + self._settings.types_every_s:
                self._cache.region_info = read_region_info(self._clients, self._settings, self._provider)
                self._cache.region_read_at = now
                self._inventory.types = self._cache.region_info.types
                self._inventory.read_quotas(self._clients)
            return self._cache.region_info

    def offers(self) -> tuple[Offer, ...]:
        """Return everything that has a price, sorted by key. Raises ProviderUnavailable, Throttled."""
        with self._lock:
            region, on_demand = self.region_info(), self._prices.on_demand()
            self._read_markets(region, on_demand)
            found = [
                offer
                for zone, name in region.offered & {(z, n) for z in region.subnets for n in region.types}
                for market in self._settings.markets
                for offer in self._offer(zone, region.types[name], market, on_demand)
            ]
            return tuple(sorted(found, key=lambda each: each.key))

    def price_usd_per_h(self, zone: str, type_name: str, market: Market) -> float | None:
        """Return the present price as last read; None where none is known, or where it is what it was at the launch."""
        with self._lock:
            if market is Market.RESERVED:  # which of them covers a machine is Amazon's to say
                return None
            try:
                price = self._price(zone, type_name, market, self._prices.on_demand())
            except ProviderUnavailable:  # what a machine cost at its launch is on its tag
                return None
            return price.usd_per_h if price is not None else None

    def count_launch(self, token: str, offer: Offer) -> str:
        """Count a launch until what runs is read again; return what it lacks: "reserved", "quota" or "" (nothing)."""
        with self._lock:
            zone, name, inventory = offer.zone, offer.instance_type.name, self._inventory
            if inventory.is_counted(token):
                return ""
            paid, left = inventory.prepaid(zone, name), inventory.quota_left(name, offer.market)
            if left is not None and left <= 0:  # something may have ended since it was counted
                inventory.read_running(self._clients, self._clock.now())
                left = inventory.quota_left(name, offer.market)
            inventory.count_launch(token, Launched(zone, name, offer.market, self._clock.now()))
            if offer.market is Market.RESERVED and (paid is None or paid.count <= 0):
                return "reserved"
            return "quota" if left is not None and left <= 0 else ""

    def uncount_launch(self, token: str) -> None:
        """Count it no more: it was not launched."""
        with self._lock:
            self._inventory.uncount_launch(token)

    def request_recount(self) -> None:
        """Read at the next look what runs: some of it was just ended."""
        with self._lock:
            self._cache.recount_due = True

    def capacity_reservation(self, zone: str, type_name: str) -> CapacityReservation | None:
        """Return the capacity reservation that a machine is to be put into, if there is one."""
        with self._lock:
            return self._inventory.capacity_reservation(zone, type_name)

    def read_unread_parts(self) -> None:
        """Read what was never read, so that a launch can be judged right after a start. Raises like ``offers``."""
        with self._lock:
            self._read_markets(self.region_info(), self._prices.on_demand(), only_if_never_read=True)

    def known_zones(self) -> tuple[str, ...]:
        """Return the zones in use as far as they are known, without asking; else the region."""
        region = self._cache.region_info
        return tuple(sorted(region.subnets)) if region is not None else self._settings.zones or (self._settings.region,)

    @property
    def quotas(self) -> Mapping[tuple[str, str], float]:
        """vCPU quotas by market and class of types, as far as they could be read."""
        return self._inventory.quotas

    @property
    def read_errors(self) -> Mapping[str, str]:
        """What could not be read, by part."""
        return self._inventory.read_errors

    @property
    def plans(self) -> tuple[SavingsPlan, ...]:
        """The savings plans that cover machines here."""
        return self._inventory.plans

    # --------------------------------------------------------------------------------------------------------- reading
    def _read_markets(
        self, region: RegionInfo, on_demand: Mapping[str, Price], *, only_if_never_read: bool = False
    ) -> None:
        now, read_at = self._clock.now(), self._cache.market_read_at
        if now < read_at + self._settings.spot_prices_every_s or (only_if_never_read and read_at > 0):
            if self._cache.recount_due and not only_if_never_read:
                self._inventory.read_running(self._clients, now)
                self._cache.recount_due = False
            return
        if Market.SPOT in self._settings.markets:
            names = sorted(name for name in region.types if name in on_demand)
            zones = sorted(region.subnets)
            self._cache.spot = read_spot_prices(self._clients, names, zones, on_demand, now) if names else {}
        self._inventory.on_demand = on_demand
        reserved = Market.RESERVED in self._settings.markets
        self._inventory.read(self._clients, self._settings.region, now, reserved=reserved)
        self._cache.market_read_at, self._cache.recount_due = now, False

    # ---------------------------------------------------------------------------------------------------------- offers
    def _offer(self, zone: str, kind: InstanceType, market: Market, on_demand: Mapping[str, Price]) -> Iterator[Offer]:
        price = self._price(zone, kind.name, market, on_demand)
        if price is None or (market is Market.SPOT and kind.labels.get("spot") == "no"):
            return
        if self._inventory.exceeds_quota(kind.name, market):
            return
        yield Offer(
            provider=self._provider,
            region=self._settings.region,
            zone=zone,
            instance_type=kind,
            market=market,
            price_usd_per_h=price.usd_per_h,
            priced_at=price.priced_at,
            billing_minimum_s=BILLING_MINIMUM_S,
            available=self._available(zone, kind.name, market),
            pool=self._pool(zone, kind.name, market),
        )

    def _pool(self, zone: str, type_name: str, market: Market) -> str:
        paid = self._inventory.prepaid(zone, type_name) if market is Market.RESERVED else None
        return paid.pool if paid is not None else ""

    def _available(self, zone: str, type_name: str, market: Market) -> int | None:
        allowed = self._inventory.quota_left(type_name, market)
        if market is not Market.RESERVED:
            return allowed
        paid = self._inventory.prepaid(zone, type_name)
        count = paid.count if paid is not None else 0
        return count if allowed is None else min(count, allowed)

    def _price(self, zone: str, type_name: str, market: Market, on_demand: Mapping[str, Price]) -> Price | None:
        match market:
            case Market.ON_DEMAND:
                return on_demand.get(type_name)
            case Market.SPOT:
                return self._cache.spot.get((zone, type_name)) or self._prices.spot().get(type_name)
            case Market.RESERVED:
                paid = self._inventory.prepaid(zone, type_name)
                read_at = max(1.0, self._cache.market_read_at)
                return Price(usd_per_h=paid.usd_per_h, priced_at=read_at) if paid is not None else None
