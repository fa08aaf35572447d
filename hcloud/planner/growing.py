"""Running jobs whose ranks join one by one get those that they still lack, where room is left."""

from __future__ import annotations

from hcloud.planner.admission import queue_key
from hcloud.planner.draft import Draft
from hcloud.planner.placement import add_place, claim, find_places
from hcloud.planner.roster import missing_ranks


def grow(draft: Draft, *, behind: bool = False) -> None:
    """Add missing ranks of running incremental jobs where room is left; ``behind``: of those only that miss their
    target, and keep for them what starts."""
    incomplete = draft.snapshot.memo.roster.incomplete
    growing = [job for job in draft.running if job.id in incomplete] if incomplete else []
    growing = [job for job in growing if job.id not in draft.stopping and (not behind or job.id in draft.behind)]
    for job in sorted(growing, key=queue_key):
        group = draft.group_of(job)
        missing = missing_ranks(job)
        if draft.suit is not None and job.id not in draft.behind:
            present = job.spec.nodes.count - len(missing)
            missing = missing[: draft.suit.ranks_wanted(job, max(1, present), job.spec.nodes.count) - present]
        places = find_places(draft, job, group, 1, len(missing)) if group.stuck is None else []
        if places:
            add_place(draft, job, group, missing[: len(places)], places)
        if behind:
            draft.used.update(claim(draft, group, draft.fleet.coming, len(missing) - len(places)))
