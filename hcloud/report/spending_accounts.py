"""Where the money went: the whole cost of a period, divided into accounts that add up to it.

A unit is charged by its dominant share of its machine, as in the cost report: the larger of its vCPU and memory shares.
A machine without free memory is therefore full, however many of its vCPUs are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from hcloud.core.model import PROFILE_TAG, Event, EventKind, Market
from hcloud.core.pricing import cost_usd, dominant_share, split
from hcloud.report.commitment_history import CommitmentStretch
from hcloud.report.fleet import FLEET_KINDS, AttemptHistory, FleetHistory, MachineHistory, Stretch, UnitHold, unit_id
from hcloud.report.table import Column, ReportTable, Row, Value, columns, share_pct
from hcloud.spec.validation import counted

SPENDING_KINDS: frozenset[EventKind] = FLEET_KINDS | {EventKind.SAMPLE, EventKind.COMMITMENT}
"""Event kinds that the accounts are computed from."""
ROUNDING = 1e-9
"""Rounding errors of a sum are below this share of it."""
CPU_TOLERANCE = 0.05
"""By so many vCPUs a measured mean may exceed what was used."""
_PENDING_MOST = 1024
"""The number of attempts of unknown outcome from which on those that are known by now are looked for."""


class Account(StrEnum):
    """What a part of the cost was paid for."""

    USED = "used"
    """Held by jobs, up to what they need, in attempts that succeeded or still run."""
    BEYOND_NEED = "beyond_need"
    """Held in the same attempts beyond what the jobs need."""
    LOST_WORK = "lost_work"
    """Held by attempts of batch and best-effort jobs that were preempted, evicted or failed."""
    PROFILING = "profiling"
    """Held by profiling runs; all other parts of rented machines that ran nothing else."""
    BOOT = "boot"
    """The free part of rented machines until they are ready and once their termination was requested."""
    MINIMUM_BILLING = "minimum_billing"
    """Rented machines between their end and the end of their billing minimum."""
    IDLE_KEPT = "idle_kept"
    """Rented machines without any unit."""
    HALF_EMPTY = "half_empty"
    """The free part of rented machines with a unit."""
    RESERVED_UNUSED = "reserved_unused"
    """The free part of reserved machines, also while they boot, and commitments that no machine used."""


PAID_FOR: Mapping[Account, str] = {
    Account.USED: "held by jobs, up to their need",
    Account.BEYOND_NEED: "held by jobs beyond their need",
    Account.LOST_WORK: "held by attempts that were preempted, evicted or failed",
    Account.PROFILING: "profiling runs, and rented machines that ran nothing else",
    Account.BOOT: "rented machines until ready, and from the request to terminate",
    Account.MINIMUM_BILLING: "rented machines after their end, to the billing minimum",
    Account.IDLE_KEPT: "rented machines without units",
    Account.HALF_EMPTY: "free part of rented machines with units",
    Account.RESERVED_UNUSED: "free part of reserved machines; unused commitments",
}
"""What each account is for, in a few words."""
BASIS = (
    "held: the larger of the vCPU and memory shares of the machine; attempts still running count as used, and all that "
    "a service held, also before it was preempted or failed"
)
"""A note on what the accounts count."""
SIMULATED_NEED = "beyond_need: simulated jobs need what they hold, unless their workload says that requests are guesses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The cost of a period in USD, by account."""

    usd: Mapping[Account, float] = field(default_factory=lambda: dict.fromkeys(Account, 0.0))
    """Every account; all that jobs of unknown need held counts as used."""
    known_need_usd: float = 0.0
    """What jobs of known need held, within their need and beyond."""

    @property
    def total_usd(self) -> float:
        """The whole cost."""
        return sum(self.usd.values())

    @property
    def unknown_need_usd(self) -> float:
        """What jobs of unknown need held."""
        held_usd = self.usd[Account.USED] + self.usd[Account.BEYOND_NEED]
        unknown_usd = held_usd - self.known_need_usd
        return unknown_usd if unknown_usd > ROUNDING * held_usd else 0.0

    def amount_usd(self, account: Account) -> float | None:
        """Return the amount in an account; None if it is not known: jobs held something, and no need is known."""
        if account is Account.BEYOND_NEED and self.known_need_usd <= 0.0 < self.unknown_need_usd:
            return None
        return self.usd[account]

    def share_pct(self, account: Account) -> float | None:
        """Return the amount in an account in percent of the whole cost; None if either is not known, or no cost."""
        amount_usd = self.amount_usd(account)
        return None if amount_usd is None else share_pct(amount_usd, self.total_usd)


@dataclass(slots=True)
class _Held:
    """What an attempt of unknown outcome held."""

    used_usd: float = 0.0
    beyond_usd: float = 0.0
    known_usd: float = 0.0
    """What of it is of known need."""


