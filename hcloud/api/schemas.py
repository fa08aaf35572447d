"""The forms in which jobs, machines and plans leave the daemon. Stable: ``docs/openapi.json`` shows every change.

Money is USD, times are Unix seconds (UTC). Environment values are shown to the job's owner and to admins only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hcloud.api.auth import Caller, Role
from hcloud.core.model import (
    NOTHING,
    Attempt,
    FailureCause,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobId,
    JobSpec,
    JobState,
    Offer,
    Resources,
)

HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as callers see it; the fields are those of ``hcloud.core.model.Job``, with its deadline."""

    id: JobId
    state: JobState
    spec: JobSpec
    submitted_at: float
    deadline_at: float | None
    queued_at: float | None
    not_before_at: float
    awaiting: tuple[InstanceId, ...]
    wait_code: str
    wait_text: str
    attempt: Attempt | None
    attempts_made: int
    failures: tuple[FailureCause, ...]
    cancelled_by: str | None
    finished_at: float | None
    outcome: str
    spent_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """What a submission is answered with, per job and in order."""

    id: JobId
    name: str
    state: JobState
    submitted_at: float
    deadline_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """A machine as callers see it. ``jobs`` hold ``used`` of its capacity now."""

    id: InstanceId
    state: InstanceState
    offer: Offer
    provider_id: str | None
    requested_at: float
    launched_at: float | None
    ready_at: float | None
    seen_at: float | None
    idle_since: float | None
    expires_at: float
    preempt_at: float | None
    terminated_at: float | None
    reason: str
    jobs: tuple[JobId, ...]
    used: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningCandidate:
    """An offer that was considered for a job. ``note`` says why it was not taken ("" for the one that was)."""

    provider: str
    zone: str
    instance_type: str
    market: str
    vcpus: float
    memory_mib: int
    price_usd_per_h: float
    chosen: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKnowing:
    """How a hypothetical job would become known before it runs.

    ``how``: ``profiled`` (``runs`` of its own first, for ``cost_usd`` and ``lasts_s`` at most), ``later`` (the same,
    but not now), ``known`` (taken for something known) or ``unknown`` (taken for a typical application).
    ``predicted``: performance per second by ``measure``, alone, with its 80 % limits. ``code``, ``text``: the reason.
    """

    how: str
    code: str
    text: str
    runs: int = 0
    cost_usd: float | None = None
    lasts_s: float | None = None
    measure: str | None = None
    predicted: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What the next plan would do with one hypothetical job.

    ``action``: ``place`` (on live machines, no new cost), ``launch`` (new machines), ``wait`` (for machines on their
    way, or for a limit to give room), or ``fail`` (it can never run here). ``price_usd_per_h`` is what the launches
    would add per hour; ``instances`` are the live machines it would be placed on. ``code`` and ``text`` are the
    planner's reason. Of a job that is profiled first this is what is done with it after that. ``knowing`` is null where
    nothing is profiled.
    """

    name: str
    action: str
    code: str
    text: str
    price_usd_per_h: float = 0.0
    instances: tuple[InstanceId, ...] = ()
    candidates: tuple[PlanningCandidate, ...] = ()
    knowing: PlannedKnowing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """``code`` is stable and for programs, ``message`` one sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every answer that is not a success."""

    error: ErrorDetail


def job_view(job: Job, caller: Caller) -> JobView:
    """Return ``job`` as ``caller`` may see it."""
    spec = job.spec
    if spec.env and caller.name != spec.user and caller.role is not Role.ADMIN:
        spec = replace(spec, env=dict.fromkeys(spec.env, HIDDEN))
    return JobView(
        id=job.id,
        state=job.state,
        spec=spec,
        submitted_at=job.submitted_at,
        deadline_at=job.deadline_at,
        queued_at=job.queued_at,
        not_before_at=job.not_before_at,
        awaiting=job.awaiting,
        wait_code=job.wait_code,
        wait_text=job.wait_text,
        attempt=job.attempt,
        attempts_made=job.attempts_made,
        failures=job.failures,
        cancelled_by=job.cancelled_by,
        finished_at=job.finished_at,
        outcome=job.outcome,
        spent_usd=job.spent_usd,
    )


def submitted_job(job: Job) -> SubmittedJob:
    """Return the short answer to a submission."""
    return SubmittedJob(
        id=job.id,
        name=job.spec.name,
        state=job.state,
        submitted_at=job.submitted_at,
        deadline_at=job.deadline_at,
    )


def instance_views(
    instances: Sequence[Instance], jobs: Sequence[Job], seen_at: Mapping[InstanceId, float]
) -> list[InstanceView]:
    """Return machines with what the given live jobs hold of each; ``seen_at``: when their workers last answered."""
    used: dict[InstanceId, Resources] = {}
    unit_index: dict[InstanceId, list[JobId]] = {}
    for job in jobs:
        for allocation in job.attempt.allocations if job.attempt is not None else ():
            if not allocation.released:
                held = used.get(allocation.instance_id, NOTHING)
                used[allocation.instance_id] = held.plus(allocation.resources)
                unit_index.setdefault(allocation.instance_id, []).append(job.id)
    fresh = [replace(each, seen_at=seen_at.get(each.id, each.seen_at)) for each in instances]
    return [_instance_view(instance, unit_index, used) for instance in fresh]


def _instance_view(
    instance: Instance, unit_index: Mapping[InstanceId, list[JobId]], used: Mapping[InstanceId, Resources]
) -> InstanceView:
    return InstanceView(
        id=instance.id,
        state=instance.state,
        offer=instance.offer,
        provider_id=instance.provider_id,
        requested_at=instance.requested_at,
        launched_at=instance.launched_at,
        ready_at=instance.ready_at,
        seen_at=instance.seen_at,
        idle_since=instance.idle_since,
        expires_at=instance.expires_at,
        preempt_at=instance.preempt_at,
        terminated_at=instance.terminated_at,
        reason=instance.reason,
        jobs=tuple(dict.fromkeys(unit_index.get(instance.id, ()))),
        used=used.get(instance.id, NOTHING),
    )
