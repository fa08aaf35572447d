"""Shares over time as a few characters: ``▁▃▆█``; memory does not grow with the length of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEVELS = "▁▂▃▄▅▆▇█"
SLOTS_MOST = 24
"""A period is shown in at most so many characters, and at least half as many if it is longer than that many seconds."""


def sparkline(shares: Sequence[float | None]) -> str:
    """Return a character for each share (0..1): the higher, the fuller; blank for None."""
    return "".join(" " if share is None else LEVELS[min(len(LEVELS) - 1, int(share * len(LEVELS)))] for share in shares)


@dataclass(slots=True)
class SharesOverTime:
    """Sums of two amounts in slots of time, for several rows; slots become twice as long when there are too many."""

    slot_s: float = 3600.0 / 1024.0
    """Doubles to parts of an hour, and to hours."""
    first: int | None = None
    last: int = 0
    """Numbers of the first and the last slot with any amount; slot n begins at ``n * slot_s``."""
    _rows: dict[tuple[str, ...], dict[int, list[float]]] = field(default_factory=dict)

    def add(self, row: tuple[str, ...], since: float, until: float, part: float) -> None:
        """Add a stretch of time of a row, of which ``part`` (0..1) counts; stretches may come in any order."""
        if until <= since:
            return
        self._widen(since, until)
        slots, at = self._rows.setdefault(row, {}), since
        while at < until:
            slot = int(at // self.slot_s)
            end = min(until, (slot + 1) * self.slot_s)
            sums = slots.setdefault(slot, [0.0, 0.0])
            sums[0] += part * (end - at)
            sums[1] += end - at
            at = end

    def shares(self) -> Mapping[tuple[str, ...], list[float | None]]:
        """Return the share in each slot by row, all from the first to the last slot; None where a row has no time."""
        if self.first is None:
            return {}
        span = range(self.first, self.last + 1)
        return {row: [_share(slots.get(slot)) for slot in span] for row, slots in self._rows.items()}

    def _widen(self, since: float, until: float) -> None:
        """Include a stretch in the slots."""
        while True:
            begin, end = int(since // self.slot_s), max(int(since // self.slot_s), int(-(-until // self.slot_s)) - 1)
            first = begin if self.first is None else min(self.first, begin)
            last = end if self.first is None else max(self.last, end)
            if last - first < SLOTS_MOST:
                self.first, self.last = first, last
                return
            self._double()

    def _double(self) -> None:
        self.slot_s *= 2.0
        if self.first is not None:
            self.first, self.last = self.first // 2, self.last // 2
        for row, slots in self._rows.items():
            merged: dict[int, list[float]] = {}
            for slot, (part, whole) in slots.items():
                sums = merged.setdefault(slot // 2, [0.0, 0.0])
                sums[0] += part
                sums[1] += whole
            self._rows[row] = merged


def _share(sums: Sequence[float] | None) -> float | None:
    return None if sums is None or sums[1] <= 0.0 else sums[0] / sums[1]
