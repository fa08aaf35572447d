"""Output of tasks that ran in one unit with others: each is a part of the unit's output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hcloud.api.context import ApiContext
from hcloud.core.arrays import has_position
from hcloud.core.errors import NotFound
from hcloud.core.model import EventKind, InstanceId, Job, UnitId
from hcloud.engine.task_log import LOG_BYTES_MOST, TaskLog, parse_task_log
from hcloud.provider import LogChunk, Stream
from hcloud.store import Store

ROWS_MOST, RUNS_MOST = 10_000, 100_000


class TaskUnit(NamedTuple):
    """The unit in which a task ran with others."""

    unit: UnitId
    instance_id: InstanceId


def find_unit(store: Store, task: Job) -> TaskUnit | None:
    """Return the unit in which a task runs, or ran, with others; None: it has run alone, or not at all."""
    position, job = task.task_position, task if task.run is not None else None
    if job is None:
        rows = store.tasks(task.array, limit=ROWS_MOST)
        job = next((each for each in rows if each.run is not None and has_position(each.run.others, position)), None)
    if job is not None and job.attempt is not None:
        return TaskUnit(job.attempt.unit_id(0), job.attempt.allocations[0].instance_id)
    for event in store.events(job_id=task.array, kinds=(EventKind.TASKS_ENDED,), limit=RUNS_MOST):
        spans = [str(each).partition("|")[0].split("-") for each in _texts(event.fields.get("ended"))]
        if any(int(first) <= position <= int(last) for first, last in spans):
            return TaskUnit(str(event.fields["unit"]), event.instance_id or "")
    return None


def _texts(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def read_index(context: ApiContext, where: TaskUnit) -> TaskLog | None:
    """Return where the output of each task is, archived or from the engine; None: not known, or no longer.

    Raises WorkerUnreachable.
    """
    archived = context.logs_dir / f"{where.unit}.tasks"
    if archived.exists():
        return parse_task_log(archived.read_bytes())
    try:
        chunk = context.runner.logs(where.unit, where.instance_id, "tasks", 0, LOG_BYTES_MOST)
    except NotFound:
        return None
    return parse_task_log(chunk.content)


def slice_of(log: TaskLog, position: int, stream: Stream) -> tuple[int, int | None] | None:
    """Return where a task's output begins and ends in its unit's; None as an end: it writes still."""
    found = log.slices.get(position)
    return None if found is None else found.stdout if stream == "stdout" else found.stderr


def archive_path(context: ApiContext, where: TaskUnit, stream: Stream) -> Path:
    """Return the file of a unit's archived output."""
    return context.logs_dir / f"{where.unit}.{stream}"


def within(chunk: LogChunk, first: int, last: int | None) -> LogChunk:
    """Return a piece of a unit's output as one of the task's, whose output is from ``first`` to ``last``."""
    content, after = chunk.content, chunk.next_offset
    if last is not None and after > last:
        content, after = content[: max(0, len(content) - (after - last))], last
    return replace(chunk, content=content, next_offset=max(0, after - first), end=chunk.end or after == last)
