"""Resource quality: how much a job needs, how much an instance offers, and how well the two match.

Interference is a vector of pressures 0..99 on the shared resources (Tarcil's scale; HCloud §8.3). It is reduced to one
number by Tarcil's order-preserving code (Dissertation eq. 7.1-7.5), which compares the worst resource first. Needed
and offered quality are on this one scale, which also sorts jobs into queues and machines into pools (ARQ). An instance
type is rated by its Q90: the quality that nine in ten of its instances reach (HCloud §8.3), estimated conservatively
from few observations.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hcloud.core.errors import BadInput
from hcloud.core.model import Market, Offer

PRESSURE_MAX = 99.0
CLASSES = 10
REACHED_BY = 0.9
"""Fraction of the instances that reach the Q90."""
SURE = 0.9
"""Confidence of a Q90 from enough observations."""
RECENT = 200
"""Number of the latest observations that count: clouds change."""
BASE = 100.0
"""Base of the positional code of pressures."""


def encode(pressures: Sequence[float]) -> float:
    """Return the normalised code (0..1) of pressures on N resources, in any order (Dissertation eq. 7.1-7.2).

    The pressures, each 0..99 (100 counts as 99), are sorted in decreasing order and read as digits of base 100. The
    number is computed as a fraction of the largest one, so that many resources do not overflow. No resource: 0.

    Raises:
        BadInput: a pressure is not a number from 0 to 100.
    """
    if not pressures:
        return 0.0
    digits = sorted((_pressure(each) for each in pressures), reverse=True)
    fraction = math.fsum(digit * BASE**-place for place, digit in enumerate(digits, 1))
    return min(1.0, fraction / (1.0 - BASE ** -len(digits)))


def offer(neighbours: Sequence[Sequence[float]]) -> float:
    """Return ``U_H`` (0..1): the quality a resource unit offers (Dissertation eq. 7.3-7.4).

    ``neighbours`` has one vector of caused pressures per *other* unit of the server, idle units included as zeros; each
    resource counts with their mean. No other unit: 1.

    Raises:
        BadInput: the vectors differ in length, or a pressure is not a number from 0 to 100.
    """
    if not neighbours:
        return 1.0
    lengths = {len(vector) for vector in neighbours}
    if len(lengths) != 1:
        raise BadInput(
            f"neighbours name {sorted(lengths)} resources each; every neighbour needs one pressure per resource"
        )
    means = [math.fsum(map(_pressure, column)) / len(neighbours) for column in zip(*neighbours, strict=True)]
    return 1.0 - encode(means)


def offer_beside(residents: Sequence[tuple[float, Sequence[float]]], *, vcpus: float, own_vcpus: float) -> float:
    """Return ``U_H`` (0..1): the quality that a server of ``vcpus`` offers to ``own_vcpus`` of it (eq. 7.3-7.4).

    ``residents`` are pairs of the vCPUs a neighbour holds and the pressures 0..99 it causes. A unit is one vCPU; free
    vCPUs count as idle units. Without neighbours: 1.

    Raises:
        BadInput: the vectors differ in length, or a pressure is not a number from 0 to 100.
    """
    lengths = {len(caused) for _, caused in residents}
    if len(lengths) > 1:
        raise BadInput(f"residents name {sorted(lengths)} resources each; each needs one pressure per resource")
    others = max(vcpus - own_vcpus, math.fsum(held for held, _ in residents))
    if others <= 0 or not residents:
        return 1.0
    columns = zip(*(tuple(held * _pressure(each) for each in caused) for held, caused in residents), strict=True)
    return 1.0 - encode([min(PRESSURE_MAX, math.fsum(column) / others) for column in columns])


def match(offered: float, needed: float) -> float:
    """Return how well quality ``offered`` suits a job that needs ``needed`` (both 0..1); 1 is ideal (eq. 7.5).

    At or above the need: ``1 - (offered - needed)``, so that the tightest fit is best. Below it: ``offered``. Every
    satisfying unit therefore ranks above every violating one.

    Raises:
        BadInput: a quality is not a number from 0 to 1.
    """
    # The printed second branch of eq. 7.5, `needed - offered`, would rank a worse violation higher and contradicts the
    # text around it.
    for name, value in (("offered", offered), ("needed", needed)):
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"quality {name} is {value}; it must be a number from 0 to 1")
    # At an offer of 1 the fit is exactly `needed`; rounding must not take it below.
    return max(needed, 1.0 - (offered - needed)) if offered >= needed else offered


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityClasses:
    """The queues of jobs and the pools of machines (ARQ, Dissertation ch. 6), on one scale.

    Class ``k`` holds the same range of quality for what jobs need and for what machines offer: ranges are quantiles of
    what the known jobs need. So jobs spread over the classes, and a machine that offers what a job needs is never in a
    lower pool than the job's class.
    """

    count: int
    ranked: tuple[float, ...]
    """Qualities (0..1) needed by the known jobs, and one in the middle of each equal part of 0..1, ascending.

    The latter make classes meaningful while few jobs are known; many jobs outweigh them."""
    allowed: float = 1.0
    """How many times the pressure that costs 5 % jobs may feel."""

    @classmethod
    def of(cls, needed: Iterable[float], count: int = CLASSES, allowed: float = 1.0) -> QualityClasses:
        """Return the classes of known jobs that need these qualities (0..1) to lose no more than 5 %."""
        ranked = tuple(sorted([*needed, *((k + 0.5) / count for k in range(count))]))
        return cls(count=count, ranked=ranked, allowed=allowed)

    def level(self, quality: float) -> int:
        """Return the class, 0..``count``-1, of a job that needs ``quality`` or a machine that offers it (0..1).

        Raises:
            BadInput: the quality is not a number from 0 to 1.
        """
        if not 0.0 <= quality <= 1.0:
            raise BadInput(f"quality is {quality}; it must be a number from 0 to 1")
        return min(self.count - 1, self.count * bisect_left(self.ranked, quality) // len(self.ranked))


EVEN_CLASSES = QualityClasses.of(())
"""Classes while no job is known: equal parts of 0..1."""


# ---------------------------------------------------------------------------------------- quality of instance types
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One observation of an instance's quality."""

    provider: str
    region: str
    instance_type: str
    market: Market
    quality: float
    """0..1: performance of its jobs there, as a fraction of their performance alone."""


