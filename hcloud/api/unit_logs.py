"""Output of a job's programs: from the archive once a unit has ended, from the engine while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from hcloud.api.context import ApiContext
from hcloud.core.errors import NotFound, WorkerUnreachable
from hcloud.core.model import JOB_ENDED, MARKED_BY, Allocation, Job, JobId, JobState, UnitId
from hcloud.observe.log_archive import Gap
from hcloud.provider import LogChunk, Stream

POLL_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuestion:
    """Which output: ``attempt`` None means the present (or last) one, ``rank`` counts from 0."""

    job_id: JobId
    stream: Stream
    offset: int
    limit: int
    rank: int = 0
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A piece of output, with the attempt it is of and the job's state (so that a follower knows whether to go on)."""

    chunk: LogChunk
    attempt: int
    state: JobState


async def read_when(context: ApiContext, ready: Callable[[T], bool], read: Callable[[], T], wait_s: float) -> T:
    """Return ``read()`` once it is ``ready``, at latest after ``wait_s`` or when the server stops; a silent worker
    counts as not ready."""
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
        await asyncio.sleep(POLL_S)


def read_part(context: ApiContext, question: LogQuestion) -> LogPart:
    """Read once, without waiting.

    Raises:
        NotFound: no such job, attempt or rank, or its output is no longer kept.
        WorkerUnreachable: it runs on a machine that does not answer now.
    """
    job = context.store.job(question.job_id)
    if question.rank >= job.spec.nodes.count:
        raise NotFound(f"{job.id} has no rank {question.rank}; it has ranks 0 to {job.spec.nodes.count - 1}")
    number = question.attempt or job.attempts_made
    chunk = (
        _nothing(job, question) if number in (0, job.attempts_made + 1) else _of_attempt(context, job, number, question)
    )
    return LogPart(chunk=chunk, attempt=number, state=job.state)


def _nothing(job: Job, question: LogQuestion) -> LogChunk:
    # The attempt after the last one may yet come, unless the job has ended.
    return LogChunk(content=b"", next_offset=question.offset, end=job.state in JOB_ENDED)


def _of_attempt(context: ApiContext, job: Job, number: int, question: LogQuestion) -> LogChunk:
    if number > job.attempts_made:
        raise NotFound(f"{job.id} has no attempt {number}; it has made {job.attempts_made}")
    present = job.attempt is not None and number == job.attempt.number
    unit = job.attempt.unit_id(question.rank) if job.attempt and present else f"{job.id}.{number}.{question.rank}"
    kept = (
        context.logs_dir / f"{unit}.{question.stream}"
        if present
        else _last_kept(context.logs_dir, unit, question.stream)
    )
    archived = read_archived(kept, question)
    if archived is not None:
        return archived
    allocation = _allocation(job, number, question.rank)
    # Output is archived before an exit code is recorded: it was here.
    if allocation is not None and allocation.exit_code is None:
        return _from_engine(context, unit, allocation, question)
    if allocation is None and present and job.state not in JOB_ENDED:
        return _nothing(job, question)  # an incremental job's rank that has not found room yet
    raise NotFound(f"output of attempt {number}, rank {question.rank} of {job.id} has been deleted")


def _last_kept(folder: Path, unit: str, stream: Stream) -> Path:
    """Return the newest archive of a rank of an attempt that is over: with its mark, and as often as it was started
    anew."""
    found = [path for path in folder.glob(f"{unit}*.{stream}") if path.name[len(unit)] in f".-{MARKED_BY}"]
    return max(found, key=lambda path: path.stat().st_mtime, default=folder / f"{unit}.{stream}")


def _allocation(job: Job, number: int, rank: int) -> Allocation | None:
    if job.attempt is None or job.attempt.number != number:
        return None
    return next((each for each in job.attempt.allocations if each.rank == rank), None)


def read_archived(path: Path, question: LogQuestion) -> LogChunk | None:
    """Return what was asked for of a unit that ended, by offsets as its machine counted; None: it is not kept there."""
    try:
        gap = Gap.of(path)
        begin = question.offset < gap.dropped
        with path.open("rb") as archive:
            archive.seek(0 if begin else gap.place(question.offset))
            content = archive.read(gap.told if begin else question.limit)
            end = not archive.read(1)
    except FileNotFoundError:
        return None
    return LogChunk(content=content, next_offset=gap.dropped if begin else question.offset + len(content), end=end)


def _from_engine(context: ApiContext, unit: UnitId, allocation: Allocation, question: LogQuestion) -> LogChunk:
    try:
        return context.runner.logs(unit, allocation.instance_id, question.stream, question.offset, question.limit)
    except NotFound:  # its start has not arrived yet; or it ended without ever starting
        return LogChunk(content=b"", next_offset=question.offset, end=allocation.released)
    except WorkerUnreachable:
        if not allocation.released:
            raise
        return LogChunk(content=b"", next_offset=question.offset, end=True)  # lost with its machine
