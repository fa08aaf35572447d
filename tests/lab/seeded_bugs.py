"""Daemons with one seeded bug each, for soak runs; ``test_soak`` says which invariant detects each bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import hcloud.apply.machines
import hcloud.apply.units
import hcloud.controller
import lab.soak.run
from hcloud import spend_ledger
from hcloud.apply import Refusal
from hcloud.apply.machines import drain
from hcloud.apply.transitions import release_allocation
from hcloud.controller import Controller
from hcloud.core.model import (
    Attempt,
    Constraints,
    EventKind,
    FailureCause,
    Instance,
    InstanceState,
    Intent,
    JobState,
    Reason,
    move_job,
)
from hcloud.observe.instances import InstanceObserver
from hcloud.planner import make_plan
from hcloud.planner.plan import Action, Drain, Enqueue, Place, Plan, Renew, Terminate, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import CloudInstance, LaunchRequest, Listing, ResizeResult
from hcloud.report import cost
from hcloud.spec.policy import Allow, Budgets, Policy, RetentionPolicy
from hcloud.store import LeaderLease, Submission, Transaction
from providers.mock.provider import MockProvider
from tests.assembled import changed_by, observes_as

Bug = Callable[[Controller, pytest.MonkeyPatch], object]


# ------------------------------------------------------------------------------------------------------ rows and plans
def overcommits_machines(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    units = daemon.applier.units
    honest = units.record_place

    def record_place(txn: Transaction, action: Place, free: dict[str, Any], gpus_in_use: dict[str, Any]) -> Intent:
        ranks = tuple(replace(r, resources=replace(r.resources, vcpus=0.1)) for r in action.ranks)
        return honest(txn, replace(action, ranks=ranks), free, gpus_in_use)

    daemon.applier.units = changed_by(units, record_place=record_place)


def serves_stale_rows(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest, seen = daemon.store.live, [daemon.store.live()]

    def live() -> Any:
        if len(seen) % 5 == 0:  # not in step with how often a cycle looks
            return seen.append(seen[-1]) or seen[-1]
        return seen.append(honest()) or seen[-1]

    daemon.store.live = live  # type: ignore[method-assign]


def terminates_without_intent(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.applier.machines

    def record_terminate(txn: Transaction, action: Terminate, policy: Policy) -> None:
        intent = honest.record_terminate(txn, action, policy)
        if intent is not None:
            txn.close_intent(intent.token)

    daemon.applier.machines = changed_by(honest, record_terminate=record_terminate)


def records_no_wait_reasons(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    _drop_actions(daemon, Wait)


def never_requeues(daemon: Controller, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lab.soak.run, "CALM_CYCLES_MAX", 60)  # more than healthy ones take
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        seen = tuple(job for job in snapshot.jobs if job.state is not JobState.PREEMPTED)
        return honest(replace(snapshot, jobs=seen), policy, rng)

    daemon.planner = plan


def queues_without_event(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.applier._rows

    def rows(plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        silent = [a for a in plan.actions if isinstance(a, Enqueue)]
        with daemon.store.transaction(daemon.clock.now(), lease) as txn:
            for action in silent:
                txn.put_job(move_job(txn.job(action.job_id), JobState.QUEUED, queued_at=txn.now, awaiting=()))
        kept = tuple(a for a in plan.actions if not isinstance(a, Enqueue))
        return honest(replace(plan, actions=kept), refused, lease)

    daemon.applier._rows = rows  # type: ignore[method-assign]


def never_loses_lead(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    store = daemon.store
    acquire, transaction = store.acquire_lease, store.transaction
    store.transaction = lambda now, lease=None: transaction(now)  # type: ignore[method-assign]

    def acquire_lease(holder: str, now: float, ttl_s: float) -> LeaderLease | None:
        lease = acquire(holder, now, ttl_s)
        return None if lease is None else replace(lease, epoch=1)

    store.acquire_lease = acquire_lease  # type: ignore[method-assign]
    store.renew_lease = lambda lease, now, ttl_s: replace(lease, until=now + ttl_s)  # type: ignore[method-assign]


def fails_in_cycle(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    def snapshot() -> Snapshot:
        raise ZeroDivisionError("a bug")

    daemon.snapshot = snapshot  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------- wishes and policies
def forgets_cancellations(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.store.request_cancels

    def request_cancels(chosen: Any, actor: str, now: float) -> Any:
        jobs = honest(chosen, actor, now)
        for each in jobs:
            if each.cancelled_by is not None and each.finished_at is None:
                with daemon.store.transaction(now) as txn:
                    txn.put_job(replace(txn.job(each.id), cancelled_by=None))
        return jobs

    daemon.store.request_cancels = request_cancels  # type: ignore[method-assign]


def ignores_pause(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    daemon.store.get_meta = lambda key: ""  # type: ignore[method-assign]


def ignores_allow_list(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    _plan_under(daemon, lambda policy: replace(policy, allow=Allow()))


def ignores_budgets(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    _plan_under(daemon, lambda policy: replace(policy, budgets=Budgets()))


def ignores_user_budgets(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Keeps total budgets, but not those of users."""
    _plan_under(daemon, lambda policy: replace(policy, budgets=replace(policy.budgets, per_user={})))