class SpendingReader:
    """Adds stretches of machine time to accounts."""

    def __init__(self, needs_vcpus: Mapping[str, float] | None = None) -> None:
        """``needs_vcpus``: the vCPUs that each rank needs, by job id; other jobs need all that they hold.

        None: the need is what was measured: the largest mean of used vCPUs between two readings, rounded up, and the
        largest memory. That of services is unknown then, as their latency needs vCPUs that CPU time does not show.
        """
        self._needs_vcpus = needs_vcpus
        self._usd = dict.fromkeys(Account, 0.0)
        self._known_usd = 0.0
        self._pending: dict[AttemptHistory, _Held] = {}
        self._resolve_at = _PENDING_MOST

    def measure(self, event: Event, history: FleetHistory) -> None:
        """Take the readings in an event into account, before ``history`` takes the event."""
        if event.kind in (EventKind.SAMPLE, EventKind.UNIT_ENDED) and (known := history.units.get(unit_id(event))):
            known[1].use.measure(event)

    def add(self, stretch: Stretch) -> None:
        """Add one stretch of machine time."""
        machine = stretch.machine
        cuts = {at for at in (machine.terminating_at, machine.ended_at) if at is not None}
        inside = sorted(at for at in cuts if stretch.since < at < stretch.until)
        fractions, rest = split([holding.share for holding in stretch.holdings])
        for since, until in pairwise([stretch.since, *inside, stretch.until]):
            usd = cost_usd(stretch.price_usd_per_h, until - since)
            for holding, fraction in zip(stretch.holdings, fractions, strict=True):
                self._add_held(machine, holding, usd * fraction)
            self._usd[_account_of_free(stretch, since)] += usd * rest

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Add what no machine used of a commitment."""
        self.add_reserved_unused(stretch.unused_usd)

    def add_reserved_unused(self, usd: float) -> None:
        """Add what was paid for reserved machines that were not up."""
        self._usd[Account.RESERVED_UNUSED] += usd

    def finish(self) -> Spending:
        """Return all that was added; attempts of unknown outcome count as used, unless none of their units runs."""
        for attempt in self._pending:
            attempt.lost = attempt.is_over if attempt.lost is None else attempt.lost
        self._resolve()
        return Spending(usd=dict(self._usd), known_need_usd=self._known_usd)

    def _add_held(self, machine: MachineHistory, holding: UnitHold, usd: float) -> None:
        if PROFILE_TAG in holding.job.tags:
            self._usd[Account.PROFILING] += usd
            return
        needed = self._needed_part(machine, holding)
        beyond_usd = 0.0 if needed is None else usd * (1.0 - needed)
        held = _Held(used_usd=usd - beyond_usd, beyond_usd=beyond_usd, known_usd=0.0 if needed is None else usd)
        attempt = holding.attempt
        if holding.job.target_kind == "service":
            self._charge(held, lost=False)
        elif attempt.lost is not None:
            self._charge(held, lost=attempt.lost)
        else:
            pending = self._pending.setdefault(attempt, _Held())
            pending.used_usd += held.used_usd
            pending.beyond_usd += held.beyond_usd
            pending.known_usd += held.known_usd
            if len(self._pending) > self._resolve_at:
                self._resolve()
                self._resolve_at = max(_PENDING_MOST, 2 * len(self._pending))

    def _needed_part(self, machine: MachineHistory, holding: UnitHold) -> float | None:
        """Return the part (0..1) of what a unit holds that it needs; None if that is not known."""
        vcpus, memory_mib = holding.vcpus, holding.memory_mib
        if self._needs_vcpus is not None:
            vcpus = min(vcpus, self._needs_vcpus.get(holding.job.id, vcpus))
        elif holding.job.target_kind == "service" or holding.use.vcpus_max is None:
            return None
        else:
            vcpus = min(vcpus, whole_vcpus(holding.use.vcpus_max))
            memory_mib = min(memory_mib, holding.use.memory_mib_max or memory_mib)
        needed = max(dominant_share(vcpus, memory_mib, machine.vcpus, machine.memory_mib), holding.gpu_share)
        return min(1.0, needed / holding.share) if holding.share > 0.0 else 1.0

    def _resolve(self) -> None:
        for attempt in [each for each in self._pending if each.lost is not None]:
            self._charge(self._pending.pop(attempt), lost=bool(attempt.lost))

    def _charge(self, held: _Held, *, lost: bool) -> None:
        if lost:
            self._usd[Account.LOST_WORK] += held.used_usd + held.beyond_usd
            return
        self._usd[Account.USED] += held.used_usd
        self._usd[Account.BEYOND_NEED] += held.beyond_usd
        self._known_usd += held.known_usd


def whole_vcpus(used: float) -> float:
    """Return the vCPUs that a program needs which used this many: one that waits part of the time needs a whole one."""
    return max(1.0, math.ceil(used - CPU_TOLERANCE))


def _account_of_free(stretch: Stretch, since: float) -> Account:
    """Return the account of the part of a machine that no unit holds, from ``since`` on within a stretch."""
    machine = stretch.machine
    if stretch.market == Market.RESERVED.value:
        return Account.RESERVED_UNUSED
    if machine.has_run_profiling and not machine.has_run_jobs:
        return Account.PROFILING
    if machine.ended_at is not None and since >= machine.ended_at:
        return Account.MINIMUM_BILLING
    if stretch.booting or (machine.terminating_at is not None and since >= machine.terminating_at):
        return Account.BOOT
    return Account.HALF_EMPTY if stretch.holdings else Account.IDLE_KEPT


def accounts_table(spending: Spending, unknown_machines: int = 0) -> ReportTable:
    """Return one row per account, with its share of the whole cost; no rows if there is no cost.

    ``unknown_machines``: the number of machines that are left out, as the log does not have their requests.
    """
    rows: list[Row] = [
        (each.value, spending.amount_usd(each), spending.share_pct(each), PAID_FOR[each] + _known(spending, each))
        for each in Account
    ]
    total = ("total", spending.total_usd, share_pct(spending.total_usd, spending.total_usd), "")
    return ReportTable(
        title=TITLE,
        columns=columns("account", "cost_usd", "share_pct", "paid_for"),
        rows=tuple(rows) if spending.total_usd else (),
        total=total,
        notes=(BASIS, *_need_notes(spending), *_left_out_notes(unknown_machines)),
    )


TITLE = "Where the money went"


def _known(spending: Spending, account: Account) -> str:
    if account is not Account.BEYOND_NEED or not spending.unknown_need_usd:
        return ""
    known_usd = spending.known_need_usd
    return f"; need known for {known_usd / (known_usd + spending.unknown_need_usd):.0%}" if known_usd else "; not known"


def _need_notes(spending: Spending) -> tuple[str, ...]:
    if not spending.unknown_need_usd:
        return ()
    return (
        f"jobs of unknown need held ${spending.unknown_need_usd:.4g}, all counted as used; known is the need of batch "
        "and best-effort jobs whose CPU use was measured: the most whole vCPUs used between two measurements",
    )


def _left_out_notes(unknown_machines: int) -> tuple[str, ...]:
    if not unknown_machines:
        return ()
    return (f"{counted(unknown_machines, 'machine')} left out: launched before the start of the log",)


# -------------------------------------------------------------------------------------------------- several policies
SPENT = "spent_"
"""Prefix of the columns with what was spent on an account."""
ACCOUNT_COLUMNS = columns(*(f"{SPENT}{each}_{unit}" for each in Account for unit in ("usd", "pct")))
"""Columns of a table with one row per policy."""


def account_values(spending: Spending) -> tuple[Value, ...]:
    """Return the values of ACCOUNT_COLUMNS."""
    return tuple(value for each in Account for value in (spending.amount_usd(each), spending.share_pct(each)))


def with_accounts_below(table: ReportTable) -> ReportTable:
    """Return a table with one row per policy with its ACCOUNT_COLUMNS in a further table, for people.

    That has one row per account and two columns per policy. A policy without accounts (it stalled) has none.
    """
    names = [column.name for column in table.columns]
    kept = [at for at, name in enumerate(names) if not name.startswith(SPENT)]
    main = replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
    )
    of_policies = [dict(zip(names, row, strict=True)) for row in table.rows]
    compared = [each for each in of_policies if each.get(f"{SPENT}{Account.USED}_usd") is not None]
    if not compared:
        return main
    shown = [Column(name="account")]
    for each in compared:
        name = str(each[names[0]])
        shown += [
            Column(name=f"{name}_usd", unit="usd", label=name),
            Column(name=f"{name}_pct", unit="%", label="share"),
        ]
    rows: list[Row] = []
    for account in Account:
        values: list[Value] = [account.value]
        for each in compared:
            usd = each.get(f"{SPENT}{account}_usd")
            values += ["not known", None] if usd is None else [usd, each.get(f"{SPENT}{account}_pct")]
        rows.append(tuple(values))
    total = ("total", *(value for each in compared for value in (each["cost_usd"], None)))
    notes = ("; ".join(f"{account}: {about}" for account, about in PAID_FOR.items()), BASIS, SIMULATED_NEED)
    accounts = ReportTable(title=TITLE, columns=tuple(shown), rows=tuple(rows), total=total, notes=notes)
    return replace(main, further=(*main.further, accounts))
