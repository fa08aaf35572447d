"""Correct running jobs that miss their target (Paragon §3.4, Quasar §4.4, Mage).

A job that surely misses its target (:mod:`hcloud.planner.correction.monitor`) is helped one step at a time. Where
other CPUs of its machine are better it is pinned there at once. Else HCloud learns why: a copy is profiled again on an
idle instance, then the measured performance replaces the estimate. Then the job gets more vCPUs of its instance,
best-effort neighbours are squeezed onto fewer CPUs or evicted, missing nodes are added, and finally it is moved,
stateless jobs first.

A step is taken only if it is expected to save ``gain`` times what it costs, in seconds of the job's own work: work lost
and repeated, the gap, and what others lose. After each step the job settles, and is judged again by readings taken
since. Steps are recorded in ``Job.corrections`` and survive a restart of the daemon. This, the margin and the required
confidence keep noise from moving jobs. Where no step helps, the job's row and an event say so until its target is met
again (:class:`hcloud.planner.plan.Miss`).

A job that slows down, and a share of all others, is also measured in place (:func:`_check_phase`): it may have entered
another phase, which no copy shows.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from hcloud.core.cpu_window import TAKEN_MAX
from hcloud.core.estimates import Measure
from hcloud.core.model import FailureCause, Job, Number, Reason, ServiceTarget
from hcloud.planner.admission import queue_key
from hcloud.planner.context import MOVED, NODES, NODES_LAUNCHED, PlanContext
from hcloud.planner.correction.attribution import LossAttribution, describe_learnt, feedback_from
from hcloud.planner.correction.cores import REPIN, SQUEEZE, can_repin, repin, squeeze
from hcloud.planner.correction.monitor import (
    LEARNING,
    Assessment,
    RankSamples,
    RecheckQueue,
    column_of,
    deviations_of,
    rank_samples,
)
from hcloud.planner.correction.option import NoOption, Option, remaining_s, saved_s
from hcloud.planner.correction.scaling import RESIZE, more_nodes, resize
from hcloud.planner.correction.stragglers import profiled_since, relaunch_stragglers, restart_speedup
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.placement.open_instances import has_room_now, usable
from hcloud.planner.plan import MET, Correct, Miss
from hcloud.planner.profiling_beside import profile_again
from hcloud.planner.profiling_in_place import measure_in_place
from hcloud.planner.provisioning.eviction import is_evictable
from hcloud.planner.text import percent, seconds
from hcloud.spec.validation import counted

REPROFILE, RECLASSIFY, EVICT = "reprofile", "reclassify", "evict"
EARLY_STEPS = (REPIN, RESIZE)
"""Steps for a service that wait for ``LATE_READINGS`` only."""
INSPECTED, SLOWED, SAMPLED = "inspected", "slowed", "sampled"
_INSPECTIONS = (INSPECTED, SLOWED, SAMPLED, RECLASSIFY)
"""Steps after which a job is not sampled again for ``sample_every_s``."""
ROUNDING_S = 1e-3
"""Times computed in advance are reduced by this much, because sums round."""
MISSED_WORDS = {
    "deadline": "of the rate needed for its deadline",
    "latency": "of the performance needed for its latency",
    "rate": "of the requests of its target, with its latency at the bound",
    "expectation": "of the expected performance",
}


def correct(context: PlanContext) -> None:
    """Take at most one step for each job that misses its target, in queue order, for ``max_per_cycle`` jobs per
    plan."""
    keep_in_force(context)
    policy, snapshot = context.policy.correction, context.snapshot
    if snapshot.paused or not snapshot.engine_reachable or not snapshot.job_samples:
        return
    rechecks: RecheckQueue = snapshot.plan_cache.latest("rechecks") or RecheckQueue()
    snapshot.plan_cache.keep("rechecks", rechecks)
    left = policy.max_per_cycle
    # Those behind the last that is helped are not looked at: of thousands, few are in one plan.
    for job in rechecks.due(snapshot, context.policy, context.jobs):
        if left <= 0:
            break
        view = _check(context, rechecks, job) if _can_be_judged(context, job) else None
        if view is None:
            continue
        done = _correct_target(context, view) or _check_phase(context, view)
        left -= done
        if not done:
            _postpone(context, rechecks, view.job, view)
    if policy.steps:
        relaunch_stragglers(context, left)


def _check(context: PlanContext, rechecks: RecheckQueue, job: Job) -> RankSamples | None:
    """Return the samples of a running job that misses its target or is due for sampling; postpone any other job."""
    view = rank_samples(context, job)
    if view is None:
        _postpone(context, rechecks, job, view)
        return None
    kept_until = _kept_until(context, view)
    if (
        _late_lately(context, view) is not None
        or kept_until == -math.inf
        or job.unmet_code
        or _is_due_for_sampling(context, view)
        or _has_slowed(context, view)
    ):
        return view
    _postpone(context, rechecks, job, view, kept_until)
    return None


def _postpone(
    context: PlanContext,
    rechecks: RecheckQueue,
    job: Job,
    view: RankSamples | None,
    kept_until: float | None = None,
) -> None:
    """Postpone the next check of ``job`` until something can have changed."""
    index = context.fleet.index
    for each in job.attempt.allocations if job.attempt is not None else ():
        if each.instance_id not in index and not each.released:
            return
    rechecks.postpone(job, _next_check_at(context, view, kept_until))


def _next_check_at(context: PlanContext, view: RankSamples | None, kept_until: float | None) -> float:
    """Return until when a job that needs nothing now surely needs nothing, unless a sample arrives.

    A job that cannot be helped now is checked again after the sampling interval: room may have become free.
    """
    if view is None:
        return math.inf
    kept_until = _kept_until(context, view) if kept_until is None else kept_until
    until = min(kept_until, _next_sample_at(context, view))
    if until <= context.now + ROUNDING_S and not _is_being_profiled(context, view.job):
        misses = kept_until <= context.now + ROUNDING_S
        every_s = context.policy.timing.sample_every_s if misses else context.policy.correction.sample_every_s / 10
        until = context.now + every_s
    return until - ROUNDING_S


def _kept_until(context: PlanContext, view: RankSamples) -> float:
    """Return until when the job surely does not miss its target."""
    policy = context.policy.correction
    return view.kept_until(deviations_of(policy.confidence), policy.margin)


def _next_sample_at(context: PlanContext, view: RankSamples) -> float:
    """Return until when :func:`_check_phase` surely has nothing to do."""
    policy, job = context.policy.correction, view.job
    period, drawn = _sampling(context, view)
    if "reclassify" not in policy.steps:
        return math.inf
    if not drawn:
        return (period + 1) * policy.sample_every_s
    long_at = (view.held.started_at or context.now) + policy.long_running_s
    return max(long_at, _last_at(job, _INSPECTIONS) + policy.sample_every_s)


def _is_being_profiled(context: PlanContext, job: Job) -> bool:
    """Return whether a profiling run of ``job`` is not over; further steps wait for its result."""
    return bool(job.profile_runs) and not context.measuring.isdisjoint(job.profile_runs)


def keep_in_force(context: PlanContext) -> None:
    """Keep earlier corrections in force: no best effort returns where it was evicted for a running job, and jobs that
    are to get all their nodes still are."""
    occupancy = context.snapshot.plan_cache.occupancy
    for job in [occupancy.rows[each] for each in occupancy.corrected]:
        if job.attempt is None:
            continue
        done = {c.step for c in job.corrections if c.attempt == job.attempt.id}
        if done & {NODES, NODES_LAUNCHED}:
            context.decisions.grow(job)
        if EVICT in done:
            context.reservations.close_to_best_effort(_machines(context, job))


def _can_be_judged(context: PlanContext, job: Job) -> bool:
    excluded = job.id in context.decisions.stopping or job.cancelled_by is not None or job.spec.profile is not None
    snapshot = context.snapshot
    if excluded or job.id in snapshot.left_out.jobs or job.id in snapshot.unreadable_secrets:
        return False
    hooks = job.spec.progress is not None or job.spec.metrics is not None
    return job.id in snapshot.job_samples and (hooks or job.application in snapshot.applications)


def _machines(context: PlanContext, job: Job) -> list[int]:
    held = job.attempt.allocations if job.attempt is not None else ()
    return sorted(
        {context.fleet.index[a.instance_id] for a in held if not a.released and a.instance_id in context.fleet.index}
    )


# ----------------------------------------------------------------------------------------------------------- escalation
def _correct_target(context: PlanContext, view: RankSamples) -> bool:
    """Take the first step that pays off if the job surely misses its target; return whether one was taken.

    If none does, record why, or that the target is met again.
    """
    policy, assessment = context.policy.correction, view.assess()
    if assessment is None:
        return _help_early(context, view)
    if not assessment.missed(deviations_of(policy.confidence), policy.margin):
        if _help_early(context, view):
            return True
        if view.job.unmet_code and assessment.pace.mean >= assessment.enough(policy.margin) * assessment.wanted:
            text = f"meets its target again: {_measured(view, assessment)}"
            context.decisions.add(Miss(job_id=view.job.id, reason=Reason(code=MET, text=text)))
        return False
    if _is_being_profiled(context, view.job):
        return False
    if assessment.by == "rate" and not view.busy():
        text = "it uses less than correction.busy_share of its vCPUs, so it may be sent fewer requests than its target"
        _record_miss(context, view, assessment, [NoOption(step="any", code="not_busy", text=text)])
        return False
    if view.expectation.steps_taken >= policy.max_steps_per_attempt:
        text = f"all {policy.max_steps_per_attempt} steps of correction.max_steps_per_attempt were taken"
        _record_miss(context, view, assessment, [NoOption(step="any", code="used_up", text=text)])
        return False
    refused = list[NoOption]()
    for step, options in _OPTIONS.items():
        for option in options(context, view, assessment) if step in policy.steps else _switched_off(view, step):
            if isinstance(option, NoOption):
                refused.append(option)
            elif option.step in LEARNING or _is_worthwhile(context, assessment, option.factor, option.cost_s):
                _take(context, view, assessment, option)
                return True
            else:
                text = f"{option.text}, expected speed-up {option.factor:.2f}, would not pay"
                refused.append(NoOption(step=step, code="would_not_pay", text=text))
    _record_miss(context, view, assessment, refused)
    return False


def _help_early(context: PlanContext, view: RankSamples) -> bool:
    """Pin a service to better CPUs or give it free ones once its last readings are clearly late; return whether that
    was done. Both cost nearly nothing and can be undone, so they wait for less evidence than other steps (Mage §4.2).
    """
    policy, late = context.policy.correction, _late_lately(context, view)
    if late is None or view.expectation.steps_taken >= policy.max_steps_per_attempt:
        return False
    for step in EARLY_STEPS:
        for option in _OPTIONS[step](context, view, late) if step in policy.steps else ():
            if isinstance(option, Option) and _is_worthwhile(context, late, option.factor, option.cost_s):
                _take(context, view, late, option)
                return True
    return False


def _late_lately(context: PlanContext, view: RankSamples) -> Assessment | None:
    """Return how late a service's last readings are, if a step that costs nearly nothing might help it."""
    policy = context.policy.correction
    if view.job.unmet_code:  # it was tried, and is again with the other steps
        return None
    late = view.late_lately(policy.margin)
    return late if late is not None and (RESIZE in policy.steps or can_repin(context, view)) else None


