"""The cost of an interval of use, and its attribution to units: pure arithmetic in seconds and USD.

An instance is billed from launch to termination, for at least its billing minimum, at the current price per hour (spot
prices change). A reserved instance costs its amortised price. Units pay by their dominant share, the larger of their
vCPU and memory fractions (Dominant Resource Fairness, Ghodsi et al., NSDI 2011). The rest is idle or boot time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from hcloud.core.model import Offer

HOUR_S = 3600.0
WHOLE = 1.0 + 1e-9
"""A whole instance, with tolerance for rounding errors in the sum of its shares."""


def billed_until(launched_at: float, ended_at: float, billing_minimum_s: float) -> float:
    """Return the Unix time up to which a terminated instance is billed: at least the billing minimum after launch."""
    return max(ended_at, launched_at + max(0.0, billing_minimum_s))


def billed_s(used_s: float, billing_minimum_s: float) -> float:
    """Return how many seconds are billed for ``used_s`` (0 or more) seconds of use."""
    return billed_until(0.0, max(0.0, used_s), billing_minimum_s)


def oldest_prices(offers: Iterable[Offer]) -> dict[str, float]:
    """Return the date of the oldest price in each market of ``offers``, Unix seconds."""
    oldest: dict[str, float] = {}
    for offer in offers:
        market = offer.market.value
        oldest[market] = min(offer.priced_at, oldest.get(market, offer.priced_at))
    return oldest


def cost_usd(price_usd_per_h: float, seconds: float) -> float:
    """Return the cost in USD of ``seconds`` at a constant price."""
    return price_usd_per_h * seconds / HOUR_S


def amortised_usd_per_h(*, upfront_usd: float, usd_per_h: float, term_s: float) -> float:
    """Return the cost of an hour of a reservation: its hourly price plus the upfront payment spread over the term.

    Raises:
        ValueError: the term is not positive.
    """
    if term_s <= 0:
        raise ValueError(f"a reservation needs a term of more than 0 s, not {term_s}")
    return usd_per_h + upfront_usd / (term_s / HOUR_S)


def dominant_share(vcpus: float, memory_mib: float, of_vcpus: float, of_memory_mib: float) -> float:
    """Return the fraction (0..1) of an instance that a unit holds: the larger of its vCPU and memory fractions."""
    of_cpu = vcpus / of_vcpus if of_vcpus > 0 else 0.0
    of_memory = memory_mib / of_memory_mib if of_memory_mib > 0 else 0.0
    return min(1.0, max(of_cpu, of_memory, 0.0))


def split(shares: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Return each unit's fraction of an instance's cost, and the idle fraction; they add up to 1.

    ``shares`` are dominant shares. They exceed 1 in total if one unit is large in vCPUs and another in memory; then the
    units pay for the whole instance in proportion.
    """
    total = sum(shares)
    if total > 1.0:
        return tuple(share / total for share in shares), 0.0
    return tuple(shares), 1.0 - total


@dataclass(slots=True)
class Holding:
    """The dominant share of an instance that a unit holds over a time."""

    share: float
    """0..1."""
    since: float
    until: float = inf
    """inf: it still holds it."""


def overcharges(
    holdings: Sequence[Holding], prices: Sequence[tuple[float, float, float]], until: float
) -> Iterator[tuple[int, float, float, float]]:
    """Yield the amount by which units' whole shares exceed their fractions (:func:`split`) of the instance's cost.

    Each item is the index of the holding, the interval (since, until) and USD per hour, for the times in which shares
    exceed the instance. ``prices`` are the instance's (since, until, USD per hour). Times after ``until`` are ignored.
    """
    moments = {at for each in holdings for at in (each.since, each.until)} | {
        at for price in prices for at in price[:2]
    }
    for since, to in pairwise(sorted({at for at in moments if at < until} | {until})):
        present = [place for place, each in enumerate(holdings) if each.since <= since and each.until >= to]
        total = sum([holdings[place].share for place in present])
        if total <= WHOLE:
            continue
        usd_per_h = next((price for began, ended, price in prices if began <= since < ended), 0.0)
        for place in present:
            yield place, since, to, usd_per_h * holdings[place].share * (1.0 - 1.0 / total)
