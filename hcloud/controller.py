"""The one cycle that daemon and simulator both drive: observe, decide, act (architecture.md, ground rule 2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_
from typing import Any, TypeVar

import numpy as np

from hcloud.apply import Applier, ApplyResult, Refusal, emit_provider_error
from hcloud.apply.directives import PAUSED
from hcloud.apply.lease_push import LeasePush
from hcloud.classifier.applications import identify, key_of, known_as
from hcloud.classifier.belief_store import BeliefStore, PredictionError
from hcloud.classifier.library import Library
from hcloud.classifier.source_selection import SourcePrior
from hcloud.classifier.type_selection import TypePrior
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError, StaleWrite
from hcloud.core.estimates import Classification
from hcloud.core.model import EventKind, Instance, InstanceState, Job, JobId, JobSpec, JobState, Offer
from hcloud.core.rows import FilteredRows
from hcloud.forecast.fleet_tracker import KEPT_S, RECENT_KINDS, FleetTracker
from hcloud.forecast.job_monitor import WATCH_KINDS, WATCHED_S, JobMonitor
from hcloud.observe.observer import Observation, Observer
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import LeftOut, Snapshot, Spend, closed
from hcloud.preview import Preview, preview_plan
from hcloud.provider import Provider, Runner, is_offer_list
from hcloud.quarantine.batches import Failure, Failures, call_provider
from hcloud.quarantine.planning import Planner, error_text, plan_without_failing
from hcloud.quarantine.registry import CLASSIFICATION, QUARANTINE_S, Quarantine
from hcloud.spec.policy import Policy
from hcloud.spend_ledger import SPEND_KINDS, SpendLedger, month_start
from hcloud.store import LeaderLease, LiveView, Store, Transaction
from hcloud.store.documents import instance_number

_log = logging.getLogger("hcloud")
LEADER_TTL_S = 15.0
OFFERS_EVERY_S = 15.0
CLOCK_SKEW_S = 600.0
"""Units start, and machines end, by clocks that may be so far behind ours."""
MOST_TOLD = 20
"""Of more that fails at one time only the number is told."""
_EVENTS_AT_ONCE = 10_000
_HYPOTHETICAL = 10**12
_SUBMITTED = JobState.SUBMITTED
_ENDING = InstanceState.TERMINATING
T = TypeVar("T")
_NOTHING_SEEN = Observation(reachable=frozenset(), engine_reachable=False, moved=False)


@dataclass(slots=True)
class OfferCache:
    """The last known offers of each provider. A provider that does not answer keeps its old offers."""

    providers: Mapping[str, Provider]
    clock: Clock
    by_provider: dict[str, tuple[Offer, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    _sorted: tuple[list[tuple[Offer, ...]], tuple[Offer, ...]] = ([], ())
    """All offers by key, and the answers they were made of."""

    def refresh(self) -> dict[str, ProviderError]:
        """Ask every provider that is due; return the troubles by provider."""
        troubles: dict[str, ProviderError] = {}
        now = self.clock.now()
        for name, provider in sorted(self.providers.items()):
            if now < self._asked_at.get(name, -1e18) + OFFERS_EVERY_S:
                continue
            self._asked_at[name] = now
            try:
                told = call_provider(provider.offers, f"{name}.offers", is_offer_list)
                if told != self.by_provider.get(name):  # the same objects while they say the same
                    self.by_provider[name] = told
                self.errors.pop(name, None)
            except ProviderError as trouble:
                troubles[name] = trouble
                self.errors[name] = str(trouble)
        return troubles

    def ask_again(self) -> None:
        """Ask everybody at the next refresh: a launch just failed, so the offers have changed."""
        self._asked_at.clear()

    @property
    def all(self) -> tuple[Offer, ...]:
        """Every known offer, sorted by key; the same object until a provider has answered again."""
        answers, (made_of, offers) = list(self.by_provider.values()), self._sorted
        if len(answers) != len(made_of) or not all(map(is_, answers, made_of)):
            offers = tuple(sorted(chain.from_iterable(answers), key=lambda o: o.key))
            self._sorted = (answers, offers)
        return offers


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """One finished cycle, for status and metrics. ``left_out``: the jobs and stages that planning fails on, and all
    else that HCloud does, and with what."""

    at: float = 0.0
    duration_s: float = 0.0
    actions: int = 0
    refused: int = 0
    error: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


class Controller:
    """Drives one deployment. ``cycle`` is called by one thread; ``preview`` and the read-only attributes by any.

    ``holder`` names this daemon in the leader lease: only the lease's holder observes, plans and acts.
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
    ) -> None:
        """Take the ports; nothing is called yet. ``planner`` decides; simulations put other rules in its place."""
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
        self.beliefs = BeliefStore(library=library or Library())
        self._knowing = threading.Lock()
        """Held while the book is used: previews ask it from threads of their own."""
        self._book_failed = False
        self.lease: LeaderLease | None = None
        self.last_seen = _NOTHING_SEEN
        self.last_snapshot = Snapshot(now=clock.now())
        self.last_spend = Spend()
        self._silent_since: dict[str, float] = {}
        self._engine_reachable_since: float | None = None
        self._book: SpendLedger | None = None
        self._recent = FleetTracker()
        self._watch = JobMonitor()
        self.lease_push = LeasePush()
        self._plan_cache = PlanCache()
        self.quarantine = Quarantine()
        self._submitted = FilteredRows(_is_to_be_known)
        self._budgeted = FilteredRows(_has_budget)

    # ----------------------------------------------------------------------------------------------------------- cycle
    def cycle(self) -> ApplyResult:
        """Observe, decide, act once. Returns what was done (nothing, while another daemon leads).

        Raises StoreBusy, StaleWrite: nothing is lost, try again.
        """
        if not self._lead():
            return ApplyResult(applied=0)
        self._hear_offers()
        seen = self.observer.observe(self.policy, self.lease)
        self._note_engine(seen)
        self._note_failing(seen.failing)
        resumed = self.applier.resume(self.store.live().intents, self.policy, self.lease)
        self.last_snapshot = self.snapshot()
        self.observer.believed = self.last_snapshot.applications
        self._tell_surprises()
        plan = self._plan(self.last_snapshot)
        outcome = self.applier.apply(plan, self.policy, self.offers.all, self.lease)
        self._leave_out_failed(outcome.failed)
        live, now = self.store.live().instances, self.clock.now()
        self._note_failing(self.lease_push.renew(self.runner, live, self.last_seen.reachable, now))
        self._note_failing(self.applier.take_failures())
        if self.applier.machines.offers_failed:
            self.applier.machines.offers_failed = False
            self.offers.ask_again()
        more = seen.moved or resumed > 0
        return replace(outcome, moved=outcome.moved or more, went_on=outcome.went_on and not more, due_at=plan.due_at)

    def snapshot(self) -> Snapshot:
        """Return the present picture, sorted and frozen."""
        now = self.clock.now()
        view = self.store.live()
        book = self._follow(view.instances)
        self.last_spend = book.spend(now)
        submitted, budgeted = self._submitted.of(view.jobs), self._budgeted.of(view.jobs)
        return Snapshot(
            now=now,
            jobs=_with_spend(view.jobs, book, now) if budgeted else view.jobs,
            instances=self._with_seen(view.instances),
            offers=self.offers.all,
            spend=self.last_spend,
            fleet_stats=self._recent.recent(now),
            job_samples=self._watch.watched(),
            backoffs=(*(b for b in view.backoffs if b.until_at > now), *closed(view.directives, self.offers.all)),
            directives=view.directives,
            reachable=self.last_seen.reachable,
            applications=self._believed(view, submitted),
            programs=self.beliefs.programs,
            source_prior=self._source_prior(submitted),
            type_prior=self._type_prior(submitted),
            offers_known=frozenset(self.offers.by_provider),
            providers=frozenset(self.offers.providers),
            engine_reachable=self.last_seen.engine_reachable,
            engine_reachable_since=now if self._engine_reachable_since is None else self._engine_reachable_since,
            paused=self.store.get_meta(PAUSED) or "",
            left_out=self.quarantine.left_out(now),
            plan_cache=self._plan_cache,
        )

    def preview(self, specs: Sequence[JobSpec]) -> Preview:
        """Plan as if ``specs`` had been submitted before the last cycle; changes nothing; any thread may call it."""
        snapshot = self.last_snapshot
        jobs = tuple(
            Job(id=f"job-{_HYPOTHETICAL + n}", spec=spec, state=JobState.SUBMITTED, submitted_at=snapshot.now)
            for n, spec in enumerate(specs)
        )
        known = self._known_besides(snapshot, [job for job in jobs if _is_to_be_known(job)])
        # This may be another thread than the cycle's.
        return preview_plan(replace(known, plan_cache=PlanCache()), jobs, self.policy, self.planner)

    def _known_besides(self, snapshot: Snapshot, submitted: Sequence[Job]) -> Snapshot:
        """Return ``snapshot`` with what is known of applications that ``submitted`` jobs may be taken for; without that
        where it cannot be worked out, a defect."""
        if CLASSIFICATION in self.quarantine.left_out(snapshot.now).stages:
            return snapshot
        with self._knowing:
            try:
                return replace(
                    snapshot,
                    programs=self.beliefs.programs,
                    applications={**snapshot.applications, **self.beliefs.believe(self._taken_for(submitted))},
                    source_prior=self.beliefs.source_prior() if self._chooses_sources(submitted) else None,
                    type_prior=self.beliefs.type_prior() if self._profiles(submitted) else None,
                )
            except Exception:  # noqa: BLE001 it is for information: made without; the book is not trusted any more
                _log.exception("classification failed in a preview")
                self._book_failed = True
                return snapshot

    def release(self) -> None:
        """Give the leader lease back, so that a standby need not wait for it to run out."""
        if self.lease is not None:
            self.store.release_lease(self.lease)
            self.lease = None

    # ----------------------------------------------------------------------------------------------------------- parts
    def _lead(self) -> bool:
        now = self.clock.now()
        if self.lease is None:
            self.lease = self.store.acquire_lease(self.holder, now, LEADER_TTL_S)
            if self.lease is not None:
                self._book = None
                with self.store.transaction(now, self.lease) as txn:
                    txn.emit(EventKind.DAEMON, what="leader", holder=self.holder, epoch=self.lease.epoch)
        else:
            self._stay_leader()
        return self.lease is not None

    def _stay_leader(self) -> None:
        now = self.clock.now()
        if self.lease is not None and now > self.lease.until - LEADER_TTL_S * 2 / 3:
            self.lease = self.store.renew_lease(self.lease, now, LEADER_TTL_S)

    def _still_lead(self) -> None:
        """Renew the lease if it is due, within a cycle that takes long. Raises StaleWrite where another one leads."""
        self._stay_leader()
        if self.lease is None:
            raise StaleWrite("another daemon became leader while this one planned")

    def _plan(self, snapshot: Snapshot) -> Plan:
        """Return the plan. A job or stage on which planning fails by a defect is quarantined, so that the others go on.

        Raises what planning failed with where it fails whatever is left out.
        """
        drawn = self.rng.bit_generator.state
        try:
            plan = self.planner(snapshot, self.policy, self.rng)
        except Exception as defect:  # noqa: BLE001 whatever it is, machines must be renewed and the others served
            _log.exception("planning failed; searching for the job or stage at fault")
            self.rng.bit_generator.state = drawn
            return self._plan_despite(snapshot, defect)
        if self.quarantine:
            self.quarantine.forget_recovered(snapshot.now)
        return plan

    def _plan_despite(self, snapshot: Snapshot, defect: Exception) -> Plan:
        self._plan_cache = PlanCache()
        suspects = self.quarantine.suspects({job.id for job in snapshot.jobs})
        found = plan_without_failing(
            self.planner, snapshot, self.policy, self.rng, defect, suspects=suspects, between=self._still_lead
        )
        if found.trace:
            _log.error("last failure during that search:\n%s", found.trace)
        self._tell_setbacks(self.quarantine.record(found.left_out, snapshot.now))
        return found.plan

    def _leave_out_failed(self, failed: Sequence[Refusal]) -> None:
        """Leave jobs out of the next plans of which an action could not be carried out, by a defect."""
        if not failed:
            return
        jobs, others = dict[str, str](), dict[str, Failure]()
        for each in failed:
            what, job_id = type(each.action).__name__, getattr(each.action, "job_id", None)
            subject = getattr(each.action, "instance_id", "a machine")
            if job_id is not None:
                jobs[job_id] = f"{what}: {each.why}"
            else:
                others[f"{what} of {subject}"] = Failure(each.why, None)
        self._note_failing(others)
        self._tell_setbacks(self.quarantine.record(LeftOut(jobs=jobs), self.clock.now()))

    def _note_failing(self, troubles: Failures) -> None:
        """Report failures at intervals. They are retried, and no job is left out for them."""
        now = self.clock.now()
        news = {what: troubles[what] for what in self.quarantine.not_yet_reported(troubles, now)} if troubles else {}
        if not news:
            return
        told = dict(list(news.items())[:MOST_TOLD])
        for what, trouble in told.items():
            _log.error("defect in HCloud: %s failed: %s", what, trouble.error, exc_info=trouble.exc_info)
        with self.store.transaction(now, self.lease) as txn:
            for what, trouble in told.items():
                _emit_failing(txn, what, trouble)
            if len(news) > len(told):
                _emit_failing(txn, f"{len(news) - len(told)} more", list(news.values())[-1]._replace(job_id=None))
        self.quarantine.record_others({what: each.error for what, each in news.items()}, now)

    def _tell_setbacks(self, news: LeftOut) -> None:
        with self.store.transaction(self.clock.now(), self.lease) as txn:
            for job_id, error in news.jobs.items():
                _emit_setback(txn, job_id, error, job_id)
            for stage, error in news.stages.items():
                _emit_setback(txn, stage, error)

    def _note_engine(self, seen: Observation) -> None:
        """Remember since when the engine has answered without a gap: silence of workers counts from there."""
        if not seen.engine_reachable:
            self._engine_reachable_since = None
        elif self._engine_reachable_since is None:
            self._engine_reachable_since = self.clock.now()
        self.last_seen = seen

    def _hear_offers(self) -> None:
        troubles = self.offers.refresh()
        if troubles:
            with self.store.transaction(self.clock.now(), self.lease) as txn:
                for name, trouble in troubles.items():
                    emit_provider_error(txn, name, "offers", trouble)

    @property
    def read_up_to(self) -> int:
        """Up to which event the log is in ``last_spend``; 0 where nothing of it was read yet."""
        return self._book.seq if self._book is not None else 0

    def _follow(self, live: Sequence[Instance]) -> SpendLedger:
        if self._book is None:
            self._book, self._recent, self._watch = self._read_history(live)
        while events := self.store.events(after_seq=self._book.seq, limit=_EVENTS_AT_ONCE):
            self._book.follow(events)
            self._recent.follow(events)
            self._watch.follow(events)
            if len(events) < _EVENTS_AT_ONCE:
                break
        return self._book

    def _read_history(self, live: Sequence[Instance]) -> tuple[SpendLedger, FleetTracker, JobMonitor]:
        """Return what follows from the log so far, all three up to the same event; a read that fails leaves none
        behind."""
        now, live_since = self.clock.now(), [i.requested_at for i in live]
        recent, watch = FleetTracker(), JobMonitor()
        book = read_spend(self.store, now)
        events = self.store.iter_events(since=min([now - KEPT_S, *live_since]), kinds=RECENT_KINDS)
        recent.follow(event for event in events if event.seq <= book.seq)
        samples = self.store.iter_events(since=now - WATCHED_S, kinds=WATCH_KINDS)
        watch.follow(event for event in samples if event.seq <= book.seq)
        return book, recent, watch

    # ------------------------------------------------------------------------------------------------- what is believed
    def _believed(self, view: LiveView, submitted: Sequence[Job]) -> Mapping[str, Classification]:
        """Return what is believed of the applications of live jobs, and of those submitted jobs may be taken for."""

        def believed() -> Mapping[str, Classification]:
            """Take in what is new of applications, and say what is believed."""
            self.beliefs.follow(view.applications)
            if not view.applications:
                return {}
            wanted = dict.fromkeys([job.application for job in view.jobs])
            wanted.pop("", None)
            return self.beliefs.believe(wanted | self._taken_for(submitted))

        return self._classified(believed, self.last_snapshot.applications)

    def _classified(self, work_out: Callable[[], T], otherwise: T) -> T:
        """Return what follows from all that is known; where that fails, a defect, ``otherwise``, and so for a while:
        plans are made with what was believed before."""
        now = self.clock.now()
        if CLASSIFICATION in self.quarantine.left_out(now).stages:
            return otherwise
        try:
            with self._knowing:
                if self._book_failed:
                    self.beliefs = BeliefStore(library=self.beliefs.library)  # it may have kept half of something
                    self._book_failed = False
                return work_out()
        except Exception as defect:  # noqa: BLE001 what is believed gets old, which is better than no plan
            _log.exception("classification failed; keeping earlier beliefs")
            self._book_failed = True
            failed = LeftOut(stages={CLASSIFICATION: error_text(defect)})
        self._tell_setbacks(self.quarantine.record(failed, now))
        return otherwise

    def _taken_for(self, submitted: Iterable[Job]) -> dict[str, None]:
        """Return what submitted jobs may be taken for, in their order."""
        wanted = dict[str, None]()
        for job in submitted:
            identity = identify(job.spec)
            known = known_as(identity, self.beliefs.programs.get(identity.program, ()))
            wanted[key_of(known, identity) if known is not None else identity.name] = None
        return wanted

    def _source_prior(self, submitted: Sequence[Job]) -> SourcePrior | None:
        """Return what sources to profile beside are chosen by, where a job may have to be profiled."""
        if not self._chooses_sources(submitted):
            return None
        return self._classified(lambda: self.beliefs.source_prior(), None)

    def _profiles(self, submitted: Sequence[Job]) -> bool:
        return bool(submitted) and self.policy.profiles_jobs

    def _chooses_sources(self, submitted: Sequence[Job]) -> bool:
        return self.policy.profiling.sources is None and self._profiles(submitted)

    def _type_prior(self, submitted: Sequence[Job]) -> TypePrior | None:
        """Return what types to profile on are chosen by, where a job may have to be profiled."""
        if not self._profiles(submitted):
            return None
        return self._classified(lambda: self.beliefs.type_prior(), None)

    def _tell_surprises(self) -> None:
        """Write down how cells that profiling measured had been estimated before."""
        surprises, self.beliefs.surprises = self.beliefs.surprises, []
        if not surprises:
            return
        with self.store.transaction(self.clock.now(), self.lease) as txn:
            for each in surprises:
                txn.emit(EventKind.PREDICTION, **_surprise_fields(each))

    def _with_seen(self, instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
        """Add since when a worker is silent, which matters only of those that are to stay: since this daemon first
        looked in vain. Before that there was no poll: the host may have slept, or its clock was set."""
        reachable, seen_at, now = self.last_seen.reachable, self.observer.seen_at, self.clock.now()
        silent = [each for each in instances if each.id not in reachable and each.state is not _ENDING]
        known = [each.id for each in silent if each.seen_at is not None or each.id in seen_at]
        self._silent_since = {name: self._silent_since.get(name, now) for name in known}
        if not known:
            return instances
        since = self._silent_since
        return tuple(replace(i, seen_at=since[i.id]) if i.id in since else i for i in instances)


def read_spend(store: Store, now: float) -> SpendLedger:
    """Return what was spent in the month of ``now``, and so far on live jobs with budgets of their own, by the log.

    It is read from when the first machine was asked for that cost anything since then, also one that is gone: the price
    of an hour after midnight stands in an event of the day, or month, before.
    """
    view, book = store.live(), SpendLedger()
    counts_since = min([month_start(now), *(job.submitted_at for job in view.jobs if job.spec.budget_usd is not None)])
    gone = store.iter_events(since=counts_since - CLOCK_SKEW_S, kinds=(EventKind.INSTANCE_TERMINATED,))
    oldest = min((instance_number(event.instance_id or "") for event in gone), default=None)
    asked_at = [counts_since, *(each.requested_at for each in view.instances)]
    asked_at += [] if oldest is None else [store.instance(f"inst-{oldest}").requested_at]
    book.follow(store.iter_events(since=min(asked_at) - CLOCK_SKEW_S, kinds=SPEND_KINDS))
    return book


def _emit_setback(txn: Transaction, left_out: str, error: str, job_id: JobId | None = None) -> None:
    text = f"HCloud fails on {left_out}, a defect; left out, and tried again in {QUARANTINE_S:.0f} s"
    _log.error("%s: %s", text, error)
    txn.emit(EventKind.PLANNING_TROUBLE, job_id=job_id, left_out=left_out, error=error, text=text)


def _emit_failing(txn: Transaction, what: str, trouble: Failure) -> None:
    text = f"defect in HCloud: {what} fails; everything else goes on, and it is retried"
    txn.emit(EventKind.PLANNING_TROUBLE, job_id=trouble.job_id, left_out=what, error=trouble.error, text=text)


def _surprise_fields(surprise: PredictionError) -> dict[str, Any]:
    row, estimate = surprise.application, surprise.estimate
    return {
        "user": row.program.partition(":")[0],
        "application": row.name,
        "question": surprise.question,
        "measure": None if row.measure is None else row.measure.value,
        "instance_type": surprise.column if surprise.question == "type" else row.type_column,
        "column": surprise.column,
        "nodes": int(surprise.column) if surprise.question == "nodes" else 1,
        "vcpus": row.reference_vcpus,
        "predicted": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "measured": surprise.measured,
        "alone": True,
    }


def _is_to_be_known(job: Job) -> bool:
    """Return whether it is to be found out what a job is."""
    return job.state is _SUBMITTED and job.spec.profile is None


def _with_spend(jobs: Sequence[Job], book: SpendLedger, now: float) -> tuple[Job, ...]:
    """Fill in what jobs with a budget of their own have spent."""
    usd = book.job_usd(now)
    return tuple(replace(j, spent_usd=usd.get(j.id, 0.0)) if _has_budget(j) else j for j in jobs)


def _has_budget(job: Job) -> bool:
    return job.spec.budget_usd is not None