def _switched_off(view: RankSamples, step: str) -> Sequence[NoOption]:
    if step in (REPIN, SQUEEZE) and view.instance.cpu_topology is None:
        return ()  # it could not be taken anyway
    return (NoOption(step=step, code="off", text="not in correction.steps"),)


def _record_miss(context: PlanContext, view: RankSamples, assessment: Assessment, refused: Sequence[NoOption]) -> None:
    """Record that the job misses its target, what was tried in this attempt, and why nothing more helps."""
    if assessment.by == "expectation":  # nothing was promised
        return
    helping = [each for each in refused if each.step not in LEARNING]
    code = " ".join(dict.fromkeys(f"{each.step}:{each.code}" for each in helping))
    if code == view.job.unmet_code:
        return
    attempt = view.job.attempt
    made = [each.step for each in view.job.corrections if attempt is not None and each.attempt == attempt.id]
    tried = ", ".join(f"{step} ({counted(times, 'time')})" for step, times in Counter(made).items()) or "nothing"
    why = "; ".join(f"{each.step}: {each.text}" for each in helping)
    text = f"misses its target: {_measured(view, assessment)}; tried: {tried}; nothing more helps: {why}"
    context.decisions.add(Miss(job_id=view.job.id, reason=Reason(code=code, text=text, numbers=_judgement(assessment))))


