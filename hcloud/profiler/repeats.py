"""Confidence limits from few repeats, robust against single outliers, and when to stop repeating."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RUNS_MIN = 3
RUNS_MAX = 60
ONE_RUN = 0.5
"""Half-width for a single run, as a fraction of its value, since its spread is unknown."""
# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; the last is used for more (slightly too wide).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value from ``runs`` repeats, with its 95 % limits."""

    value: float
    low: float
    high: float
    runs: int

    @property
    def half_width(self) -> float:
        """The larger distance from the value to a limit."""
        return max(self.high - self.value, self.value - self.low)


def interval(values: Sequence[float]) -> Interval:
    """Return the trimmed mean of repeats and its limits (Tukey and McLaughlin 1963; Wilcox 2012, §4.3).

    From five repeats on, the highest and lowest fifth are excluded from the value and replaced by their nearest
    neighbours for the limits, so a burst of other work on a shared machine moves neither by much. Raises ValueError
    without values.
    """
    if not values:
        raise ValueError("no repeats, no interval")
    ordered = sorted(values)
    cut = len(ordered) // 5
    kept = ordered[cut : len(ordered) - cut]
    value = statistics.fmean(kept)
    if len(kept) == 1:
        spread = ONE_RUN * abs(value)
        return Interval(value=value, low=value - spread, high=value + spread, runs=len(ordered))
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(winsorized) * math.sqrt(len(ordered)) / len(kept)
    spread = _T95[min(len(kept) - 1, len(_T95)) - 1] * error
    return Interval(value=value, low=value - spread, high=value + spread, runs=len(ordered))


def enough(values: Sequence[float], half_width_max: float) -> bool:
    """Return whether to stop: after ``RUNS_MAX``, or after ``RUNS_MIN`` with limits at most this far from the value."""
    if len(values) < RUNS_MIN:
        return False
    return len(values) >= RUNS_MAX or interval(values).half_width <= half_width_max
