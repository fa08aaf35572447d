"""The model of interference: how much performance a pressure on a resource costs, and which resources count.

Per resource the loss is about linear through the point where 5 % is lost (iBench, Dissertation §5.3). Pressures of
several co-located jobs on one resource add up (Paragon §3.2), and the resource with the largest loss decides. The
papers do not say how resources combine, nor what programs on one core lose; both were measured with ``make
bench-interference`` (the model it evaluates is ``bench.interference.model``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    share = NEVER_SHARE if tolerated >= PRESSURE_MAX else 1.0
    return share * EXCESS * max(0.0, pressure) / max(TOLERATED_MIN, tolerated)


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


def neighbour_loss(known: Classification, neighbours: Sequence[Classification | None]) -> Estimate:
    """Return the share of performance (0..1) that a job loses beside ``neighbours`` (None: unknown), with 80 % limits.

    The resource with the largest loss decides. Errors of pressures and of what is tolerated are independent.
    """
    value = low = high = 0.0
    for source in known.tolerated.keys() - CORE_SOURCES - NOT_COUNTED if neighbours else ():
        feels = known.tolerated[source]
        presses = [
            UNKNOWN_PRESSURE if each is None else each.caused.get(source, UNKNOWN_PRESSURE) for each in neighbours
        ]
        pressure = math.fsum(each.value for each in presses)
        more = min(PRESSURE_MAX, pressure + math.hypot(*(each.high - each.value for each in presses)))
        less = max(0.0, pressure - math.hypot(*(each.value - each.low for each in presses)))
        pressure = min(PRESSURE_MAX, pressure)
        longer = excess(pressure, feels.value)
        slower = math.hypot(excess(more, feels.value) - longer, excess(pressure, feels.low) - longer)
        faster = math.hypot(longer - excess(less, feels.value), longer - excess(pressure, feels.high))
        value, low, high = max(value, longer), max(low, longer - faster), max(high, longer + slower)
    value, low, high = (1.0 - 1.0 / (1.0 + each) for each in (value, low, high))
    return Estimate(value, low, high)
