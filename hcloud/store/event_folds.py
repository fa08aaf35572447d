"""Events of ended tasks of arrays, folded: the rows of many tasks in one compressed row, from which each can be read.

A task has about ten events, most of whose text it shares with all others of its array. A fold keeps every column of
them but the digests of the chain, which follow from the rest: `hcloud.store.chain` computes them where it needs them.
An event is at any time in exactly one place: a row of the event log, or one fold.
"""

from __future__ import annotations

import json
import lzma
import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, starmap
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, delete, func, insert, select, update

from hcloud.core.errors import StoreError
from hcloud.core.model import EventKind
from hcloud.store import schema

FOLDED_LEAST: Final = 200
"""So many ended tasks of an array are folded at once, or all that are left when the array has ended."""
FOLDED_MOST: Final = 400
"""Tasks of one fold: a reader of one task decompresses those of all."""
KEPT_FOLDS: Final = 3
"""Folds that a store keeps decompressed for readers of page after page, about a megabyte each."""
_PRESET: Final = 1
_SAMPLE: Final = EventKind.SAMPLE.value
_seq = attrgetter("seq")
_log, _fold = schema.event_log.c, schema.event_fold.c


class EventRow(NamedTuple):
    """A row of the event log; one of a fold has no digest."""

    seq: int
    at: float
    kind: str
    job_number: int | None
    instance_number: int | None
    user_name: str | None
    actor: str
    fields: str
    link: int | None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are asked for; None: all."""

    after_seq: int | None = None
    before_seq: int | None = None
    since: float | None = None
    until: float | None = None
    job_numbers: frozenset[int] | None = None
    instance_number: int | None = None
    kinds: frozenset[str] | None = None

    def takes(self, row: EventRow) -> bool:
        """Return whether a row is asked for."""
        return (
            (self.after_seq is None or row.seq > self.after_seq)
            and (self.before_seq is None or row.seq < self.before_seq)
            and (self.since is None or row.at >= self.since)
            and (self.until is None or row.at < self.until)
            and (self.job_numbers is None or row.job_number in self.job_numbers)
            and self.instance_number in (None, row.instance_number)
            and (self.kinds is None or row.kind in self.kinds)
        )

    def query(self) -> Select[Any]:
        """Return the query of the rows of the event log, in no order."""
        return select(schema.event_log).where(
            *_given(_log.seq.__gt__, self.after_seq),
            *_given(_log.seq.__lt__, self.before_seq),
            *_given(_log.at.__ge__, self.since),
            *_given(_log.at.__lt__, self.until),
            *_given(_log.job_number.in_, None if self.job_numbers is None else sorted(self.job_numbers)),
            *_given(_log.instance_number.__eq__, self.instance_number),
            *_given(_log.kind.in_, None if self.kinds is None else sorted(self.kinds)),
        )

    def fold_query(self) -> Select[Any]:
        """Return the query of the folds that may have events that are asked for, in no order, without their content."""
        columns = (
            _fold.first_seq, _fold.last_seq, _fold.kinds, _fold.instances, _fold.sample_count,
            _fold.first_job, _fold.last_job,
        )  # fmt: skip
        numbers = self.job_numbers
        return select(*columns).where(
            *_given(_fold.last_seq.__gt__, self.after_seq),
            *_given(_fold.first_seq.__lt__, self.before_seq),
            *_given(_fold.last_at.__ge__, self.since),
            *_given(_fold.first_at.__lt__, self.until),
            *_given(_fold.last_job.__ge__, min(numbers, default=0) if numbers is not None else None),
            *_given(_fold.first_job.__le__, max(numbers, default=0) if numbers is not None else None),
        )

    def may_take_of(self, fold: Row[Any]) -> bool:
        """Return whether a fold may have events that are asked for, by its kinds, instances and jobs."""
        return (
            (self.kinds is None or not self.kinds.isdisjoint(json.loads(fold.kinds)))
            and (self.instance_number is None or self.instance_number in json.loads(fold.instances))
            and (self.job_numbers is None or any(fold.first_job <= each <= fold.last_job for each in self.job_numbers))
        )


@dataclass(slots=True)
class FoldCache:
    """Decompressed folds by their first event: the ``most`` last used, or all until they are dropped."""

    most: float = math.inf
    _folds: dict[tuple[int, int], list[EventRow]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, connection: Connection, fold: Row[Any]) -> list[EventRow]:
        """Return the events of a fold, in order. Raises StoreError: it cannot be read."""
        key = (fold.first_seq, fold.sample_count)
        with self._lock:
            found = self._folds.pop(key, None)
        if found is None:
            content = select(_fold.content, _fold.samples).where(_fold.first_seq == fold.first_seq)
            row = connection.execute(content).one()
            found = _unfolded(fold.first_seq, row.content, row.samples)
        with self._lock:
            while len(self._folds) >= self.most:
                del self._folds[next(iter(self._folds))]
            self._folds[key] = found
        return found

    def drop_before(self, seq: int) -> None:
        """Forget the folds all of whose events are before ``seq``."""
        self._folds = {key: rows for key, rows in self._folds.items() if rows and rows[-1].seq >= seq}


def read_events(
    connection: Connection, wanted: EventFilter, cache: FoldCache, *, limit: int, newest: bool = False
) -> list[Any]:
    """Return rows of events, folded or not, in order: the first ``limit`` that are asked for, or the last ones.

    Raises StoreError: a fold cannot be read.
    """
    if limit < 1:
        return []
    order = (_log.seq.desc(), _fold.last_seq.desc()) if newest else (_log.seq, _fold.first_seq)
    found: list[Any] = list(connection.execute(wanted.query().order_by(order[0]).limit(limit)))
    found.sort(key=_seq)
    for fold in connection.execute(wanted.fold_query().order_by(order[1])).all():
        if not wanted.may_take_of(fold):
            continue
        if len(found) == limit and (fold.last_seq < found[0].seq if newest else fold.first_seq > found[-1].seq):
            break
        rows = cache.rows(connection, fold)
        if wanted.after_seq is not None:
            rows = rows[bisect_right(rows, wanted.after_seq, key=_seq) :]
        if not newest and len(found) == limit:
            rows = rows[: bisect_left(rows, found[-1].seq, key=_seq)]
        found = sorted([*found, *(each for each in rows if wanted.takes(each))], key=_seq)
        found = found[-limit:] if newest else found[:limit]
    return found


def first_seq_since(connection: Connection, since: float) -> int | None:
    """Return the smallest number that an event since ``since`` may have; None: there is none."""
    queries = (
        select(func.min(_log.seq)).where(_log.at >= since),
        select(func.min(_fold.first_seq)).where(_fold.last_at >= since),
    )
    return min((seq for each in queries if (seq := connection.execute(each).scalar()) is not None), default=None)


# ------------------------------------------------------------------------------------------------------------- folding
def fold_events(connection: Connection, array_number: int, last_number: int, *, at_least: int) -> int:
    """Fold the events of those tasks of an array that have no row any more, if there are ``at_least`` such tasks.

    Return the number of the tasks folded. The transaction must have excluded all other writers.
    """
    with_row = select(schema.job.c.number).where(schema.job.c.array_number == array_number)
    of_ended = (_log.job_number > array_number) & (_log.job_number <= last_number) & _log.job_number.not_in(with_row)
    numbers = select(_log.job_number).where(of_ended).distinct().order_by(_log.job_number)
    tasks = connection.execute(numbers).scalars().all()
    if len(tasks) < max(1, at_least):
        return 0
    columns = [_log[name] for name in EventRow._fields if name != "digest"]
    size = math.ceil(len(tasks) / math.ceil(len(tasks) / FOLDED_MOST))
    for start in range(0, len(tasks), size):
        piece = tasks[start : start + size]
        of_piece = of_ended & (_log.job_number >= piece[0]) & (_log.job_number <= piece[-1])
        rows = list(starmap(EventRow, connection.execute(select(*columns).where(of_piece)).all()))
        connection.execute(insert(schema.event_pruning), {"before_at": max(row.at for row in rows) + 1.0})
        connection.execute(delete(schema.event_log).where(of_piece))
        connection.execute(delete(schema.event_pruning))
        connection.execute(insert(schema.event_fold), _folded(array_number, rows))
    return len(tasks)


def _folded(array_number: int, rows: Sequence[EventRow]) -> dict[str, object]:
    records, samples = ([row for row in rows if (row.kind == _SAMPLE) is is_sample] for is_sample in (False, True))
    content = {"content": compressed(records), "samples": compressed(samples) if samples else None}
    return described(array_number, rows) | content


def _covers(said: Mapping[str, Any], true: Mapping[str, Any]) -> bool:
    """Return whether a reader finds all events of a fold; those of samples that were deleted may still be covered."""
    return (
        all(said[f"first_{name}"] <= true[f"first_{name}"] for name in ("seq", "at", "job"))
        and all(said[f"last_{name}"] >= true[f"last_{name}"] for name in ("seq", "at", "job"))
        and all(set(json.loads(said[name])) >= set(json.loads(true[name])) for name in ("kinds", "instances"))
        and all(said[name] == true[name] for name in ("records", "sample_count", "samples_last_at"))
    )


def described(array_number: int, rows: Sequence[EventRow]) -> dict[str, object]:
    """Return the columns of a fold that say what events it has."""
    samples_at = [row.at for row in rows if row.kind == _SAMPLE]
    numbers = [row.job_number for row in rows if row.job_number is not None]
    return {
        "first_seq": min(row.seq for row in rows),
        "last_seq": max(row.seq for row in rows),
        "first_at": min(row.at for row in rows),
        "last_at": max(row.at for row in rows),
        "array_number": array_number,
        "first_job": min(numbers),
        "last_job": max(numbers),
        "kinds": _compact(sorted({row.kind for row in rows})),
        "instances": _compact(sorted({row.instance_number for row in rows if row.instance_number is not None})),
        "records": len(rows) - len(samples_at),
        "sample_count": len(samples_at),
        "samples_last_at": max(samples_at, default=None),
    }


def compressed(rows: Iterable[EventRow]) -> bytes:
    """Return rows as one text, compressed: column by column, as what stands in one is alike."""
    ordered = sorted(rows, key=lambda row: (row.kind, row.seq))
    columns = [[getattr(row, name) for row in ordered] for name in EventRow._fields if name != "digest"]
    columns[0] = _steps(columns[0])
    columns[8] = [None if link is None else row.seq - link for row, link in zip(ordered, columns[8], strict=True)]
    return lzma.compress("\n".join(map(_compact, columns)).encode(), preset=_PRESET)


def decompressed(content: bytes) -> list[EventRow]:
    """Return the rows of a compressed text, in order. Raises LZMAError, ValueError, TypeError."""
    columns = [json.loads(line) for line in lzma.decompress(content).decode().split("\n")]
    columns[0] = list(accumulate(columns[0]))
    columns[8] = [None if step is None else seq - step for seq, step in zip(columns[0], columns[8], strict=True)]
    return sorted(starmap(EventRow, zip(*columns, strict=True)), key=_seq)


def _unfolded(first_seq: int, content: bytes, samples: bytes | None) -> list[EventRow]:
    try:
        rows = decompressed(content)
        return sorted([*rows, *decompressed(samples)], key=_seq) if samples is not None else rows
    except (lzma.LZMAError, ValueError, TypeError, EOFError) as error:
        raise StoreError(f"the folded events from event {first_seq} on cannot be read: {error}") from error


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _steps(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *numbers], numbers, strict=False)]


def wrong_fold(connection: Connection) -> str:
    """Return what is wrong with the first fold that says otherwise of its events than they do; empty: nothing is.

    Raises StoreError: one cannot be read.
    """
    for fold in connection.execute(select(schema.event_fold).order_by(_fold.first_seq)):
        rows = _unfolded(fold.first_seq, fold.content, fold.samples)
        is_right = bool(rows) and _covers(dict(fold._mapping), described(fold.array_number, rows))
        if not is_right:
            return f"the fold of events from event {fold.first_seq} on was changed: it is not of the events it names"
    return ""


# ------------------------------------------------------------------------------------------------------------- pruning
def prunable_folds(
    connection: Connection, before: float, kept_arrays: Select[Any], kept_instances: Select[Any], limit: int
) -> list[int]:
    """Return the first events of folds before ``before`` of which neither array nor any instance is kept."""
    old = select(_fold.first_seq, _fold.instances).where(_fold.last_at < before, _fold.array_number.not_in(kept_arrays))
    kept = set[int](connection.execute(kept_instances).scalars())
    found = connection.execute(old.order_by(_fold.first_seq))
    return [fold.first_seq for fold in found if kept.isdisjoint(json.loads(fold.instances))][:limit]


def delete_folds(connection: Connection, first_seqs: Collection[int]) -> int:
    """Delete folds; return the number of their events, samples among them."""
    chosen = _fold.first_seq.in_(first_seqs)
    events = connection.execute(select(func.sum(_fold.records + _fold.sample_count)).where(chosen)).scalar()
    connection.execute(delete(schema.event_fold).where(chosen))
    return int(events or 0)


def delete_folded_samples(connection: Connection, before: float) -> int:
    """Delete the samples of folds of which all are before ``before``; return their number."""
    old: ColumnElement[bool] = _fold.samples.is_not(None) & (_fold.samples_last_at < before)
    count = connection.execute(select(func.sum(_fold.sample_count)).where(old)).scalar()
    if count:
        without = {"samples": None, "sample_count": 0, "samples_last_at": None}
        connection.execute(update(schema.event_fold).where(old).values(without))
    return int(count or 0)


def folded_instances(connection: Connection) -> set[int]:
    """Return the numbers of the instances that folded events concern."""
    return {number for text in connection.execute(select(_fold.instances)).scalars() for number in json.loads(text)}


def has_folds(number: ColumnElement[int]) -> ColumnElement[bool]:
    """Return whether there are folds of the array of that number."""
    return select(_fold.first_seq).where(_fold.array_number == number).exists()


def _given(compare: Any, value: object) -> Iterator[ColumnElement[bool]]:
    if value is not None:
        yield compare(value)
