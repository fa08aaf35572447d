"""Observe: record what providers and the engine say as facts. Decides nothing; concludes nothing from silence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeVar

from hcloud.apply.learning import Reached, record_findings, record_reached, record_window
from hcloud.apply.machines import adopt, emit_trouble, note_registered, note_taken
from hcloud.apply.orphans import Orphans
from hcloud.apply.records import change_instance, release_allocation
from hcloud.apply.units import note_started
from hcloud.changed import changed
from hcloud.clock import Clock
from hcloud.errors import ProviderError
from hcloud.holders import Holders, Owner
from hcloud.known import Classification, Findings
from hcloud.logs import LogArchive
from hcloud.model import (
    Allocation,
    EventKind,
    FailureCause,
    Instance,
    InstanceState,
    Job,
    Market,
    Reason,
    ServiceTarget,
)
from hcloud.policy import Policy
from hcloud.provider import (
    CloudInstance,
    CloudState,
    ExitRecord,
    Listing,
    Provider,
    Runner,
    RunnerView,
    UnitReport,
    UnitSample,
    UnitState,
    WorkerReport,
)
from hcloud.sampling import SampleChange, Sampling, record_sample, served_as_promised
from hcloud.store import Lease, LiveView, Store, Transaction

Memory = TypeVar("Memory")
Change = Callable[[Transaction], object]
FEED_EVERY_S = 600.0
"""How long a window is in which a running service is compared with what was expected of it."""
RATE_WEIGHT = 0.1
"""How much of the mean rate of requests a new sample replaces."""
DEFAULT_POLL_S = 2.0
SLOW_POLL_S = 30.0
"""How often a provider is listed while none of its machines is silent or on its way up or down."""
UNIT_MISSING_S = 60.0
SAME_NOTICE_S = 5.0
"""A worker's notice that is earlier than what is known by less is the same; the provider's times count first."""
FORGET_EVERY_S = 600.0
"""How often what vanished is forgotten; until then it takes a little memory, no more."""
UNKNOWN_LAUNCH_S = 60.0
"""How long after its request a machine whose launch reply was lost may still turn up in a listing."""
_NOTHING_REACHED = Reached()
_NOTHING_HEARD: Sequence[UnitReport] = ()
_name_of = attrgetter("instance_id")
_ON_THE_WAY = (InstanceState.REQUESTED, InstanceState.BOOTING, InstanceState.TERMINATING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen: the workers that answered, whether the engine did, whether rows moved.

    New samples move nothing: the plan of the same cycle goes by them already.
    """

    reachable: frozenset[str]
    engine_reachable: bool
    moved: bool


