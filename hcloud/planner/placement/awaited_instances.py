"""Room for jobs on the instances they await: held for them until they can start, or given up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcloud.core.model import Job, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.late_boots import requeue_reason
from hcloud.planner.placement.claims import claim


def awaited_places(context: PlanContext, job: Job) -> list[int]:
    """Return the instances ``job`` awaits, one entry per rank to run there."""
    return [context.fleet.index[i] for i in job.awaiting if i in context.fleet.index]


def settle(context: PlanContext, job: Job, group: JobGroup) -> Job:
    """Hold what ``job`` awaits, or put it back into the queue if that failed or has no room left; return its row."""
    lost = [i for i in job.awaiting if not _still_hoped_for(context, i)]
    if lost or not job.awaiting:
        names = ", ".join(lost) or "nothing"
        text = f"{names} failed to start; choosing another machine"
        return requeue(context, job, Reason(code="awaited_lost", text=text, numbers={"lost": names}))
    return job if _hold(context, job, group) else requeue(context, job, requeue_reason(job, context.late))


def _still_hoped_for(context: PlanContext, instance_id: str) -> bool:
    at = context.fleet.index.get(instance_id)
    return at is not None and bool(context.fleet.hopeful[at])


def requeue(context: PlanContext, job: Job, reason: Reason) -> Job:
    """Put a job that awaits instances back into the queue, and release what was held for it."""
    context.reservations.unclaim(context.group_of(job), context.reservations.unhold(job))
    context.ledger.forget_awaited(job)
    context.reservations.count_active(job, -1)
    return context.decisions.enqueue(job, reason)


def _hold(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Hold room for ``job`` on the instances it awaits, and for other ranks of a gang on ready ones.

    Returns False and holds nothing if even booting instances cannot provide the rest.
    """
    fleet, held = context.fleet, context.reservations.unhold(job)
    held += _claim_each(context, group, [at for at in awaited_places(context, job) if not fleet.coming[at]], held)
    held += claim(context, group, fleet.placeable, group.needed - len(held), held)
    more = claim(context, group, fleet.coming, group.needed - len(held), held)
    context.reservations.unclaim(group, more)
    if len(held) + len(more) < group.needed:
        context.reservations.unclaim(group, held)
        return False
    context.reservations.hold(job, held)
    return True


def hold_booting_capacity(context: PlanContext) -> None:
    """Hold booting instances for the jobs they were launched for, before other jobs claim what is left of them."""
    for segment in (*context.waiting.queues[True].awaiting, *context.waiting.queues[False].awaiting):
        job = segment.first
        coming = [at for at in awaited_places(context, job) if context.fleet.coming[at]]
        context.reservations.hold(job, _claim_each(context, segment.group, coming))


def _claim_each(context: PlanContext, group: JobGroup, places: Sequence[int], taken: Sequence[int] = ()) -> list[int]:
    """Claim room for one rank on each of ``places`` that has it; return these. ``taken`` are the job's other ranks."""
    one, claimed = np.zeros(len(context.fleet.instances), dtype=np.bool_), list[int]()
    for at in places:
        # Others may have filled the instance meanwhile.
        if context.fleet.has_room(at, group.demand):
            one[at] = True
            claimed += claim(context, group, one, 1, [*taken, *claimed], launched_for_it=True)
            one[at] = False
    return claimed
