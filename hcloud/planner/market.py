"""The offers that may be launched, which of them fit which jobs, and how many instances of each are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log

import numpy as np

from hcloud.core.model import Market, Offer, Reason, Resources, matches
from hcloud.planner.budget import CAPPED
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.fit.job_sizes import column_of
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import SLACK, Amounts, MachineKinds, Mask, Places, kinds_of, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.provisioning.mapping import Hybrid, MappingNeed
from hcloud.planner.provisioning.offer_rules import forbidden
from hcloud.planner.quota_limits import QuotaLimits
from hcloud.planner.snapshot import OfferBackoff
from hcloud.planner.spot_preemption import SpotRisk
from hcloud.planner.topology import admits

_PLENTY = 1_000_000
ALIKE_S = 1.1
"""Run times that differ by a tenth cost the same on spot machines, which keeps their prices few."""
FREE_USD_PER_H = 1e-6
"""Price assumed for an offer without one, so that prices can be compared."""


@dataclass(slots=True)
class OfferMarket:
    """The offers that the policy allows, as arrays over ``M`` offers, with their remaining stock."""

    offers: list[Offer]
    capacity: Amounts
    """Shape ``(M, 4)``."""
    price_usd_per_h: Amounts
    """With the losses to expect of spot, of jobs that then begin anew, shape ``(M,)``; see :meth:`price_for`."""
    steady: Mask
    """Which offers are not spot, shape ``(M,)``."""
    kinds: MachineKinds
    """Type and vCPUs of each offer."""
    backoffs: list[OfferBackoff | None]
    """The back-off in force for each offer; None: none."""
    left: list[float]
    """How many more instances of each offer are available."""
    forbidden: list[tuple[Offer, str]]
    """Offers that policy or strategy exclude, each with the cause."""
    sells_reserved: bool
    """Whether any offer is of reserved instances."""
    sells_gpus: bool
    """Whether any offer is of instances with GPUs."""
    without_wireguard: frozenset[tuple[str, str]]
    """Providers and regions of which no instance that runs can give a gang a network of its own."""
    hybrid: Hybrid | None = None
    suit: Suitability | None = None
    losses: _ExpectedLosses | None = None
    """What spot machines cost that are lost; None: none was lost of late."""
    prices: dict[float, Amounts] = field(default_factory=dict)
    """Cache of :meth:`price_for`, by seconds of work that are done again."""
    pools: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    """Remaining capacity of pools shared by several offers, by provider and pool name."""
    fits: dict[JobGroup, Mask] = field(default_factory=dict)
    """Cache of :meth:`fitting`, by group."""
    sized: dict[int, Amounts] = field(default_factory=dict)
    """Cache of :meth:`demands`, by place of the group."""
    listed: dict[JobGroup, tuple[list[bool], list[list[float]]]] = field(default_factory=dict)
    """Cache of :meth:`lists`, by group."""
    worths: dict[JobGroup, float] = field(default_factory=dict)
    """Cache of :meth:`worth_usd_per_h`, by group."""
    alone: dict[int, float] = field(default_factory=dict)
    """Cache of :meth:`alone_usd_per_h`, by place of the group."""
    mapped: dict[tuple[MappingNeed, Resources], Mask] = field(default_factory=dict)
    """Cache of :meth:`rentable`."""
    alike: dict[tuple[object, ...], Mask] = field(default_factory=dict)
    """Cache of :meth:`fitting`, by what a group requires."""
    refused: dict[tuple[int, ...], Reason] = field(default_factory=dict)
    """Cache of the reasons why fitting offers are unavailable."""
    quotas: QuotaLimits = field(default_factory=lambda: QuotaLimits(refused={}, in_use={}))
    stocked: Mask | None = None
    """Which offers are available, shape ``(M,)``; None: not computed since the last change."""
    capped: bool = False
    """Whether jobs wait because no more instances are allowed."""
    ends: dict[int, list[tuple[float | None, int]]] = field(default_factory=dict)
    """By place of a reserved offer, when its free capacity ends, the last end first, and how many instances each is."""

    def price_for(self, group: JobGroup) -> Amounts:
        """Return the hourly prices of the offers, shape ``(M,)``, those of spot with the work that ``group`` is
        expected to lose there: all of a run, or what was done since a checkpoint."""
        if self.losses is None:
            return self.price_usd_per_h
        repeated_s = self.losses.repeated_s(group)
        if repeated_s not in self.prices:
            self.prices[repeated_s] = self.losses.prices(repeated_s)
        return self.prices[repeated_s]

    def paid_ranks(self, group: JobGroup) -> int:
        """Return how many ranks of ``group`` fit on reserved instances that are not launched yet."""
        count = 0
        for at in self.obtainable(group) if self.sells_reserved else ():
            if self.offers[at].market is Market.RESERVED:
                each = _multiples(self.capacity[at].tolist(), self.taken(group)[at].tolist())
                count += int(min(self.left[at], _PLENTY)) * each
        return count

    def fitting(self, group: JobGroup) -> Mask:
        """Return which offers a rank of ``group`` fits on and may run on, available or not; shape ``(M,)``."""
        known = self.fits.get(group)
        if known is not None:
            return known
        free_size = group.aim is not None and self.suit is not None
        gpus = group.resources.gpus
        requirements = (group.demand.tobytes(), gpus, group.spot_ok, group.instance_types, group.constraints)
        key = (group,) if free_size else requirements
        if key not in self.alike:
            fits: Mask = np.logical_and.reduce(self.capacity + SLACK >= self.demands(group), axis=1)
            self.alike[key] = fits & self.permitted(group)
        self.fits[group] = self.alike[key]
        return self.alike[key]

    def demands(self, group: JobGroup) -> Amounts:
        """Return the resources of a rank of ``group`` on a new instance of each offer, shape ``(M, 4)``."""
        known = self.sized.get(group.place)
        if known is None:
            known = self.sized[group.place] = np.empty((len(self.offers), 4))
            known[:] = group.demand
            if group.aim is not None and self.suit is not None:
                known[:, 0] = self.suit.granted_alone(group.application, group.aim, self.kinds)
        return known

    def taken(self, group: JobGroup) -> Amounts:
        """Return what a rank of ``group`` takes of a new instance of each offer, shape ``(M, 4)``; exclusive: all."""
        return self.capacity if group.exclusive else self.demands(group)

    def shortfalls(self, group: JobGroup) -> Places:
        """Return how far an empty instance of each offer falls short of the target of ``group``, shape ``(M,)``; see
        :meth:`hcloud.planner.fit.size_curves.SizeCurve.shortfalls`."""
        if self.suit is None or group.aim is None or not self.offers:
            return np.zeros(len(self.offers), dtype=np.intp)
        return self.suit.shortfalls(group.application, group.aim, self.kinds)

    def permitted(self, group: JobGroup) -> Mask:
        """Return which offers are of a market, type, GPUs, zone and labels that ``group`` may use; shape ``(M,)``."""
        allowed = np.ones(len(self.offers), dtype=np.bool_) if group.spot_ok else self.steady
        if self.without_wireguard and group.constraints is not None and group.constraints.gang_network:
            connected = [(each.provider, each.region) not in self.without_wireguard for each in self.offers]
            allowed = allowed & np.array(connected, dtype=np.bool_)
        if not group.instance_types and group.constraints is None and not self.sells_gpus:
            return allowed if group.resources.gpus is None else np.zeros_like(allowed)
        return allowed & np.array([may_use(group, offer) for offer in self.offers], dtype=np.bool_)

    def stretches(self, group: JobGroup) -> list[float] | None:
        """Return by offer how many times as long ``group`` runs there as on types that it prefers; None: it prefers
        none."""
        patterns = group.preferred_types
        if not patterns:
            return None
        types = [each.instance_type.name for each in self.offers]
        return [1.0 if matches(name, patterns) else group.slower_elsewhere for name in types]

    def obtainable(self, group: JobGroup) -> list[int]:
        """Return the fitting offers that are neither backed off nor sold out, cheapest first."""
        had = self.obtainable_places(group)
        cheapest: list[int] = had[self.price_for(group)[had].argsort(kind="stable")].tolist()
        return cheapest

    def obtainable_places(self, group: JobGroup) -> Places:
        """Return :meth:`obtainable` in the order of the offers."""
        if self.stocked is None:
            stocked = [self.backoffs[at] is None and self.in_stock(at) for at in range(len(self.offers))]
            self.stocked = np.array(stocked, dtype=np.bool_)
        obtainable = self.stocked
        if np.count_nonzero(obtainable):
            obtainable = obtainable & self.fitting(group)
        if self.hybrid is not None and np.count_nonzero(obtainable):
            obtainable = obtainable & self.rentable(group)
        return obtainable.nonzero()[0]

    def in_stock(self, at: int) -> bool:
        """Return whether one more instance of offer ``at`` is available: in its own stock and pool, and its quota."""
        return self.left[at] >= 1 and self.pool_has(at) and self.quotas.exceeded_by(self.offers[at]) is None

    def pool_has(self, at: int) -> bool:
        """Return whether the pool of offer ``at``, if it has one, holds one more instance."""
        pool = self.pools.get(_pool(self.offers[at]))
        return pool is None or bool((pool + SLACK >= self.capacity[at]).all())

    def take(self, at: int, count: int = 1) -> None:
        """Take ``count`` instances of offer ``at`` out of stock; negative: put them back."""
        self.left[at] -= count
        if at in self.ends:
            self.offers[at] = _next_offer(self.offers[at], self.ends[at], self.left[at])
        self.quotas.take(self.offers[at], count)
        self.stocked = None
        pool = self.pools.get(_pool(self.offers[at]))
        if pool is not None:
            pool -= count * self.capacity[at]

    def rentable(self, group: JobGroup) -> Mask:
        """Return which offers the mapping of a hybrid strategy allows for ``group``, shape ``(M,)``."""
        if self.hybrid is None:
            return np.ones(len(self.offers), dtype=np.bool_)
        key = (group.mapping_need, group.resources)
        if key not in self.mapped:
            self.mapped[key] = self.hybrid.rentable(*key, self.offers)
        return self.mapped[key]

    def serves(self, group: JobGroup, at: int) -> bool:
        """Return whether an instance of offer ``at`` may be launched for, or shared by, a rank of ``group``."""
        return bool(self.fitting(group)[at]) and (self.hybrid is None or bool(self.rentable(group)[at]))

    def serving(self, group: JobGroup) -> Mask:
        """Return :meth:`serves` of each offer, shape ``(M,)``."""
        return self.fitting(group) if self.hybrid is None else self.fitting(group) & self.rentable(group)

    def lists(self, group: JobGroup) -> tuple[list[bool], list[list[float]]]:
        """Return :meth:`serving` and :meth:`taken` as plain lists by offer."""
        known = self.listed.get(group)
        if known is None:
            known = self.listed[group] = (self.serving(group).tolist(), self.taken(group).tolist())
        return known

    def worth_usd_per_h(self, group: JobGroup) -> float:
        """Return the price of the cheapest obtainable instance for one rank of ``group``; 0 if there is none."""
        worth = self.worths.get(group)
        if worth is None:
            prices = self.price_for(group)[self.obtainable_places(group)]
            worth = self.worths[group] = float(np.minimum.reduce(prices)) if prices.size else 0.0
        return worth

    def alone_usd_per_h(self, group: JobGroup) -> float:
        """Return the price of the cheapest instance that would be launched for one rank of ``group``; 0 if there is
        none.

        Only offers that are likely to meet its target count or, if there are none, those that fall short the least.
        """
        known = self.alone.get(group.place)
        if known is None:
            obtainable = self.obtainable_places(group)
            if obtainable.size > 1:
                short = np.maximum(self.shortfalls(group)[obtainable], 1)
                obtainable = obtainable[short <= np.minimum.reduce(short)]
            known = self.alone[group.place] = (
                float(np.minimum.reduce(self.price_for(group)[obtainable])) if obtainable.size else 0.0
            )
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class _PermittedOffers:
    """The part of :class:`OfferMarket` that depends only on offers and policy."""

    offers: list[Offer]
    capacity: Amounts
    price_usd_per_h: Amounts
    steady: Mask
    kinds: MachineKinds
    left: list[float]
    forbidden: list[tuple[Offer, str]]
    sells_reserved: bool
    sells_gpus: bool


def open_market(context: PlanContext) -> OfferMarket:
    """Return the snapshot's offers, sorted by what policy, strategy and back-offs allow."""
    made_of = (context.snapshot.offers, context.policy)
    permitted = context.snapshot.plan_cache.get("shelf", made_of, lambda: _permit_offers(context))
    backoffs = [b for b in context.snapshot.backoffs if b.until_at > context.now]
    left, ends, offers = _left(context, permitted), _ends(context, permitted), permitted.offers
    if ends:
        offers = offers.copy()
        for at, parts in ends.items():
            ends[at] = parts = _first(parts, left[at])
            left[at] = float(sum(count for _, count in parts))
            offers[at] = _next_offer(offers[at], parts, left[at])
    losses = _expected_losses(context, permitted)
    return OfferMarket(
        offers=offers,
        capacity=permitted.capacity,
        price_usd_per_h=permitted.price_usd_per_h if losses is None else losses.prices(losses.run_s),
        losses=losses,
        steady=permitted.steady,
        kinds=permitted.kinds,
        backoffs=[
            max((each for each in backoffs if each.covers(offer)), key=retry_order, default=None)
            for offer in permitted.offers
        ],
        left=left,
        ends=ends,
        forbidden=permitted.forbidden,
        sells_reserved=permitted.sells_reserved,
        sells_gpus=permitted.sells_gpus,
        without_wireguard=_without_wireguard(context),
        hybrid=context.strategy.hybrid,
        suit=context.suit,
        pools=_open_pools(context),
        quotas=QuotaLimits.of(context.snapshot.refused_quotas, context.fleet.instances, context.now),
        capped=any(each.wait_code == CAPPED for queue in context.waiting.queues.values() for each in queue.segments),
    )


