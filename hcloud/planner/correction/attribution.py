"""Attribute the loss of a running job to its neighbours, and derive new estimates from what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hcloud.classifier.interference import CORE_SOURCES, EXCESS, NOT_COUNTED, TOLERATED_MIN
from hcloud.core.estimates import Measure
from hcloud.core.model import Allocation, Job, JobId, ServiceTarget
from hcloud.forecast.trend import Trend
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import OF_SERVICE, Assessment, Deviation, RankSamples, column_of, deviations_of
from hcloud.planner.correction.stragglers import is_straggler, restart_speedup
from hcloud.planner.fleet import SLACK
from hcloud.planner.plan import Learnt


class _Neighbour(NamedTuple):
    """What a neighbour holds on the instance, and when it arrived."""

    vcpus: float
    placed_at: float
    started_at: float


class LossAttribution:
    """How much faster a job that misses its target would be without its neighbours; valid until the next correction."""

    def __init__(self, context: PlanContext, view: RankSamples, assessment: Assessment) -> None:
        self.context, self.view, self.assessment = context, view, assessment

    def faster_alone(self) -> float:
        """Return the speed-up of the job without any neighbour; if it has none, the speed-up of a restart elsewhere."""
        here_too = {job.id: job for job, _ in self._holdings}
        here_too.pop(self.view.job.id, None)
        speedups = [self.faster_without(each, assume=False) for each in here_too.values()]
        return (
            1.0 + math.fsum(factor - 1.0 for factor in speedups)
            if speedups
            else restart_speedup(self.context, self.view)
        )

    def faster_without(self, neighbour: Job, *, assume: bool = True) -> float:
        """Return the speed-up of the job without ``neighbour``, which is charged with its share of the loss.

        The loss is how far the pace fell when the neighbour arrived; 1 if it did not fall. If that was not measured,
        the loss is the gap to the performance expected alone, or else to the best recent pace. For a neighbour that was
        there from the start, ``assume`` makes the vCPUs it holds count as the missing ones.
        """
        view, assessment, margin = self.view, self.assessment, self.context.policy.correction.margin
        mean = max(assessment.pace.mean, assessment.wanted * 0.01)
        neighbour_held = self._neighbours.get(neighbour.id, _Neighbour(0.0, 0.0, 0.0))
        around = (
            self._history.around((neighbour_held.placed_at, neighbour_held.started_at), view.span_s)
            if self._history is not None
            else None
        )
        if around is not None:
            before, after = around
            if before < after * (1.0 + margin):
                return 1.0
            vcpus_arrived = [
                each.vcpus
                for each in self._neighbours.values()
                if abs(each.placed_at - neighbour_held.placed_at) <= view.span_s
            ]
            return 1.0 + max(0.0, min(before / after, before / mean) - 1.0) * neighbour_held.vcpus / max(
                sum(vcpus_arrived), SLACK
            )
        share = self._shares.get(neighbour.id, 0.0)
        expected = view.deviation() is not None and assessment.by not in OF_SERVICE
        if self._performance_alone >= mean * (1.0 + margin):
            charged = expected or neighbour_held.placed_at >= view.samples[0].at
            return 1.0 + (self._performance_alone / mean - 1.0) * share if charged else 1.0
        if assume and not expected and neighbour_held.placed_at <= (view.held.started_at or 0.0):
            return min(assessment.wanted / mean, 1.0 + neighbour_held.vcpus / view.held.resources.vcpus)
        return 1.0

    @property
    def _holdings(self) -> Sequence[tuple[Job, Allocation]]:
        fleet = self.context.fleet
        return fleet.holdings[fleet.index[self.view.held.instance_id]]

    @cached_property
    def _neighbours(self) -> dict[JobId, _Neighbour]:
        """The neighbours that stay on the job's instance."""
        neighbours: dict[JobId, _Neighbour] = {}
        for job, held in self._holdings:
            if job.id != self.view.job.id and job.id not in self.context.decisions.stopping:
                placed_at = job.attempt.placed_at if job.attempt is not None else 0.0
                present = neighbours.get(job.id, _Neighbour(0.0, placed_at, placed_at))
                started_at = max(present.started_at, held.started_at or placed_at)
                neighbours[job.id] = _Neighbour(present.vcpus + held.resources.vcpus, placed_at, started_at)
        return neighbours

    @cached_property
    def _shares(self) -> Mapping[JobId, float]:
        """The part of the loss that each neighbour is charged with: by what they were observed to cost this program if
        that is known of all, else by the vCPUs they hold."""
        jobs = {job.id: job for job, _ in self._holdings if job.id in self._neighbours}
        costs = {name: _observed_longer(self.context, self.view, [job]) for name, job in jobs.items()}
        known = {name: cost for name, cost in costs.items() if cost is not None}
        amounts = known if len(known) == len(jobs) else {name: each.vcpus for name, each in self._neighbours.items()}
        total = max(math.fsum(amounts.values()), SLACK)
        return {name: amount / total for name, amount in amounts.items()}

    @cached_property
    def _history(self) -> Trend | None:
        return self.view.history(self.assessment)

    @cached_property
    def _performance_alone(self) -> float:
        """Performance of the job without neighbours, in the unit of its target, as far as it is known.

        The request rate of a service shows its load and not its capacity, so there only the best measured value counts.
        """
        pace = self.assessment.pace
        deviation = self.view.deviation() if self.assessment.by not in OF_SERVICE else None
        if deviation is None or deviation.measured.mean <= 0:
            return pace.best
        return max(pace.best, pace.mean * deviation.estimate.value / deviation.measured.mean)


