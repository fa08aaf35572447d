"""Arrays over the API: ``job-7[3]`` and ``job-7[3-9]`` name tasks of an array, which is shown with their counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from hcloud.api.auth import Caller
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.schemas import JobView, SubmittedJob, TaskCounts, job_view, submitted_job
from hcloud.api.uploads import touch_archive
from hcloud.core.arrays import TaskList, TaskRecord, chosen_positions, split_reference
from hcloud.core.errors import BadInput, NotFound, Refused
from hcloud.core.model import JOB_ENDED, JOB_ON_INSTANCE, BatchTarget, Job, JobId, JobSpec, JobState
from hcloud.core.rows import number_of
from hcloud.core.units import utc_text
from hcloud.spec.validation import counted
from hcloud.store import Store, Submission

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)
TASKS_SHOWN = 1000
_WAITING = frozenset(JobState) - JOB_ENDED - JOB_ON_INSTANCE


# ---------------------------------------------------------------------------------------------------------- references
def find_job(store: Store, reference: str) -> Job:
    """Return the job or array ``job-7``, or the task ``job-7[3]``.

    Raises NotFound: there is none. Raises BadInput: it names several tasks.
    """
    name, ids = split_reference(reference)
    job = store.job(name)
    if ids is None:
        return job
    positions = _positions(job, ids)
    if len(positions) > 1:
        raise BadInput(f"{reference} names {len(positions)} tasks; name one, such as {name}[{ids.partition('-')[0]}]")
    return store.job(_task_id(job, positions[0]))


def find_tasks(store: Store, reference: str) -> tuple[Job, Sequence[int]]:
    """Return an array and the positions of its tasks: all of ``job-7``, those of ``job-7[3-9]``. Raises NotFound."""
    name, ids = split_reference(reference)
    job = store.job(name)
    return job, _positions(job, ids) if ids is not None else range(len(_tasks(job)))


def _positions(job: Job, ids: str) -> list[int]:
    try:
        return chosen_positions(_tasks(job), job.id, ids)
    except ValueError as error:
        raise NotFound(str(error)) from None


def _tasks(job: Job) -> TaskList:
    if not job.is_array or job.spec.tasks is None:
        raise NotFound(f"{job.id} is no array and has no tasks; leave out what is in brackets")
    return job.spec.tasks


def _task_id(array: Job, position: int) -> JobId:
    return f"job-{number_of(array.id) + 1 + position}"


# --------------------------------------------------------------------------------------------------------------- views
def views(store: Store, jobs: Sequence[Job], caller: Caller) -> list[JobView]:
    """Return jobs as visible to ``caller``; arrays with the counts of their tasks."""
    rows = store.task_counts([job.id for job in jobs if job.is_array and job.state not in JOB_ENDED])
    return [_view(store, job, caller, rows.get(job.id, {})) for job in jobs]


def view(store: Store, job: Job, caller: Caller) -> JobView:
    """Return one job as visible to ``caller``."""
    return views(store, [job], caller)[0]


def _view(store: Store, job: Job, caller: Caller, rows: Mapping[JobState, int]) -> JobView:
    record = job.task_record
    if not job.is_array or record is None:
        return job_view(job, caller)
    counts = _counts(_tasks(job), record, rows)
    if job.state in JOB_ENDED or not counts.waiting:
        return job_view(job, caller, counts)
    first = store.tasks(job.id, states=_WAITING, limit=1)  # it waits for what the first of its waiting tasks waits for
    if first:
        job = replace(job, wait_code=first[0].wait_code, wait_text=first[0].wait_text, awaiting=first[0].awaiting)
    return job_view(job, caller, counts)


def _counts(tasks: TaskList, record: TaskRecord, rows: Mapping[JobState, int]) -> TaskCounts:
    return TaskCounts(
        total=len(tasks),
        waiting=len(tasks) - record.ended - sum(rows.get(state, 0) for state in JOB_ON_INSTANCE | JOB_ENDED),
        running=sum(rows.get(state, 0) for state in JOB_ON_INSTANCE),
        succeeded=record.count("succeeded") + rows.get(JobState.SUCCEEDED, 0),
        failed=record.count("failed") + rows.get(JobState.FAILED, 0),
        cancelled=record.count("cancelled") + rows.get(JobState.CANCELLED, 0),
    )


@router.get("/jobs/{job_id}/tasks", response_model=list[JobView])
async def list_tasks(
    context: Context,
    caller: CurrentCaller,
    job_id: str,
    state: Annotated[list[JobState] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=TASKS_SHOWN)] = 100,
    after: Annotated[str | None, Query(description="id of the last task of the previous page")] = None,
) -> Response:
    """List the tasks of an array in order: all, or those of `job-7[3-9]`; with ``state``, those in one of the states.

    At most ``limit``, the first ones, or those ``after`` the last task of a page.
    """

    def found() -> list[JobView]:
        array, positions = find_tasks(context.store, job_id)
        if after is not None:
            last = context.store.job(after)
            if last.array != array.id:
                raise BadInput(f"after: {after} is no task of {array.id}")
            positions = positions[bisect_right(positions, last.task_position) :]
        return [job_view(task, caller) for task in _in_states(context.store, array, positions, state, limit)]

    return await context.long_work.response(list[JobView], found, at_once=caller.is_admin)


def _in_states(
    store: Store, array: Job, positions: Sequence[int], states: Collection[JobState] | None, limit: int
) -> list[Job]:
    """Return the first ``limit`` of the tasks at ``positions`` that are in one of ``states`` (None: in any)."""
    wanted = (at for at, state in _states(store, array, positions) if states is None or state in states)
    return store.tasks_at(array, list(islice(wanted, limit)))


def _states(store: Store, array: Job, positions: Sequence[int]) -> Iterator[tuple[int, JobState]]:
    """Yield positions, each with the state of its task."""
    record = array.task_record
    assert record is not None
    rows = store.task_states(array.id)
    for each in positions:
        ended = record.state_of(each)
        yield each, JobState(ended) if ended is not None else rows.get(each, JobState.QUEUED)


# -------------------------------------------------------------------------------------------------------------- cancel
def cancel(context: ApiContext, caller: Caller, references: Sequence[str]) -> list[JobView]:
    """Request the cancellation of jobs, arrays and tasks: all, or none if one is unknown or someone else's.

    Returns each job; of tasks their array. Raises NotFound and Refused.
    """
    chosen = [_cancellable(context.store, caller, each) for each in references]
    jobs = context.store.request_cancels(chosen, caller.name, context.clock.now())
    context.wake()
    return views(context.store, jobs, caller)


def _cancellable(store: Store, caller: Caller, reference: str) -> tuple[Job, Sequence[int] | None]:
    name, ids = split_reference(reference)
    job = store.job(name)
    caller.require_owner(job.spec.user, f"cancel {reference}")
    return (job, None) if ids is None else (job, _positions(job, ids))


# --------------------------------------------------------------------------------------------------------------- rerun
@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class RerunRequest:
    """What to run again."""

    failed: bool = False
    """Only what failed: of an array its failed tasks."""
    token: Annotated[str | None, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")] = None
    """Any text of yours. A repeated request with the same token returns the first one's job."""