def _without_wireguard(context: PlanContext) -> frozenset[tuple[str, str]]:
    ready = [each for each in context.fleet.instances if each.ready_at is not None and each.addresses != ()]
    lacking = {(each.offer.provider, each.offer.region) for each in ready if each.lacks_gang_network}
    return frozenset(lacking - {(each.offer.provider, each.offer.region) for each in ready if each.has_wireguard})


def _left(context: PlanContext, permitted: _PermittedOffers) -> list[float]:
    """Return how many more instances there are of each offer: none if its commitment ends within a lease."""
    if not permitted.sells_reserved:
        return permitted.left.copy()
    lease_ends_at = context.now + context.policy.lease.horizon_s
    ends = [None if each.committed else each.ends_at for each in permitted.offers]
    return [
        0.0 if end is not None and end < lease_ends_at else left for left, end in zip(permitted.left, ends, strict=True)
    ]


def _ends(context: PlanContext, permitted: _PermittedOffers) -> dict[int, list[tuple[float | None, int]]]:
    """Return when the free capacity of reserved offers ends, by place; not what ends within a lease."""
    if not permitted.sells_reserved:
        return {}
    lease_ends_at = context.now + context.policy.lease.horizon_s
    return {
        at: [
            (each.ends_at, each.free)
            for each in offer.next_committed
            if each.free > 0 and (each.ends_at is None or each.ends_at >= lease_ends_at)
        ]
        for at, offer in enumerate(permitted.offers)
        if offer.committed
    }


