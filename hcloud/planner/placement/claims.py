"""Claims: room promised to ranks of waiting jobs within a plan, before they are placed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcloud.core.model import Job, Reason
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import Mask
from hcloud.planner.placement.open_instances import beyond, usable


def claim(context: PlanContext, group: JobGroup, mask: Mask, count: int, taken: Sequence[int] = ()) -> list[int]:
    """Claim room for up to ``count`` ranks of ``group`` on instances of ``mask``, lowest numbers first; return where.

    ``taken`` are the instances of the job's other ranks.
    """
    claimed = list[int]()
    if count <= 0 or not np.count_nonzero(mask):
        return claimed
    allowed = usable(context, group, mask)
    while len(claimed) < count:
        there = suited_for_claim(context, group, context.fleet.fitting(group.demand, allowed), [*taken, *claimed])
        # Nearly always the first instance with room for the lower bound also has room for the actual size.
        at = next((at for at in there.nonzero()[0].tolist() if context.fleet.has_room(at, group.asks_on(at))), -1)
        if at < 0:
            break
        pledge(context, group, at)
        claimed.append(at)
    return claimed


def suited_for_claim(context: PlanContext, group: JobGroup, mask: Mask, taken: Sequence[int]) -> Mask:
    """Return the instances of ``mask`` for one more rank of ``group`` beside ``taken`` that suit it at some size."""
    mask = beyond(context, group, mask, taken) if group.spreads else mask
    suit = context.suit if group.application else None
    mask = suit.suited(group.application, mask) if suit is not None else mask
    if suit is None or group.aim is None or not np.count_nonzero(mask):
        return mask
    return mask & suit.enough(group.application, group.aim)


def pledge(context: PlanContext, group: JobGroup, at: int) -> None:
    """Claim room for one rank of ``group`` on instance ``at``."""
    context.fleet.room[:, at] -= context.amount_on(group, at)
    context.arrive(at, group)


def suits_company(context: PlanContext, group: JobGroup, company: Sequence[Job]) -> bool:
    """Return whether ``group`` and the jobs of ``company`` (one entry per rank) tolerate each other on an empty
    instance."""
    if context.suit is None or not company or not group.application:
        return True
    return context.suit.together(group.application, [job.application for job in company])


def unclaim(context: PlanContext, group: JobGroup, claimed: Sequence[int]) -> None:
    """Undo :func:`claim`."""
    for at in claimed:
        context.fleet.room[:, at] += context.amount_on(group, at)
        context.leave(at, group)


def pay_for_claims(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> Reason | None:
    """Book the claimed ``places`` to ``job``'s scopes; return the limit that forbids it, or None.

    Otherwise instances would be launched for the other ranks, and all would wait for money that is spent.
    """
    if not places or not context.ledger.watches_scopes:
        return None
    context.ledger = context.ledger.copy()
    for at in places:
        instance, held = context.fleet.instances[at], context.granted(group, at)
        refusal = context.ledger.placement_refusal(job, instance, held)
        if refusal is not None:
            return refusal
        context.ledger.book_placement(job, instance, held)
    return None
