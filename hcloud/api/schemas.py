"""Response bodies for jobs, machines and plans. Stable: ``docs/openapi.json`` shows every change.

Money is USD, times are Unix seconds (UTC). Environment values are visible to the job's owner and to admins only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hcloud.api.auth import Caller
from hcloud.core.cpu_topology import cpu_list
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
class TaskCounts:
    """How many tasks of an array are where."""

    total: int
    waiting: int
    """Those that have not started, whether or not a machine is on the way."""
    running: int
    succeeded: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as returned to callers: the fields of ``hcloud.core.model.Job`` and its deadline."""

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
    unmet_code: str
    unmet_text: str
    attempt: Attempt | None
    attempts_made: int
    failures: tuple[FailureCause, ...]
    cancelled_by: str | None
    finished_at: float | None
    outcome: str
    spent_usd: float
    array: JobId
    """The array of which it is a task; "" if it is a job of its own."""
    task: int | None
    """Id of the task in its array; null if it is none."""
    tasks: TaskCounts | None
    """The tasks of an array; null for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """The response to a submission, per job and in order."""

    id: JobId
    name: str
    state: JobState
    submitted_at: float
    deadline_at: float | None
    deadline_probability: float | None = None
    """That it meets its deadline if it starts now, by past runs; None: it has none, or no run is known."""
    tasks: int | None = None
    """Number of tasks of an array; null for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """A machine as returned to callers."""

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
    """Jobs that run there now."""
    used: Resources
    """Resources that these jobs use."""
    topology: str
    """Its sockets, cores, caches and NUMA nodes in words; empty: it does not report them."""
    pinned: Mapping[JobId, str]
    """By job that runs on some of its CPUs only, those: ``0-3,8``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningCandidate:
    """An offer that was considered for a job."""

    provider: str
    zone: str
    instance_type: str
    market: str
    vcpus: float
    memory_mib: int
    price_usd_per_h: float
    chosen: bool = False
    note: str = ""
    """Why it was not chosen; "" for the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKnowing:
    """How the performance of a hypothetical job would become known before it runs."""

    how: str
    """``profiled``, ``later``, ``known`` or ``unknown``.

    ``profiled``: by profiling runs first; ``later``: the same, but not now; ``known``: it matches a known
    application; ``unknown``: it is treated as a typical one.
    """
    code: str
    """Code of the reason."""
    text: str
    """The reason."""
    runs: int = 0
    """Number of profiling runs."""
    cost_usd: float | None = None
    """Maximum cost of the profiling runs."""
    lasts_s: float | None = None
    """Maximum duration of the profiling runs."""
    measure: str | None = None
    """Unit of the prediction."""
    predicted: float | None = None
    """Predicted performance per second without neighbours."""
    predicted_low: float | None = None
    """Lower 80 % limit."""
    predicted_high: float | None = None
    """Upper 80 % limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What the next plan would do with a hypothetical job, after its profiling runs if there are any.

    Of an array: what it would do with the first task, and the price of all machines launched for its tasks.
    """

    name: str
    action: str
    """``place`` on live machines, ``launch`` new ones, ``wait`` or ``fail``.

    ``wait``: for machines that are starting, or for a limit. ``fail``: the job can never run here.
    """
    code: str
    """Code of the planner's reason."""
    text: str
    """The planner's reason."""
    price_usd_per_h: float = 0.0
    """Additional cost per hour of the launches."""
    instances: tuple[InstanceId, ...] = ()
    """Live machines that it would be placed on."""
    candidates: tuple[PlanningCandidate, ...] = ()
    knowing: PlannedKnowing | None = None
    """Null if nothing is profiled."""
    deadline_probability: float | None = None
    """That it meets its deadline if it starts now, by past runs; None: it has none, or no run is known."""
    asks_for: str = ""
    """Image, framework, GPUs, secret variables, outputs and growing memory, as one line; "" if nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """Code and message of an error."""

    code: str
    """Stable, for programs."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every error response."""

    error: ErrorDetail


