"""Output of a job's units: from the archive once a unit has ended, from the engine while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from hcloud.api.context import ApiContext
from hcloud.api.task_logs import archive_path, find_unit, read_index, slice_of, within
from hcloud.api.turns import between_turns
from hcloud.core.errors import NotFound, WorkerUnreachable
from hcloud.core.model import JOB_ENDED, MARKED_BY, Allocation, Job, JobId, JobState, UnitId
from hcloud.observe.log_archive import Gap
from hcloud.provider import LogChunk, Stream

POLL_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A range of output."""

    job_id: JobId
    stream: Stream
    offset: int
    limit: int
    rank: int = 0
    """Counts from 0."""
    attempt: int | None = None
    """None: the current or last one."""
    tail: int | None = None
    """Only so many of the last bytes of an archive; ``offset`` is then ignored. None: all from ``offset`` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A part of the output."""

    chunk: LogChunk
    attempt: int
    """The attempt that it belongs to."""
    state: JobState
    """The job's state, by which clients that follow decide whether to continue."""


async def poll_until(context: ApiContext, ready: Callable[[T], bool], read: Callable[[], T], wait_s: float) -> T:
    """Poll ``read()`` until its result is ``ready``; return the last result.

    Stops after ``wait_s``, or when the server stops. An unreachable worker counts as not ready, except at the end.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        last = loop.time() >= deadline or context.closing.is_set()
        try:
            value = await run_in_threadpool(read)
            if last or ready(value):
                return value
        except WorkerUnreachable:
            if last:
                raise
        async with between_turns():
            await asyncio.sleep(POLL_S)


def read_log_part(context: ApiContext, query: LogQuery) -> LogPart:
    """Read once, without waiting.

    Raises NotFound: no such job, attempt or rank, or its output was deleted. Raises WorkerUnreachable: the worker
    does not answer now.
    """
    job = context.store.job(query.job_id)
    if query.rank >= job.spec.nodes.count:
        raise NotFound(f"{job.id} has no rank {query.rank}; it has ranks 0 to {job.spec.nodes.count - 1}")
    number = query.attempt or job.attempts_made
    if (job.array and job.attempts_made <= 1 and query.attempt in (None, 1)) or (job.array and query.attempt == 1):
        of_run = _task_chunk(context, job, query)
        if of_run is not None:
            return LogPart(chunk=of_run, attempt=1, state=job.state)
    chunk = (
        _empty_chunk(job, query)
        if number in (0, job.attempts_made + 1)
        else _attempt_chunk(context, job, number, query)
    )
    return LogPart(chunk=chunk, attempt=number, state=job.state)


def _task_chunk(context: ApiContext, job: Job, query: LogQuery) -> LogChunk | None:
    """Return output of a task that ran in a unit with others, its first attempt; None: it ran alone, or not at all."""
    where = find_unit(context.store, job)
    try:
        log = read_index(context, where) if where is not None else None
    except WorkerUnreachable:
        if job.state not in JOB_ENDED:
            raise
        return LogChunk(content=b"", next_offset=query.offset, end=True)  # lost with its machine
    if where is None or log is None:
        return None
    found = slice_of(log, job.task_position, query.stream)
    if found is None:
        return _empty_chunk(job, query) if job.attempts_made == 0 else None
    first, last = found
    offset = first + query.offset
    if query.tail is not None and last is not None:
        offset = max(first, last - query.tail)
    limit = query.limit if last is None else max(1, min(query.limit, last - offset))
    if last is not None and offset >= last:
        return LogChunk(content=b"", next_offset=last - first, end=True)
    inner = replace(query, offset=offset, limit=limit, tail=None)
    chunk = read_archive(archive_path(context, where, query.stream), inner)
    if chunk is None:
        chunk = context.runner.logs(where.unit, where.instance_id, query.stream, offset, limit)
    return within(chunk, first, last)


def _empty_chunk(job: Job, query: LogQuery) -> LogChunk:
    # The next attempt may still start, unless the job has ended.
    return LogChunk(content=b"", next_offset=query.offset, end=job.state in JOB_ENDED)


def _attempt_chunk(context: ApiContext, job: Job, number: int, query: LogQuery) -> LogChunk:
    if number > job.attempts_made:
        raise NotFound(f"{job.id} has no attempt {number}; it has made {job.attempts_made}")
    is_current = job.attempt is not None and number == job.attempt.number
    unit = job.attempt.unit_id(query.rank) if job.attempt and is_current else f"{job.id}.{number}.{query.rank}"
    path = (
        context.logs_dir / f"{unit}.{query.stream}"
        if is_current and job.attempt is not None and job.attempt.mark  # no events have it, so recorded tasks lack it
        else _newest_archive(context.logs_dir, unit, query.stream)
    )
    archived = read_archive(path, query)
    if archived is not None:
        return archived
    allocation = _allocation(job, number, query.rank)
    # Output is archived before an exit code is recorded, so the archive was deleted if there is an exit code.
    if allocation is not None and allocation.exit_code is None:
        return _from_engine(context, unit, allocation, query)
    if allocation is None and is_current and job.state not in JOB_ENDED:
        return _empty_chunk(job, query)  # a rank of an incremental job that is not placed yet
    raise NotFound(f"output of attempt {number}, rank {query.rank} of {job.id} has been deleted")


def _newest_archive(folder: Path, unit: str, stream: Stream) -> Path:
    """Return the newest archive of a rank of an earlier attempt. Each restart of the unit has its own."""
    archives = [path for path in folder.glob(f"{unit}*.stdout") if path.name[len(unit)] in f".-{MARKED_BY}"]
    newest = max(archives, key=lambda path: path.stat().st_mtime, default=folder / f"{unit}.stdout")
    return newest.with_suffix(f".{stream}")


def _allocation(job: Job, number: int, rank: int) -> Allocation | None:
    if job.attempt is None or job.attempt.number != number:
        return None
    return next((each for each in job.attempt.allocations if each.rank == rank), None)


def read_archive(path: Path, query: LogQuery) -> LogChunk | None:
    """Return archived output, by the offsets that its machine counted; None if the archive does not exist."""
    try:
        gap = Gap.of(path)
        offset = query.offset
        if query.tail is not None:
            offset = max(gap.dropped, gap.offset(path.stat().st_size) - query.tail)
        begin = offset < gap.dropped
        with path.open("rb") as archive:
            archive.seek(0 if begin else gap.place(offset))
            content = archive.read(gap.notice_bytes if begin else query.limit)
            end = not archive.read(1)
    except FileNotFoundError:
        if path.suffix == ".stderr" and path.with_suffix(".stdout").exists():  # nothing was written to it
            return LogChunk(content=b"", next_offset=query.offset, end=True)
        return None
    return LogChunk(content=content, next_offset=gap.dropped if begin else offset + len(content), end=end)


def _from_engine(context: ApiContext, unit: UnitId, allocation: Allocation, query: LogQuery) -> LogChunk:
    try:
        return context.runner.logs(unit, allocation.instance_id, query.stream, query.offset, query.limit)
    except NotFound:  # not started yet, or ended without ever starting
        return LogChunk(content=b"", next_offset=query.offset, end=allocation.released)
    except WorkerUnreachable:
        if not allocation.released:
            raise
        return LogChunk(content=b"", next_offset=query.offset, end=True)  # lost with its machine