def _first(parts: Sequence[tuple[float | None, int]], left: float) -> list[tuple[float | None, int]]:
    kept = []
    for ends_at, count in parts:
        kept.append((ends_at, int(min(count, left))))
        left -= kept[-1][1]
    return kept


def _next_offer(offer: Offer, ends: Sequence[tuple[float | None, int]], left: float) -> Offer:
    """Return the offer as the next instance has it, whose commitment ends last of the ``left`` that are not taken."""
    later = sum(count for _, count in ends) - left
    for ends_at, count in ends:
        later -= count
        if later < 0:
            return replace(offer, ends_at=ends_at, committed=())
    return replace(offer, committed=())


@dataclass(frozen=True, slots=True)
class _ExpectedLosses:
    """What spot machines cost that are lost now and then."""

    permitted: _PermittedOffers
    risk: SpotRisk
    run_times: JobRunTimes
    run_s: float
    """How long jobs usually run."""

    def repeated_s(self, group: JobGroup) -> float:
        """Return how much of a run of ``group`` is done again when its machine is lost, in seconds, at most."""
        median_s = self.run_times.median_s(group.example)
        run_s = self.run_s if median_s is None else ALIKE_S ** round(log(max(median_s, 1.0), ALIKE_S))
        return run_s if group.checkpoint_s is None else min(run_s, group.checkpoint_s)

    def prices(self, repeated_s: float) -> Amounts:
        """Return the offers' prices; those of spot as they are for runs of which ``repeated_s`` are lost at most."""
        prices = self.permitted.price_usd_per_h.copy()
        for at in np.flatnonzero(~self.permitted.steady):
            prices[at] *= self.risk.cost_factor(self.permitted.offers[at], repeated_s)
        return prices


