"""Spot shortages of a type in a zone: exponential periods of plenty and of shortage in turn.

They follow measured spot markets (SkyPilot's spot traces, NSDI 2024), where all capacity of a type in a zone comes and
goes at once. Each day is drawn independently, so that any time can be computed without the days before it.
"""

from __future__ import annotations

import math

from providers.mock.random_streams import draws_for

DAY_S, HOUR_S = 86_400.0, 3600.0
MAX_DAYS_AHEAD = 400
"""How far ahead the next shortage is searched."""


class SpotShortages:
    """Shortages of one cloud: ``per_h`` begin per hour of plenty and last ``lasts_h`` hours on average."""

    def __init__(self, seed: int, per_h: float, lasts_h: float) -> None:
        self._seed, self._per_h, self._lasts_h = seed, per_h, lasts_h
        self._days: dict[tuple[str, str, int], tuple[tuple[float, float], ...]] = {}

    def is_short(self, zone: str, type_name: str, at: float) -> bool:
        """Return whether a type is short in a zone at a time (Unix seconds)."""
        if not self._per_h:
            return False
        return any(begin <= at < end for begin, end in self._day(zone, type_name, math.floor(at / DAY_S)))

    def next_at(self, zone: str, type_name: str, after: float) -> float:
        """Return when the next shortage begins at or after a time; infinity if never. A current one began before."""
        today = math.floor(after / DAY_S)
        for day in range(today, today + MAX_DAYS_AHEAD) if self._per_h else ():
            for begin, _ in self._day(zone, type_name, day):
                if begin >= after:
                    return begin
        return math.inf

    def _day(self, zone: str, type_name: str, day: int) -> tuple[tuple[float, float], ...]:
        key = (zone, type_name, day)
        found = self._days.get(key)
        if found is None:
            found = self._days[key] = self._drawn(*key)
        return found

    def _drawn(self, zone: str, type_name: str, day: int) -> tuple[tuple[float, float], ...]:
        """Draw the shortages of a day. It begins in one with the long-run share of time in shortage."""
        draws = draws_for(self._seed, "shortage", zone, type_name, day)
        plenty_s, short_s = HOUR_S / self._per_h, HOUR_S * self._lasts_h
        at, ends_at = day * DAY_S, (day + 1) * DAY_S
        found = []
        if draws.random() >= short_s / (short_s + plenty_s):
            at += float(draws.exponential(plenty_s))
        while at < ends_at:
            until = at + float(draws.exponential(short_s))
            found.append((at, min(until, ends_at)))
            at = until + float(draws.exponential(plenty_s))
        return tuple(found)
