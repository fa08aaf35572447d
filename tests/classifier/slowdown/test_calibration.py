"""How much of the loss that pressures predict really comes."""

import itertools
import math
from collections.abc import Sequence

import pytest

from hcloud.classifier.slowdown.calibration import FACTOR_MAX, FACTOR_SD, Comparison, calibrate
from hcloud.classifier.slowdown.forecasts import SlowdownForecasts, fit_slowdowns
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Classification, Estimate

HERE, THERE = "mock/here", "mock/there"
LOSS = Estimate(value=0.1, low=0.06, high=0.2)


def compared(factor: float, count: int = 40, type_column: str = HERE, predicted: float = 0.1) -> list[Comparison]:
    """Pairs of programs that really lose so much of what pressures predict, one of two half as much again."""
    return [
        Comparison(type_column, predicted, factor * predicted * (1.5 if at % 2 else 0.5), doubt=0.02)
        for at in range(count)
    ]


def test_with_nothing_observed_losses_are_as_predicted() -> None:
    for seen in ([], [Comparison(HERE, 0.0, 0.5, 0.01)]):
        assert calibrate(seen).loss(HERE, LOSS) is LOSS
        assert calibrate(seen).longer(HERE, 0.3) == 0.3


@pytest.mark.parametrize("factor", [0.0, 0.2, 1.0, 1.4])
def test_many_pairs_show_how_much_comes(factor: float) -> None:
    found = calibrate(compared(factor)).of(HERE)
    assert found.value == pytest.approx(factor, abs=0.15)
    assert found.deviation < 0.15


def test_one_pair_moves_it_little_and_leaves_doubt() -> None:
    one, many = (calibrate(compared(0.0, count)).of(HERE) for count in (1, 40))
    assert 0.5 < one.value < 1.0
    assert one.deviation > 2 * many.deviation


def test_a_single_pair_that_loses_much_more_is_not_taken_for_all() -> None:
    outlier = [*compared(0.2), Comparison(HERE, 0.01, 3.0, doubt=0.02)]
    assert calibrate(outlier).of(HERE).value == pytest.approx(calibrate(compared(0.2)).of(HERE).value, abs=0.1)
    assert calibrate([Comparison(HERE, 0.5, 9.0, doubt=0.02)] * 50).of(HERE).value == FACTOR_MAX


def test_types_share_what_they_have_in_common() -> None:
    found = calibrate([*compared(0.2), *compared(1.0, type_column=THERE)])
    assert found.of(HERE).value < 0.4 < 0.8 < found.of(THERE).value
    assert found.of(HERE).value < found.of("mock/new").value < found.of(THERE).value
    assert found.of("mock/new").deviation > found.of(HERE).deviation
    assert calibrate(compared(0.2)).of("mock/new").value < 1.0 - FACTOR_SD / 2


def test_limits_hold_the_doubt_of_both() -> None:
    found = calibrate(compared(0.4))
    loss = found.loss(HERE, LOSS)
    assert loss.low < loss.value < loss.high < LOSS.high
    assert loss.value == pytest.approx(1 - 1 / (1 + found.of(HERE).value * (1 / 0.9 - 1)))
    sure = found.loss(HERE, Estimate(value=0.1, low=0.1, high=0.1))
    assert sure.low < loss.value < sure.high, "the factor is not certain"
    assert found.loss(HERE, Estimate(value=0.0, low=0.0, high=1.0)).high <= 1.0


# ------------------------------------------------------------------------------------------------- from co-run records
def program(tolerated: float, caused: float) -> Classification:
    sure = {"memory-bandwidth": Estimate(tolerated, tolerated, tolerated)}
    caused_by_it = {"memory-bandwidth": Estimate(caused, caused, caused)}
    return Classification(tolerated=sure, caused=caused_by_it, quality_target=Estimate(0.5, 0.5, 0.5))


KNOWN = {f"app-{at}": program(10.0, 40.0) for at in range(8)}


def forecasts_of(records: Sequence[CoRun]) -> SlowdownForecasts:
    steps = fit_slowdowns(records, KNOWN)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: SlowdownForecasts = done.value
        return found


def learnt(lost: float, doubt: float = 0.01) -> SlowdownForecasts:
    """What each program but the last two was observed to lose beside the next."""
    names = sorted(KNOWN)[:-2]
    records = [
        CoRun(application=name, neighbours=(other,), type_column=HERE, log_speed=math.log(1.0 - lost), doubt=doubt,
              seconds=3600.0, periods=20)
        for name, other in itertools.pairwise(names)
    ]  # fmt: skip
    return forecasts_of(records)


def test_programs_never_observed_are_expected_to_lose_as_others_did() -> None:
    by_pressure, excess = Estimate(0.17, 0.1, 0.3), 0.17 / 0.83
    little, all_of_it = (learnt(lost).loss("app-6", ["app-7"], HERE, by_pressure).value for lost in (0.01, 0.17))
    assert little < 0.1
    assert all_of_it == pytest.approx(0.17, abs=0.02)
    asked = learnt(0.01).slowdown("app-6", ["app-7"], HERE, excess)
    assert math.expm1(asked.mean) < 0.6 * excess


def test_readings_below_nothing_count_as_well() -> None:
    faster, zero = (learnt(lost, doubt=0.1).calibration.of(HERE).value for lost in (-0.05, 0.0))
    assert faster < zero, "cut off at 0, noise alone would look like a loss"


def test_neighbours_of_which_nothing_is_known_say_nothing() -> None:
    record = CoRun(application="app-0", neighbours=("new",), type_column=HERE, log_speed=0.0, doubt=0.01, seconds=60.0)
    assert forecasts_of([record]).calibration.of(HERE).deviation == 0.0
