"""Properties of the default estimator over made-up populations; each check is shown to catch a seeded fault."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.classifier.estimator import Completion, Context, Estimator, Fitted, Noise
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.utility_matrix import MeasuredRows
from tests.classifier.matrices import observed, rank_one, synthetic

seeds = st.integers(0, 2**32 - 1)
EXACT = GaussianFoldIn(tail=None)


@dataclass(frozen=True)
class Spoiled:
    """An estimator with a seeded fault in its results; ``fault(completion, rows) -> completion``."""

    base: Estimator
    fault: Callable[[Completion, MeasuredRows], Completion]

    def fit(self, rows: MeasuredRows) -> Fitted:
        fitted = self.base.fit(rows)
        fault = self.fault

        class Answers:
            def __init__(self) -> None:
                self.rows = rows

            def complete(
                self, seen: Mapping[str, float], context: Context | None = None, noise: Noise | None = None
            ) -> Completion:
                return fault(fitted.complete(seen, context, noise), rows)

        return Answers()


def shuffled(known: MeasuredRows, seed: int) -> MeasuredRows:
    return known.take(np.random.default_rng(seed).permutation(len(known)))


def row_order_does_not_matter(estimator: Estimator, seed: int) -> None:
    known = synthetic(seed, 15, missing=0.2)
    seen = {"c0": 2.0, "c3": 3.0}
    one = estimator.fit(known).complete(seen)
    other = estimator.fit(shuffled(known, seed)).complete(seen)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-6)


def scaling_a_known_row_changes_nothing(estimator: Estimator, seed: int) -> None:
    """A row's overall scale is unknown: a program ten times as slow gives the same fit."""
    known = synthetic(seed, 15)
    values = known.values.copy()
    values[seed % 15] += 2.3
    seen = {"c0": 2.0, "c3": 3.0}
    one = estimator.fit(known).complete(seen)
    other = estimator.fit(replace(known, values=values)).complete(seen)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-6)


def more_observations_leave_less_doubt(estimator: Estimator, seed: int) -> None:
    known = synthetic(seed, 15, missing=0.1)
    fitted = estimator.fit(known)
    rng = np.random.default_rng(seed)
    order = [int(j) for j in rng.permutation(6)]
    values = {f"c{j}": float(np.exp(rng.normal())) for j in order}
    last = np.full(6, np.inf)
    for count in range(1, 7):
        found = fitted.complete({f"c{j}": values[f"c{j}"] for j in order[:count]})
        assert (found.sd <= last * (1 + 1e-9)).all()
        last = found.sd


def rank_one_is_exact(estimator: Estimator, seed: int) -> None:
    size = 12 + seed % 20
    known, mean, loading = rank_one(size)
    rng = np.random.default_rng(seed)
    factor, scale = rng.uniform(-1.5, 1.5), rng.uniform(-5, 5)
    truth = scale + mean + factor * loading
    pair = (0, 5) if seed % 2 else (2, 5)
    found = estimator.fit(known).complete({f"c{j}": float(np.exp(truth[j])) for j in pair})
    np.testing.assert_allclose(
        found.mean, truth, atol=1.5 / size
    )  # the factor is shrunk, as one row more would shrink it


def intervals_are_honest(estimator: Estimator, seed: int) -> None:
    """80 % intervals of unseen applications cover the true value in 65 to 95 % of 240 cells, four of each row."""
    fitted = estimator.fit(synthetic(seed, 60))
    fresh = synthetic(seed + 1, 60)
    hits = []
    for row in range(60):
        pair = (row % 6, (row + 1 + row // 6 % 5) % 6)
        found = fitted.complete(observed(fresh, row, *pair))
        low, high = found.interval()
        truth = np.exp(fresh.values[row])
        hits += [low[j] <= truth[j] <= high[j] for j in range(6) if j not in pair]
    assert 0.65 <= np.mean(hits) <= 0.95


@given(seeds)
@settings(max_examples=15)
def test_row_order_does_not_matter(seed: int) -> None:
    row_order_does_not_matter(EXACT, seed)


@given(seeds)
@settings(max_examples=15)
def test_scaling_a_known_row_changes_nothing(seed: int) -> None:
    scaling_a_known_row_changes_nothing(GaussianFoldIn(), seed)


@given(seeds)
@settings(max_examples=15)
def test_more_observations_leave_less_doubt(seed: int) -> None:
    more_observations_leave_less_doubt(EXACT, seed)


@given(seeds)
@settings(max_examples=10)
def test_rank_one_is_exact(seed: int) -> None:
    rank_one_is_exact(EXACT, seed)


@given(seeds.map(lambda seed: seed % 2**31))
@settings(max_examples=8)
def test_intervals_are_honest(seed: int) -> None:
    intervals_are_honest(GaussianFoldIn(), seed)


def _first_row_leaks(found: Completion, rows: MeasuredRows) -> Completion:
    return replace(found, mean=found.mean + 0.01 * np.nan_to_num(rows.values[0]))


def _doubts_what_it_saw(found: Completion, _: MeasuredRows) -> Completion:
    return replace(found, sd=found.sd + 0.2 * sum(found.observed))


def _shrinks_to_the_mean(found: Completion, _: MeasuredRows) -> Completion:
    return replace(found, mean=0.7 * found.mean + 0.3 * found.mean.mean())


def _boasts(found: Completion, _: MeasuredRows) -> Completion:
    return replace(found, sd=found.sd * 0.4)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (row_order_does_not_matter, _first_row_leaks),
        (scaling_a_known_row_changes_nothing, _first_row_leaks),
        (more_observations_leave_less_doubt, _doubts_what_it_saw),
        (rank_one_is_exact, _shrinks_to_the_mean),
        (intervals_are_honest, _boasts),
    ],
)
def test_each_check_catches_a_planted_fault(
    check: Callable[[Estimator, int], None], fault: Callable[[Completion, MeasuredRows], Completion]
) -> None:
    with pytest.raises(AssertionError):
        check(Spoiled(EXACT, fault), 15)
