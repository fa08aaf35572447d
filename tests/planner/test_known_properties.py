"""Plans that use estimates keep every property, and each of their own catches its seeded fault."""

import pytest
from hypothesis import strategies as st

from tests.planner.known_properties import BARRING, CASES, OWN_CASES
from tests.planner.properties import Case
from tests.planner.searching import catches_its_fault, hold
from tests.policies import simple
from tests.strategies_known import aware_policies, contended, crowded, known_snapshots

pytestmark = pytest.mark.hypothesis  # `make soak` looks at other snapshots, and more of them
PLAIN = st.just(simple())


def test_every_property_holds_in_any_fleet() -> None:
    hold(CASES, known_snapshots(), aware_policies(), examples=50)


def test_every_property_holds_where_it_is_crowded() -> None:
    """Neighbours decide nearly every placement here."""
    hold(CASES, crowded(), aware_policies(PLAIN), examples=60)


def test_every_property_holds_where_more_jobs_wait_than_fit() -> None:
    hold(CASES, contended(), aware_policies(PLAIN), examples=60)


def test_every_property_but_peace_with_neighbours_holds_where_losses_are_weighed() -> None:
    """This order keeps no job from an instance because of its neighbours."""
    weighing = aware_policies(PLAIN, orders=("least_loss",))
    hold([case for case in CASES if case.holds not in BARRING], crowded(), weighing, examples=40)


@pytest.mark.parametrize("case", OWN_CASES, ids=lambda case: f"{case.holds.__name__}-{case.broken_by().__name__}")
def test_property_catches_its_seeded_fault(case: Case) -> None:
    catches_its_fault(case, crowded() if case.scenes is None else case.scenes, aware_policies(PLAIN))
