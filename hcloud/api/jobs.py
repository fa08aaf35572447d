"""Routes for jobs: submit, plan, show, cancel, explain, and read output."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass
from starlette.concurrency import run_in_threadpool

from hcloud.api import arrays
from hcloud.api.asked_for import asked_for_line
from hcloud.api.auth import Caller
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.job_history import JobTimeline, build_timeline
from hcloud.api.operations import WaitS
from hcloud.api.schemas import JobView, PlannedJob, SubmittedJob, submitted_job
from hcloud.api.unit_logs import LogPart, LogQuery, poll_until, read_log_part
from hcloud.api.uploads import touch_archive
from hcloud.apply.kept_checkpoints import kept_checkpoint
from hcloud.buckets import BucketProblem
from hcloud.classifier.applications import identify
from hcloud.core.dependencies import DependencyError, Ending, Upstream, holds, resolve_names
from hcloud.core.errors import BadInput, ConfigError, NotFound, Refused
from hcloud.core.image_names import IMAGE_LOGIN
from hcloud.core.model import JOB_ENDED, JOB_ON_INSTANCE, Job, JobSpec, JobState
from hcloud.planner.due_times import critical_path
from hcloud.planner.gpu_refusals import why_no_gpus
from hcloud.planner.placement.room_reservation import PLANNED
from hcloud.planner.run_times import forecast_line
from hcloud.planner.text import seconds
from hcloud.provider import Stream
from hcloud.spec.job_variables import REFERENCE_MARK
from hcloud.spec.jobfile import JobFile
from hcloud.spec.validation import counted
from hcloud.store import Submission

_log = logging.getLogger("hcloud")
router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)
MAX_JOBS_PER_REQUEST = 10_000
MAX_CANCELLED = 1000
LOG_PART_BYTES = 256 * 1024
INPUTS_SHOWN = 5
_PLANNED = TypeAdapter(list[PlannedJob])


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class JobRequest:
    """A job to submit."""

    job: JobFile
    token: Annotated[str | None, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")] = None
    """Any text of yours. A repeated submission with the same token returns the first one's job."""


JobRequests = Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_JOBS_PER_REQUEST)]
JobIds = Annotated[list[str], Field(min_length=1, max_length=MAX_CANCELLED)]


@router.post("/jobs", status_code=201)
def submit_jobs(context: Context, caller: CurrentCaller, requests: JobRequests) -> list[SubmittedJob]:
    """Submit jobs: all of them, or none if one is invalid. Returns them in the same order."""
    specs = _build_specs(context, caller, requests)
    submissions = [
        Submission(spec=spec, actor=caller.name, token=request.token, after=after)
        for spec, request, after in zip(specs, requests, _dependencies(context, caller, specs), strict=True)
    ]
    _admit_new(context, submissions)
    submissions = [
        replace(each, secrets=context.seal(caller.name, request.job.secret_values())) if each.spec.secrets else each
        for each, request in zip(submissions, requests, strict=True)
    ]
    jobs = context.store.submit(submissions, context.clock.now())
    context.wake()
    chances = _deadline_probabilities(context, jobs)
    return [submitted_job(job, chance) for job, chance in zip(jobs, chances, strict=True)]


def _deadline_probabilities(context: ApiContext, jobs: Sequence[Job]) -> Sequence[float | None]:
    try:
        return context.run_times().deadline_probabilities(jobs, context.clock.now())
    except Exception:  # noqa: BLE001 any defect: the jobs are submitted
        _log.exception("forecasting the run times of submitted jobs failed")
        return [None] * len(jobs)


def _admit_new(context: ApiContext, submissions: Sequence[Submission]) -> None:
    # A repeated submission is answered as before, even if the queue is full by now: only new jobs are checked.
    try:
        context.admit([each.spec for each in submissions])
    except Refused:
        known = context.store.known_submissions(submissions)
        new = [each for each in submissions if each.token is None or (each.spec.user, each.token) not in known]
        if len(new) == len(submissions):
            raise
        if new:
            context.admit([each.spec for each in new])


