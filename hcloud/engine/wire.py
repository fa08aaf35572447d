"""How units and reports look between daemon and worker: plain dictionaries of msgpack and JSON types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from hcloud.core.cpu_topology import CpuTopology, cpus_from, topology_from
from hcloud.core.errors import UnitRefused
from hcloud.core.estimates import Findings, Measure, Reading
from hcloud.core.model import Checkpoint, FailureCause, MetricsHook, ProfileRequest, ProgressHook, Resources
from hcloud.core.plain import to_plain
from hcloud.provider import (
    ExitRecord,
    OutputsManifest,
    OutputsPiece,
    UnitReport,
    UnitSample,
    UnitSpec,
    UnitState,
    WorkerReport,
)

PROTOCOL = 1
"""Version of the messages between agents and gateway (``gateway.proto``). The gateway refuses agents of any other."""
NOTE_CHARACTERS_MAX = 500
UNIT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def unit_to_wire(spec: UnitSpec) -> dict[str, Any]:
    """Return the spec as a plain dictionary; ``workdir`` and ``restore`` (paths of the daemon's host) stay out of it.

    So do ``refusal`` and ``secrets``, which agents of before do not know.
    """
    plain: dict[str, Any] = to_plain(spec) | {"env": dict(spec.env), "workdir": None}
    del plain["refusal"], plain["secrets"], plain["restore"]
    for name in ("outputs", "checkpoint", "cpus"):  # nor do they know these
        if not plain[name]:
            del plain[name]
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
        "cpus": tuple(plain.get("cpus", ())),
        "checkpoint": Checkpoint(**checkpoint) if checkpoint is not None else None,
        "resources": Resources(**plain["resources"]),
        "progress": ProgressHook(**progress) if progress is not None else None,
        "metrics": metrics,
        "profile": _request_from_wire(profile) if profile is not None else None,
    }
    return UnitSpec(**{**plain, **changes})


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
    )


def _sample_from_wire(plain: Mapping[str, Any]) -> UnitSample:
    return UnitSample(**{**plain, "cpus": cpus_from(plain.get("cpus", ()))})


def report_from_wire(instance_id: str, plain: Mapping[str, Any]) -> WorkerReport:
    """Return a worker's report; ``plain`` has ``units`` (a list), ``isolation``, ``preempt_at``, ``cpu_topology``."""
    return WorkerReport(
        instance_id=instance_id,
        units=tuple(unit_report_from_wire(unit) for unit in plain["units"]),
        isolation=tuple(plain["isolation"]),
        preempt_at=plain["preempt_at"],
        cpu_topology=_topology_from_wire(plain.get("cpu_topology")),
    )


def _topology_from_wire(rows: object) -> CpuTopology | None:
    """Return what a machine says of its CPUs; None where it says nothing (an agent of before) or what cannot be."""
    try:
        return topology_from(rows)
    except ValueError:
        return None


def outputs_piece_from_wire(plain: Mapping[str, Any]) -> OutputsPiece:
    """Return a piece of outputs. Raises ValueError, KeyError or TypeError if a machine sent something else."""
    described = plain["manifest"]
    manifest = None
    if described is not None:
        sha256, note = (
            str(described["sha256"]),
            "".join(each if each.isprintable() else "?" for each in str(described["note"])),
        )
        if described["bytes"] and not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError("the digest of outputs is not one of SHA-256")
        manifest = OutputsManifest(
            files=int(described["files"]), bytes=int(described["bytes"]), sha256=sha256, note=note[:NOTE_CHARACTERS_MAX]
        )
    return OutputsPiece(
        content=bytes(plain["content"]),
        next_offset=int(plain["next_offset"]),
        end=bool(plain["end"]),
        manifest=manifest,
    )


def stream_name(text: str) -> Literal["stdout", "stderr"]:
    """Check that ``text`` names one of the two output streams."""
    if text not in ("stdout", "stderr"):
        raise ValueError(f"{text!r} is not a stream: stdout or stderr")
    return cast(Literal["stdout", "stderr"], text)
