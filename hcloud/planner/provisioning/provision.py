"""Provide room for jobs that found none: wait for room that is coming, evict best effort, or launch; else record why.

Each unplaced job, in queue order, claims room in this order: on running instances, as their stopping units will free
it; on booting instances; by evicting best-effort jobs, where that loses less than a launch costs; on instances that
this plan launches; by evicting, if nothing can be launched. Nothing is evicted beside free room that is held back only
because a launch would be cheaper. Claims are not stored: every plan makes them again in the same order, and so never
launches twice for the same need.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from hcloud.core.model import Instance, Job, JobState, Number, Reason
from hcloud.core.pricing import HOUR_S
from hcloud.planner.budget import CAPPED, cap_reached
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, Mask, fits_any
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import QueueSegment, QueueWalk
from hcloud.planner.late_boots import requeue_reason
from hcloud.planner.market import open_market
from hcloud.planner.placement.awaited_instances import awaited_places, requeue
from hcloud.planner.placement.claims import claim
from hcloud.planner.placement.explain_choice import exclusion_reason
from hcloud.planner.placement.going_down import holding_out
from hcloud.planner.placement.holdback import open_holdback
from hcloud.planner.placement.open_instances import has_room_now, permitted
from hcloud.planner.placement.place import place_now, reserve_first
from hcloud.planner.placement.room_reservation import BOOTING, NOT_FOR_ROOM, WAITS_FOR_RESERVED, reservation_reason
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.plan import Finish
from hcloud.planner.provisioning.buying import buy, launch_action
from hcloud.planner.provisioning.eviction import evict_for, find_evictable, no_candidates, put_back, stop_chosen
from hcloud.planner.provisioning.make_room import idle_instances, make_room
from hcloud.planner.provisioning.state import ProvisioningState
from hcloud.planner.text import deadline_numbers, seconds


def start_provisioning(context: PlanContext) -> ProvisioningState:
    """Prepare the stage, placement included; to be called once, before anything is placed."""
    context.fleet.expect_release(context.decisions.stopping, context.snapshot.plan_cache.occupancy.surplus)
    groups = list(context.waiting.groups.values())
    # Only jobs with a target may evict.
    victims = find_evictable(context) if any(group.promise for group in groups) else no_candidates(context)
    offer_market = open_market(context)
    placement = PlacementState(context=context, holdback=open_holdback(context, offer_market))
    state = ProvisioningState(
        context=context, placement=placement, offer_market=offer_market, victims=victims, groups=groups
    )
    alike: dict[tuple[object, ...], list[JobGroup]] = {}
    for group in state.groups:
        where = (group.instance_types, group.resources.gpus, group.constraints)
        key = (group.spot_ok, *where, group.exclusive, group.urgency > 0)
        alike.setdefault(key, []).append(group)
    for groups in alike.values():
        _rule_out(state, groups)
    return state


def _rule_out(state: ProvisioningState, groups: Sequence[JobGroup]) -> None:
    """Note for ``groups`` with the same permitted markets and types whether they can fit now, later, or on any
    offer."""
    if groups:
        context, offer_market = state.context, state.offer_market
        sizes = offer_market.capacity[offer_market.permitted(groups[0])]
        demands = np.array([group.demand for group in groups])
        allowed = permitted(context, groups[0], context.fleet.placeable | context.fleet.coming)
        if groups[0].exclusive:
            allowed = allowed & context.fleet.unshared(context.fleet.room)
        now = context.fleet.fits_somewhere(demands, allowed & context.fleet.placeable)
        coming = bool((allowed & ~context.fleet.placeable).any())
        later = context.fleet.fits_somewhere(demands, allowed) if coming else now
        offered = fits_any(demands, sizes)
        for at, group in enumerate(groups):
            group.state.fits_now, group.state.fits_later, group.state.offered = (
                bool(now[at]),
                bool(later[at]),
                bool(offered[at]),
            )


def provision(state: ProvisioningState, promise: bool) -> None:
    """Serve the jobs with a target that are left in the queue, or those without one: claim, evict, plan launches (see
    :func:`launch`), or record why a job waits."""
    context, queue = state.context, state.context.waiting.queues[promise]
    capped = dict[str, list[QueueSegment]]()

    def is_decided(segment: QueueSegment) -> bool:
        job, group = segment.first, segment.group
        if not _is_decided(context, segment):
            return False
        rest = walk.rest(segment)
        queue.decide(group, rest)
        if context.reservations.user_cap(job) is not None:
            capped.setdefault(job.spec.user, []).append(segment)
        elif group.state.stuck is not None and group.state.stuck.code == CAPPED:
            state.capped[group] = state.capped.get(group, 0) + rest
        return True

    walk = QueueWalk(queue)
    for segment, job in walk.jobs(is_decided):
        queue.decide(segment.group)
        _provide(state, job, segment.group)
        user = job.spec.user
        if user in capped and context.reservations.user_cap(job) is None:
            for each in capped.pop(user):
                walk.resume(each)
                queue.decide(each.group, -walk.rest(each))


def _is_decided(context: PlanContext, segment: QueueSegment) -> bool:
    """Return whether all jobs left of ``segment`` wait for the reason for which they waited before."""
    group, wait_code = segment.group, segment.wait_code
    if segment.awaits:
        return False
    if (refusal := context.reservations.user_cap(segment.first)) is not None:
        return refusal.code == wait_code
    if group.state.stuck is None or group.state.stuck.code != wait_code or wait_code == "impossible":
        return False
    if group.state.may_reserve and wait_code not in NOT_FOR_ROOM:
        return False
    rows = context.snapshot.plan_cache.occupancy.rows
    return not any(
        each.group is group and rows[job_id].wait_code == wait_code
        for job_id, each in context.reservations.rooms.items()
    )


def _provide(state: ProvisioningState, job: Job, group: JobGroup) -> None:
    """Serve one job that placement left over, or record why it waits."""
    context = state.context
    if job.state is JobState.AWAITING_INSTANCE:
        if _still_served(state, job, group):
            return
        job = requeue(context, job, requeue_reason(job, context.late))
    if (capped := context.reservations.user_cap(job)) is not None:
        _give_reason(context, job, capped)
        return
    if group.state.stuck is None:
        refusal = _closed(state, group) or _serve(state, job, group)
        group.state.stuck = exclusion_reason(context, group, holding_out(state.placement, job, group, refusal))
    if group.state.stuck is not None and group.state.stuck.code == CAPPED:
        state.capped[group] = state.capped.get(group, 0) + 1
        state.first_capped = state.first_capped or job
    if group.state.may_reserve and group.state.stuck is not None and group.state.stuck.code not in NOT_FOR_ROOM:
        reserve_first(state.placement, job, group)
    if (reservation := context.reservations.rooms.get(job.id)) is not None:
        if group.state.stuck is None or group.state.stuck.code in NOT_FOR_ROOM:
            # A machine is launched or emptied for it, or room is not what it lacks.
            context.reservations.unreserve(job.id)
        else:
            reason = reservation_reason(context, reservation, group.state.stuck)
            names = tuple(context.fleet.instances[at].id for at in sorted(reservation.reserved))
            context.decisions.wait(job, reason.code, lambda: reason, reserved=names)
            return
    if group.state.stuck is not None and (
        job.wait_code != group.state.stuck.code or group.state.stuck.code == "impossible"
    ):
        _give_reason(context, job, group.state.stuck)


def expand(state: ProvisioningState) -> None:
    """Plan instances for the missing nodes of running jobs that miss their target, as correction decided."""
    context, index = state.context, state.context.fleet.index
    for job in context.decisions.growing_on_new:
        held = job.attempt.allocations if job.attempt is not None else ()
        present = [index[each.instance_id] for each in held if not each.released and each.instance_id in index]
        ledger = context.ledger
        if buy(state, job, context.group_of(job), present) is None:
            context.reservations.count_active(job, -1)  # it is counted already
        else:
            context.reservations.adopt(ledger)


def launch(state: ProvisioningState) -> None:
    """Add the launches of the planned instances to the plan."""
    for machine in state.machines:
        state.context.decisions.add(launch_action(state, machine))


def _closed(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason common to all jobs if nothing can be claimed, launched or terminated. This keeps a long queue
    cheap."""
    if group.state.fits_later or not group.state.offered:
        return None
    if state.closed is None:
        context, alive = state.context, state.context.ledger.instances
        limit, ending = context.policy.caps.max_instances, alive > len(context.fleet.staying)
        if alive >= limit and not (
            ending or context.decisions.terminating or state.victims.amounts.any() or idle_instances(state)
        ):
            state.closed = cap_reached("instances", "machines running or launching", alive, 1, limit)
    return state.closed