def _measured(view: RankSamples, assessment: Assessment) -> str:
    """Return what was measured, beside the target."""
    target, pace = view.job.spec.target, assessment.pace
    host = f"; its host gave {percent(view.taken)} of its CPU time to others" if view.taken > TAKEN_MAX else ""
    if isinstance(target, ServiceTarget):
        kept, served = view.kept_latency(target), view.served()
        measured_ms = target.latency_ms / max(kept.mean if kept is not None else pace.mean, SLACK)
        text = f"p{target.percentile:g} latency {measured_ms:.4g} ms, bound {target.latency_ms:g} ms"
        is_late = measured_ms > target.latency_ms
        if served is not None and (assessment.by == "rate" or (is_late and served.mean < target.requests_per_s)):
            text += f"; serves {served.mean:.4g} of {target.requests_per_s:g} requests/s"
        return text + host
    return f"{percent(pace.mean / assessment.wanted)} {MISSED_WORDS[assessment.by]}{host}"


def _judgement(assessment: Assessment) -> dict[str, Number]:
    pace = assessment.pace
    return {
        "by": assessment.by,
        "measured": float(f"{pace.mean:.6g}"),
        "error": float(f"{pace.error:.3g}"),
        "readings": pace.counted,
        "wanted": float(f"{assessment.wanted:.6g}"),
    }


