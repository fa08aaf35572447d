"""Every estimator keeps the contract."""

from dataclasses import replace

import numpy as np
import pytest

from bench.accuracy.pqsgd import PqSgd
from hcloud.classifier.estimator import AdditiveLog, ColumnMean, ProbeMean
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.neighbours import NeighbourFoldIn
from hcloud.classifier.utility_matrix import Scale, rows_of
from hcloud.core.errors import BadInput
from tests.classifier.contract import EstimatorContract, LearnsInteractions, ScalesWithTheRow, is_sound
from tests.classifier.matrices import observed, synthetic


class TestProbeMean(EstimatorContract, ScalesWithTheRow):
    estimator = ProbeMean()


class TestColumnMean(EstimatorContract):
    estimator = ColumnMean()


class TestAdditiveLog(EstimatorContract, ScalesWithTheRow):
    estimator = AdditiveLog()


class TestPqSgd(EstimatorContract):
    estimator = PqSgd()


class TestGaussian(EstimatorContract, ScalesWithTheRow, LearnsInteractions):
    estimator = GaussianFoldIn(tail=None)


class TestHeavyTailed(EstimatorContract, ScalesWithTheRow, LearnsInteractions):
    estimator = GaussianFoldIn()


class TestGaussianOfScores(EstimatorContract):
    estimator = GaussianFoldIn()
    scale = Scale.SCORE


class TestNeighbours(EstimatorContract, ScalesWithTheRow, LearnsInteractions):
    estimator = NeighbourFoldIn()


class TestNeighboursBySize(EstimatorContract, LearnsInteractions):
    estimator = NeighbourFoldIn(use_level=True)


def test_pq_sgd_is_unsure_but_finite_where_nothing_at_all_is_known() -> None:
    found = PqSgd().fit(rows_of(Scale.RATIO, {"a": {}, "b": {}}, columns=["1", "2"])).complete({})
    assert np.isfinite(found.mean).all() and (found.sd > 0.0).all()


def test_pq_sgd_descends_over_known_entries_only() -> None:
    """Unknown cells carry no weight: refilling one does not change the fit."""
    known = synthetic(7, 12, missing=0.4)
    method = PqSgd(rank=4, rate=0.1, penalty=0.0, sweeps_max=2000, tolerance=1e-6)
    found = method.reconstruct(known.values)
    mask = ~np.isnan(known.values)
    assert np.abs(found - known.values)[mask].mean() < 0.05


def test_pq_sgd_that_runs_away_still_answers() -> None:
    known = synthetic(7, 12)
    is_sound(PqSgd(rate=50.0).fit(known).complete({"c0": 2.0, "c1": 3.0}), known)


def test_a_single_freak_row_hardly_moves_the_heavy_tailed_fit() -> None:
    known = synthetic(5, 30)
    values = known.values.copy()
    values[0, 2] += 3.0
    seen = observed(known, 9, 0, 1)
    moved = {}
    for tail in (None, 8.0):
        estimator = GaussianFoldIn(tail=tail)
        clean, spoiled = (
            estimator.fit(known).complete(seen),
            estimator.fit(replace(known, values=values)).complete(seen),
        )
        moved[tail] = abs(clean.mean[2] - spoiled.mean[2])
    assert moved[8.0] < moved[None] / 2


def test_a_row_unlike_any_other_is_answered_with_more_doubt() -> None:
    known = synthetic(6, 30)
    fitted = GaussianFoldIn().fit(known)
    usual = fitted.complete(observed(known, 3, 0, 1))
    odd = fitted.complete({"c0": 1.0, "c1": 500.0})
    assert (odd.sd[2:] > 2 * usual.sd[2:]).all()


def test_a_resource_that_hardly_any_program_uses_stays_narrow_beside_one_that_some_fill() -> None:
    rng = np.random.default_rng(0)
    known = {f"p{i}": {"rare": rng.uniform(0, 4), "common": rng.uniform(0, 100)} for i in range(20)}
    found = GaussianFoldIn(calibrate=False).fit(rows_of(Scale.SCORE, known)).complete({"common": 50.0})
    low, high = found.interval()
    assert high[found.columns.index("rare")] - low[found.columns.index("rare")] < 8.0


def test_resource_use_tells_apart_what_observed_cells_cannot() -> None:
    """Half of the applications are bound by their disk, which shows only in c3 and in their resource use."""
    rng = np.random.default_rng(0)
    waits = np.arange(40) % 2 == 0
    values = rng.normal(size=(40, 1)) + 0.02 * rng.normal(size=(40, 4))
    values[waits, 3] += 0.4
    use = np.where(waits, 50.0, 2.0)[:, None, None] * np.ones((40, 4, 1))
    known = replace(synthetic(0, 40, 4), values=values, context=use)
    fitted = NeighbourFoldIn().fit(known)
    waiting = fitted.complete({"c0": 1.0, "c1": 1.0}, {"c0": [50.0], "c1": [50.0]})
    computing = fitted.complete({"c0": 1.0, "c1": 1.0}, {"c0": [2.0], "c1": [2.0]})
    assert waiting.mean[3] - computing.mean[3] == pytest.approx(0.4, abs=0.12)
    blind = fitted.complete({"c0": 1.0, "c1": 1.0})
    assert 0.1 < blind.mean[3] < 0.3
    assert waiting.sd[3] < blind.sd[3]
    is_sound(fitted.complete({"c0": 1.0, "c1": 1.0}, {"c0": [float("nan")]}), known)
    with pytest.raises(BadInput, match="resource use has 2 numbers; known runs have 1"):
        fitted.complete({"c0": 1.0}, {"c0": [1.0, 2.0]})


def test_rows_name_the_cell_that_is_no_measurement() -> None:
    with pytest.raises(BadInput, match=r"row 'x', column 'b': performance is nan; it must be a finite number above 0"):
        rows_of(Scale.RATIO, {"x": {"a": 1.0, "b": float("nan")}})
    with pytest.raises(BadInput, match=r"row 'x' has a column 'b'; known columns are a"):
        rows_of(Scale.RATIO, {"x": {"b": 1.0}}, columns=["a"])
    with pytest.raises(BadInput, match="interference is 120"):
        rows_of(Scale.SCORE, {"x": {"b": 120.0}})
