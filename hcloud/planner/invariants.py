"""Invariants of every snapshot, checked after tests, in the chaos suite and in long runs.

A violation means that a decision, an apply or a recovery was wrong.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hcloud.core.budget_scope import BudgetScope, scopes_of
from hcloud.core.model import (
    INSTANCE_COMING,
    JOB_ENDED,
    JOB_ON_INSTANCE,
    Allocation,
    Constraints,
    Instance,
    InstanceState,
    Job,
    JobId,
    JobState,
    Offer,
    Resources,
    matches,
)
from hcloud.planner.budget import PERIODS, Bill
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import size_share
from hcloud.spec.policy import Policy

Scopes = tuple[BudgetScope, ...]
_SLACK = 1e-6
MOST_PROFILE_RUNS = 6
"""One short run, then one run each on types, steps and nodes, and one repeat where the job later differs from its
estimate."""


def check_invariants(snapshot: Snapshot, policy: Policy | None = None) -> list[str]:
    """Return one sentence per violation, in a fixed order; an empty list if there is none.

    With ``policy``, caps and budgets are checked too. They hold for decisions made under this policy at these prices:
    leave it out if the policy has become stricter, or prices have risen, since.
    """
    by_id = {instance.id: instance for instance in snapshot.instances}
    violations = [
        *_unique("job", [j.id for j in snapshot.jobs]),
        *_unique("instance", [i.id for i in snapshot.instances]),
    ]
    violations += _unique("launch token", [i.token for i in snapshot.instances])
    for job in snapshot.jobs:
        violations += _job(job, by_id)
    violations += _profiling(snapshot.jobs)
    violations += _fit(snapshot.jobs, by_id)
    violations += _gpus(snapshot.jobs, by_id)
    violations += _demands(snapshot.jobs, by_id)
    for instance in snapshot.instances:
        violations += _instance(instance)
    return violations + (_limits(snapshot, policy) if policy is not None else [])


def _unique(what: str, names: Sequence[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    return [f"{what} {name} exists more than once" for name in twice]


def _profiling(jobs: Sequence[Job]) -> Iterator[str]:
    """A profiling run that was not cancelled belongs to one set of runs only, of a job that waits for it or has run."""
    by_id = {job.id: job for job in jobs}
    for job in jobs:
        request = job.spec.profile
        if request is not None and request.job_id and job.cancelled_by is None and job.state not in JOB_ENDED:
            parent = by_id.get(request.job_id)
            # A job that never ran waits for its runs; those of one that has ended measure for later jobs.
            waits = parent is None or parent.state is JobState.SUBMITTED or parent.attempts_made > 0
            if parent is not None and not (waits and job.id in parent.profile_runs):
                yield f"{job.id} profiles {request.job_id}, which does not wait for it"
            if job.profile_runs:
                yield f"{job.id} is a profiling run and is profiled itself"
        if len(set(job.profile_runs)) < len(job.profile_runs) or len(job.profile_runs) > MOST_PROFILE_RUNS:
            names = ", ".join(job.profile_runs)
            most = "a first look, three others, a repeat and one in place"
            yield f"{job.id} has the profiling runs {names}: at most {most}"


def _job(job: Job, by_id: Mapping[str, Instance]) -> Iterator[str]:
    attempt = job.attempt
    if job.state in JOB_ON_INSTANCE and attempt is None:
        yield f"{job.id} is {job.state} without an attempt"
    if attempt is not None and not attempt.over and job.state not in JOB_ON_INSTANCE:
        yield f"{job.id} is {job.state} while attempt {attempt.id} holds resources"
    if job.state in JOB_ENDED and job.finished_at is None:
        yield f"{job.id} is {job.state} without finished_at"
    yield from _attempt(job, by_id)
    if job.awaiting and job.state is not JobState.AWAITING_INSTANCE:
        yield f"{job.id} is {job.state}, but awaits {', '.join(job.awaiting)}"
    if job.state is JobState.AWAITING_INSTANCE and not job.awaiting:
        yield f"{job.id} awaits an instance, but names none"


def _attempt(job: Job, by_id: Mapping[str, Instance]) -> Iterator[str]:
    attempt = job.attempt
    if attempt is None:
        return
    if attempt.id != f"{job.id}.{attempt.number}" or attempt.number != job.attempts_made:
        yield f"{job.id} has made {job.attempts_made} attempt(s), but its current one is {attempt.id}"
    ranks = [a.rank for a in attempt.allocations]
    if len(set(ranks)) < len(ranks):
        yield f"{attempt.id} has a rank twice: {ranks}"
    if len(ranks) > job.spec.nodes.count or not ranks:
        yield f"{attempt.id} has {len(ranks)} rank(s); {job.spec.nodes.count} were requested"
    if job.spec.nodes.gang and len(ranks) not in (0, job.spec.nodes.count):
        yield f"{attempt.id} is a gang, but has {len(ranks)} of {job.spec.nodes.count} ranks"
    for held in attempt.allocations:
        if not held.released and held.instance_id not in by_id:
            yield f"{attempt.id} rank {held.rank} holds part of {held.instance_id}, which does not exist"
        elif not held.released and by_id[held.instance_id].state is InstanceState.TERMINATED:
            yield f"{attempt.id} rank {held.rank} holds part of {held.instance_id}, which is terminated"
        due = job.spec.resources_on(by_id[held.instance_id].capacity) if held.instance_id in by_id else held.resources
        if held.resources != due and not _was_resized(job, held, due) and not _may_choose(job, held):
            yield f"{attempt.id} rank {held.rank} holds other resources than its job requested"


def _may_choose(job: Job, held: Allocation) -> bool:
    within, requested = job.spec.vcpus_within, job.spec.resources
    same = replace(held.resources, vcpus=requested.vcpus) == requested
    return within is not None and same and within[0] <= held.resources.vcpus <= within[1]


def _was_resized(job: Job, held: Allocation, due: Resources) -> bool:
    resized = any(c.step == "resize" for c in job.corrections)
    due = replace(due, vcpus=min(due.vcpus, *(job.spec.vcpus_within or (due.vcpus,))))
    return resized and replace(held.resources, vcpus=due.vcpus) == due and held.resources.vcpus >= due.vcpus


def _demands(jobs: Sequence[Job], by_id: Mapping[str, Instance]) -> Iterator[str]:
    """Units are where ``placement`` allows them, next to each other and next to those of other jobs."""
    jobs_on: defaultdict[str, set[JobId]] = defaultdict(set)
    demands_of = {job.id: job.spec.placement or Constraints() for job in jobs}
    names, users = {job.id: job.spec.name for job in jobs}, {job.id: job.spec.user for job in jobs}
    for job in jobs:
        parts = [part for part in job.attempt.allocations if not part.released] if job.attempt is not None else []
        held = [by_id[part.instance_id] for part in parts if part.instance_id in by_id]
        demands = demands_of[job.id]
        must_spread = demands.spread != "none" or matches(job.spec.name, demands.apart_from)
        for instance in held:
            jobs_on[instance.id].add(job.id)
            if not demands.accepts_zone(instance.offer.zone):
                yield f"{job.id} is in zone {instance.offer.zone}; it requested {', '.join(demands.zones)}"
        if must_spread and len({instance.id for instance in held}) < len(held):
            yield f"{job.id} has two nodes on one instance, which are to be apart"
        if demands.spread == "zone" and len({instance.offer.zone for instance in held}) < len(held):
            yield f"{job.id} has two nodes in one zone; it requested spread zone"
    for instance_id, together in sorted(jobs_on.items()):
        for one in sorted(together):
            for other in sorted(together - {one}):
                if users[other] == users[one] and matches(names[other], demands_of[one].apart_from):
                    yield f"{one} shares {instance_id} with {other}, from which it is to be apart"


def _fit(jobs: Sequence[Job], by_id: Mapping[str, Instance]) -> list[str]:
    held: dict[str, Resources] = {}
    for job in jobs:
        for part in job.attempt.allocations if job.attempt is not None else ():
            if not part.released:
                so_far = held.get(part.instance_id)
                held[part.instance_id] = part.resources if so_far is None else so_far.plus(part.resources)
    return [
        f"{instance_id} is oversubscribed: {amount} held of {by_id[instance_id].capacity}"
        for instance_id, amount in sorted(held.items())
        if instance_id in by_id and not _fits(amount, by_id[instance_id].capacity)
    ]


def _gpus(jobs: Sequence[Job], by_id: Mapping[str, Instance]) -> Iterator[str]:
    """Each GPU is one that its instance has, of a kind that was requested, and held by one unit."""
    given: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for job in jobs:
        for part in job.attempt.allocations if job.attempt is not None else ():
            has, wanted = by_id.get(part.instance_id), part.resources.gpus
            if part.released or has is None or wanted is None:
                continue
            given[part.instance_id].update(part.gpus)
            there = has.capacity.gpus
            if there is None or not wanted.accepts(there) or not {*part.gpus} <= {*range(there.count)}:
                yield f"{job.id} has GPUs {part.gpus} of {there} on {part.instance_id}; it requested {wanted}"
    for instance_id, held in sorted(given.items()):
        if twice := sorted(number for number, count in held.items() if count > 1):
            yield f"GPUs {twice} of {instance_id} are held by two units"


def _fits(amount: Resources, capacity: Resources) -> bool:
    return (
        amount.vcpus <= capacity.vcpus + _SLACK
        and amount.memory_mib <= capacity.memory_mib
        and amount.disk_gib <= capacity.disk_gib + _SLACK
        and amount.gpu_count <= capacity.gpu_count
    )


def _instance(instance: Instance) -> Iterator[str]:
    state = instance.state
    registered = (InstanceState.READY, InstanceState.DRAINING)
    if state is InstanceState.BOOTING and instance.launched_at is None:
        yield f"{instance.id} is booting, but has no launched_at"
    if state in registered and instance.provider_id is None:
        yield f"{instance.id} is {state}, but its provider's id is not known"
    if (state is InstanceState.TERMINATED) != (instance.terminated_at is not None):
        yield f"{instance.id} is {state}, but its time of termination is {instance.terminated_at}"
    if instance.expires_at < instance.requested_at:
        yield f"{instance.id} expires before it was requested"


def _limits(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Compare limits with what is booked and promised, counted here anew: the planner's account might be wrong."""
    live = [i for i in snapshot.instances if i.state is not InstanceState.TERMINATED]
    caps, budgets, spend = policy.caps, policy.budgets, snapshot.spend
    types = Counter(instance.offer.instance_type.name for instance in live)
    promised = [_bill(snapshot, each.offer, _paid_until(each, snapshot.now)) for each in live]
    total = _sum([(spend.day_usd, spend.month_usd, 0.0, 0.0), *promised])
    present: list[tuple[str, float, float | None]] = [
        ("caps.max_instances", len(live), caps.max_instances),
        ("caps.max_vcpus", math.fsum(each.capacity.vcpus for each in live), caps.max_vcpus),
        ("budgets.per_hour_usd", math.fsum(_highest_price(each, snapshot.now) for each in live), budgets.per_hour_usd),
        *_money("budgets", total, budgets.per_day_usd, budgets.per_month_usd),
    ]
    for name, limit in sorted(caps.max_instances_per_type.items()):
        present.append((f"caps.max_instances_per_type.{name}", types[name], limit))
    if caps.max_jobs_per_user is not None:
        holding = Counter(
            job.spec.user
            for job in snapshot.jobs
            if job.state is JobState.AWAITING_INSTANCE or (job.attempt is not None and not job.attempt.over)
        )
        name, limit = "caps.max_jobs_per_user", caps.max_jobs_per_user
        present += [(f"{name} of {user}", count, limit) for user, count in sorted(holding.items())]
    limited = budgets.per_user or budgets.per_tag
    for scope, bills in sorted(_bills_by_scope(snapshot, live).items() if limited else ()):
        limits = budgets.for_scope(scope)
        spent = (spend.by_scope_day_usd.get(scope, 0.0), spend.by_scope_month_usd.get(scope, 0.0), 0.0, 0.0)
        booked = _sum([spent, *bills])
        present += _money(f"budgets.per_{scope.kind}.{scope.name}", booked, limits.per_day_usd, limits.per_month_usd)
    known = [(name, amount, limit) for name, amount, limit in present if limit is not None]
    beyond = [each for each in known if each[1] > each[2] + _SLACK]
    violations = [f"{name} is {limit:g}, but {amount:g} is booked and promised" for name, amount, limit in beyond]
    refusals = [(instance.id, policy.allow.refusal(instance.offer)) for instance in live]
    return violations + [f"{instance_id} is not allowed: {why}" for instance_id, why in refusals if why is not None]


