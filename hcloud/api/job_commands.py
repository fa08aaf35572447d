"""Commands inside running jobs (``hcloud exec``)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from hcloud.api.arrays import find_job
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.core.errors import Refused, UnitRefused, WorkerUnreachable
from hcloud.core.model import Allocation, EventKind, Job, JobState
from hcloud.provider import CommandResult

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)
EXEC_S_MAX = 60
ARGUMENTS_MAX, ARGUMENT_CHARACTERS_MAX = 1000, 100_000
SHOWN_CHARACTERS = 1000
"""Of a command in the audit log."""


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must have no NUL character")
    return text


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class CommandRequest:
    """A command to run inside a job."""

    command: Annotated[
        list[Annotated[str, Field(max_length=ARGUMENT_CHARACTERS_MAX), AfterValidator(_without_nul)]],
        Field(min_length=1, max_length=ARGUMENTS_MAX),
    ]
    """Program and arguments; no shell is involved."""
    rank: Annotated[int, Field(ge=0, le=100_000)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=EXEC_S_MAX, allow_inf_nan=False)] = 10.0
    """It is killed after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """What became of a command."""

    exit_code: int | None
    """None: it was killed when its time was over."""
    stdout: str
    stderr: str
    is_cut: bool
    """Whether there was more output than is returned."""


@router.post("/jobs/{job_id}/exec")
def run_in_job(context: Context, caller: CurrentCaller, job_id: str, request: CommandRequest) -> CommandOutcome:
    """Run a command inside a running job (your own, unless you are an admin), with its files, user and limits.

    It has no input. The audit log has it before it is run, so it is not repeated.
    """
    job = find_job(context.store, job_id)
    caller.require_owner(job.spec.user, f"run commands in {job_id}")
    if not context.has_exec:
        raise Refused("commands in running jobs are switched off here (api.exec: false)")
    allocation = _running_rank(job, request.rank)
    assert job.attempt is not None
    shown = shlex.join(request.command)[:SHOWN_CHARACTERS]
    _record(context, caller.name, job, allocation, f"{shown} begins", command=shown)
    try:
        unit = job.attempt.unit_id(request.rank)
        result = context.runner.execute(unit, allocation.instance_id, request.command, request.timeout_s)
    except UnitRefused as refused:
        _record(context, caller.name, job, allocation, f"{shown} was not run: {refused}")
        raise Refused(str(refused)) from refused
    except WorkerUnreachable as lost:  # not as 503, upon which clients try again
        _record(context, caller.name, job, allocation, f"{shown}: outcome unknown, {lost}")
        raise Refused(f"{lost}; the command may or may not have been run") from lost
    ended = "was killed when its time was over" if result.exit_code is None else f"ended with code {result.exit_code}"
    _record(context, caller.name, job, allocation, f"{shown} {ended}", exit_code=result.exit_code)
    return _outcome(result)


def _running_rank(job: Job, rank: int) -> Allocation:
    """Return a rank that runs. Raises Refused."""
    held = job.attempt.held(rank) if job.attempt is not None else None
    if job.is_array:
        raise Refused(f"{job.id} is an array; name one of its tasks")
    if rank >= job.spec.nodes.count:
        raise Refused(f"{job.id} has no rank {rank}; it has ranks 0 to {job.spec.nodes.count - 1}")
    if job.state is not JobState.RUNNING or held is None or held.released or held.started_at is None:
        what = f"rank {rank} of {job.id}" if job.spec.nodes.count > 1 else job.id
        raise Refused(f"{what} does not run ({job.state}); commands can be run only in what runs")
    return held


def _record(context: ApiContext, actor: str, job: Job, allocation: Allocation, text: str, **fields: Any) -> None:
    with context.store.transaction(context.clock.now()) as txn:
        txn.emit(
            EventKind.EXEC,
            job_id=job.id,
            instance_id=allocation.instance_id,
            user=job.spec.user,
            actor=actor,
            rank=allocation.rank,
            text=text,
            **fields,
        )


def _outcome(result: CommandResult) -> CommandOutcome:
    stdout, stderr = (each.decode(errors="replace") for each in (result.stdout, result.stderr))
    return CommandOutcome(exit_code=result.exit_code, stdout=stdout, stderr=stderr, is_cut=result.is_cut)
