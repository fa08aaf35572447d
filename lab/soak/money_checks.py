"""Checks of money: budgets, the daemon's own sums, the ledger and reports, against cloud bills and reference
accounts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from hcloud.core.budget_scope import user_scope
from hcloud.core.model import Attempt, Event, EventKind, UnitId
from hcloud.planner.instance_lifecycle import END_MARGIN_S
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import size_share
from hcloud.report import build_report
from hcloud.simulator.ground_truth import CycleContext, DaemonSpend, MachineTruth, VirtualCloud
from hcloud.spec.policy import Budgets, Caps, Policy, ScopeBudget
from hcloud.spend_ledger import DAY_S, SPEND_KINDS, SpendLedger, month_start
from hcloud.store import LiveView, Store
from lab.soak.planted_defects import DEFECT, UNRECORDED
from lab.soak.reference_accounts import ReferenceAccounts
from lab.soak.worlds import EXPECTED

HOUR_S = 3600.0
ROUNDING_USD = 1e-6
LONGEST_MINIMUM_S = 60.0
UNLED_LAUNCH_S = 400.0
"""How long a machine launched by a daemon that lost its lead may be up before a listing shows it."""
Period = tuple[str, float, float]
"""A day or month: its name, and the times between which it is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedEnd:
    """What an ended unit seems to hold because its end could not be recorded."""

    user: str
    since: float
    """When it was first seen."""
    usd: float


