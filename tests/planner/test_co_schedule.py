"""Placement by predicted finish: compared with a direct computation, and where it differs from least loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget
from hcloud.planner.fit.interference import Floats, Mask, PressureState, Sensitivity
from hcloud.planner.fit.paragon import Selection
from hcloud.planner.placement.orders.co_schedule import Company, RunningNeighbour, soonest_choice
from hcloud.planner.placement.orders.least_loss import least_loss_choice
from hcloud.planner.plan import Place
from hcloud.spec.policy import PlacementPolicy
from tests.planner.scenes import NOW, decide, job, machine, of, running, scene, spec
from tests.planner.test_least_loss import KNOWN, longer
from tests.planner.test_paragon import everywhere, fleet
from tests.planner.test_placement_orders import APPLICATIONS, FAST
from tests.policies import simple

Rule = Callable[[PressureState, Sensitivity, Mask, Floats | None, float, Company], Selection | None]
Machine = tuple[list[tuple[str, float]], float]
"""Residents with the seconds that are left of them, and the logarithm of the type's slowness."""
CO_SCHEDULE = simple(placement=PlacementPolicy(order="co_schedule"))
ASKED = spec(target=BatchTarget())


def added_s(name: str, run_s: float, residents: Sequence[tuple[str, float]], slow: float) -> float:
    """Seconds until ``name`` is done there, and by which it delays who is there."""
    alone_s = run_s * math.exp(slow)
    pressed = dict.fromkeys(KNOWN[name].tolerated, 0.0)
    for each, left_s in residents:
        for source in pressed:
            pressed[source] += KNOWN[each].caused[source].value * min(1.0, left_s / alone_s)
    worst = max(min(100.0, pressed[s]) / estimate.value for s, estimate in KNOWN[name].tolerated.items())
    done_s = alone_s * (1.0 + (1 / 0.95 - 1) * worst)
    delay_s = 0.0
    for at, (each, left_s) in enumerate(residents):
        others = [other for other, _ in (*residents[:at], *residents[at + 1 :])]
        before, after = math.exp(longer(each, others)), math.exp(longer(each, [*others, name]))
        delay_s += min(left_s * before, done_s) * (1.0 - before / after)
    return done_s + delay_s


names = st.sampled_from(sorted(KNOWN))
left = st.sampled_from([0.0, 20.0, 300.0, math.inf])
machines = st.lists(
    st.tuples(st.lists(st.tuples(names, left), max_size=4), st.sampled_from([0.0, 0.02, 0.1, 0.4])),
    min_size=1,
    max_size=7,
)


def is_done_soonest(rule: Rule, there: Sequence[Machine], name: str, run_s: float) -> None:
    """Raise AssertionError if a rule takes a machine although less time would be added on another."""
    pressure = fleet(*([each for each, _ in residents] for residents, _ in there), confidence=0.5)
    slow = np.array([each for _, each in there])

    def company(at: int) -> list[RunningNeighbour]:
        return [RunningNeighbour(pressure.known[each], left_s) for each, left_s in there[at][0]]

    found = rule(pressure, pressure.known[name], everywhere(pressure), slow, run_s, company)
    assert found is not None
    costs = [added_s(name, run_s, residents, of_type - slow.min()) for residents, of_type in there]
    assert costs[found.at] == pytest.approx(min(costs))


def by_least_loss(
    pressure: PressureState, who: Sensitivity, among: Mask, slow: Floats | None, _: float, __: Company
) -> Selection | None:
    """Ignore for how long who is there."""
    return least_loss_choice(pressure, who, among, slow)


@settings(max_examples=40, deadline=None)
@given(machines, names, st.sampled_from([10.0, 100.0, 1000.0]))
def test_least_time_is_added(there: Sequence[Machine], name: str, run_s: float) -> None:
    is_done_soonest(soonest_choice, there, name, run_s)


def test_property_finds_a_rule_that_ignores_run_times() -> None:
    @seed(1)
    @settings(max_examples=60, deadline=None, database=None, phases=[Phase.generate])
    @given(machines, names, st.sampled_from([10.0, 100.0, 1000.0]))
    def check(there: Sequence[Machine], name: str, run_s: float) -> None:
        is_done_soonest(by_least_loss, there, name, run_s)

    with pytest.raises(AssertionError):
        check()


def test_nothing_to_choose_from_is_no_choice_and_many_are_narrowed_down() -> None:
    pressure = fleet(*([["loud"]] * 300), [])
    calm, nobody = pressure.known["calm"], np.zeros(301, dtype=np.bool_)

    def company(at: int) -> list[RunningNeighbour]:
        return [RunningNeighbour(each, math.inf) for each in pressure.residents[at]]

    assert soonest_choice(pressure, calm, nobody, None, 10.0, company) is None
    found = soonest_choice(pressure, calm, ~nobody, None, 10.0, company)
    assert found is not None and (found.at, found.among) == (300, 200)


def test_a_loud_neighbour_that_is_nearly_done_is_better_than_a_moderate_one_that_stays() -> None:
    def rated(name: str, run_s: float, **changes: object) -> Classification:
        rate = Estimate(value=1 / run_s, low=1 / run_s, high=1 / run_s)
        return replace(APPLICATIONS[name], by_type={"mock/fast": rate}, measure=Measure.COMPLETION, **changes)  # type: ignore[arg-type]

    one, two = machine(1, FAST), machine(2, FAST)
    moderate = {"llc": Estimate(value=30.0, low=30.0, high=30.0)}
    # Who runs, runs for 100 s already.
    applications = {
        "loud": rated("loud", 101.0),
        "mild": rated("calm", 5000.0, caused=moderate),
        "fragile": rated("fragile", 400.0),
    }
    snapshot = scene(
        running(1, one, application="loud", asks=ASKED),
        running(2, two, application="mild", asks=ASKED),
        job(9, asks=ASKED, application="fragile", queued_at=NOW),
        one,
        two,
        applications=applications,
    )
    place = of(decide(snapshot, CO_SCHEDULE), Place)[0]
    assert (place.ranks[0].instance_id, place.reason.code) == ("inst-1", "co_schedule")
    assert "expected to be done soonest there; it runs for" in place.reason.text
    other = of(decide(snapshot, simple(placement=PlacementPolicy(order="least_loss"))), Place)[0]
    assert other.ranks[0].instance_id == "inst-2"