class Host(NamedTuple):
    """Where a unit runs: its worker's report, the machine's row, and whether nobody else holds part of it."""

    worker: WorkerReport
    instance: Instance
    alone: bool


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
    holders: Holders = field(default_factory=Holders)
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
    _told_to_stop: dict[str, str] = field(default_factory=dict)
    """Units nobody owns, by id, and the machine each is on."""
    _reached: dict[str, Reached] = field(default_factory=dict)
    _windows: dict[str, tuple[float, list[float]]] = field(default_factory=dict)
    _settled: dict[str, WorkerReport] = field(default_factory=dict)
    """By machine, the report that taught nothing new beside its row and its holders as they are now (and the policy as
    it is): the same again teaches nothing either."""
    _settled_under: Policy | None = None
    _unlooked: set[str] = field(default_factory=set)
    """Machines that may have become idle since that was last looked at."""
    _on_the_way: set[str] = field(default_factory=set)
    _orphans: Orphans = field(default_factory=Orphans)
    _forgot_at: float = -math.inf

    def observe(self, policy: Policy, lease: Lease | None = None) -> Observation:
        """Read everything that is due and record what changed, in one transaction; return what was seen."""
        listings = {name: listing for name in sorted(self.providers) if (listing := self._list(name, lease))}
        engine = self.runner.observe()
        self.silent = engine.silent
        # Rows are read after the listings: a listed machine was recorded before it was launched.
        view = self._follow()
        now = self.clock.now()
        changes = [
            c for name, listing in listings.items() for c in self._cloud_changes(name, listing, view, now, policy)
        ]
        ended: dict[str, str] = {}
        if engine.reachable:
            changes += self._engine_changes(engine, now, policy, ended)
        moved = self._commit(changes, lease)
        # Read again: what ended just now leaves its machine idle from now on, not from the next look.
        self._follow()
        moved = self._commit(list(self._idle_changes()), lease) or moved
        self._unlooked.clear()
        if ended:
            self.runner.forget(ended)
        self._forget_vanished(now)
        reachable = frozenset(map(_name_of, engine.workers))
        return Observation(reachable=reachable, engine_reachable=engine.reachable, moved=moved)

    def _follow(self) -> LiveView:
        """Read the rows, and forget what was concluded of machines to which something has happened."""
        view, holders = self.store.live(), self.holders
        holders.follow(view.jobs, view.instances)
        for name in (touched := holders.take_touched()):
            row = holders.machines.get(name)
            self._settled.pop(name, None)
            self._heard.pop(name, None)
            (self._on_the_way.add if row is not None and row.state in _ON_THE_WAY else self._on_the_way.discard)(name)
        self._unlooked |= touched
        return view

    def _commit(self, changes: Sequence[Change], lease: Lease | None) -> bool:
        if not changes:
            return False
        with self.store.transaction(self.clock.now(), lease) as txn:
            for change in changes:
                change(txn)
        return not all(isinstance(change, SampleChange) for change in changes)

    # --------------------------------------------------------------------------------------------------------- machines
    def _list(self, name: str, lease: Lease | None) -> Listing | None:
        now = self.clock.now()
        since_s, poll_s = now - self._listed_at.get(name, -1e18), self._poll_s(name)
        if since_s < poll_s or (since_s < SLOW_POLL_S and not self._something_moves_at(name)):
            return None
        self._listed_at[name] = now
        try:
            listing = self.providers[name].instances(self.owner)
        except ProviderError as trouble:
            # Nothing is concluded from a failed read; it is only told.
            with self.store.transaction(now, lease) as txn:
                emit_trouble(txn, name, "instances", trouble)
            return None
        self._end_orphans(name, listing, lease)
        return listing

    def _something_moves_at(self, provider: str) -> bool:
        """Return whether a machine of a provider is silent, or on its way up or down."""
        self._follow()
        rows = (self.holders.machines.get(each) for each in chain(self._on_the_way, self.silent, self._absent))
        return any(row is not None and row.offer.provider == provider for row in rows)

    def _poll_s(self, provider: str) -> float:
        return self.poll_s.get(provider, DEFAULT_POLL_S)

    def _end_orphans(self, name: str, listing: Listing, lease: Lease | None) -> None:
        """End machines of our owner tag that no live record knows; listings repeat this until they are gone."""
        known, up = {i.token for i in self.store.live().instances}, (CloudState.PENDING, CloudState.RUNNING)
        unknown = [c for c in listing.instances if c.token not in known]
        orphans = [c for c in unknown if c.owner == self.owner and c.state in up]
        self._orphans.end(self.store, self.clock, lease, name, self.providers[name], orphans)

    def _cloud_changes(
        self, name: str, listing: Listing, view: LiveView, now: float, policy: Policy
    ) -> Iterator[Change]:
        by_token, heard, rows = {c.token: c for c in listing.instances}, self._heard, self.holders.machines
        for found in [key for key in self._absent if key not in rows or rows[key].token in by_token]:
            del self._absent[found]
        due = [i for i in view.instances if (cloud := by_token.get(i.token)) is None or heard.get(i.id) is not cloud]
        for instance in due:
            if instance.offer.provider != name:
                continue
            cloud = by_token.get(instance.token)
            if cloud is not None:
                news = list(self._listed(instance, cloud, view, now, policy))
                if not news:
                    heard[instance.id] = cloud
                yield from news
            elif self._surely_absent(instance, listing, self._listed_at[name]):
                self._absent.pop(instance.id, None)
                # Nobody tells when it ended, which may be long ago; but no machine outlives what is paid for.
                at = min(now, instance.expires_at)
                yield _gone(instance, view, self.holders, at, "absent from complete listings", None)

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
            yield lambda txn: adopt(txn, instance.id, cloud)
        if cloud.state is CloudState.TERMINATED:
            taken = cloud.preempt_at is not None or instance.preempt_at is not None
            at, why = cloud.terminated_at or now, cloud.detail or "ended"
            yield _gone(instance, view, self.holders, at, why, policy if taken else None)
            return
        if cloud.preempt_at is not None and cloud.preempt_at != instance.preempt_at:
            yield _notice(instance.id, cloud.preempt_at)
        price = cloud.price_usd_per_h
        if price > 0 and instance.provider_id is not None and price != instance.offer.price_usd_per_h:
            yield _price(instance.id, price)

    def _idle_changes(self) -> Iterator[Change]:
        for name in sorted(self._unlooked, key=_number_of):
            instance = self.holders.machines.get(name)
            if instance is None or instance.idle_since is not None or self.holders.busy(name):
                continue
            if instance.state in (InstanceState.READY, InstanceState.DRAINING):
                yield _idle(name)

    # ----------------------------------------------------------------------------------------------------------- engine
    def _engine_changes(self, engine: RunnerView, now: float, policy: Policy, ended: dict[str, str]) -> list[Change]:
        changes: list[Change] = []
        settled, machines = self._settled, self.holders.machines
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
            news = list(self._worker_changes(worker, instance, now, policy, ended, heard))
            changes += news
            here = self.holders.owners.get(name, {})
            # The same report has no sample twice; all else may have to be recorded again.
            said = all(type(change) is SampleChange for change in news)
            if said and here.keys() == {report.id for report in worker.units if report.exit is None}:
                settled[name] = worker
        return changes

    def _worker_changes(
        self,
        worker: WorkerReport,
        instance: Instance,
        now: float,
        policy: Policy,
        ended: dict[str, str],
        heard: Sequence[UnitReport],
    ) -> Iterator[Change]:
        """``heard``: reports of units, the very same of which teach nothing new."""
        yield from _registered(instance, worker, now)
        here = self.holders.owners.get(instance.id, {})
        alone = len({job.id for job, _ in here.values()}) <= 1
        host = Host(worker, instance, alone)
        known = set(map(id, heard))
        for report in worker.units:
            if id(report) not in known:
                yield from self._unit(report, host, here.get(report.id), policy, ended)
        if len(here) > len(worker.units) or here.keys() - {report.id for report in worker.units}:
            yield from self._missing(worker, here, now)

    def _unit(
        self,
        report: UnitReport,
        host: Host,
        owner: Owner | None,
        policy: Policy,
        ended: dict[str, str],
    ) -> Iterator[Change]:
        self._unit_missing_since.pop(report.id, None)
        if owner is None:
            yield from self._unowned(report, host.worker, ended)
            return
        job, allocation = owner
        instance_id = host.instance.id
        if report.started_at is not None and allocation.started_at is None:
            yield _start(job.id, allocation.rank, report.started_at)
        sample = report.sample
        every_s = policy.timing.sample_every_s
        if report.exit is None and sample is not None and self._sampling.due(report.id, sample, every_s):
            yield from self._looked(report.id, sample, job, allocation.rank, host, policy)
        if report.exit is not None and self.logs.collect(self.runner, report.id, instance_id):
            ended[report.id] = instance_id
            if report.sample is not None:
                rate = served_as_promised(report.sample, job.spec.target)
                self._note_reached(report.id, report.sample, rate)
            for recorded in self._sampling.end(report.id, report.sample):
                yield record_sample(job, allocation.rank, instance_id, recorded)
            self._windows.pop(report.id, None)
            reached = self._reached.pop(report.id, _NOTHING_REACHED)._replace(cpu_s=report.exit.cpu_s)
            yield _end(job.id, allocation.rank, report, host, reached, self.believed.get(job.application))

    def _looked(
        self, unit: str, sample: UnitSample, job: Job, rank: int, host: Host, policy: Policy
    ) -> Iterator[Change]:
        """Take in what a unit has done; record it where it is new."""
        rate = served_as_promised(sample, job.spec.target)
        self._note_reached(unit, sample, rate)
        changed_at = job.corrections[-1].at if job.corrections else 0.0
        if job.attempt is not None and len(job.attempt.allocations) > 1:  # nothing is concluded before the last began
            changed_at = max(changed_at, *(each.started_at or 0.0 for each in job.attempt.allocations))
        promised_ms = job.spec.target.latency_ms if isinstance(job.spec.target, ServiceTarget) else math.inf
        for recorded in self._sampling.look(unit, sample, policy, changed_at=changed_at, promised_ms=promised_ms):
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

    def _window(self, unit: str, job: Job, host: Host, sample: UnitSample, rate: float) -> Iterator[Change]:
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

    def _unowned(self, report: UnitReport, worker: WorkerReport, ended: dict[str, str]) -> Iterator[Change]:
        """A unit no live allocation knows: its end is recorded already (clean up), or it must not run (stop it)."""
        if report.state is UnitState.ENDED:
            ended[report.id] = worker.instance_id
            self._told_to_stop.pop(report.id, None)
            return
        self.runner.stop({report.id: worker.instance_id}, cause=FailureCause.EVICTED)
        if report.id not in self._told_to_stop:
            self._told_to_stop[report.id] = worker.instance_id
            yield lambda txn: txn.emit(
                EventKind.ORPHAN, instance_id=worker.instance_id, provider_id=report.id, action="stop unit"
            )

    def _missing(self, worker: WorkerReport, here: Mapping[str, Owner], now: float) -> Iterator[Change]:
        """A unit that ran and is no longer there at all, for long, while its worker answers: its disk was lost."""
        present = {report.id for report in worker.units}
        for unit, (job, allocation) in sorted(here.items(), key=lambda each: _place(*each[1])):
            if allocation.started_at is None or unit in present:
                continue
            since = self._unit_missing_since.setdefault(unit, now)
            if now - since >= UNIT_MISSING_S:
                yield _vanished(job.id, allocation.rank)

    def _forget_vanished(self, now: float) -> None:
        """Forget, now and then, machines that no live row knows and units that nobody holds: no end of a unit is
        ever reported that vanished with its machine."""
        if now < self._forgot_at + FORGET_EVERY_S:
            return
        self._forgot_at = now
        machines = self.holders.machines.keys()
        units = {unit for here in self.holders.owners.values() for unit in here}
        self.seen_at = _only(self.seen_at, machines)
        self._absent = _only(self._absent, machines)
        self._told_to_stop = {unit: name for unit, name in self._told_to_stop.items() if name in machines}
        self._unit_missing_since = _only(self._unit_missing_since, units)
        self._reached = _only(self._reached, units)
        self._windows = _only(self._windows, units)
        self._sampling.keep(units)
        self._orphans.forget(now - FORGET_EVERY_S)


