"""Restart stragglers elsewhere: slow ranks of incremental jobs (Quasar §4.4), and slow jobs of one rank.

A rank surely slower than a part of the median of the others is stopped, and
:func:`~hcloud.planner.correction.scaling.add_missing_ranks` starts it on another instance. This requires that an
instance has room now, that the restart is expected to end well before the straggler would, and that the job does not
end meanwhile.

A job of one rank is compared with copies of it: if one was profiled since its start and performed as estimated, this
start is slow and the estimate is right (:func:`restart_speedup`). If no copy could be profiled, a very slow job counts
as a straggler as long as it is the only one of its application (:func:`is_straggler`), since estimates are hardly ever
so wrong. Its performance after the move shows which it was.
"""

from __future__ import annotations

import statistics
from math import inf

from hcloud.classifier.applications import identify, row_name
from hcloud.core.model import Allocation, Attempt, Job, Number, Reason
from hcloud.forecast.job_monitor import Pace, pace_of_counter
from hcloud.planner.context import RELAUNCHED, PlanContext
from hcloud.planner.correction.monitor import Deviation, RankSamples, column_of, deviations_of, rank_samples
from hcloud.planner.occupancy import FEWEST_RANKS
from hcloud.planner.placement.open_instances import usable
from hcloud.planner.plan import Correct, StopRank
from hcloud.planner.text import percent, seconds

MARGIN_S = 30.0
"""The other ranks must have this much more work left than stopping a rank may take."""


def relaunch_stragglers(context: PlanContext, most: int) -> None:
    """Stop the slowest straggler of each incremental job, in at most ``most`` jobs."""
    occupancy = context.snapshot.plan_cache.occupancy
    for job in (
        [job for job in context.running if job.id in occupancy.comparable] if occupancy.comparable and most > 0 else ()
    ):
        attempt = job.attempt
        if most <= 0 or attempt is None or job.id in context.decisions.stopping or job.cancelled_by is not None:
            continue
        if job.id in context.snapshot.unreadable_secrets:
            continue  # its rank could not start again
        done = [c.at for c in job.corrections if c.step == RELAUNCHED and c.attempt == attempt.id]
        # A rank that is stopping still has samples: do not stop it again.
        ending = any(context.now < at + job.spec.stop_grace_s + MARGIN_S for at in done)
        if not ending and len(done) < context.policy.correction.max_relaunches_per_attempt:
            most -= _relaunch(context, job, attempt)


def restart_speedup(context: PlanContext, view: RankSamples) -> float:
    """Return the speed-up of a job of one rank if it is restarted elsewhere; 1 if it is no straggler.

    A straggler surely performs worse than a copy profiled since its start: on its own instance type or, on another one,
    by more than the estimate for its type can be wrong (``correction.straggler_below``). Without such a copy,
    :func:`is_straggler` decides.
    """
    deviation, policy = view.deviation_elsewhere(), context.policy.correction
    if deviation is None or deviation.measured.mean <= 0 or not _is_alone(context, view):
        return 1.0
    deviations, low = deviations_of(policy.confidence), deviation.estimate.limits()[0]
    most, profiled_on = deviation.measured.at_most(deviations), profiled_since(context, view)
    if most >= low or not deviation.surely(deviations, policy.margin):
        return 1.0
    if profiled_on:
        straggler = column_of(view.instance) in profiled_on or most < _plausible_minimum(context, deviation)
    else:
        straggler = is_straggler(context, view)
    return low / deviation.measured.mean if straggler else 1.0


def is_straggler(context: PlanContext, view: RankSamples, kept: float = 1.0) -> bool:
    """Return whether this start of the job is slow, rather than the estimate wrong.

    That is assumed if the job has always performed below ``correction.straggler_below`` of the least expected, and
    nothing else of its application is slow: neither its last runs nor another running job. ``kept`` is the part (0..1)
    of its performance that its neighbours are estimated to leave.
    """
    deviation, job = view.deviation(), view.job
    if deviation is None:
        return False
    minimum = _plausible_minimum(context, deviation, kept)
    # it was faster once, so it is in another phase
    if deviation.measured.mean >= minimum or deviation.measured.best >= minimum:
        return False
    rows = context.snapshot.programs.get(identify(job.spec).program, ())
    if any(any(row.missed) for row in rows if row.name == row_name(job.application)):
        return False
    others = [each for each in context.running if each.application == job.application and each is not job]
    return not any(_is_as_slow(context, each) for each in others)


