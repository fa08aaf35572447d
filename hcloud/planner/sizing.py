"""How much of what meets a target: type, scale-up, scale-out and neighbours together (Quasar, Dissertation §4.3.3).

Expected performance joins the four classifications, ``perf = type * up(v)/up(asked) * out(n)/out(1) * beside``. They
are independent of each other, so on a logarithmic axis their variances add up, and the probability that a target is met
has a closed form. Of the sizes that meet it with the wanted probability the one with the least resources is taken:
first the cheapest, then few machines before many (scale-up before scale-out), then few vCPUs. A job measured on the
type, step and nodes at hand is as sure as the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hcloud.known import Classification, Estimate, Measure
from hcloud.model import Job, ServiceTarget
from hcloud.planner.pressure import LOSS_AT_TOLERATED, Floats, Sensitivity

Z80 = NormalDist().inv_cdf(0.9)
"""Half the width, in standard deviations, of limits between which lie 80 of 100."""
_WHOLE_JOBS = (Measure.PROGRESS, Measure.COMPLETION)
_UNIT = NormalDist()
_DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
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

    def reaches(self, target: float) -> float:
        """Return the probability that it is at least ``target`` (above 0)."""
        apart = self.mean - math.log(target)
        if self.deviation <= 0.0:
            return 1.0 if apart >= -1e-12 else 0.0
        return _UNIT.cdf(apart / self.deviation)


def _logarithm(estimate: Estimate) -> Performance:
    """Return an estimate of performance on the logarithmic axis; one without usable limits has none."""
    low, high = max(min(estimate.low, estimate.value), 1e-300), max(estimate.high, estimate.value)
    return Performance(mean=math.log(estimate.value), deviation=math.log(high / low) / (2 * Z80))


def expected(
    known: Classification, type_column: str, *, vcpus: float, asked_vcpus: float, nodes: int = 1, loss: float = 0.0
) -> Performance | None:
    """Return what a job is expected to do on ``nodes`` machines of a type, ``vcpus`` of each, losing ``loss`` (0..1).

    ``asked_vcpus``: at which it was measured on types. None: nothing is known of that type, or of so many nodes.
    """
    on_type = known.by_type.get(type_column)
    if on_type is None or on_type.value <= 0:
        return None
    parts = [_logarithm(on_type)]
    if vcpus != asked_vcpus:
        parts += _ratio(_steps(known.by_step), vcpus, asked_vcpus)
    if nodes > 1:
        if nodes not in known.by_nodes or 1 not in known.by_nodes:
            return None
        parts += _ratio({float(n): each for n, each in known.by_nodes.items()}, float(nodes), 1.0)
    mean = sum(part.mean for part in parts) + math.log(max(1.0 - loss, 1e-9))
    return Performance(mean=mean, deviation=math.sqrt(sum(part.deviation**2 for part in parts)))


def _steps(by_step: Mapping[str, Estimate]) -> dict[float, Estimate]:
    """Return scale-up answers by their vCPUs; columns are written ``<vcpus> vCPU``."""
    return {float(column.split()[0]): each for column, each in by_step.items() if column.endswith(" vCPU")}


def _ratio(answers: Mapping[float, Estimate], to: float, base: float) -> list[Performance]:
    """Return the factor from ``base`` to ``to``, on the logarithmic axis.

    Between known amounts it is interpolated; below the least it shrinks in proportion, above the most it does not grow.
    Nothing known: more does not help, less costs in proportion.
    """
    if not answers:
        return [Performance(mean=min(0.0, math.log(to / base)), deviation=0.0)]
    there, here = _along(answers, to), _along(answers, base)
    deviation = max(there.deviation, here.deviation) if there != here else 0.0
    return [Performance(mean=there.mean - here.mean, deviation=deviation)]


def _along(answers: Mapping[float, Estimate], amount: float) -> Performance:
    amounts = sorted(answers)
    below = [each for each in amounts if each <= amount]
    above = [each for each in amounts if each >= amount]
    if not below:
        least = _logarithm(answers[amounts[0]])
        return Performance(mean=least.mean + math.log(amount / amounts[0]), deviation=least.deviation)
    if not above or below[-1] == above[0]:
        return _logarithm(answers[below[-1]])
    first, second = _logarithm(answers[below[-1]]), _logarithm(answers[above[0]])
    part = math.log(amount / below[-1]) / math.log(above[0] / below[-1])
    mean = first.mean + part * (second.mean - first.mean)
    return Performance(mean=mean, deviation=max(first.deviation, second.deviation))


def loss_beside(who: Sensitivity, caused: Floats) -> float:
    """Return the part (0..1) of its performance ``who`` loses beside neighbours that press with ``caused``.

    What a resource costs grows in proportion to the pressure (iBench's second claim) and is 5 % at what is tolerated;
    the resource that hurts most decides.
    """
    hurts = [LOSS_AT_TOLERATED * press / max(kept, 1.0) for press, kept in zip(caused, who.tolerated, strict=True)]
    return min(0.95, max(hurts, default=0.0))


def losses_beside(who: Sensitivity, caused: Floats) -> Floats:
    """Return :func:`loss_beside` on many machines at once; ``caused`` has shape ``(K, N)``."""
    hurts = LOSS_AT_TOLERATED * caused / np.maximum(who.tolerated, 1.0)[:, None]
    lost: Floats = np.clip(hurts.max(axis=0, initial=0.0), 0.0, 0.95)
    return lost


def wanted_performance(job: Job, known: Classification, now: float, tolerance: float) -> float | None:
    """Return the performance that meets the job's target, in the unit of its classification; None: nothing is known.

    Requests per second for a service measured in them; the whole job in the time left where whole jobs were measured;
    else all but ``tolerance`` of what it would do on its best type with all its nodes (Paragon's QoS).
    """
    target = job.spec.target
    if isinstance(target, ServiceTarget) and known.measure is Measure.REQUESTS:
        return target.requests_per_s
    deadline_at = job.deadline_at
    if deadline_at is not None and known.measure in _WHOLE_JOBS and deadline_at > now:
        return 1.0 / (deadline_at - now)
    vcpus, count = job.spec.resources.vcpus, job.spec.nodes.count
    found = [expected(known, column, vcpus=vcpus, asked_vcpus=vcpus, nodes=count) for column in known.by_type]
    best = max((each.value for each in found if each is not None), default=0.0)
    return (1.0 - tolerance) * best if best > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A type at hand: its column, the vCPUs of one machine, the price of one, and the loss (0..1) beside neighbours."""

    column: str
    vcpus: float
    price_usd_per_h: float
    machines: int
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
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
) -> list[Size]:
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


def _size(platform: Platform, vcpus: float, nodes: int, would: Performance, target: float) -> Size:
    return Size(
        platform=platform,
        vcpus=vcpus,
        nodes=nodes,
        usd_per_h=platform.price_usd_per_h * vcpus / platform.vcpus * nodes,
        performance=would.value,
        probability=would.reaches(target),
    )


def ranked(found: Iterable[Size], confidence: float) -> list[Size]:
    """Return sizes, best first: those that meet the target with ``confidence``, then the more probable ones.

    Of those that meet it the least resources: cheapest first, then few nodes, few vCPUs, the column's name.
    """

    def order(size: Size) -> tuple[bool, float, float, int, float, str]:
        enough = size.probability >= confidence
        doubt = 0.0 if enough else -round(size.probability, 9)
        return (not enough, doubt, round(size.usd_per_h, 9), size.nodes, size.vcpus, size.platform.column)

    return sorted(found, key=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
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
        inside = [vcpus for vcpus in _steps(known.by_step) if self.low < vcpus < self.high]
        return sorted({self.low, self.high, self.asked_vcpus, *inside})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The steps of one type, least first: vCPUs, and the loss (0..1) beside neighbours with which each still meets the
    target with the confidence wanted; below 0: it does not even alone."""

    vcpus: tuple[float, ...]
    bearable: tuple[float, ...]

    def least(self, losses: Floats) -> Floats:
        """Return the least vCPUs that meet the target at each of ``losses`` (any shape); where none do, the best."""
        margins = np.array(self.bearable)
        enough = margins[:, None] >= losses[None, :] - _DUST
        best = int(np.flatnonzero(margins >= margins.max() - _DUST)[0])
        places = np.where(enough.any(axis=0), enough.argmax(axis=0), best)
        found: Floats = np.array(self.vcpus)[places]
        return found


def ladder(known: Classification, column: str, aim: Aim, *, most_vcpus: float, confidence: float) -> Ladder | None:
    """Return the steps of a type whose machines have ``most_vcpus``, or None where nothing is known of them.

    A performance whose logarithm is normal meets the target at a loss ``l`` with the confidence of quantile ``z`` where
    ``mean + log(1 - l) - z deviation >= log target``.
    """
    vcpus, bearable, quantile = list[float](), list[float](), _UNIT.inv_cdf(confidence)
    for step in (each for each in aim.steps(known) if each <= most_vcpus + _DUST):
        would = expected(known, column, vcpus=step, asked_vcpus=aim.asked_vcpus, nodes=aim.nodes)
        if would is not None:
            vcpus.append(step)
            bearable.append(1.0 - math.exp(math.log(aim.target) - would.mean + quantile * would.deviation))
    return Ladder(vcpus=tuple(vcpus), bearable=tuple(bearable)) if vcpus else None


def least(found: Iterable[Size], confidence: float) -> Size | None:
    """Return the first of :func:`ranked`; None: there are no sizes."""
    return next(iter(ranked(found, confidence)), None)
