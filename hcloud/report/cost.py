"""Cost and savings reports: machine time charged to the jobs that held it, at the actual and at the on-demand price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from hcloud.core.errors import BadInput
from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.core.pricing import HOUR_S, cost_usd, split
from hcloud.report.commitment_history import CommitmentStretch
from hcloud.report.fleet import FLEET_KINDS, FleetHistory, Stretch
from hcloud.report.grouping import Grouping
from hcloud.report.price_dates import PriceDates
from hcloud.report.run_costs import RunCosts
from hcloud.report.table import Column, ReportTable, Row, columns, share_pct, total_row
from hcloud.spec.validation import counted

COST_KINDS: frozenset[EventKind] = FLEET_KINDS | {EventKind.COMMITMENT, EventKind.TASKS_ENDED}
"""Event kinds that the cost report reads."""
SAVINGS_KINDS: frozenset[EventKind] = FLEET_KINDS
"""Event kinds that the savings report reads."""
IDLE, BOOT, UNUSED = "(idle)", "(boot)", "(unused commitments)"


@dataclass(slots=True)
class CostLine:
    """Sums of one row."""

    seconds: float = 0.0
    """Unit time if rows stand for jobs, machine time if they stand for machines."""
    jobs_usd: float = 0.0
    idle_usd: float = 0.0
    boot_usd: float = 0.0
    unused_usd: float = 0.0
    """Cost of commitments while no machine used them."""
    list_usd: float = 0.0
    """Cost of the same machines and times at on-demand prices."""

    @property
    def usd(self) -> float:
        """Return the sum of the costs of jobs, idle time, boot time and unused commitments."""
        return self.jobs_usd + self.idle_usd + self.boot_usd + self.unused_usd

    def part(self, share: float) -> CostLine:
        """Return this part of all sums."""
        return CostLine(**{each.name: getattr(self, each.name) * share for each in fields(self)})

    def plus(self, other: CostLine) -> CostLine:
        """Return the sums of both."""
        return CostLine(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(slots=True)
class _SharedCost:
    """What machines cost while nothing, or not all of them, was held, to be shared among those who held them."""

    held_usd: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)
    """Cost of what was held, by machine and row."""
    rest: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Cost, and cost at on-demand prices, of what was not held, by machine."""

    def add_held(self, machine: str, key: tuple[str, ...], usd: float) -> None:
        """Count what a row's jobs held of a machine."""
        held = self.held_usd.setdefault(machine, {})
        held[key] = held.get(key, 0.0) + usd

    def add_rest(self, machine: str, usd: float, list_usd: float) -> None:
        """Count what nothing held of a machine."""
        before = self.rest.get(machine, (0.0, 0.0))
        self.rest[machine] = (before[0] + usd, before[1] + list_usd)

    def parts(self) -> Iterator[tuple[tuple[str, ...], float, float]]:
        """Yield rows with their parts: of a machine, in proportion to what each held of it.

        What machines cost that nothing held is shared in proportion to what was held of all machines.
        """
        everywhere = dict[tuple[str, ...], float]()
        for held in self.held_usd.values():
            for key, usd in held.items():
                everywhere[key] = everywhere.get(key, 0.0) + usd
        for machine, (usd, list_usd) in self.rest.items():
            held = self.held_usd.get(machine, {})
            held = held if sum(held.values()) > 0.0 else everywhere
            whole_usd = sum(held.values())
            for key, held_usd in held.items() if whole_usd > 0.0 else ():
                yield key, usd * held_usd / whole_usd, list_usd * held_usd / whole_usd
            if whole_usd <= 0.0:
                yield (), usd, list_usd


