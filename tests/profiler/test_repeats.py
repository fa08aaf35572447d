"""Confidence limits from few repeats: correct coverage, and robust against one outlier."""

import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.profiler.repeats import RUNS_MAX, RUNS_MIN, Interval, enough, interval

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)
Estimator = Callable[[Sequence[float]], Interval]


def holds_its_value(estimate: Estimator, values: Sequence[float]) -> bool:
    """The value lies within its limits and among the repeats; their number is reported; order does not matter."""
    found = estimate(values)
    slack = 1e-9 * max(values)
    return (
        found.low <= found.value <= found.high
        and min(values) - slack <= found.value <= max(values) + slack
        and found.runs == len(values)
        and abs(found.value - estimate(list(reversed(values))).value) <= slack
    )


@given(VALUES)
def test_interval_holds_its_value(values: list[float]) -> None:
    assert holds_its_value(interval, values)


def one_sided(values: Sequence[float]) -> Interval:
    """Seeded fault: limits around the last run."""
    found = interval(values)
    return Interval(value=values[-1], low=values[-1], high=found.high, runs=found.runs)


def test_property_catches_limits_around_the_wrong_value() -> None:
    assert not holds_its_value(one_sided, [1.0, 5.0, 2.0])


def coverage(estimate: Estimator, runs: int, wild: float) -> float:
    """The coverage of limits from that many runs; each run may be an outlier (a burst of other work)."""
    chance = random.Random(20_25)
    held = 0
    for _ in range(2000):
        values = [chance.gauss(100, 5) * (0.5 if chance.random() < wild else 1.0) for _ in range(runs)]
        found = estimate(values)
        held += found.low <= 100 <= found.high
    return held / 2000


@pytest.mark.parametrize("runs", [3, 4, 5, 8, 12])
def test_limits_hold_the_truth_about_as_often_as_stated(runs: int) -> None:
    assert 0.92 <= coverage(interval, runs, 0.0) <= 0.985


def plain(values: Sequence[float]) -> Interval:
    """The plain mean with Student's limits."""
    spread = 2.2 * statistics.stdev(values) / len(values) ** 0.5
    value = statistics.fmean(values)
    return Interval(value=value, low=value - spread, high=value + spread, runs=len(values))


def test_one_wild_run_moves_the_value_less_than_it_moves_a_mean() -> None:
    values = [100.0, 101.0, 99.0, 100.5, 99.5, 40.0]
    assert abs(interval(values).value - 100) < 1 < abs(plain(values).value - 100)


def test_one_run_has_wide_limits() -> None:
    assert interval([4.0]) == Interval(value=4.0, low=2.0, high=6.0, runs=1)


def test_repeats_end_when_tight_or_many_but_never_before_three() -> None:
    assert not enough([1.0] * (RUNS_MIN - 1), 1.0)
    assert enough([1.0] * RUNS_MIN, 0.01)
    assert not enough([1.0, 2.0, 3.0], 0.01)
    assert enough([float(each) for each in range(RUNS_MAX)], 0.01)


def test_no_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="no repeats"):
        interval([])
