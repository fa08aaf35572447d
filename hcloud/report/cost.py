"""Cost and savings reports: machine time charged to the jobs that held it, at the actual and at the on-demand price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from hcloud.core.errors import BadInput
from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.core.pricing import HOUR_S, cost_usd, split
from hcloud.report.commitment_history import CommitmentHistory, CommitmentStretch
from hcloud.report.fleet import FLEET_KINDS, FleetHistory, Stretch
from hcloud.report.grouping import Grouping
from hcloud.report.price_dates import PriceDates
from hcloud.report.run_costs import RunCosts
from hcloud.report.table import ReportTable, Row, columns, share_pct, total_row
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
    """Adds stretches of machine time to the rows of a cost report."""

    def __init__(self, grouping: Grouping, *, shares_idle: bool = False) -> None:
        """``shares_idle``: idle and boot cost is shared among the jobs, not apart; for rows that stand for jobs."""
        self.grouping = grouping
        self.lines: dict[tuple[str, ...], CostLine] = {}
        self._shared = _SharedCost() if shares_idle else None
        self.prices = PriceDates()
        self.profiling_usd = 0.0
        self.profiled: set[str] = set()

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
                if self._shared is not None:
                    self._shared.add_held(stretch.machine.id, row, usd * fraction)
            if rest > 0.0 and self._shared is not None:
                self._shared.add_rest(stretch.machine.id, usd * rest, list_usd * rest)
            elif rest > 0.0:
                rest_key = self.grouping.filler(BOOT if stretch.booting else IDLE)
                self._add_rest(self._line(rest_key), stretch, usd * rest, list_usd * rest)
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

    def share_rest(self) -> None:
        """Add the idle and boot cost of each machine to the jobs that held it. Call once, after the last stretch."""
        for key, idle_usd, list_usd in self._shared.parts() if self._shared is not None else ():
            line = self._line(key or self.grouping.filler(IDLE))
            line.idle_usd += idle_usd
            line.list_usd += list_usd

    def _add_rest(self, line: CostLine, stretch: Stretch, usd: float, list_usd: float) -> None:
        if stretch.booting:
            line.boot_usd += usd
        else:
            line.idle_usd += usd
        line.list_usd += list_usd

    def _line(self, key: tuple[str, ...]) -> CostLine:
        return self.lines.setdefault(key, CostLine())

    def sorted(self) -> list[tuple[tuple[str, ...], CostLine]]:
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


def gather(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, *, shares_idle: bool = False
) -> tuple[CostTable, FleetHistory]:
    """Read the log once; return the cost between ``since`` and ``until``, and the fleet's history."""
    ledger = CostTable(grouping, shares_idle=shares_idle)
    history, commitments = FleetHistory(since, until), CommitmentHistory(since, until)
    runs = RunCosts()
    for event in events:
        runs.take(event)
        for stretch in history.take(event):
            ledger.add(stretch)
        for unused in commitments.take(event):
            ledger.add_unused(unused)
    for stretch in history.finish():
        ledger.add(stretch)
    for unused in commitments.finish():
        ledger.add_unused(unused)
    if grouping.kind == "task":
        runs.share(ledger.lines)
    ledger.share_rest()
    return ledger, history


def shared_cost_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return the cost by job, user or tag, with the idle and boot cost of machines shared among them.

    Raises BadInput for another grouping.
    """
    if not grouping.of_jobs:
        raise BadInput(
            f"idle and boot cost is shared among jobs: group by job, task, user or tag:KEY, not by {grouping.text}, "
            "where it has columns of its own"
        )
    ledger, history = gather(events, grouping, since, until, shares_idle=True)
    spent = sum(line.usd for line in ledger.lines.values())
    names = columns(*grouping.columns, "unit_h", "held_usd", "idle_usd", "cost_usd", "share_pct")
    rows: list[Row] = [
        (
            *key,
            line.seconds / HOUR_S or None,
            line.jobs_usd,
            line.idle_usd,
            line.usd,
            share_pct(line.usd, spent),
        )
        for key, line in ledger.sorted()
    ]
    basis = (
        "idle: a machine's idle and boot cost, shared in proportion to what each held of it; that of machines which "
        "nothing held in proportion to all that was held"
    )
    return ReportTable(
        title=f"Cost by {grouping.text}, idle and boot time shared",
        columns=names,
        rows=tuple(rows),
        total=total_row(names, rows, {"unit_h", "held_usd", "idle_usd", "cost_usd"}),
        notes=(basis, *ledger.notes(history, now)),
    )


def cost_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the cost by group. Idle, boot and unused cost are rows if rows stand for jobs, else columns."""
    ledger, history = gather(events, grouping, since, until)
    spent = sum(line.usd for line in ledger.lines.values())
    if grouping.of_jobs:
        names = columns(*grouping.columns, "unit_h", "cost_usd", "share_pct")
        rows: list[Row] = [
            (*key, line.seconds / HOUR_S or None, line.usd, share_pct(line.usd, spent)) for key, line in ledger.sorted()
        ]
    else:
        names = columns(*grouping.columns, "machine_h", "jobs_usd", "idle_usd", "boot_usd", "unused_usd")
        names += columns("cost_usd", "share_pct")
        rows = [
            (
                *key,
                line.seconds / HOUR_S,
                line.jobs_usd,
                line.idle_usd,
                line.boot_usd,
                line.unused_usd,
                line.usd,
                share_pct(line.usd, spent),
            )
            for key, line in ledger.sorted()
        ]
    summed = {"unit_h", "machine_h", "jobs_usd", "idle_usd", "boot_usd", "unused_usd", "cost_usd"}
    return ReportTable(
        title=f"Cost by {grouping.text}",
        columns=names,
        rows=tuple(rows),
        total=total_row(names, rows, summed),
        notes=tuple(ledger.notes(history, now)),
    )


def savings_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the cost by group and what the same machines would have cost on demand for the same time."""
    ledger, history = gather(events, grouping, since, until)
    names = columns(*grouping.columns, "cost_usd", "on_demand_usd", "saved_usd", "saved_pct")
    rows = [(*key, *_saved(line.usd, line.list_usd)) for key, line in ledger.sorted()]
    lines = ledger.lines.values()
    whole = _saved(sum(line.usd for line in lines), sum(line.list_usd for line in lines))
    basis = "on_demand: the same machines for the same time at on-demand prices, as known when each was requested"
    return ReportTable(
        title=f"Savings compared with on-demand prices, by {grouping.text}",
        columns=names,
        rows=tuple(rows),
        total=("total", *("" for _ in grouping.columns[1:]), *whole),
        notes=(basis, *ledger.notes(history, now)),
    )


def _saved(usd: float, list_usd: float) -> tuple[float, float, float, float | None]:
    return usd, list_usd, list_usd - usd, share_pct(list_usd - usd, list_usd)
