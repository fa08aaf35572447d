"""When the prices in a report were read."""

from __future__ import annotations

from dataclasses import dataclass

from hcloud.core.price_age import old_prices_warning
from hcloud.report.fleet import MachineHistory
from hcloud.report.grouping import age_of, minute_of


@dataclass(slots=True)
class PriceDates:
    """Dates of the oldest and the newest price of the machines of a report, Unix seconds; None without machines."""

    oldest_at: float | None = None
    newest_at: float | None = None

    def add(self, machine: MachineHistory) -> None:
        """Take the date of a machine's price into account."""
        at = machine.priced_at
        self.oldest_at = at if self.oldest_at is None else min(self.oldest_at, at)
        self.newest_at = at if self.newest_at is None else max(self.newest_at, at)

    def notes(self, now: float, of: str = "prices") -> list[str]:
        """Return a note on the dates, with a warning if even the newest is old at ``now``; empty without machines."""
        if self.oldest_at is None or self.newest_at is None:
            return []
        age_s = max(0.0, now - self.newest_at)
        return [
            f"{of}: read between {minute_of(self.oldest_at)} and {minute_of(self.newest_at)} UTC; "
            f"the newest is {age_of(age_s)} old{old_prices_warning(age_s)}"
        ]
