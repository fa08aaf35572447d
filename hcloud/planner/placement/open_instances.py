"""Which instances a group of jobs may use: by demands, hybrid mapping and reservations. Of these some are held back
(:mod:`hcloud.planner.placement.holdback`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.placement.room_reservation import open_beside


def usable(context: PlanContext, group: JobGroup, mask: Mask) -> Mask:
    """Return the instances of ``mask`` that ``group`` may use and, if it is exclusive, that are empty."""
    allowed = suited(context, group, mask)
    return allowed & context.fleet.unshared(context.fleet.room) if group.exclusive else allowed


def suited(context: PlanContext, group: JobGroup, mask: Mask, *, reserved_too: bool = False) -> Mask:
    """Return the instances of ``mask`` that ``group`` may use and that are good enough for it (hybrid mapping).

    ``reserved_too``: as if no room was reserved.
    """
    allowed, hybrid = permitted(context, group, mask, reserved_too=reserved_too), context.strategy.hybrid
    if group.company is not None:
        allowed = allowed & context.topology.without_conflicts(group.company)
    return allowed & hybrid.suits(group.mapping_need, group.resources) if hybrid is not None else allowed


def permitted(context: PlanContext, group: JobGroup, mask: Mask, *, reserved_too: bool = False) -> Mask:
    """Return the instances of ``mask`` with a market, type, GPUs, zone and labels that ``group`` may use now.

    ``reserved_too``: as if no room was reserved.
    """
    allowed = lastingly_permitted(context, group, mask)
    if context.reservations.closed_to_best_effort is not None and not group.promise:
        allowed = allowed & ~context.reservations.closed_to_best_effort
    if context.fleet.has_gpus and group.resources.gpus is None and _gpus_wanted(context):
        allowed = allowed & (context.fleet.room[3] < 1.0)
    if group.avoid:
        allowed = allowed & context.fleet.others_than(group.avoid)
    if group.urgency and context.late is not None:
        allowed = allowed & ~context.late.mask
    if context.reservations.rooms and not reserved_too:
        allowed = open_beside(context, group, allowed)
    return allowed


def _gpus_wanted(context: PlanContext) -> bool:
    """Return whether a job with GPUs waits, before which no other takes room beside GPUs that are free."""
    groups = context.waiting.groups.values()
    return any(each.resources.gpus is not None and each.state.pending > 0 for each in groups)


def lastingly_permitted(context: PlanContext, group: JobGroup, mask: Mask) -> Mask:
    """Return the instances of ``mask`` that ``group`` may use at some time: what bars it from the others stays."""
    allowed = mask if group.spot_ok else mask & context.fleet.steady
    if group.constraints is not None:
        allowed = allowed & context.topology.admitted(group.constraints)
    gpus, fleet = group.resources.gpus, context.fleet
    if group.instance_types or gpus is not None or fleet.has_gpus:
        allowed = allowed & fleet.of_kinds(group.instance_types, gpus)
    return allowed


def beyond(context: PlanContext, group: JobGroup, allowed: Mask, taken: Sequence[int]) -> Mask:
    """Return the instances of ``allowed`` for one more rank of a job that has ranks on ``taken``."""
    if group.constraints is not None and taken:
        allowed = allowed & context.topology.spread(group.constraints, taken)
    return allowed & context.topology.without_conflicts(group.company) if group.company is not None else allowed


def has_room_now(context: PlanContext, group: JobGroup) -> bool:
    """Return whether any instance has room for a rank of ``group``; a cheap check for a full cluster."""
    return bool(np.count_nonzero(context.fleet.fitting_now(group.demand, context.fleet.placeable)))
