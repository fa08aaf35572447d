"""Buy instances for jobs that find no room: join one that this plan launches already, or open the best one that limits
allow."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from hcloud.core.model import JOB_ON_INSTANCE, Job, Market, Number, Offer, Reason
from hcloud.planner.budget import cost_is_shared
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, Places, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.offer_ranking import rank_choices
from hcloud.planner.placement.claims import suits_company
from hcloud.planner.placement.open_instances import usable
from hcloud.planner.placement.place import ranks_to_start
from hcloud.planner.plan import Launch
from hcloud.planner.provisioning.refusals import no_more_zones, quota_refusal, refused_offer, unobtainable
from hcloud.planner.provisioning.state import PlannedInstance, ProvisioningState, foresee
from hcloud.planner.text import offer_words
from hcloud.spec.validation import counted

ENGINE_UNREACHABLE = Reason(
    code="engine_unreachable",
    text="no machine is launched while the gateway does not answer: its worker could not register",
)
"""Why nothing is bought: each machine would be paid for until its lease ends, and the next one launched then."""


def buy(state: ProvisioningState, job: Job, group: JobGroup, served_on: Sequence[int]) -> Reason | None:
    """Assign the missing ranks of ``job`` to new instances, at least all needed; or return why not.

    Optional ranks get an instance only if the target needs them, or to correct a running job. ``served_on`` are the
    instances of its other ranks.
    """
    if not state.context.snapshot.engine_reachable:
        state.refused = None
        return ENGINE_UNREACHABLE
    if not state.machines and not state.offer_market.obtainable(group):  # cheap check; it decides for most waiting jobs
        state.refused = None
        return unobtainable(state, group)
    state.context.reservations.fork_ledger()
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
        state.context.reservations.count_active(job)
        for machine in state.machines[before:]:
            foresee(state, machine)
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
        if paid and limits_refuse(state, job, offer) is None:
            return True
    return False


def limits_refuse(state: ProvisioningState, job: Job, offer: Offer) -> Reason | None:
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
        return None, no_more_zones(state, group)
    if elsewhere and state.context.ledger.is_full:  # all are refused; the reason names the cheapest
        elsewhere = [min(elsewhere, key=lambda at: offers[at].price_usd_per_h)]
    for at in elsewhere:
        refusal = limits_refuse(state, job, offers[at])
        if refusal is None:
            affordable.append(at)
        elif refused is None or offers[at].price_usd_per_h < refused[0]:
            refused = (offers[at].price_usd_per_h, offers[at], refusal)
    state.refused = refused[1] if refused is not None else None
    if not affordable and refused is None:
        return None, quota_refusal(state, group) or unobtainable(state, group)
    if not affordable and refused is not None:
        others = sum(machine.jobs[0] is job for machine in state.machines)
        return None, refused_offer(refused[1], refused[2], others)
    choices = rank_choices(state.context, state.offer_market, group, state.groups, affordable)
    offer, at = offers[choices[0].at], choices[0].at
    state.context.ledger.book_launch(offer, state.context.ledger.shares([job], offer.instance_type.capacity))
    state.offer_market.take(at)
    machine = PlannedInstance(offer=offer, at=at, place=len(state.machines), choices=choices, group=group)
    state.rooms.add(machine.place, at, vector(offer.instance_type.capacity))
    state.machines.append(machine)
    return machine, None


def launch_action(state: ProvisioningState, machine: PlannedInstance) -> Launch:
    """Return the launch of a planned instance, with its reason."""
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
    if machine.group.off_spot:
        text += f"; no spot: {machine.group.off_spot}"
    lacking, crowded = short_of(state, machine.group)
    if lacking:
        numbers["short_of"] = lacking
        text += f"; too little {lacking} on {counted(crowded, 'machine')} with vCPUs free"
    for code, (words, places) in held_back(state, machine.group).items():
        ids = [context.fleet.instances[at].id for at in places.tolist()]
        numbers[f"held_back_{code}"] = ", ".join(ids)
        text += f"; {ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''} with room: {words}"
    expires_at = context.now + context.policy.lease.horizon_s
    reason = Reason(code="launched_for_jobs", text=text, numbers=numbers)
    # A running job does not await its further nodes: it grows onto them.
    for_jobs = tuple(job.id for job in jobs if job.state not in JOB_ON_INSTANCE)
    for_running = tuple(job.id for job in jobs if job.state in JOB_ON_INSTANCE)
    return Launch(offer=offer, expires_at=expires_at, for_jobs=for_jobs, reason=reason, for_running=for_running)


def short_of(state: ProvisioningState, group: JobGroup) -> tuple[str, int]:
    """Return what besides vCPUs is too little for ``group`` on instances whose vCPUs would do, and on how many."""
    fleet = state.context.fleet
    enough = fleet.free >= (group.demand - SLACK)[:, None]
    crowded = fleet.placeable & enough[0] & ~enough[1:].all(axis=0)
    named = zip(("memory", "disk", "GPUs"), enough[1:], strict=True)
    lacking = [name for name, each in named if (crowded & ~each).any()]
    return " and ".join(lacking), int(np.count_nonzero(crowded))


def held_back(state: ProvisioningState, group: JobGroup) -> dict[str, tuple[str, Places]]:
    """Return by code of the rule why instances with room are held back from ``group``, and which."""
    context, fleet = state.context, state.context.fleet
    roomy = fleet.fitting_now(group.demand, fleet.placeable)
    if context.suit is not None and group.application:
        roomy = context.suit.suited(group.application, roomy)
    return state.placement.holdback.causes(group, usable(context, group, roomy)) if np.count_nonzero(roomy) else {}
