"""Properties of plans under a provisioning strategy, and for each a seeded fault that it must catch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hcloud.core.estimates import Classification
from hcloud.core.model import Instance, InstanceState, Job, Market, Offer
from hcloud.planner.plan import Launch, Place, Plan
from hcloud.planner.provisioning.offer_rules import forbidden
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy, ProvisioningPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.properties import Case, Planner, honest
from tests.strategies_planner import free_capacity


# ----------------------------------------------------------------------------------------------------- what is paid for
def what_is_paid_for_is_not_idle(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No instance is rented for a job while a reserved one that could serve it is idle or not launched.

    This includes jobs that share a rented instance, as long as limits allow one instance more.
    """
    if policy.provisioning.strategy in ("odf", "odm") or _users_are_limited(policy):
        return
    plan, jobs = planner(snapshot, policy), {job.id: job for job in snapshot.jobs}
    after = apply_ideally(snapshot, plan)
    _no_job_awaits_rent_beside_idle(jobs, after, policy)
    rented = [a for a in plan.actions if isinstance(a, Launch) and a.offer.market is not Market.RESERVED]
    for launch in rented:
        job = jobs[launch.for_jobs[0]]
        if job.spec.nodes.count == 1:
            unlaunched = [o.key for o in _unlaunched(after, policy, launch.offer) if _fits(job, o)]
            assert not unlaunched, f"{launch.offer.key} is rented for {job.id}, {unlaunched} are paid for"
        for job in (jobs[each] for each in launch.for_jobs[1:] if _has_room_for_more(after, policy)):
            spare = [o.key for o in _unlaunched(after, policy, launch.offer) if _fits(job, o)]
            late = job.deadline_at is not None and job.deadline_at < snapshot.now + 60.0
            assert not spare or late or job.spec.nodes.count > 1, f"{job.id} joins {launch.offer.key} beside {spare}"


def _no_job_awaits_rent_beside_idle(jobs: Mapping[str, Job], after: Snapshot, policy: Policy) -> None:
    """No job that this plan made await a rented instance could run on an idle reserved one."""
    reserved = {m.id: m.offer.market is Market.RESERVED for m in after.instances}
    idle = list(_idle_reserved(after, policy))
    for job in after.jobs:
        came = job.spec.nodes.count == 1 and job.awaiting and job.awaiting != jobs[job.id].awaiting
        if came and not any(reserved.get(name) for name in job.awaiting):
            beside = [m.id for m in idle if _fits(job, m.offer)]
            assert not beside, f"{job.id} awaits rented {job.awaiting} beside idle {beside}"


def _has_room_for_more(snapshot: Snapshot, policy: Policy) -> bool:
    """Return whether no limit could refuse one more instance."""
    caps, budgets = policy.caps, policy.budgets
    unlimited = caps.max_vcpus is None and budgets.per_hour_usd is None and budgets.per_day_usd is None
    pooled = any(offer.pool for offer in snapshot.offers)
    return unlimited and budgets.per_month_usd is None and len(snapshot.instances) < caps.max_instances and not pooled


def _users_are_limited(policy: Policy) -> bool:
    limits = (*policy.budgets.per_user.values(), *policy.budgets.per_tag.values())
    return any(each.per_day_usd is not None for each in limits) or policy.caps.max_jobs_per_user is not None


def _idle_reserved(snapshot: Snapshot, policy: Policy) -> Iterable[Instance]:
    """Return the reserved instances that are ready, stay, and are neither held nor awaited."""
    awaited = {i for job in snapshot.jobs for i in job.awaiting}
    for machine in snapshot.instances:
        lasts = machine.expires_at - snapshot.now > policy.lease.renew_before_s
        up = machine.state is InstanceState.READY and machine.id in snapshot.reachable and machine.preempt_at is None
        empty = free_capacity(machine, snapshot.jobs) == machine.capacity
        if machine.offer.market is Market.RESERVED and up and lasts and empty and machine.id not in awaited:
            yield machine


