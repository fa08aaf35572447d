"""What is done for jobs that find no room: wait for room that comes, evict best effort, or launch; else say why not.

Each unplaced job, in queue order, claims room in this order: on running machines (what attempts that are being stopped
will free), on machines that are starting, by evicting best-effort jobs, on machines this plan launches. Claims on room
that comes are not recorded anywhere: every plan makes them anew, in the same order, and so never launches twice for
the same need.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from hcloud.model import JOB_ON_INSTANCE, Instance, Job, JobState, Market, Number, Offer, Reason
from hcloud.planner.draft import Draft, Group
from hcloud.planner.eviction import Victims, evict_for, find_victims, put_back, stop_chosen
from hcloud.planner.exclusion import kept_away
from hcloud.planner.fleet import SLACK, Amounts, Mask, Places, fits_any, vector
from hcloud.planner.lateness import no_use
from hcloud.planner.leases import idle_for_s
from hcloud.planner.ledger import CAPPED, Ledger, cap_reached, launch_shares, open_ledger, shares_cost
from hcloud.planner.offers import Choice, Counter, open_counter, rank_choices, why_not_obtainable
from hcloud.planner.placement import (
    awaited_places,
    claim,
    closed,
    has_room_now,
    holding_out,
    pay_for_claims,
    permitted,
    place_now,
    pledge,
    queue_again,
    suits_company,
    unclaim,
)
from hcloud.planner.plan import Finish, Launch
from hcloud.planner.retention import is_idle
from hcloud.planner.thrift import open_thrift
from hcloud.planner.wording import amount, deadline_numbers, offer_words, seconds

WAITS_FOR_RESERVED = "waits_for_reserved"
"""The reason's code of a job that a hybrid strategy lets wait rather than rent something for it."""


@dataclass(slots=True, eq=False)
class NewMachine:
    """A machine this plan launches: offer number ``at`` of the counter, its ``place`` in :class:`Rooms`, and the jobs
    it is for."""

    offer: Offer
    at: int
    place: int
    choices: list[Choice]
    jobs: list[Job] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Rooms:
    """What is ``left`` of each machine this plan launches, shape ``(N, 3)``, and of which offer it is (``at``). All are
    looked at at one stroke, as a cluster's first plan launches thousands. Rows beyond theirs mean nothing."""

    left: Amounts = field(default_factory=lambda: np.zeros((16, 3)))
    at: Places = field(default_factory=lambda: np.zeros(16, dtype=np.intp))

    def add(self, place: int, at: int, capacity: Amounts) -> None:
        """Note a machine of offer ``at``, nothing of which is taken."""
        if place >= len(self.at):
            self.left, self.at = np.concatenate([self.left, self.left]), np.concatenate([self.at, self.at])
        self.left[place], self.at[place] = capacity, at

    def where(self, count: int, taken: Amounts, serves: Mask) -> list[int]:
        """Return which of the first ``count`` machines have room for what a rank takes of a machine of each offer,
        shape ``(M, 3)``; offers that do not serve it are left out."""
        at = self.at[:count]
        roomy = np.logical_and.reduce(self.left[:count] + SLACK >= taken[at], axis=1)
        found: list[int] = (roomy & serves[at]).nonzero()[0].tolist()
        return found


@dataclass(slots=True)
class Desk:
    """The scratch space of this stage. ``future``: the account as it will be when machines that are ending are gone.
    ``refused``: the cheapest offer that limits had no room for when one was last asked for. ``capped``: who waits only
    as no more machines are allowed."""

    draft: Draft
    counter: Counter
    victims: Victims
    groups: list[Group]
    machines: list[NewMachine] = field(default_factory=list)
    rooms: Rooms = field(default_factory=Rooms)
    future: Ledger | None = None
    idle: list[int] | None = None
    closed: Reason | None = None
    refused: Offer | None = None
    capped: list[tuple[Job, Group]] = field(default_factory=list)

    @property
    def running(self) -> Mask:
        """Machines that run and stay, whether or not anybody uses them."""
        running = self.draft.fleet.placeable.copy()
        running[list(self.draft.lazy)] = False
        return running


