"""Expected performance of a job on a type, with a number of vCPUs and nodes and next to neighbours (Quasar).

It combines the four classifications: ``perf = type * up(v)/up(asked) * out(n)/out(1) * beside``. They are independent,
so on a logarithmic axis their variances add up, and the probability of meeting a target has a closed form. A job
measured on the given type, step and nodes is as certain as the measurement.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hcloud.classifier.interference import EXCESS
from hcloud.classifier.unmeasured_types import on_unmeasured_type
from hcloud.core.estimates import Classification, Estimate
from hcloud.planner.fit.interference import FULL, Floats, Sensitivity

Z80 = NormalDist().inv_cdf(0.9)
"""Half-width of limits that enclose 80 %, in standard deviations."""
_UNIT = NormalDist()
ALIKE = 0.03
"""Performances that differ by at most this share count as equal: rates are measured about this precisely."""
_DUST = 1e-9


class ExpectedPerformance(NamedTuple):
    """Expected performance on a logarithmic axis: mean and standard deviation of its natural logarithm."""

    mean: float
    deviation: float

    @property
    def value(self) -> float:
        """Expected (median) performance."""
        return math.exp(self.mean)

    def limits(self) -> tuple[float, float]:
        """Return the limits that enclose it with 80 % probability."""
        return math.exp(self.mean - Z80 * self.deviation), math.exp(self.mean + Z80 * self.deviation)

    def times(self, factor: float) -> ExpectedPerformance:
        """Return this performance multiplied by a factor above 0, with the same uncertainty."""
        return self._replace(mean=self.mean + math.log(factor))

    def reaches(self, target: float) -> float:
        """Return the probability that it is at least ``target`` (above 0)."""
        excess = self.mean - math.log(target)
        if self.deviation <= 0.0:
            return 1.0 if excess >= -1e-12 else 0.0
        return _UNIT.cdf(excess / self.deviation)


_NO_FACTOR = ExpectedPerformance(mean=0.0, deviation=0.0)


def _logarithm(estimate: Estimate) -> ExpectedPerformance:
    """Return an estimate of performance on the logarithmic axis; one without usable limits has deviation 0."""
    low, high = max(min(estimate.low, estimate.value), 1e-300), max(estimate.high, estimate.value)
    return ExpectedPerformance(mean=math.log(estimate.value), deviation=math.log(high / low) / (2 * Z80))


def expected(
    known: Classification, type_column: str, *, vcpus: float, asked_vcpus: float, nodes: int = 1, loss: float = 0.0
) -> ExpectedPerformance | None:
    """Return a job's expected performance on ``nodes`` machines of a type, with ``vcpus`` of each.

    ``asked_vcpus``: the size at which it was measured on types; ``loss``: share lost to neighbours (0..1). None if that
    type or node count is unknown.
    """
    question = (type_column, vcpus, asked_vcpus, nodes)
    alone = known.answer(question, lambda: _expected_alone(known, *question))
    if alone is None or loss == 0.0:
        return alone
    return ExpectedPerformance(mean=alone.mean + math.log(max(1.0 - loss, 1e-9)), deviation=alone.deviation)


def _expected_alone(
    known: Classification, type_column: str, vcpus: float, asked_vcpus: float, nodes: int
) -> ExpectedPerformance | None:
    mean, deviation = on_type(known, type_column)
    by_step, doubt, by_nodes, more_doubt = factor(known, vcpus, asked_vcpus, nodes)
    mean = mean + by_step + by_nodes
    if math.isnan(mean):
        return None
    return ExpectedPerformance(mean=mean, deviation=math.sqrt(deviation**2 + doubt**2 + more_doubt**2))


def on_type(known: Classification, column: str) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of performance on one node of a type; NaN if unknown.

    A type that was not measured is estimated from those nearest to it.
    """

    def logarithm() -> tuple[float, float]:
        estimate = known.by_type.get(column) or on_unmeasured_type(known.by_type, column)
        if estimate is None or estimate.value <= 0:
            return (math.nan, 0.0)
        performance = _logarithm(estimate)
        return (performance.mean, performance.deviation)

    return known.answer(("on type", column), logarithm)


def factor(known: Classification, vcpus: float, asked_vcpus: float, nodes: int) -> tuple[float, float, float, float]:
    """Return the factors of ``vcpus`` and of ``nodes`` on performance, whatever the type.

    ``asked_vcpus``: the size at which it was measured on types, unless its classification states it. Mean and standard
    deviation of the logarithm of each; NaN if that node count is unknown.
    """
    base = known.reference_vcpus or asked_vcpus

    def logarithms() -> tuple[float, float, float, float]:
        step = _ratio(scale_up_curve(known), vcpus, base) if vcpus != base else _NO_FACTOR
        more = _NO_FACTOR
        if nodes > 1:
            if nodes not in known.by_nodes or 1 not in known.by_nodes:
                return (math.nan, 0.0, math.nan, 0.0)
            more = _ratio(PerformanceCurve({float(n): each for n, each in known.by_nodes.items()}), float(nodes), 1.0)
        return (step.mean, step.deviation, more.mean, more.deviation)

    return known.answer(("factor", vcpus, base, nodes), logarithms)


