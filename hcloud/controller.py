"""The cycle of daemon and simulator: lead, observe, snapshot, plan, apply (architecture.md, ground rule 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from hcloud.apply import Applier, ApplyResult, emit_provider_error
from hcloud.apply.directives import PAUSED
from hcloud.apply.ended_tasks import EndedTasks
from hcloud.apply.lease_push import LeasePush
from hcloud.beliefs import Beliefs
from hcloud.budget_watch import BudgetWatch
from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.library import Library
from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED, SlowdownForecasts
from hcloud.core.budget_scope import tag_scope
from hcloud.core.clock import Clock
from hcloud.core.dependencies import Dependency, resolve_names
from hcloud.core.errors import NotFound, SecretUnreadable, StaleWrite
from hcloud.core.model import (
    JOB_ENDED,
    Event,
    EventKind,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobId,
    JobSpec,
    JobState,
)
from hcloud.core.rows import FilteredRows, RowOverlay, number_of, replace_fields, row_changes
from hcloud.decayed_usage import DecayedUsage
from hcloud.due_times import DueTimes, median_s
from hcloud.forecast.fleet_tracker import KEPT_S, RECENT_KINDS, FleetTracker
from hcloud.forecast.job_monitor import WATCH_KINDS, WATCHED_S, JobMonitor
from hcloud.observe.commitment_log import CommitmentLog
from hcloud.observe.observer import Observation, Observer
from hcloud.observe.offer_cache import OfferCache
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.due_times import due_times, planned_by
from hcloud.planner.fair_share import fair_share_words
from hcloud.planner.plan import PlannedStart, Unprofiled
from hcloud.planner.snapshot import Snapshot, Spend, closed
from hcloud.preview import Preview, preview_plan
from hcloud.provider import AdmittedMachine, Provider, Runner
from hcloud.quarantine import Planner, Quarantine
from hcloud.run_times import LearntRunTimes
from hcloud.schedules import Schedules
from hcloud.slowdowns import LearntSlowdowns
from hcloud.spec.policy import UNLIMITED, Policy
from hcloud.spend_ledger import SPEND_KINDS, SpendLedger, month_start
from hcloud.store import LeaderLease, Store
from hcloud.store.documents import instance_number

LEADER_TTL_S = 5.0
"""How long the leader lease lasts without a renewal."""
CLOCK_SKEW_S = 600.0
"""How far the clocks that time unit starts and instance ends may be behind ours."""
_EVENTS_PER_READ = 10_000
_HYPOTHETICAL = 10**12
"""Jobs of a preview are numbered from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """One finished cycle, for status and metrics."""

    at: float = 0.0
    duration_s: float = 0.0
    actions: int = 0
    refused: int = 0
    error: str = ""
    """What the cycle failed with; "" if it succeeded."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The errors of jobs, stages and operations that fail because of a defect (:meth:`Quarantine.failing`)."""


class EventFollower(Protocol):
    """Follows the event log while this daemon leads; what it raises would end the cycle."""

    def begin(self, jobs: Iterable[Job], instances: Iterable[Instance], seq: int) -> None:
        """Start anew from the jobs and instances that live now: this daemon has become the leader.

        Events after number ``seq`` follow.
        """

    def follow(self, events: Sequence[Event]) -> None:
        """Take in the next events, in order, each once."""


@dataclass(slots=True)
class AdmittedMachines:
    """The live instances as the engine admits their workers; entries are made anew only for rows that changed."""

    _seen: Sequence[Instance] = ()
    _machines: dict[InstanceId, AdmittedMachine] = field(default_factory=dict)

    def of(self, live: Sequence[Instance]) -> tuple[AdmittedMachine, ...]:
        """Return the machines of all ``live`` instances."""
        for before, now in row_changes(self._seen, live):
            if now is not None:
                self._machines[now.id] = AdmittedMachine(
                    instance_id=now.id,
                    launch_token=now.token,
                    has_registered=now.ready_at is not None,
                    addresses=now.addresses,
                )
            elif before is not None:
                del self._machines[before.id]
        self._seen = live
        return tuple(self._machines.values())


