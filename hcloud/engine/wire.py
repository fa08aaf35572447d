"""How units and reports look between daemon and worker: plain dictionaries of msgpack and JSON types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from hcloud.core.arrays import TASKS_MOST
from hcloud.core.cpu_topology import CpuTopology, cpus_from, topology_from
from hcloud.core.errors import UnitRefused, WorkerUnreachable
from hcloud.core.estimates import Findings, Measure, Reading
from hcloud.core.model import Checkpoint, FailureCause, MetricsHook, ProfileRequest, ProgressHook
from hcloud.core.plain import to_plain
from hcloud.core.resources import GpuDevice, devices_from, resources_from
from hcloud.core.task_runs import DETAIL_CHARACTERS_MOST, RUN_TASKS_MOST, TaskEnds, TaskProgress, UnitTasks
from hcloud.provider import (
    CommandResult,
    ExitRecord,
    OutputsManifest,
    UnitReport,
    UnitSample,
    UnitSpec,
    UnitState,
    UnitStream,
    WorkerReport,
)

PROTOCOL = 1
"""Version of the messages between agents and gateway (``gateway.proto``). The gateway refuses agents of any other."""
NOTE_CHARACTERS_MAX = 500
INPUTS = "inputs.json"
"""Name of the list of a unit's inputs in its directory."""
UNIT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def unit_to_wire(spec: UnitSpec) -> dict[str, Any]:
    """Return the spec as a plain dictionary; ``workdir`` and ``restore`` (paths of the daemon's host) stay out of it,
    and of ``inputs`` it says only whether there are any.

    So do ``refusal`` and ``secrets``, which agents of before do not know.
    """
    plain: dict[str, Any] = to_plain(spec) | {"env": dict(spec.env), "workdir": None}
    del plain["refusal"], plain["refusal_cause"], plain["secrets"], plain["restore"]
    plain["inputs"] = INPUTS if spec.inputs is not None else None
    newer = ("inputs", "outputs", "bucket_outputs", "checkpoint", "cpus", "gpus", "tasks", "framework", "addresses")
    for name in newer:  # nor do they know these
        if not plain[name]:
            del plain[name]
    if spec.resources.gpus is None:
        del plain["resources"]["gpus"]
    if plain["profile"] is not None and plain["profile"]["promised_ms"] is None:
        del plain["profile"]["promised_ms"]
    return plain


def unit_from_wire(plain: Mapping[str, Any]) -> UnitSpec:
    """Return the spec again.

    Raises:
        UnitRefused: the id could not be a directory's name, or the command is empty.
    """
    if not UNIT_ID.fullmatch(plain["id"]):
        raise UnitRefused(f"{plain['id']!r} cannot be a unit id: letters, digits, '.', '_' and '-' only")
    if not plain["command"]:
        raise UnitRefused("the command is empty")
    metrics, progress, profile = plain["metrics"], plain["progress"], plain.get("profile")
    if metrics is not None:
        probe = metrics["probe"]
        metrics = MetricsHook(**{**metrics, "probe": tuple(probe) if probe else None})
    checkpoint = plain.get("checkpoint")
    changes = {
        "command": tuple(plain["command"]),
        "peers": tuple(plain["peers"]),
        "outputs": tuple(plain.get("outputs", ())),
        "bucket_outputs": tuple(plain.get("bucket_outputs", ())),
        "cpus": tuple(plain.get("cpus", ())),
        "tasks": _tasks_from_wire(plain["tasks"]) if plain.get("tasks") is not None else None,
        "addresses": tuple(plain.get("addresses", ())),
        "checkpoint": Checkpoint(**checkpoint) if checkpoint is not None else None,
        "gpus": tuple(plain.get("gpus", ())),
        "resources": resources_from(plain["resources"]),
        "progress": ProgressHook(**progress) if progress is not None else None,
        "metrics": metrics,
        "profile": _request_from_wire(profile) if profile is not None else None,
    }
    return UnitSpec(**{**plain, **changes})


