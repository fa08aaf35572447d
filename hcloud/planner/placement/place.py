"""Place waiting jobs on running instances: in queue order, each on the instance that the policy's order prefers.

All ranks of a gang are placed, or none. If the order uses estimates, a job goes where it neither disturbs others nor is
disturbed. While no such instance has room it waits (:mod:`hcloud.planner.fit.arq`), and finally takes the one with the
least interference. Room on instances that a job awaits is held for it until it can start
(:mod:`hcloud.planner.placement.awaited_instances`).
"""

from __future__ import annotations

from collections.abc import Set

from hcloud.core.model import Job, JobState, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.sizing import ranks_for_target
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import JobQueue, QueueSegment, QueueWalk
from hcloud.planner.occupancy import RESERVES_ROOM
from hcloud.planner.placement.awaited_instances import awaited_places, requeue, settle
from hcloud.planner.placement.claims import suited_for_claim
from hcloud.planner.placement.find_places import add_place, find_places
from hcloud.planner.placement.going_down import goes_down, holds_out, lost_to_types, may_go_down, waits_by_order
from hcloud.planner.placement.open_instances import has_room_now, suited, usable
from hcloud.planner.placement.room_reservation import MOST_SOUGHT, reserve_room, urgent_jobs, waits_for_room
from hcloud.planner.placement.state import PlacementState


def place(state: PlacementState, promise: bool) -> None:
    """Place the queued jobs with a target, or without one; the rest stays in the queue."""
    context = state.context
    queue = context.waiting.queues[promise]
    for segment in queue.awaiting:
        segment.replace(settle(context, segment.first, segment.group))
    if promise:
        _hold_for_profiling(context)
    state.tried.clear()
    if promise and queue:
        _place_urgent(state, queue)
    if context.policy.admission.by_class:
        state.diverting = False
        _place_all(state, queue)
        state.diverting = True
    _place_all(state, queue)
    if queue.awaiting:
        _without_unpaid(state, queue)
    state.tried.clear()
    for segment in queue.segments:
        if segment.group.state.awaits_type:
            _await_type(state, queue, segment)


def _hold_for_profiling(context: PlanContext) -> None:
    """Hold ready instances for the profiling runs that they were launched for; else jobs with a target take them, and
    others are launched in their place."""
    for segment in context.waiting.queues[False].awaiting:
        if segment.first.spec.profile is not None:
            segment.replace(settle(context, segment.first, segment.group))


def _place_all(state: PlacementState, queue: JobQueue) -> None:
    """Place what can be placed, in order, and let those wait that their order lets wait."""
    context = state.context
    for segment, job in QueueWalk(queue).jobs(lambda segment: _is_hopeless(state, segment)):
        if _placed_now(state, job, segment.group):
            queue.remove(job, segment.group, segment)
        elif (reason := waits_by_order(state, job, segment.group)) is not None:
            queue.remove(job, segment.group, segment)
            segment.group.state.fits_now = True  # others of the group may have waited long enough
            context.decisions.wait(job, reason.code, lambda reason=reason: reason)  # type: ignore[misc]


def _is_hopeless(state: PlacementState, segment: QueueSegment) -> bool:
    """Return whether no job of ``segment`` can be placed any more, or would have room reserved."""
    context = state.context
    group, job = segment.group, segment.first
    if job.id in context.reservations.held:  # it may start where its group does not fit
        return False
    if group.state.stuck is not None:
        return True
    if group.state.may_reserve and waits_for_room(job):
        return False
    if not group.state.fits_now or context.reservations.user_cap(job) is not None:
        return True
    return not group.state.fits_well and not may_go_down(state, segment)


