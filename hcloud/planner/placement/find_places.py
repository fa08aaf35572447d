"""Find instances for the ranks of one job, in the order of the policy, pay for them, and record the placement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcloud.core.model import JOB_ON_INSTANCE, Job, JobState
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Mask
from hcloud.planner.instance_lifecycle import terminate_unrenewed
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.placement.explain_choice import candidates_of, placement_reason
from hcloud.planner.placement.going_down import goes_down, lost_to_types
from hcloud.planner.placement.open_instances import beyond, usable
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.plan import Place, RankPlacement


def find_places(
    state: PlacementState, job: Job, group: JobGroup, needed: int, wanted: int, held: Sequence[int] = ()
) -> list[int]:
    """Return instances for up to ``wanted`` ranks, booked and paid; empty if fewer than ``needed`` ranks fit."""
    context = state.context
    while True:
        if context.suit is not None:
            context.suit.aim_at(job, group.aim)
        # Where nothing suited the last member of the group, nothing suits this one.
        hopeful, present = group.state.fits_well or held or needed < group.needed, _present(context, job, group)
        choosy = job.state is JobState.QUEUED
        places = _search(state, group, wanted, held, present, choosy=choosy, among=_news(state, job)) if hopeful else []
        if hopeful and not places and context.suit is not None:
            state.tried[job.id] = len(context.suit.changed)
        if len(places) < needed and goes_down(state, job, group):
            _search_down(state, group, needed, places, present)
        if len(places) >= needed and _pay(context, job, group, places):
            return places
        for at in places:
            context.reservations.unuse(group, at)
        if len(places) < needed or group.state.stuck is not None:
            return []


def _news(state: PlacementState, job: Job) -> Mask:
    """Return the usable instances that changed since ``job`` found no room in this stage.

    All others are as they were or, as reserved instances fill up, closed by now. This does not hold where reserved room
    is held back for jobs that pay more elsewhere, as less is held back when fewer wait.
    """
    context = state.context
    seen, fleet = state.tried.get(job.id), context.fleet
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
    state: PlacementState,
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
    context = state.context
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
        roomy = roomy & (lost_to_types(state, group) <= context.policy.placement.tolerance)
    if not np.count_nonzero(roomy):
        return places
    own, allowed = [], roomy & ~state.holdback.closed(group, roomy)
    if held:
        own = [np.zeros(len(fleet.instances), dtype=np.bool_)]
        own[0][list(held)] = True
        allowed |= roomy & own[0]
    if np.count_nonzero(allowed):
        for mask in [allowed & mask for mask in own] + _paid_first(context, group, allowed):
            _fill(context, group, mask, wanted, places, present, roomy=True)
    return places


def _search_down(
    state: PlacementState, group: JobGroup, needed: int, places: list[int], present: Sequence[int]
) -> None:
    """Extend ``places`` to ``needed`` by the instances with the least interference; best effort considers only its
    own."""
    context = state.context
    for mask in _open_now(state, group):
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
        context.reservations.use(group, at)
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
    fits = allowed if roomy and group.portions is None else context.reservations.fitting_now(group, allowed)
    if not np.count_nonzero(fits):
        return -1
    return context.order_for(group).choose(context, group, fits, neighbours_too)


def _open_now(state: PlacementState, group: JobGroup) -> list[Mask]:
    """Return where units of ``group`` may start now, in order of preference."""
    context = state.context
    roomy = usable(context, group, context.fleet.fitting_now(group.demand, context.fleet.placeable))
    if np.count_nonzero(roomy):
        roomy = roomy & ~state.holdback.closed(group, roomy)
    return _paid_first(context, group, roomy)


def _paid_first(context: PlanContext, group: JobGroup, mask: Mask) -> list[Mask]:
    """Return ``mask`` in order of preference: reserved instances first, so that rented ones become idle and are
    released; of both, the types first that the jobs prefer."""
    fleet = context.fleet
    masks = [mask & fleet.reserved, mask & ~fleet.reserved] if fleet.partly_reserved else [mask]
    if group.preferred_types:
        preferred = fleet.of_types(group.preferred_types)
        masks = [part for each in masks for part in (each & preferred, each & ~preferred)]
    return masks


def _pay(context: PlanContext, job: Job, group: JobGroup, places: list[int]) -> bool:
    """Book ``places`` to the job's scopes, and renewals of idle instances near the end of their lease.

    Returns False if one is refused. Then either the group is stuck at a user's or tag's limit, or an instance that
    cannot be renewed is no longer placeable, and another search may find others.
    """
    to_renew = sorted(context.reservations.renewed_if_used.intersection(places))
    if not to_renew and not context.ledger.watches_scopes:
        return True
    trial = context.ledger.copy()
    for at in to_renew:
        refusal = trial.renewal_refusal(context.fleet.instances[at], context.renewed_until_at, {})
        if refusal is not None:
            terminate_unrenewed(context, at, refusal[0])
            return False
        trial.book_renewal(context.fleet.instances[at], context.renewed_until_at, {})
    for at in places:
        held = context.reservations.granted(group, at)
        group.state.stuck = trial.placement_refusal(job, context.fleet.instances[at], held)
        if group.state.stuck is not None:
            return False
        trial.book_placement(job, context.fleet.instances[at], held)
    context.reservations.adopt(trial)
    for at in to_renew:
        context.renew(at)
    context.reservations.renewed(to_renew)
    return True


def add_place(state: PlacementState, job: Job, group: JobGroup, ranks: Sequence[int], places: Sequence[int]) -> None:
    """Add the placement of ``ranks`` of ``job`` on the instances ``places`` to the plan, with its reason."""
    context = state.context
    instances = context.fleet.instances
    placements = tuple(
        RankPlacement(rank=rank, instance_id=instances[at].id, resources=context.reservations.granted(group, at))
        for rank, at in zip(ranks, places, strict=True)
    )
    context.reservations.keep(*places)
    state.holdback.note_start(group, places)
    candidates = candidates_of(context, state.alternatives, job, group, places[0])
    reason = placement_reason(context, job, group, places)
    predicted = context.run_times.prediction(job) if job.state not in JOB_ON_INSTANCE else None
    context.decisions.add(
        Place(job_id=job.id, ranks=placements, reason=reason, candidates=candidates, run_time=predicted)
    )