class CostTable:
    """The cost by group. Idle, boot and unused cost are rows if rows stand for jobs, else columns."""

    def __init__(self, grouping: Grouping) -> None:
        """Prepare; nothing is added yet."""
        self.grouping = grouping
        self.lines: dict[tuple[str, ...], CostLine] = {}
        self._runs = RunCosts() if grouping.kind == "task" else None
        self.prices = PriceDates()
        self.profiling_usd = 0.0
        self.profiled: set[str] = set()

    def take(self, event: Event) -> None:
        """Read which tasks ran in one unit, if rows stand for tasks."""
        if self._runs is not None:
            self._runs.take(event)

    def add(self, stretch: Stretch) -> None:
        """Charge one stretch to the rows it belongs to."""
        self.prices.add(stretch.machine)
        fractions, rest = split([holding.share for holding in stretch.holdings])
        usd = cost_usd(stretch.price_usd_per_h, stretch.seconds)
        for holding, fraction in zip(stretch.holdings, fractions, strict=True):
            if PROFILE_TAG in holding.job.tags:
                self.profiling_usd += usd * fraction
                self.profiled.add(holding.job.tags[PROFILE_TAG])
        list_usd = cost_usd(stretch.machine.on_demand_usd_per_h, stretch.seconds)
        if self.grouping.of_jobs:
            for holding, fraction in zip(stretch.holdings, fractions, strict=True):
                row = self.grouping.job_key(holding.job)
                line = self._line(row)
                line.seconds += stretch.seconds
                line.jobs_usd += usd * fraction
                line.list_usd += list_usd * fraction
                self._add_held(row, stretch, usd * fraction)
            if rest > 0.0:
                self._add_free(stretch, usd * rest, list_usd * rest)
            return
        for key, part in machine_keys(self.grouping, stretch):
            line = self._line((key,))
            line.seconds += stretch.seconds * part
            line.jobs_usd += usd * (1.0 - rest) * part
            self._add_rest(line, stretch, usd * rest * part, list_usd * part)

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Charge what no machine used of a commitment to the rows it belongs to."""
        if stretch.unused_usd > 0.0:
            for key, part in stretch.keys(self.grouping, UNUSED):
                self._line(key).unused_usd += stretch.unused_usd * part

    def table(self, history: FleetHistory, now: float) -> ReportTable:
        """Return the table of all that was added. Call once, after the last stretch."""
        lines, spent = self._finished()
        of_jobs = self.grouping.of_jobs
        parts = () if of_jobs else ("jobs_usd", "idle_usd", "boot_usd", "unused_usd")
        names = columns(*self.grouping.columns, "unit_h" if of_jobs else "machine_h", *parts, "cost_usd", "share_pct")
        rows: list[Row] = [
            (
                *key,
                line.seconds / HOUR_S or (None if of_jobs else 0.0),
                *(getattr(line, each) for each in parts),
                line.usd,
                share_pct(line.usd, spent),
            )
            for key, line in lines
        ]
        summed = {"unit_h", "machine_h", *parts, "cost_usd"}
        return self._table(f"Cost by {self.grouping.text}", names, rows, summed, self.notes(history, now))

    def _table(
        self, title: str, names: tuple[Column, ...], rows: list[Row], summed: set[str], notes: Sequence[str]
    ) -> ReportTable:
        total = total_row(names, rows, summed)
        return ReportTable(title=title, columns=names, rows=tuple(rows), total=total, notes=tuple(notes))

    def _finished(self) -> tuple[list[tuple[tuple[str, ...], CostLine]], float]:
        """Return the rows in report order, and their whole cost."""
        if self._runs is not None:
            self._runs.share(self.lines)
        return self._sorted(), sum(line.usd for line in self.lines.values())

    def _add_held(self, row: tuple[str, ...], stretch: Stretch, usd: float) -> None:
        """Count what a row's jobs held of a machine, beside its line."""

    def _add_free(self, stretch: Stretch, usd: float, list_usd: float) -> None:
        """Charge what nothing held of a machine, if rows stand for jobs."""
        row = self.grouping.filler(BOOT if stretch.booting else IDLE)
        self._add_rest(self._line(row), stretch, usd, list_usd)

    def _add_rest(self, line: CostLine, stretch: Stretch, usd: float, list_usd: float) -> None:
        if stretch.booting:
            line.boot_usd += usd
        else:
            line.idle_usd += usd
        line.list_usd += list_usd

    def _line(self, key: tuple[str, ...]) -> CostLine:
        return self.lines.setdefault(key, CostLine())

    def _sorted(self) -> list[tuple[tuple[str, ...], CostLine]]:
        """Return the rows in report order: days ascending, else the highest cost first; what no job held last."""
        if self.grouping.kind == "day":
            return sorted(self.lines.items())
        last = {self.grouping.filler(name): at for at, name in enumerate((IDLE, BOOT, UNUSED), 1)}
        return sorted(self.lines.items(), key=lambda each: (last.get(each[0], 0), -each[1].usd, each[0]))

    def notes(self, history: FleetHistory, now: float) -> list[str]:
        """Return notes on the age of prices, the cost of profiling, and machines that are left out."""
        notes = self.prices.notes(now)
        unused_usd = sum(line.unused_usd for line in self.lines.values())
        if unused_usd > 0.0:
            notes.append(
                f"unused commitments: ${unused_usd:.4g} of this was paid for commitments while no machine of the "
                "account used them; budgets and `hcloud bill` count machines only; `hcloud report commitments` shows "
                "each"
            )
        if self.profiled:
            notes.append(
                f"profiling: ${self.profiling_usd:.4g} of this was spent on profiling "
                f"{counted(len(self.profiled), 'job')}; --by tag:{PROFILE_TAG} shows which"
            )
        if history.unknown_machines:
            machines = counted(len(history.unknown_machines), "machine")
            notes.append(f"{machines} left out: launched before the start of the log")
        return notes


