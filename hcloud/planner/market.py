"""What can be bought: offers the policy allows, which fit whom, which one is cheapest for the jobs that wait.

The choice is a greedy set cover: the offer with the smallest price per worth of work it takes over, where the worth of
a rank is the price of the cheapest machine it could have alone. So one big machine wins over several small ones
exactly when it is cheaper for the jobs that fill it. Reserved machines come first: they are paid already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import numpy as np

from hcloud.core.model import Market, Number, Offer, Reason, Resources, matches
from hcloud.planner.budget import CAPPED
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fit.suitability import Suitability, column_of
from hcloud.planner.fleet import SLACK, Amounts, MachineKinds, Mask, Places, kinds_of, vector
from hcloud.planner.provisioning.strategies import Hybrid, MappingNeed, forbidden
from hcloud.planner.snapshot import OfferBackoff
from hcloud.planner.text import amount, offer_words, seconds
from hcloud.planner.topology import admits
from hcloud.spec.validation import counted

LOOK_AHEAD_GROUPS = 16
"""So many kinds of waiting jobs are considered when judging how full a new machine would become."""
_PLENTY = 1_000_000
LOOK_AHEAD_UNITS = 16
"""So many units are looked at when judging who can be together on a new machine."""
DEARER = 1.5
"""While jobs wait as no more machines are allowed, offers up to so many times as dear, for what they are worth, as the
best are alike: the largest is taken."""
FREE_USD_PER_H = 1e-6
"""What a machine without a price is compared with."""


@dataclass(slots=True)
class OfferMarket:
    """The offers the policy allows, as arrays; ``capacity`` is ``(M, 3)``. ``left``: how many more can be had.

    ``pools``: what is left of what several offers share, by provider and name of the pool. ``sells_reserved``: whether
    any of them is of machines that are paid for already. ``stocked``: which can be had (None: to be looked at).
    ``capped``: whether jobs wait as no more machines are allowed.
    """

    offers: list[Offer]
    capacity: Amounts
    price_usd_per_h: Amounts
    steady: Mask
    kinds: MachineKinds
    backoffs: list[OfferBackoff | None]
    left: list[float]
    forbidden: list[tuple[Offer, str]]
    sells_reserved: bool
    hybrid: Hybrid | None = None
    suit: Suitability | None = None
    pools: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    fits: dict[int, Mask] = field(default_factory=dict)
    sized: dict[int, Amounts] = field(default_factory=dict)
    worths: dict[int, float] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    mapped: dict[tuple[MappingNeed, Resources], Mask] = field(default_factory=dict)
    alike: dict[tuple[object, ...], Mask] = field(default_factory=dict)
    refused: dict[tuple[int, ...], Reason] = field(default_factory=dict)
    stocked: Mask | None = None
    capped: bool = False

    def paid_ranks(self, group: JobGroup) -> int:
        """Return how many ranks of ``group`` reserved machines that are not launched yet could take."""
        count = 0
        for at in self.obtainable(group) if self.sells_reserved else ():
            if self.offers[at].market is Market.RESERVED:
                each = _times(self.capacity[at], self.taken(group)[at])
                count += int(min(self.left[at], _PLENTY)) * each
        return count

    def fitting(self, group: JobGroup) -> Mask:
        """Return which offers a rank of ``group`` fits on and may run on, available now or not."""
        known = self.fits.get(id(group))
        if known is not None:
            return known
        free_size = group.aim is not None and self.suit is not None
        asked = (group.demand.tobytes(), group.spot_ok, group.instance_types, group.constraints)
        key = (id(group),) if free_size else asked
        if key not in self.alike:
            fits: Mask = np.logical_and.reduce(self.capacity + SLACK >= self.demands(group), axis=1)
            self.alike[key] = fits & self.permitted(group)
        self.fits[id(group)] = self.alike[key]
        return self.alike[key]

    def demands(self, group: JobGroup) -> Amounts:
        """Return what a rank of ``group`` gets on a new machine of each offer, shape ``(M, 3)``."""
        known = self.sized.get(group.place)
        if known is None:
            known = self.sized[group.place] = np.empty((len(self.offers), 3))
            known[:] = group.demand
            if group.aim is not None and self.suit is not None:
                known[:, 0] = self.suit.granted_alone(group.application, group.aim, self.kinds)
        return known

    def taken(self, group: JobGroup) -> Amounts:
        """Return what a rank of ``group`` takes of a new machine of each offer, shape ``(M, 3)``: if exclusive, all."""
        return self.capacity if group.exclusive else self.demands(group)

    def shortfalls(self, group: JobGroup) -> Places:
        """Return how far a machine of each offer, empty, falls short of the target of ``group``, as far as is known:
        see :meth:`hcloud.planner.fit.sizing.SizeCurve.shortfalls`."""
        if self.suit is None or group.aim is None or not self.offers:
            return np.zeros(len(self.offers), dtype=np.intp)
        return self.suit.shortfalls(group.application, group.aim, self.kinds)

    def permitted(self, group: JobGroup) -> Mask:
        """Return which offers are of a market, type and place that ``group`` may run on."""
        allowed = np.ones(len(self.offers), dtype=np.bool_) if group.spot_ok else self.steady
        if not group.instance_types and group.constraints is None:
            return allowed
        return allowed & np.array([may_use(group, offer) for offer in self.offers], dtype=np.bool_)

    def obtainable(self, group: JobGroup) -> list[int]:
        """Return the fitting offers that are neither backed off nor sold out, cheapest first."""
        had = self.had(group)
        cheapest: list[int] = had[self.price_usd_per_h[had].argsort(kind="stable")].tolist()
        return cheapest

    def had(self, group: JobGroup) -> Places:
        """Return :meth:`obtainable` in the order of the offers."""
        if self.stocked is None:
            stocked = [self.backoffs[at] is None and self.in_stock(at) for at in range(len(self.offers))]
            self.stocked = np.array(stocked, dtype=np.bool_)
        had = self.stocked
        if np.count_nonzero(had):
            had = had & self.fitting(group)
        if self.hybrid is not None and np.count_nonzero(had):
            had = had & self.rentable(group)
        return had.nonzero()[0]

    def in_stock(self, at: int) -> bool:
        """Return whether one more machine of offer ``at`` can be had, of its own stock and of its pool."""
        pool = self.pools.get(_pool(self.offers[at]))
        return self.left[at] >= 1 and (pool is None or bool((pool + SLACK >= self.capacity[at]).all()))

    def take(self, at: int, count: int = 1) -> None:
        """Take ``count`` machines of offer ``at`` out of stock (negative: give them back)."""
        self.left[at] -= count
        self.stocked = None
        pool = self.pools.get(_pool(self.offers[at]))
        if pool is not None:
            pool -= count * self.capacity[at]

    def rentable(self, group: JobGroup) -> Mask:
        """Return which offers the mapping of a hybrid strategy allows for ``group``; without one: all."""
        if self.hybrid is None:
            return np.ones(len(self.offers), dtype=np.bool_)
        key = (group.mapping_need, group.resources)
        if key not in self.mapped:
            self.mapped[key] = self.hybrid.rentable(*key, self.offers)
        return self.mapped[key]

    def serves(self, group: JobGroup, at: int) -> bool:
        """Return whether a machine of offer ``at`` may be launched for, or joined by, a rank of ``group``."""
        return bool(self.fitting(group)[at]) and (self.hybrid is None or bool(self.rentable(group)[at]))

    def serving(self, group: JobGroup) -> Mask:
        """Return :meth:`serves` of each offer, shape ``(M,)``."""
        return self.fitting(group) if self.hybrid is None else self.fitting(group) & self.rentable(group)

    def worth_usd_per_h(self, group: JobGroup) -> float:
        """Return the price of the cheapest obtainable machine for one rank of ``group``; 0 where there is none."""
        worth = self.worths.get(id(group))
        if worth is None:
            prices = self.price_usd_per_h[self.had(group)]
            worth = self.worths[id(group)] = float(np.minimum.reduce(prices)) if prices.size else 0.0
        return worth

    def alone_usd_per_h(self, group: JobGroup) -> float:
        """Return the price of the cheapest machine that would be launched for one rank of ``group``: of those that fall
        short of its target the least, or are likely to meet it; 0 where there is none."""
        known = self.alone.get(group.place)
        if known is None:
            had = self.had(group)
            if had.size > 1:
                short = np.maximum(self.shortfalls(group)[had], 1)
                had = had[short <= np.minimum.reduce(short)]
            known = self.alone[group.place] = float(np.minimum.reduce(self.price_usd_per_h[had])) if had.size else 0.0
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class _PermittedOffers:
    """What policy and strategy say of the offers, whatever the moment; see :class:`Counter`."""

    offers: list[Offer]
    capacity: Amounts
    price_usd_per_h: Amounts
    steady: Mask
    kinds: MachineKinds
    left: list[float]
    forbidden: list[tuple[Offer, str]]
    sells_reserved: bool


def open_market(context: PlanContext) -> OfferMarket:
    """Sort the snapshot's offers by what policy and back-off memory say of them."""
    made_of = (context.snapshot.offers, context.policy)
    shelf = context.snapshot.plan_cache.of("shelf", made_of, lambda: _fill_shelf(context))
    backoffs = [b for b in context.snapshot.backoffs if b.until_at > context.now]
    return OfferMarket(
        offers=shelf.offers,
        capacity=shelf.capacity,
        price_usd_per_h=shelf.price_usd_per_h,
        steady=shelf.steady,
        kinds=shelf.kinds,
        backoffs=[_backoff(backoffs, offer) if backoffs else None for offer in shelf.offers],
        left=shelf.left.copy(),
        forbidden=shelf.forbidden,
        sells_reserved=shelf.sells_reserved,
        hybrid=context.strategy.hybrid,
        suit=context.suit,
        pools=_open_pools(context),
        capped=any(job.wait_code == CAPPED for queue in context.queue.values() for job, _ in queue),
    )


