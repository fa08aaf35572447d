"""Commitments report: cost of commitments, how much of them jobs held, and whether they paid off.

A reserved machine costs the same whether it is used or not, and so does a commitment that no machine uses. It paid off
if the part that jobs held would have cost more on demand, that is, if jobs held it for more than the break-even share
of its time.
"""

from __future__ import annotations

from dataclasses import dataclass

from hcloud.core.model import Event, EventKind, Market
from hcloud.core.pricing import HOUR_S, cost_usd, split
from hcloud.report.commitment_history import CommitmentStretch
from hcloud.report.cost import machine_keys
from hcloud.report.fleet import FLEET_KINDS, FleetHistory, Stretch
from hcloud.report.grouping import Grouping
from hcloud.report.price_dates import PriceDates
from hcloud.report.table import Column, ReportTable, Row, columns, share_pct

COMMITMENT_KINDS: frozenset[EventKind] = FLEET_KINDS | {EventKind.COMMITMENT}
"""Event kinds that the report reads."""
IDLE = "(unused)"
"""Name of the row for capacity that no job held, if rows stand for jobs."""


@dataclass(slots=True)
class _CommitmentLine:
    seconds: float = 0.0
    held_s: float = 0.0
    usd: float = 0.0
    unused_usd: float = 0.0
    held_list_usd: float = 0.0
    """On-demand price of the part that jobs held."""
    machines_usd: float = 0.0
    """Cost of the machines alone."""
    list_usd: float = 0.0
    """On-demand price of the machines."""
    used_h: float = 0.0
    """Committed hours that machines of the account used."""
    unused_h: float = 0.0

    def add(self, other: _CommitmentLine) -> None:
        """Add another line's sums."""
        for name in _CommitmentLine.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CommitmentsTable:
    """Cost and use of commitments by pool, market or day, or by the job, user or tag that held machines."""

    def __init__(self, grouping: Grouping) -> None:
        """Prepare; nothing is added yet."""
        self._grouping = grouping
        self._lines: dict[tuple[str, ...], _CommitmentLine] = {}
        self._prices = PriceDates()

    def take(self, event: Event) -> None:
        """Read nothing more of an event than the stretches that it settles."""

    def add(self, stretch: Stretch) -> None:
        """Count one stretch of a reserved machine; others are left out."""
        if stretch.market != Market.RESERVED.value:
            return
        self._prices.add(stretch.machine)
        fractions, rest = split([holding.share for holding in stretch.holdings])
        usd = cost_usd(stretch.price_usd_per_h, stretch.seconds)
        list_usd = cost_usd(stretch.machine.on_demand_usd_per_h, stretch.seconds)
        if self._grouping.of_jobs:
            held = zip(stretch.holdings, fractions, strict=True)
            parts = [(self._grouping.job_key(holding.job), fraction, 1.0) for holding, fraction in held]
            parts.append((self._grouping.filler(IDLE), rest, 0.0))
        else:
            parts = [((key,), part, 1.0 - rest) for key, part in machine_keys(self._grouping, stretch)]
        for key, part, used in parts:
            self._line(key).add(
                _CommitmentLine(
                    seconds=stretch.seconds * part,
                    held_s=stretch.seconds * part * used,
                    usd=usd * part,
                    machines_usd=usd * part,
                    unused_usd=usd * part * (1.0 - used),
                    held_list_usd=list_usd * part * used,
                    list_usd=list_usd * part,
                )
            )

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Count what no machine used of a commitment."""
        usd = stretch.unused_usd
        for key, part in stretch.keys(self._grouping, IDLE):
            self._line(key).add(
                _CommitmentLine(
                    usd=usd * part,
                    unused_usd=usd * part,
                    used_h=stretch.used_h * part,
                    unused_h=stretch.unused_h * part,
                )
            )

    def _line(self, key: tuple[str, ...]) -> _CommitmentLine:
        return self._lines.setdefault(key, _CommitmentLine())

    def table(self, history: FleetHistory, now: float) -> ReportTable:
        """Return the table of all that was added."""
        whole = _CommitmentLine()
        for line in self._lines.values():
            whole.add(line)
        return ReportTable(
            title=f"Commitments by {self._grouping.text}",
            columns=(
                *columns(*self._grouping.columns, "used_h", "unused_h", "machine_h", "held_pct", "break_even_pct"),
                *columns("cost_usd", "unused_usd"),
                Column(name="saved_usd", unit="usd", label="paid off"),
            ),
            rows=tuple((*key, *_row(line)) for key, line in sorted(self._lines.items())),
            total=("total", *("" for _ in self._grouping.columns[1:]), *_row(whole)),
            notes=(
                "used_h, unused_h: committed hours that machines of the account used and did not use, from when the "
                "commitment was first seen to its end; of a commitment to spend or to resources, hours of the whole "
                "of it",
                "machine_h: reserved machines of HCloud, to the end of their commitment; held: the larger of the "
                "vCPU and memory shares held by units; cost: these machines, and the unused hours; unused: what units "
                "did not hold of both",
                "break_even: share of the time held at which on-demand machines would have cost the same; paid off: "
                "on-demand price of what was held, minus the machines' cost (negative: on demand would have been "
                "cheaper)",
                "paid off (saved_usd in JSON and CSV) differs from saved in `report savings`, which compares whole "
                "machines, held or not",
                *self._prices.notes(now, "prices of reserved machines"),
            ),
        )


def _row(line: _CommitmentLine) -> Row:
    return (
        line.used_h,
        line.unused_h,
        line.seconds / HOUR_S,
        share_pct(line.held_s, line.seconds),
        share_pct(line.machines_usd, line.list_usd),
        line.usd,
        line.unused_usd,
        line.held_list_usd - line.usd,
    )
