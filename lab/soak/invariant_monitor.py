"""Checks a deployment against the truth that only the simulated world knows: machines, units and money.

``hcloud.planner.invariants`` checks rows alone; here rows, log and reports are compared with what really happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from hcloud.core.model import (
    INSTANCE_TRANSITIONS,
    JOB_ENDED,
    JOB_TRANSITIONS,
    Event,
    EventKind,
    Instance,
    InstanceState,
    Intent,
    IntentKind,
    Job,
    JobState,
    Market,
    Offer,
)
from hcloud.fake_runner.runner import FakeRunner
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import unmarked
from hcloud.simulator.ground_truth import CycleContext, MachineTruth, VirtualCloud
from hcloud.spec.policy import Budgets, Policy
from hcloud.store import LiveView, Store, Submission
from lab.soak.lease_checks import LeaseChecks
from lab.soak.money_checks import ROUNDING_USD, UNLED_LAUNCH_S, MoneyChecks
from lab.soak.outsiders import OutsiderChecks
from lab.soak.planted_defects import unplanned_errors
from lab.soak.worlds import EXPECTED

UNUSED_CODES = ("idle", "misbehaved", "make_room")
"""Reason codes for terminating a machine without jobs."""


@dataclass(slots=True)
class InvariantMonitor:
    """Reads the database like a separate process and remembers what must never be undone."""

    store: Store
    clouds: Mapping[str, VirtualCloud]
    runner: FakeRunner
    owner: str
    no_unled_launches: bool = True
    """No machine can be launched by a daemon that lost its lead."""
    one_policy: bool = True
    """The policy never changes."""
    fixed_prices: bool = True
    """Spot prices never change."""
    skew_s: float = 0.0
    """The maximum difference between the daemons' clock and the clouds'."""
    policies: list[Policy] = field(default_factory=list)
    """Every policy that was in force so far, the current one last."""
    recent_policies: list[Policy] = field(default_factory=list)
    """Those in force since the last check."""
    accepted: dict[str, Submission] = field(default_factory=dict)
    """Submissions that were confirmed to clients, by job."""
    max_usd_per_h: float = 0.0
    failing_stage: str = ""
    """The stage in which planning fails in this world, if any."""
    terminations_known_until: float = -inf
    """Until then, clouds list every terminated machine."""
    _seq: int = 0
    _jobs: dict[str, JobState] = field(default_factory=dict)
    _machines: dict[str, InstanceState] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _unexplained: set[str] = field(default_factory=set)
    _due: dict[str, Intent] = field(default_factory=dict)
    """Intents that the last cycle should have driven, as they were."""
    _rows_read: tuple[LiveView | None, Sequence[Instance]] = (None, ())
    _checked_at: float = -inf
    _epoch: int = 0
    money: MoneyChecks = field(init=False)
    offers: Mapping[str, Sequence[Offer]] = field(init=False)
    """The initial offers by cloud."""
    lease_checks: LeaseChecks = field(default_factory=LeaseChecks)
    outsiders: OutsiderChecks = field(init=False)

    def __post_init__(self) -> None:
        """Set up the checks; ``money`` shares the list of policies."""
        self.outsiders = OutsiderChecks(owner=self.owner, clouds=self.clouds)
        self.offers = {name: cloud.offers() for name, cloud in self.clouds.items()}
        self.money = MoneyChecks(
            store=self.store,
            clouds=self.clouds,
            owner=self.owner,
            policies=self.policies,
            no_unled_launches=self.no_unled_launches,
            fixed_prices=self.fixed_prices,
            skew_s=self.skew_s,
            max_usd_per_h=self.max_usd_per_h,
            terminations_known_until=self.terminations_known_until,
            running=self.runner.running,
        )

    def check(self, moment: CycleContext) -> list[str]:
        """Return one sentence per violated invariant."""
        found: list[str] = []
        seen = self.store.live()
        events = self._new_events()
        for check in (self._rows, self._cache, self._intents, self._overdue, self._waits):
            found += check(seen, moment)
        for event in events:
            found += self._replay_event(event)
            found += _ended_in_use(event, seen)
            if moment.paused and event.kind in (EventKind.INSTANCE_REQUESTED, EventKind.ATTEMPT_PLACED):
                found.append(f"paused: {event.kind} of {event.job_id or event.instance_id} during an operator's pause")
        found += self._rows_and_log(seen)
        rows = self._all_machines(seen)
        found += self._machines_and_rows(moment.now, rows)
        found += self._units(seen)
        found += self._bounds(seen)
        found += self._pauses(seen)
        found += self._ends(seen)
        found += self.money.check(seen, moment, events)
        self.lease_checks.longest_lease_s = max(policy.lease.horizon_s for policy in self.policies)
        found += self.lease_checks.check(seen, moment, events, self.money.ours(moment.now))
        found += self.lease_checks.check_booting(seen, moment)
        found += self.outsiders.check(seen, moment, events, rows)
        self.recent_policies, self._checked_at = self.policies[-1:], moment.now
        return found

    def check_end(self, now: float) -> list[str]:
        """Return what is wrong once everything should have ended."""
        jobs = {job.id: job for job in self.store.jobs(limit=10_000)}
        found = [f"lost: {name} was accepted, but is not in the database" for name in self.accepted if name not in jobs]
        for job in jobs.values():
            found += _check_outcome(job)
        for machine in self.money.ours(now):
            if machine.terminated_at is None and machine.market is not Market.RESERVED:
                found.append(f"leak: {machine.provider_id} ({machine.instance_id}) still runs")
        return found + list(self.money.check_ledger(now))

    # ------------------------------------------------------------------------------------------------------------ rows
    def _rows(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        # Budgets apply to decisions at the time and prices they were made; `money` checks them.
        snapshot = Snapshot(now=moment.now, jobs=seen.jobs, instances=seen.instances)
        policy = replace(self.policies[-1], budgets=Budgets()) if self.one_policy else None
        yield from (f"invariant: {each}" for each in check_invariants(snapshot, policy))
        for job in seen.jobs:
            yield from _check_placement(job, seen)

    def _cache(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        for rows in ("jobs", "instances", "intents", "backoffs"):
            cached, stored = getattr(moment.live, rows), getattr(seen, rows)
            if cached != stored:
                yield f"cache: the daemon's {rows} differ from the database: {_first_difference(cached, stored)}"

    def _intents(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """Whatever is in progress has an open intent, so that it is finished after a crash."""
        open_ones = {intent.token for intent in seen.intents}
        for machine in seen.instances:
            if machine.state is InstanceState.REQUESTED and machine.token not in open_ones:
                yield f"intent: {machine.id} is requested, but nothing will launch it"
            if machine.state is InstanceState.TERMINATING and f"terminate:{machine.id}" not in open_ones:
                yield f"intent: {machine.id} is terminating, but nothing will end it"
        for job in seen.jobs:
            yield from _job_intents(job, seen.intents)

    def _overdue(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """Due intents are driven: two undisturbed cycles do not leave one unchanged."""
        before, self._due = self._due, {}
        for intent in seen.intents if moment.undisturbed else ():
            if max(intent.created_at, intent.retry_at) < self._checked_at:
                self._due[intent.token] = intent
                if before.get(intent.token) == intent:
                    yield f"overdue: {intent.token} has been due since {intent.retry_at:.1f}, but is not driven"

    def _waits(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """Every waiting job has a reason; a partly refused plan leaves that to the next one."""
        before, self._unexplained = self._unexplained, set()
        for job in seen.jobs if moment.undisturbed else ():
            if job.state is JobState.QUEUED and not job.wait_code and job.cancelled_by is None:
                self._unexplained.add(job.id)
                if job.id in before:
                    yield f"unexplained: {job.id} waits without a reason"

    # ------------------------------------------------------------------------------------------------------------- log
    def _new_events(self) -> Sequence[Event]:
        events: list[Event] = []
        while more := self.store.new_events(self._seq, 5000):
            events += more
            self._seq = more[-1].seq
        return events

    def _all_machines(self, seen: LiveView) -> Sequence[Instance]:
        """Return every machine's row, read again only if any row has changed: then ``seen`` is another object."""
        if seen is not self._rows_read[0]:
            self._rows_read = (seen, self.store.instances(live_only=False, limit=10_000))
        return self._rows_read[1]

    def _replay_event(self, event: Event) -> Iterator[str]:
        """Yield contradictions between an event and those before it: state machines follow their tables."""
        kind, fields = event.kind, event.fields
        if kind is EventKind.JOB_SUBMITTED and event.job_id is not None:
            self._jobs[event.job_id] = JobState.SUBMITTED
        elif kind is EventKind.JOB_STATE and event.job_id is not None:
            yield from self._job_moved(event.job_id, str(fields["from"]), str(fields["to"]), str(fields["code"]))
        elif kind is EventKind.INSTANCE_REQUESTED and event.instance_id is not None:
            self._machines[event.instance_id] = InstanceState.REQUESTED
            yield from self._check_launch(event)
        elif kind is EventKind.INSTANCE_STATE and event.instance_id is not None:
            yield from self._machine_moved(event.instance_id, str(fields["from"]), str(fields["to"]))
        elif kind is EventKind.INSTANCE_TERMINATED and event.instance_id is not None:
            before = self._machines.get(event.instance_id, InstanceState.TERMINATED)
            yield from self._machine_moved(event.instance_id, before.value, "terminated")
        elif kind is EventKind.DAEMON and fields.get("what") == "leader":
            epoch = fields["epoch"]
            if not isinstance(epoch, int) or epoch <= self._epoch:
                yield f"leader: epoch {epoch} after {self._epoch}"
            else:
                self._epoch = epoch
        elif kind is EventKind.ATTEMPT_PLACED:
            yield from self._check_attempt(event)
        elif kind is EventKind.PLANNING_TROUBLE:
            job = None if event.job_id is None else self.store.job(event.job_id)
            yield from unplanned_errors(event, job, self.failing_stage)

    def _check_attempt(self, event: Event) -> Iterator[str]:
        if event.job_id in self._cancelled:
            yield f"cancelled: {event.job_id} was placed after it was cancelled"
        for held in cast(Sequence[str], event.fields["allocations"]):
            name = held.partition(":")[0]
            if self._machines.get(name) is not InstanceState.READY:
                yield f"placed: {event.job_id} was placed on {name}, which is {self._machines.get(name)}"

    def _job_moved(self, job_id: str, before: str, after: str, code: str) -> Iterator[str]:
        known, to = self._jobs.get(job_id), JobState(after)
        if code == "cancel_requested":
            self._cancelled.add(job_id)
        if known is None or known.value != before:
            yield f"history: {job_id} went from {before} to {after}, but was {known}"
        elif to is not known and to not in JOB_TRANSITIONS[known]:
            yield f"history: {job_id} may not go from {before} to {after}"
        if to is JobState.SUCCEEDED and job_id in self._cancelled:
            yield f"cancelled: {job_id} succeeded after it was cancelled"
        self._jobs[job_id] = to

    def _machine_moved(self, instance_id: str, before: str, after: str) -> Iterator[str]:
        known, to = self._machines.get(instance_id), InstanceState(after)
        if known is None or known.value != before:
            yield f"history: {instance_id} went from {before} to {after}, but was {known}"
        elif to is not known and to not in INSTANCE_TRANSITIONS[known]:
            yield f"history: {instance_id} may not go from {before} to {after}"
        self._machines[instance_id] = to

    def _check_launch(self, event: Event) -> Iterator[str]:
        offer = self.store.instance(event.instance_id or "").offer
        refusals = [policy.allow.refusal(offer) for policy in self.recent_policies]
        if refusals and all(refusals):
            yield f"policy: {event.instance_id} was launched, but {refusals[-1]}"

    def _rows_and_log(self, seen: LiveView) -> Iterator[str]:
        """Rows and log agree."""
        live = {job.id: job.state for job in seen.jobs}
        logged = {name: state for name, state in self._jobs.items() if state not in JOB_ENDED}
        machines = {each.id: each.state for each in seen.instances}
        up = {name: state for name, state in self._machines.items() if state is not InstanceState.TERMINATED}
        for name in sorted(live.keys() | logged.keys()):
            if live.get(name) is not logged.get(name):
                yield f"history: {name} is {live.get(name)}, the log says {logged.get(name)}"
        for name in sorted(machines.keys() | up.keys()):
            if machines.get(name) is not up.get(name):
                yield f"history: {name} is {machines.get(name)}, the log says {up.get(name)}"
        for name in self.accepted:
            if name not in self._jobs:
                yield f"lost: {name} was accepted, but has no event"

    # ----------------------------------------------------------------------------------------------------------- truth
    def _machines_and_rows(self, now: float, instances: Sequence[Instance]) -> Iterator[str]:
        """Every machine was recorded before its launch, has one row, and lives no longer than booked."""
        rows = {row.token: row for row in instances}
        everything = self.money.ours(now)
        twice = [token for token, count in Counter(m.token for m in everything).items() if count > 1]
        yield from (f"duplicate launch: two machines with token {token}" for token in twice)
        for machine in everything:
            row = rows.get(machine.token)
            if row is None:
                yield f"no record: {machine.provider_id} ({machine.instance_id}) was launched without a row"
            elif machine.terminated_at is None:
                yield from self._still_up(machine, row, now)

    def _still_up(self, machine: MachineTruth, row: Instance, now: float) -> Iterator[str]:
        offer = row.offer
        if (machine.zone, machine.type_name, machine.market) != (offer.zone, offer.instance_type.name, offer.market):
            yield f"wrong machine: {machine.provider_id} is not what {row.id} requested"
        if machine.expires_at > row.expires_at + ROUNDING_USD:
            yield f"unbooked lease: {row.id} lives {machine.expires_at - row.expires_at:.0f} s longer than booked"
        grace_s = 0.0 if self.no_unled_launches else UNLED_LAUNCH_S
        if row.state is InstanceState.TERMINATED and now > machine.launched_at + grace_s:
            yield f"forgotten: {row.id} is recorded as terminated, but {machine.provider_id} is up"

    def _units(self, seen: LiveView) -> Iterator[str]:
        """No unit starts twice, no rank runs in two attempts, nothing runs of a job that is over."""
        starts = Counter(unmarked(start.unit_id) for start in self.runner.starts())
        yield from (f"started twice: {unit}" for unit, count in starts.items() if count > 1)
        live = {job.id for job in seen.jobs}
        ranks: dict[tuple[str, str], str] = {}
        for unit in self.runner.running():
            job, _, rank = unmarked(unit).split(".")
            if job not in live:
                yield f"runs on: {unit}, though {job} is over"
            other = ranks.setdefault((job, rank.partition("-")[0]), unit)  # suffix "-1": the rank was placed again
            if other != unit:
                yield f"runs twice: {other} and {unit}"

    def _ends(self, seen: LiveView) -> Iterator[str]:
        """No worker forgets a unit before its end is recorded."""
        for attempt in [job.attempt for job in seen.jobs if job.attempt is not None]:
            for unit in [attempt.unit_id(held.rank) for held in attempt.allocations if not held.released]:
                if self.runner.has_forgotten(unit):
                    yield f"end lost: the end of {unit} is not recorded, but its worker has forgotten it"

    def _bounds(self, seen: LiveView) -> Iterator[str]:
        """Each unit is limited to what its row says, unless a resize is pending."""
        bounds, open_ones = self.runner.bounds(), {intent.token for intent in seen.intents}
        for attempt in [job.attempt for job in seen.jobs if job.attempt is not None]:
            for held in [each for each in attempt.allocations if not each.released]:
                unit = attempt.unit_id(held.rank)
                limits = bounds.get(unit, held.resources)
                if limits != held.resources and f"resize:{unit}" not in open_ones:
                    yield f"limits: {unit} holds {held.resources}, but its limits are {limits}"

    def _pauses(self, seen: LiveView) -> Iterator[str]:
        """Each unit is paused or runs as its row says, unless it is being paused, resumed or stopped."""
        running, paused = set(self.runner.running()), self.runner.paused()
        open_ones = {intent.token for intent in seen.intents}
        for attempt in [job.attempt for job in seen.jobs if job.attempt is not None]:
            for held in [each for each in attempt.allocations if not each.released]:
                unit = attempt.unit_id(held.rank)
                settled = attempt.stop_requested_at is None and f"pause:{unit}" not in open_ones
                if settled and unit in running and (held.paused_at is not None) is not (unit in paused):
                    yield f"paused: {unit} is {'' if unit in paused else 'not '}paused, and its row says otherwise"


