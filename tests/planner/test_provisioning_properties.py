"""Every property of plans holds under every strategy, and those of provisioning catch the faults seeded for them."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from tests.planner import properties
from tests.planner.properties import Case, honest, nobody_waits_beside_free_room
from tests.planner.provisioning_properties import CASES, joins_what_is_rented_anyway
from tests.strategies_planner import policies, snapshots
from tests.strategies_provisioning import looking_back, paid_and_rented, provisioned_policies, reserved_fleets

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
PHASES = [Phase.generate]
BASELINES = ("p1", "p2", "p3", "p4", "p5", "p6", "p7")


@settings(max_examples=100, phases=PHASES, suppress_health_check=SLOW)
@given(st.one_of(looking_back(), reserved_fleets()), provisioned_policies())
def test_every_property_holds_under_every_strategy(snapshot: Snapshot, policy: Policy) -> None:
    """Hybrids let jobs wait beside room that is not good enough for them, or meant for others; all else holds."""
    for case in (*properties.CASES, *CASES):
        if case.holds is not nobody_waits_beside_free_room or policy.provisioning.strategy not in ("hf", "hm"):
            case.holds(honest, snapshot, policy)


@settings(max_examples=60, phases=PHASES, suppress_health_check=SLOW)
@given(st.one_of(looking_back(), reserved_fleets()), provisioned_policies(strategies=("hf", "hm"), mappings=BASELINES))
def test_mappings_to_compare_with_make_sound_plans(snapshot: Snapshot, policy: Policy) -> None:
    """P1 to P7 leave what is paid for idle, that is what is wrong with them; their plans hold everything else."""
    for case in properties.CASES:
        if case.holds is not nobody_waits_beside_free_room:
            case.holds(honest, snapshot, policy)


@settings(max_examples=100, phases=PHASES, suppress_health_check=SLOW)
@given(st.one_of(snapshots(), reserved_fleets(), paid_and_rented()), policies())
def test_what_is_paid_for_is_not_idle_without_a_strategy_either(snapshot: Snapshot, policy: Policy) -> None:
    """The default strategy uses commitments first too."""
    for case in CASES:
        case.holds(honest, snapshot, policy)


def _where_it_shows(case: Case) -> tuple[st.SearchStrategy[Snapshot], st.SearchStrategy[Policy]]:
    if case.broken_by() is joins_what_is_rented_anyway:
        return paid_and_rented(), st.just(Policy())
    return reserved_fleets(), provisioned_policies(strategies=("sr", "odf", "hf", "hm", "hm"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    """A planner with the fault breaks it on one of some hundred snapshots."""
    planner = case.broken_by()

    @settings(max_examples=2000, phases=PHASES, suppress_health_check=SLOW)
    @given(*_where_it_shows(case))
    def holds(snapshot: Snapshot, policy: Policy) -> None:
        case.holds(planner, snapshot, policy)

    with pytest.raises(AssertionError):
        holds()