def _expected_losses(context: PlanContext, permitted: _PermittedOffers) -> _ExpectedLosses | None:
    lifetimes = context.snapshot.fleet_stats.spot_lifetimes
    if permitted.steady.all():
        return None
    warned = any(each.preempt_at is not None for each in context.fleet.instances)
    if not (warned or any(each.preempted for each in lifetimes)):
        return None
    risk = SpotRisk(lifetimes, context.fleet.instances, context.now)
    return _ExpectedLosses(permitted, risk, context.run_times, context.run_times.recent_median_s)


def _permit_offers(context: PlanContext) -> _PermittedOffers:
    allowed: list[Offer] = []
    refused: list[tuple[Offer, str]] = []
    for offer in sorted(context.snapshot.offers, key=lambda offer: offer.key):
        why = forbidden(context.policy, offer) or context.strategy.refusal(offer)
        if why is None:
            allowed.append(offer)
        else:
            refused.append((offer, why))
    return _PermittedOffers(
        offers=allowed,
        capacity=np.array([vector(o.instance_type.capacity) for o in allowed], dtype=np.float64).reshape(-1, 4),
        price_usd_per_h=np.array([max(o.price_usd_per_h, FREE_USD_PER_H) for o in allowed], dtype=np.float64),
        steady=np.array([o.market is not Market.SPOT for o in allowed], dtype=np.bool_),
        kinds=kinds_of([(column_of(o), o.instance_type.capacity.vcpus) for o in allowed]),
        left=[float("inf") if o.available is None else float(o.available) for o in allowed],
        forbidden=refused,
        sells_reserved=any(o.market is Market.RESERVED for o in allowed),
        sells_gpus=any(o.instance_type.capacity.gpus is not None for o in allowed),
    )


