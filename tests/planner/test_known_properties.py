"""Plans that use what is known of jobs keep every property, and each of their own catches the fault seeded for it."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from tests.planner.known_properties import CASES, OWN_CASES, Case
from tests.planner.properties import honest
from tests.strategies_known import aware_policies, crowded, known_snapshots

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
PHASES = [Phase.generate]  # see test_properties


PLAIN = st.just(Policy())


@settings(max_examples=80, phases=PHASES, suppress_health_check=SLOW)
@given(known_snapshots(), aware_policies())
def test_every_property_holds_in_any_fleet(snapshot: Snapshot, policy: Policy) -> None:
    """The planner as it is keeps all of them."""
    for case in CASES:
        case.holds(honest, snapshot, policy)


@settings(max_examples=120, phases=PHASES, suppress_health_check=SLOW)
@given(crowded(), aware_policies(PLAIN))
def test_every_property_holds_where_it_is_crowded(snapshot: Snapshot, policy: Policy) -> None:
    """The same where nearly every decision is about neighbours."""
    for case in CASES:
        case.holds(honest, snapshot, policy)


@pytest.mark.parametrize("case", OWN_CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    """A planner with the fault breaks it on one of some hundred snapshots."""
    planner = case.broken_by()

    @settings(max_examples=3000, phases=PHASES, suppress_health_check=SLOW)
    @given(crowded(), aware_policies(PLAIN))
    def holds(snapshot: Snapshot, policy: Policy) -> None:
        case.holds(planner, snapshot, policy)

    with pytest.raises(AssertionError):
        holds()