@dataclass(slots=True)
class MoneyChecks:
    """Follows the event log and checks spending. Limits are the loosest of all policies so far."""

    store: Store
    clouds: Mapping[str, VirtualCloud]
    owner: str
    policies: Sequence[Policy]
    """Every policy that was in force so far; the caller appends to it."""
    no_unled_launches: bool
    """No machine can be launched by a daemon that lost its lead."""
    fixed_prices: bool
    """Spot prices never change."""
    skew_s: float
    """The maximum difference between the daemons' clock and the clouds'."""
    max_usd_per_h: float
    terminations_known_until: float
    """Until then, clouds list every terminated machine with the time of its end."""
    running: Callable[[], Iterable[UnitId]]
    """Returns the units that are really running."""
    accounts: ReferenceAccounts = field(default_factory=ReferenceAccounts)
    _events: list[Event] = field(default_factory=list)
    _checked_at: float | None = None
    _over_budget: frozenset[str] = frozenset()
    """Jobs that had exceeded their own budgets at the last check."""
    _expiries: Mapping[str, float] = field(default_factory=dict)
    """When machines were to expire, at the last check."""
    _stopped_attempts: set[str] = field(default_factory=set)
    """Attempts with a requested stop that were handled before."""
    _allowance_usd: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """How far each user may exceed limits: see :meth:`_allow_grace_overrun`."""
    _unrecorded_ends: dict[UnitId, UnrecordedEnd] = field(default_factory=dict)
    """More of that, by unit: see :meth:`_allow_unrecorded_ends`."""

    def check(self, seen: LiveView, moment: CycleContext, events: Iterable[Event]) -> Iterator[str]:
        """Yield violations, given the new events of the log."""
        news = [event for event in events if event.kind in SPEND_KINDS]
        self._events += news
        self.accounts.follow(news)
        self._allow_grace_overrun(seen)
        self._allow_unrecorded_ends(seen, moment.now)
        yield from self._check_prices(seen, moment.now)
        yield from self._check_hourly_rate(seen)
        periods = self._periods(moment.now)
        yield from self._check_bills(periods)
        yield from self._check_users(
            periods, {m.instance_id: m.terminated_at for m in self.ours(moment.now) if m.terminated_at}
        )
        yield from self._check_jobs(seen, moment)
        if moment.daemon_spend is not None and not self.skew_s:  # with skew, some of it lies in the future
            yield from self._check_daemon_spend(moment.daemon_spend)
            yield from self._check_committed(seen, moment.daemon_spend)
        self._checked_at = moment.now

    def _allow_grace_overrun(self, seen: LiveView) -> None:
        """Allow for units that were stopped because their user cannot pay, just before their machine expired.

        If the machine was then renewed for other users, these units hold it in their grace period without any budget.
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
        """Allow for ended units of jobs with a planted defect that keeps their end from being recorded.

        They stay booked until it is recorded or their machine is gone, and committed as far as that is paid.
        """
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
        """Return the policy with only its limits of users, increased by their allowances."""
        limits = dict(policy.budgets.per_user)
        for user in {*self._allowance_usd, *(each.user for each in self._unrecorded_ends.values())}:
            usd, limit = self._allowed_extra_usd(user), policy.budgets.for_scope(user_scope(user))
            day_usd, month_usd = limit.per_day_usd, limit.per_month_usd
            limits[user] = ScopeBudget(
                per_day_usd=None if day_usd is None else day_usd + usd,
                per_month_usd=None if month_usd is None else month_usd + usd,
            )
        return replace(policy, budgets=Budgets(per_user=limits), caps=Caps())

    def _periods(self, now: float) -> list[Period]:
        """Return the current day and month, and those that ended since the last check, up to their end."""
        periods = [("day", now - now % DAY_S, now), ("month", month_start(now), now)]
        before = self._checked_at
        if before is not None and before < periods[0][1]:
            periods.append(("day", before - before % DAY_S, before - before % DAY_S + DAY_S))
        if before is not None and before < periods[1][1]:
            periods.append(("month", month_start(before), periods[1][1]))
        return periods

    def ours(self, now: float) -> list[MachineTruth]:
        """Return all machines of this deployment that ever existed, as of ``now``."""
        return [m for cloud in self.clouds.values() for m in cloud.machines(now) if m.owner == self.owner]

    # ---------------------------------------------------------------------------------------------------------- limits
    def _check_prices(self, seen: LiveView, now: float) -> Iterator[str]:
        """Each machine is booked at what the cloud bills for it (only with fixed prices)."""
        rows = {row.token: row for row in seen.instances if row.launched_at is not None}
        for machine in self.ours(now) if self.fixed_prices else ():
            row = rows.get(machine.token)
            if row is not None and machine.terminated_at is None and now > machine.launched_at:
                billed_s = max(now - machine.launched_at, row.offer.billing_minimum_s)
                usd_per_h = machine.billed_usd * HOUR_S / billed_s
                if abs(usd_per_h - row.offer.price_usd_per_h) > ROUNDING_USD:
                    yield f"price: {row.id} is booked at {row.offer.price_usd_per_h:g} USD/h, but costs {usd_per_h:g}"

    def _check_hourly_rate(self, seen: LiveView) -> Iterator[str]:
        """Machines never cost more per hour than some policy so far allowed (only with fixed prices)."""
        limit_usd = max((_or_inf(policy.budgets.per_hour_usd) for policy in self.policies), default=inf)
        usd_per_h = sum(each.offer.price_usd_per_h for each in seen.instances)
        if self.fixed_prices and usd_per_h > limit_usd + ROUNDING_USD:
            yield f"overspent: {usd_per_h:.4f} USD per hour, limit {limit_usd:g}"

    def _check_bills(self, periods: Sequence[Period]) -> Iterator[str]:
        """No UTC day or month is billed more than some policy so far allowed, plus one billing minimum."""
        slack_usd = self._slack_usd()
        for name, since, until in periods:
            limit_usd = max((_limit(policy, name) for policy in self.policies), default=inf)
            if limit_usd == inf:
                continue
            billed_usd = self._billed_usd(until) - self._billed_usd(since) - self._later_minimum_usd(name, since, until)
            if billed_usd > limit_usd + slack_usd:
                yield f"overspent: {billed_usd:.4f} USD billed this {name}, limit {limit_usd:g}"

    def _check_users(self, periods: Sequence[Period], gone: Mapping[str, float]) -> Iterator[str]:
        """What a user's units hold never costs more in a UTC day or month than some policy so far allowed that user."""
        limited = {user for policy in self.policies for user in policy.budgets.per_user}
        if not limited:
            return
        for name, since, until in periods:
            for user, usd in self.accounts.user_usd(since, until, gone).items():
                limit_usd = max(_user_limit(policy, user, name) for policy in self.policies)
                if usd > limit_usd + self._allowed_extra_usd(user) + self._drift_usd() + ROUNDING_USD:
                    yield f"overspent by {user}: {usd:.4f} USD this {name}, limit {limit_usd:g}"

    def _check_committed(self, seen: LiveView, daemon_spend: DaemonSpend) -> Iterator[str]:
        """What a user has spent plus what that user's jobs may still cost is within limits that never changed."""
        # A machine that expired is gone, but the daemon may not have recorded that yet.
        stale = any(each.expires_at <= daemon_spend.at for each in seen.instances)
        if len(self.policies) > 1 or not self.fixed_prices or stale:
            return
        policy = self._with_allowances(self.policies[-1])
        # Awaited machines count in full for each job that awaits them: a job's share grows when another one leaves.
        jobs = tuple(replace(job, awaiting=()) for job in seen.jobs)
        machines = tuple(replace(each, for_running=()) for each in seen.instances)
        snapshot = Snapshot(now=daemon_spend.at, jobs=jobs, instances=machines, spend=daemon_spend.spend)
        yield from (f"committed: {each}" for each in check_invariants(snapshot, policy) if each.startswith("budgets"))

    def _check_jobs(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """A job over its own budget before an undisturbed cycle does not run on after it."""
        limited = {job.id: job for job in seen.jobs if job.spec.budget_usd is not None and job.attempt is not None}
        cost_usd = self.accounts.job_usd(moment.now) if limited else {}
        over = frozenset(
            name for name, job in limited.items() if cost_usd.get(name, 0.0) > (job.spec.budget_usd or 0.0)
        )
        for name in sorted(over & self._over_budget) if moment.undisturbed else ():
            attempt = limited[name].attempt
            if attempt is not None and not attempt.over and attempt.stop_requested_at is None:
                yield f"overspent by {name}: cost {cost_usd[name]:.4f} USD exceeds its budget, but it runs on"
        self._over_budget = over

    def _slack_usd(self) -> float:
        """Return one billing minimum, plus drift and machines launched without a lead."""
        slack_usd = self.max_usd_per_h * LONGEST_MINIMUM_S / HOUR_S + ROUNDING_USD + self._drift_usd()
        return slack_usd if self.no_unled_launches else slack_usd + self.max_usd_per_h * UNLED_LAUNCH_S / HOUR_S

    def _drift_usd(self) -> float:
        """Return how much spending may exceed limits because clocks differ or prices change meanwhile."""
        most = max(policy.caps.max_instances for policy in self.policies)
        drift_s = self.skew_s + (0.0 if self.fixed_prices else 300.0)
        return most * self.max_usd_per_h * drift_s / HOUR_S

    # ----------------------------------------------------------------------------------------------------------- books
    def _check_daemon_spend(self, daemon_spend: DaemonSpend) -> Iterator[str]:
        """The daemon's sums of this day and month, in total and by user, match the log, even after a restart."""
        accounts, now, spend = self.accounts, daemon_spend.at, daemon_spend.spend
        if self._events and self._events[-1].seq > daemon_spend.seq:
            accounts = ReferenceAccounts().follow(event for event in self._events if event.seq <= daemon_spend.seq)
        for name, since, ends_at, all_usd, by_user in (
            ("day", now - now % DAY_S, spend.day_ends_at, spend.day_usd, spend.by_scope_day_usd),
            ("month", month_start(now), spend.month_ends_at, spend.month_usd, spend.by_scope_month_usd),
        ):
            due_usd = accounts.total_usd(since, now, ends_at or inf)
            due_by_user = {user_scope(user): usd for user, usd in accounts.user_usd(since, now).items()}
            if abs(due_usd - all_usd) > ROUNDING_USD:
                yield f"daemon spend: {all_usd:.6f} USD this {name}, but {due_usd:.6f} by the log"
            users = {scope for scope in by_user if scope.kind == "user"}
            for user in sorted(due_by_user.keys() | users):
                usd, due_usd = by_user.get(user, 0.0), due_by_user.get(user, 0.0)
                if abs(due_usd - usd) > ROUNDING_USD:
                    yield f"daemon spend: {usd:.6f} USD of {user} this {name}, but {due_usd:.6f} by the log"

    def check_ledger(self, now: float) -> Iterator[str]:
        """Yield violations unless the ledger, each report's parts and (with fixed prices) the clouds' bill have the
        same sum."""
        book = SpendLedger()
        book.follow(self.store.iter_events(kinds=SPEND_KINDS))
        # Some of it lies in the future: a daemon's clock may be ahead, and billing minimums end later.
        until = now + self.skew_s + LONGEST_MINIMUM_S
        spent_usd = book.total_usd(until)
        for by in ("user", "job", f"tag:{EXPECTED}", "pool", "market", "day"):
            # Unused commitments are in the report, but not in the ledger: no machine costs them.
            machines = (each for each in self.store.iter_events() if each.kind is not EventKind.COMMITMENT)
            table = build_report("cost", machines, until, by=by)
            cost = [column.name for column in table.columns].index("cost_usd")
            parts_usd = sum(float(row[cost] or 0.0) for row in table.rows)
            if abs(parts_usd - spent_usd) > 1e-6 + 1e-9 * spent_usd:
                yield f"ledger: the cost report by {by} adds up to {parts_usd:.6f}, the ledger to {spent_usd:.6f} USD"
            due = {"user": self.accounts.user_usd(-inf, until), "job": self.accounts.job_usd(until)}.get(by, {})
            for name, usd in ((str(row[0]), float(row[cost] or 0.0)) for row in table.rows if row[0] in due):
                if abs(usd - due[name]) > ROUNDING_USD:
                    yield f"ledger: {name} cost {usd:.6f} USD by the report, {due[name]:.6f} by the reference accounts"
        if self.fixed_prices and not self.skew_s:
            yield from self._check_against_bill(spent_usd, now)

    def _check_against_bill(self, spent_usd: float, now: float) -> Iterator[str]:
        """The ledger has what was billed, and no more unless it could not be known when a machine ended."""
        recorded = {row.token for row in self.store.instances(live_only=False, limit=10_000) if row.launched_at}
        ours = [machine for machine in self.ours(now) if machine.token in recorded]
        billed_usd = sum(machine.billed_usd for machine in ours)
        # A machine that ended lately stays in the ledger until the daemon has recorded that.
        ended_at = {machine.token: machine.terminated_at or now for machine in ours}
        live = [(each, now + LONGEST_MINIMUM_S - ended_at.get(each.token, now)) for each in self.store.live().instances]
        coming_usd = sum(each.offer.price_usd_per_h * more_s for each, more_s in live) / HOUR_S
        coming_usd = coming_usd if now <= self.terminations_known_until else inf
        if not billed_usd - ROUNDING_USD <= spent_usd <= billed_usd + coming_usd + ROUNDING_USD:
            yield f"ledger: {billed_usd:.6f} USD were billed, but {spent_usd:.6f} are in the ledger"

    def _billed_usd(self, until: float) -> float:
        return sum(machine.billed_usd for machine in self.ours(until))

    def _later_minimum_usd(self, name: str, since: float, until: float) -> float:
        """Return the part of ended machines' billing minimums that falls in the next day or month."""
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
    limits = policy.budgets.for_scope(user_scope(user))
    return _or_inf(limits.per_day_usd if period == "day" else limits.per_month_usd)


def _or_inf(limit: float | None) -> float:
    return inf if limit is None else limit
