"""Utilisation report: how much of the paid machine time, vCPUs and memory jobs held, how much CPU they used, and where
the money went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hcloud.core.model import Event, EventKind
from hcloud.core.pricing import HOUR_S, split
from hcloud.report.commitment_history import CommitmentHistory
from hcloud.report.cost import machine_keys
from hcloud.report.fleet import FleetHistory, MachineHistory, Stretch, UnitHold, unit_id
from hcloud.report.grouping import Grouping, age_of, minute_of, number
from hcloud.report.sparklines import SharesOverTime, sparkline
from hcloud.report.spending_accounts import SPENDING_KINDS, SpendingReader, accounts_table
from hcloud.report.table import Column, ReportTable, Row, columns, share_pct, total_row
from hcloud.spec.validation import counted

UTILISATION_KINDS: frozenset[EventKind] = SPENDING_KINDS
"""Event kinds that the report reads."""
BY_ACCOUNT = "account"
"""The grouping with one row per account of the cost."""


@dataclass(slots=True)
class _UtilisationLine:
    seconds: float = 0.0
    held_s: float = 0.0
    idle_s: float = 0.0
    boot_s: float = 0.0
    vcpu_s: float = 0.0
    """vCPU-seconds of the machines; of the units if rows stand for jobs."""
    held_vcpu_s: float = 0.0
    memory_mib_s: float = 0.0
    held_memory_mib_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time measured in units."""


@dataclass(slots=True)
class _Counter:
    """Last reading of a unit's CPU counter."""

    machine: MachineHistory
    holding: UnitHold
    read_at: float
    cpu_s: float = 0.0


class _Usage:
    """Sums stretches and CPU time by group."""

    def __init__(self, grouping: Grouping, since: float, until: float) -> None:
        self.grouping = grouping
        self.since = since
        self.until = until
        self.lines: dict[tuple[str, ...], _UtilisationLine] = {}
        self.counters: dict[str, _Counter] = {}
        self.over_time = SharesOverTime()
        """The held share of the machine time, by row."""
        self.unmeasured = 0
        """Units that ended without a reading of their CPU counter."""

    def add(self, stretch: Stretch) -> None:
        """Add one stretch of machine time."""
        if self.grouping.of_jobs:
            for holding in stretch.holdings:
                line = self._line(self.grouping.job_key(holding.job))
                line.seconds += stretch.seconds
                line.vcpu_s += holding.vcpus * stretch.seconds
            return
        _, rest = split([holding.share for holding in stretch.holdings])
        for key, part in machine_keys(self.grouping, stretch):
            self._add_machine(self._line((key,)), stretch, stretch.seconds * part, rest)
            if self.grouping.kind != "day":  # a day is a stretch of time itself
                self.over_time.add((key,), stretch.since, stretch.until, 1.0 - rest)

    def _add_machine(self, line: _UtilisationLine, stretch: Stretch, seconds: float, rest: float) -> None:
        line.seconds += seconds
        line.held_s += seconds * (1.0 - rest)
        if stretch.booting:
            line.boot_s += seconds * rest
        else:
            line.idle_s += seconds * rest
        line.vcpu_s += stretch.machine.vcpus * seconds
        line.memory_mib_s += stretch.machine.memory_mib * seconds
        line.held_vcpu_s += sum(holding.vcpus for holding in stretch.holdings) * seconds
        line.held_memory_mib_s += sum(holding.memory_mib for holding in stretch.holdings) * seconds

    def measure(self, event: Event, history: FleetHistory) -> None:
        """Apply a unit's event, after ``history`` has; CPU time is spread evenly between two readings."""
        unit = unit_id(event)
        if event.kind is EventKind.UNIT_STARTED and unit in history.units:
            machine, holding = history.units[unit]
            self.counters[unit] = _Counter(machine, holding, event.at)
        elif event.kind in (EventKind.SAMPLE, EventKind.UNIT_ENDED):
            self._read(unit, event)

    def _read(self, unit: str, event: Event) -> None:
        counter = self.counters.get(unit)
        if counter is None:
            return
        cpu_s = number(event, "cpu_s", -1.0)
        if cpu_s >= counter.cpu_s and event.at > counter.read_at:
            for line, part in self._lines_between(counter, event.at):
                line.cpu_s += (cpu_s - counter.cpu_s) * part
            counter.cpu_s, counter.read_at = cpu_s, event.at
        if event.kind is EventKind.UNIT_ENDED:
            self.unmeasured += cpu_s < 0 and counter.cpu_s == 0
            del self.counters[unit]

    def _lines_between(self, counter: _Counter, until: float) -> Iterator[tuple[_UtilisationLine, float]]:
        """Yield the lines that the time since the last reading counts for, each with its part (0..1) of that time."""
        since, whole_s = counter.read_at, until - counter.read_at
        inside = Stretch(
            machine=counter.machine,
            since=max(since, self.since),
            until=min(until, self.until),
            price_usd_per_h=0.0,
            holdings=(),
            booting=False,
        )
        if inside.seconds <= 0:
            return
        if self.grouping.of_jobs:
            yield self._line(self.grouping.job_key(counter.holding.job)), inside.seconds / whole_s
            return
        for key, part in machine_keys(self.grouping, inside):
            yield self._line((key,)), part * inside.seconds / whole_s

    def _line(self, key: tuple[str, ...]) -> _UtilisationLine:
        return self.lines.setdefault(key, _UtilisationLine())