def _tasks_from_wire(plain: Mapping[str, Any]) -> UnitTasks:
    tasks = UnitTasks(
        positions=tuple((int(first), int(last)) for first, last in plain["positions"]),
        ids=tuple(plain["ids"]),
        first_job=int(plain["first_job"]),
        matrix=tuple((name, tuple(values)) for name, values in plain["matrix"]),
        begin_within_s=plain["begin_within_s"],
    )
    if not 0 < len(tasks) <= RUN_TASKS_MOST or len(tasks.ids) != len(tasks):
        raise UnitRefused(f"a unit runs 1 to {RUN_TASKS_MOST} tasks, not {len(tasks)}")
    return tasks


def progress_to_wire(progress: TaskProgress) -> dict[str, Any]:
    """Return what became of a unit's tasks as a plain dictionary."""
    ended = [
        [each.first, each.last, each.started_at, each.ended_at, each.exit_code, each.cause, each.detail]
        for each in progress.ended
    ]
    return {"ended": ended, "begun": progress.begun}


def progress_from_wire(plain: Mapping[str, Any]) -> TaskProgress:
    """Return what became of a unit's tasks. Raises ValueError, KeyError or TypeError: a machine sent something else."""
    ended, seen = list[TaskEnds](), 0
    for first, last, started_at, ended_at, code, cause, detail in plain["ended"]:
        each = TaskEnds(
            first=_whole(first),
            last=_whole(last),
            started_at=_finite(started_at),
            ended_at=_finite(ended_at),
            exit_code=None if code is None else _whole(code, 255),
            cause=None if cause is None else FailureCause(cause),
            detail="".join(one if one.isprintable() else "?" for one in str(detail))[:DETAIL_CHARACTERS_MOST],
        )
        seen += each.count
        is_plain = each.count == 1 or each.cause is None
        if each.count < 1 or seen > RUN_TASKS_MOST or each.ended_at < each.started_at or not is_plain:
            raise ValueError("a report of tasks is not in order")
        ended.append(each)
    begun = tuple((_whole(first), _whole(last)) for first, last in plain["begun"])
    if sum(max(0, last - first) + 1 for first, last in begun) > RUN_TASKS_MOST:
        raise ValueError("a report of tasks is not in order")
    return TaskProgress(ended=tuple(ended), begun=begun)


