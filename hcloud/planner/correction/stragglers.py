"""What falls behind its like is started anew elsewhere: ranks of incremental jobs (Quasar §4.4), and jobs of one rank.

A rank whose pace is surely less than a part of the median of the others is stopped, and ``add_missing_ranks`` starts it
again on another machine, while the others go on. Only where a machine has room now, where its new start is expected to
end well before the straggler would, and while the others have enough to do that the job does not end in between. Its
interference cannot be profiled in place here, so that is not asked.

A job of one rank has no others beside it, but copies of it elsewhere: one that was profiled anew since it runs, and did
as ever on such a machine, tells that not its class is wrong but this start of it (:func:`faster_anew`). Where there is
no room to profile one, a job so slow is taken for a straggler as long as it is the only one (:func:`straggles`): one
start in a hundred is, and hardly an estimate is as wrong. What it does where it is moved to tells which it was.
"""

from __future__ import annotations

import statistics
from math import inf

from hcloud.classifier.applications import identify, row_name
from hcloud.core.model import Allocation, Attempt, Job, Number, Reason
from hcloud.forecast.job_monitor import Pace, pace_of_counter
from hcloud.planner.context import RELAUNCHED, PlanContext
from hcloud.planner.correction.monitor import Deviation, RankSamples, column_of, deviations_of, rank_samples
from hcloud.planner.occupancy import FEWEST
from hcloud.planner.placement.place import usable
from hcloud.planner.plan import Correct, StopRank
from hcloud.planner.text import seconds

MARGIN_S = 30.0
"""The others must have so much more to do than stopping a rank may take."""


def relaunch_stragglers(context: PlanContext, most: int) -> None:
    """Stop the slowest straggler of each incremental job, of ``most`` jobs at most."""
    occupancy = context.snapshot.plan_cache.occupancy
    for job in (
        [job for job in context.running if job.id in occupancy.scattered] if occupancy.scattered and most > 0 else ()
    ):
        attempt = job.attempt
        if most <= 0 or attempt is None or job.id in context.stopping or job.cancelled_by is not None:
            continue
        done = [c.at for c in job.corrections if c.step == RELAUNCHED and c.attempt == attempt.id]
        # Until it has ended, a rank that was asked to looks like any other: it is not asked again.
        ending = any(context.now < at + job.spec.stop_grace_s + MARGIN_S for at in done)
        if not ending and len(done) < context.policy.correction.max_relaunches_per_attempt:
            most -= _relaunch(context, job, attempt)


def faster_anew(context: PlanContext, look: RankSamples) -> float:
    """Return how many times as fast a lone job surely is where it is begun anew, as it is a straggler; 1: it is none.

    It is one that surely does less than a copy of it did since it began: on a machine of its type, or on another so
    much less (``correction.straggler_below``) that what is believed of its own cannot be so wrong. Where there is no
    such copy, nothing else of its application must be slow either (:func:`straggles`).
    """
    departure, policy = look.departure(), context.policy.correction
    if departure is None or departure.measured.mean <= 0 or not _alone(context, look):
        return 1.0
    deviations, low = deviations_of(policy.confidence), departure.would.limits()[0]
    most, since = departure.measured.at_most(deviations), profiled_since(context, look)
    if most >= low or not departure.surely(deviations, policy.margin):
        return 1.0
    if since:
        straggler = column_of(look.instance) in since or most < _least(context, departure)
    else:
        straggler = straggles(context, look)
    return low / departure.measured.mean if straggler else 1.0


def straggles(context: PlanContext, look: RankSamples, kept: float = 1.0) -> bool:
    """Return whether rather this start of a job is slow than what is believed of its application wrong.

    So it is where it does less than ``correction.straggler_below`` of the least expected, and has done so as long as is
    known, while nothing else of its application is slow: none of its last runs was other than expected, and no other
    job of it does as little, alone. ``kept``: what neighbours are believed to leave it (0..1).
    """
    departure, job = look.departure(), look.job
    if departure is None:
        return False
    least = _least(context, departure, kept)
    if departure.measured.mean >= least or departure.measured.best >= least:  # it once did more: another phase
        return False
    rows = context.snapshot.programs.get(identify(job.spec).program, ())
    if any(any(row.missed) for row in rows if row.name == row_name(job.application)):
        return False
    others = [each for each in context.running if each.application == job.application and each is not job]
    return not any(_as_slow(context, each) for each in others)


def _least(context: PlanContext, departure: Deviation, kept: float = 1.0) -> float:
    """Return below which performance one start in a hundred is likelier than an estimate as wrong."""
    return context.policy.correction.straggler_below * kept * departure.would.limits()[0]


def _as_slow(context: PlanContext, job: Job) -> bool:
    look = rank_samples(context, job)
    departure = look.departure() if look is not None else None
    if look is None or departure is None or not _alone(context, look):
        return False
    return departure.measured.mean < _least(context, departure)


def _alone(context: PlanContext, look: RankSamples) -> bool:
    here = context.fleet.holdings[context.fleet.index[look.held.instance_id]]
    return all(each.id == look.job.id for each, _ in here)


def profiled_since(context: PlanContext, look: RankSamples) -> set[str]:
    """Return the types (columns) of the machines on which copies of the job were profiled since it was started."""
    job, started_at = look.job, look.held.started_at
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
    if len(paces) < FEWEST or any(a.released and a.cause is not None for a in attempt.allocations):
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
    context.add(Correct(job_id=job.id, step=RELAUNCHED, reason=reason, instances=(slowest.instance_id,)))
    context.add(StopRank(job_id=job.id, rank=slowest.rank, reason=reason))
    return True


def _reason(held: Allocation, measured: float, median: float, left_s: float, again_s: float) -> Reason:
    numbers: dict[str, Number] = {
        "rank": held.rank,
        "measured": float(f"{measured:.6g}"),
        "median": float(f"{median:.6g}"),
        "left_s": None if left_s == inf else round(left_s, 3),
        "again_s": round(again_s, 3),
    }
    text = f"straggler: rank {held.rank} on {held.instance_id} progresses at {measured / median:.0%} of the median rank"
    text += f"; restarting it elsewhere takes {seconds(again_s)}"
    text += ", here it has stalled" if left_s == inf else f", here it needs {seconds(left_s)} more"
    return Reason(code="correct_relaunch", text=text, numbers=numbers)


def _paces(context: PlanContext, job: Job, attempt: Attempt) -> list[tuple[Allocation, Pace, float]]:
    """Return the running ranks whose pace is known, with their progress (0..1)."""
    watched, policy, found = context.snapshot.job_samples.get(job.id), context.policy.correction, []
    if watched is None or watched.attempt != attempt.id:
        return []
    for held in attempt.allocations:
        samples = watched.ranks.get(held.rank, ())
        if held.released or held.started_at is None or not samples:
            continue
        pace = pace_of_counter(samples, "progress", held.started_at + policy.settle_s, policy.readings)
        if pace is not None:
            found.append((held, pace, samples[-1].values.get("progress", 0.0)))
    return found
