"""Arrays: one job with many tasks that differ in their id, and in the values of a matrix.

A task is in exactly one of three places: not made yet (it costs nothing), a row of its own (it may run soon, runs, or
has just ended), or in the :class:`TaskRecord` of its array (it has ended). Records count in *positions*, from 0 in the
order in which the ids are written; users see ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import prod
from typing import Final, Literal

TASKS_MOST: Final = 100_000
"""Tasks of one array."""
TASK_ID_MOST: Final = 10**9
RANGES_MOST: Final = 10_000
_PART = re.compile(r"(?P<first>[0-9]{1,10})(-(?P<last>[0-9]{1,10})(:(?P<step>[0-9]{1,10}))?)?")
_REFERENCE = re.compile(r"(?P<job>[^\[\]]+)\[(?P<ids>[^\[\]]*)\]")
FORMS: Final = "a range such as 0-999, one with a step such as 0-99:3, a list such as 1,4,9, each with %N at the end"

IdRange = tuple[int, int, int]
"""First id, last id, step."""
Interval = tuple[int, int]
"""First and last position of a run of positions."""
Ended = Literal["succeeded", "failed", "cancelled"]
ENDINGS: Final[tuple[Ended, ...]] = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """The tasks of an array, and how many may run at once."""

    ranges: tuple[IdRange, ...]
    """Ids of the tasks in the order in which they start; no id occurs twice."""
    at_most: int | None = None
    """How many tasks may run at once; None: no limit of its own."""
    per_unit: int | None = None
    """How many tasks one unit runs, one after the other; None: as many as HCloud finds useful."""
    matrix: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Variables with the values of which each task gets one combination. Its id is the place of that in the product,
    in which the last variable changes first."""

    def __len__(self) -> int:
        """Return the number of tasks."""
        return sum(count_of(each) for each in self.ranges)

    @property
    def least(self) -> int:
        """The smallest id."""
        return min(first for first, _, _ in self.ranges)

    @property
    def greatest(self) -> int:
        """The largest id."""
        return max(last_of(each) for each in self.ranges)

    @property
    def text(self) -> str:
        """The ids as users write them."""
        return ids_text(self.ranges) + (f"%{self.at_most}" if self.at_most is not None else "")

    def id_at(self, position: int) -> int:
        """Return the id of the task at ``position``. Raises IndexError."""
        for each in self.ranges:
            count = count_of(each)
            if position < count:
                return each[0] + position * each[2]
            position -= count
        raise IndexError(f"an array of {len(self)} tasks has none at that position")

    def position_of(self, task_id: int) -> int | None:
        """Return the position of the task ``task_id``; None: there is none."""
        before = 0
        for first, last, step in self.ranges:
            if first <= task_id <= last and (task_id - first) % step == 0:
                return before + (task_id - first) // step
            before += count_of((first, last, step))
        return None

    def values(self, task_id: int) -> dict[str, str]:
        """Return the matrix's values of a task, by variable."""
        return matrix_values(self.matrix, task_id)

    def environment(self, position: int) -> dict[str, str]:
        """Return the environment variables that only the task at ``position`` has."""
        task_id = self.id_at(position)
        return {
            **self.values(task_id),
            "HCLOUD_TASK_ID": str(task_id),
            "HCLOUD_TASK_COUNT": str(len(self)),
            "HCLOUD_TASK_MIN": str(self.least),
            "HCLOUD_TASK_MAX": str(self.greatest),
        }

    def only(self, positions: Sequence[int]) -> TaskList:
        """Return the list with these tasks only."""
        return replace(self, ranges=ranges_of([self.id_at(each) for each in positions]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """Which tasks of an array were made, and how those ended that have no row any more. Positions are those of
    :class:`TaskList`; intervals are disjoint, ascending and not adjacent."""

    made: tuple[Interval, ...] = ()
    """Tasks that were made: they have a row, are in the run of one (:class:`TaskRun`), or have ended since."""
    succeeded: tuple[Interval, ...] = ()
    failed: tuple[Interval, ...] = ()
    cancelled: tuple[Interval, ...] = ()
    timed: int = 0
    """Of how many tasks that succeeded the run times are in ``timed_s``."""
    timed_s: float = 0.0
    """Sum of the run times of these tasks, in seconds."""

    @property
    def mean_s(self) -> float | None:
        """Mean run time of the tasks that succeeded, in seconds; None: not known."""
        return self.timed_s / self.timed if self.timed else None

    def with_times(self, count: int, total_s: float) -> TaskRecord:
        """Return the record with the run times of ``count`` more tasks."""
        return replace(self, timed=self.timed + count, timed_s=self.timed_s + total_s)

    def count(self, state: Ended) -> int:
        """Return how many recorded tasks ended in ``state``."""
        return count_positions(getattr(self, state))

    @property
    def ended(self) -> int:
        """How many tasks are recorded as ended."""
        return sum(self.count(each) for each in ENDINGS)

    def state_of(self, position: int) -> Ended | None:
        """Return how the task at ``position`` ended; None: it is not recorded."""
        return next((each for each in ENDINGS if has_position(getattr(self, each), position)), None)

    def unmade(self, total: int) -> int:
        """Return how many of ``total`` tasks are neither made nor ended."""
        return total - count_positions(self._taken)

    @property
    def _taken(self) -> tuple[Interval, ...]:
        """Tasks that are made or ended; those that end without being made are cancelled."""
        return merged(self.made, self.cancelled)

    def is_made(self, position: int) -> bool:
        """Return whether the task at ``position`` was made."""
        return has_position(self.made, position)

    def next_positions(self, count: int, total: int) -> list[int]:
        """Return the first ``count`` positions, of ``total``, that are neither made nor ended."""
        found, at = list[int](), 0
        for first, last in (*self._taken, (total, total)):
            found += range(at, min(first, at + count - len(found)))
            at = last + 1
            if len(found) == count:
                break
        return found

    def with_made(self, positions: Iterable[int]) -> TaskRecord:
        """Return the record in which these tasks are made."""
        return replace(self, made=with_positions(self.made, sorted(positions)))

    def with_returned(self, positions: Iterable[int]) -> TaskRecord:
        """Return the record in which these tasks are not made; they can be made again."""
        return replace(self, made=without_positions(self.made, positions))

    def with_ended(self, state: Ended, positions: Iterable[int]) -> TaskRecord:
        """Return the record in which these tasks ended in ``state``.

        Raises ValueError: one of them is recorded already; a task ends once.
        """
        added = sorted(positions)
        again = [each for each in added if self.state_of(each) is not None]
        if again or len(set(added)) < len(added):
            raise ValueError(f"tasks at {again or added} are recorded as ended twice")
        ended = with_positions(getattr(self, state), added)
        if state == "succeeded":
            return replace(self, succeeded=ended)
        return replace(self, failed=ended) if state == "failed" else replace(self, cancelled=ended)


# ---------------------------------------------------------------------------------------------------------- positions
def count_positions(intervals: Iterable[Interval]) -> int:
    """Return how many positions are in ``intervals``."""
    return sum(last - first + 1 for first, last in intervals)


def has_position(intervals: Sequence[Interval], position: int) -> bool:
    """Return whether ``position`` is in one of ``intervals``, which are ascending."""
    low, high = 0, len(intervals)
    while low < high:
        middle = (low + high) // 2
        if intervals[middle][1] < position:
            low = middle + 1
        else:
            high = middle
    return low < len(intervals) and intervals[low][0] <= position


def positions_in(intervals: Iterable[Interval]) -> Iterator[int]:
    """Yield all positions in ``intervals``, in order."""
    for first, last in intervals:
        yield from range(first, last + 1)


def with_positions(intervals: Sequence[Interval], positions: Sequence[int]) -> tuple[Interval, ...]:
    """Return ``intervals`` with ``positions`` added; both are ascending."""
    return merged(intervals, [(each, each) for each in positions])


def merged(*several: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the intervals of all positions that are in any of ``several``."""
    found: list[Interval] = []
    for first, last in sorted(chain.from_iterable(several)):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def without_positions(intervals: Sequence[Interval], positions: Iterable[int]) -> tuple[Interval, ...]:
    """Return ``intervals`` without ``positions``."""
    left: list[Interval] = []
    removed = with_positions((), sorted(positions))
    for first, last in intervals:
        for gone_first, gone_last in removed:
            if gone_last < first or gone_first > last:
                continue
            if gone_first > first:
                left.append((first, gone_first - 1))
            first = gone_last + 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


# ----------------------------------------------------------------------------------------------------------------- ids
def count_of(ids: IdRange) -> int:
    """Return how many ids a range has."""
    first, last, step = ids
    return (last - first) // step + 1


def last_of(ids: IdRange) -> int:
    """Return the largest id of a range, which a step may keep below its end."""
    return ids[0] + (count_of(ids) - 1) * ids[2]


def ids_text(ranges: Iterable[IdRange]) -> str:
    """Return ranges as users write them: ``0-9,20-40:5,99``."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")
        for first, last, step in ranges
    )


def ranges_of(ids: Sequence[int]) -> tuple[IdRange, ...]:
    """Return ids as few ranges with step 1, ascending."""
    return tuple((first, last, 1) for first, last in with_positions((), sorted(ids)))


def parse_ids(text: str) -> tuple[tuple[IdRange, ...], int | None]:
    """Return the ranges of ``0-99:3,200%10`` and its limit (None: it has none). ``%10`` alone has no ranges.

    Raises ValueError: it has another form, is empty, too large, or names an id twice; the message says what is right.
    """
    listed, percent, limit = text.replace(" ", "").partition("%")
    at_most = None
    if percent:
        if not re.fullmatch(r"[0-9]{1,9}", limit) or int(limit) < 1:
            raise ValueError(f"%{limit} must be the number of tasks that may run at once, at least 1, such as %50")
        at_most = int(limit)
    if percent and not listed:
        return (), at_most
    parts = listed.split(",")
    if len(parts) > RANGES_MOST:
        raise ValueError(f"must be at most {RANGES_MOST} ids and ranges, not {len(parts)}; use ranges with steps")
    ranges = tuple(_parse_part(each) for each in parts)
    total = sum(count_of(each) for each in ranges)
    if total > TASKS_MOST:
        raise ValueError(f"must have at most {TASKS_MOST:,} tasks, not {total:,}; submit several arrays")
    _refuse_repetition(ranges)
    return ranges, at_most


def _parse_part(part: str) -> IdRange:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(f"must be {FORMS}, not {part[:40]!r}")
    first, last = int(found["first"]), int(found["last"] or found["first"])
    step = int(found["step"] or 1)
    if last < first:
        raise ValueError(f"{part} ends before it begins; write {last}-{first}")
    if step < 1:
        raise ValueError(f"{part} has a step of 0; a step is at least 1")
    if last > TASK_ID_MOST:
        raise ValueError(f"ids must be at most {TASK_ID_MOST}, not {last}")
    return (first, last, step)


def _refuse_repetition(ranges: Sequence[IdRange]) -> None:
    if all(last_of(before) < after[0] for before, after in pairwise(ranges)):
        return
    seen: set[int] = set()
    for first, last, step in ranges:
        for each in range(first, last + 1, step):
            if each in seen:
                raise ValueError(f"names task {each} twice; name each id once")
            seen.add(each)


def matrix_size(matrix: Mapping[str, Sequence[str]]) -> int:
    """Return the number of combinations."""
    return prod(len(values) for values in matrix.values())


def matrix_values(matrix: Sequence[tuple[str, Sequence[str]]], place: int) -> dict[str, str]:
    """Return the combination at ``place`` of the product, in which the last variable changes first."""
    values: dict[str, str] = {}
    for name, each in reversed(matrix):
        place, at = divmod(place, len(each))
        values[name] = each[at]
    return dict(reversed(values.items()))


# ---------------------------------------------------------------------------------------------------------- references
def split_reference(text: str) -> tuple[str, str | None]:
    """Return job and ids of ``job-7[3-9]``; the ids of ``job-7`` are None. Nothing else is checked."""
    found = _REFERENCE.fullmatch(text)
    return (text, None) if found is None else (found["job"], found["ids"])


def chosen_positions(tasks: TaskList, array: str, ids: str) -> list[int]:
    """Return the positions of the tasks ``ids`` (``3``, ``3-9``, ``1,4``) of an array, ascending.

    Raises ValueError: the text has another form, or a task does not exist; the message names those that do.
    """
    ranges, at_most = parse_ids(ids)
    if at_most is not None or not ranges:
        raise ValueError(f"{array}[{ids}] must name tasks, such as {array}[3] or {array}[3-9]")
    positions: list[int] = []
    for first, last, step in ranges:
        for each in range(first, last + 1, step):
            position = tasks.position_of(each)
            if position is None:
                raise ValueError(f"{array} has no task {each}; its tasks are {ids_text(tasks.ranges)[:100]}")
            positions.append(position)
    return sorted(positions)