def _is_worthwhile(context: PlanContext, assessment: Assessment, factor: float, cost_s: float) -> bool:
    policy = context.policy.correction
    return factor >= 1.0 + policy.margin / 2 and saved_s(context, assessment, factor) >= policy.gain * cost_s


def _take(context: PlanContext, view: RankSamples, assessment: Assessment, option: Option) -> None:
    pace = assessment.pace
    numbers: dict[str, Number] = {**_judgement(assessment), **option.numbers}
    text = f"reached {percent(pace.mean / assessment.wanted)} {MISSED_WORDS[assessment.by]}"
    text += f" ({counted(pace.counted, 'reading')}): {option.text}"
    if option.step not in LEARNING:
        gain_s = saved_s(context, assessment, option.factor)
        numbers |= {"factor": round(option.factor, 4), "saved_s": round(gain_s, 3), "cost_s": round(option.cost_s, 3)}
        text += (
            f"; expected speed-up {option.factor:.2f}, saves {seconds(gain_s)} at a cost of {seconds(option.cost_s)}"
        )
    reason = Reason(code=f"correct_{option.step}", text=text, numbers=numbers)
    if view.job.unmet_code and option.step not in LEARNING:
        context.decisions.add(
            Miss(job_id=view.job.id, reason=Reason(code=MET, text=f"something may help now: {option.text}"))
        )
    context.decisions.add(
        Correct(job_id=view.job.id, step=option.step, reason=reason, instances=option.instances, learnt=option.learnt)
    )
    option.act(reason)


# ------------------------------------------------------------------------------------------------------------ the steps
def _reprofile(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option]:
    """Measure a job in place that performed as estimated before, or else profile a copy again on an idle instance, once
    per job, if its performance surely differs from the estimate."""
    policy, deviation = context.policy.correction, view.deviation()
    if deviation is None or not deviation.surely(deviations_of(policy.confidence), policy.margin):
        return
    again = any(each.step == REPROFILE for each in view.job.corrections)
    if again or remaining_s(context, assessment) < policy.gain * context.policy.profiling.total_s:
        return
    had = deviation.measured.best >= deviation.estimate.limits()[0]  # so it is in another phase now
    run = measure_in_place(context, view.job, view.held) if had else profile_again(context, view.job)
    if run is not None:
        text = f"performance differs from its estimate: {run.reason.text}"
        yield Option(step=REPROFILE, text=text, factor=1.0, cost_s=0.0, act=lambda _: context.decisions.add(run))


def _reclassify(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option]:
    """Replace the estimate by what was measured, once per attempt."""
    job, attempt = view.job, view.job.attempt
    if any(c.step == RECLASSIFY and attempt is not None and c.attempt == attempt.id for c in job.corrections):
        return
    learnt = feedback_from(context, view)
    if learnt is not None:
        text = describe_learnt(learnt)
        # The recorded correction is all there is to do.
        yield Option(step=RECLASSIFY, text=text, factor=1.0, cost_s=0.0, act=lambda _: None, learnt=learnt)