def open_desk(draft: Draft) -> Desk:
    """Prepare the stage; to be called once, before anything is placed."""
    draft.fleet.expect(draft.stopping)
    desk = Desk(
        draft=draft, counter=open_counter(draft), victims=find_victims(draft), groups=list(draft.groups.values())
    )
    draft.open_of = open_thrift(draft, desk.counter).open
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in desk.groups:
        key = (group.spot_ok, group.instance_types, group.exclusive, group.constraints, group.hurry > 0)
        alike.setdefault(key, []).append(group)
    for groups in alike.values():
        _rule_out(desk, groups)
    return desk


def _rule_out(desk: Desk, groups: Sequence[Group]) -> None:
    """Note which ``groups`` (alike in what markets and types they may use) find no room now, none later, no offer."""
    if groups:
        draft, counter = desk.draft, desk.counter
        sizes = counter.capacity[counter.permitted(groups[0])]
        demands = np.array([group.demand for group in groups])
        allowed = permitted(draft, groups[0], draft.fleet.placeable | draft.fleet.coming)
        if groups[0].exclusive:
            allowed = allowed & draft.fleet.unshared(draft.fleet.room)
        now = draft.fleet.fits_somewhere(demands, allowed & draft.fleet.placeable)
        coming = bool((allowed & ~draft.fleet.placeable).any())
        later = draft.fleet.fits_somewhere(demands, allowed) if coming else now
        offered = fits_any(demands, sizes)
        for at, group in enumerate(groups):
            group.fits_now, group.fits_later, group.offered = bool(now[at]), bool(later[at]), bool(offered[at])


def provision(desk: Desk) -> None:
    """Serve ``draft.unplaced``: new machines (see :func:`launch`), evictions, and the reasons of those that wait."""
    draft, limited = desk.draft, desk.draft.policy.caps.max_jobs_per_user is not None
    for job, group in draft.unplaced:
        group.pending -= 1
        if job.state is JobState.AWAITING_INSTANCE:
            if _still_served(desk, job, group):
                continue
            job = queue_again(draft, job, no_use(job, draft.late))
        if limited and (capped := draft.user_cap(job)) is not None:
            _give_reason(draft, job, capped)
            continue
        if group.stuck is None:
            refusal = _closed(desk, group) or _serve(desk, job, group)
            group.stuck = kept_away(draft, group, holding_out(draft, job, group, refusal))
        if group.stuck is not None and group.stuck.code == CAPPED:
            desk.capped.append((job, group))
        if group.stuck is not None and (job.wait_code != group.stuck.code or group.stuck.code == "impossible"):
            _give_reason(draft, job, group.stuck)


def expand(desk: Desk) -> None:
    """Decide on new machines for the missing nodes of running jobs that miss their target (``draft.expanding``)."""
    draft, index = desk.draft, desk.draft.fleet.index
    for job in draft.expanding:
        held = job.attempt.allocations if job.attempt is not None else ()
        present = [index[each.instance_id] for each in held if not each.released and each.instance_id in index]
        ledger = draft.ledger
        if _buy(desk, job, draft.group_of(job), present) is None:
            draft.count_active(job, -1)  # it is counted already
        else:
            draft.ledger = ledger


def launch(desk: Desk) -> None:
    """Plan the launches of the machines that were decided on."""
    for machine in desk.machines:
        desk.draft.add(_launch(desk, machine))


def _closed(desk: Desk, group: Group) -> Reason | None:
    """Return the reason common to all when nothing can be claimed, bought or ended: the one look a long queue costs."""
    if group.fits_later or not group.offered:
        return None
    if desk.closed is None:
        draft, alive = desk.draft, desk.draft.ledger.instances
        limit, ending = draft.policy.caps.max_instances, alive > len(draft.fleet.staying)
        # Only a promise may evict, so victims open nothing for a queue of best effort alone.
        evictable = desk.victims.amounts.any() and any(each.promise for each in desk.groups)
        if alive >= limit and not (ending or draft.gone or evictable or _idle(desk)):
            desk.closed = cap_reached("instances", "machines alive or on order", alive, 1, limit)
    return desk.closed


