"""Place waiting jobs on running instances: in queue order, each on the instance that the policy's order prefers.

All ranks of a gang are placed, or none. If the order uses estimates, a job goes where it neither disturbs others nor is
disturbed. While no such instance has room it waits (:mod:`hcloud.planner.fit.arq`), and finally takes the one with the
least interference. Room on instances that a job awaits is held for it (``context.holds``) until it can start.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from hcloud.core.model import Job, JobState, Number, Reason
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fit.sizing import ranks_for_target
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import Amounts, Mask
from hcloud.planner.instance_lifecycle import terminate_unrenewed
from hcloud.planner.job_queue import JobQueue, QueueSegment
from hcloud.planner.late_boots import requeue_reason
from hcloud.planner.occupancy import RESERVES_ROOM
from hcloud.planner.placement.claims import claim, pledge, suited_for_claim, unclaim
from hcloud.planner.placement.explain_choice import candidates_of, placement_reason
from hcloud.planner.placement.open_instances import beyond, closed, has_room_now, suited, usable
from hcloud.planner.placement.room_reservation import (
    MOST_SOUGHT,
    reserve_room,
    urgent_jobs,
    waits_for_room,
)
from hcloud.planner.plan import Place, RankPlacement
from hcloud.planner.text import seconds


def place(context: PlanContext, promise: bool) -> None:
    """Place the queued jobs with a target, or without one; the rest stays in the queue."""
    queue = context.queue[promise]
    for segment in queue.awaiting:
        segment.replace(_settle(context, segment.first, segment.group))
    context.tried.clear()
    if promise and queue:
        _place_urgent(context, queue)
    if context.policy.admission.queues == "by_quality":
        context.diverting = False
        _place_all(context, queue)
        context.diverting = True
    _place_all(context, queue)
    if queue.awaiting:
        _without_unpaid(context, queue)
    context.tried.clear()
    for segment in queue.segments:
        if segment.group.awaits_type:
            _await_type(context, queue, segment)


def _place_all(context: PlanContext, queue: JobQueue) -> None:
    """Place what can be placed, in order."""
    for segment, job in queue.walk(lambda segment: _is_hopeless(context, segment)):
        if _placed_now(context, job, segment.group):
            queue.remove(job, segment)


def _is_hopeless(context: PlanContext, segment: QueueSegment) -> bool:
    """Return whether no job of ``segment`` can be placed any more, or would have room reserved."""
    group, job = segment.group, segment.first
    if job.id in context.holds:  # it may start where its group does not fit
        return False
    if group.stuck is not None:
        return True
    if group.may_reserve and waits_for_room(job):
        return False
    if not group.fits_now or context.user_cap(job) is not None:
        return True
    return not group.fits_well and not _may_go_down(context, segment)


def _may_go_down(context: PlanContext, segment: QueueSegment) -> bool:
    """Return whether any job of ``segment`` may accept unsuitable room (:func:`_goes_down`)."""
    if segment.late or context.suit is None or not segment.group.application:
        return segment.late
    if not context.diverting:
        return segment.first_late_at <= context.now + _ROUNDING_S
    within_s = 0.0 if segment.wait_code == "making_room" else segment.group.down_within_s
    return within_s is None or segment.first_late_at <= context.now + within_s + _ROUNDING_S


_ROUNDING_S = 1e-3
"""Slack that may be lost to rounding."""


def _await_type(context: PlanContext, queue: JobQueue, segment: QueueSegment) -> None:
    """Let the jobs of ``segment`` wait for a better instance type if they could start without interference. No instance
    is launched for them, since there is room."""
    group = segment.group
    if segment.awaits or not any(True for _ in queue.jobs_of(segment)):
        return
    group.awaits_type = bool(_lost_to_types(context, group).any())
    if group.awaits_type:
        allowed = context.fleet.fitting_now(group.asks, usable(context, group, context.fleet.placeable))
        group.awaits_type = bool(suited_for_claim(context, group, allowed, ()).any())
    if not group.awaits_type:
        return
    why = "every machine with room and tolerable interference is of a worse type"
    for job in list(queue.jobs_of(segment)):
        group.pending -= 1
        queue.remove(job, segment)
        context.wait(job, "holds_out", lambda job=job: _holds_out(context, job, group, why))  # type: ignore[misc]


def _placed_now(context: PlanContext, job: Job, group: JobGroup) -> bool:
    # A job with room held for it may start where its group does not fit.
    hopeful = group.stuck is None and (_may_fit(context, job, group) or job.id in context.holds)
    placed = hopeful and context.user_cap(job) is None and place_now(context, job, group)
    group.pending -= placed
    # Only after an earlier plan launched no machine for it; else others would wait, though one is about to boot.
    if not placed and group.may_reserve and group.stuck is None and waits_for_room(job):
        reserve_first(context, job, group)
    return placed


def reserve_first(context: PlanContext, job: Job, group: JobGroup) -> None:
    """Reserve room for ``job`` if it is the first in order that needs it and has none reserved."""
    if job.id in context.reservations:
        return
    group.may_reserve = False
    if context.reservations_sought < MOST_SOUGHT and all(each.urgent for each in context.reservations.values()):
        context.reservations_sought += 1
        _reserve(context, job, group)


def _reserve(context: PlanContext, job: Job, group: JobGroup, *, urgent: bool = False, ready_too: bool = False) -> bool:
    allowed = suited(context, group, context.fleet.placeable, reserved_too=True)
    reservation = reserve_room(context, job, group, allowed, urgent=urgent, ready_too=ready_too)
    if reservation is not None:
        context.reservations[job.id] = reservation
        # An instance that is idle until then costs money for nothing. What the job waits for may run for days, so idle
        # instances are kept for it only if the start is expected within one lease.
        if reservation.starts_in_s <= context.policy.lease.horizon_s:
            context.used.update(reservation.reserved)
    return reservation is not None


def _place_urgent(context: PlanContext, queue: JobQueue) -> None:
    """Place the jobs whose deadline comes near, or reserve room for them.

    They come before all others in order, but do not take room from the first that waits.
    """
    urgent = urgent_jobs(context)
    if not urgent:
        return
    before = [(group, group.fits_now, group.fits_well, group.may_reserve) for group in context.groups.values()]
    first = _reserve_provisionally(context, queue, {job.id for job in urgent})
    for job in urgent:
        group = context.group_of(job)
        group.may_reserve = False  # as the first in order
        if _placed_now(context, job, group):
            queue.remove(job)
        elif group.stuck is None:
            _reserve(context, job, group, urgent=True)
    context.reservations.pop(first, None)
    # What did not fit beside the first may fit in order.
    context.tried.clear()
    for group, fits_now, fits_well, may_reserve in before:
        group.fits_now, group.fits_well, group.may_reserve = fits_now, fits_well, may_reserve


def _reserve_provisionally(context: PlanContext, queue: JobQueue, urgent: Set[str]) -> str:
    """Reserve room for the first job in order that waits for it and is not urgent, until its turn comes; return it."""
    sought = 0

    def has_reserved(segment: QueueSegment) -> bool:
        return not (segment.group.may_reserve and segment.group.stuck is None and waits_for_room(segment.first))

    for segment, job in queue.walk(has_reserved):
        if job.id not in urgent:
            segment.group.may_reserve, sought = False, sought + 1
            if _reserve(context, job, segment.group, ready_too=job.wait_code == RESERVES_ROOM):
                return job.id
            if sought == MOST_SOUGHT:
                break
    return ""


def _without_unpaid(context: PlanContext, queue: JobQueue) -> None:
    """Requeue jobs with all awaited instances ready, if their user or a tag can no longer pay for these, and place what
    can be placed then.

    This happens when prices rose or others spent the money. The last job is requeued first, since the ones before it
    may be able to pay then. Otherwise the instances would stay idle and reserved until they expire.
    """
    while True:
        # The first job of a group with a scope that cannot pay marked the whole group; each job awaits instances of its
        # own.
        for segment in queue.awaiting:
            job, group = segment.first, segment.group
            if queue.has(job) and _unpaid(context, job, group) is not None:
                group.stuck = None
                if _placed_now(context, job, group):
                    queue.remove(job, segment)
        left = [each for each in queue.awaiting if queue.has(each.first)]
        unpaid = [(each, why) for each in left if (why := _unpaid(context, each.first, each.group)) is not None]
        if not unpaid:
            return
        last, reason = unpaid[-1]
        last.replace(requeue(context, last.first, reason))
        for segment in queue.segments:
            segment.group.stuck = None
        _place_all(context, queue)


def _unpaid(context: PlanContext, job: Job, group: JobGroup) -> Reason | None:
    """Return why a scope of ``job`` cannot pay for the instances it awaits, if none of them is still booting."""
    if job.state is not JobState.AWAITING_INSTANCE or any(
        context.fleet.coming[at] for at in awaited_places(context, job)
    ):
        return None
    return group.stuck


def _may_fit(context: PlanContext, job: Job, group: JobGroup) -> bool:
    return group.fits_now and (group.fits_well or _goes_down(context, job, group))


def _goes_down(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Return whether ``job`` now accepts any room, suitable or not (ARQ, Dissertation eq. 6.2). A job that awaits
    instances does not, since these suit it."""
    if context.suit is None or not group.application or job.state is not JobState.QUEUED:
        return False
    if not context.diverting and not _overdue(context, job):
        return False
    if group.down_within_s is None:
        group.down_within_s = _down_within_s(context, context.suit, group)
    # While units are being stopped to make room for it, waiting is better as long as slack remains.
    return context.slack_left_s(job) <= (0.0 if job.wait_code == "making_room" else group.down_within_s)


