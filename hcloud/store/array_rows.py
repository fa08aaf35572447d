"""The tasks of arrays as rows, and as jobs again where they have no row: not made yet, or recorded with their array."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, exists, func, select

from hcloud.core.model import (
    Allocation,
    Attempt,
    Event,
    EventKind,
    FailureCause,
    Job,
    JobId,
    JobState,
    Resources,
)
from hcloud.core.rows import replace_fields
from hcloud.core.task_runs import TaskEnds, ends_of_text
from hcloud.store import schema
from hcloud.store.documents import job_number
from hcloud.store.live import ENDED_STATES


class EndedTask(NamedTuple):
    """A task that has ended and still has a row."""

    array_id: JobId
    number: int
    state: JobState


UNMADE: Final = "array"
"""Reason code of a task that is not made yet."""
IN_A_RUN: Final = "in_a_run"
"""Reason code of a task that is given to a unit with others."""
EVENTS_OF_A_TASK: Final = (EventKind.ATTEMPT_PLACED, EventKind.UNIT_ENDED, EventKind.JOB_FINISHED)
"""Kinds of events from which a task without a row is restored."""
_COLUMNS = (
    schema.job.c.number,
    schema.job.c.revision,
    schema.job.c.document,
    schema.job.c.array_number,
    schema.job_spec.c.document.label("spec"),
)
OWNER = func.coalesce(schema.job.c.array_number, schema.job.c.number)
"""The number of the row with a job's spec: the array's for its tasks."""
JOBS: Final[Select[Any]] = select(*_COLUMNS).join(schema.job_spec, schema.job_spec.c.number == OWNER)


def array_of(number: int) -> Select[Any]:
    """Return the query of the array that has the task ``number``, if there is one."""
    query = JOBS.where(schema.job.c.last_number >= number, schema.job.c.number < number)
    return query.order_by(schema.job.c.last_number).limit(1)


def ended_tasks(limit: int) -> Select[Any]:
    """Return the query of the first tasks with a row that have ended, by array."""
    array, state, number = schema.job.c.array_number, schema.job.c.state, schema.job.c.number
    query = select(array, state, number).where(array.is_not(None), state.in_(ENDED_STATES))
    return query.order_by(array, number).limit(limit)


def tasks_of(array_id: JobId, states: Collection[JobState] | None, limit: int) -> Select[Any]:
    """Return the query of the tasks of an array that have a row, by number."""
    query = JOBS.where(schema.job.c.array_number == job_number(array_id))
    if states is not None:
        query = query.where(schema.job.c.state.in_([each.value for each in states]))
    return query.order_by(schema.job.c.number).limit(limit)


def states_of(array_id: JobId) -> Select[Any]:
    """Return the query of number and state of the tasks of an array that have a row."""
    return select(schema.job.c.number, schema.job.c.state).where(schema.job.c.array_number == job_number(array_id))


def counts_of(numbers: Collection[int] | None) -> Select[Any]:
    """Return the query of how many tasks with a row are in each state, by array; None: of all arrays."""
    array, state = schema.job.c.array_number, schema.job.c.state
    query = select(array, state, func.count().label("tasks")).where(array.is_not(None)).group_by(array, state)
    return query if numbers is None else query.where(array.in_(numbers))


def of_kept_array(log_number: ColumnElement[Any], is_kept: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return whether a number is that of a task of an array that is kept."""
    array = schema.job.alias("array_row")
    spans = (array.c.last_number.is_not(None)) & (log_number > array.c.number) & (log_number <= array.c.last_number)
    kept = select(schema.job.c.number).where(is_kept)
    return exists().where(spans & array.c.number.in_(kept))


class RunEnd(NamedTuple):
    """How tasks ended in a unit with others."""

    instance_id: str | None
    ends: TaskEnds


def ends_in_runs(events: Iterable[Event], positions: Sequence[int]) -> dict[int, RunEnd]:
    """Return how tasks ended, by position, as events TASKS_ENDED of their array say.

    ``positions``: those that are asked for, ascending. A task ends once, so the first event that names it counts.
    """
    found = dict[int, RunEnd]()
    for event in events:
        given = event.fields.get("ended")
        for each in map(ends_of_text, map(str, given if isinstance(given, list | tuple) else ())):
            for position in positions[bisect_left(positions, each.first) : bisect_right(positions, each.last)]:
                found.setdefault(position, RunEnd(event.instance_id, each))
    return found


