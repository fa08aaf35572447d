"""When a job that waits for suitable room accepts any (ARQ, Dissertation §6.3), and why it waits until then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hcloud.core.model import Job, JobState, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import Amounts, Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import QueueSegment
from hcloud.planner.placement.open_instances import suited, usable
from hcloud.planner.placement.order import WaitingOrder
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.text import seconds

_ROUNDING_S = 1e-3
"""Slack that may be lost to rounding."""


def may_go_down(state: PlacementState, segment: QueueSegment) -> bool:
    """Return whether any job of ``segment`` may accept unsuitable room (:func:`goes_down`)."""
    context = state.context
    if segment.late or context.suit is None or not segment.group.application:
        return segment.late
    if not state.diverting:
        return segment.first_late_at <= context.now + _ROUNDING_S
    within_s = 0.0 if segment.wait_code == "making_room" else state.down_within_s.get(segment.group)
    return within_s is None or segment.first_late_at <= context.now + within_s + _ROUNDING_S


def goes_down(state: PlacementState, job: Job, group: JobGroup) -> bool:
    """Return whether ``job`` now accepts any room, suitable or not (ARQ, Dissertation eq. 6.2). A job that awaits
    instances does not, since these suit it."""
    context = state.context
    if context.suit is None or not group.application or job.state is not JobState.QUEUED:
        return False
    if not state.diverting and not _overdue(context, job):
        return False
    if group not in state.down_within_s:
        state.down_within_s[group] = _down_within_s(state, context.suit, group)
    # While units are being stopped to make room for it, waiting is better as long as slack remains.
    return context.slack_left_s(job) <= (0.0 if job.wait_code == "making_room" else state.down_within_s[group])


def _room_now(state: PlacementState, group: JobGroup, among: Mask) -> Mask:
    """Return the instances of ``among`` with room that is open to ``group``, at the smallest size it may have."""
    context = state.context
    roomy = context.fleet.fitting_now(group.demand, among)
    return roomy & ~state.holdback.closed(group, roomy) if np.count_nonzero(roomy) else roomy


def _down_within_s(state: PlacementState, suit: Suitability, group: JobGroup) -> float:
    """Return the slack below which members of ``group`` accept the instance where one would be placed now."""
    context = state.context
    among = usable(context, group, context.fleet.placeable)
    roomy = _room_now(state, group, among)
    if not np.count_nonzero(roomy) and suit.sensitivity_of(group.application) is not None:
        return 0.0  # whatever size it would get there
    roomy = context.reservations.fitting_now(group, roomy)
    large, lost = among & context.fleet.large_enough(group.demand), lost_to_types(state, group)
    return suit.down_within_s(group.application, roomy, large, lost, context.quickest_s(group.resources))


def lost_to_types(state: PlacementState, group: JobGroup) -> Amounts:
    """Return the part of performance (0..1) ``group`` loses to the type of each instance, shape ``(N,)``.

    The loss is relative to the best type it may run on, busy or not. Without queues by quality it is 0, since a job
    then takes the best free instance.
    """
    context = state.context
    lost = state.lost.get(group)
    if lost is None:
        lost, by_quality = np.zeros(len(context.fleet.instances)), context.policy.admission.by_class
        if context.suit is not None and group.application and by_quality and context.suit.loses_to_types:
            among = suited(context, group, context.fleet.placeable) & context.fleet.large_enough(group.demand)
            lost = context.suit.type_losses(group.application, among)
        state.lost[group] = lost
    return lost


def waits_by_order(state: PlacementState, job: Job, group: JobGroup) -> Reason | None:
    """Return why the placement order lets ``job`` wait although there is room; None: there is none, or it does not."""
    context = state.context
    order = context.order_for(group)
    if not order.needs.waits or not isinstance(order, WaitingOrder):
        return None
    roomy = _room_now(state, group, usable(context, group, context.fleet.placeable))
    return order.wait(context, job, group, roomy) if np.count_nonzero(roomy) else None


def _overdue(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` has waited longer than ``admission.patience_cap_s``."""
    return context.now - context.queued_at(job) >= context.policy.admission.patience_cap_s


def holding_out(state: PlacementState, job: Job, group: JobGroup, refusal: Reason | None) -> Reason | None:
    """Return the reason to wait for a suitable instance, if unsuitable ones have room; else ``refusal``."""
    if refusal is None or not group.application or not group.state.fits_now or group.state.fits_well:
        return refusal
    why = "on every machine with room, interference would exceed what it or its neighbours tolerate"
    found = holds_out(state, job, group, why)
    numbers: dict[str, Number] = {**found.numbers, "refused": refusal.code, **refusal.numbers}
    return replace(found, text=f"{found.text}; no new machine: {refusal.text}", numbers=numbers)


def holds_out(state: PlacementState, job: Job, group: JobGroup, why: str) -> Reason:
    """Return the reason of a job that waits for suitable room, with the time until it accepts any."""
    context = state.context
    left_s, down_s = max(0.0, context.slack_left_s(job)), state.down_within_s.get(group, 0.0)
    numbers: dict[str, Number] = {
        "slack_left_s": round(left_s, 3),
        "goes_down_in_s": round(max(0.0, left_s - down_s), 3),
    }
    if context.suit is not None:
        roomy = context.reservations.fitting_now(
            group, _room_now(state, group, usable(context, group, context.fleet.placeable))
        )
        quality = context.suit.quality_going_down(group.application, roomy, lost_to_types(state, group))
        numbers |= {"quality_there": round(quality, 4)} if quality is not None else {}
    text = f"{why}; accepts one of them in {seconds(left_s - down_s)} at the latest"
    return Reason(code="holds_out", text=text, numbers=numbers)
