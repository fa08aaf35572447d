"""Samples of running jobs, for tests of corrections."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, Job, JobSpec, ProgressHook
from hcloud.forecast.job_monitor import JobSamples, Sampled
from hcloud.planner.snapshot import Snapshot
from tests.planner.scenes import NOW, spec

EVERY_S = 10.0
Pace = Callable[[int], float]


def samples(
    paces: Sequence[float],
    *,
    until: float = NOW,
    every_s: float = EVERY_S,
    vcpus_used: float = 0.5,
    start: float = 0.0,
    taken: float = 0.0,
) -> tuple[Sampled, ...]:
    """Return samples up to ``until`` of a unit with ``paces[i]`` of the whole per second in interval i.

    ``taken``: CPUs that the host took from it.
    """
    found, progress, cpu_s, taken_s = [], start, 0.0, 0.0
    since = until - every_s * len(paces)
    for number in range(len(paces) + 1):
        found.append(
            Sampled(at=since + number * every_s, values={"progress": progress, "cpu_s": cpu_s, "taken_s": taken_s})
        )
        if number < len(paces):
            progress += paces[number] * every_s
            cpu_s += vcpus_used * every_s
            taken_s += taken * every_s
    return tuple(found)


def with_samples(snapshot: Snapshot, measured: Mapping[str, Sequence[tuple[Sampled, ...]]]) -> Snapshot:
    """Return the snapshot with these measurements of jobs, by rank."""
    attempts = {job.id: job.attempt.id for job in snapshot.jobs if job.attempt is not None}
    watched = {
        name: JobSamples(attempt=attempts[name], ranks=dict(enumerate(ranks))) for name, ranks in measured.items()
    }
    return replace(snapshot, job_samples=watched)


def hooked(within_s: float = 2000.0, **changes: object) -> JobSpec:
    """Return a batch job with progress metric and a deadline so long after submission."""
    asks = spec(target=BatchTarget(finish_within_s=within_s), progress=ProgressHook(file="progress"))
    return replace(asks, **changes)  # type: ignore[arg-type]


def started(job: Job, ago_s: float) -> Job:
    """Return the job with all ranks running for so long."""
    assert job.attempt is not None
    ranks = tuple(replace(a, started_at=NOW - ago_s) for a in job.attempt.allocations)
    attempt = replace(job.attempt, placed_at=NOW - ago_s - 1, allocations=ranks)
    return replace(job, attempt=attempt, submitted_at=NOW - ago_s - 2)


def sure(value: float) -> Estimate:
    """Return an estimate without uncertainty."""
    return Estimate(value=value, low=value, high=value, observed=True)


def classified(pace: float, **changes: object) -> Classification:
    """Return an application that makes ``pace`` of its whole per second on a small instance, and more on more vCPUs."""
    plain = Classification(
        by_type={"mock/small": sure(pace)},
        by_step={"1 vCPU": sure(pace), "2 vCPU": sure(2 * pace)},
        quality_target=sure(0.5),
        measure=Measure.PROGRESS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