def _give_reason(context: PlanContext, job: Job, reason: Reason) -> None:
    if reason.code == "impossible":
        context.decisions.add(Finish(job_id=job.id, state=JobState.FAILED, reason=reason))
    else:
        context.decisions.wait(job, reason.code, lambda: reason)


def _serve(state: ProvisioningState, job: Job, group: JobGroup) -> Reason | None:
    """Claim room for one job and return None; or change nothing and return why no job of its group can be served."""
    context, needed, claimable = state.context, group.needed, _claimable(state, group)
    evicts = group.promise and state.victims.amounts.any() and not _spares_room(state, group)
    # Most jobs find nothing to claim and have nothing to undo.
    may_claim = evicts or claimable.any() or context.fleet.coming.any()
    before = context.reservations.mark() if may_claim else None
    ledger, running = context.ledger, claim(context, group, claimable, needed)
    coming = claim(context, group, context.fleet.coming, needed - len(running), running)
    if len(running) + len(coming) == needed:
        context.reservations.keep(*running)
        _wait_for_claims(context, job, running, coming)
        return None
    served = len(running) + len(coming)
    if evicts:
        context.reservations.unclaim(group, coming)
        if _evict_for(state, job, group, running, unless_dearer=True):
            return None
        coming = claim(context, group, context.fleet.coming, needed - len(running), running)
    state.refused = None
    refusal = context.reservations.book_claims(job, group, [*running, *coming])
    refusal = refusal or buy(state, job, group, [*running, *coming])
    if refusal is None:
        context.reservations.keep(*running)
        return None
    if before is not None:
        context.reservations.back_to(before)
    context.reservations.adopt(ledger)
    if evicts:
        running = claim(context, group, claimable, needed)
        if _evict_for(state, job, group, running, unless_dearer=False):
            return None
        context.reservations.unclaim(group, running)
    if _lift(state, job, group, refusal):
        return None
    return make_room(state, job, needed - served, refusal)


