"""Scale-out curves: measured and unmeasured node counts, and Ernest's fit."""

import numpy as np
import pytest

from hcloud.classifier.scaling import CurvedGaussian, CurveFoldIn, ernest, node_count
from hcloud.classifier.utility_matrix import MeasuredRows, Scale, rows_of
from hcloud.core.errors import BadInput
from tests.classifier.contract import EstimatorContract, ScalesWithTheRow, is_sound

NODES = (1, 2, 4, 8, 16)


def curve(serial: float, parallel: float, per_node: float, nodes: int) -> float:
    return serial + parallel / nodes + per_node * nodes


def library(seed: int = 0, size: int = 24) -> MeasuredRows:
    """Jobs from serial to parallel, some with a cost per node."""
    rng = np.random.default_rng(seed)
    shapes = rng.uniform((5, 50, 0.0), (60, 400, 1.5), size=(size, 3))
    measured = {
        f"a{i:02d}": {str(n): curve(*shape, n) * float(np.exp(0.01 * rng.normal())) for n in NODES}
        for i, shape in enumerate(shapes)
    }
    return rows_of(Scale.RATIO, measured, columns=[str(n) for n in NODES])


class TestCurves(EstimatorContract, ScalesWithTheRow):
    """The common contract, over columns that are node counts."""

    class _Named:
        """Node counts in place of the contract's c0..c5."""

        def fit(self, known: MeasuredRows):
            named = MeasuredRows(
                scale=known.scale,
                columns=tuple(str(2**j) for j in range(len(known.columns))),
                names=known.names,
                values=known.values,
                groups=known.groups,
            )
            fitted = CurveFoldIn().fit(named)

            class Answers:
                rows = known

                def complete(self, seen, context=None, noise=None):
                    from dataclasses import replace

                    from hcloud.classifier.estimator import observed_row

                    observed_row(known, seen)
                    there = {named.columns[known.columns.index(each)]: value for each, value in seen.items()}
                    return replace(fitted.complete(there), columns=known.columns)

            return Answers()

    estimator = _Named()


def test_other_node_counts_are_predicted_from_two() -> None:
    fitted = CurveFoldIn().fit(library())
    truth = np.array([curve(30, 200, 0.8, n) for n in NODES])
    found = fitted.complete({"1": truth[0], "16": truth[4]})
    np.testing.assert_allclose(found.values, truth, rtol=0.08)


def test_a_node_count_nobody_measured_follows_the_curve() -> None:
    known = library().with_columns(["12", "32"])
    found = CurveFoldIn().fit(known).complete({"1": curve(30, 200, 0.8, 1), "8": curve(30, 200, 0.8, 8)})
    is_sound(found, known)
    assert found.values[known.columns.index("12")] == pytest.approx(curve(30, 200, 0.8, 12), rel=0.15)
    assert found.sd[known.columns.index("32")] > found.sd[known.columns.index("4")]


def test_ernest_recovers_its_own_family() -> None:
    times = [curve(10, 100, 0.5, n) for n in (1, 2, 4, 16)]
    found = ernest([1, 2, 4, 16], times, [8])
    assert found[0] == pytest.approx(curve(10, 100, 0.5, 8), rel=0.02)


@pytest.mark.parametrize("column", ["0", "-1", "two", "1.5", "²", ""])
def test_a_column_that_is_no_node_count_is_refused(column: str) -> None:
    with pytest.raises(BadInput, match="it must be a number of nodes, 1 or more"):
        node_count(column)


def test_scores_are_no_run_times() -> None:
    with pytest.raises(BadInput, match="must hold run times"):
        CurveFoldIn().fit(rows_of(Scale.SCORE, {"a": {"1": 5.0}}))


def saturating(seed: int, size: int = 60) -> MeasuredRows:
    """Programs that gain by the same factor with each doubling, up to a speed-up of about five; each its own group."""
    rng = np.random.default_rng(seed)
    doublings = np.arange(5.0)
    logs = [-np.minimum(rng.uniform(0.1, 0.69) * doublings, 1.6) + rng.normal(0, 0.01, 5) for _ in range(size)]
    names = tuple(f"a{i:02d}" for i in range(size))
    columns = tuple(str(2**j) for j in range(5))
    return MeasuredRows(scale=Scale.RATIO, columns=columns, names=names, values=np.array(logs), groups=names)


def test_curves_that_bend_are_learned_from_programs_that_bent_alike() -> None:
    known, fresh = saturating(0), saturating(1)
    errors = []
    for fitted in (CurvedGaussian().fit(known), CurveFoldIn().fit(known)):
        found = [fitted.complete({"1": float(np.exp(row[0])), "2": float(np.exp(row[1]))}) for row in fresh.values]
        errors.append(np.mean([np.abs(each.mean - row)[2:] for each, row in zip(found, fresh.values, strict=True)]))
    assert errors[1] < 0.75 * errors[0]