def _give_reason(draft: Draft, job: Job, reason: Reason) -> None:
    if reason.code == "impossible":
        draft.add(Finish(job_id=job.id, state=JobState.FAILED, reason=reason))
    else:
        draft.wait(job, reason.code, lambda: reason)


# ------------------------------------------------------------------------------------------------------------- claiming
def _serve(desk: Desk, job: Job, group: Group) -> Reason | None:
    """Claim room for one job, or leave everything as it was and return why no job of its group can be served."""
    draft, needed, claimable = desk.draft, group.needed, _claimable(desk, group)
    # Most find nothing to claim, and leave nothing to undo.
    before = draft.mark() if claimable.any() or draft.fleet.coming.any() else None
    ledger, running = draft.ledger, claim(draft, group, claimable, needed)
    coming = claim(draft, group, draft.fleet.coming, needed - len(running), running)
    if len(running) + len(coming) < needed:
        unclaim(draft, group, coming)
        if group.promise and _evict(desk, group, needed - len(running), running):
            stop_chosen(draft, desk.victims, job)
            coming = []
        else:
            coming = claim(draft, group, draft.fleet.coming, needed - len(running), running)
            served = len(running) + len(coming)
            desk.refused = None
            refusal = pay_for_claims(draft, job, group, [*running, *coming])
            refusal = refusal or _buy(desk, job, group, [*running, *coming])
            if refusal is None:
                draft.used.update(running)
                return None
            if before is not None:
                draft.back_to(before)
            draft.ledger = ledger
            if _lift(desk, job, group, refusal):
                return None
            return _make_room(desk, job, needed - served, refusal)
    draft.used.update(running)
    _wait_for_claims(draft, job, coming)
    return None


def _claimable(desk: Desk, group: Group) -> Mask:
    """Return the running machines whose room ``group`` may wait for: not what is free, but closed to it."""
    draft, fleet = desk.draft, desk.draft.fleet
    roomy = fleet.fitting(group.demand, fleet.placeable)
    if draft.suit is not None and group.application:
        roomy = draft.suit.suited(group.application, roomy)
    places = roomy.nonzero()[0]
    if not places.size:  # nothing to claim, whatever is closed
        return roomy
    taken, free = group.taken_on(fleet.capacity, places), np.zeros(len(roomy), dtype=np.bool_)
    free[places] = np.logical_and.reduce(fleet.free.take(places, axis=1) >= taken - SLACK, axis=0)
    return desk.running & roomy & ~closed(draft, group, free)


def _lift(desk: Desk, job: Job, group: Group, refusal: Reason) -> bool:
    """Place ``job`` on machines that were closed to it, as nothing can be rented; return whether it fits."""
    draft, everywhere = desk.draft, np.ones_like(desk.draft.fleet.placeable)
    if refusal.code == WAITS_FOR_RESERVED or not has_room_now(draft, group):
        return False
    if not (group.lifted or closed(draft, group, everywhere).any()):
        return False
    group.lifted = group.fits_now = group.fits_well = True
    return place_now(draft, job, group)


def _still_served(desk: Desk, job: Job, group: Group) -> bool:
    """Claim for a job that awaits machines what it does not hold yet; or return False and claim nothing."""
    draft = desk.draft
    held = draft.holds.pop(job.id, [])
    running = claim(draft, group, _claimable(desk, group), group.needed - len(held), held)
    taken = [*held, *running]
    coming = claim(draft, group, draft.fleet.coming, group.needed - len(taken), taken)
    if len(held) + len(running) + len(coming) < group.needed:
        unclaim(draft, group, [*held, *running, *coming])
        return False
    draft.used.update(held, running, awaited_places(draft, job))
    return True