def ignores_job_budgets(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        return honest(replace(snapshot, jobs=tuple(replace(job, spent_usd=0.0) for job in snapshot.jobs)), policy, rng)

    daemon.planner = plan


def ignores_max_jobs_per_user(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    _plan_under(daemon, lambda policy: replace(policy, caps=replace(policy.caps, max_jobs_per_user=None)))


def ignores_caps(daemon: Controller, patch: pytest.MonkeyPatch) -> None:
    _plan_under(daemon, lambda policy: replace(policy, caps=replace(policy.caps, max_vcpus=None)))
    patch.setattr(hcloud.apply.machines, "_refuse_beyond_caps", lambda *_: None)


def forgets_spend_before_start(_: Controller, patch: pytest.MonkeyPatch) -> None:
    """After a restart, reads the log only from the launch of the oldest machine that is still up."""
    patch.setattr(hcloud.controller, "month_start", lambda now: now)
    patch.setattr(hcloud.controller, "CLOCK_SKEW_S", 0.0)


def forgets_ended_machines(_: Controller, patch: pytest.MonkeyPatch) -> None:
    """After a restart, forgets machines that started before this month and have ended."""

    def read_spend(store: Any, now: float, tags_of: Any) -> spend_ledger.SpendLedger:
        book, live = spend_ledger.SpendLedger(tags_of=tags_of), store.live().instances
        since = min([spend_ledger.month_start(now), *(each.requested_at for each in live)])
        book.follow(store.iter_events(since=since, kinds=spend_ledger.SPEND_KINDS))
        return book

    patch.setattr(hcloud.controller, "read_spend", read_spend)


def starts_days_too_early(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = spend_ledger._period
    patch.setattr(spend_ledger, "_period", lambda now: honest(now + 90.0))


def starts_days_too_late(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = spend_ledger._period
    patch.setattr(spend_ledger, "_period", lambda now: honest(now - 90.0))


def confirms_wrong_job_id(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.store.submit

    def submit(submissions: Sequence[Submission], now: float) -> Any:
        made = honest(submissions, now)
        return tuple(replace(job, id="job-999999") for job in made)

    daemon.store.submit = submit  # type: ignore[method-assign]


def logs_no_new_jobs(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest, unwritten = Transaction.emit, (EventKind.JOB_SUBMITTED, EventKind.JOB_STATE)

    def emit(txn: Any, kind: EventKind, **fields: Any) -> Any:
        return None if kind in unwritten else honest(txn, kind, **fields)

    patch.setattr(Transaction, "emit", emit)


def accepts_jobs_twice(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.store.submit
    daemon.store.submit = lambda submissions, now: honest(  # type: ignore[method-assign]
        [replace(each, token=None) for each in submissions], now
    )


# ------------------------------------------------------------------------------------------------- machines and units
class ClaimsAllMachines(InstanceObserver):
    """Takes every machine of the account for its own."""

    def _end_orphans(self, name: str, listing: Listing, lease: LeaderLease | None) -> None:
        ours = tuple(replace(each, owner=self.owner) for each in listing.instances)
        super()._end_orphans(name, replace(listing, instances=ours), lease)


def terminates_foreign_machines(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    observes_as(ClaimsAllMachines)(daemon)


class Confused(InstanceObserver):
    """Matches machines by name, which other tenants may use as well."""

    def listing_facts(self, name: str, listing: Listing, *rest: Any) -> Any:
        tokens = {row.id: row.token for row in self.store.live().instances}
        named = tuple(replace(c, token=tokens.get(c.instance_id, c.token)) for c in listing.instances)
        return super().listing_facts(name, replace(listing, instances=named), *rest)


def adopts_foreign_machines(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    observes_as(Confused)(daemon)


def pushes_no_leases(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    daemon.lease_push = changed_by(daemon.lease_push, renew=lambda *_: {})


def renews_idle_machines(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Terminates no idle machine and renews them all."""
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        made, until_at = honest(snapshot, policy, rng), snapshot.now + policy.lease.horizon_s
        kept = [a for a in made.actions if not (isinstance(a, Terminate) and a.reason.code in ("idle", "not_renewed"))]
        due = [each for each in snapshot.instances if each.expires_at < snapshot.now + policy.lease.renew_before_s]
        why = Reason(code="renewed", text="a bug")
        ready = [each.id for each in due if each.state is InstanceState.READY]
        kept += [Renew(instance_id=name, expires_at=until_at, reason=why) for name in ready]
        return replace(made, actions=tuple(kept))

    daemon.planner = plan


def keeps_idle_machines(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Terminates no idle machine: each lives until its lease expires."""
    _plan_under(daemon, lambda policy: replace(policy, retention=RetentionPolicy(minimum_s=3000.0, maximum_s=3600.0)))


def never_times_out_boots(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    _plan_under(daemon, lambda policy: replace(policy, boot=replace(policy.boot, timeout_s=policy.lease.horizon_s)))


def leases_for_a_day(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Leases machines for a day, as if the daemon could not fail meanwhile."""
    _plan_under(daemon, lambda policy: replace(policy, lease=replace(policy.lease, horizon_s=86_400.0)))


def ignores_directives(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.planner
    daemon.planner = lambda snapshot, policy, rng: honest(replace(snapshot, directives=(), backoffs=()), policy, rng)


def launches_drained_types(daemon: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        failed = tuple(each for each in snapshot.backoffs if not each.error.startswith("drained by"))
        return honest(replace(snapshot, backoffs=failed), policy, rng)

    daemon.planner = plan
    patch.setattr(hcloud.apply.machines, "refuse_drained", lambda *_: None)


def ignores_instance_types(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        jobs = [replace(job, spec=replace(job.spec, instance_types=())) for job in snapshot.jobs]
        return honest(replace(snapshot, jobs=tuple(jobs)), policy, rng)

    daemon.planner = plan


def ignores_demands(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        jobs = [replace(job, spec=replace(job.spec, placement=Constraints())) for job in snapshot.jobs]
        return honest(replace(snapshot, jobs=tuple(jobs)), policy, rng)

    daemon.planner = plan


def books_prices_of_offers(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Takes no note of what a machine costs once it is launched."""

    def launch(cloud: Any, request: LaunchRequest) -> CloudInstance:
        return replace(cloud.launch(request), price_usd_per_h=request.offer.price_usd_per_h)

    _launch_with(daemon, launch)
    observes_as(TrustsOfferedPrices)(daemon)


class TrustsOfferedPrices(InstanceObserver):
    """Takes no price from a listing."""

    def listing_facts(self, name: str, listing: Listing, *rest: Any) -> Any:
        unpriced = tuple(replace(each, price_usd_per_h=0.0) for each in listing.instances)
        return super().listing_facts(name, replace(listing, instances=unpriced), *rest)


def retries_launch_with_new_token(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """A retried launch creates a second machine."""

    def launch(cloud: Any, request: LaunchRequest) -> CloudInstance:
        known = any(m.token == request.token for m in cloud.machines(request.expires_at))
        return cloud.launch(replace(request, token=f"{request.token}-again") if known else request)

    _launch_with(daemon, launch)


def cloud_ignores_tokens(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    def launch(cloud: Any, request: LaunchRequest) -> CloudInstance:
        cloud._cloud.by_token.clear()
        return cloud.launch(request)

    _launch_with(daemon, launch)


def launches_another_type(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    def launch(cloud: Any, request: LaunchRequest) -> CloudInstance:
        other = max(cloud.offers(), key=lambda offer: offer.price_usd_per_h)
        return cloud.launch(replace(request, offer=other))

    _launch_with(daemon, launch)


def engine_renews_by_name(_: Controller, patch: pytest.MonkeyPatch) -> None:
    """Machines of other tenants may have the same names."""
    honest = MockProvider.set_expiry

    def set_expiry(self: Any, expiries: Mapping[str, float]) -> frozenset[str]:
        with self._cloud.hold(self._clock.now()):
            others = [(self._cloud.live.get(at), name) for (_, name), at in self._cloud.by_instance.items()]
            due = [(row, name) for row, name in others if row is not None and name in expiries]
            self._cloud.put(*(replace(row, expires_at=expiries[name]) for row, name in due))
        return honest(self, expiries)

    patch.setattr(MockProvider, "set_expiry", set_expiry)


def renews_longer_than_booked(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.runner
    daemon.runner = changed_by(honest, renew=lambda due: honest.renew({name: at + 1000 for name, at in due.items()}))


class TrustsPartialListings(InstanceObserver):
    """Takes absence from any listing, even a partial one, for termination."""

    def _surely_absent(self, instance: Instance, listing: Listing, asked_at: float) -> bool:
        return instance.state is not InstanceState.REQUESTED


def trusts_partial_listings(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    observes_as(TrustsPartialListings)(daemon)


def trusts_partial_listings_and_keeps_orphans(daemon: Controller, patch: pytest.MonkeyPatch) -> None:
    trusts_partial_listings(daemon, patch)
    patch.setattr(TrustsPartialListings, "_end_orphans", lambda *_: None)


def engine_starts_units_twice(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.applier.units.runner

    def start(units: Sequence[Any]) -> Mapping[str, Any]:
        honest.start(units)
        for unit in units:
            honest._units.pop(unit.id, None)
        return honest.start(units)

    daemon.applier.units.runner = changed_by(honest, start=start)


def never_applies_resizes(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    def resize(units: Mapping[str, Any], **_: object) -> Mapping[str, ResizeResult]:
        return {unit: ResizeResult(outcome="resized") for unit in units}

    daemon.applier.units.runner = changed_by(daemon.applier.units.runner, resize=resize)


def keeps_larger_ranks_after_refusal(_: Controller, patch: pytest.MonkeyPatch) -> None:
    def back(txn: Any, job: Any, *_: object, sure: bool) -> None:
        ranks = hcloud.apply.units._resizing(job)
        smaller = [replace(each, resources=each.resized_from or each.resources, resized_from=None) for each in ranks]
        hcloud.apply.units._put_ranks(txn, job, smaller)

    patch.setattr(hcloud.apply.units, "_revert_resizes", back)


def takes_silence_for_end(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Releases units on a silent machine, so that they run again elsewhere."""
    honest = daemon.observer

    def observe(policy: Policy, lease: LeaderLease | None = None) -> Any:
        seen = honest.observe(policy, lease)
        with daemon.store.transaction(daemon.clock.now(), lease) as txn:
            for job in daemon.store.live().jobs:
                for held in job.attempt.allocations if job.attempt is not None else ():
                    if held.instance_id in honest.silent and held.started_at is not None:
                        lost = FailureCause.INSTANCE_LOST
                        job = release_allocation(txn, job, held.rank, ended_at=txn.now, cause=lost)
        return seen

    daemon.observer = changed_by(honest, observe=observe)


def takes_stop_request_for_end(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    units = daemon.applier.units

    def drive_stops(intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        units.drive_stops(intents, lease)
        with daemon.store.transaction(daemon.clock.now(), lease) as txn:
            for intent in intents:
                job = txn.job(intent.subject)
                for held in job.attempt.allocations if job.attempt is not None else ():
                    job = release_allocation(txn, job, held.rank, ended_at=txn.now)

    daemon.applier.units = changed_by(units, drive_stops=drive_stops)


def takes_every_end_for_success(_: Controller, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempt, "failure", property(lambda self: None))


def books_no_billing_minimum(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = spend_ledger.SpendLedger._requested

    def requested(book: Any, event: Any) -> None:
        honest(book, replace(event, fields={**event.fields, "price_usd_per_h": 0.01}))

    patch.setitem(spend_ledger._HANDLERS, EventKind.INSTANCE_REQUESTED, requested)
    patch.setitem(spend_ledger._HANDLERS, EventKind.INSTANCE_PRICE, lambda book, event: None)
    patch.setitem(spend_ledger._HANDLERS, EventKind.INSTANCE_LAUNCHED, _launched_for_less)


def _launched_for_less(book: Any, event: Any) -> None:
    usd_per_h = 0.9 * event.fields["price_usd_per_h"]
    spend_ledger.SpendLedger._launched(book, replace(event, fields={**event.fields, "price_usd_per_h": usd_per_h}))


def books_overcommitted_shares(_: Controller, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spend_ledger.SpendLedger, "_overcharges", lambda book, now: iter(()))


def charges_first_unit_for_all(_: Controller, patch: pytest.MonkeyPatch) -> None:
    def first_takes_it_whole(shares: Any) -> Any:
        whole = min(1.0, sum(shares))
        return (whole, *(0.0 for _ in shares[1:])) if shares else (), 1.0 - whole

    patch.setattr(cost, "split", first_takes_it_whole)


class ObservesEndsLate(InstanceObserver):
    """Takes a machine for ended only once it observes that."""

    def listing_facts(self, name: str, listing: Listing, *rest: Any) -> Any:
        heard = tuple(replace(each, terminated_at=None) for each in listing.instances)
        return super().listing_facts(name, replace(listing, instances=heard), *rest)


def books_machines_until_end_is_observed(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    observes_as(ObservesEndsLate)(daemon)


def ignores_hourly_budget(daemon: Controller, patch: pytest.MonkeyPatch) -> None:
    """Keeps daily and monthly budgets, but not hourly ones."""
    _plan_under(daemon, lambda policy: replace(policy, budgets=replace(policy.budgets, per_hour_usd=None)))
    patch.setattr(hcloud.apply.machines, "_refuse_beyond_caps", lambda *_: None)


def places_on_draining_machines(_: Controller, patch: pytest.MonkeyPatch) -> None:
    def drains_first(txn: Transaction, job: Any, action: Place, free: Mapping[str, Any]) -> None:
        for name in {rank.instance_id for rank in action.ranks}:
            drain(txn, Drain(instance_id=name, reason=Reason(code="drain", text="a bug")))

    patch.setattr(hcloud.apply.units, "_refuse_unready", drains_first)


def ignores_inherited_intents(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """Does not resume intents of an earlier process."""
    honest, seen = daemon.applier.resume, {intent.token for intent in daemon.store.live().intents}

    def resume(intents: Sequence[Intent], *given: Any) -> int:
        return honest([intent for intent in intents if intent.token not in seen], *given)

    daemon.applier.resume = resume  # type: ignore[method-assign]


def starts_ranks_twice(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    """The second name is that of the rank's next start, as after an eviction."""
    units = daemon.applier.units
    honest = units.runner.start

    def start(specs: Sequence[Any]) -> Mapping[str, Any]:
        return honest([*specs, *[replace(each, id=f"{each.id}-1") for each in specs]])

    units.runner = changed_by(units.runner, start=start)


def terminates_machines_in_use(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.planner

    def plan(snapshot: Snapshot, policy: Policy, rng: Any) -> Plan:
        made, idle = honest(snapshot, policy, rng), Reason(code="idle", text="it has been idle for long")
        held = [each for job in snapshot.jobs if job.attempt is not None for each in job.attempt.allocations]
        busy = sorted({each.instance_id for each in held if each.ended_at is None})[:1]
        return replace(made, actions=(*made.actions, *(Terminate(instance_id=name, reason=idle) for name in busy)))

    daemon.planner = plan


def blames_jobs_for_lost_machines(_: Controller, patch: pytest.MonkeyPatch) -> None:
    def release(txn: Transaction, job: Any, rank: int, **end: Any) -> Any:
        if end.get("cause") in (FailureCause.PREEMPTED, FailureCause.INSTANCE_LOST):
            end |= {"cause": FailureCause.EXIT_CODE, "exit_code": 1}
        return release_allocation(txn, job, rank, **end)

    patch.setattr(hcloud.observe.facts, "release_allocation", release)


# --------------------------------------------------------------------------------------------------------------- parts
def _drop_actions(daemon: Controller, kind: type) -> None:
    honest = daemon.applier._rows

    def rows(plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        kept = tuple(action for action in plan.actions if not isinstance(action, kind))
        return honest(replace(plan, actions=kept), refused, lease)

    daemon.applier._rows = rows  # type: ignore[method-assign]


def _plan_under(daemon: Controller, change: Callable[[Policy], Policy]) -> None:
    daemon.planner = lambda snapshot, policy, rng: make_plan(snapshot, change(policy), rng)


def _launch_with(daemon: Controller, launch: Callable[[Any, LaunchRequest], CloudInstance]) -> None:
    machines = daemon.applier.machines
    machines.providers = {
        name: changed_by(cloud, launch=lambda request, cloud=cloud: launch(cloud, request))
        for name, cloud in machines.providers.items()
    }
