"""The contract of every estimator, and the additional contract of those that can learn interactions."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hcloud.classifier.estimator import WIDE, Completion, Estimator
from hcloud.classifier.utility_matrix import MeasuredRows, Scale
from hcloud.core.errors import BadInput
from tests.classifier.matrices import checkerboard, observed, rank_one, rows, synthetic


def is_sound(found: Completion, known: MeasuredRows) -> None:
    """Assert that all values are finite, deviations positive, and measured cells unchanged."""
    low, high = found.interval()
    assert found.columns == known.columns
    for each in (found.mean, found.sd, found.values, low, high):
        assert each.shape == (len(known.columns),)
        assert np.isfinite(each).all()
    assert (found.sd > 0).all()
    assert (low <= found.values).all() and (found.values <= high).all()


class EstimatorContract:
    """The estimator contract. Subclasses set ``estimator``."""

    estimator: Estimator
    scale = Scale.RATIO

    def known(self) -> MeasuredRows:
        known = synthetic(3, 20, missing=0.2)
        if self.scale is Scale.SCORE:
            known = replace(known, scale=Scale.SCORE, values=np.clip(0.5 + known.values / 6, 0.0, 1.0))
        return known

    def test_observed_cells_are_kept_and_the_rest_is_filled(self) -> None:
        known = self.known()
        seen = observed(known, 0, *np.flatnonzero(~np.isnan(known.values[0]))[:2])
        found = self.estimator.fit(known).complete(seen)
        is_sound(found, known)
        for column, value in seen.items():
            assert found.values[known.columns.index(column)] == pytest.approx(value)
        assert sum(found.observed) == 2

    @pytest.mark.parametrize("cells", [0, 1, 6])
    def test_none_one_or_all_cells_observed_give_an_answer(self, cells: int) -> None:
        full = self.known().take([0])
        known = self.known()
        truth = np.nan_to_num(full.values[0], nan=0.5)
        seen = {c: float(v) for c, v in zip(known.columns[:cells], known.scale.from_axis(truth)[:cells], strict=True)}
        is_sound(self.estimator.fit(known).complete(seen), known)

    @pytest.mark.parametrize("count", [0, 1, 2, 3])
    def test_few_rows_give_a_wide_answer(self, count: int) -> None:
        known = self.known().take(range(count))
        if count == 0:
            known = rows(np.empty((0, 6)), scale=self.scale)
        found = self.estimator.fit(known).complete({"c0": 20.0})
        is_sound(found, known)
        assert np.median(found.sd) > 0.1

    def test_rows_of_one_cell_and_columns_of_none_do_no_harm(self) -> None:
        known = self.known()
        values = known.values.copy()
        values[:, 5] = np.nan
        values[1, 1:] = np.nan
        values[2] = np.nan
        found = self.estimator.fit(replace(known, values=values)).complete({"c0": 20.0, "c1": 30.0})
        is_sound(found, known)

    def test_all_equal_cells_do_no_harm(self) -> None:
        known = rows(np.full((8, 4), 0.5), scale=self.scale)
        found = self.estimator.fit(known).complete({"c0": 50.0, "c1": 50.0})
        is_sound(found, known)

    @pytest.mark.parametrize("value", [1e-9, 50.0, 100.0])
    def test_a_row_whose_observed_cells_are_all_equal_is_answered(self, value: float) -> None:
        is_sound(self.estimator.fit(self.known()).complete({"c0": value, "c2": value, "c5": value}), self.known())

    @pytest.mark.parametrize("level", [0.0, 1.0])
    def test_known_rows_that_are_all_at_the_end_of_the_scale_do_no_harm(self, level: float) -> None:
        known = rows(np.full((8, 4), level), scale=self.scale)
        is_sound(self.estimator.fit(known).complete({"c1": 100.0, "c2": 1.0}), known)

    def test_a_column_nobody_measured_is_answered_with_wide_limits(self) -> None:
        known = self.known().with_columns(["new"])
        found = self.estimator.fit(known).complete({"c0": 20.0, "c1": 30.0})
        is_sound(found, known)
        assert found.sd[-1] >= min(WIDE[self.scale], 0.8 * np.median(found.sd[2:-1]))

    def test_the_order_of_rows_does_not_matter(self) -> None:
        known = self.known()
        seen = {"c1": 30.0, "c4": 20.0}
        back = list(reversed(range(len(known))))
        turned = known.take(back)
        one, other = self.estimator.fit(known).complete(seen), self.estimator.fit(turned).complete(seen)
        np.testing.assert_allclose(one.mean, other.mean, atol=0.02)
        np.testing.assert_allclose(one.sd, other.sd, rtol=0.25)

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_a_value_that_is_no_measurement_is_refused(self, value: float) -> None:
        if self.scale is Scale.SCORE and value == 0.0:
            value = 101.0
        with pytest.raises(BadInput, match=r"column 'c1'.*must be a"):
            self.estimator.fit(self.known()).complete({"c0": 10.0, "c1": value})

    def test_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(BadInput, match=r"column 'c9' is not known; known columns are c0, "):
            self.estimator.fit(self.known()).complete({"c9": 1.0})

    def test_fitting_twice_gives_the_same(self) -> None:
        known = self.known()
        one = self.estimator.fit(known).complete({"c0": 10.0, "c2": 12.0})
        other = self.estimator.fit(known).complete({"c0": 10.0, "c2": 12.0})
        np.testing.assert_array_equal(one.mean, other.mean)


class ScalesWithTheRow:
    """Contract of scale-free estimators: results are proportional to the observations."""

    estimator: Estimator

    @pytest.mark.parametrize("factor", [1e-6, 0.5, 3600.0])
    def test_scaling_the_observed_cells_scales_the_answer(self, factor: float) -> None:
        known = synthetic(4, 20)
        fitted = self.estimator.fit(known)
        seen = observed(known, 0, 0, 3)
        found = fitted.complete(seen)
        scaled = fitted.complete({column: value * factor for column, value in seen.items()})
        np.testing.assert_allclose(scaled.mean, found.mean + math.log(factor), atol=1e-6)
        np.testing.assert_allclose(scaled.sd, found.sd, rtol=1e-6)


class LearnsInteractions:
    """Contract of estimators that model more than a row effect and a column effect."""

    estimator: Estimator

    def test_a_checkerboard_is_completed(self) -> None:
        known = checkerboard()
        fitted = self.estimator.fit(known)
        for row in (2, 5):
            found = fitted.complete(observed(known, row, 0, 1))
            np.testing.assert_allclose(found.mean, known.values[row], atol=0.2)

    def test_a_rank_one_row_is_completed(self) -> None:
        known, mean, loading = rank_one()
        found = self.estimator.fit(known).complete(
            {f"c{j}": float(np.exp(2.0 + mean[j] + 0.7 * loading[j])) for j in (0, 5)}
        )
        np.testing.assert_allclose(found.mean, 2.0 + mean + 0.7 * loading, atol=0.1)
