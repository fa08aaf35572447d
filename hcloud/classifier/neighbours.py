"""Gaussian fold-in corrected by its errors on similar applications.

The fold-in is linear in the observed cells. Where behaviour is not (a working set that no longer fits, a program
waiting for its disk), applications with similar observed cells, size and resource use have similar errors. The
residuals of the known rows are smoothed over that similarity (a Gaussian process over rows with one kernel for all
columns; Rasmussen and Williams, ch. 2) and added to the result.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcloud.classifier.estimator import CompletesOne, Completion, Fitted, ObservedRows, completed, rows_by_pattern
from hcloud.classifier.gaussian import CACHE_MAX, FittedGaussian, GaussianFoldIn, Index, evenly
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows

REFERENCES_MAX = 128
TRIAL_PAIRS_MAX = 8
RESIDUAL_MAX = 0.4
"""Limits how far an outlier row can move its neighbours."""
CONTEXT_WEIGHT = 2.0
"""Weight of all resource-use features together, in coordinates of observed cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """A kernel, in relative units."""

    length: float
    """Kernel length, in standard deviations."""
    noise: float
    """Noise, relative to the kernel's height of 1."""
    left: float = 1.0
    """Mean absolute error with the correction divided by that without, on held-out groups."""


GRID = tuple(Likeness(length=length, noise=noise) for length in (0.15, 0.3, 0.5, 1.0) for noise in (0.3, 1.0, 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourFoldIn:
    """A Gaussian fold-in with neighbour correction.

    Kernel length and noise are chosen at :meth:`fit` by leaving out whole groups, over evenly spaced pairs of columns.
    If no kernel helps there, the base's result is used unchanged.
    """

    base: GaussianFoldIn = field(default_factory=GaussianFoldIn)
    use_level: bool = False
    """Whether similarity includes the size of the observed values. Correct if all rows share one unit, but results are
    then no longer exactly proportional to the observations."""

    def fit(self, rows: MeasuredRows) -> FittedGaussian | FittedNeighbours:
        """Fit the base, then choose the kernel."""
        return self.renew(rows, None)

    def renew(self, rows: MeasuredRows, before: Fitted | None) -> FittedGaussian | FittedNeighbours:
        """Fit the base, then choose the kernel, or reuse that of ``before``."""
        rows = rows.in_order()
        base = self.base.renew(rows, before.base if isinstance(before, FittedNeighbours) else before)
        known = (~np.isnan(rows.values)).sum(1)
        densest = np.flatnonzero(known >= max(3, int(np.quantile(known, 0.5)))) if len(rows) else known
        chosen = evenly([int(i) for i in densest], REFERENCES_MAX)
        if len({rows.groups[i] for i in chosen}) < 4:
            return base
        references = rows.take(chosen)
        use = None if references.context is None else _use_of(references.context)
        blank = FittedNeighbours(base=base, references=references, use_level=self.use_level, use=use)
        if isinstance(before, FittedNeighbours) and 0 < base.judged_by == before.base.judged_by:
            return replace(blank, plain=before.plain, with_use=before.with_use if use is not None else None, _known={})
        with_use = blank.best_likeness(with_context=True) if use is not None else None
        return replace(blank, plain=blank.best_likeness(with_context=False), with_use=with_use, _known={})


@dataclass(frozen=True, slots=True)
class _Reference:
    """Reference rows that know one set of observed columns."""

    features: Matrix
    solved: Matrix
    """(rows x columns) kernel inverse times residuals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedNeighbours(CompletesOne):
    """Base fold-in plus up to 128 reference rows; results that depend only on the observed columns are cached."""

    base: FittedGaussian
    references: MeasuredRows
    use_level: bool
    use: _NeighbourUse | None = None
    plain: Likeness | None = None
    """Kernel on observed cells alone."""
    with_use: Likeness | None = None
    """Kernel on observed cells and resource use, for rows that have it."""
    _known: dict[bytes, _Reference] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> MeasuredRows:
        """The rows it was fitted to."""
        return self.base.rows

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Condition on the observed cells, then add the smoothed residuals of similar applications."""
        mean, sd = self.predict(seen)
        return completed(self.rows, seen, mean, sd, shrunk=True)

    def predict(self, seen: ObservedRows) -> tuple[Matrix, Matrix]:
        """Return mean and effective standard deviation, (rows x columns)."""
        mean, sd = self.base.predict(seen)
        has_use = np.zeros(len(mean), dtype=bool) if seen.context is None else np.isfinite(seen.context).any((1, 2))
        for likeness, with_use in ((self.plain, False), (self.with_use, True)):
            corrected = np.flatnonzero((has_use == with_use) & (seen.observed.sum(1) >= 2))
            if likeness is None or not len(corrected):
                continue
            # The gain is smallest where the fold-in is already good, so only half of it (as a logarithm) is claimed.
            sd[corrected] *= math.sqrt(likeness.left)
            for index, places in rows_by_pattern(seen.observed[corrected]):
                rows = corrected[places]
                cells = rows[:, None], index
                use = seen.context[cells] if with_use and seen.context is not None else None
                correction = self._correction(index, seen.values[cells], use, likeness)
                correction[:, index] = 0.0
                mean[rows] += correction
        return mean, sd

    def best_likeness(self, *, with_context: bool) -> Likeness | None:
        """Return the kernel with the least mean absolute error on held-out groups; None if none beats no kernel."""
        pairs = list(itertools.combinations(range(len(self.rows.columns)), 2))
        errors, plain = np.zeros(len(GRID)), 0.0
        for pair in evenly(pairs, TRIAL_PAIRS_MAX):
            known, features, residuals = self._seen_from(np.array(pair), with_context=with_context)
            groups = np.array([self.references.groups[i] for i in known])
            members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
            plain += float(np.abs(residuals).mean()) if residuals.size else 0.0
            errors += [_left_out(features, residuals, members, each) for each in GRID]
        best = int(errors.argmin())
        return replace(GRID[best], left=float(errors[best] / plain)) if errors[best] < plain else None

    def _correction(self, index: Index, values: Matrix, use: Matrix | None, likeness: Likeness) -> Matrix:
        """Return the smoothed residuals (rows x columns); ``values`` are (rows x observed)."""
        key = index.tobytes() + (b"+" if use is not None else b"")
        reference = self._known.get(key)
        if reference is None:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            _, seen, residuals = self._seen_from(index, with_context=use is not None)
            kernel = _kernel(seen, seen, likeness) + likeness.noise * np.eye(len(seen))
            reference = _Reference(seen, np.asarray(np.linalg.solve(kernel, residuals), dtype=np.float64))
            self._known[key] = reference
        new = self.use.standardised(index, use) if use is not None and self.use is not None else None
        kernel = _kernel(self._features(index, values, new), reference.features, likeness)
        # Row by row, so that the last digits do not depend on how many rows there are.
        return np.asarray(np.matmul(kernel[:, None, :], reference.solved)[:, 0])

    def _seen_from(self, index: Index, *, with_context: bool) -> tuple[Index, Matrix, Matrix]:
        """Return the references that know these columns, their features, and the base's residuals (unknown cells 0)."""
        rows = self.references
        known = np.flatnonzero((~np.isnan(rows.values[:, index])).all(1))
        values = rows.values[known]
        use = self.use.of_references[known][:, index] if with_context and self.use is not None else None
        residuals = np.nan_to_num(values - self.base.predict_many(index, values[:, index]))
        return known, self._features(index, values[:, index], use), np.clip(residuals, -RESIDUAL_MAX, RESIDUAL_MAX)

    def _features(self, index: Index, values: Matrix, use: Matrix | None) -> Matrix:
        """Return (rows x features) of unit variance: contrasts among the observed cells, level, resource use."""
        moments = self.base.moments
        around = values - moments.mean[index]
        level = around.mean(1, keepdims=True)
        count = len(index)
        centring = np.eye(count) - 1.0 / count
        variance = (centring @ moments.covariance[np.ix_(index, index)] @ centring).diagonal()
        parts = [(around - level) * np.sqrt((count - 1) / count / np.maximum(variance, 1e-6))]
        if self.use_level:
            parts.append((level - moments.level) / np.sqrt(moments.level_variance))
        if use is not None:
            parts.append(use.mean(1) * np.sqrt(CONTEXT_WEIGHT / max(1, use.shape[2])))
        return np.hstack(parts)


@dataclass(frozen=True, slots=True)
class _NeighbourUse:
    """Resource use of the reference runs, and its standardisation.

    Amounts are heavy-tailed, so they are compared as ``log(1 + x / median)``, in standard deviations of runs on the
    same column. Unknown amounts count as average.
    """

    typical: Matrix
    """(features)."""
    centre: Matrix
    """(columns x features)."""
    width: Matrix
    """(columns x features)."""
    of_references: Matrix
    """Standardised, (rows x columns x features)."""

    def standardised(self, index: Index, use: Matrix) -> Matrix:
        """Return (rows x observed x features) of runs on the columns at ``index``."""
        return _standardised(use, self.typical, self.centre[index], self.width[index])


def _use_of(context: Matrix) -> _NeighbourUse:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a feature without measurement on some column
        typical = np.nan_to_num(np.nanmedian(np.abs(context).reshape(-1, context.shape[2]), axis=0))
        typical = np.where(typical > 0, typical, 1.0)
        logged = np.log1p(np.abs(context) / typical)
        centre, width = np.nan_to_num(np.nanmean(logged, 0)), np.nan_to_num(np.nanstd(logged, 0))
    width = np.where(width > 1e-6, width, np.inf)
    return _NeighbourUse(typical, centre, width, _standardised(context, typical, centre, width))


def _standardised(use: Matrix, typical: Matrix, centre: Matrix, width: Matrix) -> Matrix:
    return np.nan_to_num(np.clip((np.log1p(np.abs(use) / typical) - centre) / width, -3.0, 3.0))


def _kernel(left: Matrix, right: Matrix, likeness: Likeness) -> Matrix:
    products = np.matmul(left[:, None, :], right.T)[:, 0]
    squared = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2.0 * products
    return np.asarray(np.exp(-np.maximum(squared, 0.0) / (2.0 * likeness.length**2)))


def _left_out(features: Matrix, residuals: Matrix, members: Sequence[Index], likeness: Likeness) -> float:
    """Return the mean absolute error of each group's residuals predicted from the other groups, in closed form.

    ``members``: row indices of each group.
    """
    inverse = np.linalg.inv(_kernel(features, features, likeness) + likeness.noise * np.eye(len(features)))
    solved = inverse @ residuals
    errors = np.zeros_like(residuals)
    for own in members:
        if len(own) == 1:  # most groups have one row
            errors[own] = solved[own] * (1.0 / inverse[own, own])
        else:
            errors[own] = np.linalg.solve(inverse[own[:, None], own], solved[own])
    return float(np.abs(errors).mean()) if errors.size else 0.0
