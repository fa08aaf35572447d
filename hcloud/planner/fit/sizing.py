"""How much of what meets a target: type, scale-up, scale-out and neighbours together (Quasar, Dissertation §4.3.3).

Expected performance joins the four classifications, ``perf = type * up(v)/up(asked) * out(n)/out(1) * beside``. They
are independent of each other, so on a logarithmic axis their variances add up, and the probability that a target is met
has a closed form. Of the sizes that meet it with the wanted probability the one with the least resources is taken:
first the cheapest, then few machines before many (scale-up before scale-out), then few vCPUs; where none meets it with
that probability, the likeliest. (What of it a rank gets: :mod:`hcloud.planner.fit.sizing`.) A job measured on the type,
step and nodes at hand is as sure as the measurement.
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
from hcloud.core.estimates import WHOLE_JOBS, Classification, Estimate, Measure
from hcloud.core.model import Job, ServiceTarget
from hcloud.planner.fit.interference import FULL, Floats, Sensitivity

Z80 = NormalDist().inv_cdf(0.9)
"""Half the width, in standard deviations, of limits between which lie 80 of 100."""
_UNIT = NormalDist()
ALIKE = 0.03
"""Performances no further apart than this are alike: rates are measured until they are known about so well."""
_DUST = 1e-9
Places = npt.NDArray[np.intp]


class ExpectedPerformance(NamedTuple):
    """Expected performance on a logarithmic axis: mean and standard deviation of its natural logarithm."""

    mean: float
    deviation: float

    @property
    def value(self) -> float:
        """The expected (median) performance."""
        return math.exp(self.mean)

    def limits(self) -> tuple[float, float]:
        """Return the limits between which it lies in 80 of 100 cases."""
        return math.exp(self.mean - Z80 * self.deviation), math.exp(self.mean + Z80 * self.deviation)

    def times(self, factor: float) -> ExpectedPerformance:
        """Return so many times (above 0) as much, known as well."""
        return self._replace(mean=self.mean + math.log(factor))

    def reaches(self, target: float) -> float:
        """Return the probability that it is at least ``target`` (above 0)."""
        apart = self.mean - math.log(target)
        if self.deviation <= 0.0:
            return 1.0 if apart >= -1e-12 else 0.0
        return _UNIT.cdf(apart / self.deviation)


_NO_FACTOR = ExpectedPerformance(mean=0.0, deviation=0.0)


def _logarithm(estimate: Estimate) -> ExpectedPerformance:
    """Return an estimate of performance on the logarithmic axis; one without usable limits has none."""
    low, high = max(min(estimate.low, estimate.value), 1e-300), max(estimate.high, estimate.value)
    return ExpectedPerformance(mean=math.log(estimate.value), deviation=math.log(high / low) / (2 * Z80))


def expected(
    known: Classification, type_column: str, *, vcpus: float, asked_vcpus: float, nodes: int = 1, loss: float = 0.0
) -> ExpectedPerformance | None:
    """Return what a job is expected to do on ``nodes`` machines of a type, ``vcpus`` of each, losing ``loss`` (0..1).

    ``asked_vcpus``: at which it was measured on types. None: nothing is known of that type, or of so many nodes.
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
    """Return what it does on one node of a type, as it was measured on types: the mean and the standard deviation of
    the logarithm; NaN where nothing is known of that."""

    def logarithm() -> tuple[float, float]:
        """Of the estimate."""
        estimate = known.by_type.get(column)
        if estimate is None or estimate.value <= 0:
            return (math.nan, 0.0)
        told = _logarithm(estimate)
        return (told.mean, told.deviation)

    return known.answer(("on type", column), logarithm)


def factor(known: Classification, vcpus: float, asked_vcpus: float, nodes: int) -> tuple[float, float, float, float]:
    """Return by how much more it does with so many vCPUs, and then on so many nodes, whatever the type: of each the
    mean and the standard deviation of the logarithm. NaN where nothing is known of so many nodes."""

    def logarithms() -> tuple[float, float, float, float]:
        """Of both factors."""
        step = _ratio(_steps(known), vcpus, asked_vcpus) if vcpus != asked_vcpus else _NO_FACTOR
        more = _NO_FACTOR
        if nodes > 1:
            if nodes not in known.by_nodes or 1 not in known.by_nodes:
                return (math.nan, 0.0, math.nan, 0.0)
            more = _ratio(_Curve({float(n): each for n, each in known.by_nodes.items()}), float(nodes), 1.0)
        return (step.mean, step.deviation, more.mean, more.deviation)

    return known.answer(("factor", vcpus, asked_vcpus, nodes), logarithms)


