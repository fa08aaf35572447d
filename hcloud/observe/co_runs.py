"""Periods in which a unit ran beside the same neighbours, and what it did in them; each becomes a co-run record."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from hcloud.apply.feedback import CoRunPeriod
from hcloud.core.co_runs import MOST_NEIGHBOURS
from hcloud.core.cpu_window import TAKEN_MAX, share_taken
from hcloud.provider import UnitSample

LEAST_PERIOD_S = 30.0
"""Shorter periods say little."""
MOST_PERIOD_S = 600.0
"""Longer ones are recorded in parts: jobs may run for months."""


class _OpenPeriod(NamedTuple):
    neighbours: tuple[str, ...] | None
    """Applications of the units beside, sorted; None: one is not known, or there are too many."""
    shared_cpus: float | None
    """Share (0..1) of its CPUs on which they may run, too; None: there are none."""
    first: UnitSample
    last: UnitSample


@dataclass(slots=True)
class CoRunPeriods:
    """The present period of each running unit. Its memory may be lost: a new period then begins."""

    _open: dict[str, _OpenPeriod] = field(default_factory=dict)

    def follow(
        self, unit: str, sample: UnitSample, neighbours: tuple[str, ...], shared_cpus: float | None
    ) -> CoRunPeriod | None:
        """Take in a unit's latest sample; return the period that it ends, or that ended when neighbours changed.

        ``neighbours``: the applications of the units beside it, sorted; "": not known. ``shared_cpus``: the share of
        its CPUs on which they may run, too.
        """
        known = neighbours if "" not in neighbours and len(neighbours) <= MOST_NEIGHBOURS else None
        period = self._open.get(unit)
        if (
            period is not None
            and (period.neighbours, period.shared_cpus) == (known, shared_cpus)
            and (sample.at >= period.last.at)
        ):
            period = self._open[unit] = period._replace(last=sample)
            if sample.at < period.first.at + MOST_PERIOD_S:
                return None
        self._open[unit] = _OpenPeriod(known, shared_cpus, sample, sample)
        return None if period is None else _ended(period)

    def last(self, unit: str) -> CoRunPeriod | None:
        """Return the present period of a unit that has ended; None if it says nothing."""
        return _ended(self._open[unit]) if unit in self._open else None

    def forget(self, unit: str) -> None:
        """Forget a unit after its end is recorded."""
        self._open.pop(unit, None)

    def retain(self, units: Set[str]) -> None:
        """Forget all other units."""
        self._open = {unit: period for unit, period in self._open.items() if unit in units}


def _ended(period: _OpenPeriod) -> CoRunPeriod | None:
    first, last, seconds = period.first, period.last, period.last.at - period.first.at
    if period.neighbours is None or seconds < LEAST_PERIOD_S or _taken(first, last) > TAKEN_MAX:
        return None
    return CoRunPeriod(
        neighbours=period.neighbours,
        shared_cpus=period.shared_cpus,
        seconds=seconds,
        progress=_grown(first.progress, last.progress),
        written_mib=_grown(first.written_mib, last.written_mib),
        ended_at=last.at,
    )


def _taken(first: UnitSample, last: UnitSample) -> float:
    """Return the share (0..1) of its CPU time that the host took from a unit between two samples."""
    return share_taken((last.taken_s or 0.0) - (first.taken_s or 0.0), (last.cpu_s or 0.0) - (first.cpu_s or 0.0))


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after <= before else after - before
