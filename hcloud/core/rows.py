"""Live rows and the changes between two snapshots of them.

Thousands of jobs and instances are live, but few change from one cycle to the next. A :class:`RowJournal` records its
writes. Its snapshots (:class:`RowsByNumber`) are tuples that find in the journal what changed between them, so
that readers (:func:`row_changes`, :class:`FilteredRows`) pay for the changed rows only. Rows are frozen;
:func:`replace_fields` makes the next version of one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

JOURNAL_MAX = 4096
"""Entries after which a new journal is started; the next comparison with an older snapshot reads all rows."""


class Numbered(Protocol):
    """A row with an id that ends in its number: ``job-7``, ``inst-12``."""

    @property
    def id(self) -> str:
        """The id."""
        ...


Row = TypeVar("Row", bound=Numbered)
Change = tuple[Row | None, Row | None]
"""A row before and after; None before: it is new; None after: it is no longer live."""


class RowsByNumber(tuple[Row, ...]):
    """An immutable snapshot of a :class:`RowJournal`: all live rows in order of their number."""

    journal: list[tuple[int, Change[Row]]]
    """Number and change of every write; shared by all snapshots of one set until the journal is restarted."""
    length: int
    """Number of journal entries that this snapshot includes."""
    changes_by_length: dict[int, Sequence[Change[Row]]]
    """Cached results of :meth:`since` by the other snapshot's length: many readers compare with the same one."""

    def since(self, before: Sequence[Row]) -> Sequence[Change[Row]] | None:
        """Return the changes since the snapshot ``before``, by number; None if the journal does not reach back to it.

        Callers must not modify the result.
        """
        if not isinstance(before, RowsByNumber) or before.journal is not self.journal or before.length > self.length:
            return None
        changes = self.changes_by_length.get(before.length)
        if changes is None:
            merged: dict[int, Change[Row]] = {}
            for number, (old, new) in self.journal[before.length : self.length]:
                merged[number] = (merged[number][0] if number in merged else old, new)
            changes = [change for _, change in sorted(merged.items()) if change[0] is not change[1]]
            self.changes_by_length[before.length] = changes
        return changes


