"""Pressure on machines and Paragon's selection: exact, independent of order and names, relaxations reported."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate
from hcloud.planner.fit.interference import PressureState, ResidentSums, open_pressure, sensitivities
from hcloud.planner.fit.paragon import Selection, select, select_relaxed

SOURCES = ("cpu", "llc", "net")


class Asked(TypedDict):
    """Keyword arguments of ``sensitivities``."""

    confidence: float
    tolerance: float


def known(caused: Sequence[float], tolerated: Sequence[float], wide: float = 0.0) -> Classification:
    """An application with given pressures on cpu, llc and net, with limits ``wide`` points apart."""

    def estimates(values: Sequence[float]) -> dict[str, Estimate]:
        return {s: Estimate(value=v, low=v - wide, high=v + wide) for s, v in zip(SOURCES, values, strict=True)}

    return Classification(
        tolerated=estimates(tolerated),
        caused=estimates(caused),
        quality_target=Estimate(value=1.0 - min(tolerated) / 100, low=0.0, high=1.0),
    )


CALM = known([5, 5, 5], [90, 90, 90])
LOUD = known([80, 5, 5], [90, 90, 90])
FRAGILE = known([5, 5, 5], [20, 20, 20])
APPLICATIONS = {"calm": CALM, "loud": LOUD, "fragile": FRAGILE}
CROWD = {"some": known([10, 10, 10], [50, 50, 50], wide=8.0), "more": known([4, 9, 14], [60, 45, 70], wide=5.0)}


def fleet(*residents: Sequence[str], confidence: float = 0.9) -> PressureState:
    """Machines with these residents."""
    ending = [False] * len(residents)
    return open_pressure(APPLICATIONS | CROWD, residents, ending, confidence=confidence)


def everywhere(pressure: PressureState) -> np.ndarray:
    """All machines."""
    return np.ones(len(pressure.spare), dtype=np.bool_)


def choose(pressure: PressureState, name: str, preference: Sequence[float] | None = None) -> Selection | None:
    """The choice of the strict search."""
    ranks = None if preference is None else np.array(preference)
    return select(pressure, pressure.known[name], everywhere(pressure), ranks)


def test_the_tightest_fit_is_taken_of_those_that_are_sure() -> None:
    pressure = fleet(["loud"], ["some"], [], confidence=0.5)
    who = pressure.known["some"]

    def taken(wanted_margin: float) -> int | None:
        found = select(pressure, who, everywhere(pressure), None, wanted_margin=wanted_margin)
        return None if found is None else found.at

    # Beside its like 40 points are left before anybody is disturbed, alone 50.
    assert taken(0.0) == taken(39.9) == 1
    assert taken(40.1) == taken(1000.0) == 2


def test_a_job_goes_where_interference_is_tolerable() -> None:
    found = choose(fleet(["loud"], ["calm"], ["fragile"]), "fragile")
    assert found is not None
    assert (found.at, found.among, found.relaxed) == (2, 2, ())


def test_best_type_comes_before_the_tightest_fit() -> None:
    residents = (["calm"], [], [])
    assert (tight := choose(fleet(*residents), "calm")) is not None
    assert tight.at == 0
    assert (best := choose(fleet(*residents), "calm", [2.0, 1.0, 1.0])) is not None
    assert best.at == 1


def test_residents_pressing_on_each_other_leave_no_headroom_that_their_least_tolerance_pretends() -> None:
    """With Paragon's D1 alone, two residents that already exhaust each other's tolerance would admit a third."""
    pair = {"pair": known([40, 0, 0], [50, 100, 100]), "third": known([40, 0, 0], [100, 100, 100])}
    pressure = open_pressure(pair, [["pair", "pair"]], [False], confidence=0.5)
    assert select(pressure, pressure.known["third"], everywhere(pressure), None) is None


def test_who_bears_all_of_a_resource_bears_any_number_of_neighbours_there() -> None:
    """Pressure on a resource is limited to 100, however many residents there are."""
    bears = {"hard": known([60, 0, 0], [100, 100, 100]), "soft": known([60, 0, 0], [99, 100, 100])}

    def suits(residents: Sequence[str], who: str) -> bool:
        pressure = open_pressure(bears, [residents], [False], confidence=0.5)
        return bool(pressure.suits(pressure.known[who])[0])

    assert suits(["hard", "hard"], "hard")
    assert not suits(["hard", "hard"], "soft")
    assert not suits(["soft", "hard"], "hard")


def test_what_is_relaxed_is_named_with_the_amount() -> None:
    pressure = fleet(["loud", "calm"])
    who = pressure.known["fragile"]
    assert select(pressure, who, everywhere(pressure), None) is None
    found = select_relaxed(pressure, who, everywhere(pressure), None, neighbours_too=True, work_cells=10**6)
    assert found is not None
    assert [str(strain) for strain in found.relaxed] == ["cpu on itself by 65"]
    assert found.margin == pytest.approx(-65)


def test_neighbours_are_not_disturbed_where_that_is_forbidden() -> None:
    pressure = fleet(["fragile"])
    who = pressure.known["loud"]
    strict = select_relaxed(pressure, who, everywhere(pressure), None, neighbours_too=False, work_cells=10**6)
    assert strict is None


def test_search_beyond_its_work_takes_the_best_so_far_and_says_so() -> None:
    pressure = fleet(["loud"], ["calm"])
    found = select_relaxed(
        pressure, pressure.known["fragile"], everywhere(pressure), None, neighbours_too=True, work_cells=1
    )
    assert found is not None
    assert found.cut_short


def test_uncertain_estimates_keep_more_distance() -> None:
    vague = {"vague": known([40, 0, 0], [60, 60, 60], wide=15.0)}
    for confidence, suits in ((0.5, True), (0.9, False)):
        pressure = open_pressure(vague, [["vague"]], [False], confidence=confidence)
        assert bool(pressure.suits(pressure.known["vague"])[0]) is suits


def test_resident_nothing_is_known_of_counts_as_what_is_usual() -> None:
    pressure = open_pressure(APPLICATIONS, [["never seen"]], [False], confidence=0.5)
    assert pressure.caused[:, 0].tolist() == [5, 5, 5]


def test_what_many_cause_together_is_as_sure_as_what_one_does() -> None:
    crowd = fleet(["some"] * 4)
    assert crowd.expected[:, 0].tolist() == [40.0, 40.0, 40.0]
    assert crowd.caused[:, 0] == pytest.approx([40 + 2 * 8] * 3)
    assert crowd.headroom[:, 0] == pytest.approx([50 - 8 - (30 + 3**0.5 * 8)] * 3)


def test_who_suits_a_machine_disturbs_nobody_once_it_is_there() -> None:
    pressure = fleet(["some"], ["more"], ["some", "more"])
    for at in range(3):
        who = pressure.known["more"]
        if pressure.suits(who)[at]:
            pressure.add(at, who)
            assert (pressure.headroom[:, at] >= 0).all() and (pressure.caused[:, at] <= 100).all()


names = st.sampled_from(sorted(APPLICATIONS | CROWD))
machines = st.lists(st.lists(names, max_size=4), min_size=1, max_size=12)
changes = st.lists(st.tuples(st.integers(0, 11), names, st.booleans()), max_size=12)


def state_is_as_if_counted_afresh(pressure: PressureState) -> None:
    """Assert that the incremental state equals that computed from the residents, and the views agree."""
    afresh = fleet(*[[who.name for who in residents] for residents in pressure.residents])
    assert pressure.state == pytest.approx(afresh.state)
    assert pressure.expected == pytest.approx(afresh.expected)
    assert pressure.spare == pytest.approx(afresh.spare)
    assert pressure.level.tolist() == afresh.level.tolist()
    for name, who in pressure.known.items():
        assert pressure.suits(who).tolist() == afresh.suits(afresh.known[name]).tolist()


def _change(pressure: PressureState, steps: Sequence[tuple[int, str, bool]]) -> None:
    for place, name, come in steps:
        at, who = place % len(pressure.residents), pressure.known[name]
        pressure.suits(who)
        if come:
            pressure.add(at, who)
        elif who in pressure.residents[at]:
            pressure.remove(at, who)


@given(machines, changes)
def test_state_after_any_changes_is_that_of_its_residents(given_machines: list[list[str]], steps: list) -> None:
    pressure = fleet(*given_machines)
    _change(pressure, steps)
    state_is_as_if_counted_afresh(pressure)


@given(machines, changes, changes)
def test_going_back_undoes_what_came_since(given_machines: list[list[str]], first: list, second: list) -> None:
    pressure = fleet(*given_machines)
    _change(pressure, first)
    before, moment = [list(each) for each in pressure.residents], len(pressure.journal)
    _change(pressure, second)
    pressure.back_to(moment)
    assert [sorted(w.name for w in each) for each in pressure.residents] == [sorted(w.name for w in e) for e in before]
    state_is_as_if_counted_afresh(pressure)


def test_the_check_of_the_state_catches_an_empty_machine_taken_for_one_that_tolerates_100() -> None:
    pressure = fleet([])
    who = pressure.known["loud"]
    tolerated = np.minimum(pressure.headroom[:, 0] - who.caused, who.tolerated)
    state = np.concatenate((tolerated, -who.caused))
    pressure.met[(who,)] = ResidentSums(state=state, expected=who.expected, spare=float(state.sum()), level=0)
    pressure.add(0, who)
    with pytest.raises(AssertionError):
        state_is_as_if_counted_afresh(pressure)


def test_the_check_of_the_state_catches_residents_taken_for_others() -> None:
    pressure = fleet([], [])
    loud, calm = pressure.known["loud"], pressure.known["calm"]
    pressure.add(0, loud)
    state_is_as_if_counted_afresh(pressure)
    pressure.met[(calm,)] = pressure.met[(loud,)]
    pressure.add(1, calm)
    with pytest.raises(AssertionError):
        state_is_as_if_counted_afresh(pressure)


@given(machines, names, st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_the_order_of_machines_and_residents(
    given_machines: list[list[str]], name: str, chance
) -> None:
    order = list(range(len(given_machines)))
    chance.shuffle(order)
    shuffled = fleet(*(given_machines[at][::-1] for at in order))
    pressure = fleet(*given_machines)
    assert pressure.spare[order] == pytest.approx(shuffled.spare)
    assert pressure.suits(pressure.known[name])[order].tolist() == shuffled.suits(shuffled.known[name]).tolist()
    one, other = choose(pressure, name), choose(shuffled, name)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert pressure.spare[one.at] == pytest.approx(shuffled.spare[other.at])


@given(machines, names)
def test_machine_whose_worst_pressure_a_job_bears_is_never_in_a_pool_below_its_class(
    given_machines: list[list[str]], name: str
) -> None:
    pressure = fleet(*given_machines)
    job = pressure.known[name]
    bears = pressure.expected.max(axis=0) <= job.bears.min() - 1  # the code's other digits are worth less than a point
    assert all(pressure.level[at] >= pressure.classes.level(job.quality) for at in np.flatnonzero(bears))


def test_machine_without_residents_is_in_the_highest_pool_and_a_loud_resident_takes_it_down() -> None:
    pressure = fleet([], ["calm"], ["loud"])
    assert pressure.level[0] == 9 >= pressure.level[1] > pressure.level[2]


Crowds = st.dictionaries(
    st.sampled_from(["inst-1", "inst-2", "inst-3", "inst-4"]),
    st.lists(st.sampled_from(["calm", "loud", "some", "more", "never seen"]), max_size=3),
    min_size=1,
)
OTHERWISE = APPLICATIONS | CROWD | {"some": known([30, 10, 10], [50, 50, 50]), "none": known([1, 1, 1], [2, 2, 2])}


def stands_as_if_new(
    before: dict[str, list[str]], now: dict[str, list[str]], believed: dict[str, Classification], *, names_as_now: bool
) -> None:
    """Raise AssertionError if a pressure state built on an earlier baseline differs from one built without.

    ``names_as_now``: seeded fault, the baseline claims the present residents.
    """
    options = Asked(confidence=0.9, tolerance=0.05)
    table = sensitivities(APPLICATIONS | CROWD, **options)
    idle = [False] * len(before)
    there = open_pressure({}, list(before.values()), idle, table=table, machines=list(before), **options)
    standing, table = there.standing, sensitivities(believed, before=table, **options)
    assert standing is not None
    if names_as_now:
        standing = standing._replace(names=[tuple(now.get(name, ())) for name in before])
    residents, quiet = list(now.values()), [False] * len(now)
    fresh = open_pressure({}, residents, quiet, table=table, machines=list(now), **options)
    for _ in range(2):  # what one plan adds is not there in the next one
        followed = open_pressure({}, residents, quiet, table=table, machines=list(now), before=standing, **options)
        for name in ("state", "expected", "spare", "level"):
            assert np.array_equal(getattr(followed, name), getattr(fresh, name))
        assert followed.residents == fresh.residents
        standing = followed.standing
        followed.add(0, followed.of("loud"))


@settings(max_examples=25, deadline=None)
@given(Crowds, Crowds, st.sampled_from([APPLICATIONS | CROWD, OTHERWISE]))
def test_pressure_that_is_followed_from_plan_to_plan_is_what_it_is_when_worked_out_anew(
    before: dict[str, list[str]], now: dict[str, list[str]], believed: dict[str, Classification]
) -> None:
    stands_as_if_new(before, now, believed, names_as_now=False)


def test_that_property_catches_residents_that_were_taken_for_others() -> None:
    with pytest.raises(AssertionError):
        stands_as_if_new({"inst-1": ["calm"]}, {"inst-1": ["loud"]}, APPLICATIONS | CROWD, names_as_now=True)