def _pool(offer: Offer) -> tuple[str, str]:
    return (offer.provider, offer.pool)


def _open_pools(context: PlanContext) -> dict[tuple[str, str], Amounts]:
    """Return what is left of shared pools: what the offers state, less what was requested since they were read."""
    pools: dict[tuple[str, str], Amounts] = {}
    read_at: dict[tuple[str, str], float] = {}
    for offer in context.snapshot.offers:
        if offer.pool and offer.pool_free is not None:
            pools[_pool(offer)], read_at[_pool(offer)] = vector(offer.pool_free), offer.priced_at
            pools[_pool(offer)][3] = inf  # no pool states how many GPUs it has
    for instance in context.fleet.instances if pools else ():
        pool = _pool(instance.offer)
        if pool in pools and instance.requested_at >= read_at[pool]:
            pools[pool] -= vector(instance.capacity)
    return pools


def _multiples(free: Sequence[float], demand: Sequence[float]) -> int:
    parts = [(has + SLACK) / wants for has, wants in zip(free, demand, strict=True) if wants > 0]
    return int(min(parts)) if parts else _PLENTY


def may_use(group: JobGroup, offer: Offer) -> bool:
    """Return whether ``group`` may run on the offer's type, with its GPUs, in its zone, and with its labels."""
    patterns = group.instance_types
    typed = not patterns or matches(offer.instance_type.name, patterns)
    suits = offer.suits_gpus(group.resources.gpus, named=bool(patterns))
    return typed and suits and admits(group.constraints, offer)


def retry_order(backoff: OfferBackoff) -> tuple[float, str, str, str, str, str]:
    """Return the key by which back-offs are sorted: by when they end, then by what they cover."""
    key = (backoff.provider, backoff.zone, backoff.instance_type, backoff.market, backoff.error)
    return (backoff.until_at, *key)
