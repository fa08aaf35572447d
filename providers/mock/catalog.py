"""Offers of the mock cloud: types, zones and markets with their prices, and which are out of stock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.core.resources import Gpus, gpu_kind
from hcloud.provider import CommitmentUse
from providers.mock.random_streams import draws_for, walk
from providers.mock.settings import MockSettings, TypeSettings
from providers.mock.spot_history import SpotPrices
from providers.mock.spot_shortages import SpotShortages

LOWEST_SPOT_SHARE = 0.1
UNLIMITED = 10**9
"""Stands for any amount of a resource that no quota limits."""


class MockCatalog:
    """Types and prices of one mock cloud. All results depend on settings and time only."""

    def __init__(self, provider: str, settings: MockSettings) -> None:
        self.settings = settings
        self._provider = provider
        self.types = {
            name: InstanceType(
                provider=provider,
                name=name,
                capacity=_capacity(each),
                boot_delay_s=settings.boot.p50_s,
                labels={**settings.labels, **each.labels},
            )
            for name, each in sorted(settings.types.items())
        }
        history = settings.spot.history
        self.shortages = SpotShortages(
            settings.seed, settings.spot.shortages_per_h, settings.spot.shortage_h, history.available, history.scores
        )
        self.recorded = SpotPrices(history.prices)
        self._spot_shares: dict[tuple[str, str, int], float] = {}
        self._spot_costs: dict[tuple[str, str, float], tuple[float, float]] = {}
        """By zone, type and beginning: the end of the last whole step counted, and the cost up to it in USD."""
        self.published_quotas = tuple(quota for quota in settings.quotas if quota.told)
        """Quotas with a remainder that offers state."""

    def offers(
        self, now: float, reserved_in_use: Mapping[tuple[str, str], int], left_vcpus: Sequence[float] = ()
    ) -> tuple[Offer, ...]:
        """Return all offers sorted by key, priced as of the current step of the spot prices.

        ``reserved_in_use``: reserved machines in use by zone and type. ``left_vcpus``: remainders of
        ``published_quotas``.
        """
        priced_at = now if left_vcpus else max(1.0, self.step_of(now) * self.settings.spot.step_s)
        return tuple(
            self._with_quota(
                self._offer(zone, name, market, now, priced_at, reserved_in_use.get((zone, name), 0)), left_vcpus
            )
            for zone in sorted(self.settings.zones)
            for name in self.types
            for market in sorted(self.settings.markets)
            if self._is_sold(zone, name, market) and not (market is Market.RESERVED and self._has_ended(now))
        )

    def commitments(self, now: float, reserved_in_use: Mapping[tuple[str, str], int]) -> tuple[CommitmentUse, ...]:
        """Return the reserved machines of each type and zone with how many are not in use."""
        counts = {
            (zone, name): self.reserved_count(zone, name)
            for zone in sorted(self.settings.zones)
            for name in self.types
            if Market.RESERVED in self.settings.markets and self._is_sold(zone, name, Market.RESERVED)
        }
        return tuple(
            CommitmentUse(
                name=f"{zone}/{name}",
                count=count,
                unused=max(0, count - reserved_in_use.get((zone, name), 0)),
                usd_per_h=self.paid_usd_per_h(zone, name, Market.RESERVED, now),
                ends_at=self.settings.reserved_ends_at,
            )
            for (zone, name), count in counts.items()
            if count > 0 and not self._has_ended(now)
        )

    def _with_quota(self, offer: Offer, left_vcpus: Sequence[float]) -> Offer:
        """Return the offer with the smallest remainder of the published quotas that limit it."""
        quotas = [
            (left, at)
            for at, left in enumerate(left_vcpus)
            if self.published_quotas[at].holds(offer.region, offer.market, offer.instance_type.name)
        ]
        if not quotas:
            return offer
        left, at = min(quotas)
        free = Resources(vcpus=max(0.0, left), memory_mib=UNLIMITED, disk_gib=UNLIMITED)
        count = int((free.vcpus + 1e-9) / offer.instance_type.capacity.vcpus)
        available = count if offer.available is None else min(offer.available, count)
        return replace(offer, available=available, pool=f"{self._provider}/quota-{at}", pool_free=free)

    def step_of(self, now: float) -> int:
        """Return the number of the spot-price step at a time."""
        return math.floor(now / self.settings.spot.step_s)

    def priced_as_of(self, now: float) -> tuple[int, int]:
        """Return a value that changes whenever spot prices do: the step, and the number of recorded changes so far."""
        return self.step_of(now), self.recorded.changes_until(now)

    def price_usd_per_h(self, zone: str, type_name: str, market: Market, now: float) -> float:
        """Return the price of a type in a zone and market at a time. Only spot prices change."""
        if market is Market.SPOT and (recorded := self.recorded.get(zone, type_name)) is not None:
            return recorded.value(now)
        fixed = self._fixed_price(zone, type_name, market)
        return fixed * self._spot_share(zone, type_name, self.step_of(now)) if market is Market.SPOT else fixed

    def _has_ended(self, now: float) -> bool:
        """Return whether the reservations have ended."""
        return self.settings.reserved_ends_at is not None and now >= self.settings.reserved_ends_at

    def paid_usd_per_h(self, zone: str, type_name: str, market: Market, now: float) -> float:
        """Return what a machine costs at a time, which may differ from the price at which it is offered."""
        if market is Market.RESERVED and self._has_ended(now):
            market = Market.ON_DEMAND
        return self.price_usd_per_h(zone, type_name, market, now) * self.settings.launched_price_factor

    def cost_usd(self, zone: str, type_name: str, market: Market, from_at: float, to_at: float) -> float:
        """Return the cost of a machine over an interval, during which spot prices may change."""
        end = self.settings.reserved_ends_at
        if market is Market.RESERVED and end is not None and from_at < end < to_at:
            before = self.cost_usd(zone, type_name, market, from_at, end)
            return before + self.cost_usd(zone, type_name, Market.ON_DEMAND, end, to_at)
        if market is not Market.SPOT:
            return self.paid_usd_per_h(zone, type_name, market, from_at) * (to_at - from_at) / 3600
        if (recorded := self.recorded.get(zone, type_name)) is not None:
            return recorded.integral(from_at, to_at) * self.settings.launched_price_factor / 3600
        # Up to where the same machine's cost was summed before: it is asked at every listing.
        key = (zone, type_name, from_at)
        at, cost = self._spot_costs.get(key, (from_at, 0.0))
        if at > to_at:
            at, cost = from_at, 0.0
        step_s = self.settings.spot.step_s
        while at < to_at:
            until = (self.step_of(at) + 1) * step_s
            whole = at < until <= to_at
            if not whole:
                until = to_at
            cost += self.paid_usd_per_h(zone, type_name, market, at) * (until - at) / 3600
            at = until
            if whole:
                if len(self._spot_costs) > 10_000:
                    self._spot_costs.clear()
                self._spot_costs[key] = (at, cost)
        return cost

    def out_of_stock(self, offer: Offer, now: float) -> bool:
        """Return whether the offer is out of stock in the current period, or in a spot shortage."""
        if offer.market is Market.SPOT and self._is_spot_short(offer.zone, offer.instance_type.name, now):
            return True
        stockouts = self.settings.stockouts
        if stockouts.rate <= 0:
            return False
        period = math.floor(now / stockouts.period_s)
        return bool(draws_for(self.settings.seed, "stockout", *offer.key, period).random() < stockouts.rate)

    def _is_spot_short(self, zone: str, type_name: str, now: float) -> bool:
        # Capacity that is about to be preempted is not sold from the notice on.
        soon = self.shortages.next_at(zone, type_name, now) - now <= self.settings.spot.notice_s
        return soon or self.shortages.is_short(zone, type_name, now)

    def has_offer(self, offer: Offer) -> bool:
        """Return whether such an offer exists at all."""
        return (
            offer.provider == self._provider
            and offer.instance_type.name in self.types
            and offer.zone in self.settings.zones
            and offer.market in self.settings.markets
            and self._is_sold(offer.zone, offer.instance_type.name, offer.market)
        )

    def _is_sold(self, zone: str, type_name: str, market: Market) -> bool:
        only = self.settings.types[type_name]
        return (only.zones is None or zone in only.zones) and (only.markets is None or market in only.markets)

    def reserved_count(self, zone: str, type_name: str) -> int:
        """Return how many machines of a type are reserved in a zone."""
        reserved = self.settings.reserved
        everywhere = reserved.get(type_name, self.settings.reserved_default)
        return reserved.get(f"{zone}/{type_name}", everywhere)

    def _offer(self, zone: str, name: str, market: Market, now: float, priced_at: float, taken: int) -> Offer:
        ends_at = self.settings.reserved_ends_at if market is Market.RESERVED else None
        return Offer(
            provider=self._provider,
            region=self.settings.region_of(zone),
            zone=zone,
            instance_type=self.types[name],
            market=market,
            price_usd_per_h=self.price_usd_per_h(zone, name, market, now),
            priced_at=priced_at,
            billing_minimum_s=self.settings.billing_minimum_s,
            available=self.reserved_count(zone, name) - taken if market is Market.RESERVED else None,
            quota=self._quota(zone, name, market),
            ends_at=ends_at,
            price_after_usd_per_h=None if ends_at is None else self._fixed_price(zone, name, Market.ON_DEMAND),
        )

    def _quota(self, zone: str, type_name: str, market: Market) -> str:
        region = self.settings.region_of(zone)
        return next((each.name for each in self.settings.quotas if each.holds(region, market, type_name)), "")

    def _fixed_price(self, zone: str, type_name: str, market: Market) -> float:
        """Return the on-demand or reserved price; for spot, the on-demand price that its share is taken of."""
        factor = self.settings.region_price_factors.get(self.settings.region_of(zone), 1.0)
        sold = self.settings.types[type_name]
        if market is Market.RESERVED:
            factor *= sold.reserved_price_factor or self.settings.reserved_price_factor
        return round(sold.usd_per_h * factor, 6)

    def _spot_share(self, zone: str, type_name: str, step: int) -> float:
        key = (zone, type_name, step)
        share = self._spot_shares.get(key)
        if share is None:
            if len(self._spot_shares) > 100_000:
                self._spot_shares.clear()
            spot = self.settings.spot
            usual = self.settings.types[type_name].spot_price_factor or spot.price_factor
            wandering = math.exp(spot.volatility * walk(self.settings.seed, f"{zone}/{type_name}", step))
            share = self._spot_shares[key] = min(1.0, max(LOWEST_SPOT_SHARE, usual * wandering))
        return share


def _capacity(sold: TypeSettings) -> Resources:
    has = sold.gpus
    gpus = Gpus(count=has.count, kind=gpu_kind(has.kind), memory_gib=has.memory_gib) if has is not None else None
    return Resources(vcpus=sold.vcpus, memory_mib=sold.memory_mib, disk_gib=sold.disk_gib, gpus=gpus)