@router.post("/plan", response_model=list[PlannedJob])
async def plan_jobs(context: Context, caller: CurrentCaller, requests: JobRequests) -> Response:
    """Preview what the planner would do for these jobs, and at what price. Changes nothing."""

    def planned() -> list[PlannedJob]:
        specs = _build_specs(context, caller, requests)
        _dependencies(context, caller, specs)
        context.admit(specs)
        found = _PLANNED.validate_python(context.preview(specs))
        has_image = [spec.image is None or context.images.has_found(spec.image) for spec in specs]
        lines = [
            asked_for_line(spec, has_image=there, is_planned=True) for spec, there in zip(specs, has_image, strict=True)
        ]
        return [replace(each, asks_for=line) for each, line in zip(found, lines, strict=True)]

    return await context.long_work.response(list[PlannedJob], planned, at_once=caller.is_admin)


def _build_specs(context: ApiContext, caller: Caller, requests: Sequence[JobRequest]) -> list[JobSpec]:
    specs = []
    for index, request in enumerate(requests):
        if request.job.schedule is not None:
            raise BadInput(f"body[{index}].job.schedule: makes a schedule of it; POST it to /v1/schedules")
        specs.append(build_spec(context, caller, index, request.job))
    return specs


def build_spec(context: ApiContext, caller: Caller, index: int, job: JobFile) -> JobSpec:
    """Return the spec of a job in a request body. Raises BadInput: it is not complete, or is in the past."""
    try:
        spec = job.to_spec(caller.name, context.clock.now())
        job.secret_values()  # all there
    except ConfigError as error:
        raise BadInput(f"body[{index}].job.{error}") from error
    if references := job.secret_references():
        try:
            context.check_secrets(caller.name, references)
        except BadInput as error:
            raise BadInput(f"body[{index}].job.{error}") from error
    if spec.resources.gpus is not None and (problem := _why_no_gpus(context, spec)):
        raise BadInput(f"body[{index}].job.resources.gpus: {problem}")
    if spec.image is not None:
        _check_image(context, spec.image, job.secret_values().get(IMAGE_LOGIN, ""), index)
    if context.buckets is not None:
        # What it waits for, or another run of it, may only write them.
        exist = not spec.after and job.schedule is None
        try:
            context.buckets.check_inputs(spec.inputs, spec.user, spec.resources.disk_gib, exist=exist)
            context.buckets.check_outputs(spec.bucket_outputs, spec.user)
        except BucketProblem as error:
            raise BadInput(f"body[{index}].job.{error}") from error
    if spec.workdir_sha256 is not None and not touch_archive(context.uploads_dir, spec.workdir_sha256, caller):
        raise BadInput(
            f"body[{index}].job.workdir_sha256: archive {spec.workdir_sha256} has not been uploaded by you; "
            "PUT it to /v1/uploads first"
        )
    return spec


def _check_image(context: ApiContext, image: str, login: str, index: int) -> None:
    """Ask an image's registry for it. Raises BadInput: it has none such. Logins in secret managers are not read."""
    if login.startswith(REFERENCE_MARK):
        return
    try:
        context.images.check(image, login)
    except BadInput as error:
        raise BadInput(f"body[{index}].job.image: {error}") from error


def _why_no_gpus(context: ApiContext, spec: JobSpec) -> str:
    """Return why no machine can have the GPUs of a job; empty: one can, or not all offers are known now."""
    named = bool(spec.instance_types)
    offers = [offer for offer in context.offers() if spec.may_run_on(offer.instance_type.name)]
    providers = context.status().get("providers", {}).values()
    if not providers or not all(each.get("offers") for each in providers):
        return ""
    return why_no_gpus(spec.resources.gpus, offers, named=named)


def _dependencies(context: ApiContext, caller: Caller, specs: Sequence[JobSpec]) -> list[dict[Upstream, Ending]]:
    """Return what each job waits for. Raises BadInput: an unknown job, a cycle, or a job of somebody else."""
    if not any(spec.after for spec in specs):
        return [{} for _ in specs]
    try:
        resolved = resolve_names([spec.name for spec in specs], [spec.after for spec in specs])
    except DependencyError as error:
        raise BadInput(f"body[{error.position}].job.after.{error.key}: {error}") from error
    for index, found in enumerate(resolved):
        for upstream in (each for each in found if isinstance(each, str)):
            if problem := _why_not_awaited(context, caller, upstream, found[upstream]):
                raise BadInput(f"body[{index}].job.after.{upstream}: {problem}")
    return resolved


