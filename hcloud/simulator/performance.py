"""Performance of each simulated job relative to its ideal: alone, started at once, on its best machine type.

Batch jobs are measured by run time (Paragon §6.1), services by latency (HCloud §8.4); 1 is ideal. QoS is kept if at
most 5 % of the ideal is lost (Paragon §2), or if latency is at most 5 % above its target. Only a simulation knows the
ideal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Event, EventKind, JobState

TOLERANCE = 0.05
"""The loss of performance (0..1) up to which QoS is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """What a job does alone on its best machine type."""

    run_s: float
    latency_ms: float | None = None
    """None for a batch job."""
    promised_ms: float | None = None
    """The latency target of a service."""
    counts: bool = True
    """The job has a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPerformance:
    """One job's performance, relative to its ideal. Both shares are 0 for a job that did not succeed."""

    job_id: str
    kind: str
    """``batch`` or ``service``."""
    running: float
    """Measured from the job's last start."""
    turnaround: float
    """Measured from its submission."""
    kept: bool
    """Its QoS was kept."""


@dataclass(slots=True)
class _JobTimes:
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempt: object = None
    latencies_ms: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    """How many probes each latency stands for."""


def performances(events: Iterable[Event], ideals: Mapping[str, Ideal]) -> tuple[JobPerformance, ...]:
    """Return the performance of the jobs in ``ideals`` from a finished simulation's log, in the order in which they
    ended."""
    times: dict[str, _JobTimes] = {}
    results = []
    for event in events:
        job_id = event.job_id or ""
        if job_id not in ideals:
            continue
        if event.kind is EventKind.JOB_SUBMITTED:
            times[job_id] = _JobTimes(submitted_at=event.at)
        elif event.kind is EventKind.UNIT_STARTED and event.fields.get("attempt") != times[job_id].attempt:
            times[job_id].attempt, times[job_id].started_at = event.fields.get("attempt"), event.at
        elif event.kind is EventKind.SAMPLE:
            latency = event.fields.get("latency_ms_p99")
            if isinstance(latency, (int, float)):
                times[job_id].latencies_ms.append(float(latency))
                looks = event.fields.get("looks", 1)
                times[job_id].weights.append(looks if isinstance(looks, int) else 1)
        elif event.kind is EventKind.UNIT_ENDED:
            times[job_id].ended_at = event.at
        elif event.kind is EventKind.JOB_FINISHED:
            results.append(_job_performance(job_id, ideals[job_id], times.pop(job_id), event))
    return tuple(results)


def _job_performance(job_id: str, ideal: Ideal, times: _JobTimes, finished: Event) -> JobPerformance:
    kind = "batch" if ideal.latency_ms is None else "service"
    if finished.fields.get("state") != JobState.SUCCEEDED.value or times.started_at is None:
        return JobPerformance(job_id=job_id, kind=kind, running=0.0, turnaround=0.0, kept=False)
    ended_at = finished.at if times.ended_at is None else times.ended_at
    if ideal.latency_ms is not None:
        return _service_performance(job_id, ideal, ideal.latency_ms, times, ended_at - times.started_at, ended_at)
    running = ideal.run_s / max(ended_at - times.started_at, 1e-9)
    turnaround = ideal.run_s / max(ended_at - times.submitted_at, 1e-9)
    kept = running >= 1 - TOLERANCE
    return JobPerformance(job_id=job_id, kind="batch", running=running, turnaround=turnaround, kept=kept)


def _service_performance(
    job_id: str, ideal: Ideal, best_ms: float, times: _JobTimes, ran_s: float, ended_at: float
) -> JobPerformance:
    """A service counts by its mean latency; one that ended before its first probe counts as ideal."""
    latency_ms = float(np.average(times.latencies_ms, weights=times.weights)) if times.latencies_ms else best_ms
    running = best_ms / latency_ms
    kept = latency_ms <= (ideal.promised_ms or best_ms) * (1 + TOLERANCE)
    turnaround = running * ran_s / max(ended_at - times.submitted_at, 1e-9)
    return JobPerformance(job_id=job_id, kind="service", running=running, turnaround=turnaround, kept=kept)


def mean(found: Sequence[JobPerformance], kind: str | None = None) -> float | None:
    """Return the mean performance while running (of one kind of job); None if there is no job."""
    values = [each.running for each in found if kind in (None, each.kind)]
    return float(np.mean(values)) if values else None


def quantile(found: Sequence[JobPerformance], share: float, kind: str | None = None) -> float | None:
    """Return the performance quantile ``share`` (0..1) of the jobs; None if there is no job."""
    values = [each.running for each in found if kind in (None, each.kind)]
    return float(np.quantile(values, share)) if values else None


def kept_pct(found: Sequence[JobPerformance], kind: str | None = None) -> float | None:
    """Return the percentage of jobs that kept their QoS; None if there is no job."""
    values = [each.kept for each in found if kind in (None, each.kind)]
    return 100.0 * float(np.mean(values)) if values else None
