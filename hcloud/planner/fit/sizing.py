"""Sizes that meet a target: type, scale-up, scale-out and neighbours together (Quasar, Dissertation §4.3.3).

Among the sizes that meet the target with the required probability the one with the least resources is taken: cheapest
first, then fewest machines (scale-up before scale-out), then fewest vCPUs. If none does, the most probable one is
taken. :class:`hcloud.planner.fit.size_curves.SizeCurves` answers the same question for the vCPUs of one rank on many
kinds of machines at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.core.estimates import WHOLE_JOBS, Classification, Measure
from hcloud.core.model import Job, ServiceTarget
from hcloud.planner.fit.expected_performance import (
    ExpectedPerformance,
    expected,
    factor,
    on_type,
    quantile_of,
    scale_up_curve,
)
from hcloud.planner.fit.interference import Floats

Places = npt.NDArray[np.intp]


def wanted_performance(job: Job, known: Classification, now: float, tolerance: float) -> float | None:
    """Return the performance that meets the job's target, in the unit of its classification; None if unknown.

    Requests per second for a service measured in them; the whole job in the time left if whole jobs were measured;
    otherwise all but ``tolerance`` of its performance on its best type with all its nodes (Paragon's QoS).
    """
    target = job.spec.target
    if isinstance(target, ServiceTarget) and known.measure is Measure.REQUESTS:
        return target.requests_per_s
    deadline_at = job.deadline_at
    if deadline_at is not None and known.measure in WHOLE_JOBS and deadline_at > now:
        return 1.0 / (deadline_at - now)
    vcpus, count = job.spec.resources.vcpus, job.spec.nodes.count
    found = [expected(known, column, vcpus=vcpus, asked_vcpus=vcpus, nodes=count) for column in known.by_type]
    best = max((each.value for each in found if each is not None), default=0.0)
    return (1.0 - tolerance) * best if best > 0 else None


def ranks_for_target(job: Job, known: Classification | None, now: float, confidence: float) -> int:
    """Return the fewest ranks that meet the deadline of ``job``, or its rate as a service, with ``confidence``.

    The ranks it needs to start if it has no such target, if too little is known, or if no permitted number meets it.
    """
    nodes, target = job.spec.nodes, job.spec.target
    rate = isinstance(target, ServiceTarget) and known is not None and known.measure is Measure.REQUESTS
    deadline = job.deadline_at is not None and known is not None and known.measure in WHOLE_JOBS
    if known is None or nodes.needed >= nodes.count or not (rate or (deadline and (job.deadline_at or 0.0) > now)):
        return nodes.needed
    wanted = wanted_performance(job, known, now, tolerance=0.0)
    column = max(known.by_type, key=lambda each: (known.by_type[each].value, each), default="")
    vcpus = job.spec.resources.vcpus
    for count in range(nodes.needed, nodes.count + 1) if wanted is not None else ():
        would = expected(known, column, vcpus=vcpus, asked_vcpus=vcpus, nodes=count)
        if would is not None and wanted is not None and would.reaches(wanted) >= confidence:
            return count
    return nodes.needed


class SizeTarget(NamedTuple):
    """The performance required of a job's sizes."""

    target: float
    """Required performance."""
    asked_vcpus: float
    """vCPUs at which it was measured on types, and the default without better knowledge."""
    low: float
    """Fewest vCPUs per node."""
    high: float
    """Most vCPUs per node."""
    nodes: int

    def steps(self, known: Classification) -> list[float]:
        """Return the vCPUs to choose from, ascending: the limits, the default, and known steps between."""
        inside = [vcpus for vcpus in scale_up_curve(known).amounts if self.low < vcpus < self.high]
        return sorted({self.low, self.high, self.asked_vcpus, *inside})


class Platform(NamedTuple):
    """An available machine type."""

    column: str
    vcpus: float
    """vCPUs of one machine."""
    price_usd_per_h: float
    """Price of one machine."""
    machines: int
    """Number of machines available."""
    loss: float = 0.0
    """Expected loss to neighbours (0..1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOption:
    """A number of nodes with a number of vCPUs each, on one platform."""

    platform: Platform
    vcpus: float
    nodes: int
    usd_per_h: float
    performance: float
    probability: float
    """Probability that it meets the target."""


def sizes(
    known: Classification,
    platforms: Iterable[Platform],
    target: float,
    *,
    asked_vcpus: float,
    steps: Sequence[float],
    nodes: Sequence[int],
) -> list[SizeOption]:
    """Return all sizes of the ``platforms`` (``steps`` vCPUs each, ``nodes``) with a known expected performance."""
    found = []
    for platform in platforms:
        for vcpus in (each for each in steps if each <= platform.vcpus):
            for count in (each for each in nodes if each <= platform.machines):
                would = expected(
                    known,
                    platform.column,
                    vcpus=vcpus,
                    asked_vcpus=asked_vcpus,
                    nodes=count,
                    loss=platform.loss,
                )
                if would is not None:
                    found.append(_size(platform, vcpus, count, would, target))
    return found


def _size(platform: Platform, vcpus: float, nodes: int, would: ExpectedPerformance, target: float) -> SizeOption:
    return SizeOption(
        platform=platform,
        vcpus=vcpus,
        nodes=nodes,
        usd_per_h=platform.price_usd_per_h * vcpus / platform.vcpus * nodes,
        performance=would.value,
        probability=would.reaches(target),
    )


def ranked(found: Iterable[SizeOption], confidence: float) -> list[SizeOption]:
    """Return sizes, best first: those that meet the target with ``confidence``, then by probability.

    Among those that meet it: cheapest first, then fewest nodes, fewest vCPUs, the column's name.
    """

    def order(size: SizeOption) -> tuple[bool | float | str, ...]:
        # Probabilities are rounded to nine digits, so that floating-point noise decides nothing.
        enough = size.probability >= confidence
        doubt = 0.0 if enough else -round(size.probability, 9)
        return (not enough, doubt, round(size.usd_per_h, 9), size.nodes, size.vcpus, size.platform.column)

    return sorted(found, key=order)


def least(found: Iterable[SizeOption], confidence: float) -> SizeOption | None:
    """Return the first of :func:`ranked`; None without sizes."""
    return next(iter(ranked(found, confidence)), None)


def ranks_of_types(
    known: Classification, platforms: tuple[Platform, ...], aim: SizeTarget, confidence: float
) -> tuple[dict[str, float], int]:
    """Return by column the rank of its platform's best size among the :func:`ranked` ones, and how many sizes suffice.

    The order of those that meet the target does not depend on it, so it is computed once per classification.
    """
    question = ("by price", platforms, aim.asked_vcpus, aim.low, aim.high, aim.nodes)
    columns, mean, deviation = known.answer(question, lambda: _by_price(known, platforms, aim))
    surely = mean - math.log(aim.target) >= np.where(deviation > 0.0, quantile_of(confidence) * deviation, -1e-12)
    enough, ranks = surely.nonzero()[0].tolist(), dict[str, float]()
    for rank, place in enumerate(enough):
        ranks.setdefault(columns[place], float(rank))
    if len(ranks) < len(set(columns)):
        would = {
            at: ExpectedPerformance(float(mean[at]), float(deviation[at])) for at in np.flatnonzero(~surely).tolist()
        }
        doubtful = sorted((-round(each.reaches(aim.target), 9), at) for at, each in would.items())
        for rank, (_, place) in enumerate(doubtful, start=len(enough)):
            ranks.setdefault(columns[place], float(rank))
    return ranks, len(enough)


def _by_price(
    known: Classification, platforms: tuple[Platform, ...], aim: SizeTarget
) -> tuple[list[str], Floats, Floats]:
    """Return column, mean and deviation of performance of all sizes with an estimate, least resources first."""
    steps = tuple(aim.steps(known))
    types = [on_type(known, each.column) for each in platforms]
    more = [factor(known, vcpus, aim.asked_vcpus, aim.nodes) for vcpus in steps]
    # Squared one by one, as in `expected`: an array's squares may differ from these in the last digit.
    of_type = np.array([(mean, deviation**2) for mean, deviation in types]).reshape(-1, 2)
    of_step = np.array([(step, doubt**2, nodes, also**2) for step, doubt, nodes, also in more])
    platform_at, step_at = _order(platforms, steps, aim.nodes)
    (alone, variance), (by_step, more_variance, by_nodes, last_variance) = of_type[platform_at].T, of_step[step_at].T
    mean, deviation = alone + by_step + by_nodes, np.sqrt(variance + more_variance + last_variance)
    is_known = ~np.isnan(mean)
    return [platforms[at].column for at in platform_at[is_known].tolist()], mean[is_known], deviation[is_known]


@lru_cache(maxsize=256)
def _order(platforms: tuple[Platform, ...], steps: tuple[float, ...], nodes: int) -> tuple[Places, Places]:
    """Return indices of platform and step of all sizes on ``nodes`` nodes, least resources first."""
    found = [
        (round(platform.price_usd_per_h * vcpus / platform.vcpus * nodes, 9), vcpus, platform.column, at, step)
        for at, platform in enumerate(platforms)
        if nodes <= platform.machines
        for step, vcpus in enumerate(steps)
        if vcpus <= platform.vcpus
    ]
    places = np.array([each[3:] for each in sorted(found)], dtype=np.intp).reshape(-1, 2)
    places.setflags(write=False)
    return places[:, 0], places[:, 1]
