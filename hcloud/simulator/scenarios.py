"""Workloads by name: HCloud's three scenarios (table 8.2), generated from what the table states and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hcloud.core.errors import BadInput, NoJobs
from hcloud.core.model import BatchTarget, JobSpec, MetricsHook, ProgressHook, Resources, ServiceTarget
from hcloud.simulator.programs import INPUTS, PROGRAMS, Programs, Run
from hcloud.simulator.workload import MIB_PER_VCPU, PROBE_EVERY_S, Arrival, Workload, workload_of
from hcloud.spec.validation import nearest

HOUR_S = 3600.0
WHOLE_HOURS = 2.0
SERVICE_CORES = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What table 8.2 states. Shapes between the stated extremes and sizes of single jobs are assumptions of ours."""

    name: str
    summary: str
    cores: Callable[[float], float]
    """Cores in use over the run (0..1)."""
    batch_per_service: float
    """Ratio of batch jobs to services."""
    batch_cores_per_service: float
    """Ratio of cores of batch jobs to cores of services."""
    run_s: float
    """Mean run time. For the first two scenarios it is chosen so that a job arrives about every second, as stated."""
    peak_cores: float
    steady_cores: float


def _low(at: float) -> float:
    return 605 + (900 - 605) * 0.5 * (1 - math.cos(2 * math.pi * at))


def _high(at: float) -> float:
    """Two surges, the second one higher: 210 to 1,226 cores."""
    first = 0.55 * math.exp(-(((at - 0.28) / 0.09) ** 2))
    second = math.exp(-(((at - 0.68) / 0.13) ** 2))
    return 210 + (1226 - 210) * min(1.0, first + second)


SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        Scenario(
            name="static", summary="steady, about 854 cores", cores=lambda _: 854.0,
            batch_per_service=4.2, batch_cores_per_service=1.4, run_s=550.0, peak_cores=854, steady_cores=854,
        ),
        Scenario(
            name="low-variability", summary="605 to 900 cores, one slow wave", cores=_low,
            batch_per_service=3.6, batch_cores_per_service=1.4, run_s=470.0, peak_cores=900, steady_cores=605,
        ),
        Scenario(
            name="high-variability", summary="210 to 1,226 cores, two surges", cores=_high,
            batch_per_service=4.1, batch_cores_per_service=1.5, run_s=486.0, peak_cores=1226, steady_cores=210,
        ),
    )
}  # fmt: skip


LEAST_HOURS, MOST_HOURS = 0.001, 744
"""Limits on a scenario's length: seconds, and a month."""


def make_scenario(
    name: str, seed: int = 0, *, hours: float = 2.0, share: float = 1.0, sensitive: float | None = None
) -> Workload:
    """Return a scenario's workload over ``hours``, with its load scaled by ``share`` (0..1].

    ``sensitive``: the share (0..1) of jobs that are services, instead of the table's; sizes are unchanged. Raises
    BadInput for an unknown name or an invalid size, NoJobs if it is too small for any job.
    """
    if name not in SCENARIOS:
        raise BadInput(f"there is no scenario {name!r}; {nearest(name, SCENARIOS)}")
    if not (0 < share <= 1 and 0 < hours <= MOST_HOURS):
        raise BadInput(f"share {share:g} or hours {hours:g} is out of range; 0 < share <= 1, 0 < hours <= {MOST_HOURS}")
    scenario, rng = _with_sensitive(SCENARIOS[name], sensitive), np.random.default_rng([seed, sum(map(ord, name))])
    # A share of the jobs runs a share of the programs, so that each program recurs as often as among all jobs.
    part = math.sqrt(min(1.0, share * hours / WHOLE_HOURS))
    programs = Programs(rng, programs=max(2, round(part * PROGRAMS)), inputs=max(1, round(part * INPUTS)))
    # The load is there from the start, as jobs already under way; long ones are likelier to be.
    first = range(round(_running_jobs(scenario, 0.0) * share))
    arrivals = [_job(scenario, programs, rng, 0.0, n, under_way=True) for n in first]
    span_s, due = hours * HOUR_S, 0.0
    for second in range(int(span_s)):
        due += _running_jobs(scenario, second / span_s) / scenario.run_s * share
        while due >= 1:
            due -= 1
            arrivals.append(_job(scenario, programs, rng, second + rng.random(), len(arrivals)))
    if not arrivals:
        raise NoJobs(f"{name}: --share {share:g} for --hours {hours:g} has no job; increase one of them")
    return workload_of(name if share == 1 else f"{name} x {share:g}", arrivals)


def _with_sensitive(scenario: Scenario, part: float | None) -> Scenario:
    if part is None:
        return scenario
    if not 0 < part < 1:
        raise BadInput(f"the sensitive share of the jobs is {part:g}; it must be above 0 and below 1")
    batch = (1 - part) / part
    cores = scenario.batch_cores_per_service * batch / scenario.batch_per_service
    return replace(scenario, batch_per_service=batch, batch_cores_per_service=cores)


def _running_jobs(scenario: Scenario, at: float) -> float:
    """Return the number of concurrent jobs that fills the cores."""
    batch = scenario.batch_per_service
    mean_cores = (batch * BATCH_MEAN + _service_mean(scenario)) / (batch + 1)
    return scenario.cores(at) / mean_cores


BATCH_CORES, BATCH_ODDS = (1, 2, 4), (0.87, 0.11, 0.02)
BATCH_MEAN = float(np.dot(BATCH_CORES, BATCH_ODDS))


def _service_mean(scenario: Scenario) -> float:
    return BATCH_MEAN * scenario.batch_per_service / scenario.batch_cores_per_service


def _job(
    scenario: Scenario,
    programs: Programs,
    rng: np.random.Generator,
    at_s: float,
    number: int,
    *,
    under_way: bool = False,
) -> Arrival:
    if rng.random() * (scenario.batch_per_service + 1) < 1:
        small, large = SERVICE_CORES
        odds_large = min(1.0, max(0.0, (_service_mean(scenario) - small) / (large - small)))
        kind, cores = "service", large if rng.random() < odds_large else small
    else:
        kind, cores = "analytics", int(rng.choice(BATCH_CORES, p=BATCH_ODDS))
    run = programs.pick(kind, cores, scenario.run_s, under_way=under_way)
    if kind == "service":
        return Arrival(at_s=at_s, run_s=run.run_s, spec=service_job(run, number, cores))
    return Arrival(at_s=at_s, run_s=run.run_s, spec=batch_job(run, number, cores, run.run_s * 1.5 + 60.0))


def batch_job(run: Run, number: int, cores: int, within_s: float, memory_mib: int | None = None) -> JobSpec:
    """Return a batch job of a program that reports its progress."""
    return JobSpec(
        name=f"{run.kind}-{number}",
        user=run.user,
        command=run.command,
        target=BatchTarget(finish_within_s=within_s),
        resources=Resources(vcpus=cores, memory_mib=memory_mib or cores * MIB_PER_VCPU),
        progress=ProgressHook(file="progress"),
        tags={"kind": "batch", "program_kind": run.kind},
    )


def service_job(run: Run, number: int, cores: int) -> JobSpec:
    """Return a service that holds ``cores`` cores until it ends."""
    return JobSpec(
        name=f"service-{number}",
        user=run.user,
        command=run.command,
        target=ServiceTarget(requests_per_s=100.0 * cores, latency_ms=20.0),
        resources=Resources(vcpus=cores, memory_mib=cores * MIB_PER_VCPU),
        interruptible=False,
        metrics=MetricsHook(probe=run.command, every_s=PROBE_EVERY_S),
        tags={"kind": "service", "program_kind": "service"},
    )
