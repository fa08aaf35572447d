"""Our ledger against the cloud's bill, machine by machine: what agrees, what does not, and what only one of them knows.

The bill's lines are read by :mod:`hcloud.report.bill_lines`. Compared is what a machine itself cost, over the time of
of the bill; disks, traffic, taxes and fees are not in the ledger and are only listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hcloud.core.model import Event, EventKind
from hcloud.core.pricing import cost_usd
from hcloud.report.bill_lines import Bill
from hcloud.report.fleet import FleetHistory, MachineHistory
from hcloud.report.grouping import minute_of, text
from hcloud.report.table import Column, ReportTable, Row, dollars

BILL_KINDS: Final = (
    EventKind.INSTANCE_REQUESTED,
    EventKind.INSTANCE_LAUNCHED,
    EventKind.INSTANCE_PRICE,
    EventKind.INSTANCE_TERMINATED,
)
"""The events a comparison needs."""
AGREES, HIGHER, LOWER = "agrees", "bill is higher", "bill is lower"
NOT_BILLED, NOT_OURS = "not in the bill", "not in the ledger"
_ORDER: Final = (NOT_OURS, HIGHER, LOWER, NOT_BILLED, AGREES)
PENNY_USD: Final = 0.01
"""Differences up to a cent are rounding."""
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
    """One machine in both books, by the cloud's name for it."""

    resource: str
    machine: MachineHistory | None = None
    ledger_usd: float = 0.0
    bill_usd: float = 0.0
    other_usd: float = 0.0
    billed: bool = False


@dataclass(slots=True)
class _OwnAccount:
    """What machines cost by our own account. ``names`` are the cloud's names by ours."""

    history: FleetHistory
    names: dict[str, str] = field(default_factory=dict)
    machines: dict[str, MachineHistory] = field(default_factory=dict)
    usd: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def read(self, events: Iterable[Event]) -> None:
        """Add up what machines cost in USD over the whole log, oldest event first; once only."""
        for event in events:
            if event.kind is EventKind.INSTANCE_LAUNCHED:
                self.names[event.instance_id or ""] = text(event, "provider_id")
            for stretch in self.history.take(event):
                self._add(stretch.machine, cost_usd(stretch.price_usd_per_h, stretch.seconds))
        for stretch in self.history.finish():
            self._add(stretch.machine, cost_usd(stretch.price_usd_per_h, stretch.seconds))

    def _add(self, machine: MachineHistory, usd: float) -> None:
        self.machines[machine.id] = machine
        self.usd[machine.id] += usd


def bill_table(
    events: Iterable[Event], bill: Bill, *, providers: Sequence[str], owner: str, tolerance: float
) -> ReportTable:
    """Compare the ledger with a bill.

    ``events`` are those of ``BILL_KINDS`` from the start of the log. ``providers`` are the names of those the bill is
    about (empty: all in it). ``owner`` is the tag of our machines; ``tolerance`` the share (0..1) by which
    two amounts may differ and still agree.
    """
    ledger = _OwnAccount(FleetHistory(bill.since, bill.until))
    ledger.read(events)
    entries = _entries(ledger, bill, providers)
    ours = [each for each in entries.values() if each.machine is not None or bill.owners.get(each.resource) == owner]
    found = sorted(
        ((_finding(each, tolerance), each) for each in ours),
        key=lambda pair: (_ORDER.index(pair[0]), -abs(pair[1].bill_usd - pair[1].ledger_usd), pair[1].resource),
    )
    foreign = [each for each in entries.values() if each not in ours]
    counts = Counter(finding for finding, _ in found)
    return ReportTable(
        title=f"Ledger against the {bill.cloud} bill, {minute_of(bill.since)} to {minute_of(bill.until)} UTC",
        columns=COLUMNS,
        rows=tuple(_row(finding, each) for finding, each in found),
        total=_total([each for _, each in found]),
        notes=tuple(_notes(bill, foreign, counts)),
    )


def _entries(ledger: _OwnAccount, bill: Bill, providers: Sequence[str]) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for machine_id, machine in ledger.machines.items():
        if providers and machine.provider not in providers:
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


def _total(entries: Sequence[_Entry]) -> Row:
    amounts = _amounts(sum(each.ledger_usd for each in entries), sum(each.bill_usd for each in entries))
    return ("total", "", "", "", "", *amounts, sum(each.other_usd for each in entries))


def _notes(bill: Bill, foreign: Sequence[_Entry], counts: Counter[str]) -> list[str]:
    notes = [", ".join(f"{counts[finding]} {finding}" for finding in _ORDER if counts[finding]) or "no machine of ours"]
    if foreign:
        usd = sum(each.bill_usd for each in foreign)
        whose = "are not ours" if bill.has_owners else "are in the bill but not in the ledger"
        notes.append(f"{len(foreign)} other machines, {dollars(usd)}, {whose}")
    if not bill.has_owners:
        notes.append("the bill does not tell the owner tag, so a machine of ours that the ledger lost cannot be told")
    notes += [f"not compared: {what}, {dollars(usd)}" for what, usd in sorted(bill.not_compared.items())]
    return notes
