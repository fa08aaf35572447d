"""Sizes that meet a target: type, scale-up, scale-out and neighbours together (Quasar, Dissertation §4.3.3).

Expected performance combines the four classifications: ``perf = type * up(v)/up(asked) * out(n)/out(1) * beside``. They
are independent, so on a logarithmic axis their variances add up, and the probability of meeting a target has a closed
form. Among the sizes that meet it with the required probability the one with the least resources is taken: cheapest
first, then fewest machines (scale-up before scale-out), then fewest vCPUs. If none does, the most probable one is
taken. A job measured on the given type, step and nodes is as certain as the measurement. :class:`SizeCurves` answers
the same question for the vCPUs of one rank on many kinds of machines at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hcloud.classifier.interference import EXCESS
from hcloud.classifier.unmeasured_types import on_unmeasured_type
from hcloud.core.estimates import WHOLE_JOBS, Classification, Estimate, Measure
from hcloud.core.model import Job, ServiceTarget
from hcloud.planner.fit.interference import FULL, Floats, Sensitivity

Z80 = NormalDist().inv_cdf(0.9)
"""Half-width of limits that enclose 80 %, in standard deviations."""
_UNIT = NormalDist()
ALIKE = 0.03
"""Performances that differ by at most this share count as equal: rates are measured about this precisely."""
NEAR = 0.1
"""A step with at most half the vCPUs may replace another if it performs at most this share worse."""
LEAST_DOUBT = 1e-3
"""Minimum standard deviation of the logarithm of a performance."""
ROOM = 0.05
"""A step that replaces another must exceed the target by this share, because neighbours cost performance."""
_DUST = 1e-9
_NOTHING_LOST = float(np.log(1.0 + _DUST))
Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


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
        step = _ratio(_steps(known), vcpus, base) if vcpus != base else _NO_FACTOR
        more = _NO_FACTOR
        if nodes > 1:
            if nodes not in known.by_nodes or 1 not in known.by_nodes:
                return (math.nan, 0.0, math.nan, 0.0)
            more = _ratio(_Curve({float(n): each for n, each in known.by_nodes.items()}), float(nodes), 1.0)
        return (step.mean, step.deviation, more.mean, more.deviation)

    return known.answer(("factor", vcpus, base, nodes), logarithms)


@dataclass(slots=True, eq=False)
class _Curve:
    """Estimates by amount, with interpolated values cached."""

    answers: Mapping[float, Estimate]
    amounts: list[float] = field(init=False)
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


def _steps(known: Classification) -> _Curve:
    """Return the scale-up estimates by vCPUs; columns are named ``<vcpus> vCPU``."""

    def by_vcpus() -> _Curve:
        # Two measured steps or more are enough to require a concave curve.
        named = known.by_step.items()
        answers = {float(column.split()[0]): each for column, each in named if column.endswith(" vCPU")}
        measured = sorted(vcpus for vcpus, each in answers.items() if each.observed)
        return _Curve(_concave(answers, measured) if len(measured) > 1 else answers)

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
    """Return the limits at ``vcpus`` of a concave curve through ``measured`` amounts (ascending; without ``vcpus``)."""
    above = bisect_right(measured, vcpus)
    if above == 0:
        return answers[measured[0]].value * vcpus / measured[0], answers[measured[0]].value
    below, least = measured[above - 1], answers[measured[above - 1]].value
    if above < len(measured):
        second = answers[measured[above]].value
        part = (vcpus - below) / max(measured[above] - below, _DUST)
        return least + part * (second - least), max(least, second)
    first = answers[measured[above - 2]].value
    # Growth within the noise is ignored: extrapolated, it would become large.
    slope = (least - first) / (below - measured[above - 2]) if least > (1.0 + ALIKE) * first else 0.0
    return least, least + slope * (vcpus - below)


def _ratio(curve: _Curve, to: float, base: float) -> ExpectedPerformance:
    """Return the factor from ``base`` to ``to`` on the logarithmic axis.

    Without any estimate more vCPUs do not help, and fewer cost in proportion.
    """
    if not curve.amounts:
        return ExpectedPerformance(mean=min(0.0, math.log(to / base)), deviation=0.0)
    target, current = curve.at(to), curve.at(base)
    deviation = max(target.deviation, current.deviation) if target != current else 0.0
    return ExpectedPerformance(mean=target.mean - current.mean, deviation=deviation)


def losses_beside(resident: Sensitivity, pressures: Floats) -> Floats:
    """Return the share (0..1) of performance ``resident`` is expected to lose under ``pressures``, shape ``(K, N)``.

    Run time grows in proportion to pressure (iBench's second claim), so that 5 % is lost at ``bears``; the resource
    with the largest loss decides.
    """
    felt = np.minimum(pressures, FULL) / np.maximum(resident.bears, 1.0)[:, None]
    worst = np.maximum.reduce(felt, axis=0, initial=0.0)
    lost: Floats = 1.0 - 1.0 / (1.0 + EXCESS * worst)
    return lost


def loss_beside(resident: Sensitivity, pressures: Floats) -> float:
    """Return :func:`losses_beside` on one machine, ``pressures`` of shape ``(K,)``; faster than arrays for one."""
    pairs = zip(pressures.tolist(), resident.felt, strict=True)
    worst = max([min(pressure, FULL) / felt for pressure, felt in pairs], default=0.0)
    return 1.0 - 1.0 / (1.0 + EXCESS * max(worst, 0.0))


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
        inside = [vcpus for vcpus in _steps(known).amounts if self.low < vcpus < self.high]
        return sorted({self.low, self.high, self.asked_vcpus, *inside})


@lru_cache(maxsize=64)
def quantile_of(confidence: float) -> float:
    """Return by how many standard deviations a normal value lies below its mean at most, with that confidence."""
    return _UNIT.inv_cdf(confidence)


def least(found: Iterable[SizeOption], confidence: float) -> SizeOption | None:
    """Return the first of :func:`ranked`; None without sizes."""
    return next(iter(ranked(found, confidence)), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeCurves:
    """Performance by step for K kinds of machines with up to S steps each, ascending; shape ``(K, S)`` unless stated.

    Shorter curves repeat their last step. A kind without estimate has one step, the default size, which meets any
    target.
    """

    vcpus: Floats
    performance: Floats
    """Expected isolated performance."""
    mean: Floats
    """Its logarithm; minus infinity where there is no such step."""
    doubt: Floats
    """Standard deviation of ``mean``."""
    surely: Floats
    """Logarithm of the performance reached with the required confidence; minus infinity where there is no such step."""
    halves: Flags
    """Shape ``(K, S, S)``: which steps have at most half the vCPUs of another and perform nearly as well."""
    halved: bool
    """Whether ``halves`` has any entry."""
    itself: Flags
    """Identity matrix, shape ``(S, S)``."""
    kinds: Places
    """Indices of all kinds, shape ``(K,)``."""
    alike: Floats
    """The least performance that counts as equal."""
    most_surely: Floats
    """Maximum of ``surely`` by kind, shape ``(K,)``."""
    asked: list[object] = field(default_factory=list, repr=False)
    """Cache of the last target and its curve."""

    def towards(self, target: float) -> SizeCurve:
        """Return the curve for ``target``; the last one is cached."""
        if not self.asked or self.asked[0] != target:
            self.asked[:] = target, SizeCurve(curves=self, target=math.log(target), taken=self.worth(target))
        return cast(SizeCurve, self.asked[1])

    def worth(self, target: float) -> Floats:
        """Return the vCPUs taken for each kind and step.

        The fewest vCPUs, at most half the step's own, that are expected to meet ``target`` and perform nearly as well;
        otherwise the step's own. Slightly more performance or certainty is not worth twice the price; correction
        handles later misses.
        """
        if not self.halved:
            return self.vcpus
        whole = self.performance
        room = np.where(whole >= target, np.minimum(target * (1.0 + ROOM), self.alike), 0.0)
        does_as_well = self.halves & (whole[:, None, :] >= room[:, :, None])
        # argmax takes the first True: smaller steps come before the step itself.
        found: Floats = self.vcpus[self.kinds[:, None], (does_as_well | self.itself).argmax(axis=2)]
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class SizeCurve:
    """Size curves relative to a target; derived values are computed on first use."""

    curves: SizeCurves
    target: float
    """Logarithm of the target."""
    taken: Floats
    """vCPUs taken for each step, shape ``(K, S)``."""
    _above: tuple[Floats, Floats] | None = None
    _best: Places | None = None

    def above(self) -> tuple[Floats, Floats]:
        """Return by how many standard deviations each step exceeds the target, and the maximum by kind."""
        if self._above is None:
            above = (self.curves.mean - self.target) / self.curves.doubt
            self._above = above, np.maximum.reduce(above, axis=1)
        return self._above

    def best(self) -> Places:
        """Return, by kind, the first of the steps most likely to meet the target."""
        if self._best is None:
            above, highest = self.above()
            self._best = (above >= highest[:, None] - _DUST).argmax(axis=1)
        return self._best

    def least(self, kind_at: Places, losses: Floats) -> Floats:
        """Return the fewest vCPUs that meet the target at each of ``losses``, on machines of kind ``kind_at``.

        Both have shape ``(N,)``. If no step meets it with the required confidence, the most likely one is taken.
        """
        enough = self.curves.surely[kind_at] >= (self.target - np.log(1.0 - losses + _DUST))[:, None]
        return self._first(kind_at, enough)

    def _first(self, kind_at: Places, enough: Flags) -> Floats:
        """Return the vCPUs of the first step that is ``enough``, by row; otherwise of the best step of its kind."""
        places, met = enough.argmax(axis=1), np.logical_or.reduce(enough, axis=1)
        if np.count_nonzero(met) < len(met):
            places = np.where(met, places, self.best()[kind_at])
        found: Floats = self.taken[kind_at, places]
        return found

    def least_on(self, kind: int, loss: float) -> float:
        """Return :meth:`least` for one machine."""
        wanted, surely = float(self.target - np.log(1.0 - loss + _DUST)), self.curves.surely[kind].tolist()
        place = next((place for place, each in enumerate(surely) if each >= wanted), None)
        return float(self.taken[kind, self.best()[kind] if place is None else place])

    def alone(self) -> Floats:
        """Return :meth:`least` for an empty machine of each kind, shape ``(K,)``."""
        return self._first(self.curves.kinds, self.curves.surely >= self.target - _NOTHING_LOST)

    def shortfalls(self) -> Places:
        """Return how far an empty machine of each kind falls short of the target, in steps.

        0: it meets the target with the required confidence, or is unknown. 1: it is more likely than not to meet it.
        Higher values add one per standard deviation below it.
        """
        below = np.maximum(np.ceil(-self.above()[1] - _DUST), 0.0)
        found: Places = np.where(self._surely(), 0, 1 + below.astype(np.intp))
        return found

    def likely(self) -> Flags:
        """Return by kind whether an empty machine is more likely than not to meet the target."""
        found: Flags = self._surely() | (self.above()[1] >= -_DUST)
        return found

    def _surely(self) -> Flags:
        surely: Flags = self.curves.most_surely >= self.target - _DUST
        return surely


def size_curves(
    known: Classification, kinds: tuple[tuple[str, float], ...], aim: SizeTarget, confidence: float
) -> SizeCurves:
    """Return the curves of ``kinds``, each a type and the vCPUs of one machine. They do not depend on the target."""
    question = ("size curves", kinds, aim.asked_vcpus, aim.low, aim.high, aim.nodes, confidence)
    return known.answer(question, lambda: _size_curves(known, kinds, aim, confidence))


def _size_curves(
    known: Classification, kinds: Sequence[tuple[str, float]], aim: SizeTarget, confidence: float
) -> SizeCurves:
    steps = aim.steps(known)
    factors, count = np.array([factor(known, step, aim.asked_vcpus, aim.nodes) for step in steps]), len(steps)
    types = np.array([on_type(known, column) for column, _ in kinds]).reshape(-1, 2)
    is_known = ~(np.isnan(types[:, 0]) | np.isnan(factors[:, 0].sum()))
    fitting = np.searchsorted(np.array(steps), np.array([most for _, most in kinds]) + _DUST, side="right")
    step_counts: Places = np.where(is_known, fitting, 0)
    last = np.minimum(np.arange(count)[None, :], np.maximum(step_counts, 1)[:, None] - 1)
    at, there = np.arange(len(kinds))[:, None], np.arange(count)[None, :] < step_counts[:, None]
    mean = (types[:, None, 0] + factors[None, :, 0] + factors[None, :, 2])[at, last]
    doubt = np.sqrt(types[:, None, 1] ** 2 + factors[None, :, 1] ** 2 + factors[None, :, 3] ** 2)[at, last]
    surely = np.where(there, mean - quantile_of(confidence) * doubt, -np.inf)
    nothing = step_counts == 0
    surely[nothing, 0], mean[nothing], doubt[nothing] = np.inf, 0.0, 1.0
    vcpus = np.where(nothing[:, None], aim.asked_vcpus, np.array(steps)[last])
    return size_curves_of(vcpus, mean, doubt, surely)


def size_curves_of(vcpus: Floats, mean: Floats, doubt: Floats, surely: Floats) -> SizeCurves:
    """Return curves from their steps, each of shape ``(K, S)``; see :class:`SizeCurves`."""
    performance = np.exp(mean)
    half = 2 * vcpus[:, None, :] <= vcpus[:, :, None] + _DUST
    near: Flags = performance[:, None, :] >= performance[:, :, None] / (1.0 + NEAR)
    halves = half & near
    return SizeCurves(
        vcpus=vcpus,
        performance=performance,
        doubt=np.maximum(doubt, LEAST_DOUBT),
        surely=surely,
        mean=np.where(np.isneginf(surely), -np.inf, mean),
        halves=halves,
        halved=bool(halves.any()),
        itself=np.eye(vcpus.shape[1], dtype=np.bool_),
        kinds=np.arange(len(vcpus)),
        alike=performance / (1.0 + ALIKE),
        most_surely=surely.max(axis=1),
    )
