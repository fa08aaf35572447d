"""Provide room for jobs that found none: wait for room that is coming, evict best effort, or launch; else record why.

Each unplaced job, in queue order, claims room in this order: on running instances, as their stopping units will free
it; on booting instances; by evicting best-effort jobs; on instances that this plan launches. Claims are not stored:
every plan makes them again in the same order, and so never launches twice for the same need.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import JOB_ON_INSTANCE, Instance, Job, JobState, Market, Number, Offer, Reason
from hcloud.planner.budget import CAPPED, BudgetLedger, cap_reached, cost_is_shared, open_budget
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import SLACK, Amounts, Mask, Places, fits_any, vector
from hcloud.planner.instance_lifecycle import idle_for_s, is_idle
from hcloud.planner.job_queue import QueueSegment
from hcloud.planner.late_boots import requeue_reason
from hcloud.planner.market import Choice, OfferMarket, open_market, rank_choices, why_not_obtainable
from hcloud.planner.placement.claims import claim, pay_for_claims, pledge, suits_company, unclaim
from hcloud.planner.placement.explain_choice import exclusion_reason
from hcloud.planner.placement.open_instances import closed, has_room_now, lastingly_permitted, permitted
from hcloud.planner.placement.place import (
    awaited_places,
    holding_out,
    place_now,
    ranks_to_start,
    requeue,
    reserve_first,
)
from hcloud.planner.placement.room_reservation import BOOTING, NOT_FOR_ROOM, WAITS_FOR_RESERVED, reservation_reason
from hcloud.planner.plan import Finish, Launch
from hcloud.planner.provisioning.eviction import (
    EvictionCandidates,
    evict_for,
    find_evictable,
    no_candidates,
    put_back,
    stop_chosen,
)
from hcloud.planner.provisioning.holdback import open_half_empty_holdback
from hcloud.planner.text import amount, deadline_numbers, offer_words, percent, seconds
from hcloud.spec.validation import counted

ENGINE_UNREACHABLE = Reason(
    code="engine_unreachable",
    text="no machine is launched while the gateway does not answer: its worker could not register",
)
"""Why nothing is bought: each machine would be paid for until its lease ends, and the next one launched then."""


@dataclass(slots=True, eq=False)
class PlannedInstance:
    """An instance this plan launches."""

    offer: Offer
    at: int
    """Place of the offer in the market."""
    place: int
    """Place of the instance in :class:`PlannedCapacity`."""
    choices: list[Choice]
    """The offers considered, best first."""
    jobs: list[Job] = field(default_factory=list)
    """The jobs it is for, one entry per rank."""


@dataclass(slots=True, eq=False)
class PlannedCapacity:
    """What is left of the instances this plan launches, as arrays: the first plan of a cluster launches thousands. Rows
    beyond the number of instances are undefined."""

    left: Amounts = field(default_factory=lambda: np.zeros((16, 3)))
    """Free resources, shape ``(N, 3)``."""
    at: Places = field(default_factory=lambda: np.zeros(16, dtype=np.intp))
    """Place of the offer in the market, shape ``(N,)``."""

    def add(self, place: int, at: int, capacity: Amounts) -> None:
        """Add an empty instance of offer ``at``."""
        if place >= len(self.at):
            self.left, self.at = np.concatenate([self.left, self.left]), np.concatenate([self.at, self.at])
        self.left[place], self.at[place] = capacity, at

    def where(self, count: int, taken: Amounts, serves: Mask) -> list[int]:
        """Return which of the first ``count`` instances have room for one rank.

        ``taken`` is what a rank takes of each offer, shape ``(M, 3)``; ``serves`` are the permitted offers.
        """
        at = self.at[:count]
        roomy = np.logical_and.reduce(self.left[:count] + SLACK >= taken[at], axis=1)
        places: list[int] = (roomy & serves[at]).nonzero()[0].tolist()
        return places


@dataclass(slots=True)
class ProvisioningState:
    """The state of this stage."""

    context: PlanContext
    offer_market: OfferMarket
    victims: EvictionCandidates
    groups: list[JobGroup]
    machines: list[PlannedInstance] = field(default_factory=list)
    """Instances this plan launches."""
    rooms: PlannedCapacity = field(default_factory=PlannedCapacity)
    future: BudgetLedger | None = None
    """The account once terminating instances are gone; None: not computed yet."""
    idle: list[int] | None = None
    """Idle instances that may be terminated to make room; None: not computed yet."""
    closed: Reason | None = None
    """The reason common to all jobs if nothing can be claimed, launched or terminated."""
    refused: Offer | None = None
    """The cheapest offer that limits refused when one was last requested."""
    capped: dict[JobGroup, int] = field(default_factory=dict)
    """How many jobs of each group wait only because no more instances are allowed."""
    first_capped: Job | None = None
    """The first of these in order."""

    @property
    def running(self) -> Mask:
        """Ready instances that stay, in use or not."""
        running = self.context.fleet.placeable.copy()
        running[list(self.context.lazy)] = False
        return running


def start_provisioning(context: PlanContext) -> ProvisioningState:
    """Prepare the stage; to be called once, before anything is placed."""
    context.fleet.expect_release(context.stopping, context.snapshot.plan_cache.occupancy.surplus)
    groups = list(context.groups.values())
    # Only jobs with a target may evict.
    victims = find_evictable(context) if any(group.promise for group in groups) else no_candidates(context)
    state = ProvisioningState(context=context, offer_market=open_market(context), victims=victims, groups=groups)
    context.open_of = open_half_empty_holdback(context, state.offer_market).open
    alike: dict[tuple[object, ...], list[JobGroup]] = {}
    for group in state.groups:
        key = (group.spot_ok, group.instance_types, group.exclusive, group.constraints, group.urgency > 0)
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
            group.fits_now, group.fits_later, group.offered = bool(now[at]), bool(later[at]), bool(offered[at])


def provision(state: ProvisioningState, promise: bool) -> None:
    """Serve the jobs with a target that are left in the queue, or those without one: claim, evict, plan launches (see
    :func:`launch`), or record why a job waits."""
    context, queue = state.context, state.context.queue[promise]
    capped = dict[str, list[QueueSegment]]()

    def is_decided(segment: QueueSegment) -> bool:
        job, group = segment.first, segment.group
        if not _is_decided(context, segment):
            return False
        rest = walk.rest(segment)
        group.pending -= rest
        if context.user_cap(job) is not None:
            capped.setdefault(job.spec.user, []).append(segment)
        elif group.stuck is not None and group.stuck.code == CAPPED:
            state.capped[group] = state.capped.get(group, 0) + rest
        return True

    walk = queue.walk(is_decided)
    for segment, job in walk:
        segment.group.pending -= 1
        _provide(state, job, segment.group)
        user = job.spec.user
        if user in capped and context.user_cap(job) is None:
            for each in capped.pop(user):
                walk.resume(each)
                each.group.pending += walk.rest(each)


def _is_decided(context: PlanContext, segment: QueueSegment) -> bool:
    """Return whether all jobs left of ``segment`` wait for the reason for which they waited before."""
    group, wait_code = segment.group, segment.wait_code
    if segment.awaits:
        return False
    if (refusal := context.user_cap(segment.first)) is not None:
        return refusal.code == wait_code
    if group.stuck is None or group.stuck.code != wait_code or wait_code == "impossible":
        return False
    if group.may_reserve and wait_code not in NOT_FOR_ROOM:
        return False
    rows = context.snapshot.plan_cache.occupancy.rows
    return not any(
        each.group is group and rows[job_id].wait_code == wait_code for job_id, each in context.reservations.items()
    )


def _provide(state: ProvisioningState, job: Job, group: JobGroup) -> None:
    """Serve one job that placement left over, or record why it waits."""
    context = state.context
    if job.state is JobState.AWAITING_INSTANCE:
        if _still_served(state, job, group):
            return
        job = requeue(context, job, requeue_reason(job, context.late))
    if (capped := context.user_cap(job)) is not None:
        _give_reason(context, job, capped)
        return
    if group.stuck is None:
        refusal = _closed(state, group) or _serve(state, job, group)
        group.stuck = exclusion_reason(context, group, holding_out(context, job, group, refusal))
    if group.stuck is not None and group.stuck.code == CAPPED:
        state.capped[group] = state.capped.get(group, 0) + 1
        state.first_capped = state.first_capped or job
    if group.may_reserve and group.stuck is not None and group.stuck.code not in NOT_FOR_ROOM:
        reserve_first(context, job, group)
    if (reservation := context.reservations.get(job.id)) is not None:
        if group.stuck is None or group.stuck.code in NOT_FOR_ROOM:
            # A machine is launched or emptied for it, or room is not what it lacks.
            del context.reservations[job.id]
        else:
            reason = reservation_reason(context, reservation, group.stuck)
            names = tuple(context.fleet.instances[at].id for at in sorted(reservation.reserved))
            context.wait(job, reason.code, lambda: reason, reserved=names)
            return
    if group.stuck is not None and (job.wait_code != group.stuck.code or group.stuck.code == "impossible"):
        _give_reason(context, job, group.stuck)


def expand(state: ProvisioningState) -> None:
    """Plan instances for the missing nodes of running jobs that miss their target (``context.expanding``)."""
    context, index = state.context, state.context.fleet.index
    for job in context.expanding:
        held = job.attempt.allocations if job.attempt is not None else ()
        present = [index[each.instance_id] for each in held if not each.released and each.instance_id in index]
        ledger = context.ledger
        if _buy(state, job, context.group_of(job), present) is None:
            context.count_active(job, -1)  # it is counted already
        else:
            context.ledger = ledger


def launch(state: ProvisioningState) -> None:
    """Add the launches of the planned instances to the plan."""
    for machine in state.machines:
        state.context.add(_launch(state, machine))


def _closed(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason common to all jobs if nothing can be claimed, launched or terminated. This keeps a long queue
    cheap."""
    if group.fits_later or not group.offered:
        return None
    if state.closed is None:
        context, alive = state.context, state.context.ledger.instances
        limit, ending = context.policy.caps.max_instances, alive > len(context.fleet.staying)
        if alive >= limit and not (ending or context.gone or state.victims.amounts.any() or _idle(state)):
            state.closed = cap_reached("instances", "machines running or launching", alive, 1, limit)
    return state.closed


