"""Recorded spot markets: prices, availability and placement scores by zone and type, as steps over time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

HOUR_S = 3600.0
Pool = tuple[str, str]
"""Zone and type."""


class Steps:
    """A value over time that holds from each of its times to the next. The first also holds before, the last after."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.at = [at for at, _ in points]
        self.values = [value for _, value in points]

    def value(self, at: float) -> float:
        """Return the value at a time (Unix seconds)."""
        return self.values[max(0, bisect_right(self.at, at) - 1)]

    def next_change(self, after: float) -> float:
        """Return the first time after ``after`` at which the value changes; infinity if it does not."""
        place = max(1, bisect_right(self.at, after))
        return self.at[place] if place < len(self.at) else math.inf

    def last_change(self, until: float) -> float:
        """Return the last time up to ``until`` at which the value changed; minus infinity if it has not."""
        place = bisect_right(self.at, until) - 1
        return self.at[place] if place > 0 else -math.inf

    def integral(self, from_at: float, to_at: float) -> float:
        """Return the sum of value x seconds from one time to another."""
        parts, at = [], from_at
        while at < to_at:
            until = min(to_at, self.next_change(at))
            parts.append(self.value(at) * (until - at))
            at = until
        return math.fsum(parts)


class SpotPrices:
    """Recorded prices of some pools, in USD per hour."""

    def __init__(self, prices: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        self._pools = by_pool(prices)
        self._changes = sorted({at for each in self._pools.values() for at in each.at[1:]})

    def get(self, zone: str, type_name: str) -> Steps | None:
        """Return the prices of a pool, or None if they are not recorded."""
        return self._pools.get((zone, type_name))

    def changes_until(self, now: float) -> int:
        """Return the number of times up to ``now`` at which any of the prices changed."""
        return bisect_right(self._changes, now)

    def last_change(self, pools: Iterable[Pool], until: float) -> float:
        """Return when the price of one of these pools last changed; minus infinity if none has."""
        known = (self._pools[pool] for pool in pools if pool in self._pools)
        return max((each.last_change(until) for each in known), default=-math.inf)

    def next_change(self, pools: Iterable[Pool], after: float) -> float:
        """Return when the price of one of these pools next changes; infinity if none does."""
        known = (self._pools[pool] for pool in pools if pool in self._pools)
        return min((each.next_change(after) for each in known), default=math.inf)


def by_pool(settings: Mapping[str, Sequence[tuple[float, float]]]) -> dict[Pool, Steps]:
    """Return steps by zone and type, of settings by ``ZONE/TYPE``."""
    found = {}
    for key, points in settings.items():
        zone, _, type_name = key.rpartition("/")
        found[zone, type_name] = Steps(points)
    return found


def outage_starts(available: Steps) -> list[float]:
    """Return the times at which what was available no longer is."""
    pairs = zip(available.values, available.values[1:], available.at[1:], strict=False)
    return [at for before, after, at in pairs if before and not after]


def next_in(times: Sequence[float], after: float) -> float:
    """Return the first of some sorted times that is not before ``after``; infinity if there is none."""
    place = bisect_left(times, after)
    return times[place] if place < len(times) else math.inf
