"""The slowdown beside neighbours: what must hold of every prediction, and faults that each property catches."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.interference.model import Combination, slowdown, turns
from hcloud.classifier.interference import CORE_SOURCES, EXCESS, kept
from hcloud.core.estimates import SOURCES, Estimate
from hcloud.profiler.sources import SOURCES as MADE

Side = Mapping[str, Estimate]
Predict = Callable[..., Estimate]
percents = st.floats(0, 100)


def estimate(three: tuple[float, float, float]) -> Estimate:
    """Three numbers in any order as limits around a value."""
    low, value, high = sorted(three)
    return Estimate(value=value, low=low, high=high)


estimates = st.tuples(percents, percents, percents).map(estimate)
sides = st.dictionaries(st.sampled_from(SOURCES), estimates, max_size=6)
neighbourhoods = st.lists(sides, max_size=3)


def exact(value: float) -> Estimate:
    """A value known for certain."""
    return Estimate(value=value, low=value, high=value, observed=True)


def limits_hold_the_value(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    found = predict(tolerated, neighbours, core=turns(0.5, [0.7]))
    assert all(math.isfinite(each) for each in (found.low, found.value, found.high))
    assert 1.0 <= found.low <= found.value <= found.high


def nobody_beside_costs_nothing(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    found = predict(tolerated, [], core=turns(1.0, []))
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)
    assert predict({}, neighbours).value == 1.0


def order_of_neighbours_does_not_matter(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    one, other = predict(tolerated, neighbours), predict(tolerated, neighbours[::-1])
    assert one.value == pytest.approx(other.value)


def one_neighbour_more_never_helps(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    values = [predict(tolerated, neighbours[:count]).value for count in range(len(neighbours) + 1)]
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(values))


def who_tolerates_more_is_slowed_less(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    tougher = {name: exact(min(100.0, each.value + 10)) for name, each in tolerated.items()}
    assert predict(tougher, neighbours).value <= predict(tolerated, neighbours).value + 1e-12


def turns_count_in_full(predict: Predict, tolerated: Side, neighbours: Sequence[Side]) -> None:
    assert predict(tolerated, neighbours, core=turns(1.0, [1.0])).value >= 2.0
    assert predict({}, neighbours, core=turns(1.0, [1.0])).value == 2.0


PROPERTIES = [
    limits_hold_the_value,
    nobody_beside_costs_nothing,
    order_of_neighbours_does_not_matter,
    one_neighbour_more_never_helps,
    who_tolerates_more_is_slowed_less,
    turns_count_in_full,
]


@pytest.mark.parametrize("combination", Combination)
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_every_prediction_keeps_the_property(check: Callable[..., None], combination: Combination) -> None:
    @settings(max_examples=100)
    @given(sides, neighbourhoods)
    def holds(tolerated: Side, neighbours: Sequence[Side]) -> None:
        check(lambda *sides, **how: slowdown(*sides, combination=combination, **how), tolerated, neighbours)

    holds()


def _only_last(tolerated: Side, neighbours: Sequence[Side], **how: Estimate) -> Estimate:
    return slowdown(tolerated, neighbours[-1:], **how)  # type: ignore[arg-type]


def _upside_down(tolerated: Side, neighbours: Sequence[Side], **how: Estimate) -> Estimate:
    turned = {name: exact(100.0 - each.value) for name, each in tolerated.items()}
    return slowdown(turned, neighbours, **how)  # type: ignore[arg-type]


def _no_turns(tolerated: Side, neighbours: Sequence[Side], **_: Estimate) -> Estimate:
    return slowdown(tolerated, neighbours)


def _loose_limits(tolerated: Side, neighbours: Sequence[Side], **how: Estimate) -> Estimate:
    found = slowdown(tolerated, neighbours, **how)  # type: ignore[arg-type]
    return Estimate(value=found.value, low=found.high, high=found.low)


def _always_something(tolerated: Side, neighbours: Sequence[Side], **how: Estimate) -> Estimate:
    found = slowdown(tolerated, neighbours, **how)  # type: ignore[arg-type]
    return Estimate(value=found.value + 0.01, low=found.low + 0.01, high=found.high + 0.01)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (limits_hold_the_value, _loose_limits),
        (nobody_beside_costs_nothing, _always_something),
        (order_of_neighbours_does_not_matter, _only_last),
        (one_neighbour_more_never_helps, _only_last),
        (who_tolerates_more_is_slowed_less, _upside_down),
        (turns_count_in_full, _no_turns),
    ],
    ids=lambda each: each.__name__.strip("_"),
)
def test_the_property_catches_a_seeded_fault(check: Callable[..., None], fault: Predict) -> None:
    @settings(max_examples=600, print_blob=False, phases=[Phase.generate])
    @given(sides, neighbourhoods)
    def holds(tolerated: Side, neighbours: Sequence[Side]) -> None:
        check(fault, tolerated, neighbours)

    with pytest.raises((AssertionError, BaseExceptionGroup)):
        holds()


def test_what_is_tolerated_costs_five_percent() -> None:
    assert kept(40.0, 40.0) == pytest.approx(0.95)
    found = slowdown({"memory-bandwidth": exact(40.0)}, [{"memory-bandwidth": exact(40.0)}])
    assert found.value == pytest.approx(1 / 0.95)
    assert found.low == found.value == found.high


def test_neighbours_add_up_in_one_resource_and_stop_at_all_of_it() -> None:
    tolerated = {"llc-bandwidth": exact(50.0)}
    one = slowdown(tolerated, [{"llc-bandwidth": exact(30.0)}]).value
    two = slowdown(tolerated, [{"llc-bandwidth": exact(30.0)}] * 2).value
    ten = slowdown(tolerated, [{"llc-bandwidth": exact(30.0)}] * 10).value
    assert two - 1 == pytest.approx(2 * (one - 1))
    assert ten - 1 == pytest.approx(EXCESS * 100.0 / 50.0)


def test_resources_of_a_core_count_as_turns_on_it() -> None:
    tolerated = {name: exact(10.0) for name in CORE_SOURCES}
    neighbour = {name: exact(50.0) for name in CORE_SOURCES}
    assert slowdown(tolerated, [neighbour]).value == 1.0
    assert slowdown(tolerated, [neighbour], core=turns(1.0, [1.0])).value == 2.0


@pytest.mark.parametrize(
    ("busy", "others", "cpus", "low", "value", "high"),
    [
        (1.0, [], 1.0, 1.0, 1.0, 1.0),
        (1.0, [1.0], 1.0, 2.0, 2.0, 2.0),
        (1.0, [1.0, 1.0, 1.0], 1.0, 4.0, 4.0, 4.0),
        (1.0, [0.2], 1.0, 1.25, 1.25, 1.25),  # what the other leaves is mine
        (0.4, [1.0], 1.0, 1.0, 1.4, 2.0),  # a job that waits for disks
        (0.0, [1.0], 1.0, 1.0, 1.0, 2.0),
        (2.0, [2.0], 4.0, 1.0, 1.25, 1.5),
    ],
)
def test_turns_on_a_core(busy: float, others: list[float], cpus: float, low: float, value: float, high: float) -> None:
    found = turns(busy, others, cpus)
    assert (found.low, found.value, found.high) == pytest.approx((low, value, high))


def test_the_core_sources_are_those_the_profiler_runs_on_the_same_core() -> None:
    assert frozenset(source.name for source in MADE if source.same_core) == CORE_SOURCES
    assert tuple(source.name for source in MADE) == SOURCES
