"""A job's pace just before and just after an event."""

import pytest

from hcloud.forecast.job_monitor import Sampled, Timed
from hcloud.forecast.trend import course_of_rate, course_of_total


def _told(*totals: tuple[float, float]) -> list[Sampled]:
    return [Sampled(at, {"progress": total}) for at, total in totals]


def test_a_total_is_measured_over_the_span_on_both_sides() -> None:
    course = course_of_total(
        _told(*((10.0 * n, 1.0 * n if n < 10 else 10.0 + 3.0 * (n - 10)) for n in range(20))), "progress"
    )
    assert course.around((90.0, 100.0), 30.0) == (pytest.approx(0.1), pytest.approx(0.3))


def test_where_a_total_stood_still_the_span_begins_where_it_moved() -> None:
    course = course_of_total(
        _told((0.0, 0.0), (10.0, 1.0), (20.0, 1.0), (30.0, 2.0), (40.0, 3.0), (60.0, 5.0)), "progress"
    )
    assert list(course.at) == [0.0, 10.0, 30.0, 40.0, 60.0]
    assert course.around((30.0, 30.0), 20.0) == (pytest.approx(2.0 / 30.0), pytest.approx(0.1))


def test_a_rate_is_the_mean_of_what_was_measured() -> None:
    course = course_of_rate([Timed(10.0 * n, 5.0 if n < 4 else 2.0) for n in range(8)])
    assert course.around((30.0, 40.0), 20.0) == (pytest.approx(5.0), pytest.approx(2.0))


@pytest.mark.parametrize("at", [(-1.0, 20.0), (5.0, 20.0), (20.0, 41.0), (20.0, 35.0)])
def test_too_short_a_while_tells_nothing(at: tuple[float, float]) -> None:
    assert course_of_rate([Timed(10.0 * n, 1.0) for n in range(5)]).around(at, 10.0) is None


def test_a_clock_that_was_set_back_tells_nothing_rather_than_nonsense() -> None:
    assert course_of_total(_told((50.0, 1.0), (50.0, 2.0), (10.0, 3.0)), "progress").around((50.0, 0.0), 0.0) is None
