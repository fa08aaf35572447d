"""Comparison of the ledger with the cloud's bill, machine by machine.

:mod:`hcloud.report.bill_lines` reads the bill. Only the cost of machines within the bill's period is compared. Disks,
traffic, taxes and fees are not in the ledger; they are listed but not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hcloud.core.model import Event, EventKind
from hcloud.core.pricing import cost_usd
from hcloud.report.bill_lines import Bill
from hcloud.report.fleet import FleetHistory, MachineHistory, Stretch
from hcloud.report.grouping import minute_of, text
from hcloud.report.price_dates import PriceDates
from hcloud.report.table import Column, ReportTable, Row, dollars
from hcloud.spec.validation import counted

BILL_KINDS: Final = (
    EventKind.INSTANCE_REQUESTED,
    EventKind.INSTANCE_LAUNCHED,
    EventKind.INSTANCE_PRICE,
    EventKind.INSTANCE_TERMINATED,
)
"""Event kinds that the comparison reads."""
AGREES, HIGHER, LOWER = "agrees", "bill is higher", "bill is lower"
NOT_BILLED, NOT_OURS = "not in the bill", "not in the ledger"
_ORDER: Final = (NOT_OURS, HIGHER, LOWER, NOT_BILLED, AGREES)
PENNY_USD: Final = 0.01
"""Differences up to a cent count as rounding."""
COLUMNS: Final = (
    Column(name="finding"),
    Column(name="instance"),
    Column(name="resource"),
    Column(name="type"),
    Column(name="market"),
    Column(name="ledger_usd", unit="usd"),
    Column(name="bill_usd", unit="usd"),
    Column(name="difference_usd", unit="usd"),
    Column(name="difference_pct", unit="%"),
    Column(name="other_usd", unit="usd"),
)


@dataclass(slots=True)
class _Entry:
    """One machine in the ledger, in the bill, or in both."""

    resource: str
    """The cloud's name of the machine."""
    machine: MachineHistory | None = None
    ledger_usd: float = 0.0
    bill_usd: float = 0.0
    other_usd: float = 0.0
    billed: bool = False
    """Whether the bill has a line for the machine itself."""


@dataclass(slots=True)
class _LedgerCosts:
    """Cost of each machine according to the event log."""

    history: FleetHistory
    providers: Sequence[str]
    """The providers that the bill covers; empty: all."""
    prices: PriceDates = field(default_factory=PriceDates)
    names: dict[str, str] = field(default_factory=dict)
    """The cloud's machine names by instance id."""
    machines: dict[str, MachineHistory] = field(default_factory=dict)
    usd: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def read(self, events: Iterable[Event]) -> None:
        """Add the cost of all machines in the log, oldest event first. Call it once."""
        for event in events:
            if event.kind is EventKind.INSTANCE_LAUNCHED:
                self.names[event.instance_id or ""] = text(event, "provider_id")
            for stretch in self.history.take(event):
                self._add(stretch)
        for stretch in self.history.finish():
            self._add(stretch)

    def _add(self, stretch: Stretch) -> None:
        machine = stretch.machine
        self.machines[machine.id] = machine
        self.usd[machine.id] += cost_usd(stretch.price_usd_per_h, stretch.seconds)
        if not self.providers or machine.provider in self.providers:
            self.prices.add(machine)


def bill_table(
    events: Iterable[Event], bill: Bill, *, providers: Sequence[str], owner: str, tolerance: float
) -> ReportTable:
    """Return one row per machine: its cost in the ledger and in the bill, and whether they agree.

    ``events`` are those of ``BILL_KINDS`` from the start of the log. ``providers`` are the provider names that the bill
    covers (empty: all). ``owner`` is the owner tag of our machines. Amounts agree if they differ by at most a share of
    ``tolerance`` (0..1).
    """
    ledger = _LedgerCosts(FleetHistory(bill.since, bill.until), providers)
    ledger.read(events)
    entries = _entries(ledger, bill)
    ours = [each for each in entries.values() if each.machine is not None or bill.owners.get(each.resource) == owner]
    findings = sorted(
        ((_finding(each, tolerance), each) for each in ours),
        key=lambda pair: (_ORDER.index(pair[0]), -abs(pair[1].bill_usd - pair[1].ledger_usd), pair[1].resource),
    )
    foreign = [each for each in entries.values() if each not in ours]
    counts = Counter(finding for finding, _ in findings)
    ledger_usd, bill_usd = sum(each.ledger_usd for each in ours), sum(each.bill_usd for each in ours)
    other_usd = sum(each.other_usd for each in ours)
    return ReportTable(
        title=f"Ledger compared with the {bill.cloud} bill, {minute_of(bill.since)} to {minute_of(bill.until)} UTC",
        columns=COLUMNS,
        rows=tuple(_row(finding, each) for finding, each in findings),
        total=("total", "", "", "", "", *_amounts(ledger_usd, bill_usd), other_usd),
        # Of its end: what the machines cost then is compared, so newer prices would not have helped.
        notes=(*_notes(bill, foreign, counts), *ledger.prices.notes(bill.until, "prices in the ledger, at the end")),
    )


def _entries(ledger: _LedgerCosts, bill: Bill) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for machine_id, machine in ledger.machines.items():
        if ledger.providers and machine.provider not in ledger.providers:
            continue
        resource = ledger.names.get(machine_id, "").rpartition("/")[2] or machine_id
        entry = entries.setdefault(resource, _Entry(resource))
        entry.machine, entry.ledger_usd = machine, entry.ledger_usd + ledger.usd[machine_id]
    for line in bill.lines:
        entry = entries.setdefault(line.resource, _Entry(line.resource))
        if line.machine:
            entry.billed, entry.bill_usd = True, entry.bill_usd + line.usd
        else:
            entry.other_usd += line.usd
    return entries


def _finding(entry: _Entry, tolerance: float) -> str:
    if entry.machine is None:
        return NOT_OURS
    difference = entry.bill_usd - entry.ledger_usd
    if abs(difference) <= max(PENNY_USD, tolerance * max(entry.bill_usd, entry.ledger_usd)):
        return AGREES
    if not entry.billed:
        return NOT_BILLED
    return HIGHER if difference > 0 else LOWER


def _row(finding: str, entry: _Entry) -> Row:
    machine = entry.machine
    return (
        finding,
        machine.id if machine is not None else "",
        entry.resource,
        machine.type if machine is not None else "",
        machine.market if machine is not None else "",
        *_amounts(entry.ledger_usd, entry.bill_usd),
        entry.other_usd,
    )


def _amounts(ledger_usd: float, bill_usd: float) -> tuple[float, float, float, float | None]:
    difference = bill_usd - ledger_usd
    return ledger_usd, bill_usd, difference, 100.0 * difference / ledger_usd if ledger_usd > 0 else None


def _notes(bill: Bill, foreign: Sequence[_Entry], counts: Counter[str]) -> list[str]:
    notes = [", ".join(f"{counts[finding]} {finding}" for finding in _ORDER if counts[finding]) or "no machine of ours"]
    if foreign:
        usd = sum(each.bill_usd for each in foreign)
        machines = counted(len(foreign), "other machine")
        reason = "no owner tag of ours" if bill.has_owners else "in the bill but not in the ledger"
        notes.append(f"{machines}, {dollars(usd)}: {reason}")
    if not bill.has_owners:
        notes.append("the bill has no owner tags, so our machines that are missing in the ledger cannot be recognised")
    notes += [f"not compared: {item}, {dollars(usd)}" for item, usd in sorted(bill.not_compared.items())]
    return notes