def _evict(desk: Desk, group: Group, count: int, running: Sequence[int]) -> bool:
    """Choose victims for ``count`` ranks beside those on ``running``, and claim their room, or choose none."""
    if not desk.victims.amounts.any():
        return False
    before, taken = desk.draft.mark(), list(running)
    for _ in range(count):
        claimed = claim(desk.draft, group, _claimable(desk, group), 1, taken)
        if not claimed:
            at = evict_for(desk.draft, desk.victims, group, taken)
            if at < 0:
                desk.draft.back_to(before)
                put_back(desk.draft, desk.victims)
                return False
            pledge(desk.draft, group, at)
            claimed = [at]
        taken += claimed
    return True


def _wait_for_claims(draft: Draft, job: Job, coming: Sequence[int]) -> None:
    if coming:
        draft.wait(job, "booting", lambda: _booting(draft, job, draft.fleet.instances[coming[-1]]))
    else:
        text = "waits for units that were asked to end to make room"
        draft.wait(job, "making_room", lambda: Reason(code="making_room", text=text))


def _booting(draft: Draft, job: Job, machine: Instance) -> Reason:
    expected_at = (machine.launched_at or machine.requested_at) + machine.offer.instance_type.boot_delay_s
    left_s = max(0.0, expected_at - draft.now)
    numbers: dict[str, Number] = {"instance": machine.id, "expected_at": expected_at, "expected_in_s": round(left_s, 3)}
    text = f"has room on {machine.id}, which is starting; expected in {seconds(left_s)}"
    return Reason(code="booting", text=text, numbers={**numbers, **deadline_numbers(job, draft.now)})


# --------------------------------------------------------------------------------------------------------------- buying
def _buy(desk: Desk, job: Job, group: Group, served_on: Sequence[int]) -> Reason | None:
    """Give ``job`` its missing ranks on new machines (all wanted, at least all needed), or return why not.

    ``served_on``: machines that serve the others of its ranks.
    """
    if not desk.machines and not desk.counter.obtainable(group):  # of most that wait no more need be worked out
        desk.refused = None
        return _unobtainable(desk, group)
    desk.draft.ledger = desk.draft.ledger.copy()
    before, taken, refusal, served = len(desk.machines), list[NewMachine](), None, len(served_on)
    while served + len(taken) < group.wanted and refusal is None:
        zones = _zones_taken(desk, group, served_on, taken)
        machine = _join(desk, job, group, zones)
        if machine is None:
            machine, refusal = _open_machine(desk, job, group, zones)
        if machine is not None:
            desk.rooms.left[machine.place] -= desk.counter.taken(group)[machine.at]
            machine.jobs.append(job)
            taken.append(machine)
    if served + len(taken) >= group.needed:
        desk.draft.count_active(job)
        for machine in desk.machines[before:]:
            _foresee(desk, machine)
        return None
    for machine in taken:
        desk.rooms.left[machine.place] += desk.counter.taken(group)[machine.at]
        machine.jobs.pop()
    for machine in desk.machines[before:]:
        desk.counter.take(machine.at, -1)
    del desk.machines[before:]
    return refusal


def _zones_taken(desk: Desk, group: Group, served_on: Sequence[int], taken: Sequence[NewMachine]) -> frozenset[str]:
    """Return the zones in which no more ranks of a job may be, as others are there."""
    if group.constraints is None or group.constraints.spread != "zone":
        return frozenset()
    instances = desk.draft.fleet.instances
    return frozenset([instances[at].offer.zone for at in served_on] + [each.offer.zone for each in taken])


def _may_meet(draft: Draft, job: Job, group: Group, company: Sequence[Job]) -> bool:
    """Return whether a rank of ``job`` may share a machine with those of ``company`` (one entry per rank)."""
    if group.constraints is not None and group.constraints.spread != "none" and job in company:
        return False
    others = [draft.whereabouts.company(other.spec) for other in company] if group.company is not None else []
    return not any(other is not None and group.company.clashes(other) for other in others if group.company)


