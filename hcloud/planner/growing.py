"""Running jobs whose ranks join one by one get those that they still lack, where room is left."""

from __future__ import annotations

from hcloud.planner.admission import queue_key
from hcloud.planner.context import PlanContext
from hcloud.planner.placement import add_place, claim, find_places
from hcloud.planner.roster import missing_ranks


def add_missing_ranks(context: PlanContext, *, behind: bool = False) -> None:
    """Add missing ranks of running incremental jobs where room is left; ``behind``: of those only that miss their
    target, and keep for them what starts."""
    incomplete = context.snapshot.plan_cache.occupancy.incomplete
    growing = [job for job in context.running if job.id in incomplete] if incomplete else []
    growing = [job for job in growing if job.id not in context.stopping and (not behind or job.id in context.behind)]
    for job in sorted(growing, key=queue_key):
        group = context.group_of(job)
        missing = missing_ranks(job)
        if context.suit is not None and job.id not in context.behind:
            present = job.spec.nodes.count - len(missing)
            missing = missing[: context.suit.ranks_wanted(job, max(1, present), job.spec.nodes.count) - present]
        places = find_places(context, job, group, 1, len(missing)) if group.stuck is None else []
        if places:
            add_place(context, job, group, missing[: len(places)], places)
        if behind:
            context.used.update(claim(context, group, context.fleet.coming, len(missing) - len(places)))
