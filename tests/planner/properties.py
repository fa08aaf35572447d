"""Properties of every plan, as functions that raise AssertionError, and for each a seeded fault that it must catch.

The oracles compute independently: they use neither the planner's ledger nor its arrays.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np
from hypothesis.strategies import SearchStrategy

from hcloud.core.budget_scope import tag_scope, user_scope
from hcloud.core.model import JOB_WAITING, Instance, InstanceState, Job, JobState, Market
from hcloud.planner import make_plan
from hcloud.planner.invariants import check_invariants
from hcloud.planner.plan import Action, Drain, Launch, Place, Plan, Profile, Renew, StopAttempt, Terminate, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Budgets, Caps, DisruptionPolicy, Policy
from tests.planner.apply_model import apply_ideally
from tests.strategies_planner import free_capacity

Planner = Callable[[Snapshot, Policy], Plan]
A = TypeVar("A", bound=Action)
MOST_REASONS = 3
"""So many plans in a row may find other reasons why jobs wait, though nothing else happens."""
Property = Callable[[Planner, Snapshot, Policy], None]


def honest(snapshot: Snapshot, policy: Policy) -> Plan:
    """The planner without a fault."""
    return make_plan(snapshot, policy, np.random.default_rng(7))


# ------------------------------------------------------------------------------------------------------ money and caps
def money_and_caps_hold(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No limit is exceeded that held before, and none that was exceeded already is exceeded further."""
    plan = planner(snapshot, policy)
    before, after = _usage(snapshot, policy), _usage(apply_ideally(snapshot, plan), policy)
    for rule, limit in _limits(policy, before.keys() | after.keys()):
        assert after[rule] <= max(limit, before[rule]) + 1e-6, (rule, limit, before[rule], after[rule])


def _usage(snapshot: Snapshot, policy: Policy) -> defaultdict[str, float]:
    used: defaultdict[str, float] = defaultdict(float)
    live = [i for i in snapshot.instances if i.state is not InstanceState.TERMINATED]
    used["instances"] = len(live)
    used["vcpus"] = sum(i.capacity.vcpus for i in live)
    used["per_hour"] = sum(_highest_price(i, snapshot.now) for i in live)
    for period, booked, ends_at in _periods(snapshot):
        used[period] = booked + sum(_promised(i, snapshot.now, ends_at) for i in live)
        used[f"next {period}"] = sum(
            _promised(i, snapshot.now, 1e18) - _promised(i, snapshot.now, ends_at) for i in live
        )
    for instance in live:
        used[f"type {instance.offer.instance_type.name}"] += 1
    for scope, usd in snapshot.spend.by_scope_day_usd.items():
        used[f"{scope.kind} {scope.name}"] += usd
    for job in snapshot.jobs:
        for instance, share in _shares(job, {i.id: i for i in live}):
            usd = share * _promised(instance, snapshot.now, snapshot.spend.day_ends_at)
            used[f"user {job.spec.user}"] += usd
            for key, value in job.spec.tags.items():
                used[f"tag {key}={value}"] += usd
    return used


def _periods(snapshot: Snapshot) -> Iterable[tuple[str, float, float]]:
    spend = snapshot.spend
    return (("per_day", spend.day_usd, spend.day_ends_at), ("per_month", spend.month_usd, spend.month_ends_at))


def _promised(instance: Instance, now: float, ends_at: float) -> float:
    offer, until = instance.offer, min(_paid_until(instance, now), ends_at)
    usd = offer.price_usd_per_h * max(0.0, until - now) / 3600
    if offer.ends_at is not None and offer.price_after_usd_per_h is not None:
        increase = offer.price_after_usd_per_h - offer.price_usd_per_h
        usd += increase * max(0.0, until - max(now, offer.ends_at)) / 3600
    return usd


def _paid_until(instance: Instance, now: float) -> float:
    return max(instance.expires_at, (instance.launched_at or now) + instance.offer.billing_minimum_s)


def _highest_price(instance: Instance, now: float) -> float:
    offer = instance.offer
    outlasts = offer.ends_at is not None and offer.ends_at < _paid_until(instance, now)
    return max(offer.price_usd_per_h, (offer.price_after_usd_per_h or 0.0) if outlasts else 0.0)


