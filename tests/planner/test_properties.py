"""Every property of plans holds on random snapshots, and catches its seeded fault."""

import pytest

from tests.planner import demand_properties, properties
from tests.planner.properties import Case
from tests.planner.searching import catches_its_fault, hold
from tests.strategies_planner import policies, snapshots

pytestmark = pytest.mark.hypothesis  # `make soak` looks at other snapshots, and more of them
CASES = (*properties.CASES, *demand_properties.CASES)


def test_every_property_holds_and_every_demand_is_kept() -> None:
    hold(CASES, snapshots(), policies(), examples=100)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.scenes is not None], ids=lambda case: case.holds.__name__
)
def test_property_holds_where_its_fault_would_show(case: Case) -> None:
    """Random snapshots rarely show these faults, so snapshots are drawn for each property."""
    assert case.scenes is not None
    hold([case], case.scenes, policies(), examples=15)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    catches_its_fault(case, snapshots() if case.scenes is None else case.scenes, policies())
