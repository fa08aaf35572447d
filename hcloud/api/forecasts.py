"""Run times of a job or program as the API shows them, from past runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query

from hcloud.api.arrays import find_job
from hcloud.api.bodies import JsonRoute
from hcloud.api.context import Context, CurrentCaller
from hcloud.core.errors import NotFound
from hcloud.core.model import JobId
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner.run_times import deadline_probability, program_of, ran_for_s

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)
_LIMITS_S: tuple[float, ...] = (
    *(0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(minutes * 60.0 for minutes in (1, 2, 5, 10, 20, 30)),
    *(hours * 3600.0 for hours in (1, 2, 4, 8, 16)),
    *(days * 86400.0 for days in (1, 2, 4, 8, 16, 32, 64, 128)),
)
"""Limits of the bars of a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeBin:
    """The probability that a run ends between two times."""

    from_s: float
    until_s: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeForecast:
    """How long a job runs, from its start to its end, by what similar jobs took."""

    job: JobId | None
    """None: jobs of the program in general."""
    program: str
    """User and program, ``user:program``."""
    runs: int
    """Remembered runs of the program, or of the user's jobs of that name."""
    ran_s: float
    """How long the job ran already; the times below include it."""
    median_s: float
    within_80_pct_s: float
    """80 % of the runs end within this time."""
    within_90_pct_s: float
    """90 % of the runs end within this time."""
    deadline_probability: float | None
    """That the job meets its deadline, if it starts now or goes on running; None: it has none, or has ended."""
    chart: tuple[RunTimeBin, ...]
    """From the shortest to the longest likely run time."""


@router.get("/forecast")
def forecast_run_time(
    context: Context,
    caller: CurrentCaller,
    of: Annotated[str, Query(min_length=1, max_length=400, description="a job such as job-7, or USER:PROGRAM")],
) -> RunTimeForecast:
    """Predict how long a job, or jobs of a program, run: from what similar jobs took.

    Your own, unless you are an admin.
    """
    known, now = context.run_times(), context.clock.now()
    if ":" in of:
        caller.require_owner(of.partition(":")[0], "see how long its programs run")
        found = known.of_program(of)
        if found is None:
            raise NotFound(f"no run of the program {of} is known; 'hcloud forecast JOB' shows the program of a job")
        return _forecast(found, of, known.runs_of_program(of))
    job = find_job(context.store, of)
    caller.require_owner(job.spec.user, f"see how long {job.id} runs")
    program, found = program_of(job.spec), known.of_job(job)
    if found is None:
        raise NotFound(f"no run of {program}, the program of {job.id}, or of that name is known yet")
    chance = deadline_probability(job, found, now)
    found = found.after(ran_for_s(job, now))
    return _forecast(found, program, known.history(job), job=job.id, chance=chance)


def _forecast(
    found: RunTimes, program: str, runs: int, *, job: JobId | None = None, chance: float | None = None
) -> RunTimeForecast:
    median_s, limit_80_s, limit_90_s = (float(each) for each in found.quantiles((0.5, 0.8, 0.9)))
    return RunTimeForecast(
        job=job,
        program=program,
        runs=runs,
        ran_s=found.age_s,
        median_s=median_s,
        within_80_pct_s=limit_80_s,
        within_90_pct_s=limit_90_s,
        deadline_probability=chance,
        chart=chart_of(found),
    )


def chart_of(found: RunTimes) -> tuple[RunTimeBin, ...]:
    """Return the bars between the 2 % and the 98 % quantile; the first and the last have what lies beyond as well."""
    shortest_s, longest_s = found.quantiles((0.02, 0.98))
    limits = [limit_s for limit_s in _LIMITS_S if shortest_s < limit_s < longest_s]
    edges_s = [float(found.quantile(0.0)), *limits, float(found.quantile(1.0))]
    shares = np.diff([0.0, *(found.cdf(limit_s) for limit_s in limits), 1.0]).tolist()
    return tuple(
        RunTimeBin(from_s=begin_s, until_s=end_s, probability=share)
        for (begin_s, end_s), share in zip(pairwise(edges_s), shares, strict=True)
    )
