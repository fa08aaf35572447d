"""Resource quality: how demanding a job is, how good a place is, and how well the two fit.

Interference is a vector of pressures 0..99 on the shared resources (Tarcil's scale; HCloud §8.3). Two measures of it:
the order-preserving code of Tarcil (Dissertation eq. 7.1-7.5), which ranks by the worst resource first, and ARQ's sum
(eq. 6.1), which sorts jobs into ten queues. What an instance type has really delivered is stated as its Q90: what nine
in ten of its instances reach (HCloud §8.3), with caution while few were seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hcloud.core.errors import BadInput
from hcloud.core.model import Market, Offer

PRESSURE_MAX = 99.0
CLASSES = 10
REACHED_BY = 0.9
"""Q90: the part of the instances that reach it."""
SURE = 0.9
"""How sure a stated Q90 is, where enough instances were seen."""
RECENT = 200
"""So many of the latest observations of a kind count: clouds change."""
_BASE = 100.0


def encode(pressures: Sequence[float]) -> float:
    """Return the normalised code (0..1) of pressures on N resources, in any order (Dissertation eq. 7.1-7.2).

    The pressures, each 0..99 (100 counts as 99), are sorted in decreasing order and read as digits of base 100, then
    divided by the largest such number. Read as a fraction, so that many resources do not overflow. No resource: 0.

    Raises BadInput where a pressure is not a number from 0 to 100.
    """
    if not pressures:
        return 0.0
    digits = sorted((_pressure(each) for each in pressures), reverse=True)
    fraction = math.fsum(digit * _BASE**-place for place, digit in enumerate(digits, 1))
    return min(1.0, fraction / (1.0 - _BASE ** -len(digits)))


def target(caused: Sequence[float]) -> float:
    """Return ``Q_T`` (0..1): the quality a job needs, from the pressures 0..99 it causes (Dissertation eq. 7.2).

    Tarcil takes ``t = 99 - c``: who presses hard on a resource also suffers there, so the code of what a job causes is
    the code of what it cannot bear.
    """
    return encode(caused)


def offer(neighbours: Sequence[Sequence[float]]) -> float:
    """Return ``U_H`` (0..1): the quality a resource unit offers (Dissertation eq. 7.3-7.4).

    ``neighbours`` has one vector of caused pressures per *other* unit of the server, idle units included as zeros; each
    resource counts with their mean. No other unit: 1.

    Raises BadInput where the vectors differ in length or hold no pressures.
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
    """Return ``U_H`` (0..1): what a server of ``vcpus`` offers to ``own_vcpus`` of it (Dissertation eq. 7.3-7.4).

    ``residents`` are pairs of the vCPUs a neighbour holds and the pressures 0..99 it causes; a unit is one vCPU, and
    what nobody holds is idle. Alone on the server: 1.

    Raises BadInput where the vectors differ in length or hold no pressures.
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
    """Return how well a unit of quality ``offered`` suits a job that needs ``needed`` (both 0..1), 1 being ideal.

    At or above the need: ``1 - (offered - needed)``, so that the tightest fit is best. Below it: ``offered``. The
    printed second branch of eq. 7.5 (``needed - offered``) would rank a worse violation higher and contradicts its own
    text. A satisfying unit is never below ``needed`` and a violating one always is, so every satisfying unit ranks
    above every violating one.

    Raises BadInput where a quality is not a number from 0 to 1.
    """
    for name, value in (("offered", offered), ("needed", needed)):
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"quality {name} is {value}; it must be a number from 0 to 1")
    # At an offer of 1 the fit is exactly `needed`; rounding must not take it below.
    return max(needed, 1.0 - (offered - needed)) if offered >= needed else offered


def total(pressures: Sequence[float]) -> float:
    """Return ARQ's quality (0..1): the mean pressure over the full scale (Dissertation eq. 6.1, normalised).

    For a job the pressures it causes; for a server those it still tolerates.
    """
    return math.fsum(map(_pressure, pressures)) / (len(pressures) * PRESSURE_MAX) if pressures else 0.0


def quality_class(quality: float, classes: int = CLASSES) -> int:
    """Return the ARQ class 0..``classes``-1 of a quality 0..1: ``floor(n Q)``; exactly 1 is in the top class."""
    if not 0.0 <= quality <= 1.0:
        raise BadInput(f"quality is {quality}; it must be a number from 0 to 1")
    return min(classes - 1, int(classes * quality))


# ----------------------------------------------------------------------------------------------- what types deliver
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The quality (0..1) one instance has delivered: what its jobs achieved there of what they achieve alone."""

    provider: str
    region: str
    instance_type: str
    market: Market
    quality: float