def _shares(job: Job, live: dict[str, Instance]) -> Iterable[tuple[Instance, float]]:
    """Return the share of each instance that a job holds or awaits: the larger of its vCPU and memory shares."""
    attempt = job.attempt if job.attempt is not None and job.attempt.stop_requested_at is None else None
    held = [(a.instance_id, a.resources) for a in (attempt.allocations if attempt else ()) if not a.released]
    grows = attempt is not None and not attempt.over
    boots = [i for i in live.values() if grows and i.state in (InstanceState.REQUESTED, InstanceState.BOOTING)]
    hoped = [*job.awaiting, *(i.id for i in boots for name in i.for_running if name == job.id)]
    for instance_id, amount in held + [(i, None) for i in hoped]:
        if instance_id in live:
            size = live[instance_id].capacity
            amount = amount or job.spec.resources_on(size)
            yield live[instance_id], max(amount.vcpus / size.vcpus, amount.memory_mib / size.memory_mib)


def _limits(policy: Policy, rules: Iterable[str]) -> Iterable[tuple[str, float]]:
    caps, budgets = policy.caps, policy.budgets
    stated: list[tuple[str, float | None]] = [
        ("instances", caps.max_instances),
        ("vcpus", caps.max_vcpus),
        ("per_hour", budgets.per_hour_usd),
        ("per_day", budgets.per_day_usd),
        ("per_month", budgets.per_month_usd),
        ("next per_day", budgets.per_day_usd),
        ("next per_month", budgets.per_month_usd),
        *((f"type {name}", limit) for name, limit in caps.max_instances_per_type.items()),
        *((rule, budgets.for_scope(user_scope(rule[5:])).per_day_usd) for rule in rules if rule.startswith("user ")),
        *((rule, budgets.for_scope(tag_scope(rule[4:])).per_day_usd) for rule in rules if rule.startswith("tag ")),
    ]
    return [(rule, limit) for rule, limit in stated if limit is not None]