@dataclass(slots=True, eq=False)
class PerformanceCurve:
    """Estimates by amount, with interpolated values cached."""

    answers: Mapping[float, Estimate]
    amounts: list[float] = field(init=False)
    """The known amounts, ascending."""
    cache: dict[float, ExpectedPerformance] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.amounts = sorted(self.answers)

    def at(self, amount: float) -> ExpectedPerformance:
        """Return the performance at ``amount``, interpolated between known amounts.

        Below the smallest it shrinks in proportion; above the largest it does not grow.
        """
        found = self.cache.get(amount)
        if found is None:
            found = self.cache[amount] = self._at(amount)
        return found

    def _at(self, amount: float) -> ExpectedPerformance:
        amounts, above = self.amounts, bisect_left(self.amounts, amount)
        if above == len(amounts):
            return _logarithm(self.answers[amounts[-1]])
        second = _logarithm(self.answers[amounts[above]])
        if amounts[above] == amount:
            return second
        if above == 0:
            return ExpectedPerformance(mean=second.mean + math.log(amount / amounts[0]), deviation=second.deviation)
        first = _logarithm(self.answers[amounts[above - 1]])
        part = math.log(amount / amounts[above - 1]) / math.log(amounts[above] / amounts[above - 1])
        mean = first.mean + part * (second.mean - first.mean)
        return ExpectedPerformance(mean=mean, deviation=max(first.deviation, second.deviation))


def scale_up_curve(known: Classification) -> PerformanceCurve:
    """Return the scale-up estimates by vCPUs; columns are named ``<vcpus> vCPU``."""

    def by_vcpus() -> PerformanceCurve:
        # Two measured steps or more are enough to require a concave curve.
        named = known.by_step.items()
        answers = {float(column.split()[0]): each for column, each in named if column.endswith(" vCPU")}
        measured = sorted(vcpus for vcpus, each in answers.items() if each.observed)
        return PerformanceCurve(_concave(answers, measured) if len(measured) > 1 else answers)

    return known.answer("steps", by_vcpus)


def _concave(answers: Mapping[float, Estimate], measured: Sequence[float]) -> dict[float, Estimate]:
    """Return estimates in which no vCPU adds more than the ones before it (Amdahl's law).

    Inferred amounts are limited by those ``measured``, of which there are at least two.
    """
    found = dict(answers)
    for vcpus in [vcpus for vcpus, each in answers.items() if not each.observed]:
        each, (low, high) = answers[vcpus], _between(answers, measured, vcpus)
        value = min(max(each.value, low), high)
        by = value / each.value if each.value > 0 else 1.0
        found[vcpus] = each._replace(value=value, low=each.low * by, high=each.high * by)
    return found


def _between(answers: Mapping[float, Estimate], measured: Sequence[float], vcpus: float) -> tuple[float, float]:
    """Return the limits at ``vcpus`` of a concave curve through nothing at 0 and the ``measured`` amounts (ascending;
    without ``vcpus``)."""
    above = bisect_right(measured, vcpus)
    if above == 0:
        return answers[measured[0]].value * vcpus / measured[0], answers[measured[0]].value
    below, least = measured[above - 1], answers[measured[above - 1]].value
    most = least * vcpus / below
    if above < len(measured):
        second = answers[measured[above]].value
        part = (vcpus - below) / max(measured[above] - below, _DUST)
        low = least + part * (second - least)
        return low, max(low, min(max(least, second), most))
    first = answers[measured[above - 2]].value
    # Growth within the noise is ignored: extrapolated, it would become large.
    slope = (least - first) / (below - measured[above - 2]) if least > (1.0 + ALIKE) * first else 0.0
    return least, min(least + slope * (vcpus - below), most)


def _ratio(curve: PerformanceCurve, to: float, base: float) -> ExpectedPerformance:
    """Return the factor from ``base`` to ``to`` on the logarithmic axis.

    Without any estimate more vCPUs do not help, and fewer cost in proportion.
    """
    if not curve.amounts:
        return ExpectedPerformance(mean=min(0.0, math.log(to / base)), deviation=0.0)
    target, current = curve.at(to), curve.at(base)
    deviation = max(target.deviation, current.deviation) if target != current else 0.0
    return ExpectedPerformance(mean=target.mean - current.mean, deviation=deviation)


def losses_beside(resident: Sensitivity, pressures: Floats, factors: Floats | float = 1.0) -> Floats:
    """Return the share (0..1) of performance ``resident`` is expected to lose under ``pressures``, shape ``(K, N)``.

    Run time grows in proportion to pressure (iBench's second claim), so that 5 % is lost at ``bears``; the resource
    with the largest loss decides. ``factors``: how much of that additional run time really comes, shape ``(N,)``.
    """
    felt = np.minimum(pressures, FULL) / np.maximum(resident.bears, 1.0)[:, None]
    worst = np.maximum.reduce(felt, axis=0, initial=0.0)
    lost: Floats = 1.0 - 1.0 / (1.0 + EXCESS * factors * worst)
    return lost


def loss_beside(resident: Sensitivity, pressures: Floats, factor: float = 1.0) -> float:
    """Return :func:`losses_beside` on one machine, ``pressures`` of shape ``(K,)``; faster than arrays for one."""
    return 1.0 - 1.0 / (1.0 + factor * longer_beside(resident, pressures))


def longer_beside(resident: Sensitivity, pressures: Floats) -> float:
    """Return the additional run time (0: none, 1: twice as long) that costs :func:`loss_beside`."""
    pairs = zip(pressures.tolist(), resident.felt, strict=True)
    worst = max([(pressure if pressure < FULL else FULL) / felt for pressure, felt in pairs], default=0.0)
    return EXCESS * max(worst, 0.0)


@lru_cache(maxsize=64)
def quantile_of(confidence: float) -> float:
    """Return by how many standard deviations a normal value lies below its mean at most, with that confidence."""
    return _UNIT.inv_cdf(confidence)
