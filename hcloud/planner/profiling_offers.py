"""The offers to profile a job on, and what a run on one costs.

One offer per type is chosen, because a profile on two types says how a job does on all others (Paragon §2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from hcloud.core.model import Job, Market, Offer, Resources, matches
from hcloud.planner.context import PlanContext
from hcloud.planner.profiling_state import ProfilingState, may_use_spot, type_of
from hcloud.planner.provisioning.offer_rules import forbidden
from hcloud.spec.policy import ProfilingPolicy

MOST_TIMES_REQUESTED = 4.0
"""If the planner chooses the size of a job, it is measured with up to this many times the vCPUs it requests."""


def offers_for(state: ProfilingState, job: Job) -> list[Offer]:
    """Return one offer per type to profile on; the first one, if possible, with a vCPU to spare for a neighbour.

    Idle instances come first, of the types that together say most about all others (Paragon §2.2 takes random ones);
    then the cheapest offers.
    """
    key = (job.spec.resources, job.spec.instance_types, job.spec.placement)
    known = state.offers.get(key)
    if known is None:
        known = state.offers[key] = _search_offers(state, job)
    return known


def _search_offers(state: ProfilingState, job: Job) -> list[Offer]:
    cheapest = dict[tuple[str, str], Offer]()
    for offer in _permitted(state.context).offers:
        kind = type_of(offer)
        fits = kind not in cheapest and job.spec.resources.fits(offer.instance_type.capacity)
        if fits and job.spec.may_use(offer) and _is_available(state, offer):
            cheapest[kind] = offer
    offers = sorted(cheapest.values(), key=lambda each: state.idle[type_of(each)] <= 0)
    return _most_informative(state, offers, _roomy(state, job, offers) or offers)


def _roomy(state: ProfilingState, job: Job, offers: Sequence[Offer]) -> list[Offer]:
    """Return the ``offers`` with vCPUs to spare for a neighbour and, if any is within the cost limit, for the sizes
    above the requested one."""
    roomy = [offer for offer in offers if has_spare_vcpus(state, job, offer)]
    limit_usd, most = cost_limit_usd(state), most_vcpus(job)
    wide = [o for o in roomy if o.instance_type.capacity.vcpus >= most and run_usd(state.policy, o) <= limit_usd]
    return wide or roomy


def _most_informative(state: ProfilingState, found: Sequence[Offer], roomy: Sequence[Offer]) -> list[Offer]:
    """Return ``found`` in the order to profile on, at most ``profiling.types`` of them; the first is ``roomy``.

    Of the idle types those that say most together come first, then the others in the given order.
    """
    prior, types, by_column = state.context.snapshot.type_prior, state.policy.types, {_column_of(o): o for o in found}
    idle = [column for column, offer in by_column.items() if state.idle[type_of(offer)] > 0]
    suitable = [_column_of(offer) for offer in roomy]
    if prior is None or not idle:
        informative: tuple[str, ...] = ()
    elif suitable[0] in idle:
        informative = prior.most_telling(idle, types, one_of=suitable)
    else:
        informative = prior.most_telling(idle, types - 1, one_of=idle, already=suitable[:1])
    head = [column for column in (*informative, *suitable) if column in suitable][:1]
    order = [by_column[column] for column in dict.fromkeys((*head, *informative, *by_column))]
    return _within_pools(state, order)[:types]


def _within_pools(state: ProfilingState, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers, in order, of which one instance each can exist at the same time: a host has limited room."""
    left, kept = dict[tuple[str, str], Resources](), list[Offer]()
    for offer in offers:
        size, pool = offer.instance_type.capacity, (offer.provider, offer.pool)
        if offer.pool and offer.pool_free is not None and state.idle[type_of(offer)] <= 0:
            free = left.get(pool, offer.pool_free)
            if not size.fits(free):
                continue
            left[pool] = free.minus(size)
        kept.append(offer)
    return kept


def _column_of(offer: Offer) -> str:
    return "/".join(type_of(offer))


class _Permitted(NamedTuple):
    """What policy and strategy allow for profiling."""

    offers: list[Offer]
    """The cheapest first."""
    least_run_usd: float
    """What a run costs on the cheapest of them, at least."""


def least_run_usd(context: PlanContext) -> float:
    """Return what a run on one instance costs in USD at least, whatever the job; inf: there are no offers."""
    return _permitted(context).least_run_usd


def _permitted(context: PlanContext) -> _Permitted:
    made_of = (context.snapshot.offers, context.policy)

    def permitted() -> _Permitted:
        offers, policy = _permitted_offers(context), context.policy.profiling
        return _Permitted(offers, min([run_usd(policy, each) for each in offers], default=inf))

    return context.snapshot.plan_cache.get("to profile on", made_of, permitted)


def _permitted_offers(context: PlanContext) -> list[Offer]:
    """Return the offers that policy and strategy allow for profiling, cheapest first."""
    spot_ok = may_use_spot(context)
    policy, types = context.policy, context.policy.profiling.instance_types
    offers = list[Offer]()
    for offer in sorted(context.snapshot.offers, key=lambda each: (each.price_usd_per_h, each.key)):
        refused = forbidden(policy, offer) is not None or context.strategy.refusal(offer) is not None
        named = not types or matches(offer.instance_type.name, types)
        if named and not refused and (spot_ok or offer.market is not Market.SPOT):
            offers.append(offer)
    return offers


def _is_available(state: ProfilingState, offer: Offer) -> bool:
    """Return whether an instance of ``offer`` can be launched now or is idle; all reserved ones may be running
    already."""
    if state.idle[type_of(offer)] > 0:
        return True
    backoffs, now = state.context.snapshot.backoffs, state.context.now
    return offer.available != 0 and not any(b.covers(offer) and b.until_at > now for b in backoffs)


def second_offer(state: ProfilingState, offers: Sequence[Offer]) -> Offer | None:
    """Return the offer for the second instance of a profile: another type, else the same one if two are available; None
    if the policy wants one type only, or there is no second instance."""
    if len(offers) > 1 or state.policy.types == 1:
        return offers[1] if len(offers) > 1 else None
    first = offers[0]
    two = state.idle[type_of(first)] > 1 or first.available is None or first.available > 1
    return first if two else None


def has_spare_vcpus(state: ProfilingState, job: Job, offer: Offer) -> bool:
    """Return whether an instance of ``offer`` has vCPUs to spare for a source of interference next to ``job``."""
    return offer.instance_type.capacity.vcpus >= job.spec.resources.vcpus + state.policy.spare_vcpus


def most_vcpus(job: Job) -> float:
    """Return with how many vCPUs a job should be measured at least, where it may get so many."""
    vcpus, within = job.spec.resources.vcpus, job.spec.vcpus_within
    return vcpus if within is None else max(vcpus, min(within[1], MOST_TIMES_REQUESTED * vcpus))


def run_usd(policy: ProfilingPolicy, offer: Offer) -> float:
    """Return what a run on one instance may cost in USD."""
    held_s = max(offer.billing_minimum_s, offer.instance_type.boot_delay_s + policy.total_s)
    return offer.price_usd_per_h * held_s / 3600


def cost_limit_usd(state: ProfilingState) -> float:
    """Return what all runs of one job may cost together in USD; inf if there is no limit."""
    per_day_usd, policy = state.context.policy.budgets.per_day_usd, state.policy
    return min(
        policy.max_usd_per_job if policy.max_usd_per_job is not None else inf,
        policy.max_share_of_budget * per_day_usd if per_day_usd is not None else inf,
    )