def _give_reason(context: PlanContext, job: Job, reason: Reason) -> None:
    if reason.code == "impossible":
        context.add(Finish(job_id=job.id, state=JobState.FAILED, reason=reason))
    else:
        context.wait(job, reason.code, lambda: reason)


# ------------------------------------------------------------------------------------------------------------- claiming
def _serve(state: ProvisioningState, job: Job, group: JobGroup) -> Reason | None:
    """Claim room for one job and return None; or change nothing and return why no job of its group can be served."""
    context, needed, claimable = state.context, group.needed, _claimable(state, group)
    # Most jobs find nothing to claim and have nothing to undo.
    before = context.mark() if claimable.any() or context.fleet.coming.any() else None
    ledger, running = context.ledger, claim(context, group, claimable, needed)
    coming = claim(context, group, context.fleet.coming, needed - len(running), running)
    if len(running) + len(coming) < needed:
        unclaim(context, group, coming)
        if group.promise and (emptied := _evict(state, group, needed - len(running), running)):
            stop_chosen(context, state.victims, job)
            running, coming = [*running, *emptied], []
        else:
            coming = claim(context, group, context.fleet.coming, needed - len(running), running)
            served = len(running) + len(coming)
            state.refused = None
            refusal = pay_for_claims(context, job, group, [*running, *coming])
            refusal = refusal or _buy(state, job, group, [*running, *coming])
            if refusal is None:
                context.used.update(running)
                return None
            if before is not None:
                context.back_to(before)
            context.ledger = ledger
            if _lift(state, job, group, refusal):
                return None
            return _make_room(state, job, needed - served, refusal)
    context.used.update(running)
    _wait_for_claims(context, job, running, coming)
    return None


