"""What a running job that does other than expected teaches of its application (Paragon §3.4, Dissertation §4.3.2)."""

from __future__ import annotations

from hcloud.classifier.interference import EXCESS, TOLERATED_MIN
from hcloud.known import Measure
from hcloud.model import Job, ServiceTarget
from hcloud.planner.context import PlanContext
from hcloud.planner.plan import Learnt
from hcloud.planner.stragglers import faster_anew, straggles
from hcloud.planner.watching import Deviation, RankSamples, column_of, deviations_of


def feedback_from(context: PlanContext, look: RankSamples) -> Learnt | None:
    """Return what a measurement surely outside the expected teaches; None: it is as expected, or says nothing.

    Alone on its machine it is slower (or faster) than believed. Beside known neighbours it tolerates less of a resource
    than believed, if that can be (:func:`_tolerated`). One that straggles teaches nothing, unless it is not the only
    one: else one slow start would be believed of all jobs of its kind.
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
        one = look.would(nodes=1)  # on several machines it does more than the one that is learnt of
        performance = mean * (one.value / departure.would.value) if one is not None else 0.0
        return Learnt(column=column, vcpus=vcpus, performance=performance) if performance > 0 else None
    tolerated = _tolerated(context, look, neighbours, departure.would.value / mean - 1.0) if mean > 0 else {}
    return Learnt(column=column, vcpus=vcpus, tolerated=tolerated) if tolerated else None


def _less_was_asked(context: PlanContext, look: RankSamples, departure: Deviation) -> bool:
    """Return whether a service serves less than expected only because no more is asked of it."""
    known, target, margin = look.known(), look.job.spec.target, context.policy.correction.margin
    if known is None or known.measure is not Measure.REQUESTS or not isinstance(target, ServiceTarget):
        return False
    asked = target.requests_per_s / max(1, look.job.spec.nodes.count)
    return departure.measured.mean < departure.would.value and departure.measured.mean >= (1.0 - margin) * asked


def _tolerated(context: PlanContext, look: RankSamples, neighbours: list[Job], longer: float) -> dict[str, float]:
    """Return what it tolerates of a resource if it is neighbours that make it take ``longer`` (1: twice as long).

    Nothing where they were believed to do so much, and where no estimate leaves so little open. Phases, strangers and
    slow machines cost a job as much as neighbours do, so what was measured beside a probe stays believed: one slow job
    would else close machines to all of its application, for good, as who is kept alone never shows what it bears.
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
    """Return the part (0..1) of what it does alone that the neighbours are believed to leave it."""
    _, hurts = _pressed(context, look, neighbours)
    return 1.0 / (1.0 + EXCESS * max(hurts.values(), default=0.0))


def _pressed(
    context: PlanContext, look: RankSamples, neighbours: list[Job]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return how neighbours press by resource (0..100), and that as a part of what the job is said to tolerate."""
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
    """Return the end of a sentence that says what is believed from now on."""
    if learnt.performance is not None:
        return f"from now on {learnt.performance:.4g}/s on {learnt.column} are believed"
    source, kept = next(iter(learnt.tolerated.items()))
    return f"from now on it is believed to tolerate {kept:.0f} of {source}"