def task_without_row(
    position: int, array: Job, events: Sequence[Event], runs: Callable[[], Mapping[int, RunEnd]] = dict
) -> Job:
    """Return a task of ``array`` that has no row, from the array's record and the task's ``events``.

    ``runs``: how tasks ended in units with others, by position; asked for where the task has no events of its own.
    """
    tasks, record = array.spec.tasks, array.task_record
    assert tasks is not None and record is not None
    task = Job(
        id=f"job-{job_number(array.id) + 1 + position}",
        spec=array.spec,
        state=JobState.QUEUED,
        submitted_at=array.submitted_at,
        released_at=array.released_at,
        application=array.application,
        array=array.id,
    )
    ended = record.state_of(position)
    if ended is not None and not events:
        found = runs().get(position)
        if found is not None:
            return replace_fields(_of_run(task, found), state=JobState(ended))
    if ended is not None:
        return _restored(replace_fields(task, state=JobState(ended), cancelled_by=array.cancelled_by), events)
    if record.is_made(position):
        text = f"runs in one unit with other tasks of {array.id}, or waits there for its turn"
        return replace_fields(task, queued_at=array.queued_at, wait_code=IN_A_RUN, wait_text=text)
    limit = f", at most {tasks.at_most} at once" if tasks.at_most is not None else ""
    text = f"waits for its turn: the tasks of {array.id} start in order{limit}"
    return replace_fields(task, queued_at=array.queued_at, wait_code=UNMADE, wait_text=text)


def _of_run(task: Job, run: RunEnd) -> Job:
    """Return a task that ended in a unit with others."""
    ends = run.ends
    held = Allocation(
        rank=0, instance_id=run.instance_id or "", resources=task.spec.resources,
        started_at=ends.started_at, ended_at=ends.ended_at, exit_code=ends.exit_code, cause=ends.cause,
    )  # fmt: skip
    attempt = Attempt(id=f"{task.id}.1", number=1, placed_at=ends.started_at, allocations=(held,))
    outcome = f"succeeded in {ends.ended_at - ends.started_at:.2f} s" if ends.count == 1 else "succeeded"
    return replace_fields(task, attempt=attempt, attempts_made=1, finished_at=ends.ended_at, outcome=outcome)


def _restored(task: Job, events: Sequence[Event]) -> Job:
    """Return an ended task with what its events say of its last attempt and its end."""
    ranks = dict[int, Allocation]()
    placed: Event | None = None
    for event in events:
        fields = event.fields
        if event.kind is EventKind.ATTEMPT_PLACED:
            if placed is None or placed.fields.get("attempt") != fields.get("attempt"):
                ranks = {}
            placed = event
            ranks |= {each.rank: each for each in _allocations(fields)}
        elif event.kind is EventKind.UNIT_ENDED and (held := ranks.get(_whole(fields, "rank"))) is not None:
            ranks[held.rank] = _ended(held, event)
        elif event.kind is EventKind.JOB_FINISHED:
            outcome, attempts = str(fields.get("outcome", "")), _whole(fields, "attempts")
            task = replace_fields(task, finished_at=event.at, outcome=outcome, attempts_made=attempts)
    if placed is not None:
        name = str(placed.fields.get("attempt", ""))
        attempt = Attempt(id=name, number=task.attempts_made, placed_at=placed.at, allocations=tuple(ranks.values()))
        task = replace_fields(task, attempt=attempt)
    return task


def _allocations(fields: Mapping[str, object]) -> list[Allocation]:
    given, found = fields.get("allocations"), list[Allocation]()
    for text in given if isinstance(given, list | tuple) else ():
        instance_id, rank, vcpus, memory_mib = str(text).split(":")
        held = Resources(vcpus=float(vcpus), memory_mib=int(memory_mib), disk_gib=0.0)
        found.append(Allocation(rank=int(rank), instance_id=instance_id, resources=held))
    return found


def _ended(held: Allocation, event: Event) -> Allocation:
    fields = event.fields
    code, cause, started_at = fields.get("exit_code"), fields.get("cause"), fields.get("started_at")
    return replace_fields(
        held,
        ended_at=event.at,
        started_at=float(started_at) if isinstance(started_at, int | float) else None,
        exit_code=code if isinstance(code, int) else None,
        cause=FailureCause(cause) if isinstance(cause, str) else None,
        detail=str(fields.get("detail") or ""),
    )


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
