"""Admission by quality: slack from each job's tolerance, and when to take a worse machine."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget
from hcloud.forecast.wait_times import BusyTimes
from hcloud.planner.fit.arq import slack_s, switch_point
from hcloud.planner.fit.job_run_times import run_s
from hcloud.planner.run_times import RunTimeLimits
from hcloud.spec.policy import AdmissionPolicy
from tests.planner.scenes import NOW, job, spec

HOUR_LONG = Classification(
    by_type={
        "a": Estimate(value=1 / 3600, low=1 / 4000, high=1 / 3000),
        "b": Estimate(value=1e-5, low=1e-5, high=1e-5),
    },
    by_nodes={n: Estimate(value=float(n), low=n, high=n) for n in (1, 2, 4)},
    quality_target=Estimate(value=0.5, low=0.4, high=0.6),
    measure=Measure.COMPLETION,
)
PLAIN = AdmissionPolicy()
HOUR = RunTimeLimits(median_s=3600.0, long_s=3600.0)


def test_run_time_is_that_on_the_best_platform_where_whole_jobs_were_measured() -> None:
    assert run_s(HOUR_LONG) == pytest.approx(3600)
    assert run_s(HOUR_LONG, nodes=3) == pytest.approx(1800)
    assert run_s(replace(HOUR_LONG, measure=Measure.CPU)) is None
    assert run_s(None) is None


def test_slack_is_a_part_of_the_run_time_less_what_profiling_took_and_never_beyond_deadline_or_cap() -> None:
    free = job(1, asks=spec(target=BatchTarget()), submitted_at=NOW - 30)
    assert slack_s(free, NOW, HOUR, PLAIN) == pytest.approx(180)
    assert slack_s(replace(free, profile_runs=("job-9",)), NOW, HOUR, PLAIN) == pytest.approx(150)
    assert slack_s(free, NOW, RunTimeLimits(median_s=1e6, long_s=1e6), PLAIN) == PLAIN.patience_cap_s
    assert slack_s(free, NOW, None, PLAIN) == PLAIN.patience_s
    soon = job(2, asks=spec(target=BatchTarget(finish_by_at=NOW + 3650.0)))
    assert slack_s(soon, NOW, HOUR, PLAIN) == pytest.approx(50)
    unsure = RunTimeLimits(median_s=1800.0, long_s=3600.0)
    assert slack_s(soon, NOW, unsure, PLAIN) == pytest.approx(50)
    late = job(2, asks=spec(target=BatchTarget(finish_by_at=NOW + 60.0)))
    assert slack_s(late, NOW, HOUR, PLAIN) == 0.0


def test_job_waits_on_where_good_machines_come_free_soon_and_goes_down_at_once_where_they_do_not() -> None:
    short, long = BusyTimes.of([10.0] * 200), BusyTimes.of([50_000.0] * 200)
    ages = [5.0] * 20
    patient = switch_point(short, ages, own=1.0, below=0.5, slack=600.0)
    hasty = switch_point(long, ages, own=1.0, below=0.5, slack=600.0)
    assert patient.within_s < 60 < hasty.within_s


def test_job_that_nothing_better_can_come_for_goes_down_at_once() -> None:
    assert switch_point(BusyTimes.of([]), [], own=1.0, below=0.1, slack=60.0).within_s == 60.0
    fresh = switch_point(BusyTimes.of([]), [], own=1.0, below=0.1, slack=60.0, fresh_s=30.0)
    assert 30.0 <= fresh.within_s < 60.0


@given(
    st.lists(st.floats(0, 1e4), max_size=20),
    st.lists(st.floats(0, 1e4), max_size=8),
    st.floats(0, 1),
    st.floats(0, 600),
)
@example([], [0.0], 0.0, 5e-324)
def test_nobody_holds_out_beyond_its_slack_and_a_better_alternative_is_taken_no_later(
    busy: list[float], ages: list[float], below: float, slack: float
) -> None:
    times = BusyTimes.of(busy)
    worse = switch_point(times, ages, own=1.0, below=below * 0.5, slack=slack)
    better = switch_point(times, ages, own=1.0, below=below, slack=slack)
    assert 0.0 <= worse.within_s <= better.within_s <= slack + 1e-9