def _bills_by_scope(snapshot: Snapshot, live: Sequence[Instance]) -> Mapping[BudgetScope, Sequence[Bill]]:
    """Return what the jobs of users and tags hold or await of ``live``, each until it may cost nothing more."""
    bills: defaultdict[BudgetScope, list[Bill]] = defaultdict(list)
    for scope in (*snapshot.spend.by_scope_day_usd, *snapshot.spend.by_scope_month_usd):
        bills[scope] = []
    for instance in live:
        paid_until, offer = _paid_until(instance, snapshot.now), instance.offer
        holding, awaiting = list[tuple[Scopes, float]](), list[tuple[Scopes, float]]()
        for job in snapshot.jobs:
            attempt, scopes = job.attempt, scopes_of(job.spec.user, job.spec.tags)
            parts = [part for part in attempt.allocations if not part.released] if attempt is not None else []
            shares = [size_share(part.resources, instance) for part in parts if part.instance_id == instance.id]
            asked_at = attempt.stop_requested_at if attempt is not None else None
            if asked_at is None:
                holding += [(scopes, share) for share in shares]
            else:
                # The instance may be renewed for others although a unit was just asked to stop, as a scope of it cannot
                # pay.
                until_at = max(snapshot.now, min(paid_until, asked_at + job.spec.stop_grace_s))
                for scope in scopes:
                    bills[scope] += [_bill(snapshot, offer, until_at, share) for share in shares]
            grows = attempt is not None and asked_at is None and not attempt.over
            ranks = job.awaiting.count(instance.id)
            if grows and instance.state in INSTANCE_COMING:
                ranks += instance.for_running.count(job.id)
            awaiting += [(scopes, size_share(job.spec.resources_on(instance.capacity), instance))] * ranks
        taken = math.fsum(share for _, share in (*holding, *awaiting))
        whole = max(1.0, 1.0 / taken) if taken else 1.0  # what is awaited is charged in full
        for scopes, share in (*holding, *[(scopes, share * whole) for scopes, share in awaiting]):
            for scope in scopes:
                bills[scope].append(_bill(snapshot, offer, paid_until, share))
    return bills


