"""Run times remembered for each value of a combination of features: bounded in number, each of 80 bytes.

A run time is remembered as the bin of a logarithmic grid. Of a history the latest 32 runs are kept, of the 96 before
every fourth and of the 384 before those every sixteenth. So one history serves all decays: a run's weight follows from
its place. When there are too many values, those not seen for longest are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hcloud.forecast.runtimes.distribution import LONGEST_S, SHORTEST_S, Floats

Codes = NDArray[np.uint8]
Counts = NDArray[np.uint16]
Integers = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

BINS = 176
"""Bins of the grid, each 11 % longer than the one before."""
BIN_WIDTH = math.log(LONGEST_S / SHORTEST_S) / BINS
"""Width of a bin, in natural logarithms of seconds."""
EDGES_S: Floats = SHORTEST_S * np.exp(BIN_WIDTH * np.arange(BINS + 1))
"""Limits of the bins in seconds, shape ``(BINS + 1,)``."""
EDGES_S.setflags(write=False)  # all distributions share them
COARSE = 4
"""Bins that share one code for runs that were stopped."""
CENSORED = BINS
"""Code of a run stopped in the first ``COARSE`` bins; those stopped later have the codes that follow."""
EMPTY = 255
"""Code of a place without a run."""
LEVELS = ((32, 1), (24, 4), (24, 16))
"""Parts of a history from the latest runs on: how many it keeps, and of how many it keeps one."""
PLACES = sum(kept for kept, _ in LEVELS)
_STRIDES: Floats = np.concatenate([np.full(kept, float(stride)) for kept, stride in LEVELS])
_AGES: Floats = np.cumsum(_STRIDES) - 0.5 * (_STRIDES + 1.0)
_STARTS = np.cumsum([0, *(kept for kept, _ in LEVELS)]).tolist()
COUNTED = int(_STRIDES.sum()) + LEVELS[-1][1]
"""Counts of runs are kept to this limit, at which a history is full."""
FIRST_ROWS = 256
NEVER = -(2**62)
FORGOTTEN_SHARE = 1 / 16
"""Share of the values forgotten at once when there are too many."""


def bin_of(run_s: float) -> int:
    """Return the bin of a run time in seconds."""
    on_grid_s = min(max(run_s, SHORTEST_S), LONGEST_S)
    return min(BINS - 1, int(math.log(on_grid_s / SHORTEST_S) / BIN_WIDTH))


def decay_weights(decays: Sequence[float]) -> Floats:
    """Return how much each place of a history counts under each decay, shape ``(decays, PLACES)``."""
    return np.stack([_STRIDES * decay**_AGES for decay in decays])


def weights_by_count(decays: Sequence[float]) -> Floats:
    """Return the total weight of a history under each decay by its number of runs, shape ``(COUNTED + 1, decays)``."""
    weights, table = decay_weights(decays), HistoryTable(limit=1)
    row, found = table.rows_to_extend([1]), [np.zeros(len(decays))]
    for _ in range(COUNTED):
        table.extend(row, 0)
        found.append(weights @ (table.codes[row[0]] != EMPTY))
    return np.stack(found)


@dataclass(slots=True, eq=False)
class KeyIndex:
    """Rows of a table by 64-bit key. Row 0 stays empty: that of all keys without one. Grows up to a limit."""

    limit: int
    """Maximum number of keys."""
    rows: dict[int, int] = field(default_factory=dict)
    """Row of each key, in the order of rows."""
    last_used: Integers = field(default_factory=lambda: np.full(FIRST_ROWS, NEVER, np.int64))
    """When each row was used last, in observations; row 0 never."""

    def make_room(self, number: int) -> Integers | None:
        """Forget the keys not used for longest unless ``number`` more fit; return the rows that stay, None if all."""
        count = len(self.rows)
        if count + number <= self.limit:
            return None
        forgotten = min(count, max(count + number - self.limit, int(self.limit * FORGOTTEN_SHARE)))
        order = np.argsort(self.last_used[1 : count + 1], kind="stable")
        stay = np.concatenate(([0], np.sort(order[forgotten:]) + 1))
        keys = list(self.rows)
        self.rows = {keys[row - 1]: at for at, row in enumerate(stay.tolist()) if row}
        self.last_used[: len(stay)] = self.last_used[stay]
        return stay

    def add(self, key: int, now: int) -> int:
        """Return the row of a key, which gets the next one if it has none; used ``now``."""
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = len(self.rows) + 1
            self.reserve(row)
        self.last_used[row] = now
        return row

    def copy(self) -> KeyIndex:
        """Return an index of its own with the same rows."""
        return KeyIndex(self.limit, self.rows.copy(), self.last_used.copy())

    def reserve(self, row: int) -> None:
        """Make the arrays long enough for a row."""
        while row >= len(self.last_used):
            self.last_used = grown(self.last_used, self.limit)


def grown(table: NDArray[Number], limit: int) -> NDArray[Number]:
    """Return a table with twice as many rows, but no more than ``limit`` and one; the new ones are zero."""
    more = max(1, min(len(table), limit + 1 - len(table)))
    return np.concatenate((table, np.zeros((more, *table.shape[1:]), table.dtype)))


@dataclass(slots=True, eq=False)
class HistoryTable:
    """The histories of all values of all combinations."""

    limit: int
    """Maximum number of values; a value takes 250 bytes."""
    index: KeyIndex = field(init=False)
    """Row of each value's key."""
    codes: Codes = field(init=False)
    """Codes of the runs, latest first, shape ``(rows, PLACES)``."""
    counts: Counts = field(init=False)
    """Number of runs, at most ``COUNTED``, shape ``(rows,)``."""
    now: int = 0
    """Number of runs observed."""

    def __post_init__(self) -> None:
        self.index = KeyIndex(self.limit)
        self.codes = np.full((FIRST_ROWS, PLACES), EMPTY, np.uint8)
        self.counts = np.zeros(FIRST_ROWS, np.uint16)

    def copy(self) -> HistoryTable:
        """Return a table of its own with the same histories."""
        other = object.__new__(HistoryTable)
        other.limit, other.now = self.limit, self.now
        other.index, other.codes, other.counts = self.index.copy(), self.codes.copy(), self.counts.copy()
        return other

    def rows_to_read(self, keys: Sequence[int]) -> list[int]:
        """Return the row of each key; 0, an empty history, for those without one."""
        found = self.index.rows
        return [found.get(key, 0) for key in keys]

    def rows_to_extend(self, keys: Sequence[int]) -> list[int]:
        """Return the row of each of the distinct keys, which get one; others may be forgotten for them."""
        if (stay := self.index.make_room(len(keys))) is not None:
            self.codes[: len(stay)], self.counts[: len(stay)] = self.codes[stay], self.counts[stay]
            self.codes[len(stay) :], self.counts[len(stay) :] = EMPTY, 0
        rows = [self.index.add(key, self.now) for key in keys]
        while len(self.counts) < len(self.index.last_used):
            old = len(self.codes)
            self.codes, self.counts = grown(self.codes, self.limit), grown(self.counts, self.limit)
            self.codes[old:] = EMPTY
        return rows

    def extend(self, rows: Sequence[int], code: int) -> None:
        """Add one run to histories of distinct rows, other than 0."""
        at = np.asarray(rows)
        codes, counts = self.codes[at], self.counts[at]
        for level in range(len(LEVELS) - 1, 0, -1):
            begin, end = _STARTS[level], _STARTS[level + 1]
            due = counts % LEVELS[level][1] == 0
            codes[due, begin + 1 : end] = codes[due, begin : end - 1]
            codes[due, begin] = codes[due, begin - 1]
        codes[:, 1 : _STARTS[1]] = codes[:, : _STARTS[1] - 1]
        codes[:, 0] = code
        self.codes[at] = codes
        # A full history counts on in steps of its rarest part, so that the places keep their turns.
        counts += 1
        self.counts[at] = np.where(counts > COUNTED, counts - LEVELS[-1][1], counts)
        self.now += 1
