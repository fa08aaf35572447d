"""Attribute the loss of a running job to its neighbours, and derive new estimates from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from hcloud.classifier.interference import EXCESS, TOLERATED_MIN
from hcloud.core.estimates import Measure
from hcloud.core.model import Allocation, Job, JobId, ServiceTarget
from hcloud.forecast.trend import Trend
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import Assessment, Deviation, RankSamples, column_of, deviations_of
from hcloud.planner.correction.stragglers import faster_anew, straggles
from hcloud.planner.fleet import SLACK
from hcloud.planner.plan import Learnt


class _Neighbour(NamedTuple):
    """What a neighbour holds on the instance, and when it arrived."""

    vcpus: float
    placed_at: float
    started_at: float


class LossAttribution:
    """How much faster a job that misses its target would be without its neighbours; valid until the next correction."""

    def __init__(self, context: PlanContext, look: RankSamples, found: Assessment) -> None:
        self.context, self.look, self.found = context, look, found

    def faster_alone(self) -> float:
        """Return the speed-up of the job without any neighbour; if it has none, the speed-up of a restart elsewhere."""
        here_too = {job.id: job for job, _ in self._holdings}
        here_too.pop(self.look.job.id, None)
        without = [self.faster_without(each, assume=False) for each in here_too.values()]
        return 1.0 + math.fsum(factor - 1.0 for factor in without) if without else faster_anew(self.context, self.look)

    def faster_without(self, neighbour: Job, *, assume: bool = True) -> float:
        """Return the speed-up of the job without ``neighbour``, which is charged with its share of the loss.

        The loss is how far the pace fell when the neighbour arrived; 1 if it did not fall. If that was not measured,
        the loss is the gap to the performance expected alone, or else to the best recent pace. For a neighbour that was
        there from the start, ``assume`` makes the vCPUs it holds count as the missing ones.
        """
        look, found, margin = self.look, self.found, self.context.policy.correction.margin
        mean = max(found.pace.mean, found.wanted * 0.01)
        own = self._beside.get(neighbour.id, _Neighbour(0.0, 0.0, 0.0))
        fell = self._course.around((own.placed_at, own.started_at), look.span_s) if self._course is not None else None
        if fell is not None:
            before, after = fell
            if before < after * (1.0 + margin):
                return 1.0
            came = [each.vcpus for each in self._beside.values() if abs(each.placed_at - own.placed_at) <= look.span_s]
            return 1.0 + max(0.0, min(before / after, before / mean) - 1.0) * own.vcpus / max(sum(came), SLACK)
        share = own.vcpus / max(self._vcpus_beside, SLACK)
        expected = look.departure() is not None and found.by != "latency"
        if self._alone >= mean * (1.0 + margin):
            charged = expected or own.placed_at >= look.samples[0].at
            return 1.0 + (self._alone / mean - 1.0) * share if charged else 1.0
        if assume and not expected and own.placed_at <= (look.held.started_at or 0.0):
            return min(found.wanted / mean, 1.0 + own.vcpus / look.held.resources.vcpus)
        return 1.0

    @property
    def _holdings(self) -> Sequence[tuple[Job, Allocation]]:
        fleet = self.context.fleet
        return fleet.holdings[fleet.index[self.look.held.instance_id]]

    @cached_property
    def _beside(self) -> dict[JobId, _Neighbour]:
        """The neighbours that stay on the job's instance."""
        found: dict[JobId, _Neighbour] = {}
        for job, held in self._holdings:
            if job.id != self.look.job.id and job.id not in self.context.stopping:
                placed_at = job.attempt.placed_at if job.attempt is not None else 0.0
                before = found.get(job.id, _Neighbour(0.0, placed_at, placed_at))
                started_at = max(before.started_at, held.started_at or placed_at)
                found[job.id] = _Neighbour(before.vcpus + held.resources.vcpus, placed_at, started_at)
        return found

    @cached_property
    def _vcpus_beside(self) -> float:
        return sum(each.vcpus for each in self._beside.values())

    @cached_property
    def _course(self) -> Trend | None:
        return self.look.course(self.found)

    @cached_property
    def _alone(self) -> float:
        """Performance of the job without neighbours, in the unit of its target, as far as it is known.

        The request rate of a service shows its load and not its capacity, so there only the best measured value counts.
        """
        pace = self.found.pace
        departure = self.look.departure() if self.found.by != "latency" else None
        if departure is None or departure.measured.mean <= 0:
            return pace.best
        return max(pace.best, pace.mean * departure.would.value / departure.measured.mean)


