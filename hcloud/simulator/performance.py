"""How well each simulated job did beside its best: alone, at once, on the machine type that suits it most.

Only a simulation knows that. Batch jobs count by their run time (Paragon §6.1), services
by their latency (HCloud §8.4): 1 is the best there is. QoS is kept where at most 5 % of the best are lost (Paragon §2),
or latency is at most 5 % above what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Event, EventKind, JobState

TOLERANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """What a job does at its best: its run time, and the latency of a service; ``promised_ms``: its target.

    ``counts``: whether anything was promised to it at all.
    """

    run_s: float
    latency_ms: float | None = None
    promised_ms: float | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPerformance:
    """One job: ``kind`` is ``batch`` or ``service``; ``running`` counts from its last start, ``turnaround`` from its
    submission on (both parts of the best, 0 for a job that did not succeed); ``kept``: its QoS was kept.
    """

    job_id: str
    kind: str
    running: float
    turnaround: float
    kept: bool


@dataclass(slots=True)
class _JobTimes:
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempt: object = None
    latencies_ms: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    """How many looks each latency stands for."""


def performances(events: Iterable[Event], ideals: Mapping[str, Ideal]) -> tuple[JobPerformance, ...]:
    """Read how the jobs of ``ideals`` did out of a finished simulation's log, in the order in which they ended."""
    stories: dict[str, _JobTimes] = {}
    found = []
    for event in events:
        job_id = event.job_id or ""
        if job_id not in ideals:
            continue
        if event.kind is EventKind.JOB_SUBMITTED:
            stories[job_id] = _JobTimes(submitted_at=event.at)
        elif event.kind is EventKind.UNIT_STARTED and event.fields.get("attempt") != stories[job_id].attempt:
            stories[job_id].attempt, stories[job_id].started_at = event.fields.get("attempt"), event.at
        elif event.kind is EventKind.SAMPLE:
            latency = event.fields.get("latency_ms_p99")
            if isinstance(latency, (int, float)):
                stories[job_id].latencies_ms.append(float(latency))
                looks = event.fields.get("looks", 1)
                stories[job_id].weights.append(looks if isinstance(looks, int) else 1)
        elif event.kind is EventKind.UNIT_ENDED:
            stories[job_id].ended_at = event.at
        elif event.kind is EventKind.JOB_FINISHED:
            found.append(_job_performance(job_id, ideals[job_id], stories.pop(job_id), event))
    return tuple(found)


def _job_performance(job_id: str, ideal: Ideal, story: _JobTimes, finished: Event) -> JobPerformance:
    kind = "batch" if ideal.latency_ms is None else "service"
    if finished.fields.get("state") != JobState.SUCCEEDED.value or story.started_at is None:
        return JobPerformance(job_id=job_id, kind=kind, running=0.0, turnaround=0.0, kept=False)
    ended_at = finished.at if story.ended_at is None else story.ended_at
    if ideal.latency_ms is not None:
        return _service_performance(job_id, ideal, ideal.latency_ms, story, ended_at - story.started_at, ended_at)
    running = ideal.run_s / max(ended_at - story.started_at, 1e-9)
    turnaround = ideal.run_s / max(ended_at - story.submitted_at, 1e-9)
    kept = running >= 1 - TOLERANCE
    return JobPerformance(job_id=job_id, kind="batch", running=running, turnaround=turnaround, kept=kept)


def _service_performance(
    job_id: str, ideal: Ideal, best_ms: float, story: _JobTimes, ran_s: float, ended_at: float
) -> JobPerformance:
    """Of a service its mean latency counts; one that ended before it was asked did as well as it could."""
    latency_ms = float(np.average(story.latencies_ms, weights=story.weights)) if story.latencies_ms else best_ms
    running = best_ms / latency_ms
    kept = latency_ms <= (ideal.promised_ms or best_ms) * (1 + TOLERANCE)
    turnaround = running * ran_s / max(ended_at - story.submitted_at, 1e-9)
    return JobPerformance(job_id=job_id, kind="service", running=running, turnaround=turnaround, kept=kept)


def mean(found: Sequence[JobPerformance], kind: str | None = None) -> float | None:
    """Return the mean performance while running (of one kind of job); None where there is none."""
    values = [each.running for each in found if kind in (None, each.kind)]
    return float(np.mean(values)) if values else None


def quantile(found: Sequence[JobPerformance], share: float, kind: str | None = None) -> float | None:
    """Return the performance that this share (0..1) of the jobs did not exceed; None where there is none."""
    values = [each.running for each in found if kind in (None, each.kind)]
    return float(np.quantile(values, share)) if values else None


def kept_pct(found: Sequence[JobPerformance], kind: str | None = None) -> float | None:
    """Return the percentage of jobs that kept their QoS; None where there is none."""
    values = [each.kept for each in found if kind in (None, each.kind)]
    return 100.0 * float(np.mean(values)) if values else None