@dataclass(slots=True, eq=False)
class _Curve:
    """Answers by amount, and what was read off between them so far (``told``)."""

    answers: Mapping[float, Estimate]
    amounts: list[float] = field(init=False)
    told: dict[float, ExpectedPerformance] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Put the amounts in order."""
        self.amounts = sorted(self.answers)

    def at(self, amount: float) -> ExpectedPerformance:
        """Return the performance with so much, interpolated between known amounts: below the least it shrinks in
        proportion, above the most it does not grow."""
        found = self.told.get(amount)
        if found is None:
            found = self.told[amount] = self._at(amount)
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
    """Return scale-up answers by their vCPUs; columns are written ``<vcpus> vCPU``."""

    def by_vcpus() -> _Curve:
        """Return the steps by their number, concave where at least two of them were measured."""
        named = known.by_step.items()
        answers = {float(column.split()[0]): each for column, each in named if column.endswith(" vCPU")}
        measured = sorted(vcpus for vcpus, each in answers.items() if each.observed)
        return _Curve(_concave(answers, measured) if len(measured) > 1 else answers)

    return known.answer("steps", by_vcpus)


def _concave(answers: Mapping[float, Estimate], measured: Sequence[float]) -> dict[float, Estimate]:
    """Return answers in which no vCPU helps more than the ones before it (Amdahl's law, or the last thread): what was
    ``measured`` at two amounts and more limits what is inferred of the others."""
    found = dict(answers)
    for vcpus in [vcpus for vcpus, each in answers.items() if not each.observed]:
        each, (low, high) = answers[vcpus], _between(answers, measured, vcpus)
        value = min(max(each.value, low), high)
        by = value / each.value if each.value > 0 else 1.0
        found[vcpus] = each._replace(value=value, low=each.low * by, high=each.high * by)
    return found


def _between(answers: Mapping[float, Estimate], measured: Sequence[float], vcpus: float) -> tuple[float, float]:
    """Return the least and the most that a concave curve through what was ``measured`` (ascending; not at ``vcpus``)
    can do with so many vCPUs."""
    above = bisect_right(measured, vcpus)
    if above == 0:
        return answers[measured[0]].value * vcpus / measured[0], answers[measured[0]].value
    below, least = measured[above - 1], answers[measured[above - 1]].value
    if above < len(measured):
        second = answers[measured[above]].value
        part = (vcpus - below) / max(measured[above] - below, _DUST)
        return least + part * (second - least), max(least, second)
    first = answers[measured[above - 2]].value
    # What is within the noise is no growth: carried on, a little of it becomes much.
    slope = (least - first) / (below - measured[above - 2]) if least > (1.0 + ALIKE) * first else 0.0
    return least, least + slope * (vcpus - below)


def _ratio(curve: _Curve, to: float, base: float) -> ExpectedPerformance:
    """Return the factor from ``base`` to ``to``, on the logarithmic axis.

    Nothing known: more does not help, less costs in proportion.
    """
    if not curve.amounts:
        return ExpectedPerformance(mean=min(0.0, math.log(to / base)), deviation=0.0)
    there, here = curve.at(to), curve.at(base)
    deviation = max(there.deviation, here.deviation) if there != here else 0.0
    return ExpectedPerformance(mean=there.mean - here.mean, deviation=deviation)


def losses_beside(who: Sensitivity, pressures: Floats) -> Floats:
    """Return the part (0..1) of its performance that ``who`` is expected to lose under ``pressures``, shape ``(K, N)``.

    The time it takes grows in proportion to the pressure (iBench's second claim), so that 5 % are lost at what it
    bears; the resource that hurts most decides.
    """
    felt = np.minimum(pressures, FULL) / np.maximum(who.bears, 1.0)[:, None]
    worst = np.maximum.reduce(felt, axis=0, initial=0.0)
    lost: Floats = 1.0 - 1.0 / (1.0 + EXCESS * worst)
    return lost


def loss_beside(who: Sensitivity, pressures: Floats) -> float:
    """Return :func:`losses_beside` on one machine, ``pressures`` of shape ``(K,)``: arrays take longer for one."""
    pairs = zip(pressures.tolist(), who.felt, strict=True)
    worst = max([min(pressure, FULL) / felt for pressure, felt in pairs], default=0.0)
    return 1.0 - 1.0 / (1.0 + EXCESS * max(worst, 0.0))


def wanted_performance(job: Job, known: Classification, now: float, tolerance: float) -> float | None:
    """Return the performance that meets the job's target, in the unit of its classification; None: nothing is known.

    Requests per second for a service measured in them; the whole job in the time left where whole jobs were measured;
    else all but ``tolerance`` of what it would do on its best type with all its nodes (Paragon's QoS).
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


class Platform(NamedTuple):
    """A type at hand: its column, the vCPUs of one machine, the price of one, and the loss (0..1) beside neighbours."""

    column: str
    vcpus: float
    price_usd_per_h: float
    machines: int
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOption:
    """So many nodes with so many vCPUs each of a platform; ``probability`` that this meets the target."""

    platform: Platform
    vcpus: float
    nodes: int
    usd_per_h: float
    performance: float
    probability: float


def sizes(
    known: Classification,
    platforms: Iterable[Platform],
    target: float,
    *,
    asked_vcpus: float,
    steps: Sequence[float],
    nodes: Sequence[int],
) -> list[SizeOption]:
    """Return all sizes of the ``platforms`` (``steps`` vCPUs each, ``nodes``) of which something is known."""
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
    """Return sizes, best first: those that meet the target with ``confidence``, then the more probable ones.

    Of those that meet it the least resources: cheapest first, then few nodes, few vCPUs, the column's name.
    """

    def order(size: SizeOption) -> tuple[bool | float | str, ...]:
        """Sort key: enough first; else by probability to nine digits, so that rounding decides nothing."""
        enough = size.probability >= confidence
        doubt = 0.0 if enough else -round(size.probability, 9)
        return (not enough, doubt, *_price_key(size))

    return sorted(found, key=order)


def ranks_of_types(
    known: Classification, platforms: tuple[Platform, ...], aim: SizeTarget, confidence: float
) -> tuple[dict[str, float], int]:
    """Return by column where the best size of its platform stands among the :func:`ranked` ones, from 0 on, and how
    many sizes meet the target.

    The order of those that meet it does not depend on the target, so it is worked out once for a classification.
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
    """Return the column, and mean and deviation of the performance, of all sizes of which something is known, the least
    resources first."""
    steps = tuple(aim.steps(known))
    types = [on_type(known, each.column) for each in platforms]
    more = [factor(known, vcpus, aim.asked_vcpus, aim.nodes) for vcpus in steps]
    # Squared one by one, as in `expected`: an array's squares may differ from these in the last digit.
    of_type = np.array([(mean, deviation**2) for mean, deviation in types]).reshape(-1, 2)
    of_step = np.array([(step, doubt**2, nodes, also**2) for step, doubt, nodes, also in more])
    platform_at, step_at = _order(platforms, steps, aim.nodes)
    (alone, variance), (by_step, more_variance, by_nodes, last_variance) = of_type[platform_at].T, of_step[step_at].T
    mean, deviation = alone + by_step + by_nodes, np.sqrt(variance + more_variance + last_variance)
    told = ~np.isnan(mean)
    return [platforms[at].column for at in platform_at[told].tolist()], mean[told], deviation[told]


@lru_cache(maxsize=256)
def _order(platforms: tuple[Platform, ...], steps: tuple[float, ...], nodes: int) -> tuple[Places, Places]:
    """Return the platform and the step of all sizes on so many nodes, the least resources first: by their places."""
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


def _price_key(size: SizeOption) -> tuple[float, int, float, str]:
    return (round(size.usd_per_h, 9), size.nodes, size.vcpus, size.platform.column)


class SizeTarget(NamedTuple):
    """What is asked of a job's sizes: so much performance, on ``nodes`` nodes, each with ``low`` to ``high`` vCPUs.

    ``asked_vcpus``: at which it was measured on types, and what it gets where nothing better is known.
    """

    target: float
    asked_vcpus: float
    low: float
    high: float
    nodes: int

    def steps(self, known: Classification) -> list[float]:
        """Return the vCPUs to choose from: the ends, what is asked for, and what is known between; least first."""
        inside = [vcpus for vcpus in _steps(known).amounts if self.low < vcpus < self.high]
        return sorted({self.low, self.high, self.asked_vcpus, *inside})


@lru_cache(maxsize=64)
def quantile_of(confidence: float) -> float:
    """Return by how many standard deviations a normal value is below its mean with such confidence at most."""
    return _UNIT.inv_cdf(confidence)


def least(found: Iterable[SizeOption], confidence: float) -> SizeOption | None:
    """Return the first of :func:`ranked`; None: there are no sizes."""
    return next(iter(ranked(found, confidence)), None)


NEAR = 0.1
"""Half a size comes near to it where it does so much less at most."""
LEAST_DOUBT = 1e-3
"""No performance is known more exactly than this (standard deviation of its logarithm)."""
ROOM = 0.05
"""And it is to be expected to do so much more than what is wanted, where the whole is: neighbours cost something."""
_NOTHING_LOST = float(np.log(1.0 + _DUST))
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeCurves:
    """The steps of K kinds of machines, least first, S at most; shorter ones are filled up with their last.

    Shape ``(K, S)``: ``vcpus``, the ``performance`` expected alone and its logarithm (``mean``), the standard deviation
    of that (``doubt``), what it surely reaches, with the confidence wanted (``surely``; both logarithms are minus
    infinity where there is no such step), and the least performance as good as its own (``alike``). ``halves``, shape
    ``(K, S, S)``: which steps, by size and by how much they do less than another, may be taken for it; ``halved``:
    whether any may. ``itself``, shape ``(S, S)``: each step. ``kinds``, shape ``(K,)``: all of them; ``most_surely``,
    of the same shape: the most of ``surely``. Of a kind of which nothing is known the only step is what was asked for,
    and it meets everything. ``asked``: the last target, and what became of it.
    """

    vcpus: Floats
    performance: Floats
    mean: Floats
    doubt: Floats
    surely: Floats
    halves: Flags
    halved: bool
    itself: Flags
    kinds: Places
    alike: Floats
    most_surely: Floats
    asked: list[object] = field(default_factory=list, repr=False)

    def towards(self, target: float) -> SizeCurve:
        """Return which steps meet ``target``; the answer to the same question as before is kept."""
        if not self.asked or self.asked[0] != target:
            self.asked[:] = target, self._towards(target)
        return cast(SizeCurve, self.asked[1])

    def _towards(self, target: float) -> SizeCurve:
        return SizeCurve(ladders=self, target=math.log(target), taken=self.worth(target))

    def worth(self, target: float) -> Floats:
        """Return by kind and step the vCPUs taken for it: the least, at most half of its own, that are expected to meet
        ``target`` as well and come near it, if any.

        A little more performance, or a little more certainty of it, is not worth twice the price; whoever then misses
        its target is corrected.
        """
        if not self.halved:
            return self.vcpus
        whole = self.performance
        room = np.where(whole >= target, np.minimum(target * (1.0 + ROOM), self.alike), 0.0)
        does_as_well = self.halves & (whole[:, None, :] >= room[:, :, None])
        # Half of a step comes before it.
        found: Floats = self.vcpus[self.kinds[:, None], (does_as_well | self.itself).argmax(axis=2)]
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class SizeCurve:
    """How ladders stand to a ``target`` (its logarithm): what is ``taken`` for each step, shape ``(K, S)``. Worked out
    when it is first asked for: by how many standard deviations each is ``above`` the target, the most of that
    (``highest``), and which one of each kind (``best``) is taken where none meets it with the confidence: the likeliest
    to."""

    ladders: SizeCurves
    target: float
    taken: Floats
    _above: tuple[Floats, Floats] | None = None
    _best: Places | None = None

    def above(self) -> tuple[Floats, Floats]:
        """Return by how many standard deviations each step is above the target, and of each kind the most of that."""
        if self._above is None:
            above = (self.ladders.mean - self.target) / self.ladders.doubt
            self._above = above, np.maximum.reduce(above, axis=1)
        return self._above

    def best(self) -> Places:
        """Return by kind the first of the steps that are likeliest to meet the target."""
        if self._best is None:
            above, highest = self.above()
            self._best = (above >= highest[:, None] - _DUST).argmax(axis=1)
        return self._best

    def least(self, kind_at: Places, losses: Floats) -> Floats:
        """Return the least vCPUs that meet the target at each of ``losses`` on a machine of that kind (both of shape
        ``(N,)``), and are worth it; where none do, the best."""
        enough = self.ladders.surely[kind_at] >= (self.target - np.log(1.0 - losses + _DUST))[:, None]
        return self._first(kind_at, enough)

    def _first(self, kind_at: Places, enough: Flags) -> Floats:
        """Return what is taken for the first step that is ``enough`` (of each row), else for the best of its kind."""
        places, met = enough.argmax(axis=1), np.logical_or.reduce(enough, axis=1)
        if np.count_nonzero(met) < len(met):
            places = np.where(met, places, self.best()[kind_at])
        found: Floats = self.taken[kind_at, places]
        return found

    def least_on(self, kind: int, loss: float) -> float:
        """Return :meth:`least` of one machine."""
        wanted, surely = float(self.target - np.log(1.0 - loss + _DUST)), self.ladders.surely[kind].tolist()
        place = next((place for place, each in enumerate(surely) if each >= wanted), None)
        return float(self.taken[kind, self.best()[kind] if place is None else place])

    def alone(self) -> Floats:
        """Return by kind what :meth:`least` does for an otherwise empty machine, shape ``(K,)``."""
        return self._first(self.ladders.kinds, self.ladders.surely >= self.target - _NOTHING_LOST)

    def shortfalls(self) -> Places:
        """Return by kind 0 where an empty machine meets the target with the wanted confidence (or nothing is known of
        it), 1 where it is more likely than not to, else one more for each standard deviation below it."""
        below = np.maximum(np.ceil(-self.above()[1] - _DUST), 0.0)
        found: Places = np.where(self._surely(), 0, 1 + below.astype(np.intp))
        return found

    def likely(self) -> Flags:
        """Return by kind whether an empty machine is more likely than not to meet the target: :meth:`shortfalls` of 1
        at most."""
        found: Flags = self._surely() | (self.above()[1] >= -_DUST)
        return found

    def _surely(self) -> Flags:
        surely: Flags = self.ladders.most_surely >= self.target - _DUST
        return surely


def size_curves(
    known: Classification, kinds: tuple[tuple[str, float], ...], aim: SizeTarget, confidence: float
) -> SizeCurves:
    """Return the steps of ``kinds``: of each its type and the vCPUs of a machine. They do not depend on the target."""
    question = ("ladders", kinds, aim.asked_vcpus, aim.low, aim.high, aim.nodes, confidence)
    return known.answer(question, lambda: _ladders(known, kinds, aim, confidence))


def _ladders(
    known: Classification, kinds: Sequence[tuple[str, float]], aim: SizeTarget, confidence: float
) -> SizeCurves:
    steps = aim.steps(known)
    factors, count = np.array([factor(known, step, aim.asked_vcpus, aim.nodes) for step in steps]), len(steps)
    types = np.array([on_type(known, column) for column, _ in kinds]).reshape(-1, 2)
    told = ~(np.isnan(types[:, 0]) | np.isnan(factors[:, 0].sum()))
    fitting = np.searchsorted(np.array(steps), np.array([most for _, most in kinds]) + _DUST, side="right")
    rungs: Places = np.where(told, fitting, 0)
    last = np.minimum(np.arange(count)[None, :], np.maximum(rungs, 1)[:, None] - 1)
    at, there = np.arange(len(kinds))[:, None], np.arange(count)[None, :] < rungs[:, None]
    mean = (types[:, None, 0] + factors[None, :, 0] + factors[None, :, 2])[at, last]
    doubt = np.sqrt(types[:, None, 1] ** 2 + factors[None, :, 1] ** 2 + factors[None, :, 3] ** 2)[at, last]
    surely = np.where(there, mean - quantile_of(confidence) * doubt, -np.inf)
    nothing = rungs == 0
    surely[nothing, 0], mean[nothing], doubt[nothing] = np.inf, 0.0, 1.0
    vcpus = np.where(nothing[:, None], aim.asked_vcpus, np.array(steps)[last])
    return size_curves_of(vcpus, mean, doubt, surely)


def size_curves_of(vcpus: Floats, mean: Floats, doubt: Floats, surely: Floats) -> SizeCurves:
    """Return ladders of these steps, each of shape ``(K, S)``: see :class:`SizeCurves`."""
    performance = np.exp(mean)
    halves = _halves(vcpus, performance)
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


def _halves(vcpus: Floats, performance: Floats) -> Flags:
    """Return which steps have at most half of the vCPUs of others and come near them, shape ``(K, S, S)``."""
    half = 2 * vcpus[:, None, :] <= vcpus[:, :, None] + _DUST
    near: Flags = performance[:, None, :] >= performance[:, :, None] / (1.0 + NEAR)
    return half & near
