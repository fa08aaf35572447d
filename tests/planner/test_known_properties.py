"""Plans that use what is known of jobs keep every property, and each of their own catches the fault seeded for it."""

import pytest
from hypothesis import strategies as st

from hcloud.spec.policy import Policy
from tests.planner.known_properties import BARRING, CASES, OWN_CASES
from tests.planner.properties import Case
from tests.planner.searching import catches_its_fault, hold
from tests.strategies_known import aware_policies, crowded, known_snapshots

PLAIN = st.just(Policy())


def test_every_property_holds_in_any_fleet() -> None:
    """The planner as it is keeps all of them."""
    hold(CASES, known_snapshots(), aware_policies(), examples=80)


def test_every_property_holds_where_it_is_crowded() -> None:
    """The same where nearly every decision is about neighbours."""
    hold(CASES, crowded(), aware_policies(PLAIN), examples=120)


def test_every_property_but_peace_with_neighbours_holds_where_losses_are_weighed() -> None:
    """An order that keeps nobody from a machine for its neighbours' sake keeps all others."""
    weighing = aware_policies(PLAIN, orders=("least_loss",))
    hold([case for case in CASES if case.holds not in BARRING], crowded(), weighing, examples=60)


@pytest.mark.parametrize("case", OWN_CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    """A planner with the fault breaks it on one of some hundred snapshots."""
    catches_its_fault(case, crowded(), aware_policies(PLAIN))
