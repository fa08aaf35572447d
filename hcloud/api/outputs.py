"""What jobs left: the archives of their outputs, one per attempt and rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from hcloud.api.arrays import find_job
from hcloud.api.auth import Caller
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.core.errors import BadInput, NotFound, Refused
from hcloud.core.model import JOB_ENDED, MARKED_BY, UnitId
from hcloud.observe.output_archive import StoredOutputs, archive_of, stored_outputs

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
Rank = Annotated[int, Query(ge=0, le=100_000)]
AttemptNumber = Annotated[int | None, Query(ge=1, le=2**31, description="default: the last one that left some")]


class _ArchiveResponse(FileResponse):
    """A file in larger pieces: each is read by a thread."""

    chunk_size = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputs:
    """What one rank of a job left in one attempt."""

    unit: str
    files: int
    bytes: int
    """Size of the archive; 0: it left nothing."""
    sha256: str
    """Of the archive, in hexadecimal."""
    note: str
    """What is missing and why; empty if nothing is."""


@router.get("/{job_id}/outputs")
async def describe_outputs(
    context: Context, caller: CurrentCaller, job_id: str, rank: Rank = 0, attempt: AttemptNumber = None
) -> JobOutputs:
    """Return what a job (your own, unless you are an admin) left of the files named by its ``outputs``."""
    unit, stored = await run_in_threadpool(_find, context, caller, job_id, rank, attempt)
    return JobOutputs(unit=unit, files=stored.files, bytes=stored.bytes, sha256=stored.sha256, note=stored.note)


@router.get(
    "/{job_id}/outputs/archive",
    response_class=FileResponse,
    responses={200: {"description": "A tar.", "content": {"application/x-tar": {"schema": {"type": "string"}}}}},
)
async def read_outputs(
    context: Context, caller: CurrentCaller, job_id: str, rank: Rank = 0, attempt: AttemptNumber = None
) -> FileResponse:
    """Return the archive (tar). With a ``Range`` header, an interrupted download continues."""
    unit, stored = await run_in_threadpool(_find, context, caller, job_id, rank, attempt)
    if not stored.bytes:
        raise NotFound(f"rank {rank} of {job_id} left no outputs{': ' if stored.note else ''}{stored.note}")
    return _ArchiveResponse(archive_of(context.outputs_dir, unit), media_type="application/x-tar")


def _find(
    context: ApiContext, caller: Caller, job_id: str, rank: int, attempt: int | None
) -> tuple[UnitId, StoredOutputs]:
    """Return the unit, and what is stored of it.

    Raises NotFound: no such job, rank or attempt, or its outputs were deleted. Raises Refused: it has not ended yet.
    """
    job = find_job(context.store, job_id)
    caller.require_owner(job.spec.user, f"read the outputs of {job_id}")
    if job.is_array and job.spec.tasks is not None:
        raise BadInput(f"{job.id} is an array; name one of its tasks, such as {job.id}[{job.spec.tasks.id_at(0)}]")
    job_id = job.id
    if not (job.spec.outputs or job.spec.bucket_outputs):
        raise NotFound(f"{job_id} asked for no outputs; name them in its job file: outputs: [results/]")
    if rank >= job.spec.nodes.count:
        raise NotFound(f"{job_id} has no rank {rank}; it has ranks 0 to {job.spec.nodes.count - 1}")
    found = list[tuple[int, float, Path]]()
    for path in context.outputs_dir.glob(f"{job_id}.{attempt or '*'}.{rank}*.json"):
        number, _, place = path.stem.removeprefix(f"{job_id}.").partition(".")
        rest = place.removeprefix(str(rank))
        if number.isdigit() and place != rest and rest[:1] in ("", "-", MARKED_BY):
            found.append((int(number), path.stat().st_mtime, path))
    for _, _, path in sorted(found, reverse=True):
        stored = stored_outputs(context.outputs_dir, path.stem)
        if stored is not None:
            return path.stem, stored
    if job.state not in JOB_ENDED:
        raise Refused(f"{job_id} has not ended: {job.state.value}; its outputs are here once it has")
    raise NotFound(f"outputs of {f'attempt {attempt}, ' if attempt else ''}rank {rank} of {job_id} are not here")