def _claimable(state: ProvisioningState, group: JobGroup) -> Mask:
    """Return the running instances with room that ``group`` may wait for: not those that are free but closed to it."""
    context, fleet = state.context, state.context.fleet
    roomy = fleet.fitting(group.demand, fleet.placeable)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, roomy)
    places = roomy.nonzero()[0]
    if not places.size:  # nothing to claim, whatever is closed
        return roomy
    taken, free = group.taken_on(fleet.capacity, places), np.zeros(len(roomy), dtype=np.bool_)
    free[places] = np.logical_and.reduce(fleet.free.take(places, axis=1) >= taken - SLACK, axis=0)
    return state.running & roomy & ~closed(context, group, free)


def _lift(state: ProvisioningState, job: Job, group: JobGroup, refusal: Reason) -> bool:
    """Place ``job`` on instances that were held back from it, because nothing can be launched; return whether it
    fits."""
    context, everywhere = state.context, np.ones_like(state.context.fleet.placeable)
    if refusal.code == WAITS_FOR_RESERVED or not has_room_now(context, group):
        return False
    if not (group.lifted or closed(context, group, everywhere).any()):
        return False
    group.lifted = group.fits_now = group.fits_well = True
    return place_now(context, job, group)


def _still_served(state: ProvisioningState, job: Job, group: JobGroup) -> bool:
    """Claim for a job that awaits instances what it lacks; or return False and claim nothing."""
    context = state.context
    held = context.holds.pop(job.id, [])
    running = claim(context, group, _claimable(state, group), group.needed - len(held), held)
    taken = [*held, *running]
    coming = claim(context, group, context.fleet.coming, group.needed - len(taken), taken)
    if len(held) + len(running) + len(coming) < group.needed:
        unclaim(context, group, [*held, *running, *coming])
        return False
    context.used.update(held, running, awaited_places(context, job))
    return True


