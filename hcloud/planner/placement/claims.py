"""Claims: room promised to ranks of waiting jobs within a plan, before they are placed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcloud.core.model import Job
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.placement.open_instances import beyond, usable


def claim(
    context: PlanContext,
    group: JobGroup,
    mask: Mask,
    count: int,
    taken: Sequence[int] = (),
    *,
    launched_for_it: bool = False,
) -> list[int]:
    """Claim room for up to ``count`` ranks of ``group`` on instances of ``mask``, lowest numbers first; return where.

    ``taken`` are the instances of the job's other ranks. ``launched_for_it``: the job awaits those of ``mask``, which
    were the best to be had, whether or not its target is likely to be met there.
    """
    claimed = list[int]()
    if count <= 0 or not np.count_nonzero(mask):
        return claimed
    allowed = usable(context, group, mask)
    while len(claimed) < count:
        fitting = context.fleet.fitting(group.demand, allowed)
        there = suited_for_claim(context, group, fitting, [*taken, *claimed], at_any_size=launched_for_it)
        # Nearly always the first instance with room for the lower bound also has room for the actual size.
        at = next((at for at in there.nonzero()[0].tolist() if context.fleet.has_room(at, group.asks_on(at))), -1)
        if at < 0:
            break
        context.reservations.claim(group, at)
        claimed.append(at)
    return claimed


def suited_for_claim(
    context: PlanContext, group: JobGroup, mask: Mask, taken: Sequence[int], *, at_any_size: bool = False
) -> Mask:
    """Return the instances of ``mask`` for one more rank of ``group`` beside ``taken`` that suit it at some size.

    ``at_any_size``: even if no size there is likely to meet its target.
    """
    mask = beyond(context, group, mask, taken) if group.spreads else mask
    suit = context.suit if group.application else None
    mask = suit.suited(group.application, mask) if suit is not None else mask
    if suit is None or group.aim is None or at_any_size or not np.count_nonzero(mask):
        return mask
    return mask & suit.enough(group.application, group.aim)


def suits_company(context: PlanContext, group: JobGroup, company: Sequence[Job]) -> bool:
    """Return whether ``group`` and the jobs of ``company`` (one entry per rank) tolerate each other on an empty
    instance."""
    if context.suit is None or not company or not group.application:
        return True
    return context.suit.together(group.application, [job.application for job in company])