def _unlaunched(snapshot: Snapshot, policy: Policy, instead_of: Offer) -> Iterable[Offer]:
    """Return the reserved instances that could have been launched instead: no larger, no more expensive, no cap of
    their own."""
    for offer in snapshot.offers:
        stock = offer.available is None or offer.available >= 1
        tried = any(b.covers(offer) and b.until_at > snapshot.now for b in snapshot.backoffs)
        small = offer.instance_type.capacity.vcpus <= instead_of.instance_type.capacity.vcpus
        cheap = offer.price_usd_per_h <= instead_of.price_usd_per_h
        capped = offer.instance_type.name in policy.caps.max_instances_per_type
        if offer.market is Market.RESERVED and stock and not tried and small and cheap and not capped:
            yield offer


def _fits(job: Job, offer: Offer) -> bool:
    return job.spec.resources.fits(offer.instance_type.capacity) and job.spec.may_use(offer)


def rents_beside_the_reserved(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: takes reserved instances for unreachable, and ignores reserved offers."""
    kinds = {m.id: m.offer.market for m in snapshot.instances}
    seen = frozenset(name for name in snapshot.reachable if kinds[name] is not Market.RESERVED)
    offers = tuple(offer for offer in snapshot.offers if offer.market is not Market.RESERVED)
    return honest(replace(snapshot, reachable=seen, engine_reachable_since=snapshot.now, offers=offers), policy)


def joins_what_is_rented_anyway(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: a job that gets a reserved instance shares one rented for another job."""
    plan = honest(snapshot, policy)
    launches = [action for action in plan.actions if isinstance(action, Launch)]
    rented = next((each for each in launches if each.offer.market is not Market.RESERVED), None)
    paid = next((each for each in launches if each.offer.market is Market.RESERVED), None)
    if rented is None or paid is None:
        return plan
    shared = replace(rented, for_jobs=(*rented.for_jobs, *paid.for_jobs))
    kept = [shared if action is rented else action for action in plan.actions if action is not paid]
    return replace(plan, actions=tuple(kept))


def joins_beside_the_idle(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: a job that could start on an idle reserved instance shares one rented for another job."""
    plan, markets = honest(snapshot, policy), {m.id: m.offer.market for m in snapshot.instances}
    launches = [a for a in plan.actions if isinstance(a, Launch) and a.offer.market is not Market.RESERVED]
    starts = [a for a in plan.actions if isinstance(a, Place) and markets[a.ranks[0].instance_id] is Market.RESERVED]
    if not launches or not starts:
        return plan
    shared = replace(launches[0], for_jobs=(*launches[0].for_jobs, starts[0].job_id))
    kept = [shared if action is launches[0] else action for action in plan.actions if action is not starts[0]]
    return replace(plan, actions=tuple(kept))


# ------------------------------------------------------------------------------------------------------- the strategies
def each_strategy_rents_what_it_may(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """SR launches reserved instances only, OdF and OdM none; OdF and HF rent full servers only."""
    name, full = policy.provisioning.strategy, _full_from(snapshot, policy)
    for launch in (a for a in planner(snapshot, policy).actions if isinstance(a, Launch)):
        reserved = launch.offer.market is Market.RESERVED
        assert name != "sr" or reserved, f"{launch.offer.key} under SR"
        assert name not in ("odf", "odm") or not reserved, f"{launch.offer.key} under {name}"
        is_full = launch.offer.instance_type.capacity.vcpus >= full
        assert name not in ("odf", "hf") or reserved or is_full, f"{launch.offer.key} is no full server"


def _full_from(snapshot: Snapshot, policy: Policy) -> float:
    limit = policy.caps.max_price_usd_per_h or float("inf")
    rented = [o for o in snapshot.offers if o.market is not Market.RESERVED and o.price_usd_per_h <= limit]
    return min(
        [policy.provisioning.full_server_vcpus, max([o.instance_type.capacity.vcpus for o in rented], default=0)]
    )


def rents_anything(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores the strategy."""
    return honest(snapshot, replace(policy, provisioning=ProvisioningPolicy(strategy="best_value")))


def no_job_is_placed_below_the_quality_needed(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Under P8 a job runs on reserved instances, full servers, or types of which 90 % deliver what it needs, or about
    as much as the best type. Without reserved capacity nothing is mapped."""
    own, machines = policy.provisioning, {m.id: m for m in snapshot.instances}
    reserved = [m.offer for m in snapshot.instances] + [o for o in snapshot.offers if o.available != 0]
    if own.strategy not in ("hf", "hm") or own.mapping != "p8" or Market.RESERVED not in {o.market for o in reserved}:
        return
    jobs, full = {j.id: j for j in snapshot.jobs}, _full_from(snapshot, policy)
    for place in (a for a in planner(snapshot, policy).actions if isinstance(a, Place)):
        needed = _needed(jobs[place.job_id], snapshot.applications, own)
        for offer in (machines[rank.instance_id].offer for rank in place.ranks):
            vcpus = offer.instance_type.capacity.vcpus
            if offer.market is not Market.RESERVED and vcpus < full:
                delivered = _delivered(offer, snapshot, own, full)
                enough = (1.0 - policy.placement.tolerance) * _best(snapshot, policy, full)
                least = min(needed, enough)
                assert delivered > least - 0.01, f"{place.job_id} needs {needed}, {offer.key} delivers {delivered}"


def _delivered(offer: Offer, snapshot: Snapshot, own: ProvisioningPolicy, full: float) -> float:
    part = min(1.0, offer.instance_type.capacity.vcpus / full)
    guess = own.unmeasured_quality_small * (1 - part) + own.unmeasured_quality_full * part
    return snapshot.fleet_stats.quality.q90(offer, unknown=guess)


def _best(snapshot: Snapshot, policy: Policy, full: float) -> float:
    """Return the best quality that the offers deliver which may be rented."""
    rented = [o for o in snapshot.offers if o.market is not Market.RESERVED and forbidden(policy, o) is None]
    if policy.provisioning.strategy == "hf":
        rented = [offer for offer in rented if offer.instance_type.capacity.vcpus >= full]
    return max((_delivered(each, snapshot, policy.provisioning, full) for each in rented), default=1.0)


def _needed(job: Job, known: dict[str, Classification] | object, own: ProvisioningPolicy) -> float:
    if job.spec.target.kind == "best_effort":
        return 0.0
    assert hasattr(known, "get")
    classification = known.get(job.application)
    if classification is not None:
        value: float = classification.quality_target.value
        return value
    return own.assumed_quality_service if job.spec.target.kind == "service" else own.assumed_quality_batch


def takes_every_job_for_an_easy_one(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: assumes that jobs need no quality."""
    easy = replace(policy.provisioning, assumed_quality_batch=0.0, assumed_quality_service=0.0)
    return honest(replace(snapshot, applications={}), replace(policy, provisioning=easy))


# ---------------------------------------------------------------------------------------------------------------- stock
def shared_pools_are_not_oversold(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """What one plan launches of offers that share a pool fits into what is left of the pool."""
    left = {(o.provider, o.pool): o.pool_free for o in snapshot.offers if o.pool_free is not None}
    for launch in (a for a in planner(snapshot, policy).actions if isinstance(a, Launch)):
        pool, size = (launch.offer.provider, launch.offer.pool), launch.offer.instance_type.capacity
        free = left.get(pool)
        if free is not None:
            assert size.fits(free), f"{launch.offer.key} is launched into {free}"
            left[pool] = free.minus(size)


def takes_each_offer_for_a_host_of_its_own(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores shared pools."""
    own = {offer.key: offer for offer in snapshot.offers}
    offers = tuple(replace(offer, pool="", pool_free=None) for offer in snapshot.offers)
    plan = honest(replace(snapshot, offers=offers), policy)
    actions = [replace(a, offer=own[a.offer.key]) if isinstance(a, Launch) else a for a in plan.actions]
    return replace(plan, actions=tuple(actions))


CASES = (
    Case(what_is_paid_for_is_not_idle, lambda: rents_beside_the_reserved, seed=6),
    Case(what_is_paid_for_is_not_idle, lambda: joins_what_is_rented_anyway, seed=2),
    Case(what_is_paid_for_is_not_idle, lambda: joins_beside_the_idle, seed=71),
    Case(each_strategy_rents_what_it_may, lambda: rents_anything),
    Case(shared_pools_are_not_oversold, lambda: takes_each_offer_for_a_host_of_its_own),
    Case(no_job_is_placed_below_the_quality_needed, lambda: takes_every_job_for_an_easy_one, seed=23),
)
