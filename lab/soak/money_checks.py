"""Promises about money, held against the clouds' own bills and against accounts added up in the plainest way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from hcloud.core.model import Attempt, Event, UnitId
from hcloud.planner.instance_lifecycle import END_MARGIN_S
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import size_share
from hcloud.report import build_report
from hcloud.simulator.ground_truth import CycleContext, DaemonSpend, MachineTruth, VirtualCloud
from hcloud.spec.policy import Budgets, Caps, Policy, UserBudget
from hcloud.spend_ledger import DAY_S, SPEND_KINDS, SpendLedger, month_start
from hcloud.store import LiveView, Store
from lab.soak.planted_defects import DEFECT, UNRECORDED
from lab.soak.reference_accounts import ReferenceAccounts
from lab.soak.worlds import EXPECTED

HOUR_S = 3600.0
ROUNDING_USD = 1e-6
LONGEST_MINIMUM_S = 60.0
UNLED_LAUNCH_S = 400.0
"""A machine launched by a daemon that no longer led may be up for so long before a listing shows it."""
Period = tuple[str, float, float]
"""A day or month by name, and from when until when it is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedEnd:
    """What a unit holds since it has ended, as nobody could write that down: whose it is, since when, what it costs."""

    user: str
    since: float
    usd: float


@dataclass(slots=True)
class MoneyChecks:
    """Follows the log. ``policies``: every one that was in force so far, which others add to; limits are the loosest.

    ``certain``: no machine can be launched by a daemon that lost its lead. ``skew_s``: how far the daemons' clock may
    be from the clouds'.
    """

    store: Store
    clouds: Mapping[str, VirtualCloud]
    owner: str
    policies: Sequence[Policy]
    no_unled_launches: bool
    fixed_prices: bool
    skew_s: float
    max_usd_per_h: float
    terminations_known_until: float
    """Up to when clouds tell of every machine that ended, and when."""
    running: Callable[[], Iterable[UnitId]]
    """The units that run, in truth."""
    accounts: ReferenceAccounts = field(default_factory=ReferenceAccounts)
    _events: list[Event] = field(default_factory=list)
    _checked_at: float | None = None
    _over_budget: frozenset[str] = frozenset()
    """Jobs that had cost more than their own budgets at the last look."""
    _expiries: Mapping[str, float] = field(default_factory=dict)
    """When machines were to expire, at the last look."""
    _stopped_attempts: set[str] = field(default_factory=set)
    """Attempts that were asked to end, as far as they were looked at."""
    _allowance_usd: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By user how far limits may be passed: see :meth:`_excuse`."""
    _unrecorded_ends: dict[UnitId, UnrecordedEnd] = field(default_factory=dict)
    """Further, by unit: see :meth:`_excuse_unheard`."""

    def check(self, seen: LiveView, moment: CycleContext, events: Iterable[Event]) -> Iterator[str]:
        """Return what does not hold, given what is new in the log."""
        news = [event for event in events if event.kind in SPEND_KINDS]
        self._events += news
        self.accounts.follow(news)
        self._allow_grace_overrun(seen)
        self._allow_unrecorded_ends(seen, moment.now)
        yield from self._check_hourly_rate(seen)
        periods = self._periods(moment.now)
        yield from self._check_bills(periods)
        yield from self._check_users(
            periods, {m.instance_id: m.terminated_at for m in self.ours(moment.now) if m.terminated_at}
        )
        yield from self._check_jobs(seen, moment)
        if moment.daemon_spend is not None and not self.skew_s:  # else some of it lies in the future
            yield from self._check_daemon_spend(moment.daemon_spend)
            yield from self._check_committed(seen, moment.daemon_spend)
        self._checked_at = moment.now

    def _allow_grace_overrun(self, seen: LiveView) -> None:
        """Note what units may cost that were asked to end, as their user cannot pay, in the last moment before their
        machine expired, which was then renewed for others: in their grace they hold what nobody had promised.
        """
        machines = {machine.id: machine for machine in seen.instances}
        for job in seen.jobs:
            attempt, asked_at = job.attempt, job.attempt.stop_requested_at if job.attempt is not None else None
            if attempt is None or asked_at is None or attempt.id in self._stopped_attempts:
                continue
            self._stopped_attempts.add(attempt.id)
            for held in attempt.allocations:
                machine, before = machines.get(held.instance_id), self._expiries.get(held.instance_id, inf)
                if machine is None or not before < machine.expires_at or before - asked_at > 2.0 * END_MARGIN_S:
                    continue
                late_h = max(0.0, asked_at + job.spec.stop_grace_s - before) / HOUR_S
                usd = size_share(held.resources, machine) * machine.offer.price_usd_per_h * late_h
                self._allowance_usd[job.spec.user] += usd
        self._expiries = {name: machine.expires_at for name, machine in machines.items()}

    def _allow_unrecorded_ends(self, seen: LiveView, now: float) -> None:
        """Note what is held by units that have ended, of jobs of which that cannot be written down, a planted defect:
        they are booked until it is, or their machine is gone, and promised as far as that is paid."""
        machines, running = {machine.id: machine for machine in seen.instances}, frozenset(self.running())
        for job in [each for each in seen.jobs if each.attempt and each.spec.tags.get(DEFECT) in UNRECORDED]:
            attempt = cast(Attempt, job.attempt)
            for held in attempt.allocations:
                unit, machine = attempt.unit_id(held.rank), machines.get(held.instance_id)
                if machine is None or held.released or held.started_at is None or unit in running:
                    continue
                before = self._unrecorded_ends.get(unit)
                since = (self._checked_at or now) if before is None else before.since
                usd_per_h = size_share(held.resources, machine) * machine.offer.price_usd_per_h
                usd = usd_per_h * (max(machine.expires_at, now) - since) / HOUR_S
                self._unrecorded_ends[unit] = UnrecordedEnd(user=job.spec.user, since=since, usd=usd)

    def _allowed_extra_usd(self, user: str) -> float:
        return self._allowance_usd[user] + sum(each.usd for each in self._unrecorded_ends.values() if each.user == user)

    def _with_allowances(self, policy: Policy) -> Policy:
        """Return the policy with limits of users only, each with what is excused."""
        limits = dict(policy.budgets.per_user)
        for user in {*self._allowance_usd, *(each.user for each in self._unrecorded_ends.values())}:
            usd, limit = self._allowed_extra_usd(user), policy.budgets.for_user(user)
            day_usd, month_usd = limit.per_day_usd, limit.per_month_usd
            limits[user] = UserBudget(
                per_day_usd=None if day_usd is None else day_usd + usd,
                per_month_usd=None if month_usd is None else month_usd + usd,
            )
        return replace(policy, budgets=Budgets(per_user=limits), caps=Caps())

    def _periods(self, now: float) -> list[Period]:
        """Return the present day and month, and those that ended since the last look, up to their end."""
        periods = [("day", now - now % DAY_S, now), ("month", month_start(now), now)]
        before = self._checked_at
        if before is not None and before < periods[0][1]:
            periods.append(("day", before - before % DAY_S, before - before % DAY_S + DAY_S))
        if before is not None and before < periods[1][1]:
            periods.append(("month", month_start(before), periods[1][1]))
        return periods

    def ours(self, now: float) -> list[MachineTruth]:
        """Return all machines of this deployment that there ever were, as of ``now``."""
        return [m for cloud in self.clouds.values() for m in cloud.machines(now) if m.owner == self.owner]

    # ---------------------------------------------------------------------------------------------------------- limits
    def _check_hourly_rate(self, seen: LiveView) -> Iterator[str]:
        """Never do machines cost more per hour than any policy so far allowed, where prices stand still."""
        limit_usd = max((_or_inf(policy.budgets.per_hour_usd) for policy in self.policies), default=inf)
        usd_per_h = sum(each.offer.price_usd_per_h for each in seen.instances)
        if self.fixed_prices and usd_per_h > limit_usd + ROUNDING_USD:
            yield f"overspent: {usd_per_h:.4f} USD are spent per hour, {limit_usd:g} are allowed"

    def _check_bills(self, periods: Sequence[Period]) -> Iterator[str]:
        """Never more is billed in a UTC day or month than any policy so far allowed, give or take one minimum."""
        slack_usd = self._slack_usd()
        for name, since, until in periods:
            limit_usd = max((_limit(policy, name) for policy in self.policies), default=inf)
            if limit_usd == inf:
                continue
            billed_usd = self._billed_usd(until) - self._billed_usd(since) - self._later_minimum_usd(name, since, until)
            if billed_usd > limit_usd + slack_usd:
                yield f"overspent: {billed_usd:.4f} USD were billed this {name}, {limit_usd:g} are allowed"

    def _check_users(self, periods: Sequence[Period], gone: Mapping[str, float]) -> Iterator[str]:
        """Never does what a user's units hold cost more in a UTC day or month than any policy so far allowed them."""
        limited = {user for policy in self.policies for user in policy.budgets.per_user}
        if not limited:
            return
        for name, since, until in periods:
            for user, usd in self.accounts.user_usd(since, until, gone).items():
                limit_usd = max(_user_limit(policy, user, name) for policy in self.policies)
                if usd > limit_usd + self._allowed_extra_usd(user) + self._drift_usd() + ROUNDING_USD:
                    yield f"overspent by {user}: {usd:.4f} USD this {name}, {limit_usd:g} are allowed"

    def _check_committed(self, seen: LiveView, booked: DaemonSpend) -> Iterator[str]:
        """What users have spent, and what their jobs hold may yet cost, is within limits that never changed."""
        stale = any(each.expires_at <= booked.at for each in seen.instances)  # it is gone, and nobody has heard of it
        if len(self.policies) > 1 or not self.fixed_prices or stale:
            return
        policy = self._with_allowances(self.policies[-1])
        # What is awaited is counted whole with those who await it: their parts grow when another one leaves.
        jobs = tuple(replace(job, awaiting=()) for job in seen.jobs)
        machines = tuple(replace(each, for_running=()) for each in seen.instances)
        snapshot = Snapshot(now=booked.at, jobs=jobs, instances=machines, spend=booked.spend)
        yield from (f"promised: {each}" for each in check_invariants(snapshot, policy) if each.startswith("budgets"))

    def _check_jobs(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """A job that had cost more than its own budget before an undisturbed cycle does not run on after it."""
        limited = {job.id: job for job in seen.jobs if job.spec.budget_usd is not None and job.attempt is not None}
        cost_usd = self.accounts.job_usd(moment.now) if limited else {}
        over = frozenset(
            name for name, job in limited.items() if cost_usd.get(name, 0.0) > (job.spec.budget_usd or 0.0)
        )
        for name in sorted(over & self._over_budget) if moment.undisturbed else ():
            attempt = limited[name].attempt
            if attempt is not None and not attempt.over and attempt.stop_requested_at is None:
                yield f"overspent by {name}: it has cost {cost_usd[name]:.4f} USD, more than it may, and runs on"
        self._over_budget = over

    def _slack_usd(self) -> float:
        """One billing minimum; prices that move; machines of a daemon that no longer led."""
        slack_usd = self.max_usd_per_h * LONGEST_MINIMUM_S / HOUR_S + ROUNDING_USD + self._drift_usd()
        return slack_usd if self.no_unled_launches else slack_usd + self.max_usd_per_h * UNLED_LAUNCH_S / HOUR_S

    def _drift_usd(self) -> float:
        """Return how much more may be spent where clocks differ, or prices move while they are spent."""
        most = max(policy.caps.max_instances for policy in self.policies)
        drift_s = self.skew_s + (0.0 if self.fixed_prices else 300.0)
        return most * self.max_usd_per_h * drift_s / HOUR_S

    # ----------------------------------------------------------------------------------------------------------- books
    def _check_daemon_spend(self, booked: DaemonSpend) -> Iterator[str]:
        """What a daemon takes for spent this day and month, by all and each, is what the log says, restarted or not."""
        accounts, now, spend = self.accounts, booked.at, booked.spend
        if self._events and self._events[-1].seq > booked.seq:
            accounts = ReferenceAccounts().follow(event for event in self._events if event.seq <= booked.seq)
        for name, since, ends_at, all_usd, by_user in (
            ("day", now - now % DAY_S, spend.day_ends_at, spend.day_usd, spend.by_user_day_usd),
            ("month", month_start(now), spend.month_ends_at, spend.month_usd, spend.by_user_month_usd),
        ):
            due_usd, due_by_user = accounts.total_usd(since, now, ends_at or inf), accounts.user_usd(since, now)
            if abs(due_usd - all_usd) > ROUNDING_USD:
                yield f"booked: {all_usd:.6f} USD are taken for spent this {name}, {due_usd:.6f} were"
            for user in sorted(due_by_user.keys() | by_user.keys()):
                usd, due_usd = by_user.get(user, 0.0), due_by_user.get(user, 0.0)
                if abs(due_usd - usd) > ROUNDING_USD:
                    yield f"booked: {usd:.6f} USD are taken for spent by {user} this {name}, {due_usd:.6f} were"

    def check_ledger(self, now: float) -> Iterator[str]:
        """The ledger, the parts of each report and, where prices stand still, the clouds' bill are one sum."""
        book = SpendLedger()
        book.follow(self.store.iter_events(kinds=SPEND_KINDS))
        # Some of it lies in the future: by a daemon's clock that is ahead, and up to the end of a billing minimum.
        until = now + self.skew_s + LONGEST_MINIMUM_S
        spent_usd = book.total_usd(until)
        for by in ("user", "job", f"tag:{EXPECTED}", "pool", "market", "day"):
            table = build_report("cost", self.store.iter_events(), until, by=by)
            cost = [column.name for column in table.columns].index("cost_usd")
            parts_usd = sum(float(row[cost] or 0.0) for row in table.rows)
            if abs(parts_usd - spent_usd) > 1e-6 + 1e-9 * spent_usd:
                yield f"books: the cost report by {by} adds up to {parts_usd:.6f}, the ledger to {spent_usd:.6f} USD"
            due = {"user": self.accounts.user_usd(-inf, until), "job": self.accounts.job_usd(until)}.get(by, {})
            for name, told_usd in ((str(row[0]), float(row[cost] or 0.0)) for row in table.rows if row[0] in due):
                if abs(told_usd - due[name]) > ROUNDING_USD:
                    yield f"books: {name} has cost {told_usd:.6f} USD by the report, {due[name]:.6f} by the accounts"
        if self.fixed_prices and not self.skew_s:
            yield from self._check_against_bill(spent_usd, now)

    def _check_against_bill(self, spent_usd: float, now: float) -> Iterator[str]:
        """The ledger holds what was billed; no more of what ended unless nobody could be asked any longer when."""
        recorded = {row.token for row in self.store.instances(live_only=False, limit=10_000) if row.launched_at}
        ours = [machine for machine in self.ours(now) if machine.token in recorded]
        billed_usd = sum(machine.billed_usd for machine in ours)
        # Who died lately lives on in the ledger until the daemon has heard of it.
        ended_at = {machine.token: machine.terminated_at or now for machine in ours}
        live = [(each, now + LONGEST_MINIMUM_S - ended_at.get(each.token, now)) for each in self.store.live().instances]
        coming_usd = sum(each.offer.price_usd_per_h * more_s for each, more_s in live) / HOUR_S
        coming_usd = coming_usd if now <= self.terminations_known_until else inf
        if not billed_usd - ROUNDING_USD <= spent_usd <= billed_usd + coming_usd + ROUNDING_USD:
            yield f"books: {billed_usd:.6f} USD were billed, {spent_usd:.6f} are in the ledger"

    def _billed_usd(self, until: float) -> float:
        return sum(machine.billed_usd for machine in self.ours(until))

    def _later_minimum_usd(self, name: str, since: float, until: float) -> float:
        """Return what at most of billing minimums of machines that ended is of the next day, or month: many may come
        and go in the last minute."""
        ends_at = since + DAY_S if name == "day" else month_start(since + 32 * DAY_S)
        later_s = [
            (machine, machine.launched_at + LONGEST_MINIMUM_S - max(ends_at, machine.terminated_at))
            for machine in self.ours(until)
            if machine.terminated_at is not None
        ]
        return sum(machine.billed_usd * each_s / LONGEST_MINIMUM_S for machine, each_s in later_s if each_s > 0.0)


def _limit(policy: Policy, period: str) -> float:
    limit = policy.budgets.per_day_usd if period == "day" else policy.budgets.per_month_usd
    return _or_inf(limit)


def _user_limit(policy: Policy, user: str, period: str) -> float:
    limits = policy.budgets.for_user(user)
    return _or_inf(limits.per_day_usd if period == "day" else limits.per_month_usd)


def _or_inf(limit: float | None) -> float:
    return inf if limit is None else limit