def _paid_until(instance: Instance, now: float) -> float:
    launched_at = now if instance.launched_at is None else instance.launched_at
    return max(instance.expires_at, launched_at + instance.offer.billing_minimum_s)


def _prices(offer: Offer, since: float, until_at: float) -> Iterator[tuple[float, float, float]]:
    """Yield the stretches from ``since`` to ``until_at`` in which the price is the same: start, end, USD/h."""
    ends_at = math.inf if offer.ends_at is None or offer.price_after_usd_per_h is None else offer.ends_at
    if since < min(ends_at, until_at):
        yield since, min(ends_at, until_at), offer.price_usd_per_h
    if max(since, ends_at) < until_at:
        yield max(since, ends_at), until_at, offer.price_after_usd_per_h or 0.0


def _highest_price(instance: Instance, now: float) -> float:
    return max((usd for _, _, usd in _prices(instance.offer, now, _paid_until(instance, now))), default=0.0)


def _bill(snapshot: Snapshot, offer: Offer, until_at: float, share: float = 1.0) -> Bill:
    """Return the cost from now on of this day, this month, the next day and the next month."""
    day, month = snapshot.spend.day_ends_at or math.inf, snapshot.spend.month_ends_at or math.inf
    periods = ((snapshot.now, day), (snapshot.now, month), (day, math.inf), (month, math.inf))
    day_usd, month_usd, next_day_usd, next_month_usd = (
        math.fsum(
            share * usd_per_h * max(0.0, min(to_at, period_ends_at) - max(from_at, period_starts_at)) / 3600.0
            for from_at, to_at, usd_per_h in _prices(offer, snapshot.now, until_at)
        )
        for period_starts_at, period_ends_at in periods
    )
    return day_usd, month_usd, next_day_usd, next_month_usd


def _sum(bills: Sequence[Bill]) -> Bill:
    day, month, next_day, next_month = map(math.fsum, zip(*bills, strict=True))
    return day, month, next_day, next_month


def _money(
    name: str, bill: Bill, day_usd: float | None, month_usd: float | None
) -> list[tuple[str, float, float | None]]:
    limits = (day_usd, month_usd) * 2
    return [(f"{name}.{rule}_usd", usd, limit) for rule, usd, limit in zip(PERIODS, bill, limits, strict=True)]