def _evict(state: ProvisioningState, group: JobGroup, count: int, running: Sequence[int]) -> list[int]:
    """Choose jobs to evict for ``count`` ranks in addition to those on ``running``, claim their room and return where;
    or choose none."""
    if not state.victims.amounts.any():
        return []
    before, taken = state.context.mark(), list(running)
    for _ in range(count):
        claimed = claim(state.context, group, _claimable(state, group), 1, taken)
        if not claimed:
            at = evict_for(state.context, state.victims, group, taken)
            if at < 0:
                state.context.back_to(before)
                put_back(state.context, state.victims)
                return []
            pledge(state.context, group, at)
            claimed = [at]
        taken += claimed
    return taken[len(running) :]


def _wait_for_claims(context: PlanContext, job: Job, running: Sequence[int], coming: Sequence[int]) -> None:
    if coming:
        context.wait(job, BOOTING, lambda: _booting(context, job, context.fleet.instances[coming[-1]]))
    else:
        stopping = any(other.id in context.stopping for at in running for other, _ in context.fleet.holdings[at])
        # Held back as half empty until others were placed there in this very plan.
        text = "evicted units are stopping" if stopping else "the machine it goes to was half empty until now"
        context.wait(job, "making_room", lambda: Reason(code="making_room", text=text))


def _booting(context: PlanContext, job: Job, machine: Instance) -> Reason:
    expected_at = (machine.launched_at or machine.requested_at) + machine.offer.instance_type.boot_delay_s
    left_s = max(0.0, expected_at - context.now)
    numbers: dict[str, Number] = {"instance": machine.id, "expected_at": expected_at, "expected_in_s": round(left_s, 3)}
    text = f"{machine.id} is booting for it, ready in about {seconds(left_s)}"
    return Reason(code=BOOTING, text=text, numbers={**numbers, **deadline_numbers(job, context.now)})


