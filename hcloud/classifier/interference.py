"""The model of interference: how much performance a pressure on a resource costs, and which resources count.

Per resource the loss is about linear through the point where 5 % is lost (iBench, Dissertation §5.3). Pressures of
several co-located jobs on one resource add up (Paragon §3.2), and the resource with the largest loss decides. The
papers do not say how resources combine, nor what programs on one core lose; both were measured with ``make
bench-interference`` (the model it evaluates is ``bench.interference.model``).
"""

from __future__ import annotations

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