def _await_type(state: PlacementState, queue: JobQueue, segment: QueueSegment) -> None:
    """Let the jobs of ``segment`` wait for a better instance type if they could start without interference. No instance
    is launched for them, since there is room."""
    context = state.context
    group = segment.group
    if segment.awaits or not any(True for _ in queue.jobs_of(segment)):
        return
    group.state.awaits_type = bool(lost_to_types(state, group).any())
    if group.state.awaits_type:
        allowed = context.fleet.fitting_now(group.asks, usable(context, group, context.fleet.placeable))
        group.state.awaits_type = bool(suited_for_claim(context, group, allowed, ()).any())
    if not group.state.awaits_type:
        return
    why = "every machine with room and tolerable interference is of a worse type"
    for job in list(queue.jobs_of(segment)):
        queue.remove(job, segment.group, segment)
        context.decisions.wait(job, "holds_out", lambda job=job: holds_out(state, job, group, why))  # type: ignore[misc]


def _placed_now(state: PlacementState, job: Job, group: JobGroup) -> bool:
    # A job with room held for it may start where its group does not fit.
    context = state.context
    hopeful = group.state.stuck is None and (_may_fit(state, job, group) or job.id in context.reservations.held)
    placed = hopeful and context.reservations.user_cap(job) is None and place_now(state, job, group)
    # Only after an earlier plan launched no machine for it; else others would wait, though one is about to boot.
    if not placed and group.state.may_reserve and group.state.stuck is None and waits_for_room(job):
        reserve_first(state, job, group)
    return placed


def reserve_first(state: PlacementState, job: Job, group: JobGroup) -> None:
    """Reserve room for ``job`` if it is the first in order that needs it and has none reserved."""
    context = state.context
    if job.id in context.reservations.rooms:
        return
    group.state.may_reserve = False
    if state.reservations_sought < MOST_SOUGHT and all(each.urgent for each in context.reservations.rooms.values()):
        state.reservations_sought += 1
        _reserve(state, job, group)


def _reserve(
    state: PlacementState, job: Job, group: JobGroup, *, urgent: bool = False, ready_too: bool = False
) -> bool:
    context = state.context
    allowed = suited(context, group, context.fleet.placeable, reserved_too=True)
    reservation = reserve_room(state, job, group, allowed, urgent=urgent, ready_too=ready_too)
    if reservation is not None:
        context.reservations.reserve(job, reservation)
        # An instance that is idle until then costs money for nothing. What the job waits for may run for days, so idle
        # instances are kept for it only if the start is expected within one lease.
        if reservation.starts_in_s <= context.policy.lease.horizon_s:
            context.reservations.keep(*reservation.reserved)
    return reservation is not None


def _place_urgent(state: PlacementState, queue: JobQueue) -> None:
    """Place the jobs whose deadline comes near, or reserve room for them.

    They come before all others in order, but do not take room from the first that waits.
    """
    context = state.context
    urgent = urgent_jobs(context)
    if not urgent:
        return
    before = [
        (group, group.state.fits_now, group.state.fits_well, group.state.may_reserve)
        for group in context.waiting.groups.values()
    ]
    first = _reserve_provisionally(state, queue, {job.id for job in urgent})
    for job in urgent:
        group = context.group_of(job)
        group.state.may_reserve = False  # as the first in order
        if _placed_now(state, job, group):
            queue.remove(job, group)
        elif group.state.stuck is None:
            _reserve(state, job, group, urgent=True)
    context.reservations.unreserve(first)
    # What did not fit beside the first may fit in order.
    state.tried.clear()
    for group, fits_now, fits_well, may_reserve in before:
        group.state.fits_now, group.state.fits_well, group.state.may_reserve = fits_now, fits_well, may_reserve


def _reserve_provisionally(state: PlacementState, queue: JobQueue, urgent: Set[str]) -> str:
    """Reserve room for the first job in order that waits for it and is not urgent, until its turn comes; return it."""
    sought = 0

    def has_reserved(segment: QueueSegment) -> bool:
        return not (
            segment.group.state.may_reserve and segment.group.state.stuck is None and waits_for_room(segment.first)
        )

    for segment, job in QueueWalk(queue).jobs(has_reserved):
        if job.id not in urgent:
            segment.group.state.may_reserve, sought = False, sought + 1
            if _reserve(state, job, segment.group, ready_too=job.wait_code == RESERVES_ROOM):
                return job.id
            if sought == MOST_SOUGHT:
                break
    return ""