# --------------------------------------------------------------------------------------------------------------- buying
def _buy(state: ProvisioningState, job: Job, group: JobGroup, served_on: Sequence[int]) -> Reason | None:
    """Assign the missing ranks of ``job`` to new instances, at least all needed; or return why not.

    Optional ranks get an instance only if the target needs them, or to correct a running job. ``served_on`` are the
    instances of its other ranks.
    """
    if not state.context.snapshot.engine_reachable:
        state.refused = None
        return ENGINE_UNREACHABLE
    if not state.machines and not state.offer_market.obtainable(group):  # cheap check; it decides for most waiting jobs
        state.refused = None
        return _unobtainable(state, group)
    state.context.ledger = state.context.ledger.copy()
    before, taken, refusal, served = len(state.machines), list[PlannedInstance](), None, len(served_on)
    wanted = group.wanted if job.state in JOB_ON_INSTANCE else ranks_to_start(state.context, job, group)
    while served + len(taken) < wanted and refusal is None:
        zones = _zones_taken(state, group, served_on, taken)
        machine = _join(state, job, group, zones)
        if machine is None:
            machine, refusal = _open_machine(state, job, group, zones)
        if machine is not None:
            state.rooms.left[machine.place] -= state.offer_market.taken(group)[machine.at]
            machine.jobs.append(job)
            taken.append(machine)
    if served + len(taken) >= group.needed:
        state.context.count_active(job)
        for machine in state.machines[before:]:
            _foresee(state, machine)
        return None
    for machine in taken:
        state.rooms.left[machine.place] += state.offer_market.taken(group)[machine.at]
        machine.jobs.pop()
    for machine in state.machines[before:]:
        state.offer_market.take(machine.at, -1)
    del state.machines[before:]
    return refusal


def _zones_taken(
    state: ProvisioningState, group: JobGroup, served_on: Sequence[int], taken: Sequence[PlannedInstance]
) -> frozenset[str]:
    """Return the zones in which no more ranks of a job may run, because of its other ranks."""
    if group.constraints is None or group.constraints.spread != "zone":
        return frozenset()
    instances = state.context.fleet.instances
    return frozenset([instances[at].offer.zone for at in served_on] + [each.offer.zone for each in taken])


def _may_meet(context: PlanContext, job: Job, group: JobGroup, company: Sequence[Job]) -> bool:
    """Return whether a rank of ``job`` may share an instance with the jobs of ``company`` (one entry per rank)."""
    if group.constraints is not None and group.constraints.spread != "none" and job in company:
        return False
    others = [context.topology.company(other.spec) for other in company] if group.company is not None else []
    return not any(other is not None and group.company.clashes(other) for other in others if group.company)


def _join(state: ProvisioningState, job: Job, group: JobGroup, zones: Set[str]) -> PlannedInstance | None:
    """Return a planned instance outside ``zones`` with room for a rank of ``job`` that its user can pay for, or None.

    A rented one is not shared while a reserved instance could still be launched.
    """
    if not state.machines:
        return None
    paid = _paid_for(state, job, group, zones)
    offer_market = state.offer_market
    for place in state.rooms.where(len(state.machines), offer_market.taken(group), offer_market.serving(group)):
        machine = state.machines[place]
        if paid and machine.offer.market is not Market.RESERVED:
            continue
        fits = machine.offer.zone not in zones and _may_meet(state.context, job, group, machine.jobs)
        if (
            fits
            and suits_company(state.context, group, machine.jobs)
            and cost_is_shared(state.context.ledger, machine.offer, machine.jobs, job)
        ):
            return machine
    return None


def _paid_for(state: ProvisioningState, job: Job, group: JobGroup, zones: Set[str]) -> bool:
    """Return whether an unused reserved instance could be launched in time for a rank of ``job``."""
    if not state.offer_market.sells_reserved:
        return False
    offers, deadline_at = state.offer_market.offers, job.deadline_at
    for at in state.offer_market.obtainable(group):
        offer = offers[at]
        ready_at = state.context.now + offer.instance_type.boot_delay_s
        late = deadline_at is not None and state.context.now < deadline_at < ready_at
        paid = offer.market is Market.RESERVED and offer.zone not in zones and not late
        if paid and _limits_refuse(state, job, offer) is None:
            return True
    return False


