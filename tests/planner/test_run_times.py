"""What is predicted of a job's run time, by all that is known of the job."""

import re
from dataclasses import replace

import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, JobSpec, ProfileRequest, ServiceTarget
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.run_times import (
    NO_RUN_TIMES,
    RunTimeForecasts,
    deadline_probability,
    features_of,
    forecast_line,
    ran_for_s,
)
from tests.planner.scenes import NOW, job, machine, running, scene, spec

SORT = spec(target=BatchTarget(finish_within_s=1000.0))


def after_runs(run_s: float, count: int = 20, of: JobSpec = SORT, begun_at: float = 0.0) -> RunTimeForecasts:
    """Return what is known after runs of such jobs, submitted at that time."""
    predictor = MixturePredictor()
    for _ in range(count):
        predictor.observe(features_of(of, begun_at), run_s)
    return RunTimeForecasts(predictor)


def test_jobs_of_one_program_have_about_one_run_time_whatever_their_names() -> None:
    known = after_runs(300.0)
    for asks in (SORT, replace(SORT, name="another")):
        found = known.of_job(job(1, asks=asks))
        assert found is not None and found.quantile(0.5) == pytest.approx(300.0, rel=0.2)


@pytest.mark.parametrize(
    "other", [replace(SORT, command=("train",)), spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=5.0))]
)
def test_of_programs_that_never_ran_and_of_services_nothing_is_said(other: JobSpec) -> None:
    known = after_runs(300.0)
    assert NO_RUN_TIMES.of_job(job(1, asks=SORT)) is None
    unlike = replace(job(1), spec=replace(other, name="unlike"))
    found = JobRunTimes(scene(unlike, run_times=known)).anew(unlike)
    assert (known.of_job(unlike), forecast_line(unlike, found, known, NOW)) == (None, "")


def test_a_waiting_job_meets_its_deadline_if_it_runs_no_longer_than_is_left() -> None:
    known, waiting = after_runs(300.0), replace(job(1, asks=SORT), submitted_at=NOW - 200.0)
    found = known.of_job(waiting)
    assert found is not None
    assert deadline_probability(waiting, found, NOW) == pytest.approx(found.cdf(800.0))
    late = replace(waiting, submitted_at=NOW - 2000.0)
    assert deadline_probability(late, found, NOW) == 0.0
    without = replace(waiting, spec=replace(SORT, target=BestEffortTarget()))
    assert deadline_probability(without, found, NOW) is None


def test_of_a_running_job_counts_what_is_left_after_its_age() -> None:
    known, held = after_runs(300.0), running(1, machine(1), asks=SORT, submitted_at=NOW - 900.0)
    assert held.attempt is not None
    [unit] = held.attempt.allocations
    begun = replace(held, attempt=replace(held.attempt, allocations=(replace(unit, started_at=NOW - 250.0),)))
    assert ran_for_s(begun, NOW) == 250.0
    found = known.of_job(begun)
    assert found is not None
    chance = deadline_probability(begun, found, NOW)
    assert chance == pytest.approx(found.after(250.0).cdf(350.0))
    assert f"probability to meet the deadline {chance:.2f}" in forecast_line(begun, found, known, NOW)
    assert ", by 20 similar runs, given that it ran for 4.17 min already" in forecast_line(begun, found, known, NOW)


def test_a_job_that_was_only_profiled_has_a_run_time_by_its_profile() -> None:
    profiled = job(1, asks=SORT, application="sort~1")
    speed = Estimate(value=1 / 300.0, low=1 / 330.0, high=1 / 270.0)
    known = Classification(
        by_type={"mock/small": speed}, measure=Measure.PROGRESS, quality_target=Estimate(value=0.5, low=0.5, high=0.5)
    )
    found = JobRunTimes(scene(profiled, applications={"sort~1": known})).anew(profiled)
    assert found is not None and found.quantile(0.5) == pytest.approx(300.0, rel=0.02)
    said = forecast_line(profiled, found, NO_RUN_TIMES, NOW)
    assert re.match(r"run time: .* min \(median\), .* at most with probability 0.9, by its profile; probability", said)
    request = ProfileRequest(job_id="job-2", type_column="mock/small", steps_vcpus=(1.0,))
    profiling_run = replace(profiled, spec=replace(SORT, profile=request))
    assert forecast_line(profiling_run, found, NO_RUN_TIMES, NOW) == ""
