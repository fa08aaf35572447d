"""What neighbours cost: the expected slowdown of a job from what it tolerates and what they cause, with limits.

Per resource the effect of pressure is about linear through the point where 5 % are lost (iBench, Dissertation §5.3);
what several neighbours cause in one resource adds up (Paragon §3.2). How resources combine no paper says; it was
measured here (``make bench-interference``, 16 pairs on two cores, 16 on one): letting the resource that hurts most
decide was 6.0 points of performance off on another core, adding all up 10.0. It was chosen with these pairs in view,
and "not slowed" was 5.0 off: most programs there felt nothing. On the same core programs take turns, which explains
what is lost there better (7.8 points off) than the resources of a core did (20).
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
"""Resources of one core: only programs that share the core share them, in turns; :func:`turns` counts their time."""

DEVICES = frozenset({"storage-bandwidth", "network-bandwidth"})
"""Resources that work on while the program that asked does not run."""

NOT_COUNTED = frozenset({"interconnect"})
"""What a program causes of it is told by a probe of memory, since none locks the bus itself; but every program
tolerates so little of it that a trace of memory traffic would count as a great slowdown. Memory's own sources count
that traffic. Counted, errors on another core were 8.1 points, not 6.0."""

NO_TURNS = Estimate(value=1.0, low=1.0, high=1.0)
"""Everybody has cores of their own."""


class Combination(StrEnum):
    """How slowdowns by single resources make up that by all."""

    SUM = "sum"
    MAX = "max"


def kept(pressure: float, tolerated: float) -> float:
    """Return the share of performance (1: all) left under a pressure 0..100 by a job that tolerates 0..100."""
    return 1.0 / (1.0 + _excess(pressure, tolerated))


def turns(busy: float, others: Sequence[float], cpus: float = 1.0) -> Estimate:
    """Return how many times longer a job takes that shares ``cpus`` with others, by CPU time alone (1: none is short).

    ``busy``, ``others``: the CPUs each keeps busy when alone. At best the kernel gives all an equal share and what
    others leave of theirs (max-min fairness), and who waits for disks loses nothing while he waits. Expected is that
    each piece of its work meets the others as often as these are at work; at worst it always does.
    """
    pressing = math.fsum(others) / cpus
    fair = _fair_slowdown(busy, others, cpus)
    likely = max(fair, 1.0 + min(1.0, busy / cpus) * pressing) if busy + math.fsum(others) > 0 else 1.0
    return Estimate(value=likely, low=fair, high=max(likely, 1.0 + pressing))


def _fair_slowdown(busy: float, others: Sequence[float], cpus: float) -> float:
    left, wanting = cpus, sorted([busy, *others])
    for at, each in enumerate(wanting):
        given = min(each, left / (len(wanting) - at))
        if each >= busy:
            return max(1.0, busy / given) if given > 0 else 1.0
        left -= given
    return 1.0


def slowdown(
    tolerated: Mapping[str, Estimate],
    neighbours: Sequence[Mapping[str, Estimate]],
    *,
    core: Estimate = NO_TURNS,
    combination: Combination = Combination.MAX,
) -> Estimate:
    """Return how many times longer a job takes beside ``neighbours`` than alone (1: not slowed), with limits.

    ``tolerated``: the job's, by source of interference; ``neighbours``: what each of them causes. A source that either
    side knows nothing of does not count, nor does the bus, nor do resources of one core. ``core``: what taking turns on
    one core costs (:func:`turns`); who takes turns is not pressed meanwhile, except by what devices still do.
    """
    ignored = CORE_SOURCES | NOT_COUNTED
    counted = {
        source: each
        for source, each in tolerated.items()
        if source not in ignored and (core == NO_TURNS or source in DEVICES)
    }
    effects = [_effect(each, neighbours, source) for source, each in counted.items()]
    total = _worst(effects) if combination is Combination.MAX else _sum(effects)
    return Estimate(
        value=max(core.value, 1.0 + total.value),
        low=max(core.low, 1.0 + total.low),
        high=max(core.high, 1.0 + total.high),
        observed=False,
    )


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
