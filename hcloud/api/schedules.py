"""Routes for schedules: jobs that are submitted again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from hcloud import schedules as stored
from hcloud.api.auth import Caller
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.jobs import build_spec
from hcloud.api.schemas import visible_spec
from hcloud.core.errors import BadInput
from hcloud.core.model import JobId, JobSpec
from hcloud.core.schedules import Recurrence, Schedule, ScheduleId
from hcloud.spec.jobfile import JobFile

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=JsonRoute)
_JOBS_SHOWN = 10


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class ScheduleRequest:
    """A job with a schedule."""

    job: JobFile


ScheduleRequests = Annotated[list[ScheduleRequest], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule as returned to callers."""

    id: ScheduleId
    name: str
    user: str
    spec: JobSpec
    """What is submitted each time."""
    recurrence: Recurrence
    created_at: float
    next_at: float | None
    """When it fires next; null: it is paused, or never fires again."""
    paused_by: str
    """User who paused it; "" if it is not paused."""
    fired_at: float | None
    """For which time it submitted a job last."""
    jobs: tuple[JobId, ...]
    """Its last jobs, oldest first."""


def _view(schedule: Schedule, caller: Caller) -> ScheduleView:
    spec = schedule.spec
    return ScheduleView(
        id=schedule.id,
        name=spec.name,
        user=spec.user,
        spec=visible_spec(spec, caller),
        recurrence=schedule.recurrence,
        created_at=schedule.created_at,
        next_at=schedule.next_at,
        paused_by=schedule.paused_by,
        fired_at=schedule.fired_at,
        jobs=schedule.jobs[-_JOBS_SHOWN:],
    )


@router.post("", status_code=201)
def save_schedules(context: Context, caller: CurrentCaller, requests: ScheduleRequests) -> list[ScheduleView]:
    """Create schedules, or replace your own of the same names; none of them if one is invalid."""
    now = context.clock.now()
    given: Sequence[tuple[JobSpec, Recurrence]] = [
        _checked(context, caller, index, request) for index, request in enumerate(requests)
    ]
    names = [spec.name for spec, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"two schedules are named {twice}; give each a name of its own")
    saved = []
    for (spec, recurrence), request in zip(given, requests, strict=True):
        secrets = context.seal(caller.name, request.job.secret_values()) if spec.secrets else {}
        schedule = Schedule(id="", spec=spec, recurrence=recurrence, created_at=now, next_at=None, secrets=secrets)
        saved.append(_view(stored.save_schedule(context.store, schedule, caller.name, now), caller))
    context.wake()
    return saved


def _checked(context: ApiContext, caller: Caller, index: int, request: ScheduleRequest) -> tuple[JobSpec, Recurrence]:
    recurrence = request.job.to_recurrence()
    if recurrence is None:
        raise BadInput(f"body[{index}].job.schedule: is missing; a job without it is submitted to /v1/jobs")
    spec = build_spec(context, caller, index, request.job)
    context.admit([spec])
    return replace(spec, after={}), recurrence


@router.get("")
def list_schedules(context: Context, caller: CurrentCaller, user: str | None = None) -> list[ScheduleView]:
    """List schedules, of one user or all."""
    return [_view(each, caller) for each in context.store.schedules(user=user)]


@router.get("/{schedule_id}")
def show_schedule(context: Context, caller: CurrentCaller, schedule_id: str) -> ScheduleView:
    """Show one schedule."""
    return _view(stored.find_schedule(context.store, schedule_id), caller)


@router.post("/{schedule_id}/pause")
def pause_schedule(context: Context, caller: CurrentCaller, schedule_id: str) -> ScheduleView:
    """Let a schedule (your own, unless you are an admin) fire no more until it is resumed. Its jobs go on."""
    _require_own(context, caller, schedule_id, "pause")
    return _view(stored.pause_schedule(context.store, schedule_id, caller.name, context.clock.now()), caller)


@router.post("/{schedule_id}/resume")
def resume_schedule(context: Context, caller: CurrentCaller, schedule_id: str) -> ScheduleView:
    """Let a schedule (your own, unless you are an admin) fire again, from its next time on."""
    _require_own(context, caller, schedule_id, "resume")
    return _view(stored.resume_schedule(context.store, schedule_id, caller.name, context.clock.now()), caller)


@router.post("/{schedule_id}/delete")
def delete_schedule(context: Context, caller: CurrentCaller, schedule_id: str) -> ScheduleView:
    """Delete a schedule (your own, unless you are an admin). Its jobs go on."""
    _require_own(context, caller, schedule_id, "delete")
    return _view(stored.remove_schedule(context.store, schedule_id, caller.name, context.clock.now()), caller)


def _require_own(context: ApiContext, caller: Caller, schedule_id: str, verb: str) -> None:
    caller.require_owner(stored.find_schedule(context.store, schedule_id).spec.user, f"{verb} {schedule_id}")
