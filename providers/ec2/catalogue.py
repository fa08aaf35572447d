"""What can be had now in one region, at which price; each part is read again when it has become old."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hcloud.clock import Clock
from hcloud.errors import ProviderUnavailable, Throttled
from hcloud.model import InstanceType, Market, Offer
from providers.ec2.clients import Clients
from providers.ec2.prices import Price, PriceList, read_spot_prices
from providers.ec2.reservations import CapacityReservation, Reservations, read_reservations
from providers.ec2.settings import Ec2Settings
from providers.ec2.site import Site, read_quotas, read_site

BILLING_MINIMUM_S = 60.0


@dataclass(slots=True)
class _Picture:
    """What was read, and when."""

    site: Site | None = None
    site_read_at: float = float("-inf")
    spot: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    reservations: Reservations = field(default_factory=Reservations)
    market_read_at: float = float("-inf")
    launched_since: Counter[tuple[str, str]] = field(default_factory=Counter)
    quotas: Mapping[str, float] = field(default_factory=dict)


class Catalogue:
    """Reads lazily; answers from memory until a part is too old. ``troubles`` tells what could not be read, by part."""

    def __init__(self, provider: str, settings: Ec2Settings, clients: Clients, clock: Clock) -> None:
        self._provider, self._settings, self._clients, self._clock = provider, settings, clients, clock
        self._lock = threading.RLock()
        self._prices = PriceList(provider, settings, clock.now())
        self._picture = _Picture()
        self.troubles: dict[str, str] = {}

    def site(self) -> Site:
        """Return the region as it is. Raises ProviderUnavailable, Throttled."""
        with self._lock:
            now = self._clock.now()
            if self._picture.site is None or now >= self._picture.site_read_at + self._settings.types_every_s:
                self._picture.site = read_site(self._clients, self._settings, self._provider)
                self._picture.site_read_at = now
                self._read_quotas()
            return self._picture.site

    def offers(self) -> tuple[Offer, ...]:
        """Return everything that has a price, sorted by key. Raises ProviderUnavailable, Throttled."""
        with self._lock:
            site, on_demand = self.site(), self._prices.on_demand()
            self._read_markets(site, on_demand)
            found = [
                offer
                for zone, name in site.offered & {(z, n) for z in site.subnets for n in site.types}
                for market in self._settings.markets
                for offer in self._offer(zone, site.types[name], market, on_demand)
            ]
            return tuple(sorted(found, key=lambda each: each.key))

    def price_usd_per_h(self, zone: str, type_name: str, market: Market) -> float | None:
        """Return the present price as last read, or None where none is known."""
        with self._lock:
            try:
                price = self._price(zone, type_name, market, self._prices.on_demand())
            except ProviderUnavailable:  # what a machine cost at its launch is on its tag
                return None
            return price.usd_per_h if price is not None else None

    def reserved_left(self, zone: str, type_name: str) -> int:
        """Return how many more machines reservations cover, counting those launched since they were read."""
        with self._lock:
            return max(0, self._picture.reservations.left(zone, type_name) - self._launched(zone, type_name))

    def note_reserved_launch(self, zone: str, type_name: str) -> None:
        """Count a machine against the reservations until they are read again."""
        with self._lock:
            self._picture.launched_since[zone, type_name] += 1

    def reserved_room(self, zone: str, type_name: str) -> CapacityReservation | None:
        """Return the capacity reservation that a machine is to be put into, if there is one."""
        with self._lock:
            return self._picture.reservations.room(zone, type_name)

    def read_all(self) -> None:
        """Read what was never read, so that a launch can be judged right after a start. Raises like ``offers``."""
        with self._lock:
            self._read_markets(self.site(), self._prices.on_demand(), only_if_never=True)

    def known_zones(self) -> tuple[str, ...]:
        """Return the zones in use as far as they are known, without asking; else the region."""
        site = self._picture.site
        return tuple(sorted(site.subnets)) if site is not None else self._settings.zones or (self._settings.region,)

    @property
    def quotas(self) -> Mapping[str, float]:
        """vCPU quotas by market, as far as they could be read."""
        return self._picture.quotas

    # --------------------------------------------------------------------------------------------------------- reading
    def _read_quotas(self) -> None:
        try:
            self._picture.quotas = read_quotas(self._clients)
            self.troubles.pop("quotas", None)
        except (ProviderUnavailable, Throttled) as trouble:  # only told: a launch beyond a quota is refused anyway
            self.troubles["quotas"] = str(trouble)

    def _read_markets(self, site: Site, on_demand: Mapping[str, Price], *, only_if_never: bool = False) -> None:
        now, read_at = self._clock.now(), self._picture.market_read_at
        if now < read_at + self._settings.spot_prices_every_s or (only_if_never and read_at > 0):
            return
        if Market.SPOT in self._settings.markets:
            names = sorted(name for name in site.types if name in on_demand)
            zones = sorted(site.subnets)
            self._picture.spot = read_spot_prices(self._clients, names, zones, on_demand, now) if names else {}
        if Market.RESERVED in self._settings.markets:
            self._read_reservations()
        self._picture.market_read_at = now

    def _read_reservations(self) -> None:
        try:
            self._picture.reservations = read_reservations(self._clients)
            self._picture.launched_since.clear()
            self.troubles.pop("reservations", None)
        except (ProviderUnavailable, Throttled) as trouble:  # what was known stays; told in facts
            self.troubles["reservations"] = str(trouble)

    # ---------------------------------------------------------------------------------------------------------- offers
    def _offer(self, zone: str, kind: InstanceType, market: Market, on_demand: Mapping[str, Price]) -> Iterator[Offer]:
        price = self._price(zone, kind.name, market, on_demand)
        if price is None or (market is Market.SPOT and kind.labels.get("spot") == "no"):
            return
        if market is not Market.RESERVED and kind.capacity.vcpus > self.quotas.get(market.value, float("inf")):
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
            available=self.reserved_left(zone, kind.name) if market is Market.RESERVED else None,
        )

    def _price(self, zone: str, type_name: str, market: Market, on_demand: Mapping[str, Price]) -> Price | None:
        match market:
            case Market.ON_DEMAND:
                return on_demand.get(type_name)
            case Market.SPOT:
                return self._picture.spot.get((zone, type_name)) or self._prices.spot().get(type_name)
            case Market.RESERVED:
                return self._reserved_price(zone, type_name, on_demand)

    def _reserved_price(self, zone: str, type_name: str, on_demand: Mapping[str, Price]) -> Price | None:
        reservations = self._picture.reservations
        usd = reservations.usd_per_h(zone, type_name)
        if usd is not None and usd > 0:
            return Price(usd_per_h=usd, priced_at=max(1.0, self._picture.market_read_at))
        if any((each.zone, each.type_name) == (zone, type_name) for each in reservations.rooms):
            return on_demand.get(type_name)  # room alone is paid at the full price
        return None

    def _launched(self, zone: str, type_name: str) -> int:
        """Launches count in every zone where they may have used up a reservation of the whole region."""
        since = self._picture.launched_since
        if any(r.zone is None and r.type_name == type_name for r in self._picture.reservations.reserved):
            return sum(count for (_, name), count in since.items() if name == type_name)
        return since[zone, type_name]
