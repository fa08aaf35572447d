"""The use of machines over the last day: a row of colours for each."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, takewhile

from markupsafe import Markup

from hcloud.api.context import ApiContext
from hcloud.core.model import Event
from hcloud.forecast.use_history import SLOT_S, SLOTS, USE_KINDS, UseHistory
from hcloud.web import shapes
from hcloud.web.fleet import MachineUse

COLUMNS_MOST = 48
SLOTS_LEAST = 6
"""A row is at least an hour long."""
KNOWN_LEAST_S = 1.0
"""A column of which less is known stays blank."""
READ_AT_ONCE = 1000
RESTS = 3.0
"""While the log is read back, each pause lasts so many times as long as the work before it."""


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One machine over time."""

    use: MachineUse
    colours: Markup
    """Paths of an SVG that is as wide as the map has columns, and 1 high."""
    words: str
    """The same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows of the same columns of time."""

    begin_at: float
    end_at: float
    columns: int
    column_s: float
    rows: Sequence[HeatRow]


def heat_map(uses: Iterable[MachineUse], history: UseHistory, now: float) -> HeatMap | None:
    """Return the use of machines that are up since the first of them came up, at most a day; None: none is up."""
    shown = [each for each in uses if each.instance.ready_at is not None and each.vcpus]
    if not shown:
        return None
    newest = int(now // SLOT_S)
    oldest = min(int((each.instance.ready_at or now) // SLOT_S) for each in shown)
    slots = min(SLOTS, max(SLOTS_LEAST, newest - oldest + 1))
    merged = -(-slots // COLUMNS_MOST)
    columns = -(-slots // merged)
    begin_at, column_s = (newest - columns * merged + 1) * SLOT_S, merged * SLOT_S
    rows = []
    for use in shown:
        known_since = max(history.known_since, use.instance.ready_at or now)
        cpu_s = history.cpu_s(use.id, now)[-columns * merged :]
        shares = []
        for at in range(columns):
            start = begin_at + at * column_s
            known_s = min(now, start + column_s) - max(start, known_since)
            used_s = sum(cpu_s[at * merged : (at + 1) * merged])
            shares.append(min(1.0, used_s / (use.vcpus * known_s)) if known_s >= KNOWN_LEAST_S else None)
        rows.append(HeatRow(use, _colours(shares), _words(use, shares)))
    return HeatMap(begin_at=begin_at, end_at=now, columns=columns, column_s=column_s, rows=rows)


def _colours(shares: Sequence[float | None]) -> Markup:
    """Return a path for each colour; shares that are not known are left out."""
    paths, at = dict[int, str](), 0
    for level, run in groupby(-1 if share is None else shapes.heat(share) for share in shares):
        length = sum(1 for _ in run)
        paths[level] = paths.get(level, "") + f"M{at} 0h{length}v1h-{length}z"
        at += length
    return Markup("".join(f'<path class="h{level}" d="{path}"/>' for level, path in paths.items() if level >= 0))


def _words(use: MachineUse, shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    if not known:
        return f"{use.id}: not known yet"
    mean, least, most = (f"{100 * each:.0f} %" for each in (math.fsum(known) / len(known), min(known), max(known)))
    return f"{use.id}: {mean} of its vCPUs in use, between {least} and {most}"


def use_points(use: MachineUse, history: UseHistory, now: float) -> tuple[list[float], list[float]]:
    """Return times, and the share of the vCPUs (0..1) that was in use in the slot around each, where that is known."""
    first, times, shares = int(now // SLOT_S) - SLOTS + 1, list[float](), list[float]()
    known_since = max(history.known_since, use.instance.ready_at or now)
    for at, used_s in enumerate(history.cpu_s(use.id, now)):
        start = max((first + at) * SLOT_S, known_since)
        end = min((first + at + 1) * SLOT_S, now)
        if end - start >= KNOWN_LEAST_S and use.vcpus:
            times.append((start + end) / 2.0)
            shares.append(min(1.0, used_s / (use.vcpus * (end - start))))
    return times, shares


class EarlierUse:
    """Reads from the log how busy machines were before this daemon followed it, once somebody looks."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is read yet."""
        self._context, self._lock = context, threading.Lock()
        self._read_for: int | None = None
        """``UseHistory.begun_seq`` for which it was read."""

    def read(self) -> threading.Thread | None:
        """Begin to read in a thread of its own; None: it has begun already, or nothing is followed."""
        seq = self._context.use_history.begun_seq
        with self._lock:
            if seq is None or seq == self._read_for:
                return None
            self._read_for = seq
        thread = threading.Thread(target=self._read, args=(seq,), name="earlier-use", daemon=True)
        thread.start()
        return thread

    def _read(self, seq: int) -> None:
        context, history = self._context, self._context.use_history
        since = context.clock.now() - SLOTS * SLOT_S
        found = context.store.iter_events(since=since, kinds=USE_KINDS)
        events = takewhile(lambda event: event.seq <= seq, found)
        while history.begun_seq == seq:
            began_s = time.perf_counter()
            batch: list[Event] = list(islice(events, READ_AT_ONCE))
            if not batch:
                history.join(since, seq)
                return
            history.read_back(batch, seq)
            if context.closing.wait(RESTS * (time.perf_counter() - began_s)):
                return
