"""One pass of the event log for several tables of the same money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hcloud.core.model import Event
from hcloud.report.commitment_history import CommitmentHistory, CommitmentStretch
from hcloud.report.fleet import FleetHistory, Stretch
from hcloud.report.table import ReportTable


class StretchSums(Protocol):
    """What a report adds up while the log is read."""

    def take(self, event: Event) -> None:
        """Read what an event says besides machine time, before the stretches that it settles."""

    def add(self, stretch: Stretch) -> None:
        """Add one stretch of machine time."""

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Add what no machine used of a commitment."""


class MoneyTable(StretchSums, Protocol):
    """Sums of a report of money, and the table made of them."""

    def table(self, history: FleetHistory, now: float) -> ReportTable:
        """Return the table. Call once, after the last stretch; ``now``: Unix seconds, for the age of prices."""


def read_stretches(events: Iterable[Event], sums: Sequence[StretchSums], since: float, until: float) -> FleetHistory:
    """Read the log once, from its start, for all of ``sums``; return the fleet's history.

    Each is given every stretch between ``since`` and ``until`` (Unix seconds) once.
    """
    history, commitments = FleetHistory(since, until), CommitmentHistory(since, until)
    for event in events:
        for each in sums:
            each.take(event)
        for stretch in history.take(event):
            for each in sums:
                each.add(stretch)
        for unused in commitments.take(event):
            for each in sums:
                each.add_unused(unused)
    for stretch in history.finish():
        for each in sums:
            each.add(stretch)
    for unused in commitments.finish():
        for each in sums:
            each.add_unused(unused)
    return history
