"""Observe: record what providers and the engine say as facts. Decides nothing; concludes nothing from silence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeVar

from hcloud.apply.feedback import UnitTotals, record_window
from hcloud.apply.machines import confirm_launch, emit_provider_error
from hcloud.apply.unit_index import UnitIndex, UnitOwner
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.estimates import Classification
from hcloud.core.model import Allocation, EventKind, FailureCause, Instance, InstanceState, Job, ServiceTarget
from hcloud.observe import facts
from hcloud.observe.facts import Change, UnitEnd, UnitHost
from hcloud.observe.log_archive import LogArchive
from hcloud.observe.orphans import Orphans
from hcloud.observe.sampling import SampleChange, Sampling, record_sample, served_as_promised
from hcloud.provider import (
    CloudInstance,
    CloudState,
    Listing,
    Provider,
    Runner,
    RunnerView,
    UnitReport,
    UnitSample,
    UnitState,
    WorkerReport,
    is_listing,
)
from hcloud.quarantine.batches import CYCLE_ERRORS, Failure, Failures, call_provider, run_batch
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, LiveView, Store, Transaction

Memory = TypeVar("Memory")
FEED_EVERY_S = 600.0
"""How long a window is in which a running service is compared with what was expected of it."""
RATE_WEIGHT = 0.1
"""How much of the mean rate of requests a new sample replaces."""
DEFAULT_POLL_S = 2.0
SLOW_POLL_S = 30.0
"""How often a provider is listed while none of its machines is silent or on its way up or down."""
UNIT_MISSING_S = 60.0
FORGET_EVERY_S = 600.0
"""How often what vanished is forgotten; until then it takes a little memory, no more."""
LAPSED_S = 600.0
"""A machine that ends itself may go by a clock that is behind ours."""
UNKNOWN_LAUNCH_S = 60.0
"""How long after its request a machine whose launch reply was lost may still turn up in a listing."""
_NOTHING_REACHED = UnitTotals()
_NOTHING_HEARD: Sequence[UnitReport] = ()
_name_of = attrgetter("instance_id")
_ON_THE_WAY = (InstanceState.REQUESTED, InstanceState.BOOTING, InstanceState.TERMINATING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen: the workers that answered, whether the engine did, whether rows moved.

    New samples move nothing: the plan of the same cycle goes by them already. ``failing``: what could not be taken in,
    a defect; it is looked at again each time.
    """

    reachable: frozenset[str]
    engine_reachable: bool
    moved: bool
    failing: Failures = field(default_factory=dict)


class FactBatch(NamedTuple):
    """Facts about one unit, or one instance: changes that are recorded together. ``source``: the reporter."""

    instance_id: str
    source: str
    changes: tuple[Change, ...]


@dataclass(slots=True)
class ObservationRound:
    """What comes up at one look. ``failing``: what could not be taken in, or written down; ``unclear``: the machines of
    which that is; ``ended``: units with an end that is being or was recorded, and the instance of each;
    ``answering``: the instances with an answering worker."""

    failing: dict[str, Failure] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    answering: frozenset[str] = frozenset()