def _whole(value: object, most: int = TASKS_MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no whole number up to {most}")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _request_from_wire(plain: Mapping[str, Any]) -> ProfileRequest:
    changes: dict[str, Any] = {
        "steps_vcpus": tuple(plain["steps_vcpus"]),
        "sources": tuple(plain["sources"]),
        "expected": tuple(Reading(**each) for each in plain.get("expected", ())),
    }
    if plain.get("unit_id") and not UNIT_ID.fullmatch(plain["unit_id"]):
        raise UnitRefused(f"{plain['unit_id']!r} cannot be a unit id: letters, digits, '.', '_' and '-' only")
    if not changes["steps_vcpus"]:
        raise UnitRefused("a profiling run needs at least one size to measure at (steps_vcpus)")
    return ProfileRequest(**{**plain, **changes})


def findings_from_wire(plain: Mapping[str, Any]) -> Findings:
    """Return findings again. Raises KeyError, TypeError or ValueError where they are no findings."""
    measure = plain["measure"]
    changes = {
        "measure": Measure(measure) if measure is not None else None,
        "readings": tuple(Reading(**each) for each in plain["readings"]),
        "use": tuple(float(each) for each in plain["use"]),
        "notes": tuple(plain["notes"]),
    }
    return Findings(**{**plain, **changes})


def exit_to_wire(record: ExitRecord) -> dict[str, Any]:
    """Return the exit record as a plain dictionary."""
    plain: dict[str, Any] = to_plain(record)
    return plain | {"cause": record.cause.value if record.cause else None}


def exit_from_wire(plain: Mapping[str, Any]) -> ExitRecord:
    """Return the exit record again."""
    cause, findings = plain["cause"], plain.get("findings")
    changes = {
        "cause": FailureCause(cause) if cause else None,
        "findings": findings_from_wire(findings) if findings is not None else None,
    }
    return ExitRecord(**{**plain, **changes})


def unit_report_from_wire(plain: Mapping[str, Any]) -> UnitReport:
    """Return one unit's report."""
    wrote = plain.get("wrote")  # agents of before do not say it
    return UnitReport(
        id=plain["id"],
        state=UnitState(plain["state"]),
        started_at=plain["started_at"],
        sample=_sample_from_wire(plain["sample"]) if plain["sample"] else None,
        exit=exit_from_wire(plain["exit"]) if plain["exit"] else None,
        wrote=tuple(map(stream_name, wrote)) if wrote is not None else None,
        tasks=progress_from_wire(plain["tasks"]) if plain.get("tasks") is not None else None,
    )


_SAMPLED = frozenset(each.name for each in fields(UnitSample))


def _sample_from_wire(plain: Mapping[str, Any]) -> UnitSample:
    known = {name: value for name, value in plain.items() if name in _SAMPLED}  # a later agent may say more
    return UnitSample(**{**known, "cpus": cpus_from(plain.get("cpus", ()))})


def report_from_wire(instance_id: str, plain: Mapping[str, Any]) -> WorkerReport:
    """Return a worker's report; ``plain`` has ``units`` (a list), ``isolation``, ``preempt_at``, ``cpu_topology``."""
    return WorkerReport(
        instance_id=instance_id,
        units=tuple(unit_report_from_wire(unit) for unit in plain["units"]),
        isolation=tuple(plain["isolation"]),
        preempt_at=plain["preempt_at"],
        cpu_topology=_topology_from_wire(plain.get("cpu_topology")),
        gpus=_gpus_from_wire(plain.get("gpus", ())),
    )


def _topology_from_wire(rows: object) -> CpuTopology | None:
    """Return what a machine says of its CPUs; None where it says nothing (an agent of before) or what cannot be."""
    try:
        return topology_from(rows)
    except ValueError:
        return None


def _gpus_from_wire(rows: object) -> tuple[GpuDevice, ...]:
    """Return what a machine says of its GPUs; none where it says nothing (an agent of before) or what cannot be."""
    try:
        return devices_from(rows)
    except ValueError:
        return ()


def command_result_from_wire(plain: Mapping[str, Any]) -> CommandResult:
    """Return what became of a command. Raises WorkerUnreachable if a machine sent something else."""
    try:
        content, split = bytes(plain["content"]), int(plain["stdout_bytes"])
        code = plain["exit_code"]
        return CommandResult(
            exit_code=None if code is None else int(code) & 0xFF,
            stdout=content[:split],
            stderr=content[split:],
            is_cut=bool(plain["is_cut"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise WorkerUnreachable("its machine sent something that is no result of a command") from error


def outputs_manifest_from_wire(plain: Mapping[str, Any]) -> OutputsManifest | None:
    """Return what outputs there are; None: they are not packed yet.

    Raises ValueError, KeyError or TypeError if a machine sent something else.
    """
    described = plain["manifest"]
    manifest = None
    if described is not None:
        sha256, note = str(described["sha256"]), printable_note(str(described["note"]))
        if described["bytes"] and not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError("the digest of outputs is not one of SHA-256")
        manifest = OutputsManifest(
            files=int(described["files"]), bytes=int(described["bytes"]), sha256=sha256, note=note
        )
    return manifest


def printable_note(text: str) -> str:
    """Return what a machine says as it may be shown."""
    return "".join(each if each.isprintable() else "?" for each in text[:NOTE_CHARACTERS_MAX])


def stream_name(text: str) -> UnitStream:
    """Check that ``text`` names one of the output streams."""
    if text not in ("stdout", "stderr", "tasks"):
        raise ValueError(f"{text!r} is not a stream: stdout, stderr or tasks")
    return cast(UnitStream, text)