def reached(observed: Sequence[float], *, unknown: float = 0.0) -> float:
    """Return what nine in ten instances reach, to be believed with 90 %, from what the ``observed`` ones delivered.

    ``observed``: qualities 0..1, oldest first; the latest 200 count. The bound is the order statistic that lies below
    the tenth percentile with 90 % probability, whatever the distribution. Fewer than 22 instances have no such
    statistic: their least counts as far as it is to be believed (``1 - 0.9^n``), ``unknown`` for the rest.
    """
    recent = sorted(observed[-RECENT:])
    place = _safe_place(len(recent))
    if place > 0:
        return recent[place - 1]
    believed = 1.0 - REACHED_BY ** len(recent)
    return believed * recent[0] + (1.0 - believed) * min(unknown, recent[0]) if recent else unknown


@lru_cache(maxsize=RECENT + 1)
def _safe_place(count: int) -> int:
    """Return the largest k with ``P(Bin(count, 0.1) >= k) >= 0.9``: the k-th least is a safe bound (0: none is)."""
    place, below = 0, REACHED_BY**count  # P(Bin < 1)
    while 1.0 - below >= SURE and place < count:
        place += 1
        below += math.comb(count, place) * (1 - REACHED_BY) ** place * REACHED_BY ** (count - place)
    return place


Observed = tuple[str, str, float]
"""What one instance of some type delivered: its market, its region, the quality (0..1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeQuality:
    """What instance types have delivered, by type, then market, then region: the narrower, the fewer observations."""

    by_key: Mapping[tuple[str, ...], tuple[float, ...]]
    _reached: dict[tuple[object, ...], float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, observations: Iterable[Delivered]) -> TypeQuality:
        """Sort observations, oldest first. Raises BadInput for a quality that is not a number from 0 to 1."""
        found: dict[tuple[str, ...], list[float]] = {}
        for each in observations:
            if not 0.0 <= each.quality <= 1.0:
                raise BadInput(f"{each.instance_type} delivered quality {each.quality}; it must be from 0 to 1")
            for key in _keys(each.provider, each.instance_type, each.market.value, each.region):
                found.setdefault(key, []).append(each.quality)
        return cls(by_key={key: tuple(values[-RECENT:]) for key, values in found.items()})

    def renewed(self, observed: Mapping[tuple[str, str], Sequence[Observed]]) -> TypeQuality:
        """Return it with these observations, oldest first, of these types (provider, name) in place of those before."""
        found: dict[tuple[str, ...], list[float]] = {}
        for (provider, name), instances in observed.items():
            for market, region, delivered in instances:
                for key in _keys(provider, name, market, region):
                    found.setdefault(key, []).append(delivered)
        others = {key: values for key, values in self.by_key.items() if key[:2] not in observed}
        same = {asked: known for asked, known in self._reached.items() if asked[:2] not in observed}
        lately = {key: tuple(values[-RECENT:]) for key, values in found.items()}
        return TypeQuality(by_key=others | lately, _reached=same)

    def q90(self, offer: Offer, *, unknown: float = 0.0) -> float:
        """Return the quality nine in ten instances of ``offer`` reach; of a type never seen, ``unknown``.

        Where few were seen in this market and region, what is known of the type elsewhere fills in for the doubt.
        """
        keys = _keys(offer.provider, offer.instance_type.name, offer.market.value, offer.region)
        asked = (*keys[-1], unknown)
        if asked not in self._reached:
            believed = unknown
            for key in keys:
                believed = reached(self.by_key.get(key, ()), unknown=believed)
            self._reached[asked] = believed
        return self._reached[asked]

    def seen(self, offer: Offer) -> int:
        """Return how many observations of exactly this type, market and region there are."""
        keys = _keys(offer.provider, offer.instance_type.name, offer.market.value, offer.region)
        return len(self.by_key.get(keys[-1], ()))


def _keys(provider: str, name: str, market: str, region: str) -> tuple[tuple[str, ...], ...]:
    return (provider, name), (provider, name, market), (provider, name, market, region)


def _pressure(value: float) -> float:
    if not 0.0 <= value <= 100.0:
        raise BadInput(f"pressure on a shared resource is {value}; it must be a number from 0 to 100")
    return min(PRESSURE_MAX, float(value))