def _fill_shelf(context: PlanContext) -> _PermittedOffers:
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
        capacity=np.array([vector(o.instance_type.capacity) for o in allowed], dtype=np.float64).reshape(-1, 3),
        price_usd_per_h=np.array([max(o.price_usd_per_h, FREE_USD_PER_H) for o in allowed], dtype=np.float64),
        steady=np.array([o.market is not Market.SPOT for o in allowed], dtype=np.bool_),
        kinds=kinds_of([(column_of(o), o.instance_type.capacity.vcpus) for o in allowed]),
        left=[float("inf") if o.available is None else float(o.available) for o in allowed],
        forbidden=refused,
        sells_reserved=any(o.market is Market.RESERVED for o in allowed),
    )


def _pool(offer: Offer) -> tuple[str, str]:
    return (offer.provider, offer.pool)


def _open_pools(context: PlanContext) -> dict[tuple[str, str], Amounts]:
    """Return what is left of shared pools: what offers say, less what was requested after they were read."""
    pools: dict[tuple[str, str], Amounts] = {}
    read_at: dict[tuple[str, str], float] = {}
    for offer in context.snapshot.offers:
        if offer.pool and offer.pool_free is not None:
            pools[_pool(offer)], read_at[_pool(offer)] = vector(offer.pool_free), offer.priced_at
    for instance in context.fleet.instances if pools else ():
        pool = _pool(instance.offer)
        if pool in pools and instance.requested_at >= read_at[pool]:
            pools[pool] -= vector(instance.capacity)
    return pools