def _room_now(context: PlanContext, group: JobGroup, among: Mask) -> Mask:
    """Return the instances of ``among`` with room that is open to ``group``, at the smallest size it may have."""
    roomy = context.fleet.fitting_now(group.demand, among)
    return roomy & ~closed(context, group, roomy) if np.count_nonzero(roomy) else roomy


def _down_within_s(context: PlanContext, suit: Suitability, group: JobGroup) -> float:
    """Return the slack below which members of ``group`` accept the instance where one would be placed now."""
    among = usable(context, group, context.fleet.placeable)
    roomy = _room_now(context, group, among)
    if not np.count_nonzero(roomy) and suit.sensitivity_of(group.application) is not None:
        return 0.0  # whatever size it would get there
    roomy = context.fitting_now(group, roomy)
    large, lost = among & context.fleet.large_enough(group.demand), _lost_to_types(context, group)
    return suit.down_within_s(group.application, roomy, large, lost, context.quickest_s(group))


def _lost_to_types(context: PlanContext, group: JobGroup) -> Amounts:
    """Return the part of performance (0..1) ``group`` loses to the type of each instance, shape ``(N,)``.

    The loss is relative to the best type it may run on, busy or not. Without queues by quality it is 0, since a job
    then takes the best free instance.
    """
    if group.lost is None:
        group.lost, by_quality = np.zeros(len(context.fleet.instances)), context.policy.admission.queues == "by_quality"
        if context.suit is not None and group.application and by_quality and context.suit.loses_to_types:
            among = suited(context, group, context.fleet.placeable) & context.fleet.large_enough(group.demand)
            group.lost = context.suit.type_losses(group.application, among)
    return group.lost