def _join(desk: Desk, job: Job, group: Group, zones: Set[str]) -> NewMachine | None:
    """Return a machine this plan launches anyway, in none of ``zones``, with room for a rank of ``job`` (and its user
    the money). What is rented is not joined while something that is paid for could still be launched."""
    if not desk.machines:
        return None
    paid = _paid_for(desk, job, group, zones)
    counter = desk.counter
    for place in desk.rooms.where(len(desk.machines), counter.taken(group), counter.serving(group)):
        machine = desk.machines[place]
        if paid and machine.offer.market is not Market.RESERVED:
            continue
        fits = machine.offer.zone not in zones and _may_meet(desk.draft, job, group, machine.jobs)
        if (
            fits
            and suits_company(desk.draft, group, machine.jobs)
            and shares_cost(desk.draft.ledger, machine.offer, machine.jobs, job)
        ):
            return machine
    return None


def _paid_for(desk: Desk, job: Job, group: Group, zones: Set[str]) -> bool:
    """Return whether a reserved machine that nobody uses could be launched for a rank of ``job``, in time."""
    if not desk.counter.sells_reserved:
        return False
    offers, deadline_at = desk.counter.offers, job.deadline_at
    for at in desk.counter.obtainable(group):
        offer = offers[at]
        ready_at = desk.draft.now + offer.instance_type.boot_delay_s
        late = deadline_at is not None and desk.draft.now < deadline_at < ready_at
        paid = offer.market is Market.RESERVED and offer.zone not in zones and not late
        if paid and _limits_refuse(desk, job, offer) is None:
            return True
    return False


def _limits_refuse(desk: Desk, job: Job, offer: Offer) -> Reason | None:
    """Return why caps or budgets have no room for a machine of ``offer`` for ``job``.

    Room that is being made is for the job it is made for: nobody behind it may launch into it.
    """
    shares = launch_shares([job], offer.instance_type.capacity)
    refusal = desk.draft.ledger.refusal(offer, shares)
    return desk.future.refusal(offer, shares) if refusal is None and desk.future is not None else refusal


def _open_machine(desk: Desk, job: Job, group: Group, zones: Set[str]) -> tuple[NewMachine | None, Reason | None]:
    """Book the best offer in none of ``zones`` that limits have room for; else return the refusal of the cheapest."""
    offers, affordable = desk.counter.offers, list[int]()
    refused: tuple[float, Offer, Reason] | None = None
    obtainable = desk.counter.obtainable(group)
    elsewhere = [at for at in obtainable if offers[at].zone not in zones]
    if obtainable and not elsewhere:
        return None, _no_more_zones(desk, group)
    for at in elsewhere:
        refusal = _limits_refuse(desk, job, offers[at])
        if refusal is None:
            affordable.append(at)
        elif refused is None or offers[at].price_usd_per_h < refused[0]:
            refused = (offers[at].price_usd_per_h, offers[at], refusal)
    desk.refused = refused[1] if refused is not None else None
    if not affordable:
        others = sum(machine.jobs[0] is job for machine in desk.machines)
        return None, _unobtainable(desk, group) if refused is None else _refused(refused[1], refused[2], others)
    choices = rank_choices(desk.draft, desk.counter, group, desk.groups, affordable)
    offer, at = offers[choices[0].at], choices[0].at
    desk.draft.ledger.book_launch(offer, launch_shares([job], offer.instance_type.capacity))
    desk.counter.take(at)
    machine = NewMachine(offer=offer, at=at, place=len(desk.machines), choices=choices)
    desk.rooms.add(machine.place, at, vector(offer.instance_type.capacity))
    desk.machines.append(machine)
    return machine, None


def _no_more_zones(desk: Desk, group: Group) -> Reason:
    """Return that the nodes of a job of ``group`` find too few zones: for now, or ever."""
    counter, fleet = desk.counter, desk.draft.fleet
    there = permitted(desk.draft, group, np.ones(len(fleet.instances), dtype=np.bool_))
    zones = {counter.offers[int(at)].zone for at in np.flatnonzero(counter.fitting(group))}
    zones |= {fleet.instances[int(at)].offer.zone for at in np.flatnonzero(there)}
    asked, named = f"its {group.needed} nodes go to different zones (placement.spread)", ", ".join(sorted(zones))
    numbers: dict[str, Number] = {"zones": len(zones), "nodes": group.needed, "bound": "placement.spread"}
    if len(zones) < group.needed and _all_told(desk):
        text = f"can never run here: {asked}, and there are {len(zones)}: {named}"
        return Reason(code="impossible", text=text, numbers={**numbers, "why": "too_few_zones"})
    text = f"{asked}; nothing can be had now in enough of {named}"
    return Reason(code="too_few_zones", text=text, numbers=numbers)