def _only(remembered: Mapping[str, Memory], known: Set[str]) -> dict[str, Memory]:
    return {name: memory for name, memory in remembered.items() if name in known}


def _number_of(instance_id: str) -> int:
    return int(instance_id.rpartition("-")[2])


def _place(job: Job, held: Allocation) -> tuple[int, int]:
    """Return a unit's place in order of its job's number and its rank."""
    return int(job.id.rpartition("-")[2]), held.rank


def _registered(instance: Instance, worker: WorkerReport, now: float) -> Iterator[Change]:
    if instance.state is InstanceState.BOOTING:
        boot_s = now - (instance.launched_at or instance.requested_at)

        def ready(txn: Transaction) -> None:
            """Note it once: an earlier cycle, killed after its commit, may have."""
            fresh = txn.instance(instance.id)
            if fresh.state is InstanceState.BOOTING:
                reason = Reason(code="registered", text=f"its worker registered {boot_s:.1f} s after launch")
                change_instance(txn, fresh, InstanceState.READY, reason, ready_at=now, seen_at=now, idle_since=now)
                note_registered(txn, fresh.offer)
                isolation = list(worker.isolation)
                txn.emit(EventKind.INSTANCE_READY, instance_id=instance.id, boot_s=boot_s, isolation=isolation)

        yield ready
    if worker.preempt_at is not None and worker.preempt_at < (instance.preempt_at or math.inf) - SAME_NOTICE_S:
        yield _notice(instance.id, worker.preempt_at)


