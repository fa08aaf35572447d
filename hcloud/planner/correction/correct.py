"""What is done about running jobs that do not do as they should (Paragon §3.4, Quasar §4.4, Mage).

A job that surely misses its target (``watching``) is helped step by step. First it is learnt why: where a slice stands
idle a copy of it is profiled there anew, and then what it was measured to do where it runs is believed. Then it is
given more of its machines, best-effort neighbours are evicted, missing nodes added, and at last it is moved, stateless
jobs first. A step is taken only if it is expected to save ``gain`` times what it costs, in seconds of the job's own
work: what is lost and has to be done again, the gap, and what others lose. After each step the job settles and is
judged anew, by readings taken since. What was done stands in ``Job.corrections``, so nothing of it is lost with the
daemon; that, the margin and the certainty asked of readings keep noise from moving anybody.

No source of interference is injected beside a running job, as Quasar does: a copy of it bears that instead.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from hcloud.core.estimates import Measure
from hcloud.core.model import FailureCause, Job, Number, Reason
from hcloud.planner.admission import queue_key
from hcloud.planner.context import MOVED, NODES, NODES_LAUNCHED, PlanContext
from hcloud.planner.correction.attribution import LossAttribution, feedback_from, words_of
from hcloud.planner.correction.monitor import (
    LEARNING,
    Assessment,
    RankSamples,
    RecheckQueue,
    column_of,
    deviations_of,
    rank_samples,
)
from hcloud.planner.correction.option import Option, remaining_s, saved_s
from hcloud.planner.correction.scaling import more_nodes, resize
from hcloud.planner.correction.stragglers import faster_anew, profiled_since, relaunch_stragglers
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.placement.place import has_room_now, usable
from hcloud.planner.plan import Correct
from hcloud.planner.profiling import profile_again
from hcloud.planner.provisioning.preemption import is_preemptible
from hcloud.planner.text import seconds

REPROFILE, RECLASSIFY, SAMPLED, EVICT = "reprofile", "reclassify", "sampled", "evict"
DUST_S = 1e-3
"""What is worked out ahead of time is looked at so much earlier: sums round."""
MISSED_WORDS = {
    "deadline": "of the rate needed for its deadline",
    "latency": "of the performance needed for its latency",
    "expectation": "of the expected performance",
}


def correct(context: PlanContext) -> None:
    """Take at most one step for each job that misses its target, for few jobs per plan; those in front first."""
    guard(context)
    policy, snapshot = context.policy.correction, context.snapshot
    if not policy.steps or snapshot.paused or not snapshot.engine_reachable or not snapshot.job_samples:
        return
    left = policy.max_per_cycle
    rechecks = _rechecks(context)
    uneasy = [look for job in _restless(context, rechecks) if (look := _uneasy(context, rechecks, job)) is not None]
    for look in sorted(uneasy, key=lambda look: queue_key(look.job)):
        if left <= 0:
            break
        done = _help(context, look) or _sample(context, look)
        left -= done
        if not done:
            _rest(context, rechecks, look.job, look)
    relaunch_stragglers(context, left)


def _uneasy(context: PlanContext, rechecks: RecheckQueue, job: Job) -> RankSamples | None:
    """Return the look at a running job that misses its target or does other than expected; any other rests."""
    look = rank_samples(context, job)
    if look is None:
        _rest(context, rechecks, job, look)
        return None
    helpless_until = _helpless_until(context, look)
    if helpless_until == -math.inf or _may_be_sampled(context, look):
        return look
    _rest(context, rechecks, job, look, helpless_until)
    return None


def _restless(context: PlanContext, rechecks: RecheckQueue) -> list[Job]:
    """Return the running jobs about which something may be to be done, by what earlier plans found of these facts."""
    awake = rechecks.awake(context.snapshot, context.policy, context.jobs)
    return [job for job in awake if _watchable(context, job)]


def _rest(
    context: PlanContext,
    rechecks: RecheckQueue,
    job: Job,
    look: RankSamples | None,
    helpless_until: float | None = None,
) -> None:
    """Remember until when nothing is to be done about ``job``, so that no plan looks before."""
    index = context.fleet.index
    for each in job.attempt.allocations if job.attempt is not None else ():
        if each.instance_id not in index and not each.released:
            return
    rechecks.rest(job, _rests_until(context, look, helpless_until))


def _rechecks(context: PlanContext) -> RecheckQueue:
    plan_cache = context.snapshot.plan_cache
    rechecks: RecheckQueue = plan_cache.latest("rechecks") or RecheckQueue()
    plan_cache.keep("rechecks", rechecks)
    return rechecks


def _rests_until(context: PlanContext, look: RankSamples | None, helpless_until: float | None) -> float:
    """Return until when a job that needs nothing now surely needs nothing, if no sample comes and nothing changes.

    What nothing helps now is tried again as often as jobs are looked at: room may have come free meanwhile.
    """
    if look is None:
        return math.inf
    helpless = _helpless_until(context, look) if helpless_until is None else helpless_until
    until = min(helpless, _unsampled_until(context, look))
    if until <= context.now + DUST_S and not _being_measured(context, look.job):
        until = context.now + context.policy.timing.sample_every_s
    return until - DUST_S


def _helpless_until(context: PlanContext, look: RankSamples) -> float:
    """Return until when :func:`_help` surely finds no target missed; its deeds of this attempt are among the facts."""
    policy = context.policy.correction
    if look.post.deeds >= policy.max_steps_per_attempt:
        return math.inf
    return look.kept_until(deviations_of(policy.confidence), policy.margin)


def _unsampled_until(context: PlanContext, look: RankSamples) -> float:
    """Return until when :func:`_sample` surely finds nothing to look at."""
    policy, job = context.policy.correction, look.job
    period, drawn = _drawn(context, look)
    if "reclassify" not in policy.steps:
        return math.inf
    if not drawn:
        return (period + 1) * policy.sample_every_s
    lately = (c.at for c in job.corrections if c.step in (SAMPLED, RECLASSIFY))
    due_at = max(
        [(look.held.started_at or context.now) + policy.long_running_s, *(at + policy.sample_every_s for at in lately)]
    )
    departure = look.departure()
    if departure is None or not departure.surely(deviations_of(policy.confidence), policy.margin):
        return math.inf
    return due_at


def _being_measured(context: PlanContext, job: Job) -> bool:
    """Return whether a profiling run of ``job`` is not over: what is done for it waits for what that tells."""
    return bool(job.profile_runs) and not context.measuring.isdisjoint(job.profile_runs)


def guard(context: PlanContext) -> None:
    """Go on with what was done for jobs that still run: no best effort comes back to where it was evicted for them,
    and those that were to get all their nodes still are."""
    occupancy = context.snapshot.plan_cache.occupancy
    for job in [occupancy.rows[each] for each in occupancy.corrected]:
        if job.attempt is None:
            continue
        done = {c.step for c in job.corrections if c.attempt == job.attempt.id}
        if done & {NODES, NODES_LAUNCHED}:
            context.behind.add(job.id)
        if EVICT in done:
            if context.guarded is None:
                context.guarded = np.zeros(len(context.fleet.instances), dtype=np.bool_)
            context.guarded[_machines(context, job)] = True


def _watchable(context: PlanContext, job: Job) -> bool:
    asked = job.id in context.stopping or job.cancelled_by is not None or job.spec.profile is not None
    if asked or job.id in context.snapshot.left_out.jobs:
        return False
    hooks = job.spec.progress is not None or job.spec.metrics is not None
    return job.id in context.snapshot.job_samples and (hooks or job.application in context.snapshot.applications)


def _machines(context: PlanContext, job: Job) -> list[int]:
    held = job.attempt.allocations if job.attempt is not None else ()
    return sorted(
        {context.fleet.index[a.instance_id] for a in held if not a.released and a.instance_id in context.fleet.index}
    )


# ----------------------------------------------------------------------------------------------------------- escalation
def _help(context: PlanContext, look: RankSamples) -> bool:
    """Take the first step that repays, if the job surely misses its target; return whether one was taken."""
    policy, found = context.policy.correction, look.assess()
    if found is None or not _misses(context, look):
        return False
    if _being_measured(context, look.job):
        return False
    for step, options in _OPTIONS.items():
        for option in options(context, look, found) if step in policy.steps else ():
            if repays(context, found, option):
                _take(context, look, found, option)
                return True
    return False


def _misses(context: PlanContext, look: RankSamples) -> bool:
    """Return whether the job surely misses its target, and may be helped once more."""
    policy = context.policy.correction
    found = look.assess() if look.post.deeds < policy.max_steps_per_attempt else None
    return found is not None and found.missed(deviations_of(policy.confidence), policy.margin)


def repays(context: PlanContext, found: Assessment, option: Option) -> bool:
    """Return whether a step is expected to help visibly, and to save enough for what it costs; to learn always is."""
    return option.step in LEARNING or _worth_it(context, found, option.factor, option.cost_s)


def _worth_it(context: PlanContext, found: Assessment, factor: float, cost_s: float) -> bool:
    policy = context.policy.correction
    return factor >= 1.0 + policy.margin / 2 and saved_s(context, found, factor) >= policy.gain * cost_s


def _take(context: PlanContext, look: RankSamples, found: Assessment, option: Option) -> None:
    numbers: dict[str, Number] = {
        "by": found.by,
        "measured": float(f"{found.pace.mean:.6g}"),
        "error": float(f"{found.pace.error:.3g}"),
        "readings": found.pace.counted,
        "wanted": float(f"{found.wanted:.6g}"),
        **option.numbers,
    }
    text = f"reached {found.pace.mean / found.wanted:.0%} {MISSED_WORDS[found.by]} ({found.pace.counted} readings): "
    text += option.text
    if option.step not in LEARNING:
        gain_s = saved_s(context, found, option.factor)
        numbers |= {"factor": round(option.factor, 4), "saved_s": round(gain_s, 3), "cost_s": round(option.cost_s, 3)}
        text += f"; expected speed-up {option.factor:.2f}, saves {seconds(gain_s)} at a cost of "
        text += seconds(option.cost_s)
    reason = Reason(code=f"correct_{option.step}", text=text, numbers=numbers)
    context.add(
        Correct(job_id=look.job.id, step=option.step, reason=reason, instances=option.instances, learnt=option.learnt)
    )
    option.act(reason)


# ------------------------------------------------------------------------------------------------------------ the steps
def _done(look: RankSamples) -> set[str]:
    """Return the steps that were taken in this attempt."""
    attempt = look.job.attempt
    return {c.step for c in look.job.corrections if attempt is not None and c.attempt == attempt.id}


def _reprofile(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Profile a copy anew on a slice that stands idle, once, where the job does other than its class says."""
    policy, departure = context.policy.correction, look.departure()
    if departure is None or not departure.surely(deviations_of(policy.confidence), policy.margin):
        return
    again = any(each.step == REPROFILE for each in look.job.corrections)
    if again or remaining_s(context, found) < policy.gain * context.policy.profiling.total_s:
        return
    run = profile_again(context, look.job)
    if run is not None:
        text = f"performance differs from its estimate: {run.reason.text}"
        yield Option(step=REPROFILE, text=text, factor=1.0, cost_s=0.0, act=lambda _: context.add(run))