class RowJournal(Generic[Row]):
    """The live rows of one kind, by number, with a journal of their changes."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._journal: list[tuple[int, Change[Row]]] = []
        self._snapshot: RowsByNumber[Row] = self._new_snapshot()

    def write(self, written: Mapping[int, Row | None]) -> None:
        """Insert or replace rows by number; None removes the row."""
        rows, highest, in_order = self.rows, next(reversed(self.rows), 0), True
        for number, row in written.items():
            before = rows.pop(number, None) if row is None else rows.get(number)
            if row is not None:
                in_order = in_order and (before is not None or number > highest)
                highest = max(highest, number)
                rows[number] = row
            self._journal.append((number, (before, row)))
        if not in_order:  # new rows have the highest number, except within one transaction
            self.rows = dict(sorted(rows.items()))

    def snapshot(self) -> RowsByNumber[Row]:
        """Return the current snapshot: the same object until the next write."""
        if self._snapshot.length != len(self._journal):
            if len(self._journal) > JOURNAL_MAX:
                self._journal = []
            self._snapshot = self._new_snapshot()
        return self._snapshot

    def _new_snapshot(self) -> RowsByNumber[Row]:
        snapshot = RowsByNumber(self.rows.values())
        snapshot.journal, snapshot.length, snapshot.changes_by_length = self._journal, len(self._journal), {}
        return snapshot


class RowOverlay(Generic[Row]):
    """The rows of one kind with some of them replaced, updated from one snapshot to the next."""

    def __init__(self) -> None:
        self._rows = RowJournal[Row]()
        self._seen: Sequence[Row] = ()

    def of(self, rows: Sequence[Row], replaced: Mapping[int, Row]) -> RowsByNumber[Row]:
        """Return ``rows`` with those ``replaced``, by number.

        Rows that equal those of the last result stay the same objects. A row that was replaced once must be replaced
        until it changes.
        """
        written: dict[int, Row | None] = {}
        for before, now in row_changes(self._seen, rows):
            written[number_of((now or before).id)] = now  # type: ignore[union-attr]
        for number, row in replaced.items():
            kept = self._rows.rows.get(number)
            written[number] = kept if kept == row else row
        self._rows.write({number: row for number, row in written.items() if row is not self._rows.rows.get(number)})
        self._seen = rows
        return self._rows.snapshot()


def row_changes(before: Sequence[Row], now: Sequence[Row]) -> Sequence[Change[Row]]:
    """Return the rows that are not the same objects in ``before`` and ``now``, each with its two versions.

    Takes time proportional to the changes for two snapshots of one :class:`RowJournal`, else to all rows. Callers must
    not modify the result.
    """
    if before is now:
        return []
    recorded = now.since(before) if isinstance(now, RowsByNumber) else None
    if recorded is not None:
        return recorded
    removed = {row.id: row for row in before}
    changes: list[Change[Row]] = [(old, row) for row in now if (old := removed.pop(row.id, None)) is not row]
    return changes + [(old, None) for old in removed.values()]


class FilteredRows(Generic[Row]):
    """The rows that meet a condition, by number, maintained incrementally from one snapshot to the next."""

    __slots__ = ("_includes", "_numbers", "_rows", "_seen")

    def __init__(self, includes: Callable[[Row], bool]) -> None:
        """``includes`` must depend on the row alone: it is called again only for rows that changed."""
        self._includes = includes
        self._numbers: list[int] = []
        self._rows: list[Row] = []
        self._seen: Sequence[Row] = ()

    def of(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of this snapshot that meet the condition.

        The list is reused by the next call: callers must neither keep nor modify it.
        """
        seen, self._seen = self._seen, rows
        for before, now in row_changes(seen, rows):
            if before is not None and self._includes(before):
                at = bisect_left(self._numbers, number_of(before.id))
                del self._numbers[at], self._rows[at]
            if now is not None and self._includes(now):
                number = number_of(now.id)
                at = bisect_left(self._numbers, number)
                self._numbers.insert(at, number)
                self._rows.insert(at, now)
        return self._rows


def by_number(rows: Sequence[Row]) -> Sequence[Row]:
    """Return any rows in order of their number; a snapshot is returned as it is."""
    return rows if isinstance(rows, RowsByNumber) else sorted(rows, key=lambda row: number_of(row.id))


@lru_cache(maxsize=2**17)
def number_of(name: str) -> int:
    """Return the number in ``job-<n>`` or ``inst-<n>``; it orders all rows and breaks every tie."""
    return int(name[name.rindex("-") + 1 :])


Record = TypeVar("Record")
_Setter = Callable[[object, object], None]


def replace_fields(row: Record, **changes: object) -> Record:
    """Return a copy of a frozen dataclass with slots, with ``changes`` applied; faster than ``dataclasses.replace``.

    Neither ``__init__`` nor validation runs.

    Raises:
        TypeError: a field does not exist, or the class has a ``__post_init__``, which would be skipped.
    """
    kind = type(row)
    read, setters = _slots(kind)  # type: ignore[arg-type]
    made: Record = object.__new__(kind)
    for setter, value in zip(setters.values(), read(row), strict=True):
        setter(made, value)
    for name, value in changes.items():
        if name not in setters:
            raise TypeError(f"{kind.__name__} has no field {name!r}; its fields are {', '.join(setters)}")
        setters[name](made, value)
    return made


@cache
def _slots(kind: type) -> tuple[Callable[[object], tuple[object, ...]], Mapping[str, _Setter]]:
    """Return a function that reads all fields of a row of a class, which has several, and the setters of its slots."""
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} has a __post_init__, which would be skipped; use dataclasses.replace")
    names = [each.name for each in fields(kind)]
    return attrgetter(*names), {name: getattr(kind, name).__set__ for name in names}
