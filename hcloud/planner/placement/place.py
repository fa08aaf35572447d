"""Who starts where, now: each job in queue order on the machine that the policy's order prefers of those with room (all
ranks of a gang, or none).

Where the order uses what is known of a job, it goes where nobody is disturbed: it does not disturb residents, nor they
it. While no such machine has room it holds out (``arq``), and at last takes the one where the least is disturbed.

Machines that a job awaits are held for it (``draft.holds``) until it can start; nobody else is placed into that room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hcloud.core.model import Job, JobState, Number, Reason
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import Amounts, Mask
from hcloud.planner.instance_lifecycle import end_idle_unrenewed
from hcloud.planner.late_boots import no_use
from hcloud.planner.placement.explain_choice import candidates_of, placement_reason
from hcloud.planner.plan import Place, RankPlacement
from hcloud.planner.text import seconds


def place(context: PlanContext, promise: bool) -> None:
    """Place what fits of the jobs with (or without) a promise; the rest comes out in ``draft.unplaced``."""
    _settle_awaiting(context, promise)
    context.tried.clear()
    context.unplaced = list(context.queue[promise])
    if context.policy.admission.queues == "by_quality":
        context.diverting = False
        context.unplaced = [pair for pair in context.unplaced if not _placed_now(context, *pair)]
        context.diverting = True
    left = [pair for pair in context.unplaced if not _placed_now(context, *pair)]
    left = _without_unpaid(context, left) if context.awaiting else left
    context.tried.clear()
    context.unplaced = [pair for pair in left if not _awaits_a_type(context, *pair)]


def _awaits_a_type(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Return whether ``job`` holds out for a better type where it could start undisturbed, and tell it so.

    Nothing is bought for it: there is room.
    """
    if group.awaits_type and (job.state is not JobState.QUEUED or not _lost_to_types(context, group).any()):
        return False
    if group.awaits_type:
        allowed = context.fleet.fitting_now(group.asks, usable(context, group, context.fleet.placeable))
        group.awaits_type = bool(_suited(context, group, allowed, ()).any())
    if group.awaits_type:
        group.pending -= 1
        why = "waiting: every machine with room and tolerable interference is of a worse type"
        context.wait(job, "holds_out", lambda: _holds_out(context, job, group, why))
    return group.awaits_type


def _placed_now(context: PlanContext, job: Job, group: JobGroup) -> bool:
    # A job with room held for it may start where its group does not fit.
    hopeful = group.stuck is None and (_may_fit(context, job, group) or job.id in context.holds)
    placed = hopeful and context.user_cap(job) is None and place_now(context, job, group)
    group.pending -= placed
    return placed


def _without_unpaid(context: PlanContext, left: list[tuple[Job, JobGroup]]) -> list[tuple[Job, JobGroup]]:
    """Queue again, the last first, who awaits machines that are all there and whose user cannot pay for them any more
    (prices rose, or others took the money): those before it may be able to pay then. Returns who is still not placed.

    They would stand idle, and be held from others, until they are not renewed any more.
    """
    while True:
        # Of those who ask for the same, the first whose user cannot pay spoke for all; each awaits machines of its own.
        left = [pair for pair in left if _unpaid(context, *pair) is None or not _placed_anew(context, *pair)]
        unpaid = [(at, reason) for at, pair in enumerate(left) if (reason := _unpaid(context, *pair)) is not None]
        if not unpaid:
            return left
        last, reason = unpaid[-1]
        job, group = left[last]
        left[last] = (requeue(context, job, reason), group)
        for _, each in left:
            each.stuck = None
        left = [pair for pair in left if not _placed_now(context, *pair)]


def _unpaid(context: PlanContext, job: Job, group: JobGroup) -> Reason | None:
    """Return why the user of ``job`` cannot pay for the machines that it awaits, if all of them are there."""
    if job.state is not JobState.AWAITING_INSTANCE or any(
        context.fleet.coming[at] for at in awaited_places(context, job)
    ):
        return None
    return group.stuck


