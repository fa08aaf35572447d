"""What neighbours cost: how much performance is lost to pressure on a resource, and which resources count.

Per resource the effect of pressure is about linear through the point where 5 % are lost (iBench, Dissertation §5.3);
what several neighbours cause in one resource adds up (Paragon §3.2), and the resource that hurts most decides. How
resources combine no paper says: it was measured here, and so was what programs lose that share a core
(``make bench-interference``; the model it judges is ``bench.interference.model``).
"""

from __future__ import annotations

LOSS = 0.05
"""The share of performance that is lost where pressure equals what is tolerated."""
EXCESS = 1.0 / (1.0 - LOSS) - 1.0
"""The same as additional run time."""
PRESSURE_MAX = 100.0
TOLERATED_MIN = 1.0
"""Less cannot be told from nothing: a job that lost 5 % at an intensity of 1 % loses five times as much at 5 %."""
NEVER_SHARE = 0.5
"""A job that never lost 5 % lost something between nothing and that at full intensity."""
CORE_SOURCES = frozenset({"l2", "l1i", "l1d", "tlb", "integer", "floating-point", "prefetchers", "vector"})
"""Resources of one core: only programs that share the core share them, in turns, and a unit's CPU time is its own."""

NOT_COUNTED = frozenset({"interconnect"})
"""What a program causes of it is told by a probe of memory, since none locks the bus itself; but every program
tolerates so little of it that a trace of memory traffic would count as a great slowdown. Memory's own sources count
that traffic. Counted, errors on another core were 8.1 points, not 6.0."""


def kept(pressure: float, tolerated: float) -> float:
    """Return the share of performance (1: all) left under a pressure 0..100 by a job that tolerates 0..100."""
    return 1.0 / (1.0 + excess(pressure, tolerated))


def excess(pressure: float, tolerated: float) -> float:
    """Return the additional run time (0: none, 1: as long again) under a pressure 0..100, tolerating 0..100."""
    share = NEVER_SHARE if tolerated >= PRESSURE_MAX else 1.0
    return share * EXCESS * max(0.0, pressure) / max(TOLERATED_MIN, tolerated)
