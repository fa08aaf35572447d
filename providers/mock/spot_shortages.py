"""Spot shortages of a type in a zone: periods of plenty and of shortage in turn.

They follow measured spot markets (SkyPilot's spot traces, NSDI 2024), where all capacity of a type in a zone comes and
goes at once. They are drawn, exponential in time, or follow a recorded history: its availability, or else its placement
scores, of which a score of 1 to 10 stands for plenty in a tenth to all of the time. Each day is drawn independently, so
that any time can be computed without the days before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from providers.mock.random_streams import draws_for
from providers.mock.spot_history import by_pool, next_in, outage_starts

DAY_S, HOUR_S = 86_400.0, 3600.0
MAX_DAYS_AHEAD = 400
"""How far ahead the next shortage is searched."""
HIGHEST_SCORE = 10.0


class SpotShortages:
    """Shortages of one cloud: ``per_h`` begin per hour of plenty and last ``lasts_h`` hours on average.

    ``available`` (1 or 0) and ``scores`` are recorded values over time by ``ZONE/TYPE``.
    """

    def __init__(
        self,
        seed: int,
        per_h: float,
        lasts_h: float,
        available: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        scores: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    ) -> None:
        self._seed, self._per_h, self._lasts_h = seed, per_h, lasts_h
        self._available, self._scores = by_pool(available or {}), by_pool(scores or {})
        self._outages = {pool: outage_starts(each) for pool, each in self._available.items()}
        self._days: dict[tuple[str, str, int], tuple[tuple[float, float], ...]] = {}

    def is_short(self, zone: str, type_name: str, at: float) -> bool:
        """Return whether a type is short in a zone at a time (Unix seconds)."""
        if (available := self._available.get((zone, type_name))) is not None:
            return not available.value(at)
        if not self._can_be_short(zone, type_name):
            return False
        return any(begin <= at < end for begin, end in self._day(zone, type_name, math.floor(at / DAY_S)))

    def next_at(self, zone: str, type_name: str, after: float) -> float:
        """Return when the next shortage begins at or after a time; infinity if never. A current one began before."""
        if (outages := self._outages.get((zone, type_name))) is not None:
            return next_in(outages, after)
        today = math.floor(after / DAY_S)
        for day in range(today, today + MAX_DAYS_AHEAD) if self._can_be_short(zone, type_name) else ():
            for begin, _ in self._day(zone, type_name, day):
                if begin >= after:
                    return begin
        return math.inf

    def _can_be_short(self, zone: str, type_name: str) -> bool:
        scores = self._scores.get((zone, type_name))
        return self._per_h > 0 if scores is None else min(scores.values) < HIGHEST_SCORE

    def _day(self, zone: str, type_name: str, day: int) -> tuple[tuple[float, float], ...]:
        key = (zone, type_name, day)
        found = self._days.get(key)
        if found is None:
            found = self._days[key] = self._drawn(*key)
        return found

    def _drawn(self, zone: str, type_name: str, day: int) -> tuple[tuple[float, float], ...]:
        """Draw the shortages of a day. It begins in one with the long-run share of time in shortage."""
        draws = draws_for(self._seed, "shortage", zone, type_name, day)
        short_s = HOUR_S * self._lasts_h
        at, ends_at = day * DAY_S, (day + 1) * DAY_S
        found = []
        if draws.random() >= self._short_share(zone, type_name, at):
            at = self._next_start(zone, type_name, at, ends_at, draws)
        while at < ends_at:
            until = at + float(draws.exponential(short_s))
            found.append((at, min(until, ends_at)))
            at = self._next_start(zone, type_name, until, ends_at, draws)
        return tuple(found)

    def _short_share(self, zone: str, type_name: str, at: float) -> float:
        """Return the long-run share of the time in shortage, as of a time."""
        if (scores := self._scores.get((zone, type_name))) is not None:
            return 1.0 - scores.value(at) / HIGHEST_SCORE
        plenty_s, short_s = HOUR_S / self._per_h, HOUR_S * self._lasts_h
        return short_s / (short_s + plenty_s)

    def _next_start(self, zone: str, type_name: str, at: float, ends_at: float, draws: np.random.Generator) -> float:
        """Draw when the next shortage begins after ``at``; any time from ``ends_at`` on stands for none before it."""
        scores = self._scores.get((zone, type_name))
        if scores is None:
            return at + float(draws.exponential(HOUR_S / self._per_h))
        # The rate of shortages changes with the score: what is drawn is the number of expected shortages until then.
        expected = float(draws.exponential(1.0))
        while at < ends_at:
            short = self._short_share(zone, type_name, at)
            rate_per_s = short / ((1.0 - short) * HOUR_S * self._lasts_h)
            until = min(ends_at, scores.next_change(at))
            if rate_per_s * (until - at) >= expected:
                return at + expected / rate_per_s
            expected -= rate_per_s * (until - at)
            at = until
        return math.inf
