"""Elastic nets against known solutions: closed forms, and the conditions that the optimum meets."""

import numpy as np
import pytest
from hypothesis import Phase, assume, given, seed, settings
from hypothesis import strategies as st

from hcloud.classifier.slowdown.elastic_net import ElasticNet, Floats, LinearModel, folds_of, solve

TIGHT = 1e-10
LIKENESS_MOST = 20.0
"""Largest condition number of columns; nine of ten problems have less."""


def problem(number: int, rows: int = 40, columns: int = 6) -> tuple[Floats, Floats]:
    """Return a random regression. Columns that say nearly the same need more sweeps than are made."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, columns)) @ (np.eye(columns) + 0.3 * rng.normal(size=(columns, columns)))
    return x, x @ np.where(rng.random(columns) < 0.5, rng.normal(size=columns), 0.0) + 0.3 * rng.normal(size=rows)


def solved(x: Floats, y: Floats, penalty: float, l1_share: float) -> Floats:
    return solve(x.T @ x / len(x), x.T @ y / len(x), penalty, l1_share, np.zeros(x.shape[1]), TIGHT)


def is_optimal(x: Floats, y: Floats, penalty: float, l1_share: float, w: Floats) -> bool:
    """Return whether ``w`` meets the Karush-Kuhn-Tucker conditions, which only the optimum does."""
    slope = x.T @ (x @ w - y) / len(x) + penalty * (1.0 - l1_share) * w
    at_zero = np.abs(slope) <= penalty * l1_share + 1e-6
    elsewhere = np.abs(slope + penalty * l1_share * np.sign(w)) <= 1e-6
    return bool(np.where(w == 0.0, at_zero, elsewhere).all())


@given(st.integers(0, 10_000), st.floats(1e-3, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=60)
def test_solutions_are_optimal(number: int, penalty: float, l1_share: float) -> None:
    x, y = problem(number)
    assume(np.linalg.cond(x) < LIKENESS_MOST)
    assert is_optimal(x, y, penalty, l1_share, solved(x, y, penalty, l1_share))


def stops_after_one_sweep(x: Floats, y: Floats, penalty: float, l1_share: float) -> Floats:
    """Seeded fault: ends before the coefficients have settled."""
    return solve(x.T @ x / len(x), x.T @ y / len(x), penalty, l1_share, np.zeros(x.shape[1]), 1e9)


def forgets_the_quadratic_part(x: Floats, y: Floats, penalty: float, l1_share: float) -> Floats:
    """Seeded fault: penalises absolute values only."""
    return solved(x, y, penalty * l1_share, 1.0)


@pytest.mark.parametrize("fault", [stops_after_one_sweep, forgets_the_quadratic_part])
def test_seeded_faults_are_not_optimal(fault: object) -> None:
    assert callable(fault)

    @seed(0)
    @settings(max_examples=60, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.floats(0.1, 0.9))
    def check(number: int, penalty: float, l1_share: float) -> None:
        x, y = problem(number)
        assert is_optimal(x, y, penalty, l1_share, fault(x, y, penalty, l1_share))

    with pytest.raises(AssertionError):
        check()


def test_without_absolute_values_it_is_ridge_regression() -> None:
    x, y = problem(1)
    ridge = np.linalg.solve(x.T @ x / len(x) + 0.3 * np.eye(6), x.T @ y / len(x))
    assert solved(x, y, 0.3, 0.0) == pytest.approx(ridge, abs=1e-7)


def test_over_orthogonal_columns_coefficients_are_cut_and_shrunk() -> None:
    x = np.linalg.qr(np.random.default_rng(2).normal(size=(40, 4)))[0] * np.sqrt(40.0)
    y = x @ np.array([2.0, -1.0, 0.2, 0.0])
    assert solved(x, y, 0.5, 0.5) == pytest.approx([1.75 / 1.25, -0.75 / 1.25, 0.0, 0.0], abs=1e-9)


def test_what_was_fitted_is_found_again_and_useless_columns_are_left_out() -> None:
    rng = np.random.default_rng(3)
    x = np.hstack([rng.normal(size=(200, 8)), np.ones((200, 1))])
    y = 3.0 + 2.0 * x[:, 0] - x[:, 5] + 0.01 * rng.normal(size=200)
    model = ElasticNet().fit(x, y, range(200))
    assert model.predict(x) == pytest.approx(y, abs=0.1)
    assert model.coefficients[8] == 0.0 and np.abs(np.delete(model.coefficients, [0, 5])).max() < 0.02


def test_noise_alone_leaves_the_mean() -> None:
    rng = np.random.default_rng(4)
    model = ElasticNet().fit(rng.normal(size=(60, 20)), rng.normal(size=60), range(60))
    assert np.abs(model.coefficients).max() < 0.2


def test_equal_results_have_no_coefficients() -> None:
    model = ElasticNet().fit(np.random.default_rng(5).normal(size=(30, 3)), np.full(30, 2.0), range(30))
    assert model.predict(np.ones((1, 3))) == pytest.approx([2.0])


def test_rows_of_one_group_are_in_one_fold() -> None:
    groups = ["a", "b", "a", "c", "b", "d"]
    fold = folds_of(groups, 3)
    assert fold.tolist() == [0, 1, 0, 2, 1, 0]


def test_predictions_are_of_the_original_columns() -> None:
    model = LinearModel(np.array([1.0, 5.0]), np.array([2.0, np.inf]), np.array([4.0, 1.0]), 10.0)
    assert model.predict(np.array([[3.0, 7.0], [1.0, 0.0]])).tolist() == [14.0, 10.0]
