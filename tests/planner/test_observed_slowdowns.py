"""Programs that were observed together: what they cost each other then decides, instead of pressures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from hcloud.classifier.slowdown.forecasts import SlowdownForecasts, fit_slowdowns
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Classification
from hcloud.core.model import BatchTarget, Resources
from hcloud.planner.fit.interference import Floats, PressureState, Sensitivity
from hcloud.planner.fit.observed_slowdowns import ObservedSlowdowns
from hcloud.planner.placement.orders.least_loss import LASTS, least_loss_choice
from hcloud.planner.plan import Correct, Place, StopAttempt
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import PlacementPolicy
from tests.planner.scenes import decide, job, machine, of, running, scene, spec
from tests.planner.test_correction import _beside_loud, _taught, busy, guess, late, neighbour, slow
from tests.planner.test_least_loss import ASKED, KNOWN, LEAST_LOSS
from tests.planner.test_paragon import everywhere, fleet
from tests.planner.test_placement_orders import APPLICATIONS, FAST, SLOW
from tests.planner.watched import classified, sure
from tests.policies import simple

TYPE = "mock/fast"


def observed(application: str, *neighbours: str, speed: float, periods: int = 20, type_column: str = TYPE) -> CoRun:
    """What many periods showed."""
    return CoRun(
        application=application,
        neighbours=tuple(sorted(neighbours)),
        type_column=type_column,
        log_speed=math.log(speed),
        doubt=0.02,
        seconds=600.0 * periods,
        periods=periods,
    )


def learnt(*records: CoRun, known: dict[str, Classification] = APPLICATIONS) -> SlowdownForecasts:
    steps = fit_slowdowns(records, known)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: SlowdownForecasts = done.value
        return result


# ------------------------------------------------------------------------------------------------------------ forecasts
def test_of_programs_never_observed_together_pressures_tell() -> None:
    forecasts = learnt(observed("fragile", "calm", speed=0.5), observed("fragile", speed=1.0))
    assert forecasts.has_met("fragile#input", ["calm", "loud"])
    for application, neighbours in (("fragile", ["loud"]), ("calm", ["fragile"]), ("fragile", [])):
        assert not forecasts.has_met(application, neighbours)
    assert forecasts.is_known("calm") and not forecasts.is_known("loud")
    said = forecasts.slowdown("fragile#input", ["calm"], TYPE, 0.01)
    assert math.exp(-said.mean) == pytest.approx(0.5, abs=0.05)


def test_a_speed_alone_that_was_observed_corrects_the_one_expected() -> None:
    halved = learnt(observed("fragile", "calm", speed=0.5), observed("fragile", speed=0.5))
    assert halved.slowdown("fragile", ["calm"], TYPE, 0.0).mean < 0.05
    elsewhere = learnt(observed("fragile", "calm", speed=0.5), observed("fragile", speed=0.5, type_column="mock/slow"))
    assert elsewhere.slowdown("fragile", ["calm"], TYPE, 0.0).mean > 0.5


def test_one_short_look_tells_less_than_many() -> None:
    one, many = (learnt(observed("fragile", "calm", speed=0.5, periods=count)) for count in (1, 20))
    asked = ("fragile", ["calm"], TYPE, 0.01)
    assert one.slowdown(*asked).mean < many.slowdown(*asked).mean
    assert one.slowdown(*asked).deviation > many.slowdown(*asked).deviation


# ------------------------------------------------------------------------------------------------------------ placement
def beside_loud_or_calm(forecasts: SlowdownForecasts) -> Snapshot:
    """A job that by pressures loses 19 % beside one neighbour and 1 % beside the other, on machines of one type."""
    one, two = machine(1, FAST), machine(2, FAST)
    there = (running(1, one, application="loud", asks=ASKED), running(2, two, application="calm", asks=ASKED))
    fresh = job(3, asks=ASKED, application="fragile")
    return scene(*there, fresh, one, two, applications=APPLICATIONS, slowdowns=forecasts)


def placed(snapshot: Snapshot) -> Place:
    (place,) = of(decide(snapshot, LEAST_LOSS), Place)
    return place


def test_a_job_goes_where_it_was_observed_to_lose_less() -> None:
    before = placed(beside_loud_or_calm(learnt()))
    assert before.ranks[0].instance_id == "inst-2"
    assert "loss_observed" not in before.reason.numbers
    after = placed(
        beside_loud_or_calm(learnt(observed("fragile", "calm", speed=0.4), observed("fragile", "loud", speed=0.97)))
    )
    assert after.ranks[0].instance_id == "inst-1"
    assert after.reason.numbers["loss_observed"] is True
    assert after.reason.numbers["expected_loss"] == pytest.approx(0.03, abs=0.03)


def test_a_job_goes_where_neighbours_were_observed_to_lose_less() -> None:
    forecasts = learnt(observed("calm", "fragile", speed=0.4), observed("loud", "fragile", speed=1.0))
    assert placed(beside_loud_or_calm(forecasts)).ranks[0].instance_id == "inst-1"


def test_what_others_were_observed_to_lose_says_how_much_is_lost_by_pressures_on_that_type() -> None:
    losses = []
    for speed in (0.4, 1.0):
        others = [
            observed(name, "loud", *["calm"] * more, speed=speed) for name in ("calm", "loud") for more in range(3)
        ]
        place = placed(beside_loud_or_calm(learnt(*others)))
        assert place.ranks[0].instance_id == "inst-2", "which loses less is as by pressures"
        assert "loss_observed" not in place.reason.numbers, "these programs were not observed together"
        losses.append(float(place.reason.numbers["expected_loss"]))
    by_pressure = float(placed(beside_loud_or_calm(learnt())).reason.numbers["expected_loss"])
    assert losses[1] < 0.7 * by_pressure < by_pressure < losses[0]


@pytest.mark.parametrize("order", ["least_loss", "co_schedule"])
def test_a_job_goes_to_the_type_on_which_others_lost_little(order: str) -> None:
    one, two = machine(1, FAST), machine(2, SLOW)
    there = [running(number, at, application="loud", asks=ASKED) for number, at in ((1, one), (2, two))]
    alike = {"mock/fast": sure(1.0), "mock/slow": sure(1.0)}
    known = APPLICATIONS | {"fragile": replace(APPLICATIONS["fragile"], by_type=alike)}
    policy, went = simple(placement=PlacementPolicy(order=order)), []
    for quiet in ("mock/fast", "mock/slow"):
        records = [
            observed(name, *["loud"] * count, speed=1.0 if column == quiet else 0.5, type_column=column)
            for name in ("calm", "loud")
            for column in ("mock/fast", "mock/slow")
            for count in range(1, 5)
        ]
        fresh = job(3, asks=ASKED, application="fragile")
        snapshot = scene(*there, fresh, one, two, applications=known, slowdowns=learnt(*records, known=known))
        (place,) = of(decide(snapshot, policy), Place)
        went.append(place.ranks[0].instance_id)
    assert went == ["inst-1", "inst-2"]


def test_beside_a_neighbour_that_was_observed_to_cost_much_a_job_gets_more() -> None:
    one = machine(1, FAST)
    there = running(1, one, application="calm", asks=spec(target=BatchTarget(), resources=Resources(vcpus=1.0)))
    asks = spec(target=BatchTarget(finish_within_s=1.0), vcpus_within=(1.0, 4.0), resources=Resources(vcpus=2.0))
    steps = {f"{vcpus} vCPU": sure(float(vcpus)) for vcpus in (1, 2, 4)}
    known = APPLICATIONS | {"fragile": replace(APPLICATIONS["fragile"], by_step=steps)}
    fresh = job(3, asks=asks, application="fragile")
    policy = simple(placement=PlacementPolicy(order="quasar", confidence=0.5, neighbour_tolerance=0.9))
    sizes = []
    for forecasts in (learnt(), learnt(observed("fragile", "calm", speed=0.5), known=known)):
        (place,) = of(decide(scene(there, fresh, one, applications=known, slowdowns=forecasts), policy), Place)
        sizes.append(place.ranks[0].resources.vcpus)
    assert sizes[0] < sizes[1]


# ----------------------------------------------------------------------------------------------------------- properties
NAMES = st.sampled_from(sorted(KNOWN))
MACHINES = st.lists(st.lists(NAMES, max_size=3), min_size=1, max_size=6)
RECORDS = st.lists(
    st.builds(
        lambda name, beside, speed: observed(name, *beside, speed=speed, type_column="mock/small"),
        NAMES,
        st.lists(NAMES, min_size=1, max_size=2),
        st.floats(0.2, 1.0),
    ),
    max_size=5,
    unique_by=lambda record: record.key,
)
MOVES = st.lists(st.tuples(st.integers(0, 5), NAMES, st.booleans()), max_size=6)
Company = tuple[Sensitivity, ...]
Open = Callable[[SlowdownForecasts, int], ObservedSlowdowns]


def opened(forecasts: SlowdownForecasts, count: int) -> ObservedSlowdowns:
    return ObservedSlowdowns(forecasts=forecasts, type_columns=["mock/small"] * count)


def apply_moves(pressure: PressureState, moves: Sequence[tuple[int, str, bool]]) -> None:
    for at, name, arrives in moves:
        if at < len(pressure.residents):
            resident = pressure.of(name)
            if arrives:
                pressure.add(at, resident)
            elif resident in pressure.residents[at]:
                pressure.remove(at, resident)


def the_least_is_lost(
    make: Open, there: Sequence[list[str]], name: str, records: Sequence[CoRun], moves: Sequence[tuple[int, str, bool]]
) -> None:
    """Raise AssertionError unless, after some moves, the machine taken loses least by a direct computation."""
    forecasts = learnt(*records, known=KNOWN)
    pressure = fleet(*there, confidence=0.5)
    pressure.observed, factor = make(forecasts, len(there)), forecasts.calibration.of("mock/small").value
    pressure.factors[:] = factor
    newcomer = pressure.of(name)
    least_loss_choice(pressure, newcomer, everywhere(pressure), None)
    apply_moves(pressure, moves)
    found = least_loss_choice(pressure, newcomer, everywhere(pressure), None)
    assert found is not None

    def longer(own: str, beside: Sequence[str], *, by_record: bool) -> float:
        pressed = {s: min(100.0, sum(KNOWN[each].caused[s].value for each in beside)) for s in KNOWN[own].tolerated}
        worst = max((pressed[s] / estimate.value for s, estimate in KNOWN[own].tolerated.items()), default=0.0)
        if by_record and beside:
            return forecasts.slowdown(own, beside, "mock/small", (1 / 0.95 - 1) * worst).mean
        return math.log1p(factor * (1 / 0.95 - 1) * worst)

    def lost(residents: Sequence[str]) -> float:
        total = longer(name, residents, by_record=forecasts.has_met(name, residents))
        for at, each in enumerate(residents):
            others, met = [*residents[:at], *residents[at + 1 :]], forecasts.has_met(each, [name])
            total += max(0.0, longer(each, [*others, name], by_record=met) - longer(each, others, by_record=met))
        return LASTS * total

    losses = [lost([each.name for each in here]) for here in pressure.residents]
    assert losses[found.at] == pytest.approx(min(losses), abs=1e-6)


@given(MACHINES, NAMES, RECORDS, MOVES)
@settings(max_examples=60)
def test_by_records_and_pressures_together_the_least_is_lost(
    there: list[list[str]], name: str, records: list[CoRun], moves: list[tuple[int, str, bool]]
) -> None:
    the_least_is_lost(opened, there, name, records, moves)


def forgets_harm(forecasts: SlowdownForecasts, count: int) -> ObservedSlowdowns:
    """Seeded fault: what residents lose is told by pressures only."""

    class Selfish(ObservedSlowdowns):
        def harm(self, newcomer: Sensitivity, residents: Sequence[Company], places: Iterable[int]) -> Floats:
            return np.full(len(list(places)), math.nan)

    return Selfish(forecasts=forecasts, type_columns=["mock/small"] * count)


def sees_no_moves(forecasts: SlowdownForecasts, count: int) -> ObservedSlowdowns:
    """Seeded fault: what arrives and leaves during a plan is not seen."""
    first = list[Sequence[Company]]()

    class Old(ObservedSlowdowns):
        def own(self, newcomer: Sensitivity, residents: Sequence[Company], places: Iterable[int]) -> Floats:
            first.append(list(residents))
            return super().own(newcomer, first[0], places)

        def harm(self, newcomer: Sensitivity, residents: Sequence[Company], places: Iterable[int]) -> Floats:
            return super().harm(newcomer, first[0], places)

    return Old(forecasts=forecasts, type_columns=["mock/small"] * count)


@pytest.mark.parametrize("fault", [forgets_harm, sees_no_moves])
def test_seeded_faults_of_observed_costs_are_caught(fault: Open) -> None:
    @seed(0)
    @settings(max_examples=1000, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(MACHINES, NAMES, RECORDS, MOVES)
    def check(there: list[list[str]], name: str, records: list[CoRun], moves: list[tuple[int, str, bool]]) -> None:
        the_least_is_lost(fault, there, name, records, moves)

    with pytest.raises(AssertionError):
        check()


# ----------------------------------------------------------------------------------------------------------- correction
def test_a_loss_that_was_observed_before_corrects_no_tolerance() -> None:
    slow = _beside_loud(0.00035, guess(50.0, 2.0))
    assert _taught(slow)
    known = dict(slow.applications)
    column = next(iter(known["app"].by_type))
    beside = observed("app", "loud", speed=0.5, type_column=column)
    assert not _taught(replace(slow, slowdowns=learnt(beside, known=known)))
    harmless = observed("app", "loud", speed=1.0, type_column=column)
    assert [each.learnt for each in of(decide(replace(slow, slowdowns=learnt(harmless, known=known))), Correct)]


def test_where_others_lose_little_by_pressures_a_loss_shows_a_lower_tolerance() -> None:
    slow = _beside_loud(0.00035, guess(50.0, 0.5), caused=90.0)
    known = dict(slow.applications)
    column = next(iter(known["app"].by_type))
    pressed = {name: classified(0.1, tolerated={"llc": sure(10.0)}, caused={"llc": sure(40.0)}) for name in "abcdef"}
    records = [observed(name, "loud", speed=1.0, type_column=column) for name in pressed]
    tolerances = []
    for forecasts in (learnt(), learnt(*records, known=known | pressed)):
        (found,) = of(decide(replace(slow, slowdowns=forecasts)), Correct)
        assert found.learnt is not None
        tolerances.append(found.learnt.tolerated["llc"])
    assert tolerances[1] == pytest.approx(tolerances[0] * forecasts.calibration.of(column).value)
    assert tolerances[1] < 0.7 * tolerances[0]


@pytest.mark.parametrize("costly", ["loud", "quiet"])
def test_the_neighbour_that_was_observed_to_cost_most_is_evicted(costly: str) -> None:
    here = busy(1, 3.0)
    beside = [
        replace(neighbour(number, here, ago_s=600.0), application=name)
        for number, name in enumerate(("loud", "quiet"), 2)
    ]
    known = {
        "app": classified(0.0009, tolerated={"llc": sure(50.0)}),
        "loud": classified(0.1, caused={"llc": sure(40.0)}),
        "quiet": classified(0.1, caused={"llc": sure(40.0)}),
    }
    records = [
        observed(
            "app", name, speed=0.3 if name == costly else 0.99, type_column=f"mock/{here.offer.instance_type.name}"
        )
        for name in ("loud", "quiet")
    ]
    job_1 = replace(late(here), application="app")
    snapshot = replace(slow(job_1, *beside, here), applications=known, slowdowns=learnt(*records, known=known))
    [stop] = of(decide(snapshot), StopAttempt)
    assert stop.job_id == {"loud": "job-2", "quiet": "job-3"}[costly]