def _evict(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Evict the best-effort neighbour that holds most vCPUs, one at a time."""
    if not context.policy.disruption.evict_best_effort:
        yield NoOption(step=EVICT, code="off", text="disruption.evict_best_effort is off")
        return
    evictable = {
        job.id: (job, context.fleet.instances[at].id)
        for at in _machines(context, view.job)
        for job, _ in context.fleet.holdings[at]
        if is_evictable(context, job)
    }
    if not evictable:
        yield NoOption(
            step=EVICT, code="no_neighbour", text="no best-effort job that may be evicted shares its machine"
        )
    attribution = LossAttribution(context, view, assessment)
    for victim, name in sorted(
        evictable.values(), key=lambda each: (-each[0].spec.resources.vcpus, _lost_s(context, each[0]))
    ):
        lost_s = _lost_s(context, victim) + context.policy.disruption.move_gap_s
        size = victim.spec.resources.vcpus / max(view.job.spec.resources.vcpus, SLACK)
        cost_s = lost_s * size / context.policy.correction.promise_worth

        def act(reason: Reason, victim: Job = victim) -> None:
            numbers: dict[str, Number] = {"for_job": view.job.id, **reason.numbers}
            text = f"evicted for {view.job.id}, which {reason.text}"
            context.decisions.stop(
                victim, FailureCause.EVICTED, Reason(code="evicted_for_target", text=text, numbers=numbers)
            )
            context.reservations.close_to_best_effort(_machines(context, view.job))

        text = f"evicting best-effort neighbour {victim.id} on {name}"
        yield Option(
            step=EVICT,
            text=text,
            factor=attribution.faster_without(victim),
            cost_s=cost_s,
            act=act,
            instances=(name,),
            numbers={"victim": victim.id},
        )


def _lost_s(context: PlanContext, job: Job) -> float:
    """Return the seconds of work lost if ``job`` is stopped: all of it, but none for a service."""
    if job.spec.target.kind == "service" or job.attempt is None:
        return 0.0
    return context.now - job.attempt.placed_at


def _move(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Move the job or, if it is stateful, a stateless neighbour to an instance with room now.

    A destination is searched only if moving can pay off at all, which it mostly cannot.
    """
    if not view.job.spec.stateful:
        if (why := why_not_movable(context, view.job)) or not has_room_now(context, context.group_of(view.job)):
            yield NoOption(step=MOVED, code="not_movable", text=why) if why else _nowhere(view.job)
            return
        speedup_alone = LossAttribution(context, view, assessment).faster_alone()
        best = speedup_alone * _best_type_speedup(context, view)
        if not _is_worthwhile(context, assessment, best, _move_cost_s(context, view.job, best)):
            text = f"moving it, expected speed-up at most {best:.2f}, would not pay"
            yield NoOption(step=MOVED, code="would_not_pay", text=text)
        elif (to := destination(context, view.job)) < 0:
            yield _nowhere(view.job)
        else:
            factor = speedup_alone * _type_speedup(view, column_of(context.fleet.instances[to]))
            yield _move_option(context, view, view.job, to, factor, _move_cost_s(context, view.job, factor))
        return
    at, attribution = context.fleet.index[view.held.instance_id], LossAttribution(context, view, assessment)
    neighbours = {job.id: job for job, _ in context.fleet.holdings[at] if job.id != view.job.id}
    yield NoOption(step=MOVED, code="stateful", text="it is stateful, and moving a neighbour would not help")
    for other in sorted(neighbours.values(), key=lambda job: (_lost_s(context, job), queue_key(job))):
        if not _may_move(context, other):
            continue
        factor, cost_s = attribution.faster_without(other), _move_cost_s(context, other)
        to = destination(context, other) if _is_worthwhile(context, assessment, factor, cost_s) else -1
        if to >= 0:
            yield _move_option(context, view, other, to, factor, cost_s)


def _nowhere(job: Job) -> NoOption:
    return NoOption(step=MOVED, code="no_room", text=f"no other machine has room that suits {job.id}")


def _may_move(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` may be moved and any instance has room; the latter is cheap to check in a full cluster."""
    return movable(context, job) and has_room_now(context, context.group_of(job))


def _move_cost_s(context: PlanContext, mover: Job, factor: float = 1.0) -> float:
    """Return the cost of a move in seconds: the gap, and the work to repeat at ``factor`` times the speed."""
    return context.policy.disruption.move_gap_s + _lost_s(context, mover) / max(factor, SLACK)


def _move_option(context: PlanContext, view: RankSamples, mover: Job, to: int, factor: float, cost_s: float) -> Option:
    source, target = view.instance.id, context.fleet.instances[to].id

    def act(reason: Reason) -> None:
        numbers: dict[str, Number] = {"for_job": view.job.id, **reason.numbers}
        text = reason.text
        if mover is not view.job:
            text = f"moving off {source} for {view.job.id}, which {reason.text}"
            why = Reason(code="correct_move", text=f"moving off {source} to relieve {view.job.id}", numbers=numbers)
            context.decisions.add(Correct(job_id=mover.id, step=MOVED, reason=why, instances=(source,)))
        context.decisions.stop(mover, FailureCause.EVICTED, Reason(code="moved_for_target", text=text, numbers=numbers))

    moves_itself = mover is view.job
    reference = "a later copy of it" if profiled_since(context, view) else "other runs of its application"
    why = f" (slower there than {reference})" if moves_itself and restart_speedup(context, view) > 1.0 else ""
    text = f"moving {mover.id} from {source}{why} to {target}, which has room"
    return Option(
        step=MOVED if moves_itself else "move_neighbour",
        text=text,
        factor=factor,
        cost_s=cost_s,
        act=act,
        instances=(source,) if moves_itself else (),
        numbers={"mover": mover.id, "to": target},
    )


def movable(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` may be stopped and restarted elsewhere, by its own limits and the policy's."""
    return not why_not_movable(context, job)


def why_not_movable(context: PlanContext, job: Job) -> str:
    """Return why ``job`` may not be stopped and restarted elsewhere; empty: it may."""
    spec, cause, moves = job.spec, FailureCause.EVICTED, context.policy.correction.max_moves_per_job
    reasons = (
        (job.attempt is None or job.id in context.decisions.stopping or spec.profile is not None, "it does not run"),
        (spec.nodes.count > 1, "it runs on several nodes"),
        (not spec.interruptible, "it is not interruptible"),
        (spec.stateful, "it is stateful"),
        (
            job.failures.count(cause) >= spec.retries.limits.get(cause.value, 0),
            "its retries after evictions are used up",
        ),
        (sum(c.step == MOVED for c in job.corrections) >= moves, f"it was moved {counted(moves, 'time')} already"),
    )
    return next((text for holds, text in reasons if holds), "")


def destination(context: PlanContext, job: Job) -> int:
    """Return the instance to move ``job`` to: one that suits it or, without estimates, an empty one; -1 if none."""
    fleet, group = context.fleet, context.group_of(job)
    sources = [a.instance_id for a in job.attempt.allocations] if job.attempt is not None else []
    among: Mask = usable(context, group, fleet.placeable) & fleet.others_than(sources)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, fleet.fitting_now(group.demand, among))
        candidates = np.flatnonzero(fleet.fitting_now(group.asks, roomy) if roomy.any() else roomy)
        preference = context.suit.preference(group.application) if candidates.size else None
        if preference is not None:
            return int(candidates[preference[candidates].argmin()])
        return int(candidates[0]) if candidates.size else -1
    empty: Mask = np.array([not held for held in fleet.holdings], dtype=np.bool_) & (fleet.load <= SLACK)
    as_large = fleet.capacity[0] >= max(
        (fleet.capacity[0, fleet.index[i]] for i in sources if i in fleet.index), default=0
    )
    return fleet.least_loaded(group.asks, among & empty & as_large)


def _type_speedup(view: RankSamples, column: str) -> float:
    """Return the speed-up of the job on an instance of type ``column``; 1 if it is not known."""
    current, elsewhere = view.estimate(), view.estimate(column=column, vcpus=view.job.spec.resources.vcpus)
    return elsewhere.value / current.value if elsewhere is not None and current is not None else 1.0


def _best_type_speedup(context: PlanContext, view: RankSamples) -> float:
    """Return the largest speed-up of the job on any type of the fleet."""
    known, job, held, columns = view.known(), view.job, view.held, tuple(context.fleet.type_columns)
    if known is None:
        return 1.0
    nodes = job.attempt.size if job.attempt is not None else 1
    question = ("best of types", column_of(view.instance), columns, held.resources, job.spec.resources, nodes)
    return known.answer(question, lambda: max([_type_speedup(view, column) for column in columns], default=1.0))


_OPTIONS: dict[str, Callable[[PlanContext, RankSamples, Assessment], Iterator[Option | NoOption]]] = {
    REPIN: repin,
    "reprofile": _reprofile,
    "reclassify": _reclassify,
    RESIZE: resize,
    SQUEEZE: squeeze,
    "evict": _evict,
    "nodes": more_nodes,
    "move": _move,
}


# --------------------------------------------------------------------------------------------------------------- phases
def _check_phase(context: PlanContext, view: RankSamples) -> bool:
    """Measure a long-running job in place if its pace fell or if it is sampled in this period, whether or not it misses
    a target; return whether anything was done.

    The choice follows from job id and period, so a restarted daemon makes the same one.
    """
    job = view.job
    if not (_has_slowed(context, view) or _is_due_for_sampling(context, view)) or _is_being_profiled(context, job):
        return False
    learnt, slower = _take_sample(context, view), view.slowdown()
    run = measure_in_place(context, job, view.held)
    if slower is not None and not learnt:
        text = f"its pace fell from {slower.before.mean:.4g} to {slower.now.mean:.4g}/s"
        text += f": {run.reason.text}" if run is not None else "; it cannot be measured in place now"
        numbers: dict[str, Number] = {"before": slower.before.mean, "now": slower.now.mean}
        context.decisions.add(
            Correct(job_id=job.id, step=SLOWED, reason=Reason(code="slowed", text=text, numbers=numbers))
        )
    elif run is not None and not learnt:
        context.decisions.add(Correct(job_id=job.id, step=INSPECTED, reason=run.reason))
    if run is not None:
        context.decisions.add(run)
    return learnt or run is not None or slower is not None


def _take_sample(context: PlanContext, view: RankSamples) -> bool:
    """Replace the estimates if the performance surely differs from them; return whether it does."""
    job = view.job
    learnt, deviation, known = feedback_from(context, view), view.deviation(), view.known()
    if learnt is None or deviation is None or known is None:
        return False
    if known.measure is Measure.REQUESTS and deviation.measured.mean < deviation.estimate.value:
        return False  # its load may simply be lower
    measured, estimate = deviation.measured.mean, deviation.estimate.value
    text = f"measured {measured:.4g}/s, expected {estimate:.4g}/s; {describe_learnt(learnt)}"
    numbers: dict[str, Number] = {"measured": measured, "expected": estimate, "readings": deviation.measured.counted}
    reason = Reason(code="phase_changed", text=text, numbers=numbers)
    context.decisions.add(Correct(job_id=job.id, step=SAMPLED, reason=reason, learnt=learnt))
    return True


def _has_slowed(context: PlanContext, view: RankSamples) -> bool:
    """Return whether a long-running job surely does less than before."""
    return _may_be_inspected(context, view, (SLOWED, SAMPLED, RECLASSIFY)) and view.slowdown() is not None


def _is_due_for_sampling(context: PlanContext, view: RankSamples) -> bool:
    return _sampling(context, view)[1] and _may_be_inspected(context, view, _INSPECTIONS)


def _may_be_inspected(context: PlanContext, view: RankSamples, steps: Collection[str]) -> bool:
    """Return whether a job has run for long, and none of these steps was taken for it lately."""
    policy, now = context.policy.correction, context.now
    if "reclassify" not in policy.steps or now - (view.held.started_at or now) < policy.long_running_s:
        return False
    return now - _last_at(view.job, steps) >= policy.sample_every_s


def _last_at(job: Job, steps: Collection[str]) -> float:
    """Return when one of these steps was last taken for a job; -inf if never."""
    return max([each.at for each in job.corrections if each.step in steps], default=-math.inf)


def _sampling(context: PlanContext, view: RankSamples) -> tuple[int, bool]:
    """Return the present sampling period, and whether the job is sampled in it."""
    policy, post = context.policy.correction, view.expectation
    period = int(context.now // policy.sample_every_s)
    if post.sampling[0] != period:
        post.sampling = period, zlib.crc32(f"{post.job.id}:{period}".encode()) / 2**32 < policy.sample_share
    return post.sampling
