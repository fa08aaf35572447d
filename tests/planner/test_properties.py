"""Every property of plans holds over random snapshots, and each catches the fault seeded for it."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from tests.planner.properties import CASES, Case, honest
from tests.strategies_planner import policies, snapshots

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
# No shrinking: it takes minutes on whole snapshots. Add Phase.shrink to read a counterexample.
PHASES = [Phase.generate]


@settings(max_examples=250, phases=PHASES, suppress_health_check=SLOW)
@given(snapshots(), policies())
def test_every_property_holds(snapshot: Snapshot, policy: Policy) -> None:
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