def spends_without_limits(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: plans without budgets and caps."""
    return honest(snapshot, replace(policy, budgets=Budgets(), caps=Caps(max_instances=10**6, max_vcpus=None)))


def books_no_end_of_commitments(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: a renewed lease costs the committed price, also beyond the commitment's end."""
    machines = tuple(replace(i, offer=replace(i.offer, price_after_usd_per_h=None)) for i in snapshot.instances)
    return honest(replace(snapshot, instances=machines), policy)


# ------------------------------------------------------------------------------------------------------------ placement
def places_only_where_allowed(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Units start only on READY, answering, staying instances of a permitted market, and none while paused."""
    instances, jobs = {i.id: i for i in snapshot.instances}, {j.id: j for j in snapshot.jobs}
    plan = planner(snapshot, policy)
    leaving = {a.instance_id for a in plan.actions if isinstance(a, Terminate) or (isinstance(a, Drain) and not a.undo)}
    back = {a.instance_id for a in plan.actions if isinstance(a, Drain) and a.undo}
    renewed = {a.instance_id for a in plan.actions if isinstance(a, Renew)}
    places = _of(plan, Place)
    assert not snapshot.paused or not places, "placed while paused"
    for action in places:
        job = jobs[action.job_id]
        assert job.cancelled_by is None, f"{job.id} was cancelled"
        assert job.not_before_at <= snapshot.now or job.state is not JobState.QUEUED, f"{job.id} is backing off"
        for rank in action.ranks:
            machine = instances[rank.instance_id]
            ready = machine.state is InstanceState.READY or machine.id in back
            assert ready, f"{machine.id} is {machine.state}"
            assert machine.id in snapshot.reachable and machine.preempt_at is None and machine.id not in leaving
            lasts = machine.expires_at - snapshot.now > policy.lease.renew_before_s or machine.id in renewed
            assert lasts, f"{machine.id} is about to expire"
            assert machine.offer.market is not Market.SPOT or _may_use_spot(job, policy), f"{job.id} on spot"


def _may_use_spot(job: Job, policy: Policy) -> bool:
    return job.spec.target.kind in policy.spot.for_targets and job.spec.interruptible


def places_on_anything(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: takes every instance for READY, answering and staying."""
    machines = tuple(
        replace(i, state=InstanceState.READY, preempt_at=None, seen_at=snapshot.now, expires_at=snapshot.now + 3000)
        for i in snapshot.instances
    )
    return honest(replace(snapshot, instances=machines, reachable=frozenset(i.id for i in machines)), policy)


def nothing_is_oversubscribed(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Placed units fit what is free, one by one and together, and no other invariant is violated."""
    after = apply_ideally(snapshot, planner(snapshot, policy))
    known = set(check_invariants(snapshot))
    assert not [sentence for sentence in check_invariants(after) if sentence not in known]


def forgets_what_runs(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores what running units hold."""
    running = (JobState.RUNNING, JobState.PLACED)
    return honest(replace(snapshot, jobs=tuple(j for j in snapshot.jobs if j.state not in running)), policy)


def gangs_start_whole(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """All ranks of a gang are placed, once each, or none; an incremental job starts with at least its minimum."""
    jobs = {j.id: j for j in snapshot.jobs}
    for action in _of(planner(snapshot, policy), Place):
        job, ranks = jobs[action.job_id], [rank.rank for rank in action.ranks]
        fresh = job.attempt is None or job.attempt.over
        nodes = job.spec.nodes
        assert len(set(ranks)) == len(ranks) <= nodes.count
        assert not nodes.gang or sorted(ranks) == list(range(nodes.count)), f"{job.id}: {ranks} of {nodes.count}"
        assert not fresh or len(ranks) >= nodes.minimum, f"{job.id} starts with {len(ranks)} of {nodes.minimum}"


def drops_a_rank(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: drops the last rank of a job with several nodes."""
    plan = honest(snapshot, policy)
    return replace(plan, actions=tuple(_without_last_rank(a) for a in plan.actions))


def _without_last_rank(action: Action) -> Action:
    many = isinstance(action, Place) and len(action.ranks) > 1
    return replace(action, ranks=action.ranks[:-1]) if many and isinstance(action, Place) else action


def no_job_waits_beside_free_room(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """A job of one node does not wait while a READY instance that is promised to no other job has room for it."""
    plan = planner(snapshot, policy)
    after = apply_ideally(snapshot, plan)
    promised = {i for job in after.jobs for i in job.awaiting}
    gangs_wait = any(job.spec.nodes.count > 1 and job.state in JOB_WAITING for job in after.jobs)
    limits = (*policy.budgets.per_user.values(), *policy.budgets.per_tag.values())
    limited_users = any(limit.per_day_usd is not None for limit in limits)
    if after.paused or gangs_wait or limited_users or policy.caps.max_jobs_per_user is not None:
        return
    for job in after.jobs:
        if job.id in after.unreadable_secrets:
            continue
        if job.state is JobState.QUEUED and job.not_before_at <= after.now and job.cancelled_by is None:
            free = [m for m in _open_machines(after, policy) if m.id not in promised | _being_freed(after)]
            room = [m.id for m in free if _could_run(job, m, after, policy)]
            assert not room, f"{job.id} ({job.spec.resources}) waits for {job.wait_code!r} beside {room}"


def _being_freed(snapshot: Snapshot) -> set[str]:
    """Return the instances with stopping units; their room may be meant for a larger job."""
    attempts = [job.attempt for job in snapshot.jobs if job.attempt is not None]
    ending = [attempt for attempt in attempts if attempt.stop_requested_at is not None]
    return {held.instance_id for attempt in ending for held in attempt.allocations if not held.released}


def _open_machines(snapshot: Snapshot, policy: Policy) -> Iterable[Instance]:
    for machine in snapshot.instances:
        lasts = machine.expires_at - snapshot.now > policy.lease.renew_before_s
        answers = machine.id in snapshot.reachable and machine.preempt_at is None
        if machine.state is InstanceState.READY and lasts and answers:
            yield machine


def _could_run(job: Job, machine: Instance, snapshot: Snapshot, policy: Policy) -> bool:
    spot, free = machine.offer.market is Market.SPOT, free_capacity(machine, snapshot.jobs)
    alone = not job.spec.exclusive or free == machine.capacity
    wanted = job.spec.may_use(machine.offer) and not any(_apart(job, other) for other in _there(machine, snapshot))
    most = job.spec.vcpus_within[1] if job.spec.vcpus_within is not None else 0.0
    return (
        job.spec.resources.fits(free)
        and most <= free.vcpus
        and alone
        and wanted
        and (not spot or _may_use_spot(job, policy))
    )


def _there(machine: Instance, snapshot: Snapshot) -> Iterable[Job]:
    for job in snapshot.jobs:
        held = job.attempt.allocations if job.attempt is not None else ()
        if any(each.instance_id == machine.id and not each.released for each in held):
            yield job


def _apart(one: Job, other: Job) -> bool:
    """Return whether one of two jobs of one user must be kept apart from the other."""
    pairs = ((one.spec.placement, other.spec.name), (other.spec.placement, one.spec.name))
    asked = [fnmatchcase(name, each) for where, name in pairs if where is not None for each in where.apart_from]
    return one.spec.user == other.spec.user and any(asked)


def overlooks_a_machine(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: takes the instance with the highest number for unreachable."""
    seen = frozenset(sorted(snapshot.reachable)[:-1])
    return honest(replace(snapshot, reachable=seen, engine_reachable=False), policy)


def types_and_solitude_are_kept(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """A job uses only types it names; an exclusive job has its instances alone, and all of each."""
    plan = planner(snapshot, policy)
    jobs, instances = {j.id: j for j in snapshot.jobs}, {i.id: i for i in snapshot.instances}
    for place in _of(plan, Place):
        for rank in place.ranks:
            machine, spec = instances[rank.instance_id], jobs[place.job_id].spec
            assert spec.may_run_on(machine.offer.instance_type.name), f"{place.job_id} on {machine.id}"
            assert rank.resources == spec.resources_on(machine.capacity), f"{place.job_id} takes {rank.resources}"
    for launch in _of(plan, Launch):
        name, wanted = launch.offer.instance_type.name, [jobs[job_id].spec for job_id in launch.for_jobs]
        assert all(spec.may_run_on(name) for spec in wanted), f"{name} for {launch.for_jobs}"
        assert len(wanted) == 1 or not any(spec.exclusive for spec in wanted), f"{launch.for_jobs} would share"
    after = apply_ideally(snapshot, plan)
    unit_index: defaultdict[str, set[str]] = defaultdict(set)
    for job in after.jobs:
        for held in job.attempt.allocations if job.attempt else ():
            if not held.released:
                unit_index[held.instance_id].add(job.id)
    alone = {job.id for job in after.jobs if job.spec.exclusive}
    shared = {name: who for name, who in unit_index.items() if len(who) > 1 and who & alone}
    assert not shared, f"not alone: {shared}"


def forgets_types_and_solitude(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores types and exclusiveness."""
    plain = tuple(replace(j, spec=replace(j.spec, instance_types=(), exclusive=False)) for j in snapshot.jobs)
    return honest(replace(snapshot, jobs=plain), policy)


# ---------------------------------------------------------------------------------------------------------- same again
def same_again(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """The same snapshot, policy and seed give the same plan."""
    assert planner(snapshot, policy) == planner(snapshot, policy)


def moody() -> Planner:
    """Seeded fault: every second plan omits its first action."""
    calls = iter(range(10**9))

    def plan(snapshot: Snapshot, policy: Policy) -> Plan:
        whole = honest(snapshot, policy)
        return replace(whole, actions=whole.actions[next(calls) % 2 :])

    return plan


def names_and_order_do_not_matter(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Other ids in the same order, listed in another order, give the same plan and scores under those ids."""
    renamed = _renamed(snapshot)
    shuffled = replace(
        renamed,
        jobs=renamed.jobs[::-1],
        instances=renamed.instances[::-1],
        offers=renamed.offers[::-1],
        backoffs=renamed.backoffs[::-1],
        refused_quotas=renamed.refused_quotas[::-1],
    )
    given = [_nameless(a, snapshot) for a in planner(snapshot, policy).actions]
    assert [_nameless(a, shuffled) for a in planner(shuffled, policy).actions] == given


def _other_name(name: str) -> str:
    kind, _, number = name.partition("-")
    return f"{kind}-{int(number) * 3 + 1000}"


def _renamed(snapshot: Snapshot) -> Snapshot:
    jobs = tuple(_renamed_job(job) for job in snapshot.jobs)
    machines = tuple(replace(i, id=_other_name(i.id)) for i in snapshot.instances)
    reachable = frozenset(_other_name(name) for name in snapshot.reachable)
    unreadable = {_other_name(name): why for name, why in snapshot.unreadable_secrets.items()}
    return replace(snapshot, jobs=jobs, instances=machines, reachable=reachable, unreadable_secrets=unreadable)


def _renamed_job(job: Job) -> Job:
    name, awaiting = _other_name(job.id), tuple(_other_name(i) for i in job.awaiting)
    if job.attempt is None:
        return replace(job, id=name, awaiting=awaiting)
    held = tuple(replace(a, instance_id=_other_name(a.instance_id)) for a in job.attempt.allocations)
    attempt = replace(job.attempt, id=f"{name}.{job.attempt.number}", allocations=held)
    return replace(job, id=name, awaiting=awaiting, attempt=attempt)


def _nameless(action: Action, snapshot: Snapshot) -> tuple[object, ...]:
    """Return an action with positions instead of ids, and without texts."""
    names = [job.id for job in snapshot.jobs] + [instance.id for instance in snapshot.instances]
    order = {name: place for place, name in enumerate(sorted(names, key=_sort_key))}
    subject = order.get(getattr(action, "job_id", getattr(action, "instance_id", "")), -1)
    ranks = tuple((r.rank, order[r.instance_id]) for r in getattr(action, "ranks", ()))
    jobs = tuple(order[j] for j in getattr(action, "for_jobs", ()))
    offer = action.offer.key if isinstance(action, Launch) else ()
    scores = sorted((k, v) for k, v in action.reason.numbers.items() if isinstance(v, int | float))
    return (type(action).__name__, subject, ranks, jobs, offer, action.reason.code, scores)


def _sort_key(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("-")
    return kind, int(number)


def plans_in_listed_order(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores the last job listed."""
    return honest(replace(snapshot, jobs=snapshot.jobs[:-1]), policy)


def has_an_unlucky_number(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores jobs whose number is divisible by three."""
    seen = tuple(job for job in snapshot.jobs if int(job.id.partition("-")[2]) % 3)
    return honest(replace(snapshot, jobs=seen), policy)


def a_plan_settles(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Planning again after a plan was applied finds nothing to do, except to record why jobs wait.

    Only terminations beyond the limit per cycle are left for the next plan, and nodes that a job can do without:
    they join where room is left once it runs. Reasons settle in a few plans, as one job's may follow from
    another's. Profiling runs are new jobs, which the plan after them serves. The first launch of each plan tries
    whether a limit of a cloud has grown, which later ones of the same plan do not.
    """
    plan = planner(snapshot, policy)
    after = apply_ideally(snapshot, plan)
    while _of(plan, Profile):
        plan = planner(after, policy)
        after = apply_ideally(after, plan)
    again = planner(after, policy)
    refused = {each.key for each in snapshot.refused_quotas if each.until_at > snapshot.now}
    if len(_of(plan, Terminate)) >= policy.disruption.max_terminations_per_cycle:
        return
    if _of(plan, Launch) and any(each.offer.quota_key in refused for each in _of(again, Launch)):
        return
    started = {each.job_id for each in _of(plan, Place)}
    optional = {job.id for job in snapshot.jobs if job.spec.nodes.minimum < job.spec.nodes.count} & started
    joining = [each for each in _of(again, Place) if each.job_id in optional]
    assert not [a for a in again.actions if not isinstance(a, Wait) and a not in joining], again
    for _ in range(MOST_REASONS):
        after = apply_ideally(after, again)
        again = planner(after, policy)
        assert all(isinstance(each, Wait) for each in again.actions), again
    assert not again.actions


def forgets_what_it_awaits(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: forgets instances that were requested."""
    machines = tuple(i for i in snapshot.instances if i.state is not InstanceState.REQUESTED)
    return honest(replace(snapshot, instances=machines), policy)


# ----------------------------------------------------------------------------------------------------------- disruption
def disruption_stays_within_limits(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No more instances are terminated at once than allowed; only best-effort jobs are evicted, only if allowed, and no
    more often than their retries allow. What they lose counts by its price; there is no rest."""
    plan, jobs = planner(snapshot, policy), {j.id: j for j in snapshot.jobs}
    assert len(_of(plan, Terminate)) <= policy.disruption.max_terminations_per_cycle
    for stop in _of(plan, StopAttempt):
        job = jobs[stop.job_id]
        if stop.reason.code == "evicted_for_promise":
            assert policy.disruption.evict_best_effort
            assert job.spec.target.kind == "best_effort", f"{job.id} has a promise"
            assert job.attempt is not None
            evictions, most = job.failures.count("evicted"), job.spec.retries.limits.get("evicted", 0)
            assert evictions < most, f"{job.id} is evicted although it could not run again"


def ends_without_limit(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores the disruption limits."""
    return honest(snapshot, replace(policy, disruption=DisruptionPolicy(max_terminations_per_cycle=10**6)))


def _of(plan: Plan, kind: type[A]) -> list[A]:
    return [action for action in plan.actions if isinstance(action, kind)]


# ------------------------------------------------------------------------------------------------------------- the rest
RESERVED_WORDS = {"job_id", "instance_id", "user", "actor", "at", "kind", "code", "text", "from", "to", "seq"}


def reasons_are_complete(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Every action has a reason with code and text, and no number is named like a column of the event log."""
    for action in planner(snapshot, policy).actions:
        reason = action.reason
        assert reason.code, action
        assert reason.text, action
        assert not RESERVED_WORDS & reason.numbers.keys(), action
        assert all(isinstance(v, float | int | str | bool | None) for v in reason.numbers.values()), action


def speechless(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: one kind of action has no text."""
    plan = honest(snapshot, policy)
    blank = [replace(a, reason=replace(a.reason, text="")) if isinstance(a, Wait) else a for a in plan.actions]
    return replace(plan, actions=tuple(blank))


def machines_are_bought_as_allowed(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Launches are of offers that are allowed, not backed off, in stock, and large enough for their jobs."""
    jobs, bought = {j.id: j for j in snapshot.jobs}, Counter[tuple[str, ...]]()
    plan = planner(snapshot, policy)
    assert not (snapshot.paused and _of(plan, Launch)), "launched while paused"
    for launch in _of(plan, Launch):
        offer = launch.offer
        bought[offer.key] += 1
        [offered] = [each for each in snapshot.offers if each.key == offer.key]
        ends = [each.ends_at for each in offered.committed] or [offered.ends_at]
        assert replace(offered, ends_at=offer.ends_at, committed=()) == replace(offer, committed=()), "not offered so"
        assert offer.ends_at in ends and policy.allow.refusal(offer) is None
        assert not any(b.covers(offer) and b.until_at > snapshot.now for b in snapshot.backoffs), "backed off"
        assert offer.available is None or bought[offer.key] <= offer.available, "more than there are"
        assert launch.for_jobs, "for nobody"
        for job in (jobs[job_id] for job_id in launch.for_jobs):
            assert job.spec.resources.fits(offer.instance_type.capacity), f"too small for {job.id}"
            assert offer.market is not Market.SPOT or _may_use_spot(job, policy), f"spot for {job.id}"


def buys_what_is_sold_out(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores stock."""
    endless = tuple(replace(offer, available=None) for offer in snapshot.offers)
    restore = {offer.key: offer for offer in snapshot.offers}
    plan = honest(replace(snapshot, offers=endless), policy)
    actions = [replace(a, offer=restore[a.offer.key]) if isinstance(a, Launch) else a for a in plan.actions]
    return replace(plan, actions=tuple(actions))


@dataclass(frozen=True)
class Case:
    """A property, and a planner that breaks it."""

    holds: Property
    broken_by: Callable[[], Planner]
    seed: int = 0
    """Without it, random snapshots rarely show the fault."""
    scenes: SearchStrategy[Snapshot] | None = None
    """Snapshots drawn for this property alone."""


CASES = (
    Case(money_and_caps_hold, lambda: spends_without_limits),
    Case(money_and_caps_hold, lambda: books_no_end_of_commitments, seed=327),
    Case(places_only_where_allowed, lambda: places_on_anything),
    Case(nothing_is_oversubscribed, lambda: forgets_what_runs, seed=8),
    Case(gangs_start_whole, lambda: drops_a_rank, seed=20),
    Case(no_job_waits_beside_free_room, lambda: overlooks_a_machine, seed=306),
    Case(types_and_solitude_are_kept, lambda: forgets_types_and_solitude, seed=3),
    Case(same_again, moody),
    Case(names_and_order_do_not_matter, lambda: plans_in_listed_order),
    Case(names_and_order_do_not_matter, lambda: has_an_unlucky_number),
    Case(a_plan_settles, lambda: forgets_what_it_awaits, seed=3),
    Case(disruption_stays_within_limits, lambda: ends_without_limit),
    Case(reasons_are_complete, lambda: speechless),
    Case(machines_are_bought_as_allowed, lambda: buys_what_is_sold_out, seed=1),
)