def reached(observed: Sequence[float], *, unknown: float = 0.0) -> float:
    """Return a lower bound, with 90 % confidence, of the quality that nine in ten instances reach.

    ``observed`` are qualities 0..1, oldest first; the latest ``RECENT`` count. The bound is a distribution-free order
    statistic. Fewer than 22 observations have none: then the minimum is weighted with its confidence ``1 - 0.9^n``, and
    ``unknown`` with the rest.
    """
    recent = sorted(observed[-RECENT:])
    rank = _safe_rank(len(recent))
    if rank > 0:
        return recent[rank - 1]
    confidence = 1.0 - REACHED_BY ** len(recent)
    return confidence * recent[0] + (1.0 - confidence) * min(unknown, recent[0]) if recent else unknown


@lru_cache(maxsize=RECENT + 1)
def _safe_rank(count: int) -> int:
    """Return the largest k with ``P(Bin(count, 0.1) >= k) >= 0.9``: the k-th smallest is a safe bound (0: none is)."""
    rank, below = 0, REACHED_BY**count  # P(Bin < 1)
    while 1.0 - below >= SURE and rank < count:
        rank += 1
        below += math.comb(count, rank) * (1 - REACHED_BY) ** rank * REACHED_BY ** (count - rank)
    return rank


Observed = tuple[str, str, float]
"""Market, region and delivered quality (0..1) of one instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeQuality:
    """Delivered quality of instance types, at three levels: by type, by type and market, and by region as well."""

    by_key: Mapping[tuple[str, ...], tuple[float, ...]]
    """Observations, oldest first, by (provider, type), (provider, type, market) and (..., region)."""
    _reached: dict[tuple[object, ...], float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, observations: Iterable[Delivered]) -> TypeQuality:
        """Group observations, oldest first. Raises BadInput for a quality that is not a number from 0 to 1."""
        found: dict[tuple[str, ...], list[float]] = {}
        for each in observations:
            if not 0.0 <= each.quality <= 1.0:
                raise BadInput(f"{each.instance_type} delivered quality {each.quality}; it must be from 0 to 1")
            for key in _keys(each.provider, each.instance_type, each.market.value, each.region):
                found.setdefault(key, []).append(each.quality)
        return cls(by_key={key: tuple(values[-RECENT:]) for key, values in found.items()})

    def renewed(self, observed: Mapping[tuple[str, str], Sequence[Observed]]) -> TypeQuality:
        """Return a copy with the observations (oldest first) of these types (provider, name) replaced."""
        found: dict[tuple[str, ...], list[float]] = {}
        for kind, instances in observed.items():
            if instances:
                found[kind] = [delivered for _, _, delivered in instances]
            for market, region, delivered in instances:
                found.setdefault((*kind, market), []).append(delivered)
                found.setdefault((*kind, market, region), []).append(delivered)
        others = {key: values for key, values in self.by_key.items() if key[:2] not in observed}
        still_valid = {cache_key: q90 for cache_key, q90 in self._reached.items() if cache_key[:2] not in observed}
        replaced = {key: tuple(values[-RECENT:]) for key, values in found.items()}
        return TypeQuality(by_key=others | replaced, _reached=still_valid)

    def q90(self, offer: Offer, *, unknown: float = 0.0) -> float:
        """Return the quality (0..1) that nine in ten instances of ``offer`` reach; ``unknown`` without observations.

        With few observations in this market and region, those of the same type elsewhere fill in.
        """
        keys = _keys(offer.provider, offer.instance_type.name, offer.market.value, offer.region)
        cache_key = (*keys[-1], unknown)
        if cache_key not in self._reached:
            q90 = unknown
            for key in keys:
                q90 = reached(self.by_key.get(key, ()), unknown=q90)
            self._reached[cache_key] = q90
        return self._reached[cache_key]

    def seen(self, offer: Offer) -> int:
        """Return the number of observations of exactly this type, market and region."""
        keys = _keys(offer.provider, offer.instance_type.name, offer.market.value, offer.region)
        return len(self.by_key.get(keys[-1], ()))


def _keys(provider: str, name: str, market: str, region: str) -> tuple[tuple[str, ...], ...]:
    return (provider, name), (provider, name, market), (provider, name, market, region)


def _pressure(value: float) -> float:
    if not 0.0 <= value <= 100.0:
        raise BadInput(f"pressure on a shared resource is {value}; it must be a number from 0 to 100")
    return min(PRESSURE_MAX, float(value))
