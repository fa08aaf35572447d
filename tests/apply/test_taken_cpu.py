"""A run from which the host took CPU time says little of how fast its program is."""

import pytest

from hcloud.apply.feedback import UnitTotals
from hcloud.classifier.interference import NeighbourLoss
from hcloud.core.estimates import Estimate

NEIGHBOURS = NeighbourLoss(worst=Estimate(0.2, 0.1, 0.3), is_steady=True)


@pytest.mark.parametrize("beside", [None, NEIGHBOURS])
def test_a_little_that_the_host_took_changes_nothing(beside: NeighbourLoss | None) -> None:
    assert UnitTotals(cpu_s=95.0, taken_s=5.0, beside=beside).lost == beside


def test_much_that_the_host_took_may_have_been_lost_or_not() -> None:
    lost = UnitTotals(cpu_s=60.0, taken_s=40.0).lost
    assert lost is not None and not lost.is_steady
    assert lost.on_average == (pytest.approx(0.2), 0.0, pytest.approx(0.4), False)


def test_neighbours_and_the_host_together_cost_more_than_either() -> None:
    lost = UnitTotals(cpu_s=50.0, taken_s=50.0, beside=NEIGHBOURS).lost
    assert lost is not None
    assert lost.worst[:3] == pytest.approx((0.6, 0.55, 0.65))