def _placed_anew(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Return whether ``job`` is placed, whatever became of others of its group."""
    group.stuck = None
    return _placed_now(context, job, group)


def _may_fit(context: PlanContext, job: Job, group: JobGroup) -> bool:
    return group.fits_now and (group.fits_well or _goes_down(context, job, group))


def _goes_down(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Return whether ``job`` now takes what room there is, whether or not that suits it (ARQ, Dissertation eq. 6.2).

    One that awaits machines does not: those that come for it suit it.
    """
    if context.suit is None or not group.application or job.state is not JobState.QUEUED:
        return False
    if not context.diverting and not _overdue(context, job):
        return False
    if group.down_within_s is None:
        group.down_within_s = _down_within_s(context, context.suit, group)
    # While units that were asked to end make room for it, it has something better to wait for, as long as it may.
    return context.slack_left_s(job) <= (0.0 if job.wait_code == "making_room" else group.down_within_s)


def _down_within_s(context: PlanContext, suit: Suitability, group: JobGroup) -> float:
    """Return how much slack may be left when members of ``group`` go down to where one would be put: on machines open
    to it, with what it would get there."""
    among = usable(context, group, context.fleet.placeable)
    roomy = context.fleet.fitting_now(group.demand, among)
    roomy = roomy & ~closed(context, group, roomy) if np.count_nonzero(roomy) else roomy
    if not np.count_nonzero(roomy) and suit.who(group.application) is not None:
        return 0.0  # whatever it would get there
    roomy = context.fitting_now(group, roomy)
    large, lost = among & context.fleet.large_enough(group.demand), _lost_to_types(context, group)
    return suit.down_within_s(group.application, roomy, large, lost, context.quickest_s(group))


def _lost_to_types(context: PlanContext, group: JobGroup) -> Amounts:
    """Return by machine which part of its performance (0..1) ``group`` is expected to lose to its type there.

    Beside the best of those it may run on, busy or not; nothing without queues by quality, for then it takes the best
    that is free.
    """
    if group.lost is None:
        group.lost, by_quality = np.zeros(len(context.fleet.instances)), context.policy.admission.queues == "by_quality"
        if context.suit is not None and group.application and by_quality and context.suit.loses_to_types:
            among = suited(context, group, context.fleet.placeable) & context.fleet.large_enough(group.demand)
            group.lost = context.suit.type_losses(group.application, among)
    return group.lost


def _overdue(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` has waited longer than any may (``admission.patience_cap_s``)."""
    return context.now - context.queued_at(job) >= context.policy.admission.patience_cap_s


def holding_out(context: PlanContext, job: Job, group: JobGroup, refusal: Reason | None) -> Reason | None:
    """Return why ``job`` waits: for a machine that suits it, where others have room; else ``refusal``."""
    if refusal is None or not group.application or not group.fits_now or group.fits_well:
        return refusal
    why = "waiting: on every machine with room, interference would exceed what it or its neighbours tolerate"
    found = _holds_out(context, job, group, why)
    numbers: dict[str, Number] = {**found.numbers, "refused": refusal.code, **refusal.numbers}
    return replace(found, text=f"{found.text}; no new machine: {refusal.text}", numbers=numbers)


def _holds_out(context: PlanContext, job: Job, group: JobGroup, why: str) -> Reason:
    left_s, down_s = max(0.0, context.slack_left_s(job)), group.down_within_s or 0.0
    numbers: dict[str, Number] = {
        "slack_left_s": round(left_s, 3),
        "goes_down_in_s": round(max(0.0, left_s - down_s), 3),
    }
    text = f"{why}; accepts one of them in {seconds(left_s - down_s)} at the latest"
    return Reason(code="holds_out", text=text, numbers=numbers)


def usable(context: PlanContext, group: JobGroup, mask: Mask) -> Mask:
    """Return the machines of ``mask`` that ``group`` may run on and, if it is exclusive, nobody else has part of."""
    allowed = suited(context, group, mask)
    return allowed & context.fleet.unshared(context.fleet.room) if group.exclusive else allowed


def suited(context: PlanContext, group: JobGroup, mask: Mask) -> Mask:
    """Return the machines of ``mask`` that ``group`` may run on and that are good enough for it (hybrid mapping)."""
    allowed, hybrid = permitted(context, group, mask), context.strategy.hybrid
    if group.company is not None:
        allowed = allowed & context.topology.apart(group.company)
    return allowed & hybrid.suits(group.mapping_need, group.resources) if hybrid is not None else allowed


def permitted(context: PlanContext, group: JobGroup, mask: Mask) -> Mask:
    """Return the machines of ``mask`` whose market, type, zone and labels ``group`` may run on."""
    allowed = mask if group.spot_ok else mask & context.fleet.steady
    if context.guarded is not None and not group.promise:
        allowed = allowed & ~context.guarded
    if group.avoid:
        allowed = allowed & context.fleet.others_than(group.avoid)
    if group.urgency and context.late is not None:
        allowed = allowed & ~context.late.mask
    if group.constraints is not None:
        allowed = allowed & context.topology.admitted(group.constraints)
    return allowed & context.fleet.of_types(group.instance_types) if group.instance_types else allowed


def beyond(context: PlanContext, group: JobGroup, allowed: Mask, taken: Sequence[int]) -> Mask:
    """Return the machines of ``allowed`` for one more rank of a job of ``group`` that has ranks on ``taken``."""
    if group.constraints is not None and taken:
        allowed = allowed & context.topology.spread(group.constraints, taken)
    return allowed & context.topology.apart(group.company) if group.company is not None else allowed


# ----------------------------------------------------------------------------------------------------- awaited machines
def awaited_places(context: PlanContext, job: Job) -> list[int]:
    """Return the machines ``job`` awaits, one for each of its ranks that is to run there."""
    return [context.fleet.index[i] for i in job.awaiting if i in context.fleet.index]


def _settle_awaiting(context: PlanContext, promise: bool) -> None:
    """Hold room for jobs that await machines; those whose machine failed are queued again, in their old place."""
    for which, place in context.awaiting:
        if which is promise:
            job, group = context.queue[which][place]
            context.queue[which][place] = (_settle(context, job, group), group)


def _settle(context: PlanContext, job: Job, group: JobGroup) -> Job:
    lost = [i for i in job.awaiting if not _still_hoped_for(context, i)]
    if lost or not job.awaiting:
        names = ", ".join(lost) or "nothing"
        text = f"{names} failed to start; choosing another machine"
        return requeue(context, job, Reason(code="awaited_lost", text=text, numbers={"lost": names}))
    return job if _hold(context, job, group) else requeue(context, job, no_use(job, context.late))


def _still_hoped_for(context: PlanContext, instance_id: str) -> bool:
    at = context.fleet.index.get(instance_id)
    return at is not None and bool(context.fleet.hopeful[at])


def requeue(context: PlanContext, job: Job, reason: Reason) -> Job:
    """Put a job that awaits machines in vain back into the queue; what it held is given back."""
    unclaim(context, context.group_of(job), context.holds.pop(job.id, []))
    context.ledger.forget_awaited(job)
    context.count_active(job, -1)
    return context.enqueue(job, reason)


def _hold(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Keep room for ``job`` on the machines it awaits, rank by rank, and for a gang's other ranks on what is READY.

    Returns False, and keeps nothing, where even all that is starting could not make up the rest.
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
    """Keep what was bought for jobs, and is still starting, for them: before anybody claims what is left of it."""
    for which, place in context.awaiting:
        job, group = context.queue[which][place]
        coming = [at for at in awaited_places(context, job) if context.fleet.coming[at]]
        context.holds[job.id] = _claim_each(context, group, coming)


def _claim_each(context: PlanContext, group: JobGroup, places: Sequence[int], taken: Sequence[int] = ()) -> list[int]:
    """Take room for one rank on each of ``places`` that has it; return which. ``taken``: where the job has others."""
    one, claimed = np.zeros(len(context.fleet.instances), dtype=np.bool_), list[int]()
    for at in places:
        # Many await machines that others filled meanwhile.
        if context.fleet.has_room(at, group.demand):
            one[at] = True
            claimed += claim(context, group, one, 1, [*taken, *claimed])
            one[at] = False
    return claimed


def claim(context: PlanContext, group: JobGroup, mask: Mask, count: int, taken: Sequence[int] = ()) -> list[int]:
    """Take room for up to ``count`` ranks of ``group`` on machines of ``mask``, lowest numbers first; return where.

    ``taken``: where the job has, or has claimed, others of its ranks.
    """
    claimed = list[int]()
    if count <= 0 or not np.count_nonzero(mask):
        return claimed
    allowed = usable(context, group, mask)
    while len(claimed) < count:
        there = _suited(context, group, context.fleet.fitting(group.demand, allowed), [*taken, *claimed])
        # Nearly always the first of those with room for the least it may get has room for what it does get there.
        at = next((at for at in there.nonzero()[0].tolist() if context.fleet.has_room(at, group.asks_on(at))), -1)
        if at < 0:
            break
        pledge(context, group, at)
        claimed.append(at)
    return claimed


def _suited(context: PlanContext, group: JobGroup, mask: Mask, taken: Sequence[int]) -> Mask:
    mask = beyond(context, group, mask, taken) if group.spreads else mask
    suit = context.suit if group.application else None
    mask = suit.suited(group.application, mask) if suit is not None else mask
    if suit is None or group.aim is None or not np.count_nonzero(mask):
        return mask
    return mask & suit.enough(group.application, group.aim)


def pledge(context: PlanContext, group: JobGroup, at: int) -> None:
    """Take room for one rank of ``group`` on machine ``at``."""
    context.fleet.room[:, at] -= context.amount_on(group, at)
    context.arrive(at, group)


def suits_company(context: PlanContext, group: JobGroup, company: Sequence[Job]) -> bool:
    """Return whether ``group`` and the jobs of ``company`` (one entry per rank) suit each other on an empty machine."""
    if context.suit is None or not company or not group.application:
        return True
    return context.suit.together(group.application, [job.application for job in company])


def unclaim(context: PlanContext, group: JobGroup, claimed: Sequence[int]) -> None:
    """Give back what :func:`claim` took."""
    for at in claimed:
        context.fleet.room[:, at] += context.amount_on(group, at)
        context.leave(at, group)


def pay_for_claims(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> Reason | None:
    """Count what ``job``'s user is to hold of live machines on which room was claimed; return which limit forbids it.

    Without that, machines would be bought for its other ranks, and all of them wait for money that is not there.
    """
    if not places or not context.ledger.watches_users:
        return None
    context.ledger, user = context.ledger.copy(), job.spec.user
    for at in places:
        instance, held = context.fleet.instances[at], context.granted(group, at)
        refusal = context.ledger.placement_refusal(user, instance, held)
        if refusal is not None:
            return refusal
        context.ledger.book_placement(user, instance, held)
    return None


# -------------------------------------------------------------------------------------------------------------- placing
def place_now(context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Place ``job``, which lets go of what it held; or hold that again."""
    held = context.holds.pop(job.id, [])
    if not held and job.state is JobState.QUEUED and not has_room_now(context, group):
        _note_in_vain(context, job, group)
        return False
    unclaim(context, group, held)
    awaited = context.ledger.forget_awaited(job)
    wanted = context.suit.ranks_wanted(job, group.needed, group.wanted) if context.suit is not None else group.wanted
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


def has_room_now(context: PlanContext, group: JobGroup) -> bool:
    """Return whether any machine has room for a rank of ``group`` at all; of a full cluster no more need be asked."""
    return bool(np.count_nonzero(context.fleet.fitting_now(group.demand, context.fleet.placeable)))


def _note_in_vain(context: PlanContext, job: Job, group: JobGroup) -> None:
    """Note for the others of ``group`` that ``job`` found nothing: nothing at all, or nothing that suits it."""
    if not group.application or _goes_down(context, job, group):
        group.fits_now = False
    else:
        group.fits_well = False


def find_places(
    context: PlanContext, job: Job, group: JobGroup, needed: int, wanted: int, held: Sequence[int] = ()
) -> list[int]:
    """Return machines for up to ``wanted`` ranks, counted as used and paid; none if fewer than ``needed`` find room."""
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
    """Return the machines that may be used and where something changed since ``job`` found nothing in this stage.

    Others are as they were or, the more reserved machines are in use, closed by now. Where reserved room is kept for
    those who pay more elsewhere that does not hold: the fewer wait, the less is kept.
    """
    seen, fleet = context.tried.get(job.id), context.fleet
    if seen is None or context.suit is None or context.strategy.hybrid is None:
        return fleet.placeable
    changed = np.zeros_like(fleet.placeable)
    changed[list(context.suit.changed[seen:])] = True
    return changed & fleet.placeable


def _present(context: PlanContext, job: Job, group: JobGroup) -> list[int]:
    """Return where ``job`` has units already, where that matters for the ranks it still lacks."""
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
    """Return the preferred machines of ``among`` for up to ``wanted`` ranks: those that were held first, so that no
    room is held in vain from jobs that had their turn before. ``present``: where other ranks run; ``choosy``: types
    have to suit."""
    fleet, places = context.fleet, list[int]()
    # Most who wait find nothing, whatever is closed to them, or else all of it is: no more need be worked out.
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
    """Make ``places`` up to ``needed`` with machines where the least is disturbed; best effort disturbs itself only."""
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
    """Make ``places`` up to ``wanted`` with the preferred machines of ``allowed``; ``roomy``: all suit, and have room
    for one, or for the least it may get."""
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
    """Return the machine of ``allowed`` (``roomy``: see :func:`_fill`) for a rank of ``group`` that the policy's order
    prefers, or -1."""
    fleet, order = context.fleet, context.policy.placement.order
    if context.suit is not None and group.application:
        if group.unsized and not roomy:
            # The least it may get tells mostly that there is nowhere to go, whatever it would get.
            allowed = fleet.fitting_now(group.demand, allowed)
            if neighbours_too is None:
                allowed = context.suit.suited(group.application, allowed)
            if not np.count_nonzero(allowed):
                return -1
        fits = allowed if roomy and group.portions is None else context.fitting_now(group, allowed)
        return context.suit.select(group.application, fits, neighbours_too=neighbours_too)
    if order in ("first_fit", "random"):
        places = np.flatnonzero(context.fitting_now(group, allowed))
        return -1 if not places.size else int(places[0] if order == "first_fit" else context.rng.choice(places))
    return fleet.least_loaded(group.asks, allowed)


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
    """Return ``mask`` in order of preference: what is paid for in any case comes first, so that rented machines fall
    idle and can be let go."""
    reserved = context.fleet.reserved
    return [mask & reserved, mask & ~reserved] if context.fleet.partly_reserved else [mask]


def closed(context: PlanContext, group: JobGroup, among: Mask) -> Mask:
    """Return the machines of ``among`` kept from ``group``: reserved ones while they are this full (hybrid strategies),
    rented ones that stand half empty or are too small for its target (:mod:`hcloud.planner.provisioning.holdback`)."""
    hybrid = context.strategy.hybrid
    if group.lifted or (hybrid is None and context.open_of is None):
        return np.zeros(len(among), dtype=np.bool_)
    full = hybrid.closed(group.mapping_need, group.resources) if hybrid is not None else None
    shut = among & full if full is not None else np.zeros(len(among), dtype=np.bool_)
    if context.open_of is not None:
        asked = (among if full is None else among & ~full).nonzero()[0]
        left = context.open_of(group, asked)
        if left is not asked:  # mostly it is: nothing is kept from it
            shut[asked] = True
            shut[left] = False
    return shut


def _pay(context: PlanContext, job: Job, group: JobGroup, places: list[int]) -> bool:
    """Book what ``places`` cost the job's user, and renewals of idle machines near their horizon.

    Returns False after a refusal: either ``group.stuck`` says it is the user's limit, or a machine that cannot be
    renewed is not placeable any more and another search may find others.
    """
    lazy = sorted(context.lazy.intersection(places))
    if not lazy and not context.ledger.watches_users:
        return True
    trial, user = context.ledger.copy(), job.spec.user
    for at in lazy:
        refusal = trial.renewal_refusal(context.fleet.instances[at], context.renewed_until_at, {})
        if refusal is not None:
            end_idle_unrenewed(context, at, refusal[0])
            return False
        trial.book_renewal(context.fleet.instances[at], context.renewed_until_at, {})
    for at in places:
        held = context.granted(group, at)
        group.stuck = trial.placement_refusal(user, context.fleet.instances[at], held)
        if group.stuck is not None:
            return False
        trial.book_placement(user, context.fleet.instances[at], held)
    context.ledger = trial
    for at in lazy:
        context.renew(at)
    context.lazy.difference_update(lazy)
    return True


def add_place(context: PlanContext, job: Job, group: JobGroup, ranks: Sequence[int], places: Sequence[int]) -> None:
    """Decide that ``ranks`` of ``job`` run on the machines ``places``, and say why there."""
    instances = context.fleet.instances
    placements = tuple(
        RankPlacement(rank=rank, instance_id=instances[at].id, resources=context.granted(group, at))
        for rank, at in zip(ranks, places, strict=True)
    )
    context.used.update(places)
    candidates = candidates_of(context, job, group, places[0])
    reason = placement_reason(context, job, group, places)
    context.add(Place(job_id=job.id, ranks=placements, reason=reason, candidates=candidates))