@router.post("/jobs/{job_id}/rerun", status_code=201)
def rerun_job(context: Context, caller: CurrentCaller, job_id: str, request: RerunRequest) -> SubmittedJob:
    """Submit a job of yours that has ended again, as a new one; of an array all tasks, those of `job-7[3-9]`, or with
    ``failed`` those of them that failed. They keep their ids."""
    store, (name, ids) = context.store, split_reference(job_id)
    job = store.job(name)
    spec = job.spec
    if spec.user != caller.name:
        raise Refused(f"only {spec.user} may run {name} again; you are {caller.name}")
    if spec.profile is not None:
        raise BadInput(f"{name} is a measurement by HCloud; run the job that it measured again")
    if job.is_array:
        array, positions = find_tasks(store, job_id)
        spec = replace(spec, tasks=_tasks(job).only(_chosen(store, array, positions, failed=request.failed)))
    elif ids is not None:
        _tasks(job)  # its NotFound
    else:
        _refuse_unended(job, failed=request.failed)
        if job.array and spec.tasks is not None:
            spec = replace(spec, tasks=spec.tasks.only([job.task_position]))
    return _submit_again(context, caller, job, spec, request.token)


def _chosen(store: Store, array: Job, positions: Sequence[int], *, failed: bool) -> list[int]:
    """Return the positions that are run again; failed ones may be before the others have ended. Raises Refused."""
    states = list(_states(store, array, positions))
    if failed:
        chosen = [at for at, state in states if state is JobState.FAILED]
        if not chosen:
            raise Refused(f"no task of {array.id} that you named has failed; nothing is run again")
        return chosen
    live = [at for at, state in states if state not in JOB_ENDED]
    if live:
        task = _tasks(array).id_at(live[0])
        more = f" and {counted(len(live) - 1, 'more task')} have" if len(live) > 1 else " has"
        raise Refused(f"{array.id}[{task}]{more} not ended; wait for {array.id}, or cancel it first")
    return [at for at, _ in states]


def _refuse_unended(job: Job, *, failed: bool) -> None:
    if job.state not in JOB_ENDED:
        raise Refused(f"{job.id} has not ended ({job.state}); wait for it, or cancel it first")
    if failed and job.state is not JobState.FAILED:
        raise Refused(f"{job.id} has not failed ({job.state}); leave out --failed to run it again")


def _submit_again(context: ApiContext, caller: Caller, job: Job, spec: JobSpec, token: str | None) -> SubmittedJob:
    store, now, target, digest = context.store, context.clock.now(), spec.target, spec.workdir_sha256
    if isinstance(target, BatchTarget) and target.finish_by_at is not None and target.finish_by_at <= now:
        raise BadInput(f"the deadline of {job.id} is in the past ({utc_text(target.finish_by_at)}); submit a new job")
    if digest is not None and not touch_archive(context.uploads_dir, digest, caller):
        raise BadInput(f"the work directory of {job.id} is no longer kept; submit it again from its directory")
    secrets = store.job_secrets(job.id)
    if absent := [each for each in spec.secrets if each not in secrets]:
        raise BadInput(f"secret {absent[0]} of {job.id} is no longer kept; submit a new job")
    spec = replace(spec, after={})  # what it waited for has ended
    submission = Submission(spec=spec, actor=caller.name, token=token, secrets=secrets)
    if not store.known_submissions([submission]):
        context.admit([spec])
    (again,) = store.submit([submission], now)
    context.wake()
    return submitted_job(again, None)
