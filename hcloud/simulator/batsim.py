"""Workloads of Batsim (https://batsim.readthedocs.io): jobs and the profiles that say what they do, in JSON.

A job's run time follows from its profile: a delay, or floating-point operations at a given speed of its hosts. What
only communicates, or replays a trace, has no run time without a model of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, JobSpec
from hcloud.core.units import shown
from hcloud.simulator.input_table import InputColumn, Problems, number_within, printable, read_json, read_objects, word
from hcloud.simulator.workload import (
    COMMAND,
    MIB_PER_VCPU,
    NAME_MOST,
    NUMBER_MOST,
    Arrival,
    LogReading,
    Workload,
    spread_over_nodes,
    workload_of,
)
from hcloud.spec.jobfile import NODES_MOST
from hcloud.spec.validation import counted

JOB = (
    InputColumn(name="id", parse=printable(NAME_MOST), required=True),
    InputColumn(name="subtime", parse=number_within(0.0, NUMBER_MOST), required=True),
    InputColumn(name="res", parse=number_within(1.0, 1e9, whole=True), required=True),
    InputColumn(name="profile", required=True),
    InputColumn(name="walltime", parse=number_within(-1.0, NUMBER_MOST)),
)
DELAY = ("delay", "DelayProfile")
HOMOGENEOUS = ("parallel_homogeneous", "ParallelTaskHomogeneousProfile")
HOMOGENEOUS_TOTAL = ("parallel_homogeneous_total",)
PARALLEL = ("parallel", "ParallelTaskProfile")
SEQUENCE = ("composed", "SequentialCompositionProfile")
"""Types of profiles, as versions before 5 and since call them."""
TOTAL = "DefinedAmountsSpreadUniformly"
"""The strategy of a homogeneous profile whose amounts are those of all hosts together."""
DEEPEST = 50
"""How many sequences may contain each other."""


def read_batsim(path: Path, reading: LogReading) -> Workload:
    """Read a Batsim workload. A resource becomes a vCPU; wide jobs are spread over nodes, as those of a job log.

    Raises BadInput, which names all wrong keys, and jobs whose profile has no run time with their profile; NoJobs
    without a job.
    """
    document, name = read_json(path), str(path)
    jobs, profiles = _part(document, "jobs", list, name), _part(document, "profiles", dict, name)
    problems = Problems(name, entry="job")
    durations, arrivals = _Durations(profiles, reading.flops_per_s), list[Arrival]()
    silent = cut = communicating = 0
    for _, job in read_objects(jobs, JOB, problems, others=True):
        try:
            run_s, communicates = durations.of(job["profile"], int(job["res"]))
        except _SpeedUnknownError:
            what = f"profile {word(job['profile'])} counts floating-point operations"
            problems.add("--host-flops is needed", what, word(job["id"]))
            continue
        except ValueError as error:
            problems.add(f"profile {word(job['profile'])}", str(error), word(job["id"]))
            continue
        limit_s = job.get("walltime", -1.0)
        communicating += communicates and run_s > 0
        cut += 0 <= limit_s < run_s
        run_s = min(run_s, limit_s) if limit_s >= 0 else run_s
        if run_s <= 0:
            silent += 1
        elif (arrival := _arrival(job, run_s, reading, problems)) is not None:
            arrivals.append(arrival)
    problems.check()
    return workload_of(name, arrivals, _notes(silent, cut, communicating))


def _part(document: object, key: str, kind: type, name: str) -> Any:
    part = document.get(key) if isinstance(document, Mapping) else None
    if not isinstance(part, kind):
        what = "a list of jobs" if kind is list else "an object of profiles"
        raise BadInput(f"{name}: is not a Batsim workload; {key} must be {what}, not {shown(part)}")
    return part


def _arrival(job: Mapping[str, Any], run_s: float, reading: LogReading, problems: Problems) -> Arrival | None:
    resources, nodes = spread_over_nodes(int(job["res"]), MIB_PER_VCPU, reading.node_vcpus)
    if nodes.count > NODES_MOST:
        what = f"needs more than {NODES_MOST} nodes of --node-vcpus {reading.node_vcpus}; increase --node-vcpus"
        problems.add("key res", what, word(job["id"]))
        return None
    spec = JobSpec(
        name=job["id"],
        user="unknown",
        command=(*COMMAND, job["profile"]),
        target=BatchTarget(finish_within_s=run_s * (1 + reading.slack) + reading.slack_s),
        resources=resources,
        nodes=nodes,
    )
    return Arrival(at_s=job["subtime"], run_s=run_s, spec=spec)


def _notes(silent: int, cut: int, communicating: int) -> Sequence[str]:
    notes = (
        (silent, f"{counted(silent, 'job')} without computation or delay left out"),
        (cut, f"{counted(cut, 'job')} longer than its walltime, at which Batsim stops it; cut there"),
        (communicating, f"of {counted(communicating, 'communicating job')} only the computation is simulated"),
    )
    return [note for count, note in notes if count]


class _SpeedUnknownError(ValueError):
    """A profile counts floating-point operations, but nothing says how many a host computes per second."""


@dataclass(slots=True)
class _Durations:
    """Run times of profiles, each computed once per number of resources."""

    profiles: Mapping[str, object]
    flops_per_s: float | None
    _known: dict[tuple[str, int], tuple[float, bool]] = field(default_factory=dict)

    def of(self, name: str, resources: int, depth: int = 0) -> tuple[float, bool]:
        """Return the run time in seconds, and whether the profile communicates as well.

        Raises ValueError, which says why there is none.
        """
        if (name, resources) not in self._known:
            if name not in self.profiles:
                raise ValueError("is not among the profiles")
            profile = self.profiles[name]
            if not isinstance(profile, Mapping):
                raise ValueError(f"must be an object, not {shown(profile)}")
            if depth > DEEPEST:
                raise ValueError(f"has more than {DEEPEST} sequences within each other, or contains itself")
            self._known[name, resources] = self._computed(profile, resources, depth)
        return self._known[name, resources]

    def _computed(self, profile: Mapping[str, object], resources: int, depth: int) -> tuple[float, bool]:
        kind = profile.get("type")
        if kind in DELAY:
            return _amount(profile, "delay"), False
        if kind in SEQUENCE:
            return self._sequence(profile, resources, depth)
        communicates = any(_amounts(profile, "com"))
        if kind in PARALLEL:
            amounts = _amounts(profile, "cpu")
            if amounts and len(amounts) != resources:
                raise ValueError(f"has {counted(len(amounts), 'value')} of cpu, but the job has {resources} resources")
            # All parts progress at the same rate, so the host with the most to compute decides.
            return self._computing_s(max(amounts, default=0.0)), communicates
        if kind in HOMOGENEOUS or kind in HOMOGENEOUS_TOTAL:
            in_total = kind in HOMOGENEOUS_TOTAL or profile.get("generation_strategy") == TOTAL
            return self._computing_s(_amount(profile, "cpu") / (resources if in_total else 1)), communicates
        simulated = ", ".join(each[0] for each in (DELAY, PARALLEL, HOMOGENEOUS, HOMOGENEOUS_TOTAL, SEQUENCE))
        raise ValueError(f"its type {shown(kind)} cannot be simulated; types that can are {simulated}")

    def _computing_s(self, flops: float) -> float:
        if flops and self.flops_per_s is None:
            raise _SpeedUnknownError
        return flops / (self.flops_per_s or 1.0)

    def _sequence(self, profile: Mapping[str, object], resources: int, depth: int) -> tuple[float, bool]:
        parts, repeat = profile.get("seq"), _amount(profile, "repeat" if "repeat" in profile else "nb", 1.0)
        if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
            raise ValueError("its seq must be a list of names of profiles")
        found = []
        for each, times in Counter(parts).items():
            try:
                run_s, communicates = self.of(each, resources, depth + 1)
            except _SpeedUnknownError:
                raise
            except ValueError as error:
                raise ValueError(f"its part {word(each)}: {error}" if depth == 0 else str(error)) from None
            found.append((run_s * times, communicates))
        return repeat * sum(run_s for run_s, _ in found), any(each for _, each in found)


def _amount(profile: Mapping[str, object], key: str, otherwise: float = 0.0) -> float:
    """Return a number of a profile. Raises ValueError if it is none, or not from 0 to 1e+30."""
    value = profile.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
        raise ValueError(f"its {key} is {shown(value)}; it must be a number from 0 to 1e+30")
    return float(value)


def _amounts(profile: Mapping[str, object], key: str) -> list[float]:
    """Return the numbers of a list of a profile, or of a single number; none if the key is absent."""
    value = profile.get(key, [])
    return [_amount({key: each}, key) for each in (value if isinstance(value, list) else [value])]