def _without_unpaid(state: PlacementState, queue: JobQueue) -> None:
    """Requeue jobs with all awaited instances ready, if their user or a tag can no longer pay for these, and place what
    can be placed then.

    This happens when prices rose or others spent the money. The last job is requeued first, since the ones before it
    may be able to pay then. Otherwise the instances would stay idle and reserved until they expire.
    """
    context = state.context
    while True:
        # The first job of a group with a scope that cannot pay marked the whole group; each job awaits instances of its
        # own.
        for segment in queue.awaiting:
            job, group = segment.first, segment.group
            if queue.has(job) and _unpaid(context, job, group) is not None:
                group.state.stuck = None
                if _placed_now(state, job, group):
                    queue.remove(job, segment.group, segment)
        left = [each for each in queue.awaiting if queue.has(each.first)]
        unpaid = [(each, why) for each in left if (why := _unpaid(context, each.first, each.group)) is not None]
        if not unpaid:
            return
        last, reason = unpaid[-1]
        last.replace(requeue(context, last.first, reason))
        for segment in queue.segments:
            segment.group.state.stuck = None
        _place_all(state, queue)


def _unpaid(context: PlanContext, job: Job, group: JobGroup) -> Reason | None:
    """Return why a scope of ``job`` cannot pay for the instances it awaits, if none of them is still booting."""
    if job.state is not JobState.AWAITING_INSTANCE or any(
        context.fleet.coming[at] for at in awaited_places(context, job)
    ):
        return None
    return group.state.stuck


def _may_fit(state: PlacementState, job: Job, group: JobGroup) -> bool:
    return group.state.fits_now and (group.state.fits_well or goes_down(state, job, group))


def place_now(state: PlacementState, job: Job, group: JobGroup, *, on_paid: frozenset[int] | None = None) -> bool:
    """Place ``job`` instead of what is held for it, and return True; or hold that again.

    ``on_paid``: on reserved instances of these types, however full, and on no others.
    """
    group.state.on_paid = on_paid
    try:
        return _place_now(state, job, group)
    finally:
        group.state.on_paid = None


def _place_now(state: PlacementState, job: Job, group: JobGroup) -> bool:
    context = state.context
    held = context.reservations.unhold(job)
    if not held and job.state is JobState.QUEUED and not has_room_now(context, group):
        _note_in_vain(state, job, group)
        return False
    context.reservations.unclaim(group, held)
    awaited = context.ledger.forget_awaited(job)
    wanted = ranks_to_start(context, job, group)
    places = find_places(state, job, group, group.needed, wanted, held)
    if places:
        add_place(state, job, group, range(len(places)), places)
        if job.state is not JobState.AWAITING_INSTANCE:
            context.reservations.count_active(job)
        return True
    if awaited is not None:
        context.ledger.remember_awaited(job, awaited)
    for at in held:
        context.reservations.claim(group, at)
    if held:
        context.reservations.hold(job, held)
    else:
        _note_in_vain(state, job, group)
    return False


def ranks_to_start(context: PlanContext, job: Job, group: JobGroup) -> int:
    """Return how many ranks of ``job`` start, and are worth a machine: those its target needs, and its minimum.

    Further ones join where room is left (:func:`hcloud.planner.correction.scaling.add_missing_ranks`).
    """
    if group.needed >= group.wanted:
        return group.wanted
    if context.suit is not None and job.spec.vcpus_within is not None and (aim := context.suit.aim_of(job)) is not None:
        return max(group.needed, min(group.wanted, aim.nodes))
    known = context.snapshot.applications.get(job.application)
    return ranks_for_target(job, known, context.now, context.policy.placement.confidence)


def _note_in_vain(state: PlacementState, job: Job, group: JobGroup) -> None:
    """Note for the rest of ``group`` that ``job`` found no room at all, or none that suits it."""
    if not group.application or goes_down(state, job, group):
        group.state.fits_now = False
    else:
        group.state.fits_well = False
