"""Periods in which a unit ran beside the same neighbours."""

from dataclasses import replace

import pytest

from hcloud.apply.feedback import CoRunPeriod
from hcloud.core.co_runs import LEAST_SPEED, MOST_COUNTED, MOST_NEIGHBOURS, CoRun, bounded_log_speed, shared_cpus_of
from hcloud.observe.co_runs import LEAST_PERIOD_S, MOST_PERIOD_S, CoRunPeriods
from hcloud.provider import UnitSample


def sample(at: float, progress: float | None = None, written_mib: float | None = None) -> UnitSample:
    return UnitSample(at=at, progress=progress, written_mib=written_mib)


def test_a_period_ends_before_the_first_sample_with_other_neighbours() -> None:
    periods = CoRunPeriods()
    assert periods.follow("u", sample(100.0, 0.1), ("a",), 1.0) is None
    assert periods.follow("u", sample(140.0, 0.3), ("a",), 1.0) is None
    ended = periods.follow("u", sample(190.0, 0.4), ("a", "b"), 1.0)
    assert ended == CoRunPeriod(
        neighbours=("a",), shared_cpus=1.0, seconds=40.0, progress=pytest.approx(0.2), written_mib=None, ended_at=140.0
    )
    assert periods.follow("u", sample(230.0, 0.5), ("a", "b"), 1.0) is None
    last = periods.last("u")
    assert last is not None and last.neighbours == ("a", "b")
    assert (last.seconds, last.progress) == (40.0, pytest.approx(0.1))
    assert periods.last("u") == last
    periods.forget("u")
    assert periods.last("u") is None


def test_a_long_period_is_recorded_in_parts_that_leave_nothing_out() -> None:
    periods, done = CoRunPeriods(), list[CoRunPeriod]()
    for at in range(0, int(2.5 * MOST_PERIOD_S), 100):
        ended = periods.follow("u", sample(float(at), written_mib=float(at)), (), None)
        done += [] if ended is None else [ended]
    last = periods.last("u")
    assert last is not None
    assert [each.seconds for each in (*done, last)] == [MOST_PERIOD_S, MOST_PERIOD_S, 200.0]
    assert sum(each.written_mib or 0.0 for each in (*done, last)) == 1400.0


def test_a_period_ends_when_neighbours_go_to_other_cpus() -> None:
    periods = CoRunPeriods()
    periods.follow("u", sample(0.0, 0.0), ("a",), 1.0)
    periods.follow("u", sample(60.0, 0.1), ("a",), 1.0)
    ended = periods.follow("u", sample(70.0, 0.2), ("a",), 0.0)
    assert ended is not None and (ended.shared_cpus, ended.seconds) == (1.0, 60.0)


def test_cpus_are_shared_with_all_that_may_run_there() -> None:
    assert shared_cpus_of((0, 1), [], 4) is None
    assert shared_cpus_of((0, 1), [()], 4) == 1.0, "a neighbour may run anywhere"
    assert shared_cpus_of((0, 1), [(1, 2), (3,)], 4) == 0.5
    assert shared_cpus_of((0, 1), [(2, 3)], 4) == 0.0
    assert shared_cpus_of((), [(2, 3)], 8) == 0.25, "it may run on all eight"


@pytest.mark.parametrize("neighbours", [("", "a"), ("a",) * (MOST_NEIGHBOURS + 1)])
def test_beside_unknown_or_too_many_neighbours_nothing_is_said(neighbours: tuple[str, ...]) -> None:
    periods = CoRunPeriods()
    periods.follow("u", sample(0.0, 0.0), neighbours, 1.0)
    assert periods.follow("u", sample(MOST_PERIOD_S, 0.5), neighbours, 1.0) is None
    assert periods.last("u") is None


def test_a_short_period_says_nothing_and_a_clock_that_goes_back_begins_another() -> None:
    periods = CoRunPeriods()
    periods.follow("u", sample(1000.0, 0.0), (), None)
    periods.follow("u", sample(1000.0 + LEAST_PERIOD_S - 1.0, 0.2), (), None)
    assert periods.follow("u", sample(500.0, 0.3), (), None) is None
    assert periods.follow("u", sample(500.0 + LEAST_PERIOD_S, 0.2), (), None) is None
    last = periods.last("u")
    assert last is not None and last.seconds == LEAST_PERIOD_S
    assert last.progress is None  # it fell: the job began again


@pytest.mark.parametrize(("taken_s", "said"), [(0.0, True), (3.0, True), (5.0, False)])
def test_a_period_in_which_the_host_took_much_says_nothing_of_neighbours(taken_s: float, said: bool) -> None:
    periods = CoRunPeriods()
    periods.follow("u", replace(sample(0.0, 0.0), cpu_s=1.0), ("a",), 1.0)
    periods.follow("u", replace(sample(LEAST_PERIOD_S, 0.5), cpu_s=31.0, taken_s=taken_s), ("a",), 1.0)
    assert (periods.last("u") is not None) is said


def test_units_that_are_gone_are_forgotten() -> None:
    periods = CoRunPeriods()
    for unit in ("u", "v"):
        periods.follow(unit, sample(0.0, 0.0), (), None)
        periods.follow(unit, sample(60.0, 0.1), (), None)
    periods.retain({"v"})
    assert periods.last("u") is None and periods.last("v") is not None


def test_a_record_is_a_mean_that_follows_what_changes() -> None:
    def period(log_speed: float, at: float) -> CoRun:
        return CoRun(
            application="a",
            neighbours=("b",),
            type_column="mock/small",
            log_speed=log_speed,
            doubt=0.1,
            seconds=60.0,
            observed_at=at,
        )

    record = period(-0.4, 0.0).then(period(-0.2, 60.0))
    assert record.log_speed == pytest.approx(-0.3)
    assert (record.periods, record.seconds, record.observed_at) == (2, 120.0, 60.0)
    for number in range(200):
        record = record.then(period(0.0, 120.0 + number))
    assert record.periods == 202
    assert -0.3 * (1.0 - 1.0 / MOST_COUNTED) ** 180 * 1.1 < record.log_speed < 0.0


def test_speeds_that_no_neighbour_explains_count_as_the_limits() -> None:
    assert bounded_log_speed(0.0) == bounded_log_speed(LEAST_SPEED) < bounded_log_speed(0.5)
    assert bounded_log_speed(4.2) == bounded_log_speed(2.0)