def utilisation_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return the utilisation of machines by pool, market or day, or of what units held by job, user or tag.

    Below it stands where the money went; that table alone if grouped by ``account``.
    """
    usage, spending = _Usage(grouping, since, until), SpendingReader()
    history, commitments = FleetHistory(since, until), CommitmentHistory(since, until)
    accounts_alone = grouping.kind == BY_ACCOUNT

    def add(stretch: Stretch) -> None:
        spending.add(stretch)
        if not accounts_alone:
            usage.add(stretch)

    for event in events:
        spending.measure(event, history)
        for stretch in history.take(event):
            add(stretch)
        for unused in commitments.take(event):
            spending.add_unused(unused)
        if not accounts_alone:
            usage.measure(event, history)
    for stretch in history.finish():
        add(stretch)
    for unused in commitments.finish():
        spending.add_unused(unused)
    accounts = accounts_table(spending.finish(), unknown_machines=len(history.unknown_machines))
    if accounts_alone:
        return accounts
    notes = ["held: the larger of the vCPU and memory shares that units requested; used: measured CPU time"]
    if usage.unmeasured:
        notes.append(f"{counted(usage.unmeasured, 'unit')} ended without a CPU measurement, counted as 0")
    table = _job_table if grouping.of_jobs else _machine_table
    return replace(table(usage, tuple(notes)), further=(accounts,) if accounts.rows else ())


def _job_table(usage: _Usage, notes: tuple[str, ...]) -> ReportTable:
    names = columns(*usage.grouping.columns, "unit_h", "held_vcpu_h", "used_cpu_h", "used_pct")
    lines = sorted(usage.lines.items(), key=lambda each: (-each[1].vcpu_s, each[0]))
    rows: list[Row] = [
        (
            *key,
            line.seconds / HOUR_S,
            line.vcpu_s / HOUR_S,
            line.cpu_s / HOUR_S,
            share_pct(line.cpu_s, line.vcpu_s),
        )
        for key, line in lines
    ]
    total = total_row(names, rows, {"unit_h", "held_vcpu_h", "used_cpu_h"})
    whole = _sum(usage.lines.values())
    return ReportTable(
        title=f"Utilisation by {usage.grouping.text}",
        columns=names,
        rows=tuple(rows),
        total=(*total[:-1], share_pct(whole.cpu_s, whole.vcpu_s)),
        notes=notes,
    )


def _machine_table(usage: _Usage, notes: tuple[str, ...]) -> ReportTable:
    names = columns(
        *usage.grouping.columns,
        "machine_h",
        "held_pct",
        "idle_pct",
        "boot_pct",
        "vcpus_held_pct",
        "memory_held_pct",
        "cpu_used_pct",
    )
    lines, over_time = sorted(usage.lines.items()), usage.over_time.shares()
    rows: list[Row] = [(*key, *_shares(line)) for key, line in lines]
    total: Row = ("total", *_shares(_sum(usage.lines.values())))
    if over_time:
        names += (Column(name="over_time", label="held over time"),)
        rows = [(*row, sparkline(over_time.get(key, ()))) for row, (key, _) in zip(rows, lines, strict=True)]
        total, notes = (*total, None), (_over_time_note(usage), *notes)
    return ReportTable(
        title=f"Utilisation by {usage.grouping.text}",
        columns=names,
        rows=tuple(rows),
        total=total,
        notes=notes,
    )


def _over_time_note(usage: _Usage) -> str:
    over_time, zone = usage.over_time, usage.grouping.zone
    begin, end = (over_time.first or 0) * over_time.slot_s, (over_time.last + 1) * over_time.slot_s
    length = age_of(over_time.slot_s)
    return (
        f"held over time: a character for {length}, from {minute_of(begin, zone)} to {minute_of(end, zone)} {zone}; "
        "the fuller the more of the machine time was held; blank: no machine"
    )


def _shares(line: _UtilisationLine) -> Row:
    return (
        line.seconds / HOUR_S,
        share_pct(line.held_s, line.seconds),
        share_pct(line.idle_s, line.seconds),
        share_pct(line.boot_s, line.seconds),
        share_pct(line.held_vcpu_s, line.vcpu_s),
        share_pct(line.held_memory_mib_s, line.memory_mib_s),
        share_pct(line.cpu_s, line.vcpu_s),
    )


def _sum(lines: Iterable[_UtilisationLine]) -> _UtilisationLine:
    whole = _UtilisationLine()
    for line in lines:
        for name in _UtilisationLine.__slots__:
            setattr(whole, name, getattr(whole, name) + getattr(line, name))
    return whole