def _all_told(desk: Desk) -> bool:
    """Whether every provider has said what can be had."""
    snapshot = desk.draft.snapshot
    return bool(snapshot.providers) and snapshot.providers <= snapshot.offers_known


def _refused(offer: Offer, refusal: Reason, others: int) -> Reason:
    """Return the refusal of an offer, with how many machines for ``others`` of the job's nodes were counted before."""
    numbers: dict[str, Number] = {**refusal.numbers, "offer": "/".join(offer.key)}
    # These are not bought then: who looks would find fewer machines, and less spent, than the refusal tells.
    counted = f", counting {others} for its other nodes" if others else ""
    return Reason(code=refusal.code, text=f"{offer_words(offer)}: {refusal.text}{counted}", numbers=numbers)


def _unobtainable(desk: Desk, group: Group) -> Reason:
    """Return why nothing can be bought for ``group``: for now, or ever (then the code is ``impossible``)."""
    if (waits := _waits_for_reserved(desk, group)) is not None:
        return waits
    reason = why_not_obtainable(desk.draft, desk.counter, group)
    if reason.code not in ("no_offer_fits", "not_allowed", "no_such_type", "no_such_zone", "no_such_label"):
        return reason
    fleet = desk.draft.fleet
    large_enough: Mask = np.logical_and.reduce(fleet.capacity + SLACK >= group.demand[:, None], axis=0)
    if permitted(desk.draft, group, large_enough).any():
        text = f"only running machines are large enough for {amount(group.resources)}, and they are full; {reason.text}"
        return Reason(code="instance_full", text=text, numbers=reason.numbers)
    if _all_told(desk):
        numbers: dict[str, Number] = {**reason.numbers, "why": reason.code}
        return Reason(code="impossible", text=f"can never run here: {reason.text}", numbers=numbers)
    return reason


def _waits_for_reserved(desk: Desk, group: Group) -> Reason | None:
    """Return that ``group`` waits for reserved room, where the mapping keeps it from what could be rented."""
    hybrid, counter = desk.draft.strategy.hybrid, desk.counter
    if hybrid is None:
        return None
    kept_from = counter.fitting(group) & ~counter.rentable(group)
    if not any(counter.backoffs[at] is None and counter.in_stock(int(at)) for at in np.flatnonzero(kept_from)):
        return None
    wait_s = hybrid.expected_wait_s(group.resources)
    numbers: dict[str, Number] = {
        "quality_needed": group.leaning.quality,
        "reserved_in_use": round(hybrid.utilisation, 4),
        "hard_limit": hybrid.policy.hard_limit,
        "expected_wait_s": wait_s,
        "spin_up_s": hybrid.spin_up_s if hybrid.spin_up_s < float("inf") else None,
    }
    text = f"waits for reserved room: {hybrid.utilisation:.0%} of it is in use, and what could be rented is not for it"
    return Reason(code=WAITS_FOR_RESERVED, text=text, numbers=numbers)


