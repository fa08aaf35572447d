"""What to measure: at random, or what leaves least to guess."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.accuracy.probes import choose_probes, random_probes
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.core.errors import BadInput
from tests.classifier.matrices import observed, rows, synthetic

COLUMNS = tuple(f"c{j}" for j in range(6))


def twins() -> GaussianFoldIn:
    """c0..c2 move as one and c3..c5 as another: one probe in each half tells everything."""
    return GaussianFoldIn(calibrate=False)


def halves(seed: int = 0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(30, 1)) + np.repeat(0.4 * rng.normal(size=(30, 2)), 3, axis=1)
    return rows(values + 0.01 * rng.normal(size=(30, 6)))


@given(st.integers(0, 2**32 - 1), st.integers(0, 8))
@settings(max_examples=30)
def test_random_probes_are_distinct_new_and_as_many_as_there_are(seed: int, count: int) -> None:
    found = random_probes(COLUMNS, count, np.random.default_rng(seed), already=("c1",))
    assert len(set(found)) == len(found) == min(count, 5)
    assert set(found) <= set(COLUMNS) - {"c1"}


@pytest.mark.parametrize("seed", range(3))
def test_two_probes_are_chosen_where_they_tell_different_things(seed: int) -> None:
    fitted = twins().fit(halves())
    one, other = choose_probes(fitted, 2, np.random.default_rng(seed))
    assert (COLUMNS.index(one) < 3) != (COLUMNS.index(other) < 3)


def test_a_further_probe_is_taken_where_nothing_is_known_yet() -> None:
    fitted = twins().fit(halves())
    (found,) = choose_probes(fitted, 1, np.random.default_rng(0), already=("c0",))
    assert found in ("c3", "c4", "c5")


def test_a_dear_probe_is_left_for_its_cheap_twin() -> None:
    fitted = twins().fit(halves())
    price = dict.fromkeys(COLUMNS, 5.0) | {"c1": 1.0, "c5": 1.0}
    assert set(choose_probes(fitted, 2, np.random.default_rng(0), price=price)) == {"c1", "c5"}


def test_only_candidates_are_chosen_and_no_more_than_there_are() -> None:
    fitted = twins().fit(halves())
    found = choose_probes(fitted, 4, np.random.default_rng(0), candidates=("c2", "c4", "c5"))
    assert sorted(found) == ["c2", "c4", "c5"]
    assert choose_probes(fitted, 2, np.random.default_rng(0), already=COLUMNS) == ()


def test_chosen_probes_leave_less_error_than_random_ones() -> None:
    known, fresh = synthetic(1, 40), synthetic(2, 40)
    fitted = twins().fit(known)
    chosen = choose_probes(fitted, 2, np.random.default_rng(0), decision_weight=0.0)
    errors = {"chosen": [], "random": []}
    rng = np.random.default_rng(5)
    for row in range(40):
        for name, pair in (("chosen", chosen), ("random", random_probes(COLUMNS, 2, rng))):
            found = fitted.complete(observed(fresh, row, *(COLUMNS.index(each) for each in pair)))
            errors[name].append(np.abs(found.mean - fresh.values[row]).mean())
    assert np.mean(errors["chosen"]) < np.mean(errors["random"])


def test_nonsense_is_refused() -> None:
    fitted = twins().fit(halves())
    rng = np.random.default_rng(0)
    with pytest.raises(BadInput, match="column 'x' is not known"):
        choose_probes(fitted, 1, rng, already=("x",))
    with pytest.raises(BadInput, match="price of column 'c0' is 0"):
        choose_probes(fitted, 1, rng, price={"c0": 0.0})