def _limits_refuse(state: ProvisioningState, job: Job, offer: Offer) -> Reason | None:
    """Return why caps or budgets do not allow an instance of ``offer`` for ``job``, or None.

    Room that is being made is for one job only: no later job may launch into it.
    """
    shares = state.context.ledger.shares([job], offer.instance_type.capacity)
    refusal = state.context.ledger.refusal(offer, shares)
    return state.future.refusal(offer, shares) if refusal is None and state.future is not None else refusal


def _open_machine(
    state: ProvisioningState, job: Job, group: JobGroup, zones: Set[str]
) -> tuple[PlannedInstance | None, Reason | None]:
    """Book the best offer outside ``zones`` that limits allow; else return the refusal of the cheapest."""
    offers, affordable = state.offer_market.offers, list[int]()
    refused: tuple[float, Offer, Reason] | None = None
    obtainable = state.offer_market.obtainable(group)
    elsewhere = [at for at in obtainable if offers[at].zone not in zones]
    if obtainable and not elsewhere:
        return None, _no_more_zones(state, group)
    if elsewhere and state.context.ledger.is_full:  # all are refused; the reason names the cheapest
        elsewhere = [min(elsewhere, key=lambda at: offers[at].price_usd_per_h)]
    for at in elsewhere:
        refusal = _limits_refuse(state, job, offers[at])
        if refusal is None:
            affordable.append(at)
        elif refused is None or offers[at].price_usd_per_h < refused[0]:
            refused = (offers[at].price_usd_per_h, offers[at], refusal)
    state.refused = refused[1] if refused is not None else None
    if not affordable and refused is None:
        return None, _quota_refusal(state, group) or _unobtainable(state, group)
    if not affordable and refused is not None:
        others = sum(machine.jobs[0] is job for machine in state.machines)
        return None, _refused(refused[1], refused[2], others)
    choices = rank_choices(state.context, state.offer_market, group, state.groups, affordable)
    offer, at = offers[choices[0].at], choices[0].at
    state.context.ledger.book_launch(offer, state.context.ledger.shares([job], offer.instance_type.capacity))
    state.offer_market.take(at)
    machine = PlannedInstance(offer=offer, at=at, place=len(state.machines), choices=choices)
    state.rooms.add(machine.place, at, vector(offer.instance_type.capacity))
    state.machines.append(machine)
    return machine, None


def _no_more_zones(state: ProvisioningState, group: JobGroup) -> Reason:
    """Return the reason that the nodes of a job of ``group`` find too few zones, for now or for ever."""
    offer_market, fleet = state.offer_market, state.context.fleet
    permitted_places = lastingly_permitted(state.context, group, np.ones(len(fleet.instances), dtype=np.bool_))
    zones = {offer_market.offers[int(at)].zone for at in np.flatnonzero(offer_market.fitting(group))}
    zones |= {fleet.instances[int(at)].offer.zone for at in np.flatnonzero(permitted_places)}
    need, named = f"its {group.needed} nodes need different zones (placement.spread)", ", ".join(sorted(zones))
    numbers: dict[str, Number] = {"zones": len(zones), "nodes": group.needed, "bound": "placement.spread"}
    if len(zones) < group.needed and _all_offers_known(state):
        text = f"can never run here: {need}, and only {len(zones)} can be used: {named}"
        return Reason(code="impossible", text=text, numbers={**numbers, "why": "too_few_zones"})
    text = f"{need}, but too few of {named} have machines available"
    return Reason(code="too_few_zones", text=text, numbers=numbers)


def _all_offers_known(state: ProvisioningState) -> bool:
    """Return whether the offers of every provider are known."""
    snapshot = state.context.snapshot
    return bool(snapshot.providers) and snapshot.providers <= snapshot.offers_known


def _refused(offer: Offer, refusal: Reason, others: int) -> Reason:
    """Return the refusal of an offer, with the number of instances for ``others`` of the job's nodes counted before
    it."""
    numbers: dict[str, Number] = {**refusal.numbers, "offer": "/".join(offer.key)}
    # These are not launched then; without the remark the numbers would not match what users see.
    included = f", including {others} for its other nodes" if others else ""
    text = f"{refusal.text}{included} ({offer_words(offer)})"
    return Reason(code=refusal.code, text=text, numbers=numbers)


