"""What an interval of use costs, and whose cost it is: pure arithmetic in seconds and USD.

A machine is billed from launch to its end, at least its billing minimum, at the price per hour of the moment (spot
prices move). A reserved machine's price is its amortised one. The cost of a stretch of time belongs to the units that
hold the machine then, each by its dominant share (the larger of its vCPU and memory fractions; Dominant Resource
Fairness, Ghodsi et al., NSDI 2011); what nobody holds is idle, or boot before the machine was ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

HOUR_S = 3600.0
WHOLE = 1.0 + 1e-9
"""All of a machine, give or take what adding up its parts loses."""


def billed_until(launched_at: float, ended_at: float, billing_minimum_s: float) -> float:
    """Return the Unix time up to which a machine that ended is billed: at least the billing minimum after launch."""
    return max(ended_at, launched_at + max(0.0, billing_minimum_s))


def billed_s(used_s: float, billing_minimum_s: float) -> float:
    """Return for how many seconds a machine used for ``used_s`` (0 or more) is billed."""
    return billed_until(0.0, max(0.0, used_s), billing_minimum_s)


def cost_usd(price_usd_per_h: float, seconds: float) -> float:
    """Return what ``seconds`` cost at one price, in USD."""
    return price_usd_per_h * seconds / HOUR_S


def amortised_usd_per_h(*, upfront_usd: float, usd_per_h: float, term_s: float) -> float:
    """Return what an hour of a reservation costs: its hourly price plus the upfront payment spread over the term.

    Raises ValueError where the term is not positive.
    """
    if term_s <= 0:
        raise ValueError(f"a reservation needs a term of more than 0 s, not {term_s}")
    return usd_per_h + upfront_usd / (term_s / HOUR_S)


def dominant_share(vcpus: float, memory_mib: float, of_vcpus: float, of_memory_mib: float) -> float:
    """Return the part (0..1) of a machine that a unit holds: the larger of its vCPU and memory fractions."""
    of_cpu = vcpus / of_vcpus if of_vcpus > 0 else 0.0
    of_memory = memory_mib / of_memory_mib if of_memory_mib > 0 else 0.0
    return min(1.0, max(of_cpu, of_memory, 0.0))


def split(shares: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Return each unit's fraction of a machine's cost, and the fraction nobody holds; together they are 1.

    ``shares`` are dominant shares. One unit may be large in vCPUs and its neighbour in memory, so that they add up to
    more than 1: then the whole machine is theirs in proportion.
    """
    total = sum(shares)
    if total > 1.0:
        return tuple(share / total for share in shares), 0.0
    return tuple(shares), 1.0 - total


@dataclass(slots=True)
class Holding:
    """What a unit holds of a machine: its dominant share (0..1), from ``since`` to ``until`` (inf: it still does)."""

    share: float
    since: float
    until: float = inf


def overcharges(
    holdings: Sequence[Holding], prices: Sequence[tuple[float, float, float]], until: float
) -> Iterator[tuple[int, float, float, float]]:
    """Yield by how much more than its fraction of a machine (:func:`split`) each unit's whole share costs, where shares
    add up to more than the machine: the place of its holding, since and until when, and USD per hour.

    ``prices``: the machine's, each with since and until when; what is later than ``until`` does not count.
    """
    moments = {at for each in holdings for at in (each.since, each.until)} | {
        at for price in prices for at in price[:2]
    }
    for since, to in pairwise(sorted({at for at in moments if at < until} | {until})):
        present = [place for place, each in enumerate(holdings) if each.since <= since and each.until >= to]
        total = sum(holdings[place].share for place in present)
        if total <= WHOLE:
            continue
        usd_per_h = next((price for began, ended, price in prices if began <= since < ended), 0.0)
        for place in present:
            yield place, since, to, usd_per_h * holdings[place].share * (1.0 - 1.0 / total)