def _claimable(state: ProvisioningState, group: JobGroup) -> Mask:
    """Return the running instances with room that ``group`` may wait for: not those that are free but closed to it."""
    context, fleet = state.context, state.context.fleet
    roomy = fleet.fitting(group.demand, fleet.placeable)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, roomy)
    places = roomy.nonzero()[0]
    if not places.size:  # nothing to claim, whatever is closed
        return roomy
    return state.running & roomy & ~state.placement.holdback.closed(group, _free_now(state, group, roomy))


def _free_now(state: ProvisioningState, group: JobGroup, roomy: Mask) -> Mask:
    """Return the instances of ``roomy`` with room that is free for a rank of ``group`` now."""
    fleet, places = state.context.fleet, roomy.nonzero()[0]
    taken, free = group.taken_on(fleet.capacity, places), np.zeros(len(roomy), dtype=np.bool_)
    free[places] = np.logical_and.reduce(fleet.free.take(places, axis=1) >= taken - SLACK, axis=0)
    return free


def _spares_room(state: ProvisioningState, group: JobGroup) -> bool:
    """Return whether all of a job of ``group`` would have room now on instances that are held back only because a
    launch would be cheaper."""
    context, holdback = state.context, state.placement.holdback
    if not has_room_now(context, group):
        return False
    among = permitted(context, group, context.fleet.placeable & context.fleet.large_enough(group.demand))
    places = holdback.kept_empty(group, _free_now(state, group, among).nonzero()[0])
    return len(places) >= group.needed


def _lift(state: ProvisioningState, job: Job, group: JobGroup, refusal: Reason) -> bool:
    """Place ``job`` on instances that were held back from it, because nothing can be launched; return whether it
    fits."""
    context, everywhere = state.context, np.ones_like(state.context.fleet.placeable)
    if refusal.code == WAITS_FOR_RESERVED or not has_room_now(context, group):
        return False
    if not (group.state.lifted or state.placement.holdback.closed(group, everywhere).any()):
        return False
    group.state.lifted = group.state.fits_now = group.state.fits_well = True
    return place_now(state.placement, job, group)