class Controller:
    """Drives one deployment. One thread calls ``cycle``; any thread may call ``preview`` and read attributes.

    Only the holder of the leader lease observes, plans and applies; ``holder`` is this daemon's name in it.
    """

    def __init__(
        self,
        *,
        store: Store,
        providers: Mapping[str, Provider],
        runner: Runner,
        clock: Clock,
        policy: Policy,
        observer: Observer,
        applier: Applier,
        rng: np.random.Generator,
        holder: str,
        library: Library | None = None,
        planner: Planner = make_plan,
        keys_version: Callable[[], object] = lambda: None,
    ) -> None:
        """Keep the ports; call none yet. Simulations replace ``planner`` with other scheduling rules.

        ``keys_version``: differs once the keys that decrypt secrets of jobs have changed.
        """
        self.store = store
        self.runner = runner
        self.clock = clock
        self.policy = policy
        self.observer = observer
        self.applier = applier
        self.offers = OfferCache(providers=providers, clock=clock)
        self.rng = rng
        self.planner = planner
        self.holder = holder
        self.lease: LeaderLease | None = None
        self.quarantine = Quarantine(store, clock)
        self.beliefs = Beliefs(store, clock, self.quarantine, BeliefStore(library=library or Library()))
        self.run_times = LearntRunTimes(store, clock, self.quarantine)
        self.slowdowns = LearntSlowdowns(store, clock, self.quarantine)
        self.arrays = EndedTasks(store, clock)
        self.lease_push = LeasePush()
        self.last_seen = Observation(reachable=frozenset(), engine_reachable=False, moved=False)
        self.last_snapshot = Snapshot(now=clock.now())
        self.last_spend = Spend()
        self.planned_starts: Mapping[JobId, PlannedStart] = {}
        """When waiting jobs are to start, by the last plan."""
        self.unprofiled: Mapping[str, Unprofiled] = {}
        """Why running unknown programs are not profiled, by the last plan."""
        self._admitted = AdmittedMachines()
        self._engine_reachable_since: float | None = None
        self._silent_since: dict[str, float] = {}
        self._ledger: SpendLedger | None = None
        self._tags_watched: Mapping[str, bool] = {}
        """The keys of ``budgets.per_tag`` for which ``_ledger`` was read, and whether each had a limit."""
        self.due_times = DueTimes()
        self.schedules = Schedules(store, clock)
        self.budget_watch = BudgetWatch(store)
        self.usage = DecayedUsage(store)
        self.followers: tuple[EventFollower, ...] = ()
        """Follow the log beside the cycle's own followers, for metrics and pages."""
        self._fleet = FleetTracker()
        self._monitor = JobMonitor()
        self._commitments = CommitmentLog(store)
        self._budgeted = FilteredRows(_has_budget)
        self._with_spend = RowOverlay[Job]()
        self._keys_version, self._with_secrets = keys_version, FilteredRows(_has_secrets)
        self._checked_version: object = None
        self._unreadable: dict[JobId, str | None] = {}

    # ----------------------------------------------------------------------------------------------------------- cycle
    def cycle(self) -> ApplyResult:
        """Observe, plan and apply once. Returns what was applied: nothing while another daemon leads.

        Raises StoreBusy, StaleWrite: nothing is lost, and the next cycle repeats the rest.
        """
        if not self._lead():
            return ApplyResult(applied=0)
        self._admit()
        seen = self._observe()
        resumed = self.applier.resume(self.store.live().intents, self.policy, self.lease, seen.answered)
        folded = self.arrays.fold(self.lease)
        fired = self.schedules.fire(self.lease)
        self.last_snapshot = self.snapshot()
        self.observer.units.believed = self.last_snapshot.applications
        self.observer.units.slowdowns = self.last_snapshot.slowdowns
        self.beliefs.record_prediction_errors(self.lease)
        plan = self.quarantine.plan(self.planner, self.last_snapshot, self.policy, self.rng, self._keep_lease)
        self.planned_starts, self.unprofiled = plan.planned_starts, plan.unprofiled
        self.usage.save_if_due(self.clock.now(), self.lease)
        self.budget_watch.record(self.last_spend, self.policy.budgets, plan, self.clock.now(), self.lease)
        result = self.applier.apply(plan, self.policy, self.offers.all, self.lease)
        self.quarantine.record_failed_actions([(each.action, each.why) for each in result.failed], self.lease)
        live, now = self.store.live().instances, self.clock.now()
        failures = self.lease_push.renew(self.runner, live, self.last_seen.reachable, now)
        self.quarantine.record_failures(failures, self.lease)
        self.quarantine.record_failures({**self.applier.take_failures(), **self.arrays.take_failures()}, self.lease)
        self._admit()
        if self.applier.machines.offers_failed:
            self.applier.machines.offers_failed = False
            self.offers.expire()
        more = seen.moved or resumed > 0 or folded > 0 or fired > 0
        return replace(
            result, moved=result.moved or more, only_renewed=result.only_renewed and not more, due_at=plan.due_at
        )

    def _admit(self) -> None:
        """Let the workers of live instances connect: before those launched in this cycle begin to."""
        self.runner.admit(self._admitted.of(self.store.live().instances))

    def _observe(self) -> Observation:
        """Refresh offers, then record what providers and the engine report."""
        if errors := self.offers.refresh():
            with self.store.transaction(self.clock.now(), self.lease) as txn:
                for name, error in errors.items():
                    emit_provider_error(txn, name, "offers", error)
        self._commitments.record(self.clock.now(), self.offers.providers, self.offers.commitments, self.lease)
        self.applier.machines.follow_commitments(self.offers.all, self.lease)
        seen = self.observer.observe(self.policy, self.lease)
        if not seen.engine_reachable:
            self._engine_reachable_since = None
        elif self._engine_reachable_since is None:
            self._engine_reachable_since = self.clock.now()
        self.last_seen = seen
        self.quarantine.record_failures(seen.failing, self.lease)
        return seen

    def snapshot(self) -> Snapshot:
        """Return all that a plan may depend on as it is now, frozen and in a fixed order."""
        now = self.clock.now()
        view = self.store.live()
        ledger = self._read_events(view.instances)
        self.last_spend = ledger.spend(now)
        budgeted = self._budgeted.of(view.jobs)
        beliefs = self.beliefs.update(view, self.policy, self.lease)
        run_times = self.run_times.update(ledger.seq, self.lease)
        jobs = self._with_spend.of(view.jobs, _with_spend(budgeted, ledger, now)) if budgeted else view.jobs
        return Snapshot(
            now=now,
            jobs=self.due_times.apply(jobs, view.held, view.arrays, run_times),
            arrays=view.arrays,
            instances=self._with_silence(view.instances),
            offers=self.offers.all,
            spend=self.last_spend,
            fleet_stats=self._fleet.recent(now),
            job_samples=self._monitor.watched(),
            backoffs=(
                *(each for each in view.backoffs if each.until_at > now),
                *(each.backoff for each in view.refused_quotas if each.retry_at > now),
                *closed(view.directives, self.offers.all),
            ),
            refused_quotas=tuple(each for each in view.refused_quotas if each.until_at > now),
            directives=view.directives,
            usage_usd=self.usage.follow(self.last_spend, self.policy.admission, now),
            reachable=self.last_seen.reachable,
            applications=beliefs.applications,
            programs=beliefs.programs,
            source_prior=beliefs.source_prior,
            type_prior=beliefs.type_prior,
            run_times=run_times,
            slowdowns=self._observed_slowdowns(),
            offers_known=frozenset(self.offers.by_provider),
            providers=frozenset(self.offers.providers),
            engine_reachable=self.last_seen.engine_reachable,
            engine_reachable_since=now if self._engine_reachable_since is None else self._engine_reachable_since,
            scheduled=self.schedules.upcoming(now, self.policy.retention.maximum_s),
            paused=self.store.get_meta(PAUSED) or "",
            left_out=self.quarantine.left_out(now),
            unreadable_secrets=self._unreadable_secrets(view.jobs),
            plan_cache=self.quarantine.plan_cache,
        )

    def _observed_slowdowns(self) -> SlowdownForecasts:
        if self.policy.placement.neighbours != "observed":
            return NOTHING_OBSERVED
        return self.slowdowns.update(lambda names: self.beliefs.of_rows(names, self.lease), self.lease)

    def _unreadable_secrets(self, jobs: Sequence[Job]) -> Mapping[JobId, str]:
        """Return why the secrets of jobs cannot be decrypted; each job is checked again when the keys have changed."""
        found = self._with_secrets.of(jobs)
        if not found:
            return {}
        version = self._keys_version()
        known = self._unreadable if version == self._checked_version else {}
        self._checked_version, self._unreadable = version, {}
        for job in found:
            self._unreadable[job.id] = known[job.id] if job.id in known else self._why_unreadable(job)
        return {name: why for name, why in self._unreadable.items() if why is not None}

    def _why_unreadable(self, job: Job) -> str | None:
        try:
            self.applier.units.secrets_of(job)
        except SecretUnreadable as error:
            return str(error)
        return None

    def preview(self, specs: Sequence[JobSpec]) -> Preview:
        """Plan as if ``specs`` had been submitted before the last cycle. Changes nothing; any thread may call it."""
        snapshot = self.last_snapshot
        jobs = tuple(
            Job(
                id=f"job-{_HYPOTHETICAL + n}",
                spec=spec,
                state=JobState.SUBMITTED,
                submitted_at=snapshot.now,
                waits_for=waits_for,
            )
            for n, (spec, waits_for) in enumerate(zip(specs, self._dependencies(specs), strict=True))
        )
        due = due_times([job for job in jobs if job.is_held], lambda job: median_s(snapshot.run_times, job))
        jobs = tuple(planned_by(job, due[job.id]) if job.id in due else job for job in jobs)
        # A cache of its own: the cycle's thread may be using the shared one.
        snapshot = replace(self.beliefs.extend(snapshot, jobs, self.policy), plan_cache=PlanCache())
        return preview_plan(snapshot, jobs, self.policy, self.planner)

    def fair_share(self, spec: JobSpec) -> str:
        """Return a sentence about what the owner of a job used lately; empty without fair share."""
        return fair_share_words(spec, self.usage.by_owner, self.policy.admission)

    def _dependencies(self, specs: Sequence[JobSpec]) -> list[tuple[Dependency, ...]]:
        """Return what jobs of a preview would wait for. Raises DependencyError, NotFound."""
        if not any(spec.after for spec in specs):
            return [()] * len(specs)
        resolved = resolve_names([spec.name for spec in specs], [spec.after for spec in specs])
        found = list[tuple[Dependency, ...]]()
        for each in resolved:
            names = {f"job-{_HYPOTHETICAL + upstream}": ending for upstream, ending in each.items()
                     if isinstance(upstream, int)}  # fmt: skip
            earlier = [(self.store.job(upstream), ending) for upstream, ending in each.items()
                       if isinstance(upstream, str)]  # fmt: skip
            found.append(
                (
                    *(Dependency(job_id=name, ending=ending) for name, ending in names.items()),
                    *(
                        Dependency(job_id=job.id, ending=ending, name=job.spec.name)
                        for job, ending in earlier
                        if job.state not in JOB_ENDED
                    ),
                )
            )
        return found

    # ----------------------------------------------------------------------------------------------------- leader lease
    def _lead(self) -> bool:
        """Acquire or renew the leader lease; return whether this daemon holds it."""
        if self.lease is not None:
            self._renew_lease()
            return self.lease is not None
        now = self.clock.now()
        self.lease = self.store.acquire_lease(self.holder, now, LEADER_TTL_S)
        if self.lease is None:
            return False
        self._ledger = None  # another leader may have written events: read the history again
        self.budget_watch.forget()
        self.usage.forget()
        with self.store.transaction(now, self.lease) as txn:
            txn.emit(EventKind.DAEMON, what="leader", holder=self.holder, epoch=self.lease.epoch)
        return True

    def _renew_lease(self) -> None:
        now = self.clock.now()
        if self.lease is not None and now > self.lease.until - LEADER_TTL_S * 2 / 3:
            self.lease = self.store.renew_lease(self.lease, now, LEADER_TTL_S)

    def _keep_lease(self) -> LeaderLease:
        """Renew the lease if it is due, within a long cycle. Raises StaleWrite if another daemon leads by now."""
        self._renew_lease()
        if self.lease is None:
            raise StaleWrite("another daemon became leader while this one was planning")
        return self.lease

    def release(self) -> None:
        """Release the leader lease, so that a standby daemon takes over without waiting for it to expire."""
        if self.lease is not None:
            self.store.release_lease(self.lease)
            self.lease = None

    # ------------------------------------------------------------------------------------------------------- event log
    @property
    def last_event_seq(self) -> int:
        """The sequence number of the last event counted in ``last_spend``; 0 before the first cycle."""
        return self._ledger.seq if self._ledger is not None else 0

    def _read_events(self, live: Sequence[Instance]) -> SpendLedger:
        """Pass new events to the followers of the log: spend ledger, fleet tracker, job monitor and run times."""
        watched = {tag: limit != UNLIMITED for tag, limit in self.policy.budgets.per_tag.items()}
        if (key := self.policy.admission.fair_share_tag) is not None:
            watched[key] = True
        if self._ledger is None:
            self._tags_watched = watched
            self._ledger, self._fleet, self._monitor = self._read_history(live)
            view = self.store.live()
            for follower in self.followers:
                follower.begin((*view.jobs, *view.held), view.instances, self._ledger.seq)
        elif self._tags_watched != watched:
            self._follow_events(self._ledger)  # no follower misses an event because the ledger is read again
            self._tags_watched = watched
            self._ledger, self._fleet, self._monitor = self._read_history(live)
        self._follow_events(self._ledger)
        return self._ledger

    def _follow_events(self, ledger: SpendLedger) -> None:
        while events := self.store.new_events(ledger.seq, _EVENTS_PER_READ):
            self.run_times.follow(ledger.seq, events, self.lease)
            ledger.follow(events)
            self._fleet.follow(events)
            self._monitor.follow(events)
            for follower in self.followers:
                follower.follow(events)
            if len(events) < _EVENTS_PER_READ:
                break

    def _read_history(self, live: Sequence[Instance]) -> tuple[SpendLedger, FleetTracker, JobMonitor]:
        """Return new followers that have read the log up to one common event; a failed read leaves none behind."""
        now, live_since = self.clock.now(), [i.requested_at for i in live]
        fleet, monitor = FleetTracker(), JobMonitor()
        ledger = read_spend(self.store, now, partial(counted_tags, self.store, self.policy))
        events = self.store.iter_events(since=min([now - KEPT_S, *live_since]), kinds=RECENT_KINDS)
        fleet.follow(event for event in events if event.seq <= ledger.seq)
        samples = self.store.iter_events(since=now - WATCHED_S, kinds=WATCH_KINDS)
        monitor.follow(event for event in samples if event.seq <= ledger.seq)
        return ledger, fleet, monitor

    def _with_silence(self, instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
        """Return instances with ``seen_at`` of each silent one set to when this process first missed its worker.

        Stored times do not count: before that this process did not poll, the host may have slept, or its clock was set.
        """
        reachable, seen_at, now = self.last_seen.reachable, self.observer.seen_at, self.clock.now()
        silent = [i for i in instances if i.id not in reachable and i.state is not InstanceState.TERMINATING]
        known = [each.id for each in silent if each.seen_at is not None or each.id in seen_at]
        self._silent_since = {name: self._silent_since.get(name, now) for name in known}
        if not known:
            return instances
        since = self._silent_since
        return tuple(replace(i, seen_at=since[i.id]) if i.id in since else i for i in instances)


def counted_tags(store: Store, policy: Policy, job_id: JobId) -> Sequence[str]:
    """Return the tags of a job that have a budget, or that fair share counts by, as ``KEY=VALUE``; none if the job is
    no longer recorded."""
    budgets, shared = policy.budgets, policy.admission.fair_share_tag
    if not budgets.per_tag and shared is None:
        return ()
    try:
        tags = store.job(job_id).spec.tags
    except NotFound:
        return ()
    texts = ((key, f"{key}={value}") for key, value in sorted(tags.items()))
    return tuple(text for key, text in texts if key == shared or budgets.for_scope(tag_scope(text)) != UNLIMITED)


def read_spend(store: Store, now: float, tags_of: Callable[[JobId], Sequence[str]] = lambda _: ()) -> SpendLedger:
    """Return a ledger of the UTC month of ``now``, and of live jobs that have budgets of their own, from the event log.

    It reads from the request of the first instance that cost anything since then, even if that instance is gone: the
    price of an hour after midnight is in an event of the day, or month, before.
    """
    view, ledger = store.live(), SpendLedger(tags_of=tags_of)
    counts_since = min([month_start(now), *(job.submitted_at for job in view.jobs if _has_budget(job))])
    gone = store.iter_events(since=counts_since - CLOCK_SKEW_S, kinds=(EventKind.INSTANCE_TERMINATED,))
    oldest = min((instance_number(event.instance_id or "") for event in gone), default=None)
    requested_at = [counts_since, *(each.requested_at for each in view.instances)]
    requested_at += [] if oldest is None else [store.instance(f"inst-{oldest}").requested_at]
    ledger.follow(store.iter_events(since=min(requested_at) - CLOCK_SKEW_S, kinds=SPEND_KINDS))
    return ledger


def _with_spend(jobs: Sequence[Job], ledger: SpendLedger, now: float) -> dict[int, Job]:
    """Return jobs with what they have cost, by number."""
    usd = ledger.job_usd(now)
    return {number_of(job.id): replace_fields(job, spent_usd=usd.get(job.id, 0.0)) for job in jobs}


def _has_budget(job: Job) -> bool:
    return job.spec.budget_usd is not None


def _has_secrets(job: Job) -> bool:
    return bool(job.spec.secrets)
