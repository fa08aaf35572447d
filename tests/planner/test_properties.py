"""Every property of plans holds over random snapshots, and each catches the fault seeded for it."""

import pytest

from tests.planner import demand_properties, properties
from tests.planner.properties import Case
from tests.planner.searching import catches_its_fault, hold
from tests.strategies_planner import policies, snapshots

CASES = (*properties.CASES, *demand_properties.CASES)


def test_every_property_holds_and_every_demand_is_kept() -> None:
    """The planner as it is keeps all of them."""
    hold(CASES, snapshots(), policies(), examples=200)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    """A planner with the fault breaks it on one of some hundred snapshots."""
    catches_its_fault(case, snapshots(), policies())