def _plausible_minimum(context: PlanContext, deviation: Deviation, kept: float = 1.0) -> float:
    """Return the performance below which a slow start is likelier than a wrong estimate."""
    return context.policy.correction.straggler_below * kept * deviation.estimate.limits()[0]


def _is_as_slow(context: PlanContext, job: Job) -> bool:
    view = rank_samples(context, job)
    deviation = view.deviation() if view is not None else None
    if view is None or deviation is None or not _is_alone(context, view):
        return False
    return deviation.measured.mean < _plausible_minimum(context, deviation)


def _is_alone(context: PlanContext, view: RankSamples) -> bool:
    holdings = context.fleet.holdings[context.fleet.index[view.held.instance_id]]
    return all(each.id == view.job.id for each, _ in holdings)


def profiled_since(context: PlanContext, view: RankSamples) -> set[str]:
    """Return the instance types, as ``<provider>/<type>``, on which copies of the job were profiled since its start."""
    job, started_at = view.job, view.held.started_at
    if not job.profile_runs or started_at is None:
        return set()
    return {
        row.type_column
        for row in context.snapshot.programs.get(identify(job.spec).program, ())
        if row.profiled_at is not None
        and row.profiled_at > started_at
        and not set(job.profile_runs).isdisjoint(row.runs)
    }


def _relaunch(context: PlanContext, job: Job, attempt: Attempt) -> bool:
    paces = _paces(context, job, attempt)
    lost = [a for a in attempt.allocations if a.released and a.cause is not None and a.yielded_at is None]
    if len(paces) < FEWEST_RANKS or lost:
        return False
    slowest, pace, done = min(paces, key=lambda each: (each[1].mean, each[0].rank))
    others = [(other.mean, part) for held, other, part in paces if held is not slowest]
    median, policy = statistics.median(mean for mean, _ in others), context.policy
    if pace.at_most(deviations_of(policy.correction.confidence)) >= policy.correction.straggler_below * median:
        return False
    left_s = (1.0 - done) / pace.mean if pace.mean > 0 else inf
    again_s = policy.disruption.move_gap_s + 1.0 / median
    others_s = max((1.0 - part) / mean if mean > 0 else inf for mean, part in others)
    elsewhere = context.fleet.others_than([slowest.instance_id])
    group = context.group_of(job)
    room = context.fleet.fitting_now(group.asks, usable(context, group, context.fleet.placeable) & elsewhere)
    if left_s < policy.correction.gain * again_s or others_s < job.spec.stop_grace_s + MARGIN_S or not room.any():
        return False
    reason = _reason(slowest, pace.mean, median, left_s, again_s)
    context.decisions.add(Correct(job_id=job.id, step=RELAUNCHED, reason=reason, instances=(slowest.instance_id,)))
    context.decisions.add(StopRank(job_id=job.id, rank=slowest.rank, reason=reason))
    return True


def _reason(held: Allocation, measured: float, median: float, left_s: float, again_s: float) -> Reason:
    numbers: dict[str, Number] = {
        "rank": held.rank,
        "measured": float(f"{measured:.6g}"),
        "median": float(f"{median:.6g}"),
        "left_s": None if left_s == inf else round(left_s, 3),
        "again_s": round(again_s, 3),
    }
    text = f"straggler: rank {held.rank} on {held.instance_id} progresses at {percent(measured / median)} of the median"
    text += f"; restarted elsewhere it needs {seconds(again_s)}, "
    text += "here it has stalled" if left_s == inf else f"here {seconds(left_s)} more"
    return Reason(code="correct_relaunch", text=text, numbers=numbers)


def _paces(context: PlanContext, job: Job, attempt: Attempt) -> list[tuple[Allocation, Pace, float]]:
    """Return the running ranks with a known pace, and their progress (0..1)."""
    watched, policy, paces = context.snapshot.job_samples.get(job.id), context.policy.correction, []
    if watched is None or watched.attempt != attempt.id:
        return []
    for held in attempt.allocations:
        samples = watched.ranks.get(held.rank, ())
        if held.released or held.started_at is None or not samples:
            continue
        pace = pace_of_counter(samples, "progress", held.started_at + policy.settle_s, policy.readings)
        if pace is not None:
            paces.append((held, pace, samples[-1].values.get("progress", 0.0)))
    return paces