def _reclassify(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Believe what was measured, once in an attempt: what follows is then decided by that."""
    learnt = feedback_from(context, look) if RECLASSIFY not in _done(look) else None
    if learnt is not None:
        yield Option(step=RECLASSIFY, text=words_of(learnt), factor=1.0, cost_s=0.0, act=_nothing, learnt=learnt)


def _nothing(_: Reason) -> None:
    """The row says it all."""


def _evict(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Evict the best-effort neighbour that presses hardest; one at a time."""
    if not context.policy.disruption.evict_best_effort:
        return
    here = {
        job.id: (job, context.fleet.instances[at].id)
        for at in _machines(context, look.job)
        for job, _ in context.fleet.holdings[at]
        if is_preemptible(context, job)
    }
    blame = LossAttribution(context, look, found)
    for victim, name in sorted(
        here.values(), key=lambda each: (-each[0].spec.resources.vcpus, _lost_s(context, each[0]))
    ):
        lost = _lost_s(context, victim) + context.policy.disruption.move_gap_s
        size = victim.spec.resources.vcpus / max(look.job.spec.resources.vcpus, SLACK)
        cost_s = lost * size / context.policy.correction.promise_worth

        def act(reason: Reason, victim: Job = victim) -> None:
            """Stop the victim, and close the job's machines to best effort for the rest of this plan."""
            numbers: dict[str, Number] = {"for_job": look.job.id, **reason.numbers}
            text = f"evicted for {look.job.id}, which {reason.text}"
            context.stop(victim, FailureCause.EVICTED, Reason(code="evicted_for_target", text=text, numbers=numbers))
            _guard_at(context, _machines(context, look.job))

        text = f"evicting best-effort neighbour {victim.id} on {name}"
        yield Option(
            step=EVICT,
            text=text,
            factor=blame.faster_without(victim),
            cost_s=cost_s,
            act=act,
            instances=(name,),
            numbers={"victim": victim.id},
        )


def _guard_at(context: PlanContext, places: list[int]) -> None:
    """Close machines to best effort from now on in this plan."""
    if context.guarded is None:
        context.guarded = np.zeros(len(context.fleet.instances), dtype=np.bool_)
    context.guarded[places] = True


def _lost_s(context: PlanContext, job: Job) -> float:
    """Return the work that is lost when ``job`` is stopped: all it has done, but for a service."""
    if job.spec.target.kind == "service" or job.attempt is None:
        return 0.0
    return context.now - job.attempt.placed_at


def _move(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Move the job, or where it is stateful a stateless neighbour, to a machine with room now.

    A machine is looked for only where to leave repays at all: most of those that are helpless miss too little.
    """
    if not look.job.spec.stateful:
        if not _may_move(context, look.job):
            return
        without = LossAttribution(context, look, found).faster_alone()
        best = without * _best_of_types(context, look)
        to = destination(context, look.job) if _worth_it(context, found, best, _move_s(context, look.job, best)) else -1
        if to >= 0:
            factor = without * _by_type(look, column_of(context.fleet.instances[to]))
            yield _moved(context, look, look.job, to, factor, _move_s(context, look.job, factor))
        return
    at, blame = context.fleet.index[look.held.instance_id], LossAttribution(context, look, found)
    others = {job.id: job for job, _ in context.fleet.holdings[at] if job.id != look.job.id}
    for other in sorted(others.values(), key=lambda job: (_lost_s(context, job), queue_key(job))):
        if not _may_move(context, other):
            continue
        factor, cost_s = blame.faster_without(other), _move_s(context, other)
        to = destination(context, other) if _worth_it(context, found, factor, cost_s) else -1
        if to >= 0:
            yield _moved(context, look, other, to, factor, cost_s)


def _may_move(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` may be moved, and there is room at all: in a full cluster no more need be asked."""
    return movable(context, job) and has_room_now(context, context.group_of(job))


def _move_s(context: PlanContext, mover: Job, factor: float = 1.0) -> float:
    """Return what a move costs: the gap, and what is to be done again, then ``factor`` times as fast."""
    return context.policy.disruption.move_gap_s + _lost_s(context, mover) / max(factor, SLACK)


def _moved(context: PlanContext, look: RankSamples, mover: Job, to: int, factor: float, cost_s: float) -> Option:
    here, there = look.instance.id, context.fleet.instances[to].id

    def act(reason: Reason) -> None:
        """Stop the mover; it is queued again and placed like any other."""
        numbers: dict[str, Number] = {"for_job": look.job.id, **reason.numbers}
        if mover is not look.job:
            why = Reason(code="correct_move", text=f"moving off {here} to relieve {look.job.id}", numbers=numbers)
            context.add(Correct(job_id=mover.id, step=MOVED, reason=why, instances=(here,)))
        code = "moved_for_target"
        context.stop(
            mover, FailureCause.EVICTED, Reason(code=code, text=f"moving off {here}: {reason.text}", numbers=numbers)
        )

    own = mover is look.job
    like = "a copy of it ran since" if profiled_since(context, look) else "its application ran so far"
    why = f" (slower than {like})" if own and faster_anew(context, look) > 1.0 else ""
    text = f"moving {mover.id} from {here}{why} to {there}, which has room"
    return Option(
        step=MOVED if own else "move_neighbour",
        text=text,
        factor=factor,
        cost_s=cost_s,
        act=act,
        instances=(here,) if own else (),
        numbers={"mover": mover.id, "to": there},
    )


def movable(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` may be stopped and begun anew elsewhere, by its own limits and the policy's."""
    attempt, spec, cause = job.attempt, job.spec, FailureCause.EVICTED
    if attempt is None or job.id in context.stopping or spec.nodes.count > 1 or not spec.interruptible:
        return False
    if (
        spec.stateful
        or spec.profile is not None
        or job.failures.count(cause) >= spec.retries.limits.get(cause.value, 0)
    ):
        return False
    return sum(c.step == MOVED for c in job.corrections) < context.policy.correction.max_moves_per_job


def destination(context: PlanContext, job: Job) -> int:
    """Return the machine where ``job`` would be better off now: one that suits it, or an empty one; -1: none."""
    fleet, group = context.fleet, context.group_of(job)
    here = [a.instance_id for a in job.attempt.allocations] if job.attempt is not None else []
    among: Mask = usable(context, group, fleet.placeable) & fleet.others_than(here)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, fleet.fitting_now(group.demand, among))
        candidates = np.flatnonzero(fleet.fitting_now(group.asks, roomy) if roomy.any() else roomy)
        preference = context.suit.preference(group.application) if candidates.size else None
        if preference is not None:
            return int(candidates[preference[candidates].argmin()])
        return int(candidates[0]) if candidates.size else -1
    empty: Mask = np.array([not held for held in fleet.holdings], dtype=np.bool_) & (fleet.load <= SLACK)
    as_large = fleet.capacity[0] >= max(
        (fleet.capacity[0, fleet.index[i]] for i in here if i in fleet.index), default=0
    )
    return fleet.least_loaded(group.asks, among & empty & as_large)


def _by_type(look: RankSamples, column: str) -> float:
    """Return how much faster the job is on a machine of another type; where that is not known: as fast."""
    here, there = look.would(), look.would(column=column, vcpus=look.job.spec.resources.vcpus)
    return there.value / here.value if there is not None and here is not None else 1.0


def _best_of_types(context: PlanContext, look: RankSamples) -> float:
    """Return :func:`_by_type` of the machines' best type."""
    known, job, held, columns = look.known(), look.job, look.held, tuple(context.fleet.type_columns)
    if known is None:
        return 1.0
    nodes = len(job.attempt.allocations) if job.attempt is not None else 1
    question = ("best of types", column_of(look.instance), columns, held.resources, job.spec.resources, nodes)
    return known.answer(question, lambda: max([_by_type(look, column) for column in columns], default=1.0))


_OPTIONS: dict[str, Callable[[PlanContext, RankSamples, Assessment], Iterator[Option]]] = {
    "reprofile": _reprofile,
    "reclassify": _reclassify,
    "resize": resize,
    "evict": _evict,
    "nodes": more_nodes,
    "move": _move,
}


# -------------------------------------------------------------------------------------------------------------- samples
def _sample(context: PlanContext, look: RankSamples) -> bool:
    """Look at a share of the long-running jobs in each period, target missed or not, for a change of phase.

    Who is looked at follows from name and period, so that a new daemon goes on with the same.
    """
    job = look.job
    if not _may_be_sampled(context, look):
        return False
    learnt, departure, known = feedback_from(context, look), look.departure(), look.known()
    if learnt is None or departure is None or known is None:
        return False
    if known.measure is Measure.REQUESTS and departure.measured.mean < departure.would.value:
        return False  # for all that is known, less was asked of it
    measured, would = departure.measured.mean, departure.would.value
    text = f"measured {measured:.4g}/s, expected {would:.4g}/s; {words_of(learnt)}"
    numbers: dict[str, Number] = {"measured": measured, "expected": would, "readings": departure.measured.counted}
    reason = Reason(code="phase_changed", text=text, numbers=numbers)
    context.add(Correct(job_id=job.id, step=SAMPLED, reason=reason, learnt=learnt))
    return True


def _may_be_sampled(context: PlanContext, look: RankSamples) -> bool:
    policy, job = context.policy.correction, look.job
    if not _drawn(context, look)[1] or "reclassify" not in policy.steps:
        return False
    ran_s = context.now - (look.held.started_at or context.now)
    lately = any(
        c.step in (SAMPLED, RECLASSIFY) and context.now - c.at < policy.sample_every_s for c in job.corrections
    )
    return not lately and ran_s >= policy.long_running_s


def _drawn(context: PlanContext, look: RankSamples) -> tuple[int, bool]:
    """Return the present period, and whether the job is looked at in it."""
    policy, post = context.policy.correction, look.post
    period = int(context.now // policy.sample_every_s)
    if post.drawn[0] != period:
        post.drawn = period, zlib.crc32(f"{post.job.id}:{period}".encode()) / 2**32 < policy.sample_share
    return post.drawn