def _ended_in_use(event: Event, seen: LiveView) -> Iterator[str]:
    """No machine is terminated as unused while a job holds part of it."""
    if event.kind is not EventKind.INSTANCE_STATE or event.fields["to"] != InstanceState.TERMINATING.value:
        return
    if event.fields["code"] in UNUSED_CODES:
        for job in seen.jobs:
            held = job.attempt.allocations if job.attempt is not None else ()
            if any(each.instance_id == event.instance_id and each.ended_at is None for each in held):
                code = event.fields["code"]
                yield f"in use: {event.instance_id} is terminated ({code}), but {job.id} holds part of it"


def _check_placement(job: Job, seen: LiveView) -> Iterator[str]:
    """No unit is on a machine of a type that its job does not accept."""
    held = job.attempt.allocations if job.attempt is not None else ()
    names = {part.instance_id for part in held if not part.released}
    for row in seen.instances:
        if row.id in names and not job.spec.may_use(row.offer):
            yield f"placed: {job.id} is on {row.id}, a {row.offer.instance_type.name}"


def _job_intents(job: Job, intents: Collection[Intent]) -> Iterator[str]:
    attempt = job.attempt
    if attempt is None or attempt.over:
        return
    mine = {intent.kind for intent in intents if intent.subject == job.id}
    stopping = attempt.stop_requested_at is not None
    unsure = any(a.started_at is None and not a.released for a in attempt.allocations)
    if unsure and not stopping and IntentKind.START not in mine:
        yield f"intent: {attempt.id} is placed, but nothing will start it"
    if stopping and IntentKind.STOP not in mine:
        yield f"intent: {attempt.id} is to end, but nothing will stop it"


def _check_outcome(job: Job) -> Iterator[str]:
    if job.state not in JOB_ENDED:
        yield f"stuck: {job.id} ({job.spec.name}) stays {job.state}: {job.wait_code} {job.wait_text}"
        return
    expected = job.spec.tags.get(EXPECTED, "any") if job.spec.profile is None else "any"
    expected = "cancelled" if job.cancelled_by is not None else expected
    if expected != "any" and job.state.value != expected:
        yield f"wrong outcome: {job.id} ({job.spec.name}) is {job.state}, not {expected}: {job.outcome}"


def _first_difference(cached: Sequence[object], stored: Sequence[object]) -> str:
    for one, other in zip(cached, stored, strict=False):
        if one != other:
            return f"{one} instead of {other}"
    return f"{len(cached)} instead of {len(stored)}"