def _why_not_awaited(context: ApiContext, caller: Caller, job_id: str, ending: Ending) -> str:
    """Return why no job of ``caller`` can wait for ``job_id``; empty: it can."""
    try:
        job = context.store.job(job_id)
    except NotFound as error:
        return str(error)
    if job.spec.user != caller.name and not caller.is_admin:
        return f"is a job of {job.spec.user}; you can wait for your own jobs only"
    if job.array:
        return f"is a task of {job.array}; wait for {job.array}, which ends with its last task"
    if job.spec.target.kind == "service" and job.state not in JOB_ENDED and ending == "succeeded":
        return "is a service, which never succeeds by itself; wait for finished"
    if job.state in JOB_ENDED and not holds(ending, job.state):
        return f"has {'been ' if job.state is JobState.CANCELLED else ''}{job.state} already, so this could never start"
    return ""


@router.get("/jobs", response_model=list[JobView])
async def list_jobs(
    context: Context,
    caller: CurrentCaller,
    state: Annotated[list[JobState] | None, Query()] = None,
    user: str | None = None,
    name: str | None = None,
    tag: Annotated[str | None, Query(description="key, or key=value")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    before: Annotated[str | None, Query(description="id of the last job of the previous page")] = None,
) -> Response:
    """List jobs, newest first. Arrays are listed with the counts of their tasks, and not the tasks."""

    def views() -> list[JobView]:
        jobs = context.store.jobs(states=state, user=user, name=name, tag=tag, limit=limit, before=before)
        return arrays.views(context.store, jobs, caller)

    return await context.long_work.response(list[JobView], views, at_once=caller.is_admin)


@router.get("/jobs/{job_id}")
async def show_job(context: Context, caller: CurrentCaller, job_id: str, wait_s: WaitS = 0) -> JobView:
    """Show one job, array, or task (`job-7[3]`); with ``wait_s``, wait until it has ended."""
    job = await poll_until(context, _ended, partial(arrays.find_job, context.store, job_id), wait_s)
    return await run_in_threadpool(arrays.view, context.store, job, caller)


def _ended(job: Job) -> bool:
    return job.state in JOB_ENDED


@router.post("/jobs/{job_id}/cancel")
def cancel_job(context: Context, caller: CurrentCaller, job_id: str) -> JobView:
    """Request the cancellation of a job, an array, or tasks such as `job-7[3-9]` (your own, unless you are an admin).

    What has ended does not change. Of tasks, their array is returned.
    """
    return arrays.cancel(context, caller, [job_id])[0]


@router.post("/jobs/cancel")
def cancel_jobs(context: Context, caller: CurrentCaller, job_ids: JobIds) -> list[JobView]:
    """Request the cancellation of jobs, arrays and tasks such as `job-7[3-9]`: all, or none if one of them is unknown,
    or is not yours and you are no admin. Returns them in the same order, of tasks their array."""
    return arrays.cancel(context, caller, job_ids)


@router.get("/jobs/{job_id}/explain", response_model=JobTimeline)
async def explain_job(context: Context, caller: CurrentCaller, job_id: str) -> Response:
    """Return a job's timeline: each decision and event in order, with the numbers behind it."""
    work = partial(timeline_of, context, caller, job_id)
    return await context.long_work.response(JobTimeline, work, at_once=caller.is_admin)


def timeline_of(context: ApiContext, caller: Caller, job_id: str) -> JobTimeline:
    """Return a job's timeline as visible to ``caller``. Raises NotFound."""
    job, now = arrays.find_job(context.store, job_id), context.clock.now()
    try:
        run_time = forecast_line(job, context.expected_run_time(job), context.run_times(), now)
    except Exception:  # noqa: BLE001 any defect: the timeline is more important
        _log.exception("forecasting the run time of %s failed", job_id)
        run_time = ""
    planned = context.planned_starts().get(job.id) if job.wait_code == PLANNED else None
    planned_start = "" if planned is None else planned.sentence(now)
    path = "" if job.state in JOB_ENDED else critical_path(job.array or job.id, context.due_times())
    waits = job.state not in JOB_ENDED and job.state not in JOB_ON_INSTANCE
    runs = job.state in JOB_ON_INSTANCE and job.spec.profile is None and caller.may_see(job.spec.user)
    why = context.unprofiled().get(identify(job.spec).program) if runs else None
    return build_timeline(
        context.store,
        job,
        whole=caller.may_see(job.spec.user),
        run_time=run_time,
        planned_start=planned_start,
        critical_path=path,
        fair_share=context.fair_share(job.spec) if waits else "",
        profiling="" if why is None else why.sentence(),
        asks_for=asked_for_line(job.spec, whole=caller.may_see(job.spec.user)),
        inputs=_input_words(job) if caller.may_see(job.spec.user) else "",
        checkpoint=_checkpoint_words(context, job, now),
    )


def _input_words(job: Job) -> str:
    """Return one line about what machines fetch for a job; empty if nothing."""
    inputs = job.spec.inputs
    named = [f"{each.to} from {each.source}" for each in inputs[:INPUTS_SHOWN]]
    more = [f"{len(inputs) - INPUTS_SHOWN} more"] if len(inputs) > INPUTS_SHOWN else []
    return f"inputs: {', '.join([*named, *more])}" if inputs else ""


def _checkpoint_words(context: ApiContext, job: Job, now: float) -> str:
    """Return one sentence about what is kept for the next attempt of a job; empty if it has ended or keeps nothing."""
    if job.spec.checkpoint is None or job.state in JOB_ENDED:
        return ""
    ranks = range(job.spec.nodes.count)
    found = [kept_checkpoint(context.checkpoints_dir, job.id, rank) for rank in ranks]
    kept = [each for each in found if each is not None]
    if not kept:
        return (
            f"checkpoint: none yet; {job.spec.checkpoint.path} is copied every {seconds(job.spec.checkpoint.every_s)}"
        )
    oldest = min(kept, key=lambda each: each.at)
    whose = "" if len(ranks) == 1 else f" of {len(kept)} of {len(ranks)} nodes"
    text = f"checkpoint{whose}: {counted(sum(each.files for each in kept), 'file')}, attempt {oldest.attempt}"
    return f"{text}, {seconds(max(0.0, now - oldest.at))} ago; the next attempt begins there"


@router.get(
    "/jobs/{job_id}/logs",
    response_class=Response,
    responses={
        200: {
            "description": "Bytes from `offset`. X-HCloud-Next-Offset: where to continue; X-HCloud-End: true if this "
            "attempt's output is complete; X-HCloud-Attempt and X-HCloud-Job-State: its number and the job's state.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def read_logs(
    context: Context,
    caller: CurrentCaller,
    job_id: str,
    stream: Stream = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=4 * LOG_PART_BYTES)] = LOG_PART_BYTES,
    rank: Annotated[int, Query(ge=0, le=100_000)] = 0,
    attempt: Annotated[int | None, Query(ge=1, le=2**31, description="default: the current or last attempt")] = None,
    wait_s: WaitS = 0,
    other_offset: Annotated[
        int | None, Query(ge=0, le=2**53, description="do not wait once the other stream has more from here")
    ] = None,
    tail: Annotated[
        int | None, Query(ge=1, le=LOG_PART_BYTES, description="only the last bytes of an ended unit's output")
    ] = None,
) -> Response:
    """Read a job's output (your own, unless you are an admin), live or archived.

    With ``wait_s``, wait until there is more.
    """
    job = await run_in_threadpool(arrays.find_job, context.store, job_id)
    caller.require_owner(job.spec.user, f"read the output of {job_id}")
    if job.is_array and job.spec.tasks is not None:
        raise BadInput(f"{job.id} is an array; name one of its tasks, such as {job.id}[{job.spec.tasks.id_at(0)}]")
    query = LogQuery(job_id=job.id, stream=stream, offset=offset, limit=limit, rank=rank, attempt=attempt, tail=tail)
    other_query = None
    if other_offset is not None:
        other: Stream = "stderr" if stream == "stdout" else "stdout"
        other_query = replace(query, stream=other, offset=other_offset, limit=1)

    def read() -> tuple[LogPart, bool]:
        part = read_log_part(context, query)
        has_more = bool(part.chunk.content) or part.chunk.end
        return part, has_more or (other_query is not None and bool(read_log_part(context, other_query).chunk.content))

    part, _ = await poll_until(context, itemgetter(1), read, wait_s)
    headers = {
        "X-HCloud-Next-Offset": str(part.chunk.next_offset),
        "X-HCloud-End": "true" if part.chunk.end else "false",
        "X-HCloud-Attempt": str(part.attempt),
        "X-HCloud-Job-State": part.state.value,
    }
    return Response(part.chunk.content, media_type="application/octet-stream", headers=headers)