def _quota_refusal(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason that the instances of a job of ``group`` together exceed a quota that a refusal showed."""
    offer_market = state.offer_market
    fitting = [int(at) for at in np.flatnonzero(offer_market.fitting(group))]
    for offer in (offer_market.offers[at] for at in fitting if offer_market.backoffs[at] is None):
        limit = offer_market.quotas.exceeded_by(offer)
        if limit is not None:
            needed, quota = group.needed * group.resources.vcpus, limit.vcpus - limit.instance_vcpus
            in_use = offer_market.quotas.in_use[limit.key]
            numbers: dict[str, Number] = {"needed_vcpus": needed, "quota_vcpus": quota, "in_use_vcpus": in_use}
            text = f"needs {needed:g} vCPUs, the quota is {quota:g} ({offer.market} in {offer.region})"
            return Reason(code="quota_exceeded", text=text, numbers={**numbers, "until_at": limit.until_at})
    return None


def _unobtainable(state: ProvisioningState, group: JobGroup) -> Reason:
    """Return why no offer is available for ``group``; the code ``impossible`` if none ever will be."""
    if (waits := _waits_for_reserved(state, group)) is not None:
        return waits
    reason = why_not_obtainable(state.context, state.offer_market, group)
    if reason.code not in ("no_offer_fits", "not_allowed", "no_such_type", "no_such_zone", "no_such_label"):
        return reason
    fleet = state.context.fleet
    large_enough: Mask = np.logical_and.reduce(fleet.capacity + SLACK >= group.demand[:, None], axis=0)
    if lastingly_permitted(state.context, group, large_enough).any():
        text = f"only running machines fit {amount(group.resources)}, and they are full; {reason.text}"
        return Reason(code="instance_full", text=text, numbers=reason.numbers)
    if _all_offers_known(state):
        numbers: dict[str, Number] = {**reason.numbers, "why": reason.code}
        return Reason(code="impossible", text=f"can never run here: {reason.text}", numbers=numbers)
    return reason


def _waits_for_reserved(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason that ``group`` waits for reserved room, if the hybrid mapping excludes every rented offer."""
    hybrid, offer_market = state.context.strategy.hybrid, state.offer_market
    if hybrid is None:
        return None
    kept_from = offer_market.fitting(group) & ~offer_market.rentable(group)
    if not any(
        offer_market.backoffs[at] is None and offer_market.in_stock(int(at)) for at in np.flatnonzero(kept_from)
    ):
        return None
    wait_s = hybrid.expected_wait_s(group.resources)
    numbers: dict[str, Number] = {
        "quality_needed": group.mapping_need.quality,
        "reserved_in_use": round(hybrid.utilisation, 4),
        "hard_limit": hybrid.policy.hard_limit,
        "expected_wait_s": wait_s,
        "spin_up_s": hybrid.spin_up_s if hybrid.spin_up_s < float("inf") else None,
    }
    in_use = percent(hybrid.utilisation)
    text = f"reserved room is {in_use} in use, and no rented offer has the quality it needs"
    return Reason(code=WAITS_FOR_RESERVED, text=text, numbers=numbers)


def _launch(state: ProvisioningState, machine: PlannedInstance) -> Launch:
    context, offer, jobs = state.context, machine.offer, machine.jobs
    chosen = next(choice for choice in machine.choices if choice.at == machine.at)
    others = [state.offer_market.offers[c.at] for c in machine.choices if c.at != machine.at][:3]
    job_ids = list(dict.fromkeys(job.id for job in jobs))
    names = ", ".join(job_ids[:3]) + (f" and {len(job_ids) - 3} more" if len(job_ids) > 3 else "")
    numbers: dict[str, Number] = {
        "price_usd_per_h": offer.price_usd_per_h,
        "jobs": len(job_ids),
        "ranks": len(jobs),
        "ranks_expected": chosen.ranks,
        "price_per_worth": round(chosen.score, 4),
        "horizon_usd": round(offer.price_usd_per_h * context.policy.lease.horizon_s / 3600, 6),
        "boot_delay_s": offer.instance_type.boot_delay_s,
        "alternatives": "; ".join(offer_words(other) for other in others),
    }
    why = "already paid for, best" if offer.market == "reserved" else "best value"
    text = f"{offer_words(offer)} for {names}: {why} of {counted(len(machine.choices), 'suitable offer')}"
    expires_at = context.now + context.policy.lease.horizon_s
    reason = Reason(code="launched_for_jobs", text=text, numbers=numbers)
    # A running job does not await its further nodes: it grows onto them.
    for_jobs = tuple(job.id for job in jobs if job.state not in JOB_ON_INSTANCE)
    for_running = tuple(job.id for job in jobs if job.state in JOB_ON_INSTANCE)
    return Launch(offer=offer, expires_at=expires_at, for_jobs=for_jobs, reason=reason, for_running=for_running)


# ---------------------------------------------------------------------------------------------------------- making room
def _make_room(state: ProvisioningState, job: Job, missing: int, refusal: Reason) -> Reason:
    """Terminate idle instances that fill caps or budgets and that fit no waiting job; return why ``job`` waits."""
    offer = state.refused
    if offer is None or not refusal.code.startswith(("cap_", "budget_")):
        return refusal
    instances, idle = state.context.fleet.instances, _idle(state)
    future, ended = future_of(state).copy(), list[int]()
    while not _book_all(future, offer, job, missing):
        if len(ended) == len(idle):
            return refusal
        ended.append(idle[len(ended)])
        future = future_of(state).copy()
        for at in ended:
            future.release(instances[at])
    if not ended and not _some_are_ending(state.context):
        return refusal
    if len(ended) + len(state.context.gone) > state.context.policy.disruption.max_terminations_per_cycle:
        return refusal
    state.future, state.idle = future, idle[len(ended) :]
    text = f"idle while {job.id} waits for a machine: {refusal.text}"
    for at in ended:
        state.context.terminate(at, Reason(code="make_room", text=text, numbers=refusal.numbers))
    return Reason(
        code="making_room",
        text=f"machines are being terminated to make room: {refusal.text}",
        numbers=refusal.numbers,
    )


def _some_are_ending(context: PlanContext) -> bool:
    return bool(context.gone) or len(context.fleet.staying) < len(context.fleet.instances)


def _book_all(ledger: BudgetLedger, offer: Offer, job: Job, count: int) -> bool:
    """Book ``count`` instances of ``offer`` for ``job``; return False as soon as one is refused."""
    shares = ledger.shares([job], offer.instance_type.capacity)
    for _ in range(count):
        if ledger.refusal(offer, shares) is not None:
            return False
        ledger.book_launch(offer, shares)
    return True


def _idle(state: ProvisioningState) -> list[int]:
    """Return unused instances, longest idle first; reserved ones cost the same and stay."""
    if state.idle is None:
        context, instances = state.context, state.context.fleet.instances
        idle = [at for at in context.fleet.staying if is_idle(context, at)]
        idle = [at for at in idle if instances[at].offer.market is not Market.RESERVED]
        state.idle = sorted(idle, key=lambda at: -idle_for_s(context, instances[at]))
    return [at for at in state.idle if at not in state.context.kept and at not in state.context.used]


def future_of(state: ProvisioningState) -> BudgetLedger:
    """Return the account once terminating instances are gone, including what this plan launches."""
    if state.future is None:
        context = state.context
        staying = [context.fleet.instances[at] for at in context.fleet.staying if at not in context.gone]
        state.future = open_budget(context.snapshot, context.policy, staying, context.jobs)
        for machine in state.machines:
            _foresee(state, machine)
    return state.future


def _foresee(state: ProvisioningState, machine: PlannedInstance) -> None:
    if state.future is not None:
        shares = state.future.shares(machine.jobs, machine.offer.instance_type.capacity)
        state.future.book_launch(machine.offer, shares)
