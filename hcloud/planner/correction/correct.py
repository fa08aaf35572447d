"""Correct running jobs that miss their target (Paragon §3.4, Quasar §4.4, Mage).

A job that surely misses its target (:mod:`hcloud.planner.correction.monitor`) is helped one step at a time. First
HCloud learns why: a copy is profiled again on an idle instance, then the measured performance replaces the estimate.
Then the job gets more vCPUs of its instance, best-effort neighbours are evicted, missing nodes are added, and finally
it is moved, stateless jobs first.

A step is taken only if it is expected to save ``gain`` times what it costs, in seconds of the job's own work: work lost
and repeated, the gap, and what others lose. After each step the job settles, and is judged again by readings taken
since. Steps are recorded in ``Job.corrections`` and survive a restart of the daemon. This, the margin and the required
confidence keep noise from moving jobs.

Unlike Quasar, no source of interference is applied to a running job; a copy is measured instead.
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
"""Times computed in advance are reduced by this much, because sums round."""
MISSED_WORDS = {
    "deadline": "of the rate needed for its deadline",
    "latency": "of the performance needed for its latency",
    "expectation": "of the expected performance",
}


def correct(context: PlanContext) -> None:
    """Take at most one step for each job that misses its target, in queue order, for ``max_per_cycle`` jobs per
    plan."""
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
    """Return the samples of a running job that misses its target or is due for sampling; postpone any other job."""
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
    """Return the running jobs that are due for a check."""
    awake = rechecks.awake(context.snapshot, context.policy, context.jobs)
    return [job for job in awake if _watchable(context, job)]


def _rest(
    context: PlanContext,
    rechecks: RecheckQueue,
    job: Job,
    look: RankSamples | None,
    helpless_until: float | None = None,
) -> None:
    """Postpone the next check of ``job`` until something can have changed."""
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
    """Return until when a job that needs nothing now surely needs nothing, unless a sample arrives.

    A job that cannot be helped now is checked again after the sampling interval: room may have become free.
    """
    if look is None:
        return math.inf
    helpless = _helpless_until(context, look) if helpless_until is None else helpless_until
    until = min(helpless, _unsampled_until(context, look))
    if until <= context.now + DUST_S and not _being_measured(context, look.job):
        until = context.now + context.policy.timing.sample_every_s
    return until - DUST_S


def _helpless_until(context: PlanContext, look: RankSamples) -> float:
    """Return until when the job surely does not miss its target; inf if it used up its correction steps."""
    policy = context.policy.correction
    if look.post.deeds >= policy.max_steps_per_attempt:
        return math.inf
    return look.kept_until(deviations_of(policy.confidence), policy.margin)


def _unsampled_until(context: PlanContext, look: RankSamples) -> float:
    """Return until when :func:`_sample` surely has nothing to do."""
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
    """Return whether a profiling run of ``job`` is not over; further steps wait for its result."""
    return bool(job.profile_runs) and not context.measuring.isdisjoint(job.profile_runs)


def guard(context: PlanContext) -> None:
    """Keep earlier corrections in force: no best effort returns where it was evicted for a running job, and jobs that
    are to get all their nodes still are."""
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
    """Take the first step that pays off if the job surely misses its target; return whether one was taken."""
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
    """Return whether the job surely misses its target and has correction steps left."""
    policy = context.policy.correction
    found = look.assess() if look.post.deeds < policy.max_steps_per_attempt else None
    return found is not None and found.missed(deviations_of(policy.confidence), policy.margin)


def repays(context: PlanContext, found: Assessment, option: Option) -> bool:
    """Return whether a step is expected to help noticeably and to save enough for its cost; learning steps always
    do."""
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
    attempt = look.job.attempt
    return {c.step for c in look.job.corrections if attempt is not None and c.attempt == attempt.id}


def _reprofile(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Profile a copy again on an idle instance, once per job, if its performance surely differs from the estimate."""
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
    """Replace the estimate by what was measured, once per attempt."""
    learnt = feedback_from(context, look) if RECLASSIFY not in _done(look) else None
    if learnt is not None:
        yield Option(step=RECLASSIFY, text=words_of(learnt), factor=1.0, cost_s=0.0, act=_nothing, learnt=learnt)


def _nothing(_: Reason) -> None:
    """The recorded correction has no further action."""


def _evict(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Evict the best-effort neighbour that holds most vCPUs, one at a time."""
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
    if context.guarded is None:
        context.guarded = np.zeros(len(context.fleet.instances), dtype=np.bool_)
    context.guarded[places] = True


def _lost_s(context: PlanContext, job: Job) -> float:
    """Return the seconds of work lost if ``job`` is stopped: all of it, but none for a service."""
    if job.spec.target.kind == "service" or job.attempt is None:
        return 0.0
    return context.now - job.attempt.placed_at


def _move(context: PlanContext, look: RankSamples, found: Assessment) -> Iterator[Option]:
    """Move the job or, if it is stateful, a stateless neighbour to an instance with room now.

    A destination is searched only if moving can pay off at all, which it mostly cannot.
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
    """Return whether ``job`` may be moved and any instance has room; the latter is cheap to check in a full cluster."""
    return movable(context, job) and has_room_now(context, context.group_of(job))


def _move_s(context: PlanContext, mover: Job, factor: float = 1.0) -> float:
    """Return the cost of a move in seconds: the gap, and the work to repeat at ``factor`` times the speed."""
    return context.policy.disruption.move_gap_s + _lost_s(context, mover) / max(factor, SLACK)


def _moved(context: PlanContext, look: RankSamples, mover: Job, to: int, factor: float, cost_s: float) -> Option:
    here, there = look.instance.id, context.fleet.instances[to].id

    def act(reason: Reason) -> None:
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
    """Return whether ``job`` may be stopped and restarted elsewhere, by its own limits and the policy's."""
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
    """Return the instance to move ``job`` to: one that suits it or, without estimates, an empty one; -1 if none."""
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
    """Return the speed-up of the job on an instance of type ``column``; 1 if it is not known."""
    here, there = look.would(), look.would(column=column, vcpus=look.job.spec.resources.vcpus)
    return there.value / here.value if there is not None and here is not None else 1.0


def _best_of_types(context: PlanContext, look: RankSamples) -> float:
    """Return the largest speed-up of the job on any type of the fleet."""
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
    """Check a share of the long-running jobs in each period for a change of phase, whether or not they miss a target.

    The choice follows from job id and period, so a restarted daemon makes the same one.
    """
    job = look.job
    if not _may_be_sampled(context, look):
        return False
    learnt, departure, known = feedback_from(context, look), look.departure(), look.known()
    if learnt is None or departure is None or known is None:
        return False
    if known.measure is Measure.REQUESTS and departure.measured.mean < departure.would.value:
        return False  # its load may simply be lower
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
    """Return the present sampling period, and whether the job is sampled in it."""
    policy, post = context.policy.correction, look.post
    period = int(context.now // policy.sample_every_s)
    if post.drawn[0] != period:
        post.drawn = period, zlib.crc32(f"{post.job.id}:{period}".encode()) / 2**32 < policy.sample_share
    return post.drawn
