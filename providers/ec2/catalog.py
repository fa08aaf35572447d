"""Current offers of one region: types, zones and markets with prices and availability. Each part is cached."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import InstanceType, Market, Offer
from hcloud.provider import CommitmentUse
from providers.ec2.account_usage import quota_name
from providers.ec2.clients import Clients
from providers.ec2.commitment_uses import commitment_uses
from providers.ec2.inventory import Inventory, Launched
from providers.ec2.prices import Price, PriceList, read_spot_prices
from providers.ec2.region_info import RegionInfo, read_region_info
from providers.ec2.savings_plans import SavingsPlan
from providers.ec2.settings import Ec2Settings

BILLING_MINIMUM_S = 60.0


@dataclass(slots=True)
class _Cache:
    region_info: RegionInfo | None = None
    """Types, zones and image, or None before the first read."""
    region_read_at: float = float("-inf")
    spot: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    """Spot prices by zone and type."""
    market_read_at: float = float("-inf")
    """When spot prices, usage and commitments were last read (Unix seconds)."""
    recount_due: bool = False
    """Whether instances were terminated since usage was last read."""

    @property
    def was_read(self) -> bool:
        """Whether spot prices, usage and commitments were ever read."""
        return self.market_read_at > float("-inf")


class Ec2Catalog:
    """Offers of one region, read lazily and served from a cache until a part is too old. Thread-safe."""

    def __init__(self, provider: str, settings: Ec2Settings, clients: Clients, clock: Clock) -> None:
        self._provider, self._settings, self._clients, self._clock = provider, settings, clients, clock
        self._lock = threading.RLock()
        self._prices = PriceList(provider, settings, clock.now())
        self._cache = _Cache()
        self._inventory = Inventory()

    def region_info(self) -> RegionInfo:
        """Return types, zones and image of the region, read again every ``types_every_s``.

        Raises ProviderUnavailable, Throttled.
        """
        with self._lock:
            now = self._clock.now()
            if self._cache.region_info is None or now >= self._cache.region_read_at + self._settings.types_every_s:
                self._cache.region_info = read_region_info(self._clients, self._settings, self._provider)
                self._cache.region_read_at = now
                self._inventory.types = self._cache.region_info.types
                self._inventory.read_quotas(self._clients)
            return self._cache.region_info

    def offers(self) -> tuple[Offer, ...]:
        """Return an offer for every type, zone and market with a known price, sorted by key.

        Raises ProviderUnavailable, Throttled.
        """
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
        """Return the last known price of an instance, or None if the price at its launch should be used instead."""
        with self._lock:
            if market is Market.RESERVED:
                if self._inventory.may_cover(zone, type_name) or not self._cache.was_read:
                    return None  # AWS alone knows which commitment covers an instance
                market = Market.ON_DEMAND  # it ended
            try:
                price = self._price(zone, type_name, market, self._prices.on_demand())
            except ProviderUnavailable:  # the tag of the instance holds its price at launch
                return None
            return price.usd_per_h if price is not None else None

    def count_launch(self, token: str, offer: Offer) -> str:
        """Count a launch against quotas and commitments until usage is read again.

        Returns what is exhausted: ``"reserved"`` (no prepaid capacity is left), ``"quota"``, or "" if there is
        room. A token counts once.
        """
        with self._lock:
            zone, name, inventory = offer.zone, offer.instance_type.name, self._inventory
            if inventory.is_counted(token):
                return ""
            paid, left = inventory.prepaid(zone, name), inventory.quota_left(name, offer.market)
            if left is not None and left <= 0:  # instances may have ended since usage was read
                inventory.read_running(self._clients, self._clock.now())
                left = inventory.quota_left(name, offer.market)
            inventory.count_launch(token, Launched(zone, name, offer.market, self._clock.now()))
            if offer.market is Market.RESERVED:
                # Another kind has another price and end than the offer; the next reading offers it.
                is_other = paid is not None and offer.commitment not in ("", paid.next.name)
                if paid is None or paid.next.free <= 0 or is_other:
                    return "reserved"
            return "quota" if left is not None and left <= 0 else ""

    def uncount_launch(self, token: str) -> None:
        """Undo :meth:`count_launch`: nothing was launched."""
        with self._lock:
            self._inventory.uncount_launch(token)

    def request_recount(self) -> None:
        """Read usage again at the next refresh, because instances were terminated."""
        with self._lock:
            self._cache.recount_due = True

    def capacity_reservation(self, token: str) -> str | None:
        """Return the id of the capacity reservation that a counted launch targets, or None."""
        with self._lock:
            return self._inventory.capacity_reservation(token)

    def read_unread_parts(self) -> None:
        """Read every part that was never read, so that a launch can be checked right after a start.

        Raises like ``offers``.
        """
        with self._lock:
            self._read_markets(self.region_info(), self._prices.on_demand(), only_if_never_read=True)

    def known_zones(self) -> tuple[str, ...]:
        """Return the known zones without any call; the region's name if none is known yet."""
        region = self._cache.region_info
        return tuple(sorted(region.subnets)) if region is not None else self._settings.zones or (self._settings.region,)

    @property
    def quotas(self) -> Mapping[tuple[str, str], float]:
        """vCPU quotas by market and class of types, as far as they could be read."""
        return self._inventory.quotas

    @property
    def read_errors(self) -> Mapping[str, str]:
        """Error messages by the part that could not be read."""
        return self._inventory.read_errors

    @property
    def plans(self) -> tuple[SavingsPlan, ...]:
        """Active savings plans that cover this region."""
        return self._inventory.plans

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return the region's commitments by kind, as last read; unread kinds are absent."""
        with self._lock:
            if Market.RESERVED not in self._settings.markets or not self._cache.was_read:
                return {}
            return commitment_uses(self._inventory, self._settings.region)

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
        paid = self._inventory.prepaid(zone, kind.name) if market is Market.RESERVED else None
        ends_at, committed = (paid.next.ends_at, paid.committed) if paid is not None else (None, ())
        ends, after = [each.ends_at for each in committed], on_demand.get(kind.name)
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
            quota=quota_name(kind.name, market),
            ends_at=ends_at,
            price_after_usd_per_h=after.usd_per_h if after is not None and any(ends) else None,
            committed=committed,
            commitment=paid.next.name if paid is not None else "",
        )

    def _pool(self, zone: str, type_name: str, market: Market) -> str:
        paid = self._inventory.prepaid(zone, type_name) if market is Market.RESERVED else None
        return paid.next.pool if paid is not None else ""

    def _available(self, zone: str, type_name: str, market: Market) -> int | None:
        allowed = self._inventory.quota_left(type_name, market)
        if market is not Market.RESERVED:
            return allowed
        paid = self._inventory.prepaid(zone, type_name)
        count = paid.next.free if paid is not None else 0
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
                return Price(usd_per_h=paid.next.usd_per_h, priced_at=read_at) if paid is not None else None