@dataclass(slots=True)
class Observer:
    """Reads providers and the engine. Its memory (poll times, absences, sample times) may be lost without harm."""

    store: Store
    providers: Mapping[str, Provider]
    runner: Runner
    clock: Clock
    owner: str
    logs: LogArchive
    poll_s: Mapping[str, float]
    unit_index: UnitIndex = field(default_factory=UnitIndex)
    """What it follows; it may be shared with who follows the same rows."""
    believed: Mapping[str, Classification] = field(default_factory=dict)
    """What is believed of applications, as last planned with: what jobs reach is compared with it."""
    seen_at: dict[str, float] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    _listed_at: dict[str, float] = field(default_factory=dict)
    _absent: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By machine: for how long complete listings have not named it, and when the last of them was asked for."""
    _heard: dict[str, CloudInstance] = field(default_factory=dict)
    """By machine, the listing that taught nothing beside its row as it is now."""
    _unit_missing_since: dict[str, float] = field(default_factory=dict)
    _sampling: Sampling = field(default_factory=Sampling)
    _told_unlisted: set[str] = field(default_factory=set)
    """Machines that no listing named though their workers answered."""
    _told_to_stop: dict[str, str] = field(default_factory=dict)
    """Units nobody owns, by id, and the machine each is on."""
    _reached: dict[str, UnitTotals] = field(default_factory=dict)
    _windows: dict[str, tuple[float, list[float]]] = field(default_factory=dict)
    _settled: dict[str, WorkerReport] = field(default_factory=dict)
    """By machine, the report that taught nothing new beside its row and its holders as they are now (and the policy as
    it is): the same again teaches nothing either."""
    _settled_under: Policy | None = None
    _unlooked: set[str] = field(default_factory=set)
    """Machines that may have become idle since that was last looked at."""
    _on_the_way: set[str] = field(default_factory=set)
    _orphans: Orphans = field(default_factory=Orphans)
    _look: ObservationRound = field(default_factory=ObservationRound)
    _forgot_at: float = -math.inf

    def observe(self, policy: Policy, lease: LeaderLease | None = None) -> Observation:
        """Read everything that is due and record what changed, in one transaction; return what was seen."""
        self._look, self.logs.trouble = ObservationRound(), ""
        listings = {name: listing for name in sorted(self.providers) if (listing := self._list(name, lease))}
        engine = self._ask_engine()
        self.silent, self._look.answering = engine.silent, frozenset(map(_name_of, engine.workers))
        # Rows are read after the listings: a listed machine was recorded before it was launched.
        view = self._follow()
        now = self.clock.now()
        news = [n for name, listing in listings.items() for n in self._cloud_news(name, listing, view, now, policy)]
        if engine.reachable:
            news += self._engine_news(engine, now, policy)
        if engine.reachable and now >= self._forgot_at + FORGET_EVERY_S:
            news += self._lapsed(view, now)
        moved = self._commit(news, lease)
        # Read again: what ended just now leaves its machine idle from now on, not from the next look.
        self._follow()
        moved = self._commit(list(self._idle_news()), lease) or moved
        self._unlooked.clear()
        self._forget_ended()
        self._forget_vanished(now)
        return Observation(
            reachable=self._look.answering, engine_reachable=engine.reachable, moved=moved, failing=self._look.failing
        )

    def _ask_engine(self) -> RunnerView:
        """Return what the engine knows; nothing may be concluded where it fails."""
        try:
            return self.runner.observe()
        except Exception as defect:  # noqa: BLE001 it never should; it is told of, and machines are to be renewed
            self._look.failing["polling the engine"] = Failure.from_error(exc_info=defect)
            return RunnerView(workers=(), reachable=False)

    def _forget_ended(self) -> None:
        """Forget units with a recorded end, and have their workers forget them."""
        for unit in self._look.ended:
            self._windows.pop(unit, None)
            self._reached.pop(unit, None)
            self._sampling.forget(unit)
        try:
            if self._look.ended:
                self.runner.forget(self._look.ended)
        except Exception as defect:  # noqa: BLE001 it is told of; they are reported, and forgotten, again
            for name in self._look.ended.values():
                self._settled.pop(name, None)
            self._look.failing["cleaning up ended units"] = Failure.from_error(exc_info=defect)

    def _follow(self) -> LiveView:
        """Read the rows, and forget what was concluded of machines to which something has happened."""
        view, unit_index = self.store.live(), self.unit_index
        unit_index.follow(view.jobs, view.instances)
        for name in (touched := unit_index.take_changed_machines()):
            row = unit_index.machines.get(name)
            self._settled.pop(name, None)
            self._heard.pop(name, None)
            (self._on_the_way.add if row is not None and row.state in _ON_THE_WAY else self._on_the_way.discard)(name)
        self._unlooked |= touched
        return view

    def _commit(self, news: Sequence[FactBatch], lease: LeaderLease | None) -> bool:
        if not news:
            return False
        done = run_batch(self.store, self.clock, lease, news, lambda: _carry_out, self._skip_failed)
        return not all(isinstance(change, SampleChange) for each, _ in done for change in each.changes)

    def _skip_failed(self, failed: FactBatch, defect: Exception) -> FactBatch | None:
        """Note what cannot be written down, and that its machine has more to tell than was taken in. A unit's end is
        worth more than what it teaches."""
        name, source, changes = failed
        end = next((change for change in changes if isinstance(change, UnitEnd)), None)
        job_id = end.job_id if end is not None else None
        self._look.failing[f"recording the report of {source}"] = Failure.from_error(exc_info=defect, job_id=job_id)
        self._settled.pop(name, None)
        self._heard.pop(name, None)
        if end is not None and end.with_feedback:
            return FactBatch(
                name, source, tuple(replace(each, with_feedback=False) if each is end else each for each in changes)
            )
        self._look.ended = {unit: where for unit, where in self._look.ended.items() if where != name}
        return None

    # --------------------------------------------------------------------------------------------------------- machines
    def _list(self, name: str, lease: LeaderLease | None) -> Listing | None:
        now = self.clock.now()
        since_s, poll_s = now - self._listed_at.get(name, -1e18), self._poll_s(name)
        if since_s < poll_s or (since_s < SLOW_POLL_S and not self._something_moves_at(name)):
            return None
        self._listed_at[name] = now
        try:
            listing = call_provider(lambda: self.providers[name].instances(self.owner), f"{name}.instances", is_listing)
        except ProviderError as trouble:
            # Nothing is concluded from a failed read; it is only told.
            with self.store.transaction(now, lease) as txn:
                emit_provider_error(txn, name, "instances", trouble)
            return None
        self._end_orphans(name, listing, lease)
        return listing

    def _something_moves_at(self, provider: str) -> bool:
        """Return whether a machine of a provider is silent, or on its way up or down."""
        self._follow()
        rows = (self.unit_index.machines.get(each) for each in chain(self._on_the_way, self.silent, self._absent))
        return any(row is not None and row.offer.provider == provider for row in rows)

    def _poll_s(self, provider: str) -> float:
        return self.poll_s.get(provider, DEFAULT_POLL_S)

    def _end_orphans(self, name: str, listing: Listing, lease: LeaderLease | None) -> None:
        """End machines of our owner tag that no live record knows; listings repeat this until they are gone."""
        known, up = {i.token for i in self.store.live().instances}, (CloudState.PENDING, CloudState.RUNNING)
        unknown = [c for c in listing.instances if c.token not in known]
        orphans = [c for c in unknown if c.owner == self.owner and c.state in up]
        self._orphans.end(self.store, self.clock, lease, name, self.providers[name], orphans)

    def _cloud_news(
        self, name: str, listing: Listing, view: LiveView, now: float, policy: Policy
    ) -> Iterator[FactBatch]:
        by_token, heard, rows = {c.token: c for c in listing.instances}, self._heard, self.unit_index.machines
        for found in [key for key in self._absent if key not in rows or rows[key].token in by_token]:
            del self._absent[found]
        due = [i for i in view.instances if (cloud := by_token.get(i.token)) is None or heard.get(i.id) is not cloud]
        for instance in due:
            if instance.offer.provider != name:
                continue
            cloud = by_token.get(instance.token)
            try:
                changes = list(self._facts_from_listing(instance, cloud, listing, view, now, policy))
            except Exception as defect:  # noqa: BLE001 one machine's row must not hide the others; it is told of
                self._look.failing[f"reading the listing of {name} for {instance.id}"] = Failure.from_error(
                    exc_info=defect
                )
                continue
            if cloud is not None and not changes:
                heard[instance.id] = cloud
            if changes:
                yield FactBatch(instance.id, instance.id, tuple(changes))

    def _facts_from_listing(
        self,
        instance: Instance,
        cloud: CloudInstance | None,
        listing: Listing,
        view: LiveView,
        now: float,
        policy: Policy,
    ) -> Iterator[Change]:
        if cloud is not None:
            yield from self._listed(instance, cloud, view, now, policy)
        elif not self._surely_absent(instance, listing, self._listed_at[instance.offer.provider]):
            return
        elif instance.id in self._look.answering:
            yield from self._unlisted(instance)
        else:
            self._absent.pop(instance.id, None)
            # Nobody tells when it ended, which may be long ago; but no machine outlives what is paid for.
            at = min(now, instance.expires_at)
            yield facts.instance_gone(instance, view, self.unit_index, at, "absent from complete listings", None)

    def _unlisted(self, instance: Instance) -> Iterator[Change]:
        """An instance with an answering worker exists, whatever is listed: that is reported once."""
        name = instance.offer.provider
        if instance.id not in self._told_unlisted:
            self._told_unlisted.add(instance.id)
            trouble = ProviderError(
                f"{name} does not list {instance.id}, but its worker answers; check that account, region and "
                "directory are still the same"
            )
            yield lambda txn: emit_provider_error(txn, name, "instances", trouble, instance.id)

    def _lapsed(self, view: LiveView, now: float) -> Iterator[FactBatch]:
        """Report instances of providers that are no longer configured, so not listed: one long past its lease,
        without an answering worker, has terminated itself."""
        why = "its provider is not configured, and its lease has expired"
        for each in view.instances:
            known = each.offer.provider in self.providers or each.id in self._look.answering
            if not known and now >= each.expires_at + LAPSED_S:
                yield FactBatch(
                    each.id, each.id, (facts.instance_gone(each, view, self.unit_index, each.expires_at, why, None),)
                )

    def _surely_absent(self, instance: Instance, listing: Listing, asked_at: float) -> bool:
        """Absence counts only in complete listings asked for after the launch, never for an open launch; and only where
        it has lasted for the consistency delay. ``asked_at`` is when the listing was asked for: by the time it is read
        it may be old. No clock is trusted with the delay: the provider's may be behind ours, and ours may jump ahead
        or have been another before a restart. So this process counts it itself, from listing to listing, at most the
        usual time between two of them, and one of those more.
        """
        if not listing.complete or instance.state is InstanceState.REQUESTED or asked_at <= instance.requested_at:
            return False
        poll_s = self._poll_s(instance.offer.provider)
        absent_s, before = self._absent.get(instance.id, (0.0, asked_at))
        absent_s += min(max(0.0, asked_at - before), poll_s)
        self._absent[instance.id] = (absent_s, asked_at)
        settle_s = listing.consistent_after_s + (UNKNOWN_LAUNCH_S if instance.provider_id is None else 0.0)
        return absent_s >= settle_s + poll_s

    def _listed(
        self, instance: Instance, cloud: CloudInstance, view: LiveView, now: float, policy: Policy
    ) -> Iterator[Change]:
        if instance.provider_id is None:
            yield lambda txn: confirm_launch(txn, instance.id, cloud)
        if cloud.state is CloudState.TERMINATED:
            taken = cloud.preempt_at is not None or instance.preempt_at is not None
            at, why = cloud.terminated_at or now, cloud.detail or "ended"
            yield facts.instance_gone(instance, view, self.unit_index, at, why, policy if taken else None)
            return
        if cloud.preempt_at is not None and cloud.preempt_at != instance.preempt_at:
            yield facts.preemption_notice(instance.id, cloud.preempt_at)
        price = cloud.price_usd_per_h
        if price > 0 and instance.provider_id is not None and price != instance.offer.price_usd_per_h:
            yield facts.price_changed(instance.id, price)

    def _idle_news(self) -> Iterator[FactBatch]:
        for name in sorted(self._unlooked, key=_number_of):
            instance = self.unit_index.machines.get(name)
            if instance is None or instance.idle_since is not None or self.unit_index.is_busy(name):
                continue
            if instance.state in (InstanceState.READY, InstanceState.DRAINING):
                yield FactBatch(name, name, (facts.instance_idle(name),))

    # ----------------------------------------------------------------------------------------------------------- engine
    def _engine_news(self, engine: RunnerView, now: float, policy: Policy) -> list[FactBatch]:
        learnt: list[FactBatch] = []
        settled, machines = self._settled, self.unit_index.machines
        if policy is not self._settled_under:
            settled.clear()
            self._settled_under = policy
        self.seen_at.update(dict.fromkeys(map(_name_of, engine.workers), now))
        for worker in [each for each in engine.workers if settled.get(each.instance_id) is not each]:
            name = worker.instance_id
            instance, before = machines.get(name), settled.pop(name, None)
            if instance is None:
                continue
            heard = before.units if before is not None else _NOTHING_HEARD
            found = list(self._worker_news(worker, instance, now, policy, heard))
            learnt += found
            here = self.unit_index.owners.get(name, {})
            # The same report has no sample twice; all else may have to be recorded again.
            said = name not in self._look.unclear and all(
                type(change) is SampleChange for n in found for change in n.changes
            )
            if said and here.keys() == {report.id for report in worker.units if report.exit is None}:
                settled[name] = worker
        return learnt

    def _worker_news(
        self, worker: WorkerReport, instance: Instance, now: float, policy: Policy, heard: Sequence[UnitReport]
    ) -> Iterator[FactBatch]:
        """``heard``: reports of units; an identical one carries nothing new."""
        name, here = instance.id, self.unit_index.owners.get(instance.id, {})
        yield from self._apart(name, name, None, facts.instance_registered(instance, worker, now))
        alone = len({job.id for job, _ in here.values()}) <= 1
        host = UnitHost(worker, instance, alone)
        known = set(map(id, heard))
        for report in worker.units:
            if id(report) not in known:
                owner = here.get(report.id)
                yield from self._apart(name, report.id, owner, self._unit(report, host, owner, policy))
        if len(here) > len(worker.units) or here.keys() - {report.id for report in worker.units}:
            yield from self._apart(name, name, None, self._missing(worker, here, now))

    def _apart(self, name: str, source: str, owner: UnitOwner | None, told: Iterator[Change]) -> Iterator[FactBatch]:
        """Yield the facts of one unit or worker; a failure with one hides nothing of the others."""
        try:
            changes = tuple(told)
        except CYCLE_ERRORS:
            raise
        except Exception as defect:  # noqa: BLE001 it is told of, and tried at each look
            self._look.ended.pop(source, None)  # nothing of an end may be lost
            self._look.unclear.add(name)
            job_id = owner[0].id if owner is not None else None
            self._look.failing[f"reading the report of {source}"] = Failure.from_error(exc_info=defect, job_id=job_id)
            return
        if changes:
            yield FactBatch(name, source, changes)

    def _unit(self, report: UnitReport, host: UnitHost, owner: UnitOwner | None, policy: Policy) -> Iterator[Change]:
        self._unit_missing_since.pop(report.id, None)
        if owner is None:
            yield from self._unowned(report, host.worker)
            return
        job, allocation = owner
        instance_id = host.instance.id
        if report.started_at is not None and allocation.started_at is None:
            yield facts.unit_started(job.id, allocation.rank, report.started_at)
        sample = report.sample
        every_s = policy.timing.sample_every_s
        if report.exit is None and sample is not None and self._sampling.is_due(report.id, sample, every_s):
            yield from self._looked(report.id, sample, job, allocation.rank, host, policy)
        if report.exit is not None and self.logs.collect(self.runner, report.id, instance_id):
            self._look.ended[report.id] = instance_id
            if report.sample is not None:
                rate = served_as_promised(report.sample, job.spec.target)
                self._note_reached(report.id, report.sample, rate)
            for recorded in self._sampling.finish(report.id, report.sample):
                yield record_sample(job, allocation.rank, instance_id, recorded)
            reached = self._reached.get(report.id, _NOTHING_REACHED)._replace(cpu_s=report.exit.cpu_s)
            yield UnitEnd(job.id, allocation.rank, report.exit, host, reached, self.believed.get(job.application))

    def _looked(
        self, unit: str, sample: UnitSample, job: Job, rank: int, host: UnitHost, policy: Policy
    ) -> Iterator[Change]:
        """Take in what a unit has done; record it where it is new."""
        rate = served_as_promised(sample, job.spec.target)
        self._note_reached(unit, sample, rate)
        changed_at = job.corrections[-1].at if job.corrections else 0.0
        if job.attempt is not None and len(job.attempt.allocations) > 1:  # nothing is concluded before the last began
            changed_at = max(changed_at, *(each.started_at or 0.0 for each in job.attempt.allocations))
        promised_ms = job.spec.target.latency_ms if isinstance(job.spec.target, ServiceTarget) else math.inf
        for recorded in self._sampling.select(unit, sample, policy, changed_at=changed_at, promised_ms=promised_ms):
            yield record_sample(job, rank, host.instance.id, recorded)
        if rate is not None:
            yield from self._window(unit, job, host, sample, rate)

    def _note_reached(self, unit: str, sample: UnitSample, rate: float | None) -> None:
        """Remember what a unit has done so far; the ``rate`` of requests as a mean that forgets slowly."""
        before = self._reached.get(unit, _NOTHING_REACHED)
        if rate is not None and before.requests_per_s is not None:
            weight = RATE_WEIGHT if sample.looks == 1 else 1.0 - (1.0 - RATE_WEIGHT) ** sample.looks
            rate = before.requests_per_s + weight * (rate - before.requests_per_s)
        self._reached[unit] = before._replace(
            progress=sample.progress if sample.progress is not None else before.progress,
            written_mib=sample.written_mib if sample.written_mib is not None else before.written_mib,
            requests_per_s=rate if rate is not None else before.requests_per_s,
        )

    def _window(self, unit: str, job: Job, host: UnitHost, sample: UnitSample, rate: float) -> Iterator[Change]:
        """Feed back what a service served in each window while it runs: a long one would teach nothing till its end."""
        alone_on_it = job.attempt is not None and len(job.attempt.allocations) == 1
        if not job.application or not alone_on_it:
            return
        began_at, rates = self._windows.setdefault(unit, (sample.at, []))
        rates += [rate] * sample.looks
        if sample.at < began_at + FEED_EVERY_S:
            return
        self._windows[unit] = (sample.at, [])
        served, believed, job_id = sum(rates) / len(rates), self.believed.get(job.application), job.id
        before = self._reached[unit].best_window_per_s
        self._reached[unit] = self._reached[unit]._replace(best_window_per_s=max(served, before or 0.0))
        yield lambda txn: record_window(
            txn, txn.job(job_id), host.instance, served, believed, alone=host.alone, best_before=before
        )

    def _unowned(self, report: UnitReport, worker: WorkerReport) -> Iterator[Change]:
        """A unit no live allocation knows: its end is recorded already (clean up), or it must not run (stop it)."""
        if report.state is UnitState.ENDED:
            self._look.ended[report.id] = worker.instance_id
            self._told_to_stop.pop(report.id, None)
            return
        self.runner.stop({report.id: worker.instance_id}, cause=FailureCause.EVICTED)
        if report.id not in self._told_to_stop:
            self._told_to_stop[report.id] = worker.instance_id
            yield lambda txn: txn.emit(
                EventKind.ORPHAN, instance_id=worker.instance_id, provider_id=report.id, action="stop unit"
            )

    def _missing(self, worker: WorkerReport, here: Mapping[str, UnitOwner], now: float) -> Iterator[Change]:
        """A unit that ran and is no longer there at all, for long, while its worker answers: its disk was lost."""
        present = {report.id for report in worker.units}
        for unit, (job, allocation) in sorted(here.items(), key=lambda each: _place(*each[1])):
            if allocation.started_at is None or unit in present:
                continue
            since = self._unit_missing_since.setdefault(unit, now)
            if now - since >= UNIT_MISSING_S:
                yield facts.unit_vanished(job.id, allocation.rank)

    def _forget_vanished(self, now: float) -> None:
        """Forget, now and then, instances without a live row and units that no job holds: no end of a unit is
        ever reported that vanished with its machine."""
        if now < self._forgot_at + FORGET_EVERY_S:
            return
        self._forgot_at = now
        machines = self.unit_index.machines.keys()
        units = {unit for here in self.unit_index.owners.values() for unit in here}
        self.seen_at = _only(self.seen_at, machines)
        self._absent = _only(self._absent, machines)
        self._told_unlisted &= machines
        self._told_to_stop = {unit: name for unit, name in self._told_to_stop.items() if name in machines}
        self._unit_missing_since = _only(self._unit_missing_since, units)
        self._reached = _only(self._reached, units)
        self._windows = _only(self._windows, units)
        self._sampling.retain(units)
        self._orphans.forget(now - FORGET_EVERY_S)


def _only(remembered: Mapping[str, Memory], known: Set[str]) -> dict[str, Memory]:
    return {name: memory for name, memory in remembered.items() if name in known}


def _carry_out(txn: Transaction, news: FactBatch) -> None:
    for change in news.changes:
        change(txn)


def _number_of(instance_id: str) -> int:
    return int(instance_id.rpartition("-")[2])


def _place(job: Job, held: Allocation) -> tuple[int, int]:
    """Return a unit's place in order of its job's number and its rank."""
    return int(job.id.rpartition("-")[2]), held.rank
