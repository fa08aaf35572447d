"""Demands on machines are kept in every plan, and each property catches the faults seeded for it."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from tests.planner.demand_properties import CASES
from tests.planner.properties import Case, honest
from tests.strategies_planner import policies, snapshots

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
PHASES = [Phase.generate]  # see test_properties


@settings(max_examples=80, phases=PHASES, suppress_health_check=SLOW)
@given(snapshots(), policies())
def test_every_demand_is_kept(snapshot: Snapshot, policy: Policy) -> None:
    """The planner as it is keeps all of them."""
    for case in CASES:
        case.holds(honest, snapshot, policy)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.holds.__name__)
def test_property_catches_its_seeded_fault(case: Case) -> None:
    """A planner with the fault breaks it on one of some hundred snapshots."""
    planner = case.broken_by()

    @settings(max_examples=2000, phases=PHASES, suppress_health_check=SLOW)
    @given(snapshots(), policies())
    def holds(snapshot: Snapshot, policy: Policy) -> None:
        case.holds(planner, snapshot, policy)

    with pytest.raises(AssertionError):
        holds()
