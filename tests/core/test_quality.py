"""Resource quality: order-preserving, within 0..1, and a match that never ranks a violation above a fit."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core import quality
from hcloud.core.errors import BadInput
from hcloud.core.model import Market
from tests.planner.scenes import offer

pressures = st.lists(st.integers(0, 99), min_size=1, max_size=10)
qualities = st.floats(0.0, 1.0)


def test_encode_reads_sorted_pressures_as_digits_of_base_100() -> None:
    assert quality.encode([31, 84]) == pytest.approx(8431 / 9999)
    assert quality.encode([0, 0, 0]) == 0.0
    assert quality.encode([99] * 15) == 1.0
    assert quality.encode([]) == 0.0
    assert quality.encode([100]) == 1.0


@given(pressures, st.randoms(use_true_random=False))
def test_encode_ignores_the_order_of_resources(vector: list[int], chance) -> None:
    shuffled = list(vector)
    chance.shuffle(shuffled)
    assert quality.encode(shuffled) == quality.encode(vector)


def order_is_kept(encode: Callable[[list[int]], float], one: list[int], other: list[int]) -> None:
    """Vectors compare by their worst resource first, then the next; the code compares alike."""
    first, second = sorted(one, reverse=True), sorted(other, reverse=True)
    if first < second:
        assert encode(one) <= encode(other)
        # Digits beyond the eighth are finer than a float.
        if first[:7] < second[:7]:
            assert encode(one) < encode(other)


@given(st.integers(1, 10).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 99), min_size=n, max_size=n)] * 2)))
def test_encode_preserves_order(pair: tuple[list[int], list[int]]) -> None:
    order_is_kept(quality.encode, *pair)


def test_the_order_check_catches_a_sum_in_place_of_the_code() -> None:
    with pytest.raises(AssertionError):
        order_is_kept(lambda vector: sum(vector) / 1000, [50, 50, 50], [80, 0, 0])


def test_offer_takes_the_mean_over_the_other_units() -> None:
    assert quality.offer([]) == 1.0
    assert quality.offer([[0, 0], [0, 0]]) == 1.0
    assert quality.offer([[80, 20], [0, 0]]) == pytest.approx(1 - 4010 / 9999)
    assert quality.offer([[99, 99]]) == 0.0


def match_ranks_fits_above_violations(
    match: Callable[[float, float], float], one: float, other: float, need: float
) -> None:
    better, worse = max(one, other), min(one, other)
    if worse < need <= better:
        assert match(better, need) >= need > match(worse, need)
    elif better < need:
        assert match(better, need) >= match(worse, need)
    elif worse >= need:
        assert match(worse, need) >= match(better, need)


@given(qualities, qualities, qualities)
def test_match_is_monotone_and_ranks_every_fit_above_every_violation(one: float, other: float, need: float) -> None:
    match_ranks_fits_above_violations(quality.match, one, other, need)
    assert 0.0 <= quality.match(one, need) <= 1.0
    assert quality.match(need, need) == 1.0


def test_the_match_check_catches_the_printed_second_branch() -> None:
    def printed(offered: float, needed: float) -> float:
        return 1 - (offered - needed) if offered >= needed else needed - offered

    with pytest.raises(AssertionError):
        match_ranks_fits_above_violations(printed, 0.1, 0.5, 0.9)


def test_classes_are_equal_parts_while_no_job_is_known() -> None:
    assert [quality.EVEN_CLASSES.level(each) for each in (0.0, 0.06, 0.96, 1.0)] == [0, 1, 9, 9]


def test_classes_follow_what_known_jobs_need() -> None:
    needed = [0.9 + 0.001 * place for place in range(100)]
    classes = quality.QualityClasses.of(needed, 10)
    found = [classes.level(each) for each in needed]
    assert found == sorted(found)
    assert set(found[:10]) <= {0, 1} and set(found[-10:]) <= {8, 9}
    assert classes.level(1.0) == 9


@given(st.lists(qualities, max_size=20), st.integers(1, 12), qualities, qualities)
def test_class_never_falls_as_quality_rises(needed: list[float], count: int, one: float, other: float) -> None:
    classes = quality.QualityClasses.of(needed, count)
    assert 0 <= classes.level(min(one, other)) <= classes.level(max(one, other)) < count


@pytest.mark.parametrize("bad", [-1.0, 100.5, math.nan, math.inf])
def test_nonsense_is_refused_in_one_sentence(bad: float) -> None:
    for ask in (
        lambda: quality.encode([bad]),
        lambda: quality.offer([[bad]]),
        lambda: quality.match(bad, 0.5),
        lambda: quality.match(0.5, bad),
        lambda: quality.EVEN_CLASSES.level(bad),
    ):
        with pytest.raises(BadInput, match="must be a number from 0 to 1"):
            ask()
    with pytest.raises(BadInput, match="one pressure per resource"):
        quality.offer([[1, 2], [1]])


# ------------------------------------------------------------------------------------------------- residents and types
def test_offer_beside_residents_counts_each_by_the_units_it_holds() -> None:
    assert quality.offer_beside([], vcpus=4, own_vcpus=1) == 1.0
    beside = quality.offer_beside([(1.0, [80, 20])], vcpus=4, own_vcpus=1)
    assert beside == pytest.approx(quality.offer([[80, 20], [0, 0], [0, 0]]))
    assert quality.offer_beside([(3.0, [80, 20])], vcpus=4, own_vcpus=1) < beside
    with pytest.raises(BadInput, match="residents name"):
        quality.offer_beside([(1.0, [1]), (1.0, [1, 2])], vcpus=4, own_vcpus=1)


observed = st.lists(st.floats(0, 1), max_size=60)


def is_cautious(reached: Callable[..., float], values: list[float]) -> None:
    """No more is promised than nine in ten of those seen have reached, and less where few were seen."""
    bound = reached(values)
    assert 0.0 <= bound <= 1.0
    if values:
        assert sum(value < bound for value in values) <= 0.1 * len(values)
        assert reached([1.0] * 5) < reached([1.0] * 10) < reached([1.0] * 40) == 1.0


@given(observed)
def test_what_nine_in_ten_reach_is_stated_with_caution(values: list[float]) -> None:
    is_cautious(quality.reached, values)


def test_the_caution_check_catches_a_plain_mean() -> None:
    with pytest.raises(AssertionError):
        is_cautious(lambda values: sum(values) / max(1, len(values)), [0.1, 0.9, 0.9])


def test_bound_holds_for_nine_in_ten_samples_of_any_size() -> None:
    """The true Q90 of a uniform quality is 0.1; the stated one exceeds it in at most one of ten samples."""
    rng = np.random.default_rng(3)
    for size in (22, 40, 150):
        stated = [quality.reached(rng.uniform(0, 1, size).tolist()) for _ in range(1000)]
        assert sum(each > 0.1 for each in stated) <= 130


def test_type_seen_elsewhere_fills_in_for_a_region_where_few_were_seen() -> None:
    def delivered(region: str, value: float, count: int) -> list[quality.Delivered]:
        one = quality.Delivered(
            provider="mock", region=region, instance_type="small", market=Market.ON_DEMAND, quality=value
        )
        return [one] * count

    here, nowhere = offer(region="r"), offer("other")
    book = quality.TypeQuality.of([*delivered("r", 0.9, 3), *delivered("s", 0.6, 50)])
    assert book.seen(here) == 3
    assert 0.6 <= book.q90(here) < 0.9
    assert book.q90(nowhere, unknown=0.25) == 0.25
    with pytest.raises(BadInput, match="small delivered quality 2"):
        quality.TypeQuality.of(delivered("r", 2.0, 1))