def _launch(desk: Desk, machine: NewMachine) -> Launch:
    draft, offer, jobs = desk.draft, machine.offer, machine.jobs
    chosen = next(choice for choice in machine.choices if choice.at == machine.at)
    others = [desk.counter.offers[c.at] for c in machine.choices if c.at != machine.at][:3]
    who = list(dict.fromkeys(job.id for job in jobs))
    names = ", ".join(who[:3]) + (f" and {len(who) - 3} more" if len(who) > 3 else "")
    numbers: dict[str, Number] = {
        "price_usd_per_h": offer.price_usd_per_h,
        "jobs": len(who),
        "ranks": len(jobs),
        "ranks_expected": chosen.ranks,
        "price_per_worth": round(chosen.score, 4),
        "horizon_usd": round(offer.price_usd_per_h * draft.policy.lease.horizon_s / 3600, 6),
        "boot_delay_s": offer.instance_type.boot_delay_s,
        "alternatives": "; ".join(offer_words(other) for other in others),
    }
    why = "paid already" if offer.market == "reserved" else "the best value that fits"
    text = f"{offer_words(offer)} for {names}: {why} of {len(machine.choices)} offer(s) that can be had"
    expires_at = draft.now + draft.policy.lease.horizon_s
    reason = Reason(code="launched_for_jobs", text=text, numbers=numbers)
    # A running job does not await its further nodes: it grows onto them.
    for_jobs = tuple(job.id for job in jobs if job.state not in JOB_ON_INSTANCE)
    for_running = tuple(job.id for job in jobs if job.state in JOB_ON_INSTANCE)
    return Launch(offer=offer, expires_at=expires_at, for_jobs=for_jobs, reason=reason, for_running=for_running)


# ---------------------------------------------------------------------------------------------------------- making room
def _make_room(desk: Desk, job: Job, missing: int, refusal: Reason) -> Reason:
    """End idle machines that keep caps or budgets full and that nobody waiting fits on; return why ``job`` waits."""
    offer = desk.refused
    if offer is None or not refusal.code.startswith(("cap_", "budget_")):
        return refusal
    instances, idle = desk.draft.fleet.instances, _idle(desk)
    future, ended = future_of(desk).copy(), list[int]()
    while not _book_all(future, offer, job, missing):
        if len(ended) == len(idle):
            return refusal
        ended.append(idle[len(ended)])
        future = future_of(desk).copy()
        for at in ended:
            future.release(instances[at])
    if not ended and not _some_are_ending(desk.draft):
        return refusal
    if len(ended) + len(desk.draft.gone) > desk.draft.policy.disruption.max_terminations_per_cycle:
        return refusal
    desk.future, desk.idle = future, idle[len(ended) :]
    text = f"idle here while {job.id} waits for a machine: {refusal.text}"
    for at in ended:
        desk.draft.terminate(at, Reason(code="make_room", text=text, numbers=refusal.numbers))
    return Reason(code="making_room", text=f"machines are ending to make room: {refusal.text}", numbers=refusal.numbers)


def _some_are_ending(draft: Draft) -> bool:
    return bool(draft.gone) or len(draft.fleet.staying) < len(draft.fleet.instances)


def _book_all(ledger: Ledger, offer: Offer, job: Job, count: int) -> bool:
    """Book ``count`` machines of ``offer`` for ``job``; return False as soon as one is refused."""
    shares = launch_shares([job], offer.instance_type.capacity)
    for _ in range(count):
        if ledger.refusal(offer, shares) is not None:
            return False
        ledger.book_launch(offer, shares)
    return True


def _idle(desk: Desk) -> list[int]:
    """Return machines nobody needs, longest idle first; reserved ones cost the same unused and stay."""
    if desk.idle is None:
        draft, instances = desk.draft, desk.draft.fleet.instances
        idle = [at for at in draft.fleet.staying if is_idle(draft, at)]
        idle = [at for at in idle if instances[at].offer.market is not Market.RESERVED]
        desk.idle = sorted(idle, key=lambda at: -idle_for_s(draft, instances[at]))
    return [at for at in desk.idle if at not in desk.draft.kept and at not in desk.draft.used]


def future_of(desk: Desk) -> Ledger:
    """Return the account as it will be when the machines that are ending are gone, with what this plan launches."""
    if desk.future is None:
        draft = desk.draft
        staying = [draft.fleet.instances[at] for at in draft.fleet.staying if at not in draft.gone]
        desk.future = open_ledger(draft.snapshot, draft.policy, staying, draft.jobs)
        for machine in desk.machines:
            _foresee(desk, machine)
    return desk.future


def _foresee(desk: Desk, machine: NewMachine) -> None:
    if desk.future is not None:
        shares = launch_shares(machine.jobs, machine.offer.instance_type.capacity)
        desk.future.book_launch(machine.offer, shares)
