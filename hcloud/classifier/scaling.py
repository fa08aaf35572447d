"""Scale-out: a parametric family of curves over node counts, with coefficients learned across applications.

Ernest (Venkataraman et al., NSDI 2016) writes run time over ``n`` nodes as ``a + b/n + c log n + d n``: serial and
parallel part, tree aggregation, per-node overhead. Two observations cannot determine four unknowns, so the variation of
curves is learned from known applications: on the logarithmic axis a curve is ``log t(n) = b_u + phi(n) . w_u`` with few
terms, and ``w`` is Gaussian over applications. This extends to unmeasured node counts. At measured node counts the
collaborative-filtering estimate is blended in, and so is Ernest's fit of the job alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import (
    NOISE,
    Z80,
    CompletesOne,
    Completion,
    Fitted,
    ObservedRows,
    completed,
    still_judged,
)
from hcloud.classifier.gaussian import CALIBRATION_ROWS_MAX, FOLDS, FittedGaussian, GaussianFoldIn, Moments, evenly
from hcloud.classifier.neighbours import FittedNeighbours, NeighbourFoldIn
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from hcloud.core.errors import BadInput

Counts = Sequence[int] | NDArray[np.int_]
JUDGED_MAX, JUDGED_OF_MANY = 100, 30
"""Rows evaluated to choose share and stretch. Rows of many know other cells each, which costs a kernel per pair."""
PAIRS_MAX = 15
SPREAD_MAX = 25.0
"""Clips logarithms of relative times, so that least squares survives values further apart than e^25."""
Folded = FittedGaussian | FittedNeighbours
SHARES = tuple(float(each) for each in np.linspace(0.0, 1.0, 11))


def node_count(column: str) -> int:
    """Return the node count named by a scale-out column. Raises BadInput unless it is a whole number from 1."""
    if not (column.isascii() and column.isdigit() and int(column) >= 1):
        raise BadInput(f"scale-out column is {column!r}; it must be a number of nodes, 1 or more")
    return int(column)


def terms(nodes: NDArray[np.int_]) -> Matrix:
    """Return (nodes x terms): doublings, their curvature, and the parallel part."""
    doublings = np.log2(nodes.astype(np.float64))
    return np.column_stack([doublings, doublings**2 / 4.0, 1.0 / nodes - 1.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvedGaussian(GaussianFoldIn):
    """A Gaussian fold-in over node counts whose moments are shrunk towards the family of curves."""

    own: float = 0.3
    """Share of the covariance (0..1) taken from measurements at each node count; the rest follows the curves."""
    calibrate: bool = False

    def renew(self, rows: MeasuredRows, before: Fitted | None) -> FittedGaussian:
        """Learn the moments, then project them on the curves."""
        fitted = GaussianFoldIn.renew(self, rows, None)
        nodes = np.array([node_count(column) for column in fitted.rows.columns], dtype=np.int_)
        seen = np.flatnonzero((~np.isnan(fitted.rows.values)).any(0))
        if len(seen) < 2:
            return fitted
        return replace(fitted, moments=self._drawn(fitted.moments, nodes, seen), _known={})

    def _drawn(self, moments: Moments, nodes: NDArray[np.int_], seen: NDArray[np.int_]) -> Moments:
        basis = terms(nodes)
        used = basis[:, : min(basis.shape[1], len(seen) - 1)]
        design = np.column_stack([np.ones(len(seen)), used[seen]])
        solve = np.linalg.pinv(design)
        coefficients = solve @ moments.mean[seen]
        own = moments.covariance[np.ix_(seen, seen)]
        curves = used @ (solve @ own @ solve.T)[1:, 1:] @ used.T
        left = np.maximum((own - design @ solve @ own @ solve.T @ design.T).diagonal(), 0.0)
        nugget = float(left.mean()) + NOISE[Scale.RATIO] ** 2 / 4
        covariance = curves + nugget * np.eye(len(nodes))
        mean = coefficients[0] + used @ coefficients[1:]
        # Measured node counts keep part of their own covariance; unmeasured ones follow the curves alone.
        covariance[np.ix_(seen, seen)] = self.own * own + (1 - self.own) * covariance[np.ix_(seen, seen)]
        mean[seen] = moments.mean[seen]
        return replace(moments, mean=mean, covariance=_positive(covariance, nugget))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFoldIn:
    """A fold-in over node counts, corrected by similar applications, blended with the job's own Ernest fit.

    The share of the fold-in in the result (the rest is Ernest's curve through the observed cells) and the stretch of
    the stated uncertainty are chosen at :meth:`fit` on held-out groups.
    """

    base: NeighbourFoldIn = field(default_factory=lambda: NeighbourFoldIn(base=CurvedGaussian()))

    def fit(self, rows: MeasuredRows) -> FittedCurves:
        """Fit the base, project its moments on the curves, then choose the share.

        Raises BadInput for a column that is not a node count, or for SCORE rows.
        """
        return self.renew(rows, None)

    def renew(self, rows: MeasuredRows, before: Fitted | None) -> FittedCurves:
        """Fit as :meth:`fit` does; reuse the share of ``before`` if it is still valid."""
        rows = rows.in_order()
        if rows.scale is not Scale.RATIO:
            raise BadInput("scale-out rows hold scores 0..100; they must hold run times or rates")
        nodes = np.array([node_count(column) for column in rows.columns], dtype=np.int_)
        folded = self.base.fit(rows)
        if isinstance(before, FittedCurves) and still_judged(rows, before.rows, before.judged_by):
            return replace(before, folded=folded, nodes=nodes)
        share, stretch = self._judged(rows, nodes, folded)
        return FittedCurves(folded=folded, nodes=nodes, share=share, stretch=stretch, judged_by=len(rows))

    def _judged(self, rows: MeasuredRows, nodes: NDArray[np.int_], of_all: Folded) -> tuple[float, float]:
        """Return the share with the least mean absolute error on held-out groups, and its stretch.

        With many rows, leaving some out changes nothing, so ``of_all`` is evaluated instead, on rows that do not
        correct others.
        """
        groups = sorted(set(rows.groups))
        correcting = set(of_all.references.groups) if isinstance(of_all, FittedNeighbours) else set()
        many = len(rows) > CALIBRATION_ROWS_MAX
        folds, most = min(FOLDS, len(groups)), JUDGED_OF_MANY if many else JUDGED_MAX
        found: list[Matrix] = []
        for fold in range(folds if folds >= 3 else 0):
            out = set(groups[fold::folds])
            kept = [i for i, group in enumerate(rows.groups) if group not in out]
            held = [i for i, group in enumerate(rows.groups) if group in out and not (many and group in correcting)]
            folded = of_all if many else self.base.fit(rows.take(kept))
            fitted = FittedCurves(folded=folded, nodes=nodes, share=1.0, stretch=1.0)
            found += [fitted.errors(rows.values[i]) for i in evenly(held, most // folds)]
        pooled = np.concatenate(found) if found else np.empty((0, 3))
        if len(pooled) < 20:
            return 0.5, 1.5  # nothing to calibrate on: weigh both equally, state a wider interval
        share = min(SHARES, key=lambda each: float(np.abs(pooled[:, 0] * each + pooled[:, 1] * (1 - each)).mean()))
        scores = np.abs(pooled[:, 0] * share + pooled[:, 1] * (1 - share)) / pooled[:, 2]
        return share, float(np.clip(np.quantile(scores, 0.8) / Z80, 0.3, 5.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurves(CompletesOne):
    """Moments over node counts, blended with Ernest's curve."""

    folded: Folded
    nodes: NDArray[np.int_]
    share: float
    """Share of the fold-in in the result (0..1); the rest is Ernest's."""
    stretch: float
    """Factor on the stated deviation."""
    judged_by: int = 0
    """Number of rows when share and stretch were chosen."""

    @property
    def rows(self) -> MeasuredRows:
        """The rows it was fitted to."""
        return self.folded.rows

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Blend fold-in and Ernest's curve; with fewer than two observed node counts, use the fold-in alone."""
        mean, sd = self.folded.predict(replace(seen, context=None))
        observed = seen.observed
        for row in np.flatnonzero(observed.sum(1) >= 2):
            index, rest = np.flatnonzero(observed[row]), ~observed[row]
            blend = self.share * mean[row] + (1 - self.share) * self._own_curve(index, seen.values[row, index])
            mean[row, rest] = blend[rest]  # Ernest's curve passes near imprecise measurements, whatever their doubt
        return completed(self.rows, seen, mean, self.stretch * sd, shrunk=True)

    def errors(self, row: Matrix) -> Matrix:
        """Return (cells x 3) over pairs of the row's cells: fold-in error, Ernest error, stated deviation."""
        known = np.flatnonzero(~np.isnan(row)).tolist()
        pairs = np.array(evenly(list(itertools.combinations(known, 2)), PAIRS_MAX), dtype=np.int_).reshape(-1, 2)
        values = np.full((len(pairs), len(row)), np.nan)
        np.put_along_axis(values, pairs, row[pairs], 1)
        means, sds = self.folded.predict(ObservedRows(values=values, noise=np.zeros_like(values)))
        found = [np.empty((0, 3))]
        for pair, mean, sd in zip(pairs, means, np.maximum(sds, NOISE[Scale.RATIO]), strict=True):
            rest = np.setdiff1d(known, pair)
            found.append(np.column_stack([mean - row, self._own_curve(pair, row[pair]) - row, sd])[rest])
        return np.concatenate(found)

    def _own_curve(self, index: NDArray[np.int_], values: Matrix) -> Matrix:
        # In units of the first time, so that very long and very short jobs are equally well conditioned.
        relative = np.clip(values - values[0], -SPREAD_MAX, SPREAD_MAX)
        times = ernest(self.nodes[index], np.exp(relative), self.nodes)
        return np.asarray(values[0] + np.log(np.maximum(times, 1e-9)))


def _positive(covariance: Matrix, floor: float) -> Matrix:
    """Return the nearest covariance with a smallest eigenvalue of at least a tenth of ``floor``."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray((vectors * np.maximum(values, floor / 10)) @ vectors.T)


def ernest(nodes: Counts, times_s: Sequence[float] | Matrix, wanted: Counts) -> Matrix:
    """Return run times at ``wanted`` node counts by non-negative least squares on Ernest's four terms.

    Minimises relative errors and uses only the given (two or more) observations. Also the baseline in benchmarks.
    """
    from scipy.optimize import nnls  # slow to import, and rarely needed

    observed, targets = np.asarray(times_s, dtype=np.float64), np.asarray(wanted)
    weights, _ = nnls(_ernest_terms(np.asarray(nodes)) / observed[:, None], np.ones(len(observed)))
    return np.asarray(_ernest_terms(targets) @ weights)


def _ernest_terms(nodes: NDArray[np.int_]) -> Matrix:
    return np.column_stack([np.ones(len(nodes)), 1.0 / nodes, np.log(nodes), nodes.astype(np.float64)])
