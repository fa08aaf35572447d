"""The slowdown that is predicted of measured pairs, from what a program tolerates and what others cause, with limits.

The resource that hurts most decides. On the same core programs take turns, which explains what is lost there better
than the resources of a core do. The CPU time of HCloud's units is their own: turns are here to show why resources of a
core do not count between units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED, PRESSURE_MAX, excess
from hcloud.core.estimates import Estimate

DEVICES = frozenset({"storage-bandwidth", "network-bandwidth"})
"""Resources that work on while the program that asked does not run."""

NO_TURNS = Estimate(value=1.0, low=1.0, high=1.0)
"""Every program has cores of its own."""


class Combination(StrEnum):
    """How slowdowns by single resources make up that by all."""

    SUM = "sum"
    MAX = "max"


def turns(busy: float, others: Sequence[float], cpus: float = 1.0) -> Estimate:
    """Return how many times longer a job takes that shares ``cpus`` with others, by CPU time alone (1: none is short).

    ``busy``, ``others``: the CPUs each keeps busy when alone. At best the kernel gives all an equal share and what
    others leave of theirs (max-min fairness), and a job that waits for disks loses nothing meanwhile. Expected is that
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
    one core costs (:func:`turns`); meanwhile a program is pressed only by what devices still do.
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


def _effect(tolerated: Estimate, neighbours: Iterable[Mapping[str, Estimate]], source: str) -> Estimate:
    """Return the additional run time by one resource; limits of both sides taken together, for the worst and best."""
    pressing = [each[source] for each in neighbours if source in each]
    value, low, high = (
        min(PRESSURE_MAX, math.fsum(getattr(each, name) for each in pressing)) for name in ("value", "low", "high")
    )
    likely = excess(value, tolerated.value)
    # The step at "never" must not put the value outside its limits.
    return Estimate(
        value=likely,
        low=min(likely, excess(low, max(tolerated.value, tolerated.high))),
        high=max(likely, excess(high, min(tolerated.value, tolerated.low))),
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