def feedback_from(context: PlanContext, look: RankSamples) -> Learnt | None:
    """Return new estimates where a measurement is surely outside the expected range; None: no change.

    Alone on its instance, the job is slower or faster than estimated. With known neighbours, it tolerates less of a
    resource than estimated, if that is plausible (:func:`_tolerated`). A straggler changes nothing: otherwise one slow
    start would lower the estimates of all jobs of its kind.
    """
    policy, departure = context.policy.correction, look.departure()
    if departure is None or not departure.surely(deviations_of(policy.confidence), policy.margin):
        return None
    if _less_was_asked(context, look, departure) or faster_anew(context, look) > 1.0:
        return None
    at, column = context.fleet.index[look.held.instance_id], column_of(look.instance)
    neighbours = [each for each, _ in context.fleet.holdings[at] if each.id != look.job.id]
    if straggles(context, look, _kept_beside(context, look, neighbours)):
        return None
    mean, vcpus = departure.measured.mean, look.held.resources.vcpus
    if not neighbours or mean > departure.would.value:
        one = look.would(nodes=1)  # several nodes do more than the one that the estimate is for
        performance = mean * (one.value / departure.would.value) if one is not None else 0.0
        return Learnt(column=column, vcpus=vcpus, performance=performance) if performance > 0 else None
    tolerated = _tolerated(context, look, neighbours, departure.would.value / mean - 1.0) if mean > 0 else {}
    return Learnt(column=column, vcpus=vcpus, tolerated=tolerated) if tolerated else None


def _less_was_asked(context: PlanContext, look: RankSamples, departure: Deviation) -> bool:
    """Return whether a service serves less than expected only because its load is lower."""
    known, target, margin = look.known(), look.job.spec.target, context.policy.correction.margin
    if known is None or known.measure is not Measure.REQUESTS or not isinstance(target, ServiceTarget):
        return False
    asked = target.requests_per_s / max(1, look.job.spec.nodes.count)
    return departure.measured.mean < departure.would.value and departure.measured.mean >= (1.0 - margin) * asked


def _tolerated(context: PlanContext, look: RankSamples, neighbours: list[Job], longer: float) -> dict[str, float]:
    """Return by resource the tolerated pressure that would explain a run time ``longer`` by this part; 1: twice as
    long.

    Empty if the estimates explain it already, or if no estimate is uncertain enough to be so low. Phases, unknown
    neighbours and slow instances cost as much as known neighbours do. So values measured under a source stay: otherwise
    one slow job would close instances to its whole application, which then never runs next to anything that could prove
    the opposite.
    """
    press, hurts = _pressed(context, look, neighbours)
    known = look.known()
    if known is None or longer <= EXCESS * max(hurts.values(), default=0.0):
        return {}
    doubts: dict[str, tuple[float, float]] = {}
    for source in sorted(hurts):
        told, needed = known.tolerated[source], EXCESS * press[source] / longer
        if not told.observed and told.low <= needed < told.value:
            doubts[source] = ((told.value - needed) / (told.value - told.low), needed)
    source = min(doubts, key=lambda each: doubts[each][0], default="")
    return {source: max(TOLERATED_MIN, doubts[source][1])} if source else {}


def _kept_beside(context: PlanContext, look: RankSamples, neighbours: list[Job]) -> float:
    """Return the part (0..1) of its performance alone that the neighbours are estimated to leave."""
    _, hurts = _pressed(context, look, neighbours)
    return 1.0 / (1.0 + EXCESS * max(hurts.values(), default=0.0))


def _pressed(
    context: PlanContext, look: RankSamples, neighbours: list[Job]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the pressure of the neighbours by resource (0..100), and the same divided by what the job tolerates."""
    known, applications = look.known(), context.snapshot.applications
    assert known is not None
    press: dict[str, float] = {}
    for each in neighbours:
        belief = applications.get(each.application)
        for source, caused in belief.caused.items() if belief is not None else ():
            press[source] = press.get(source, 0.0) + caused.value
    told = known.tolerated
    return press, {s: press[s] / max(told[s].value, 1.0) for s in press if s in told and press[s] > 0}


def words_of(learnt: Learnt) -> str:
    """Return a new estimate as the end of a sentence."""
    if learnt.performance is not None:
        return f"estimate on {learnt.column} corrected to {learnt.performance:.4g}/s"
    source, kept = next(iter(learnt.tolerated.items()))
    return f"estimated tolerance of {source} corrected to {kept:.0f}"
