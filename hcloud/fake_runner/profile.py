"""Profiling results on the fake engine: a simple fixed truth about each program, the same for the same command.

``ProfileOf`` is the one extension point for a simulator's own truth.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from hcloud.core.estimates import MOST_KNEES, Findings, Measure, Reading, next_knee
from hcloud.core.model import ProfileRequest
from hcloud.fake_runner.work import Work
from hcloud.provider import UnitSpec

ProfileOf = Callable[[UnitSpec, Work, float], Findings]
"""Returns the findings of a complete profiling run, for a unit that would do that work, on a machine of that speed."""

SPREAD = 0.03
RATE_RUNS, NEIGHBOUR_RUNS = 2.0, 4.0
"""Time for one size, and for one source, in multiples of ``run_s``."""


def profile_of_work(unit: UnitSpec, work: Work, speed: float) -> Findings:
    """Return what a perfect measurement would find: Amdahl's law over sizes, fixed pressures, limits of 3 %.

    Performance is proportional to the machine's speed. A program that fails gives notes and no readings.
    """
    assert unit.profile is not None
    request = unit.profile
    if reason := why_not_measured(unit, work):
        return Findings(notes=(reason,), duration_s=min(request.run_s, work.duration_s))
    measure, alone = measured_as(unit, work)
    if request.unit_id:  # it is as it was expected to be
        return Findings(measure=measure, readings=request.expected, duration_s=profiling_s(request))
    readings = tuple(_readings(request, unit.command, alone * speed))
    use = (work.cpu_share * request.steps_vcpus[0], work.memory_mib, 0.0, 0.0)
    return Findings(measure=measure, readings=readings, use=use, duration_s=profiling_s(request))


def profiling_work(findings: Findings) -> Work:
    """Return the work of a unit that is being profiled: it takes its time and succeeds."""
    return Work(duration_s=findings.duration_s, timed=True, memory_mib=16.0)


def profiling_s(request: ProfileRequest) -> float:
    """Return the duration of a complete profiling run."""
    if request.look:
        return min(request.total_s, request.warm_up_s + request.run_s)
    runs = RATE_RUNS * (len(request.steps_vcpus) + MOST_KNEES * request.knees) + NEIGHBOUR_RUNS * len(request.sources)
    return min(request.total_s, request.warm_up_s + request.run_s * runs)


def found_by(findings: Findings, share: float, reason: str) -> Findings:
    """Return the findings of a run that was stopped after ``share`` of its time (1: complete)."""
    if share >= 1:
        return findings
    done = findings.readings[: math.floor(share * len(findings.readings))]
    return replace(
        findings,
        measure=findings.measure if done else None,
        readings=done,
        use=findings.use if done else (),
        duration_s=findings.duration_s * share,
        notes=(*findings.notes, f"the rest was not measured: {reason}"),
    )


def why_not_measured(unit: UnitSpec, work: Work) -> str:
    """Return why a unit cannot be measured; "" if it can."""
    if work.refusal:
        return work.refusal
    if work.memory_mib > unit.resources.memory_mib:
        return f"it used more than its {unit.resources.memory_mib} MiB of memory"
    if work.exit_code:
        return f"it ended with code {work.exit_code} after {work.duration_s:.2f} s"
    return ""


def measured_as(unit: UnitSpec, work: Work) -> tuple[Measure, float]:
    """Return the measure of performance, and its value at speed 1."""
    if unit.progress is not None and work.progress_at is None and math.isfinite(work.duration_s):
        return Measure.PROGRESS, 1 / max(work.duration_s, 1e-3)
    if unit.metrics is not None and work.requests_per_s:
        return Measure.REQUESTS, work.requests_per_s
    assert unit.profile is not None
    if work.duration_s <= unit.profile.run_s:
        return Measure.COMPLETION, 1 / max(work.duration_s, 1e-3)
    return Measure.CPU, max(work.cpu_share, 1e-3)


def _readings(request: ProfileRequest, command: tuple[str, ...], alone: float) -> Iterator[Reading]:
    parallel = 0.5 + 0.49 * _share(command, "parallel")
    if request.nodes > 1:
        value = alone * _speed_up(parallel, request.steps_vcpus[0] * request.nodes)
        yield _reading("nodes", str(request.nodes), value, SPREAD * value)
        return
    sizes = request.steps_vcpus[:1] if request.look else request.steps_vcpus
    for _ in range(MOST_KNEES) if request.knees and not request.look else ():
        at = next_knee({vcpus: _speed_up(parallel, vcpus) for vcpus in sizes})
        sizes += () if at is None else (at,)
    for index, vcpus in enumerate(sizes):
        value = alone * _speed_up(parallel, vcpus)
        if index == 0:
            yield _reading("type", request.type_column, value, SPREAD * value)
            if len(request.steps_vcpus) > 1:
                yield _reading("nodes", "1", value, SPREAD * value)
        yield _reading("step", f"{vcpus:g} vCPU", value, SPREAD * value)
    for name in () if request.look else request.sources:
        for question in ("tolerated", "caused"):
            yield _reading(question, name, 100 * _share(command, f"{question}:{name}"), 100 * SPREAD, most=100.0)


def _speed_up(parallel: float, vcpus: float) -> float:
    """Return Amdahl's speed-up; below one CPU, performance is proportional."""
    return vcpus if vcpus <= 1 else 1 / ((1 - parallel) + parallel / vcpus)


def _share(command: tuple[str, ...], question: str) -> float:
    """Return a number 0..1 derived from the command and the question."""
    return zlib.crc32("\0".join((*command, question)).encode()) % 10_007 / 10_006


def _reading(question: str, column: str, value: float, spread: float, most: float = math.inf) -> Reading:
    low, high = max(0.0, value - spread), min(most, value + spread)
    return Reading(question=question, column=column, value=value, low=low, high=high, runs=3)
