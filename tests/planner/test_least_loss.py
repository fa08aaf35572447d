"""Types weighed against neighbours: the machine with the least total loss, compared with a direct computation."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from hcloud.core.model import BatchTarget
from hcloud.planner.fit.interference import Floats, Mask, PressureState, Sensitivity, open_pressure
from hcloud.planner.fit.paragon import Selection, select
from hcloud.planner.placement.orders.least_loss import LASTS, least_loss_choice
from hcloud.planner.plan import Launch, Place
from hcloud.spec.policy import PlacementPolicy
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.planner.test_paragon import APPLICATIONS as THREE
from tests.planner.test_paragon import CROWD, everywhere, fleet, known
from tests.planner.test_placement_orders import APPLICATIONS, FAST, SLOW
from tests.policies import simple

Rule = Callable[[PressureState, Sensitivity, Mask, Floats | None], Selection | None]
KNOWN = THREE | CROWD
LEAST_LOSS = simple(placement=PlacementPolicy(order="least_loss"))
ASKED = spec(target=BatchTarget())


def longer(name: str, beside: Sequence[str]) -> float:
    """Logarithm of the factor by which neighbours lengthen a run; 5 % is lost at the tolerated pressure."""
    pressed = {s: min(100.0, sum(KNOWN[each].caused[s].value for each in beside)) for s in KNOWN[name].tolerated}
    worst = max(pressed[s] / estimate.value for s, estimate in KNOWN[name].tolerated.items())
    return math.log(1.0 + (1 / 0.95 - 1) * worst)


def lost(name: str, residents: Sequence[str], slow: float) -> float:
    """The total loss if ``name`` joins these residents on a type of this slowness."""
    harm = 0.0
    for at, each in enumerate(residents):
        others = [*residents[:at], *residents[at + 1 :]]
        harm += longer(each, [*others, name]) - longer(each, others)
    return slow + LASTS * (longer(name, residents) + harm)


names = st.sampled_from(sorted(KNOWN))
machines = st.lists(
    st.tuples(st.lists(names, max_size=4), st.sampled_from([0.0, 0.02, 0.1, 0.4])), min_size=1, max_size=9
)


def least_is_lost(rule: Rule, there: Sequence[tuple[list[str], float]], name: str) -> None:
    """Raise AssertionError if a rule takes a machine although another has a smaller loss."""
    pressure = fleet(*(residents for residents, _ in there), confidence=0.5)
    slow = np.array([each for _, each in there])
    found = rule(pressure, pressure.known[name], everywhere(pressure), slow)
    assert found is not None
    losses = [lost(name, *each) for each in there]
    assert losses[found.at] == pytest.approx(min(losses))


@given(machines, names)
def test_the_least_in_all_is_lost_on_the_machine_taken(there: list[tuple[list[str], float]], name: str) -> None:
    least_is_lost(least_loss_choice, there, name)


def bars(pressure: PressureState, who: Sensitivity, among: Mask, slow: Floats | None) -> Selection | None:
    """Seeded fault: excludes machines on which any job loses more than it tolerates (Paragon's rule)."""
    return select(pressure, who, among, slow) or least_loss_choice(pressure, who, among, slow)


def thinks_of_types_only(
    pressure: PressureState, who: Sensitivity, among: Mask, slow: Floats | None
) -> Selection | None:
    """Seeded fault: ignores all pressure."""
    empty = open_pressure(KNOWN, [[]] * len(pressure.residents), [False] * len(pressure.residents), confidence=0.5)
    return least_loss_choice(empty, who, among, slow)


def forgets_residents(pressure: PressureState, who: Sensitivity, among: Mask, slow: Floats | None) -> Selection | None:
    """Seeded fault: ignores the residents' loss."""
    lone = fleet(*([each.name for each in here] for here in pressure.residents), confidence=0.5)
    lone.residents = [[] for _ in lone.residents]
    return least_loss_choice(lone, who, among, slow)


@pytest.mark.parametrize("rule", [bars, thinks_of_types_only, forgets_residents])
def test_seeded_fault_is_caught(rule: Rule) -> None:
    @seed(0)
    @settings(max_examples=300, database=None)
    @given(machines, names)
    def holds(there: list[tuple[list[str], float]], name: str) -> None:
        least_is_lost(rule, there, name)

    with pytest.raises(AssertionError):
        holds()


def test_there_is_none_where_there_is_no_room() -> None:
    pressure = fleet(["calm"])
    assert least_loss_choice(pressure, pressure.known["calm"], np.zeros(1, dtype=np.bool_), None) is None


def test_of_machines_on_which_as_much_is_lost_the_one_with_the_most_left_to_others_is_taken() -> None:
    indifferent = {"deaf": known([0, 0, 0], [100, 100, 100]), "calm": known([5, 5, 5], [90, 90, 90])}
    pressure = open_pressure(indifferent, [["deaf", "calm"], [], []], [False] * 3, confidence=0.5)
    found = least_loss_choice(pressure, pressure.known["deaf"], np.array([True, True, True]), np.array([0.0, 0.0, 0.1]))
    assert found is not None
    assert (found.at, found.among) == (1, 3)


def test_who_would_lose_more_to_another_type_goes_beside_neighbours_that_disturb_it() -> None:
    fast, slow = machine(1, FAST), machine(2, SLOW)
    there = running(1, fast, application="loud", asks=ASKED)
    snapshot = scene(there, job(2, asks=ASKED, application="fragile"), fast, slow, applications=APPLICATIONS)
    barred = of(decide(snapshot, simple(placement=PlacementPolicy(order="paragon"))), Place)[0]
    assert barred.ranks[0].instance_id == "inst-2"
    place = of(decide(snapshot, LEAST_LOSS), Place)[0]
    assert (place.ranks[0].instance_id, place.reason.code) == ("inst-1", "least_loss")
    assert place.reason.numbers["expected_loss"] == pytest.approx(1 - 1 / (1 + (1 / 0.95 - 1) * 90 / 20), abs=1e-4)


def test_nobody_holds_out_for_quieter_neighbours_and_nothing_is_bought_while_there_is_room() -> None:
    fast = machine(1, FAST)
    there = running(1, fast, application="loud", asks=ASKED)
    fresh = job(2, asks=ASKED, application="fragile", queued_at=NOW)
    plan = decide(scene(there, fresh, fast, offer("slow", vcpus=8.0), applications=APPLICATIONS), LEAST_LOSS)
    assert [place.job_id for place in of(plan, Place)] == ["job-2"]
    assert not of(plan, Launch)