def visible_spec(spec: JobSpec, caller: Caller) -> JobSpec:
    """Return a spec as visible to ``caller``: others see its size, not what it does."""
    tasks = spec.tasks
    if caller.may_see(spec.user):
        return spec
    return replace(
        spec,
        command=(HIDDEN,),
        setup=spec.setup and HIDDEN,
        image=spec.image and HIDDEN,
        inputs=(),
        outputs=(HIDDEN,) * len(spec.outputs),
        bucket_outputs=(),
        checkpoint=spec.checkpoint and replace(spec.checkpoint, path=HIDDEN),
        env=dict.fromkeys(spec.env, HIDDEN),
        workdir_sha256=None,
        workdir_content_sha256=None,
        progress=None,
        metrics=None,
        tasks=tasks and replace(tasks, matrix=tuple((name, (HIDDEN,) * len(each)) for name, each in tasks.matrix)),
    )


def job_view(job: Job, caller: Caller, counts: TaskCounts | None = None) -> JobView:
    """Return ``job`` as visible to ``caller``: others see that it exists, its size and its cost, not what it does.

    ``counts``: those of the tasks of an array.
    """
    tasks = job.spec.tasks
    return JobView(
        id=job.id,
        state=job.state,
        spec=visible_spec(job.spec, caller),
        submitted_at=job.submitted_at,
        deadline_at=job.deadline_at,
        queued_at=job.queued_at,
        not_before_at=job.not_before_at,
        awaiting=job.awaiting,
        wait_code=job.wait_code,
        wait_text=job.wait_text,
        unmet_code=job.unmet_code,
        unmet_text=job.unmet_text,
        attempt=job.attempt,
        attempts_made=job.attempts_made,
        failures=job.failures,
        cancelled_by=job.cancelled_by,
        finished_at=job.finished_at,
        outcome=job.outcome,
        spent_usd=job.spent_usd,
        array=job.array,
        task=tasks.id_at(job.task_position) if tasks is not None and job.array else None,
        tasks=counts,
    )


def submitted_job(job: Job, deadline_probability: float | None) -> SubmittedJob:
    """Return the short form that answers a submission."""
    return SubmittedJob(
        id=job.id,
        name=job.spec.name,
        state=job.state,
        submitted_at=job.submitted_at,
        deadline_at=job.deadline_at,
        deadline_probability=deadline_probability,
        tasks=None if job.spec.tasks is None else len(job.spec.tasks),
    )


def instance_views(
    instances: Sequence[Instance], jobs: Sequence[Job], seen_at: Mapping[InstanceId, float]
) -> list[InstanceView]:
    """Return machines with the jobs and resources that the given live jobs occupy.

    ``seen_at``: when their workers last answered (Unix seconds).
    """
    used: dict[InstanceId, Resources] = {}
    unit_index: dict[InstanceId, list[JobId]] = {}
    pinned: dict[InstanceId, dict[JobId, str]] = {}
    for job in jobs:
        for allocation in job.attempt.allocations if job.attempt is not None else ():
            if not allocation.released:
                if allocation.cpus:
                    pinned.setdefault(allocation.instance_id, {})[job.id] = cpu_list(allocation.cpus)
                held = used.get(allocation.instance_id, NOTHING)
                used[allocation.instance_id] = held.plus(allocation.resources)
                unit_index.setdefault(allocation.instance_id, []).append(job.id)
    fresh = [replace(each, seen_at=seen_at.get(each.id, each.seen_at)) for each in instances]
    return [_instance_view(each, unit_index, used, pinned.get(each.id, {})) for each in fresh]


def _instance_view(
    instance: Instance,
    unit_index: Mapping[InstanceId, list[JobId]],
    used: Mapping[InstanceId, Resources],
    pinned: Mapping[JobId, str],
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
        pinned=pinned,
        topology=instance.cpu_topology.words() if instance.cpu_topology is not None else "",
    )
