"""The distribution of load over time, and its steady part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.core.errors import BadInput
from hcloud.core.pricing import HOUR_S

Floats = NDArray[np.float64]
STEADY_PART = 0.95
"""The steady load is the load needed at least this share of the time."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """A step function: ``levels[n]`` (machines, or any unit) holds from ``times[n]`` to ``times[n + 1]``."""

    times: Floats
    """Ascending, shape ``(N + 1,)``."""
    levels: Floats
    """Not negative, shape ``(N,)``."""

    @classmethod
    def of(cls, samples: Iterable[tuple[float, float]], until_at: float | None = None) -> LoadCurve:
        """Build a curve from (time, level) samples in any order; the last level holds until ``until_at``.

        Without ``until_at`` the last level holds for the median interval between samples. Raises BadInput with fewer
        than two times, or for a level that is negative or not finite.
        """
        found = dict(sorted(samples))
        times, levels = np.array(list(found), dtype=np.float64), np.array(list(found.values()), dtype=np.float64)
        if times.size and not (np.isfinite(levels).all() and np.isfinite(times).all() and levels.min() >= 0):
            raise BadInput("a load is negative or not finite; it must be the number of machines needed, 0 or more")
        if until_at is None and times.size >= 2:
            until_at = float(times[-1] + np.median(np.diff(times)))
        if until_at is None or times.size < 1 or until_at <= times[-1]:
            raise BadInput("a load needs at least two times, so that the duration of each level is known")
        return cls(np.append(times, until_at), levels)

    @property
    def seconds(self) -> Floats:
        """Duration of each level, shape ``(N,)``."""
        lasted: Floats = np.diff(self.times)
        return lasted

    @property
    def mean(self) -> float:
        """The time-weighted mean load."""
        return float(np.average(self.levels, weights=self.seconds))

    @property
    def peak(self) -> float:
        """The highest load."""
        return float(self.levels.max())

    def quantile(self, part: float) -> float:
        """Return the lowest level that suffices for ``part`` (0..1) of the time."""
        order = np.argsort(self.levels, kind="stable")
        covered = np.cumsum(self.seconds[order]) / self.seconds.sum()
        return float(self.levels[order][min(int(np.searchsorted(covered, part - 1e-12)), order.size - 1)])

    @property
    def steady(self) -> float:
        """The steady load, which HCloud covers with reserved capacity (§8.4.1)."""
        return self.quantile(1.0 - STEADY_PART)

    def use_of_layers(self) -> Floats:
        """Return the share of time (0..1) in which the first, second, ... unit of capacity is in use; descending.

        Shape ``(ceil(peak),)``; the sum is the mean load.
        """
        count = int(np.ceil(self.peak - 1e-9))
        weights = self.seconds / self.seconds.sum()
        whole = np.floor(self.levels).astype(np.int64)
        # A level uses its integer part fully and one more unit partly. No loop over units: there may be 100,000.
        at_most = np.bincount(whole, weights, count + 1).astype(np.float64)
        partly = np.bincount(whole, weights * (self.levels - whole), count + 1).astype(np.float64)
        more = np.cumsum(at_most[::-1])[::-1]
        use: Floats = more[1 : count + 1] + partly[:count]
        return use

    def scaled(self, factor: float) -> LoadCurve:
        """Return the curve with all levels multiplied by ``factor``."""
        return LoadCurve(self.times, self.levels * factor)

    def per_clock_hour(self) -> LoadCurve:
        """Return the mean load of each clock hour (UTC): as AWS bills Reserved Instances and Savings Plans.

        Time before the first sample has no load. The last hour is left out if it is not over, unless it is the only
        one.
        """
        first = float(np.floor(self.times[0] / HOUR_S) * HOUR_S)
        hours = max(1, int(np.floor((self.times[-1] - first) / HOUR_S)))
        edges = first + HOUR_S * np.arange(hours + 1, dtype=np.float64)
        held = np.concatenate(([0.0], np.cumsum(self.levels * self.seconds)))
        return LoadCurve(edges, np.diff(np.interp(edges, self.times, held)) / HOUR_S)

    def parts(self, length_s: float) -> list[LoadCurve]:
        """Return the curve in pieces of ``length_s``; a shorter remainder is dropped."""
        first, found = float(self.times[0]), list[LoadCurve]()
        while first + length_s <= self.times[-1] + 1e-9:
            edges = [first, *self.times[(self.times > first) & (self.times < first + length_s)], first + length_s]
            held = np.searchsorted(self.times, np.array(edges[:-1]), side="right") - 1
            found.append(LoadCurve(np.array(edges, dtype=np.float64), self.levels[held]))
            first += length_s
        return found
