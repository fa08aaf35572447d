"""What neighbours cost: the expected slowdown of a job from what it tolerates and what they cause, with limits.

Per resource the effect of pressure is about linear through the point where 5 % are lost (iBench, Dissertation §5.3);
what several neighbours cause in one resource adds up (Paragon §3.2). How resources combine no paper says; it was
measured here (``make bench-interference``, 16 pairs on two cores, 16 on one): letting the resource that hurts most
decide was 6.0 points of performance off on another core, adding all up 10.0; on the same core 15.7 and 14.0. Both
were chosen with these pairs in view, and "not slowed" was 5.0 off on another core: most programs there felt nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from hcloud.known import Estimate

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
"""Resources of one core: only programs that share the core share them."""

NOT_COUNTED = frozenset({"interconnect"})
"""What a program causes of it is told by a probe of memory, since none locks the bus itself; but every program
tolerates so little of it that a trace of memory traffic would count as a great slowdown. Memory's own sources count
that traffic. Counted, errors on another core were 8.1 points, not 6.0."""


class Combination(StrEnum):
    """How slowdowns by single resources make up that by all."""

    SUM = "sum"
    MAX = "max"


def kept(pressure: float, tolerated: float) -> float:
    """Return the share of performance (1: all) left under a pressure 0..100 by a job that tolerates 0..100."""
    return 1.0 / (1.0 + _excess(pressure, tolerated))


def slowdown(
    tolerated: Mapping[str, Estimate],
    neighbours: Sequence[Mapping[str, Estimate]],
    *,
    same_core: bool = False,
    combination: Combination = Combination.MAX,
) -> Estimate:
    """Return how many times longer a job takes beside ``neighbours`` than alone (1: not slowed), with limits.

    ``tolerated``: the job's, by source of interference; ``neighbours``: what each of them causes. A source that either
    side knows nothing of does not count, nor does the bus. ``same_core``: they take turns on the job's core, so that
    the core's own resources count too; of these, which all measure time on the core, only the worst does.
    The limits are measured to be too high on another core: they held in 3 of 16 pairs, as no slowdown is below them.
    """
    effects = {
        source: _effect(each, neighbours, source) for source, each in tolerated.items() if source not in NOT_COUNTED
    }
    core = [effect for source, effect in effects.items() if source in CORE_SOURCES] if same_core else []
    shared = [effect for source, effect in effects.items() if source not in CORE_SOURCES]
    worst_of_core = [_worst(core)] if core else []
    total = _worst([*shared, *worst_of_core]) if combination is Combination.MAX else _sum([*shared, *worst_of_core])
    return Estimate(value=1.0 + total.value, low=1.0 + total.low, high=1.0 + total.high, observed=False)


def _excess(pressure: float, tolerated: float) -> float:
    share = NEVER_SHARE if tolerated >= PRESSURE_MAX else 1.0
    return share * EXCESS * max(0.0, pressure) / max(TOLERATED_MIN, tolerated)


def _effect(tolerated: Estimate, neighbours: Iterable[Mapping[str, Estimate]], source: str) -> Estimate:
    """Return the additional run time by one resource; limits of both sides taken together, for the worst and best."""
    pressing = [each[source] for each in neighbours if source in each]
    value, low, high = (
        min(PRESSURE_MAX, math.fsum(getattr(each, name) for each in pressing)) for name in ("value", "low", "high")
    )
    likely = _excess(value, tolerated.value)
    # The step at "never" must not put the value outside its limits.
    return Estimate(
        value=likely,
        low=min(likely, _excess(low, max(tolerated.value, tolerated.high))),
        high=max(likely, _excess(high, min(tolerated.value, tolerated.low))),
    )


def _worst(effects: Sequence[Estimate]) -> Estimate:
    return Estimate(
        value=max((each.value for each in effects), default=0.0),
        low=max((each.low for each in effects), default=0.0),
        high=max((each.high for each in effects), default=0.0),
    )


def _sum(effects: Sequence[Estimate]) -> Estimate:
    """Add up; errors are taken as independent, so they add up in squares."""
    value = math.fsum(each.value for each in effects)
    down = math.sqrt(math.fsum((each.value - each.low) ** 2 for each in effects))
    up = math.sqrt(math.fsum((each.high - each.value) ** 2 for each in effects))
    return Estimate(value=value, low=max(0.0, value - down), high=value + up)
