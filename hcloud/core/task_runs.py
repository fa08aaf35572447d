"""Runs: many short tasks of one array in one unit, one after the other.

A run is led by one of its tasks, which has a row; the others have none. Positions are those of
:class:`hcloud.core.arrays.TaskList`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hcloud.core.arrays import Interval, count_positions, matrix_values, positions_in
from hcloud.core.failures import FailureCause

RUN_TASKS_MOST: Final = 1_000
"""Tasks of one unit."""
DETAIL_CHARACTERS_MOST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnds:
    """How tasks ended: several in a row that succeeded, or one that did not."""

    first: int
    last: int
    started_at: float
    """Unix seconds: when the first one began."""
    ended_at: float
    """Unix seconds: when the last one ended."""
    exit_code: int | None = 0
    cause: FailureCause | None = None
    """Why it failed; None: it succeeded."""
    detail: str = ""

    @property
    def count(self) -> int:
        """How many tasks they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """What became of the tasks of a unit so far."""

    ended: tuple[TaskEnds, ...] = ()
    """In order of time; a task ends once."""
    begun: tuple[Interval, ...] = ()
    """Those that began, or may have, and are not known to have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTasks:
    """The tasks that one unit runs one after the other."""

    positions: tuple[Interval, ...]
    """In the order in which they run."""
    ids: tuple[int, ...]
    """The id of the task at each position."""
    first_job: int
    """Number of the job that the task at position 0 is."""
    matrix: tuple[tuple[str, tuple[str, ...]], ...] = ()
    begin_within_s: float | None = None
    """No task begins later than so long after the first; None: there is no such limit."""

    def __len__(self) -> int:
        """Return the number of tasks."""
        return count_positions(self.positions)

    def environments(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield each position with the environment variables that only its task has."""
        for position, task_id in zip(positions_in(self.positions), self.ids, strict=True):
            own = {"HCLOUD_TASK_ID": str(task_id), "HCLOUD_JOB_ID": f"job-{self.first_job + position}"}
            yield position, {**matrix_values(self.matrix, task_id), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """What a row keeps of the tasks that run in its unit beside its own."""

    others: tuple[Interval, ...]
    """Those that are not recorded as ended, without its own."""
    begin_within_s: float | None = None
    """As in :class:`UnitTasks`."""
    own: TaskEnds | None = None
    """How its own task ended, before its unit did; None: not known."""
    begun: tuple[Interval, ...] = ()
    """Those of all that were running when ends were recorded last."""
    recorded_until: float = 0.0
    """When the task ended whose end was recorded last, by the clock of the machine."""
    cancelled: tuple[Interval, ...] = ()
    """Those that were cancelled: the unit is stopped for it, and they are recorded once it is over."""

    @property
    def count(self) -> int:
        """How many tasks the unit has left to run, its own included."""
        return count_positions(self.others) + 1


def joined(ended: Sequence[TaskEnds]) -> tuple[TaskEnds, ...]:
    """Return the same ends, those of tasks in a row that succeeded as one."""
    found: list[TaskEnds] = []
    for each in ended:
        before = found[-1] if found else None
        alike = before is not None and before.cause is None and each.cause is None
        if before is not None and alike and before.last + 1 == each.first:
            found[-1] = TaskEnds(
                first=before.first, last=each.last, started_at=before.started_at, ended_at=each.ended_at
            )
        else:
            found.append(each)
    return tuple(found)


def text_of_ends(each: TaskEnds) -> str:
    """Return ends as events have them."""
    cause = each.cause.value if each.cause is not None else ""
    code = "" if each.exit_code is None else each.exit_code
    return f"{each.first}-{each.last}|{each.started_at:.3f}|{each.ended_at:.3f}|{code}|{cause}"


def ends_of_text(text: str) -> TaskEnds:
    """Return the ends of such a text."""
    span, started_at, ended_at, code, cause = text.split("|")
    first, last = map(int, span.split("-"))
    return TaskEnds(
        first=first,
        last=last,
        started_at=float(started_at),
        ended_at=float(ended_at),
        exit_code=int(code) if code else None,
        cause=FailureCause(cause) if cause else None,
    )
