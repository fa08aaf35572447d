"""What neighbours can take from a job, with the doubt of pressures and of what it tolerates."""

import pytest

from hcloud.classifier.interference import LOSS, neighbour_loss
from hcloud.core.estimates import Classification, Estimate

SURE = 0.0


def program(tolerated: float, caused: float, doubt: float = SURE, source: str = "llc-capacity") -> Classification:
    def about(value: float) -> Estimate:
        return Estimate(value, max(0.0, value - doubt), min(100.0, value + doubt))

    return Classification(
        tolerated={source: about(tolerated)},
        caused={source: about(caused)},
        quality_target=Estimate(0.5, 0.0, 1.0),
    )


def test_pressure_that_is_just_tolerated_costs_five_percent() -> None:
    assert neighbour_loss(program(40.0, 0.0), [program(100.0, 40.0)]) == pytest.approx((LOSS, LOSS, LOSS, False))


def test_without_neighbours_nothing_is_lost() -> None:
    assert neighbour_loss(program(1.0, 100.0), []) == (0.0, 0.0, 0.0, False)


def test_pressures_add_up_and_stay_on_the_scale() -> None:
    one, two, many = (neighbour_loss(program(20.0, 0.0), [program(100.0, 30.0)] * count) for count in (1, 2, 9))
    assert one.value < two.value < many.value == neighbour_loss(program(20.0, 0.0), [program(100.0, 100.0)]).value


def test_doubt_widens_both_limits_and_errors_of_many_neighbours_do_not_add_up() -> None:
    sure, unsure = (neighbour_loss(program(40.0, 0.0, doubt), [program(100.0, 40.0, doubt)]) for doubt in (0.0, 15.0))
    assert unsure.low < sure.low == sure.high < unsure.high
    four = neighbour_loss(program(40.0, 0.0), [program(100.0, 10.0, 5.0)] * 4)
    same = neighbour_loss(program(40.0, 0.0), [program(100.0, 40.0, 20.0)])
    assert four.value == pytest.approx(same.value) and four.high < same.high


def test_a_neighbour_nobody_knows_may_press_on_anything() -> None:
    known, unknown = (neighbour_loss(program(20.0, 0.0), [each]) for each in (program(100.0, 50.0), None))
    assert unknown.value == pytest.approx(known.value) and unknown.low == 0.0 and unknown.high > known.high


@pytest.mark.parametrize("source", ["l2", "interconnect"])
def test_sources_that_do_not_reach_across_cores_explain_nothing(source: str) -> None:
    assert neighbour_loss(program(1.0, 0.0, source=source), [program(100.0, 100.0, source=source)]).high == 0.0