def _gone(instance: Instance, view: LiveView, holders: Holders, at: float, why: str, taken: Policy | None) -> Change:
    """The provider confirmed that a machine is gone: so are its units, and the intents about it are settled.

    ``taken``: it was taken back, and this policy says what that means for its offer; None: it went otherwise.
    """
    held_by = holders.jobs_on(instance.id)

    def record(txn: Transaction) -> None:
        """Settle everything in one transaction, so that no job is freed of a machine that still counts as live."""
        fresh = txn.instance(instance.id)
        if fresh.state is InstanceState.TERMINATED:
            return
        if taken is not None and fresh.state is not InstanceState.TERMINATING:  # else it was noted as it was ended
            note_taken(txn, fresh, at, taken)
        code = "gone" if taken is None else "preempted"
        reason = Reason(code=code, text=f"confirmed gone: {why}" + (f" ({fresh.reason})" if fresh.reason else ""))
        change_instance(txn, fresh, InstanceState.TERMINATED, reason, terminated_at=max(at, fresh.launched_at or at))
        tokens = {fresh.token, f"terminate:{fresh.id}"}
        for intent in view.intents:
            if intent.token in tokens:
                txn.close_intent(intent.token)
        cause = FailureCause.INSTANCE_LOST if taken is None else FailureCause.PREEMPTED
        for job in held_by:
            _release_on(txn, job, instance.id, at, cause, why)

    return record


