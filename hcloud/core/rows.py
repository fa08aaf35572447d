"""Rows that live, in order of their number, and what changed between two states of them.

Thousands of rows live, of which a few change from one cycle to the next: whoever follows them looks at those only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any, Generic, Protocol, TypeVar

KEPT = 4096
"""So many changes are remembered before it is begun anew; who followed none of them looks at all rows once."""


class Numbered(Protocol):
    """Something with an id that ends in its number: ``job-7``, ``inst-12``."""

    @property
    def id(self) -> str:
        """The id."""
        ...


Row = TypeVar("Row", bound=Numbered)
Change = tuple[Row | None, Row | None]
"""A row as it was and as it is; None: there was none before, or it lives no more."""


class RowsByNumber(tuple[Row, ...]):
    """All rows that live at one moment, by number; made by :class:`Living`, which knows what was written since when."""

    journal: list[tuple[int, Change[Row]]]
    """What was written, each with its number: up to ``written`` before these, then after them."""
    written: int
    told: dict[int, Sequence[Change[Row]]]
    """What changed since an earlier state, by what was written up to then: many follow from the same state."""

    def since(self, before: Sequence[Row]) -> Sequence[Change[Row]] | None:
        """Return what changed since ``before``, by number; None where that is not known. Nobody may change it."""
        if not isinstance(before, RowsByNumber) or before.journal is not self.journal or before.written > self.written:
            return None
        found = self.told.get(before.written)
        if found is None:
            found = self.told[before.written] = self._since(before.written)
        return found

    def _since(self, written: int) -> Sequence[Change[Row]]:
        found: dict[int, Change[Row]] = {}
        for number, (was, now) in self.journal[written : self.written]:
            found[number] = (found[number][0] if number in found else was, now)
        return [change for _, change in sorted(found.items()) if change[0] is not change[1]]


class RowSet(Generic[Row]):
    """Keeps the rows that live, by number."""

    def __init__(self) -> None:
        """Know of none."""
        self.rows: dict[int, Row] = {}
        self._journal: list[tuple[int, Change[Row]]] = []
        self._state: RowsByNumber[Row] = self._as_now()

    def take(self, written: Mapping[int, Row | None]) -> None:
        """Replace in place, append what is new, drop what ended."""
        rows, highest, in_order = self.rows, next(reversed(self.rows), 0), True
        for number, row in written.items():
            before = rows.pop(number, None) if row is None else rows.get(number)
            if row is not None:
                in_order = in_order and (before is not None or number > highest)
                highest = max(highest, number)
                rows[number] = row
            self._journal.append((number, (before, row)))
        if not in_order:  # new ones have the highest number, unless they were written at one stroke
            self.rows = dict(sorted(rows.items()))

    def now(self) -> RowsByNumber[Row]:
        """Return the rows as they are: the same object while none is written."""
        if self._state.written != len(self._journal):
            if len(self._journal) > KEPT:
                self._journal = []
            self._state = self._as_now()
        return self._state

    def _as_now(self) -> RowsByNumber[Row]:
        state = RowsByNumber(self.rows.values())
        state.journal, state.written, state.told = self._journal, len(self._journal), {}
        return state


def row_changes(before: Sequence[Row], now: Sequence[Row]) -> Sequence[Change[Row]]:
    """Return which rows are not the same objects in two states, each as it was and as it is; at the cost of what
    changed where that is known (:class:`Rows`), else of all. Nobody may change what is returned."""
    if before is now:
        return []
    told = now.since(before) if isinstance(now, RowsByNumber) else None
    if told is not None:
        return told
    there = {row.id: row for row in before}
    found: list[Change[Row]] = [(was, row) for row in now if (was := there.pop(row.id, None)) is not row]
    return found + [(gone, None) for gone in there.values()]


class FilteredRows(Generic[Row]):
    """Those of the rows that are ``wanted``, by number; followed at the cost of what changed."""

    __slots__ = ("_numbers", "_rows", "_seen", "_wanted")

    def __init__(self, wanted: Callable[[Row], bool]) -> None:
        """Have none yet; whether a row is wanted must follow from it alone."""
        self._wanted = wanted
        self._numbers: list[int] = []
        self._rows: list[Row] = []
        self._seen: Sequence[Row] = ()

    def of(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return those of ``rows`` that are wanted. They change with the next call: nobody may keep or change them."""
        seen, self._seen = self._seen, rows
        for before, now in row_changes(seen, rows):
            if before is not None and self._wanted(before):
                self._drop(before)
            if now is not None and self._wanted(now):
                self._put(now)
        return self._rows

    def _put(self, row: Row) -> None:
        number = number_of(row.id)
        at = bisect_left(self._numbers, number)
        self._numbers.insert(at, number)
        self._rows.insert(at, row)

    def _drop(self, row: Row) -> None:
        at = bisect_left(self._numbers, number_of(row.id))
        del self._numbers[at], self._rows[at]


def by_number(rows: Sequence[Row]) -> Sequence[Row]:
    """Return rows in order of their number, whatever theirs is: the same object where they are known to be in it."""
    return rows if isinstance(rows, RowsByNumber) else sorted(rows, key=lambda row: number_of(row.id))


@lru_cache(maxsize=2**17)
def number_of(name: str) -> int:
    """Return the number in ``job-<n>`` or ``inst-<n>``; it orders everything and breaks every tie."""
    return int(name[name.rindex("-") + 1 :])


Record = TypeVar("Record")
_Setter = Callable[[object, object], None]


def replace_fields(row: Record, **changes: object) -> Record:
    """Return a frozen row of slots with other values.

    Its class must derive nothing of them (``__post_init__``), as no ``__init__`` runs. Raises TypeError for a name that
    it does not have.
    """
    kind = type(row)
    copied, setters = _slots_of(kind)  # type: ignore[arg-type]
    made: Record = copied(row)
    for name, value in changes.items():
        if name not in setters:
            raise TypeError(f"{kind.__name__} has no {name!r}; it has {', '.join(setters)}")
        setters[name](made, value)
    return made


@cache
def _slots_of(kind: type) -> tuple[Callable[[object], Any], Mapping[str, _Setter]]:
    """Return what copies rows of a kind, written out as ``__init__`` of a dataclass is (a loop takes half as long
    again), and what sets each of their slots."""
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} derives values when it is made; use dataclasses.replace")
    setters = {each.name: getattr(kind, each.name).__set__ for each in fields(kind)}
    lines = [f"    set_{name}(made, row.{name})" for name in setters]
    known = {"new": object.__new__, "kind": kind, **{f"set_{name}": setter for name, setter in setters.items()}}
    exec("\n".join(["def copied(row):", "    made = new(kind)", *lines, "    return made"]), known)
    return known["copied"], setters
