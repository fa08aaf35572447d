"""A job's pace just before and just after an event."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hcloud.forecast.job_monitor import WINDOW, Counter, Sampled, Timed


class Trend(NamedTuple):
    """A measured series: a total where it moved, or a rate."""

    at: Sequence[float]
    """Ascending times."""
    values: Sequence[float]
    of_total: bool

    def around(self, at: tuple[float, float], span_s: float) -> tuple[float, float] | None:
        """Return the pace per second just before ``at[0]`` and just after ``at[1]``; None if either is unknown.

        Each is measured over the shortest period of at least ``span_s``, up to ``WINDOW`` times that. Readings begin
        and end where a total moved, so averages over gaps between samples are correct.
        """
        before, after = self._before(at[0], span_s), self._after(at[1], span_s)
        return None if before is None or after is None else (before, after)

    def _before(self, at: float, span_s: float) -> float | None:
        end = bisect_right(self.at, at)
        if not end:
            return None
        last_at = self.at[end - 1]
        near = bisect_right(self.at, last_at - span_s, 0, end) - 1
        far = bisect_left(self.at, last_at - WINDOW * span_s, 0, end)
        return self._pace(min(near, far), end - 1) if near >= 0 else None

    def _after(self, at: float, span_s: float) -> float | None:
        start = bisect_left(self.at, at)
        if start == len(self.at):
            return None
        near = bisect_left(self.at, self.at[start] + span_s, start)
        far = bisect_right(self.at, self.at[start] + WINDOW * span_s, start) - 1
        return self._pace(start, max(near, far)) if near < len(self.at) else None

    def _pace(self, first: int, last: int) -> float | None:
        took_s = self.at[last] - self.at[first]
        if took_s <= 0.0:  # a clock that was set back
            return None
        if self.of_total:
            return (self.values[last] - self.values[first]) / took_s
        return math.fsum(self.values[first : last + 1]) / (last + 1 - first)


def course_of_total(samples: Sequence[Sampled], counter: Counter) -> Trend:
    """Return the times and values at which a total moved in ``samples``."""
    at, totals, last = list[float](), list[float](), -math.inf
    for each in samples:
        total = each.values.get(counter)
        if total is not None and total > last:
            at.append(each.at)
            totals.append(total)
            last = total
    return Trend(at, totals, of_total=True)


def course_of_rate(values: Sequence[Timed]) -> Trend:
    """Return a rate as a trend."""
    return Trend([each.at for each in values], [each.value for each in values], of_total=False)