def _release_on(txn: Transaction, job: Job, instance_id: str, at: float, cause: FailureCause, why: str) -> None:
    """Units ended with their machine, ``at`` by its provider's clock, which may be long before we hear of it: nobody
    pays for more."""
    fresh = txn.job(job.id)
    assert fresh.attempt is not None
    for held in fresh.attempt.allocations:
        if held.instance_id == instance_id and not held.released:
            ended_at = txn.now if held.started_at is None else min(txn.now, max(at, held.started_at))
            detail = f"{instance_id} {why}"
            fresh = release_allocation(txn, fresh, held.rank, ended_at=ended_at, cause=cause, detail=detail)


def _notice(instance_id: str, preempt_at: float) -> Change:
    def record(txn: Transaction) -> None:
        """Note a notice that says something new."""
        fresh = txn.instance(instance_id)
        if fresh.preempt_at != preempt_at:
            txn.put_instance(replace(fresh, preempt_at=preempt_at))
            txn.emit(EventKind.INSTANCE_NOTICE, instance_id=instance_id, preempt_at=preempt_at)

    return record


def _price(instance_id: str, price_usd_per_h: float) -> Change:
    def record(txn: Transaction) -> None:
        """Note what an hour costs from now on; what was reserved costs what was agreed."""
        fresh = txn.instance(instance_id)
        if fresh.offer.market is not Market.RESERVED:
            txn.put_instance(replace(fresh, offer=replace(fresh.offer, price_usd_per_h=price_usd_per_h)))
            txn.emit(EventKind.INSTANCE_PRICE, instance_id=instance_id, price_usd_per_h=price_usd_per_h)

    return record


def _idle(instance_id: str) -> Change:
    def record(txn: Transaction) -> None:
        """Note since when, unless it is known or the machine is ending."""
        fresh = txn.instance(instance_id)
        if fresh.idle_since is None and fresh.state in (InstanceState.READY, InstanceState.DRAINING):
            txn.put_instance(changed(fresh, idle_since=txn.now))

    return record


def _start(job_id: str, rank: int, started_at: float) -> Change:
    return lambda txn: note_started(txn, txn.job(job_id), rank, started_at)


def _end(
    job_id: str, rank: int, report: UnitReport, host: Host, reached: Reached, believed: Classification | None
) -> Change:
    exited = report.exit
    assert exited is not None

    def record(txn: Transaction) -> None:
        """Free the rank, learn from the end, and note both once."""
        before = txn.job(job_id)
        started_at, ended_at = _plausible_times(before, rank, exited, txn.now)
        after = release_allocation(
            txn,
            before,
            rank,
            started_at=started_at,
            ended_at=ended_at,
            exit_code=exited.exit_code,
            cause=exited.cause,
            detail=exited.detail,
            cpu_s=exited.cpu_s,
            memory_mib_max=exited.memory_mib_max,
        )
        if after is before:  # its end was recorded already, and so was what it taught
            return
        if after.spec.profile is not None and (exited.findings is not None or rank == 0):
            record_findings(
                txn, after, exited.findings or Findings(notes=(f"it ended without findings: {_how(exited)}",))
            )
        elif after.application:
            record_reached(txn, after, host.instance, reached, believed, alone=host.alone)

    return record


def _how(exited: ExitRecord) -> str:
    return exited.detail or (str(exited.cause) if exited.cause is not None else f"exit code {exited.exit_code}")


def _plausible_times(job: Job, rank: int, exited: ExitRecord, now: float) -> tuple[float | None, float]:
    """Return start and end by the machine's clock where they agree with ours, else by ours: clocks of machines differ.

    How long it ran is true by any clock, and is what it costs. A unit that never started has no start.
    """
    assert job.attempt is not None
    noted_at = next(a.started_at for a in job.attempt.allocations if a.rank == rank)
    if noted_at is None:
        return None, now
    agrees = job.attempt.placed_at <= exited.started_at <= noted_at
    started_at, ran_s = exited.started_at if agrees else noted_at, max(0.0, exited.ended_at - exited.started_at)
    return started_at, min(now, max(exited.ended_at, started_at) if agrees else started_at + ran_s)


def _vanished(job_id: str, rank: int) -> Change:
    detail = "its directory vanished from the machine"
    return lambda txn: release_allocation(
        txn, txn.job(job_id), rank, ended_at=txn.now, cause=FailureCause.INSTANCE_LOST, detail=detail
    )