def feedback_from(context: PlanContext, view: RankSamples) -> Learnt | None:
    """Return new estimates where a measurement is surely outside the expected range; None: no change.

    Alone on its instance, the job is slower or faster than estimated. With known neighbours, it tolerates less of a
    resource than estimated, if that is plausible (:func:`_tolerated`). A straggler changes nothing: otherwise one slow
    start would lower the estimates of all jobs of its kind.
    """
    policy, deviation = context.policy.correction, view.deviation()
    if deviation is None or not deviation.surely(deviations_of(policy.confidence), policy.margin):
        return None
    if _has_lower_load(context, view, deviation) or restart_speedup(context, view) > 1.0:
        return None
    at, column = context.fleet.index[view.held.instance_id], column_of(view.instance)
    neighbours = [each for each, _ in context.fleet.holdings[at] if each.id != view.job.id]
    longer = _observed_longer(context, view, neighbours)
    if longer is None:
        longer = _factor(context, view) * EXCESS * max(_pressures(context, view, neighbours)[1].values(), default=0.0)
    if is_straggler(context, view, kept=1.0 / (1.0 + longer)):
        return None
    mean, vcpus = deviation.measured.mean, view.held.resources.vcpus
    if not neighbours or mean > deviation.estimate.value:
        single = view.estimate(nodes=1)  # several nodes do more than the one that the estimate is for
        performance = mean * (single.value / deviation.estimate.value) if single is not None else 0.0
        return Learnt(column=column, vcpus=vcpus, performance=performance) if performance > 0 else None
    measured = deviation.estimate.value / mean - 1.0 if mean > 0 else 0.0
    tolerated = _tolerated(context, view, neighbours, measured) if measured > longer else {}
    return Learnt(column=column, vcpus=vcpus, tolerated=tolerated) if tolerated else None


def _has_lower_load(context: PlanContext, view: RankSamples, deviation: Deviation) -> bool:
    """Return whether a service serves less than expected only because its load is lower."""
    known, target, margin = view.known(), view.job.spec.target, context.policy.correction.margin
    if known is None or known.measure is not Measure.REQUESTS or not isinstance(target, ServiceTarget):
        return False
    load = target.requests_per_s / max(1, view.job.spec.nodes.count)
    return deviation.measured.mean < deviation.estimate.value and deviation.measured.mean >= (1.0 - margin) * load


def _tolerated(context: PlanContext, view: RankSamples, neighbours: list[Job], longer: float) -> dict[str, float]:
    """Return by resource the tolerated pressure that would explain a run time ``longer`` by this part; 1: twice as
    long.

    Empty if no estimate is uncertain enough to be so low. Phases, unknown
    neighbours and slow instances cost as much as known neighbours do. So values measured under a source stay: otherwise
    one slow job would close instances to its whole application, which then never runs next to anything that could prove
    the opposite.
    """
    pressure, excess = _pressures(context, view, neighbours)
    known = view.known()
    if known is None:
        return {}
    doubts, factor = dict[str, tuple[float, float]](), _factor(context, view)
    for source in sorted(excess):
        tolerated, needed = known.tolerated[source], factor * EXCESS * pressure[source] / longer
        if not tolerated.observed and tolerated.low <= needed < tolerated.value:
            doubts[source] = ((tolerated.value - needed) / (tolerated.value - tolerated.low), needed)
    source = min(doubts, key=lambda each: doubts[each][0], default="")
    return {source: max(TOLERATED_MIN, doubts[source][1])} if source else {}


def _factor(context: PlanContext, view: RankSamples) -> float:
    """Return how much of the additional run time that pressures predict really comes on the job's instance type."""
    return context.snapshot.slowdowns.calibration.of(column_of(view.instance)).value


def _observed_longer(context: PlanContext, view: RankSamples, neighbours: Sequence[Job]) -> float | None:
    """Return the additional run time (1: twice as long) that ``neighbours`` cost by what was observed of them together;
    None: it was not."""
    slowdowns, name = context.snapshot.slowdowns, view.job.application
    names = [each.application for each in neighbours]
    if view.known() is None or not slowdowns.has_met(name, names):
        return None
    by_pressure = EXCESS * max(_pressures(context, view, neighbours)[1].values(), default=0.0)
    return math.expm1(slowdowns.slowdown(name, names, column_of(view.instance), by_pressure).mean)


def _pressures(
    context: PlanContext, view: RankSamples, neighbours: Sequence[Job]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the pressure of the neighbours by resource (0..100), and the same divided by what the job tolerates."""
    known, applications = view.known(), context.snapshot.applications
    assert known is not None
    pressure: dict[str, float] = {}
    for each in neighbours:
        belief = applications.get(each.application)
        for source, caused in belief.caused.items() if belief is not None else ():
            if source not in CORE_SOURCES | NOT_COUNTED:
                pressure[source] = pressure.get(source, 0.0) + caused.value
    tolerated = known.tolerated
    return pressure, {
        s: pressure[s] / max(tolerated[s].value, 1.0) for s in pressure if s in tolerated and pressure[s] > 0
    }


def describe_learnt(learnt: Learnt) -> str:
    """Return a new estimate as the end of a sentence."""
    if learnt.performance is not None:
        return f"estimate on {learnt.column} corrected to {learnt.performance:.4g}/s"
    source, tolerance = next(iter(learnt.tolerated.items()))
    return f"estimated tolerance of {source} corrected to {tolerance:.0f}"
