"""Every property of plans holds under every strategy, and those of provisioning catch their seeded faults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner import properties
from tests.planner.properties import Case, honest, no_job_waits_beside_free_room
from tests.planner.provisioning_properties import CASES, joins_what_is_rented_anyway
from tests.planner.searching import catches_its_fault, hold, on_random_snapshots
from tests.policies import simple
from tests.strategies_planner import policies, snapshots
from tests.strategies_provisioning import looking_back, paid_and_rented, provisioned_policies, reserved_fleets

pytestmark = pytest.mark.hypothesis  # `make soak` looks at other snapshots, and more of them
BASELINES = ("p1", "p2", "p3", "p4", "p5", "p6", "p7")


@on_random_snapshots(100)
@given(st.one_of(looking_back(), reserved_fleets()), provisioned_policies())
def test_every_property_holds_under_every_strategy(snapshot: Snapshot, policy: Policy) -> None:
    """Hybrids let jobs wait while room is free that is not good enough for them, or held back; all else holds."""
    for case in (*properties.CASES, *CASES):
        if case.holds is not no_job_waits_beside_free_room or policy.provisioning.strategy not in ("hf", "hm"):
            case.holds(honest, snapshot, policy)


def test_mappings_to_compare_with_make_sound_plans() -> None:
    """P1 to P7 leave reserved instances idle, which is their flaw; their plans keep all other properties."""
    cases = [case for case in properties.CASES if case.holds is not no_job_waits_beside_free_room]
    compared = provisioned_policies(strategies=("hf", "hm"), mappings=BASELINES)
    hold(cases, st.one_of(looking_back(), reserved_fleets()), compared, examples=40)


def test_what_is_paid_for_is_not_idle_without_a_strategy_either() -> None:
    """The default strategy uses commitments first too."""
    hold(CASES, st.one_of(snapshots(), reserved_fleets(), paid_and_rented()), policies(), examples=60)


def _where_it_shows(case: Case) -> tuple[st.SearchStrategy[Snapshot], st.SearchStrategy[Policy]]:
    if case.broken_by() is joins_what_is_rented_anyway:
        return paid_and_rented(), st.just(simple())
    return reserved_fleets(), provisioned_policies(strategies=("sr", "odf", "hf", "hm", "hm"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    catches_its_fault(case, *_where_it_shows(case))