def machine_keys(grouping: Grouping, stretch: Stretch) -> list[tuple[str, float]]:
    """Return the row keys of a stretch in a grouping by machines, each with its part (0..1) of the stretch."""
    if grouping.kind == "pool":
        return [(stretch.machine.pool, 1.0)]
    if grouping.kind == "market":
        return [(stretch.market, 1.0)]
    return [(grouping.day_of(a), (b - a) / stretch.seconds) for a, b in grouping.days(stretch.since, stretch.until)]


class SharedCostTable(CostTable):
    """The cost by job, task, user or tag, with the idle and boot cost of machines shared among them."""

    def __init__(self, grouping: Grouping) -> None:
        """Prepare. Raises BadInput: rows do not stand for jobs."""
        if not grouping.of_jobs:
            raise BadInput(
                f"idle and boot cost is shared among jobs: group by job, task, user or tag:KEY, not by "
                f"{grouping.text}, where it has columns of its own"
            )
        super().__init__(grouping)
        self._shared = _SharedCost()

    def table(self, history: FleetHistory, now: float) -> ReportTable:
        """Return the table of all that was added. Call once, after the last stretch."""
        lines, spent = self._finished()
        names = columns(*self.grouping.columns, "unit_h", "held_usd", "idle_usd", "cost_usd", "share_pct")
        rows: list[Row] = [
            (
                *key,
                line.seconds / HOUR_S or None,
                line.jobs_usd,
                line.idle_usd,
                line.usd,
                share_pct(line.usd, spent),
            )
            for key, line in lines
        ]
        basis = (
            "idle: a machine's idle and boot cost, shared in proportion to what each held of it; that of machines "
            "which nothing held in proportion to all that was held"
        )
        title, summed = f"Cost by {self.grouping.text}, idle and boot time shared", {"unit_h", "held_usd", "idle_usd"}
        return self._table(title, names, rows, {*summed, "cost_usd"}, (basis, *self.notes(history, now)))

    def _finished(self) -> tuple[list[tuple[tuple[str, ...], CostLine]], float]:
        if self._runs is not None:
            self._runs.share(self.lines)
        for key, idle_usd, list_usd in self._shared.parts():
            line = self._line(key or self.grouping.filler(IDLE))
            line.idle_usd += idle_usd
            line.list_usd += list_usd
        return self._sorted(), sum(line.usd for line in self.lines.values())

    def _add_held(self, row: tuple[str, ...], stretch: Stretch, usd: float) -> None:
        self._shared.add_held(stretch.machine.id, row, usd)

    def _add_free(self, stretch: Stretch, usd: float, list_usd: float) -> None:
        self._shared.add_rest(stretch.machine.id, usd, list_usd)


class SavingsTable(CostTable):
    """The cost by group, and what the same machines would have cost on demand for the same time."""

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Leave out what no machine used: it has no price on demand."""

    def table(self, history: FleetHistory, now: float) -> ReportTable:
        """Return the table of all that was added. Call once, after the last stretch."""
        names = columns(*self.grouping.columns, "cost_usd", "on_demand_usd", "saved_usd", "saved_pct")
        lines, _ = self._finished()
        rows = [(*key, *_saved(line.usd, line.list_usd)) for key, line in lines]
        whole = _saved(sum(line.usd for _, line in lines), sum(line.list_usd for _, line in lines))
        basis = "on_demand: the same machines for the same time at on-demand prices, as known when each was requested"
        return ReportTable(
            title=f"Savings compared with on-demand prices, by {self.grouping.text}",
            columns=names,
            rows=tuple(rows),
            total=("total", *("" for _ in self.grouping.columns[1:]), *whole),
            notes=(basis, *self.notes(history, now)),
        )


def _saved(usd: float, list_usd: float) -> tuple[float, float, float, float | None]:
    return usd, list_usd, list_usd - usd, share_pct(list_usd - usd, list_usd)
