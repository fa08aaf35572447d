"""From events to stretches of time of a commitment: how much of it was used, from when to when, at what price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from hcloud.core.model import Event, EventKind, Market
from hcloud.core.pricing import HOUR_S
from hcloud.report.grouping import Grouping, number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentStretch:
    """An interval in which the size, the use and the price of a commitment did not change."""

    pool: str
    """``provider/name``; the pool of its machines, if it is for one type in one zone."""
    since: float
    until: float
    count: float
    unused: float
    usd_per_h: float

    @property
    def used_h(self) -> float:
        """Return the committed hours that some machine of the account used."""
        return (self.count - self.unused) * (self.until - self.since) / HOUR_S

    @property
    def unused_h(self) -> float:
        """Return the committed hours that no machine of the account used."""
        return self.unused * (self.until - self.since) / HOUR_S

    @property
    def unused_usd(self) -> float:
        """Return what was paid for the hours that no machine used."""
        return self.unused_h * self.usd_per_h

    def keys(self, grouping: Grouping, filler: str) -> list[tuple[tuple[str, ...], float]]:
        """Return the row keys in a grouping, each with its part (0..1); ``filler`` is the row if rows are of jobs."""
        if grouping.of_jobs:
            return [(grouping.filler(filler), 1.0)]
        if grouping.kind == "day":
            length_s = self.until - self.since
            return [((grouping.day_of(a),), (b - a) / length_s) for a, b in grouping.days(self.since, self.until)]
        return [((self.pool if grouping.kind == "pool" else Market.RESERVED.value,), 1.0)]


class CommitmentHistory:
    """Reads events in order and yields every stretch of a commitment between ``since`` and ``until`` once."""

    def __init__(self, since: float, until: float) -> None:
        self.since = since
        self.until = until
        self._open: dict[tuple[str, str, str], Event] = {}

    def take(self, event: Event) -> Iterator[CommitmentStretch]:
        """Apply one event; yield the stretch that it ends."""
        if event.kind is not EventKind.COMMITMENT:
            return
        key = (text(event, "provider"), text(event, "commitment_kind"), text(event, "commitment"))
        before = self._open.pop(key, None)
        if before is not None:
            yield from self._stretch(before, event.at)
        if number(event, "count") > 0:
            self._open[key] = event

    def finish(self) -> Iterator[CommitmentStretch]:
        """Yield the remaining stretches up to ``until``, after the last event."""
        for event in self._open.values():
            yield from self._stretch(event, self.until)

    def _stretch(self, event: Event, until: float) -> Iterator[CommitmentStretch]:
        since, until = max(event.at, self.since), min(until, self.until, number(event, "ends_at", inf))
        if since < until:
            yield CommitmentStretch(
                pool=f"{text(event, 'provider')}/{text(event, 'commitment')}",
                since=since,
                until=until,
                count=number(event, "count"),
                unused=number(event, "unused"),
                usd_per_h=number(event, "usd_per_h"),
            )
