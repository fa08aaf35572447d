"""Run properties of plans on random snapshots, and search for the effect of a seeded fault."""

from collections.abc import Callable, Iterable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner.properties import Case, Planner, honest, same_again

Scenes = st.SearchStrategy[Snapshot]
Policies = st.SearchStrategy[Policy]
# No shrinking: it takes minutes on whole snapshots. Add Phase.shrink to read a counterexample.
_PHASES = [Phase.generate]
_SEARCHES, _EACH = 80, 25
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def on_random_snapshots(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test that takes drawn values (``given`` goes below it) with the number of examples."""
    return settings(max_examples=examples, phases=_PHASES, suppress_health_check=_SLOW)


def hold(cases: Iterable[Case], scenes: Scenes, policies: Policies, examples: int) -> None:
    """Check that the planner keeps all properties on ``examples`` snapshots, four times as many in `make soak`.

    Raises AssertionError if one is broken.
    """

    @on_random_snapshots(examples if settings.default.derandomize else 4 * examples)
    @given(scenes, policies)
    def holds(snapshot: Snapshot, policy: Policy) -> None:
        check(cases, snapshot, policy)

    holds()


def check(cases: Iterable[Case], snapshot: Snapshot, policy: Policy) -> None:
    """Check that the planner keeps these properties on a snapshot. Raises AssertionError if one is broken."""
    plan = honest(snapshot, policy)

    def planned(other: Snapshot, with_policy: Policy) -> Plan:
        return plan if other is snapshot and with_policy is policy else honest(other, with_policy)

    for case in cases:
        # All of them ask for the plan of this snapshot; only one is about planning it again.
        case.holds(honest if case.holds is same_again else planned, snapshot, policy)


def catches_its_fault(case: Case, scenes: Scenes, policies: Policies) -> None:
    """Check that a planner with the fault of ``case`` breaks its property on one of some thousand snapshots.

    Many short searches find more than a long one, which stays near its first example. They start at the seed of the
    case, which makes the search short; any other would do. Raises AssertionError if the fault has no effect.
    """
    planner = case.broken_by()
    tries = range(case.seed, case.seed + _SEARCHES)
    assert any(_breaks(case, planner, scenes, policies, each) for each in tries), "no snapshot shows the fault"


def _breaks(case: Case, planner: Planner, scenes: Scenes, policies: Policies, number: int) -> bool:
    @seed(number)
    @on_random_snapshots(_EACH)
    @given(scenes, policies)
    def holds(snapshot: Snapshot, policy: Policy) -> None:
        case.holds(planner, snapshot, policy)

    try:
        holds()
    except AssertionError:
        return True
    return False