def _overdue(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` has waited longer than ``admission.patience_cap_s``."""
    return context.now - context.queued_at(job) >= context.policy.admission.patience_cap_s


def holding_out(context: PlanContext, job: Job, group: JobGroup, refusal: Reason | None) -> Reason | None:
    """Return the reason to wait for a suitable instance, if unsuitable ones have room; else ``refusal``."""
    if refusal is None or not group.application or not group.fits_now or group.fits_well:
        return refusal
    why = "on every machine with room, interference would exceed what it or its neighbours tolerate"
    found = _holds_out(context, job, group, why)
    numbers: dict[str, Number] = {**found.numbers, "refused": refusal.code, **refusal.numbers}
    return replace(found, text=f"{found.text}; no new machine: {refusal.text}", numbers=numbers)


def _holds_out(context: PlanContext, job: Job, group: JobGroup, why: str) -> Reason:
    left_s, down_s = max(0.0, context.slack_left_s(job)), group.down_within_s or 0.0
    numbers: dict[str, Number] = {
        "slack_left_s": round(left_s, 3),
        "goes_down_in_s": round(max(0.0, left_s - down_s), 3),
    }
    if context.suit is not None:
        roomy = context.fitting_now(group, _room_now(context, group, usable(context, group, context.fleet.placeable)))
        quality = context.suit.quality_going_down(group.application, roomy, _lost_to_types(context, group))
        numbers |= {"quality_there": round(quality, 4)} if quality is not None else {}
    text = f"{why}; accepts one of them in {seconds(left_s - down_s)} at the latest"
    return Reason(code="holds_out", text=text, numbers=numbers)


# ----------------------------------------------------------------------------------------------------- awaited machines
def awaited_places(context: PlanContext, job: Job) -> list[int]:
    """Return the instances ``job`` awaits, one entry per rank to run there."""
    return [context.fleet.index[i] for i in job.awaiting if i in context.fleet.index]


def _settle(context: PlanContext, job: Job, group: JobGroup) -> Job:
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
    unclaim(context, context.group_of(job), context.holds.pop(job.id, []))
    context.ledger.forget_awaited(job)
    context.count_active(job, -1)
    return context.enqueue(job, reason)


def _hold(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Hold room for ``job`` on the instances it awaits, and for other ranks of a gang on ready ones.

    Returns False and holds nothing if even booting instances cannot provide the rest.
    """
    fleet, held = context.fleet, context.holds.pop(job.id, [])
    held += _claim_each(context, group, [at for at in awaited_places(context, job) if not fleet.coming[at]], held)
    held += claim(context, group, fleet.placeable, group.needed - len(held), held)
    more = claim(context, group, fleet.coming, group.needed - len(held), held)
    unclaim(context, group, more)
    if len(held) + len(more) < group.needed:
        unclaim(context, group, held)
        return False
    if held:
        context.holds[job.id] = held
    return True


def hold_booting_capacity(context: PlanContext) -> None:
    """Hold booting instances for the jobs they were launched for, before other jobs claim what is left of them."""
    for segment in (*context.queue[True].awaiting, *context.queue[False].awaiting):
        job = segment.first
        coming = [at for at in awaited_places(context, job) if context.fleet.coming[at]]
        context.holds[job.id] = _claim_each(context, segment.group, coming)


def _claim_each(context: PlanContext, group: JobGroup, places: Sequence[int], taken: Sequence[int] = ()) -> list[int]:
    """Claim room for one rank on each of ``places`` that has it; return these. ``taken`` are the job's other ranks."""
    one, claimed = np.zeros(len(context.fleet.instances), dtype=np.bool_), list[int]()
    for at in places:
        # Others may have filled the instance meanwhile.
        if context.fleet.has_room(at, group.demand):
            one[at] = True
            claimed += claim(context, group, one, 1, [*taken, *claimed])
            one[at] = False
    return claimed


# -------------------------------------------------------------------------------------------------------------- placing
def place_now(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Place ``job`` instead of what is held for it, and return True; or hold that again."""
    held = context.holds.pop(job.id, [])
    if not held and job.state is JobState.QUEUED and not has_room_now(context, group):
        _note_in_vain(context, job, group)
        return False
    unclaim(context, group, held)
    awaited = context.ledger.forget_awaited(job)
    wanted = ranks_to_start(context, job, group)
    places = find_places(context, job, group, group.needed, wanted, held)
    if places:
        add_place(context, job, group, range(len(places)), places)
        if job.state is not JobState.AWAITING_INSTANCE:
            context.count_active(job)
        return True
    if awaited is not None:
        context.ledger.remember_awaited(job, awaited)
    for at in held:
        pledge(context, group, at)
    if held:
        context.holds[job.id] = held
    else:
        _note_in_vain(context, job, group)
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


def _note_in_vain(context: PlanContext, job: Job, group: JobGroup) -> None:
    """Note for the rest of ``group`` that ``job`` found no room at all, or none that suits it."""
    if not group.application or _goes_down(context, job, group):
        group.fits_now = False
    else:
        group.fits_well = False


def find_places(
    context: PlanContext, job: Job, group: JobGroup, needed: int, wanted: int, held: Sequence[int] = ()
) -> list[int]:
    """Return instances for up to ``wanted`` ranks, booked and paid; empty if fewer than ``needed`` ranks fit."""
    while True:
        if context.suit is not None:
            context.suit.aim_at(job, group.aim)
        # Where nothing suited the last member of the group, nothing suits this one.
        hopeful, present = group.fits_well or held or needed < group.needed, _present(context, job, group)
        choosy = job.state is JobState.QUEUED
        places = (
            _search(context, group, wanted, held, present, choosy=choosy, among=_news(context, job)) if hopeful else []
        )
        if hopeful and not places and context.suit is not None:
            context.tried[job.id] = len(context.suit.changed)
        if len(places) < needed and _goes_down(context, job, group):
            _search_down(context, group, needed, places, present)
        if len(places) >= needed and _pay(context, job, group, places):
            return places
        for at in places:
            _unuse(context, group, at)
        if len(places) < needed or group.stuck is not None:
            return []


def _news(context: PlanContext, job: Job) -> Mask:
    """Return the usable instances that changed since ``job`` found no room in this stage.

    All others are as they were or, as reserved instances fill up, closed by now. This does not hold where reserved room
    is held back for jobs that pay more elsewhere, as less is held back when fewer wait.
    """
    seen, fleet = context.tried.get(job.id), context.fleet
    if seen is None or context.suit is None or context.strategy.hybrid is None:
        return fleet.placeable
    changed = np.zeros_like(fleet.placeable)
    changed[list(context.suit.changed[seen:])] = True
    return changed & fleet.placeable


def _present(context: PlanContext, job: Job, group: JobGroup) -> list[int]:
    """Return where ``job`` has units already, if that restricts its missing ranks."""
    held = job.attempt.allocations if job.attempt is not None and group.spreads else ()
    return [context.fleet.index[a.instance_id] for a in held if not a.released and a.instance_id in context.fleet.index]


def _search(
    context: PlanContext,
    group: JobGroup,
    wanted: int,
    held: Sequence[int],
    present: Sequence[int],
    *,
    choosy: bool,
    among: Mask,
) -> list[int]:
    """Return the preferred instances of ``among`` for up to ``wanted`` ranks, those in ``held`` first.

    Otherwise room would have been held back from earlier jobs without need. ``present`` are the instances of other
    ranks; ``choosy`` requires a suitable type.
    """
    fleet, places = context.fleet, list[int]()
    # Most jobs that wait find nothing, whatever is closed to them: check that first.
    roomy = fleet.fitting_now(group.demand, among)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, roomy)
    if not np.count_nonzero(roomy):
        return places
    roomy = usable(context, group, roomy)
    if group.exclusive:
        roomy = roomy & fleet.unshared(fleet.free)
    if choosy and np.count_nonzero(roomy):
        roomy = roomy & (_lost_to_types(context, group) <= context.policy.placement.tolerance)
    if not np.count_nonzero(roomy):
        return places
    own, allowed = [], roomy & ~closed(context, group, roomy)
    if held:
        own = [np.zeros(len(fleet.instances), dtype=np.bool_)]
        own[0][list(held)] = True
        allowed |= roomy & own[0]
    if np.count_nonzero(allowed):
        for mask in [allowed & mask for mask in own] + _paid_first(context, allowed):
            _fill(context, group, mask, wanted, places, present, roomy=True)
    return places


def _search_down(context: PlanContext, group: JobGroup, needed: int, places: list[int], present: Sequence[int]) -> None:
    """Extend ``places`` to ``needed`` by the instances with the least interference; best effort considers only its
    own."""
    for mask in _open_now(context, group):
        _fill(context, group, mask, needed, places, present, neighbours_too=group.promise)


def _fill(
    context: PlanContext,
    group: JobGroup,
    allowed: Mask,
    wanted: int,
    places: list[int],
    present: Sequence[int],
    neighbours_too: bool | None = None,
    *,
    roomy: bool = False,
) -> None:
    """Extend ``places`` to ``wanted`` by the preferred instances of ``allowed``.

    ``roomy``: all of them suit, and have room for the lower bound of one rank.
    """
    while len(places) < wanted:
        left = beyond(context, group, allowed, [*present, *places]) if group.spreads else allowed
        at = _preferred(context, group, left, neighbours_too, roomy=roomy and not places)
        if at < 0:
            break
        _use(context, group, at)
        places.append(at)


def _preferred(
    context: PlanContext, group: JobGroup, allowed: Mask, neighbours_too: bool | None, *, roomy: bool = False
) -> int:
    """Return the instance of ``allowed`` for a rank of ``group`` that the policy's order prefers, or -1."""
    if group.unsized and not roomy:
        # The lower bound mostly shows that there is no room at any size.
        allowed = context.fleet.fitting_now(group.demand, allowed)
        if neighbours_too is None:
            allowed = context.suitability.suited(group.application, allowed)
        if not np.count_nonzero(allowed):
            return -1
    fits = allowed if roomy and group.portions is None else context.fitting_now(group, allowed)
    if not np.count_nonzero(fits):
        return -1
    return context.order_for(group).choose(context, group, fits, neighbours_too)


def _use(context: PlanContext, group: JobGroup, at: int) -> None:
    context.fleet.use(at, context.amount_on(group, at))
    context.arrive(at, group)


def _unuse(context: PlanContext, group: JobGroup, at: int) -> None:
    context.fleet.unuse(at, context.amount_on(group, at))
    context.leave(at, group)


def _open_now(context: PlanContext, group: JobGroup) -> list[Mask]:
    """Return where units of ``group`` may start now, in order of preference."""
    roomy = usable(context, group, context.fleet.fitting_now(group.demand, context.fleet.placeable))
    return _paid_first(context, roomy & ~closed(context, group, roomy) if np.count_nonzero(roomy) else roomy)


def _paid_first(context: PlanContext, mask: Mask) -> list[Mask]:
    """Return ``mask`` in order of preference: reserved instances first, so that rented ones become idle and are
    released."""
    reserved = context.fleet.reserved
    return [mask & reserved, mask & ~reserved] if context.fleet.partly_reserved else [mask]


def _pay(context: PlanContext, job: Job, group: JobGroup, places: list[int]) -> bool:
    """Book ``places`` to the job's scopes, and renewals of idle instances near the end of their lease.

    Returns False if one is refused. Then either ``group.stuck`` is a user's or tag's limit, or an instance that cannot
    be renewed is no longer placeable, and another search may find others.
    """
    lazy = sorted(context.lazy.intersection(places))
    if not lazy and not context.ledger.watches_scopes:
        return True
    trial = context.ledger.copy()
    for at in lazy:
        refusal = trial.renewal_refusal(context.fleet.instances[at], context.renewed_until_at, {})
        if refusal is not None:
            terminate_unrenewed(context, at, refusal[0])
            return False
        trial.book_renewal(context.fleet.instances[at], context.renewed_until_at, {})
    for at in places:
        held = context.granted(group, at)
        group.stuck = trial.placement_refusal(job, context.fleet.instances[at], held)
        if group.stuck is not None:
            return False
        trial.book_placement(job, context.fleet.instances[at], held)
    context.ledger = trial
    for at in lazy:
        context.renew(at)
    context.lazy.difference_update(lazy)
    return True


def add_place(context: PlanContext, job: Job, group: JobGroup, ranks: Sequence[int], places: Sequence[int]) -> None:
    """Add the placement of ``ranks`` of ``job`` on the instances ``places`` to the plan, with its reason."""
    instances = context.fleet.instances
    placements = tuple(
        RankPlacement(rank=rank, instance_id=instances[at].id, resources=context.granted(group, at))
        for rank, at in zip(ranks, places, strict=True)
    )
    context.used.update(places)
    candidates = candidates_of(context, job, group, places[0])
    reason = placement_reason(context, job, group, places)
    context.add(Place(job_id=job.id, ranks=placements, reason=reason, candidates=candidates))