def _still_served(state: ProvisioningState, job: Job, group: JobGroup) -> bool:
    """Claim for a job that awaits instances what it lacks; or return False and claim nothing."""
    context = state.context
    held = context.reservations.unhold(job)
    running = claim(context, group, _claimable(state, group), group.needed - len(held), held)
    taken = [*held, *running]
    coming = claim(context, group, context.fleet.coming, group.needed - len(taken), taken)
    if len(held) + len(running) + len(coming) < group.needed:
        context.reservations.unclaim(group, [*held, *running, *coming])
        return False
    context.reservations.keep(*held, *running, *awaited_places(context, job))
    return True


def _evict_for(
    state: ProvisioningState, job: Job, group: JobGroup, running: Sequence[int], *, unless_dearer: bool
) -> bool:
    """Evict what ``job`` lacks besides the ranks claimed on ``running``, and return True; or choose nothing.

    ``unless_dearer``: nothing either if the work that would be lost costs more than launching instances instead.
    """
    context, before = state.context, state.context.reservations.mark()
    emptied = _evict(state, group, group.needed - len(running), running)
    if not emptied:
        return False
    if unless_dearer and state.victims.lost_usd > _launch_usd(state, group, len(emptied)):
        context.reservations.back_to(before)
        put_back(context, state.victims)
        return False
    stop_chosen(context, state.victims, job)
    context.reservations.keep(*running, *emptied)
    _wait_for_claims(context, job, [*running, *emptied], [])
    return True


def _launch_usd(state: ProvisioningState, group: JobGroup, count: int) -> float:
    """Return what ``count`` instances of their own cost for one job of ``group``, from launch to its expected end; inf
    if none can be launched, or not in time."""
    context, market = state.context, state.offer_market
    usd_per_h = market.alone_usd_per_h(group)
    if usd_per_h <= 0.0 or not state.placement.holdback.bears_a_boot(group):
        return inf
    runs_s = context.run_times.median_s(group.example)
    usual_s = context.run_times.recent_median_s if runs_s is None else runs_s
    return count * usd_per_h * (usual_s + context.quickest_s(group.resources)) / HOUR_S


def _evict(state: ProvisioningState, group: JobGroup, count: int, running: Sequence[int]) -> list[int]:
    """Choose jobs to evict for ``count`` ranks in addition to those on ``running``, claim their room and return where;
    or choose none."""
    before, taken = state.context.reservations.mark(), list(running)
    for _ in range(count):
        claimed = claim(state.context, group, _claimable(state, group), 1, taken)
        if not claimed:
            at = evict_for(state.context, state.victims, group, taken)
            if at < 0:
                state.context.reservations.back_to(before)
                put_back(state.context, state.victims)
                return []
            state.context.reservations.claim(group, at)
            claimed = [at]
        taken += claimed
    return taken[len(running) :]


def _wait_for_claims(context: PlanContext, job: Job, running: Sequence[int], coming: Sequence[int]) -> None:
    if coming:
        context.decisions.wait(job, BOOTING, lambda: _booting(context, job, context.fleet.instances[coming[-1]]))
    else:
        stopping = any(
            other.id in context.decisions.stopping for at in running for other, _ in context.fleet.holdings[at]
        )
        # Held back as half empty until others were placed there in this very plan.
        text = "evicted units are stopping" if stopping else "the machine it goes to was held back until now"
        context.decisions.wait(job, "making_room", lambda: Reason(code="making_room", text=text))


def _booting(context: PlanContext, job: Job, machine: Instance) -> Reason:
    expected_at = (machine.launched_at or machine.requested_at) + machine.offer.instance_type.boot_delay_s
    left_s = max(0.0, expected_at - context.now)
    numbers: dict[str, Number] = {"instance": machine.id, "expected_at": expected_at, "expected_in_s": round(left_s, 3)}
    text = f"{machine.id} is booting for it, ready in about {seconds(left_s)}"
    return Reason(code=BOOTING, text=text, numbers={**numbers, **deadline_numbers(job, context.now)})
