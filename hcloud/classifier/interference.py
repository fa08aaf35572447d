"""The model of interference: how much performance a pressure on a resource costs, and which resources count.

Per resource the loss is about linear through the point where 5 % is lost (iBench, Dissertation §5.3). Pressures of
several co-located jobs on one resource add up (Paragon §3.2), and the resource with the largest loss decides. The
papers do not say how resources combine, nor what programs on one core lose; both were measured with ``make
bench-interference`` (the model it evaluates is ``bench.interference.model``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from hcloud.core.estimates import Classification, Estimate

LOSS = 0.05
"""Share of performance lost when pressure equals the tolerated pressure."""
EXCESS = 1.0 / (1.0 - LOSS) - 1.0
"""The same loss, as additional run time."""
PRESSURE_MAX = 100.0
TOLERATED_MIN = 1.0
"""Lower values are indistinguishable from 0. The floor also bounds the modelled loss."""
NEVER_SHARE = 0.5
"""Assumed share of ``LOSS`` at full intensity for a job that never lost 5 %: its true loss is between 0 and 5 %."""
CORE_SOURCES = frozenset({"l2", "l1i", "l1d", "tlb", "integer", "floating-point", "prefetchers", "vector"})
"""Resources of one core: only programs on the same core share them, by taking turns, and a unit owns its CPU time."""

NOT_COUNTED = frozenset({"interconnect"})
"""Excluded because a program's own pressure on it can only be measured through memory traffic, and every program
tolerates so little that any traffic would count as a large slowdown. The memory sources already count that traffic."""


def kept(pressure: float, tolerated: float) -> float:
    """Return the remaining share of performance (1: all) of a job tolerating 0..100 under a pressure of 0..100."""
    return 1.0 / (1.0 + excess(pressure, tolerated))


def excess(pressure: float, tolerated: float) -> float:
    """Return the extra run time (0: none, 1: twice as long) of a job tolerating 0..100 under a pressure of 0..100."""
    factor, divisor = _as_fraction(tolerated)
    return factor * max(0.0, pressure) / divisor


# ---------------------------------------------------------------------------------------------------- beside neighbours
UNKNOWN_PRESSURE = Estimate(value=50.0, low=0.0, high=PRESSURE_MAX)
"""Pressure on any resource assumed of a neighbour of which nothing is known."""

UNKNOWN_LOSS = Estimate(value=0.0, low=0.0, high=1.0)
"""What neighbours cost a job of which nothing is known."""


class NeighbourLoss(NamedTuple):
    """What neighbours may have taken from a job while it ran."""

    worst: Estimate
    """Share of performance (0..1) lost beside those that cost most."""
    is_steady: bool
    """Whether they were the same throughout."""

    @property
    def on_average(self) -> Estimate:
        """What was lost over the whole run: where neighbours came and went, anything up to what the worst cost."""
        worst = self.worst
        return worst if self.is_steady else Estimate(worst.value / 2.0, 0.0, worst.high)


class _Felt(NamedTuple):
    """A resource that a job feels: additional run time by pressure (:func:`excess`), as a factor and a divisor."""

    source: str
    expected: tuple[float, float]
    at_most: tuple[float, float]
    at_least: tuple[float, float]


_UNKNOWN_CAUSED = (UNKNOWN_PRESSURE.value, UNKNOWN_PRESSURE.high - UNKNOWN_PRESSURE.value, UNKNOWN_PRESSURE.value)


def neighbour_loss(known: Classification, neighbours: Sequence[Classification | None]) -> Estimate:
    """Return the share of performance (0..1) that a job loses beside ``neighbours`` (None: unknown), with 80 % limits.

    The resource with the largest loss decides. Errors of pressures and of what is tolerated are independent.
    """
    value = low = high = 0.0
    presses = [{} if each is None else each.answer("caused", partial(_caused, each)) for each in neighbours]
    for source, (factor, divisor), at_most, at_least in known.answer("felt", partial(_felt, known)) if presses else ():
        caused, further, back = zip(*[each.get(source, _UNKNOWN_CAUSED) for each in presses], strict=True)
        total = math.fsum(caused)
        pressure = max(0.0, min(PRESSURE_MAX, total))
        longer = factor * pressure / divisor
        more = factor * max(0.0, min(PRESSURE_MAX, total + math.hypot(*further))) / divisor
        less = factor * max(0.0, total - math.hypot(*back)) / divisor
        slower = math.hypot(more - longer, at_most[0] * pressure / at_most[1] - longer)
        faster = math.hypot(longer - less, longer - at_least[0] * pressure / at_least[1])
        value, low, high = max(value, longer), max(low, longer - faster), max(high, longer + slower)
    value, low, high = (1.0 - 1.0 / (1.0 + each) for each in (value, low, high))
    return Estimate(value, low, high)


def _felt(known: Classification) -> list[_Felt]:
    counted = [each for each in known.tolerated.items() if each[0] not in CORE_SOURCES and each[0] not in NOT_COUNTED]
    return [_Felt(source, *map(_as_fraction, (each.value, each.low, each.high))) for source, each in counted]


def _as_fraction(tolerated: float) -> tuple[float, float]:
    return (NEVER_SHARE if tolerated >= PRESSURE_MAX else 1.0) * EXCESS, max(TOLERATED_MIN, tolerated)


def _caused(known: Classification) -> dict[str, tuple[float, float, float]]:
    """Return the pressure that an application causes by resource, and how far its limits are above and below."""
    return {
        source: (each.value, each.high - each.value, each.value - each.low) for source, each in known.caused.items()
    }
