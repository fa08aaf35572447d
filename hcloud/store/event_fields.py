"""What events say of a submitted job."""

from __future__ import annotations

from typing import Any

from hcloud.core.model import BatchTarget, Job, ServiceTarget
from hcloud.planner.run_times import recorded_features


def task_fields(job: Job) -> dict[str, Any]:
    """Return the fields of the JOB_SUBMITTED event that only a task has."""
    tasks = job.spec.tasks
    if tasks is None or not job.array:
        return {}
    return {"array": job.array, "task": tasks.id_at(job.task_position), "submitted_at": job.submitted_at}


def submitted_fields(job: Job) -> dict[str, Any]:
    """Return the fields of the JOB_SUBMITTED event (see EventKind)."""
    spec, target = job.spec, job.spec.target
    fields: dict[str, Any] = {
        "name": spec.name,
        "tags": dict(spec.tags),
        "target_kind": target.kind,
        "vcpus": spec.resources.vcpus,
        "memory_mib": spec.resources.memory_mib,
        "nodes": spec.nodes.count,
        "priority": spec.priority,
        "features": {} if job.is_array else recorded_features(spec, job.submitted_at),
    }
    if spec.resources.gpus is not None:
        fields |= {"gpus": spec.resources.gpus.words()}
    if spec.image is not None:
        fields |= {"image": spec.image}
    if spec.framework is not None:
        fields |= {"framework": spec.framework}
    if spec.checkpoint is not None:
        fields |= {"checkpoint": f"every {spec.checkpoint.every_s:g} s"}
    if job.is_array and spec.tasks is not None:
        fields |= {"tasks": len(spec.tasks)}
    if job.waits_for:
        fields |= {"after": [f"{each.job_id}:{each.ending}" for each in job.waits_for], "waits": job.wait_text}
    if isinstance(target, BatchTarget):
        fields |= {"deadline_at": job.deadline_at}
    elif isinstance(target, ServiceTarget):
        fields |= {
            "requests_per_s": target.requests_per_s,
            "latency_ms": target.latency_ms,
            "percentile": target.percentile,
        }
    return fields