def _backoff(active: Sequence[OfferBackoff], offer: Offer) -> OfferBackoff | None:
    return max((each for each in active if each.covers(offer)), key=_urgency, default=None)


def _urgency(backoff: OfferBackoff) -> tuple[float, str, str, str, str, str]:
    key = (backoff.provider, backoff.zone, backoff.instance_type, backoff.market, backoff.error)
    return (backoff.until_at, *key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An offer that could be bought, what it would be filled with, and how it compares."""

    at: int
    worth_usd_per_h: float
    ranks: int
    score: float


def rank_choices(
    context: PlanContext, offer_market: OfferMarket, first: JobGroup, waiting: Sequence[JobGroup], among: Sequence[int]
) -> list[Choice]:
    """Return the offers ``among`` for a rank of ``first``, best first, with the other ``waiting`` groups in mind."""
    others = (group for group in waiting if group is not first and group.pending > 0 and _needs_one(group, first))
    company = [(first, (first.pending + 1) * first.wanted)]
    # Who can have what is paid for already is not what a rented machine is for.
    company += [(each, _unpaid(offer_market, each)) for each in islice(others, LOOK_AHEAD_GROUPS)]
    return rank_for(context, offer_market, company, among)


def rank_for(
    context: PlanContext, offer_market: OfferMarket, company: Sequence[tuple[JobGroup, int]], among: Sequence[int]
) -> list[Choice]:
    """Return the offers ``among``, best first, for a rank of the first group of ``company``, which is all who need one:
    each group with its number of ranks, of which :data:`LOOK_AHEAD_GROUPS` and one are considered."""
    company = company[: 1 + LOOK_AHEAD_GROUPS]
    worths = [offer_market.worth_usd_per_h(group) for group, _ in company]
    scarce = sum(count for _, count in company) > context.policy.caps.max_instances - context.ledger.instances
    choices = [_judge(context, offer_market, at, company, worths) for at in among]
    shortfalls = _shortfalls(offer_market, company[0][0], choices)
    scores = [each.score for each in choices if offer_market.offers[each.at].market is not Market.RESERVED]
    alike = round(DEARER * min(scores, default=0.0), 9) if offer_market.capped else 0.0

    def order(choice: Choice) -> tuple[int, bool, float, float, float, tuple[str, str, str, str]]:
        """Sort key: likeliest to meet the target, paid for already, best score (nine digits), then size."""
        offer, score = offer_market.offers[choice.at], round(choice.score, 9)
        # Equal value for money: the smallest machine, unless machines are what is short; then the one that does most.
        size = -choice.worth_usd_per_h if scarce else offer.price_usd_per_h
        rented = offer.market is not Market.RESERVED
        return (shortfalls[choice.at], rented, max(score, alike), size, score, offer.key)

    return sorted(choices, key=order)


def _shortfalls(offer_market: OfferMarket, first: JobGroup, choices: Sequence[Choice]) -> dict[int, int]:
    """Return by offer how likely it is to fall short of the target of ``first``.

    Where it is at most half as dear to take one that is likelier than not to do, one that surely does counts no better:
    to take the first, and where it fails the second, then costs no more. What is paid for already is never dear.
    """
    short = offer_market.shortfalls(first)
    found = {each.at: int(short[each.at]) for each in choices}
    likely = min((each.score for each in choices if found[each.at] == 1), default=inf)
    rented = [each for each in choices if offer_market.offers[each.at].market is not Market.RESERVED]
    dear = {each.at for each in rented if found[each.at] == 0 and each.score >= 2.0 * likely - SLACK}
    return {at: 1 if at in dear else short for at, short in found.items()}


def _unpaid(offer_market: OfferMarket, group: JobGroup) -> int:
    return max(0, group.pending * group.wanted - offer_market.paid_ranks(group))


def _needs_one(group: JobGroup, first: JobGroup) -> bool:
    """Whether members of ``group`` are without a machine, as far as is known while ``first`` is served."""
    return group.stuck is None and (group.promise is first.promise or not group.fits_now)


def _judge(
    context: PlanContext,
    offer_market: OfferMarket,
    at: int,
    company: Sequence[tuple[JobGroup, int]],
    worths: list[float],
) -> Choice:
    left, worth, ranks, there = offer_market.capacity[at].copy(), 0.0, 0, list[str]()
    for (group, count), each in zip(company, worths, strict=True):
        if offer_market.serves(group, at):
            amount_each = offer_market.taken(group)[at]
            taken = _beside(context, group, min(count, _times(left, amount_each)), there)
            left -= amount_each * taken
            worth += each * taken
            ranks += taken
    score = float(offer_market.price_usd_per_h[at]) / max(worth, FREE_USD_PER_H)
    return Choice(at=at, worth_usd_per_h=worth, ranks=ranks, score=score)


def _beside(context: PlanContext, group: JobGroup, most: int, there: list[str]) -> int:
    """Return how many ranks of ``group``, up to ``most``, can be together with the units of ``there`` without anybody
    being disturbed; they are added to ``there``. Beyond ``LOOK_AHEAD_UNITS`` the first ones tell."""
    suit = context.suit
    if suit is None or suit.pressure is None:
        return most
    count = 0
    while count < most:
        if len(there) >= LOOK_AHEAD_UNITS:
            return most
        if there and not (suit.together(group.application, there) if group.application else True):
            break
        there.append(group.application)
        count += 1
    return count


def _times(left: Amounts, demand: Amounts) -> int:
    """Return how many times ``demand`` goes into ``left``."""
    asked = demand > 0
    return int(((left[asked] + SLACK) / demand[asked]).min()) if asked.any() else _PLENTY


# ----------------------------------------------------------------------------------------------------- why nothing fits
def why_not_obtainable(context: PlanContext, offer_market: OfferMarket, group: JobGroup) -> Reason:
    """Return why no offer can be had for a rank of ``group``: too small, forbidden, backed off, sold out, not known."""
    fitting = [int(at) for at in np.flatnonzero(offer_market.fitting(group))]
    if fitting:
        return _backed_off(context, offer_market, fitting)
    if not context.snapshot.offers:
        return Reason(code="no_offers", text="waiting: no provider has listed its offers yet")
    if (reason := _no_such_machine(context, group)) is not None:
        return reason
    sizes_fit = [pair for pair in offer_market.forbidden if _large_enough(group, pair[0])]
    spot = [o for o in offer_market.offers if _large_enough(group, o)]
    if sizes_fit or spot:
        return _not_allowed(group, sizes_fit, spot)
    return _too_small(context, group)


def _large_enough(group: JobGroup, offer: Offer) -> bool:
    return group.resources.fits(offer.instance_type.capacity) and may_use(group, offer)


def may_use(group: JobGroup, offer: Offer) -> bool:
    """Whether ``group`` may run on the offer's type, in its zone, and on machines with its labels."""
    patterns = group.instance_types
    typed = not patterns or matches(offer.instance_type.name, patterns)
    return typed and admits(group.constraints, offer)


def _backed_off(context: PlanContext, offer_market: OfferMarket, fitting: list[int]) -> Reason:
    known = offer_market.refused.get(tuple(fitting))
    if known is None:
        known = offer_market.refused[tuple(fitting)] = _why_backed_off(context, offer_market, fitting)
    return known


def _why_backed_off(context: PlanContext, offer_market: OfferMarket, fitting: list[int]) -> Reason:
    waiting = [b for at in fitting if (b := offer_market.backoffs[at]) is not None]
    if not waiting:
        names = ", ".join(sorted({offer_market.offers[at].instance_type.name for at in fitting}))
        return Reason(code="sold_out", text=f"waiting: no {names} available", numbers={"offers": len(fitting)})
    first = min(waiting, key=_urgency)
    fit = f"{counted(len(fitting), 'offer')} fit"
    failed, rest = ("all", "") if len(waiting) == len(fitting) else (f"{len(waiting)}", "; all others are sold out")
    if first.until_at == inf:
        text = f"waiting: {fit}; {failed} {first.error} until 'hcloud drain --undo'{rest}"
        return Reason(code="drained", text=text, numbers={"offers": len(fitting), "error": first.error})
    code = "quota_exceeded" if all("quota" in b.error.lower() for b in waiting) else "all_backed_off"
    text = f"waiting: {fit}; {failed} failed recently ({first.error or 'no reason given'}){rest}"
    text += f"; next retry in {seconds(first.until_at - context.now)}"
    numbers: dict[str, Number] = {"until_at": first.until_at, "offers": len(fitting), "error": first.error}
    return Reason(code=code, text=text, numbers=numbers)


def _not_allowed(group: JobGroup, forbidden: list[tuple[Offer, str]], spot: list[Offer]) -> Reason:
    if forbidden:
        offer, why = min(forbidden, key=lambda pair: (pair[0].price_usd_per_h, pair[0].key))
    else:
        offer, why = min(spot, key=lambda o: (o.price_usd_per_h, o.key)), "this job may not run on spot"
    text = f"{amount(group.resources)} would fit {offer_words(offer)}; refused: {why}"
    return Reason(code="not_allowed", text=text, numbers={"nearest": offer.instance_type.name, "why": why})


def _no_such_machine(context: PlanContext, group: JobGroup) -> Reason | None:
    """Return which of its demands (types, then zones, then labels) leaves nothing on offer, or None where none does."""
    left, where, patterns = list(context.snapshot.offers), group.constraints, group.instance_types
    if patterns:
        typed = [offer for offer in left if matches(offer.instance_type.name, patterns)]
        if not typed:
            names = sorted({offer.instance_type.name for offer in left})
            return _nothing("no_such_type", "instance_types", ", ".join(patterns), names)
        left = typed
    if where is not None and where.zones:
        zoned = [offer for offer in left if where.in_zone(offer.zone)]
        if not zoned:
            zones = sorted({offer.zone for offer in left})
            return _nothing("no_such_zone", "placement.zones", where.words("zones"), zones)
        left = zoned
    if where is not None and not any(where.labelled(offer.labels) for offer in left):
        wanted = {name for name, _ in where.labels}
        there = {f"{name}={value}" for offer in left for name, value in offer.labels.items() if name in wanted}
        names = sorted(there) or ["none with such labels"]
        return _nothing("no_such_label", "placement.labels", where.words("labels"), names)
    return None


def _nothing(code: str, key: str, asked: str, there: Sequence[str]) -> Reason:
    told = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
    text = f"restricted to {asked} ({key}); available: {told}"
    return Reason(code=code, text=text, numbers={"asked": asked, "bound": key, "kinds": len(there)})


def _too_small(context: PlanContext, group: JobGroup) -> Reason:
    need = vector(group.resources)

    def shortfall(offer: Offer) -> float:
        """Return by what factor the scarcest resource of an offer's type is too small (> 1: it is)."""
        return float((need / np.maximum(vector(offer.instance_type.capacity), SLACK)).max())

    named = [offer for offer in context.snapshot.offers if may_use(group, offer)]
    nearest = min(named, key=lambda offer: (shortfall(offer), offer.key))
    have = nearest.instance_type.capacity
    pairs = (
        ("vCPU", group.resources.vcpus, have.vcpus),
        ("MiB", group.resources.memory_mib, have.memory_mib),
        ("GiB disk", group.resources.disk_gib, have.disk_gib),
    )
    short = ", ".join(f"{want:g} {unit} requested, it has {has:g}" for unit, want, has in pairs if want > has + SLACK)
    numbers: dict[str, Number] = {
        "nearest": nearest.instance_type.name,
        "needed_vcpus": group.resources.vcpus,
        "needed_memory_mib": group.resources.memory_mib,
        "needed_disk_gib": group.resources.disk_gib,
        "nearest_vcpus": have.vcpus,
        "nearest_memory_mib": have.memory_mib,
        "nearest_disk_gib": have.disk_gib,
    }
    text = f"no offer fits {amount(group.resources)}; the nearest, {nearest.instance_type.name}, is too small: {short}"
    return Reason(code="no_offer_fits", text=text, numbers=numbers)
