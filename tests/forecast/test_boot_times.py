"""Detection of late machines, and the deadline risk of waiting for them."""

import pytest

from hcloud.forecast.boot_times import broken_by_a_boot, broken_by_waiting, is_late


@pytest.mark.parametrize(("age_s", "late"), [(29.0, False), (55.0, False), (61.0, True)])
def test_where_no_boot_was_seen_late_is_beyond_four_times_the_usual(age_s: float, late: bool) -> None:
    assert is_late(age_s, 15.0, (), ()) is late


def test_boots_that_were_seen_tell_what_is_late_here() -> None:
    slow = tuple(float(n) for n in range(101, 201))
    assert not is_late(150.0, 15.0, slow, ())
    assert is_late(200.5, 15.0, slow, ())
    assert is_late(40.0, 15.0, (10.0,) * 100, ())


def test_nobody_is_late_where_all_are_slow_at_once() -> None:
    assert is_late(100.0, 15.0, (), ())
    assert not is_late(100.0, 15.0, (), (100.0,) * 3)


def test_waiting_is_as_risky_as_the_slack_is_short() -> None:
    assert broken_by_waiting(60.0, 300.0, [240.0]) == pytest.approx(0.5)
    assert broken_by_waiting(60.0, 30_000.0, [240.0]) < 0.01
    assert broken_by_waiting(60.0, 200.0, ()) > broken_by_waiting(60.0, 400.0, ()) > 0.1
    assert broken_by_waiting(60.0, 100_000.0, ()) < 0.01


def test_risk_is_averaged_over_how_long_the_job_may_run() -> None:
    short, long = broken_by_waiting(60.0, 300.0, [60.0]), broken_by_waiting(60.0, 300.0, [240.0])
    assert broken_by_waiting(60.0, 300.0, [60.0, 240.0]) == pytest.approx((short + long) / 2)
    assert broken_by_waiting(60.0, 300.0, [60.0, 400.0]) == pytest.approx(short / 2)  # the long one is late anyway


def test_what_is_lost_in_any_case_is_not_lost_by_waiting() -> None:
    assert broken_by_waiting(60.0, -1.0, ()) == broken_by_waiting(60.0, 100.0, [100.0]) == 0.0


def test_a_boot_breaks_what_has_no_time_for_it() -> None:
    assert broken_by_a_boot(15.0, 300.0, [285.0]) == pytest.approx(0.5)
    assert broken_by_a_boot(15.0, 300.0, [240.0]) == pytest.approx(0.05, abs=0.001)
    assert broken_by_a_boot(15.0, 100.0, ()) > 0.2 > 0.1 > broken_by_a_boot(15.0, 300.0, ())
    assert broken_by_a_boot(15.0, -1.0, ()) == broken_by_a_boot(15.0, 100.0, [100.0]) == 0.0
