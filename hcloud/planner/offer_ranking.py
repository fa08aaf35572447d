"""Which offer is the best value for the jobs that wait.

The choice is a greedy set cover: the offer with the smallest price per worth of the work it takes over. The worth of a
rank is the price of the cheapest instance it could have alone. So one large instance wins over several small ones
exactly when it is cheaper for the jobs that fill it. Reserved instances come first, because they are paid for already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from hcloud.core.model import Market
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import SLACK
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.market import FREE_USD_PER_H, OfferMarket

LOOK_AHEAD_GROUPS = 16
"""Number of groups of waiting jobs considered when estimating how full a new instance would become."""
LOOK_AHEAD_UNITS = 16
"""Number of units considered when checking which ones tolerate each other on a new instance."""
EQUAL_PRICE_FACTOR = 1.5
"""While jobs wait at the cap on instances, offers within this factor of the best price per worth count as equal, and
the largest is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An offer that could be launched, how full it would be, and how it compares."""

    at: int
    """Place of the offer in the market."""
    worth_usd_per_h: float
    """Worth of the ranks it would take."""
    ranks: int
    """Number of these ranks."""
    score: float
    """Price per worth; the smallest is best."""


def rank_choices(
    context: PlanContext, offer_market: OfferMarket, first: JobGroup, waiting: Sequence[JobGroup], among: Sequence[int]
) -> list[Choice]:
    """Return the offers ``among`` for a rank of ``first``, best first, considering the other ``waiting`` groups."""
    others = (
        group
        for group in waiting
        if group is not first
        and group.state.pending > 0
        and group.state.stuck is None
        # The others of the same kind were not placed either; those of the other kind may still find room.
        and (group.promise is first.promise or not group.state.fits_now)
    )
    company = [(first, (first.state.pending + 1) * first.wanted)]
    # Ranks that fit on reserved instances do not justify a rented one.
    company += [
        (each, max(0, each.state.pending * each.wanted - offer_market.paid_ranks(each)))
        for each in islice(others, LOOK_AHEAD_GROUPS)
    ]
    return rank_for(context, offer_market, company, among)


_Wanted = tuple[list[bool], list[list[float]], int, float, str, list[float] | None]
"""A group that needs instances: :meth:`OfferMarket.lists`, its number of ranks, the worth of each, its application, and
:meth:`OfferMarket.stretches`."""


def rank_for(
    context: PlanContext, offer_market: OfferMarket, company: Sequence[tuple[JobGroup, int]], among: Sequence[int]
) -> list[Choice]:
    """Return the offers ``among`` for a rank of the first group of ``company``, best first.

    ``company`` are all groups that need an instance, each with its number of ranks; the first ``1 +``
    :data:`LOOK_AHEAD_GROUPS` are considered.
    """
    company = company[: 1 + LOOK_AHEAD_GROUPS]
    worths = [offer_market.worth_usd_per_h(group) for group, _ in company]
    scarce = sum(count for _, count in company) > context.policy.caps.max_instances - context.ledger.instances
    wants = [
        (*offer_market.lists(group), count, worth, group.application, offer_market.stretches(group))
        for (group, count), worth in zip(company, worths, strict=True)
    ]
    prices = offer_market.price_for(company[0][0])
    choices = [_score_offer(context.suit, offer_market, at, wants, float(prices[at])) for at in among]
    shortfalls = _shortfalls(offer_market, company[0][0], choices)
    scores = [each.score for each in choices if offer_market.offers[each.at].market is not Market.RESERVED]
    alike = round(EQUAL_PRICE_FACTOR * min(scores, default=0.0), 9) if offer_market.capped else 0.0

    def order(choice: Choice) -> tuple[int, bool, float, float, float, tuple[str, str, str, str]]:
        offer, score = offer_market.offers[choice.at], round(choice.score, 9)
        # At equal value take the smallest instance, unless instances are scarce; then the one worth most.
        size = -choice.worth_usd_per_h if scarce else offer.price_usd_per_h
        rented = offer.market is not Market.RESERVED
        return (shortfalls[choice.at], rented, max(score, alike), size, score, offer.key)

    return sorted(choices, key=order)


def _shortfalls(offer_market: OfferMarket, first: JobGroup, choices: Sequence[Choice]) -> dict[int, int]:
    """Return by offer how likely it is to miss the target of ``first``.

    An offer sure to meet it ranks no better than one likely to, if it costs at least twice as much: trying the cheap
    one and falling back costs no more. Reserved instances are exempt.
    """
    short = offer_market.shortfalls(first)
    likelihoods = {each.at: int(short[each.at]) for each in choices}
    likely = min((each.score for each in choices if likelihoods[each.at] == 1), default=inf)
    rented = [each for each in choices if offer_market.offers[each.at].market is not Market.RESERVED]
    expensive = {each.at for each in rented if likelihoods[each.at] == 0 and each.score >= 2.0 * likely - SLACK}
    return {at: 1 if at in expensive else short for at, short in likelihoods.items()}


def _score_offer(
    suit: Suitability | None, offer_market: OfferMarket, at: int, wants: Sequence[_Wanted], usd_per_h: float
) -> Choice:
    # Plain numbers: arrays of four take ten times as long, and this runs for each group and offer of each machine.
    vcpus, memory_mib, disk_gib, gpus = offer_market.capacity[at].tolist()
    worth, ranks, present = 0.0, 0, tuple[str, ...]()
    interference = suit if suit is not None and suit.pressure is not None else None
    for serves, amounts, count, each, application, stretches in wants:
        if not serves[at]:
            continue
        rank_vcpus, rank_memory_mib, rank_disk_gib, rank_gpus = amounts[at]
        taken = count
        if rank_vcpus > 0 and rank_vcpus * taken > vcpus + SLACK:
            taken = int((vcpus + SLACK) / rank_vcpus)
        if rank_memory_mib > 0 and rank_memory_mib * taken > memory_mib + SLACK:
            taken = int((memory_mib + SLACK) / rank_memory_mib)
        if rank_disk_gib > 0 and rank_disk_gib * taken > disk_gib + SLACK:
            taken = int((disk_gib + SLACK) / rank_disk_gib)
        if rank_gpus > 0 and rank_gpus * taken > gpus:
            taken = int(gpus / rank_gpus)
        if taken > 0 and interference is not None:
            taken, present = _count_compatible(interference, application, taken, present)
        if taken > 0:
            vcpus -= rank_vcpus * taken
            memory_mib -= rank_memory_mib * taken
            disk_gib -= rank_disk_gib * taken
            gpus -= rank_gpus * taken
            worth += each * taken / (1.0 if stretches is None else stretches[at])
            ranks += taken
    score = usd_per_h / max(worth, FREE_USD_PER_H)
    return Choice(at=at, worth_usd_per_h=worth, ranks=ranks, score=score)


def _count_compatible(
    suit: Suitability, application: str, most: int, present: tuple[str, ...]
) -> tuple[int, tuple[str, ...]]:
    """Return how many ranks of ``application``, up to ``most``, tolerate each other and the units ``present``, and all
    units that are present then. Beyond ``LOOK_AHEAD_UNITS`` units, all are assumed to fit."""
    for count in range(most):
        if len(present) >= LOOK_AHEAD_UNITS:
            return most, present
        if present and not suit.together(application, present):
            return count, present
        present = (*present, application)
    return most, present
