"""Gaussian fold-in: learn mean and covariance of the columns, then condition them on the observed cells.

The working model is ``y_uj = b_u + mu_j + z_uj`` with ``z_u ~ N(0, S)``. For RATIO columns the row bias ``b_u`` (the
logarithm of the application's unknown overall scale) has a flat prior, so the conditional is the kriging system of
geostatistics ("ordinary kriging": weights sum to one; Cressie, Statistics for Spatial Data, §3.2), and results scale
exactly with the observations. SCORE columns have no bias and use the standard conditional of a Gaussian.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import (
    INTERVAL,
    NOISE,
    WIDE,
    Z80,
    CompletesOne,
    Completion,
    Fitted,
    ObservedRows,
    completed,
    row_effects,
    still_judged,
)
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale

Index = NDArray[np.int_]
T = TypeVar("T")
FOLDS = 5
SCALE_STEPS = 3
FEWEST_SCORES = 20
UNCALIBRATED = 1.5
"""Factor on stated deviations where there is nothing to calibrate on."""
CALIBRATION_ROWS_MAX = 500
CALIBRATION_PAIRS_MAX = 60
CACHE_MAX = 256


@dataclass(frozen=True, slots=True)
class Conditional:
    """The conditional distribution given observed columns: ``mean = mu + gain @ (y_o - mu_o)``.

    Given many sets of equally many columns, all arrays have one more axis in front.
    """

    gain: Matrix
    """(columns x observed)."""
    variance: Matrix
    """(columns)."""
    precision: Matrix
    """(observed x observed), with the bias removed; measures how unusual the observed cells are."""
    freedom: int
    """Rank of the precision."""


def condition(covariance: Matrix, index: Index, inverse: Matrix, *, free_bias: bool) -> Conditional:
    """Return the conditional given the cells at ``index`` (at least one), with the inverse of their covariance.

    ``index`` is (observed), or (sets x observed) for many sets of columns at once.
    """
    cross = covariance.T[index].swapaxes(-1, -2)
    gain = np.matmul(cross, inverse)
    variance = covariance.diagonal() - np.einsum("...cj,...cj->...c", gain, cross)
    if not free_bias:
        return Conditional(gain, variance, inverse, index.shape[-1])
    ones, total, precision = _without_bias(inverse)
    # What the observed cells do not say of a column's level is that of their weighted mean.
    left_over = (1.0 - np.matmul(cross, ones[..., None])) / total[..., None]
    return Conditional(
        gain + left_over * ones[..., None, :],
        variance + left_over[..., 0] ** 2 * total,
        precision,
        index.shape[-1] - 1,
    )


def _inverse(covariance: Matrix, index: Index, noise: Matrix | None = None) -> Matrix:
    """Return the inverse covariance of the cells at ``index``, measured with these standard deviations."""
    own = covariance[index[..., :, None], index[..., None, :]]
    if noise is not None:
        count = index.shape[-1]
        own.reshape(*own.shape[:-2], count * count)[..., :: count + 1] += noise**2
    return np.asarray(np.linalg.inv(own), dtype=np.float64)


def _without_bias(inverse: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return an inverse covariance's row sums, their total (of length 1), and the precision with the bias removed."""
    ones = inverse.sum(-1)
    total = ones.sum(-1, keepdims=True)
    return ones, total, inverse - ones[..., :, None] * ones[..., None, :] / total[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Learned moments of all columns."""

    mean: Matrix
    """(columns)."""
    covariance: Matrix
    """(columns x columns), positive definite."""
    level: float
    """Mean row effect of the library."""
    level_variance: float
    """Variance of the row effect."""
    count: int
    """Number of rows learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFoldIn:
    """Mean and shrunk covariance by expectation-maximisation over rows with missing cells."""

    tail: float | None = 8.0
    """Degrees of freedom of the multivariate t distribution that weighs rows, so that a few outliers do not determine
    the covariance (Lange, Little and Taylor, JASA 1989). It also widens results for unusual rows. None: Gaussian, whose
    uncertainty can only fall as cells are observed."""
    prior_rows: float = 2.0
    """Weight, in rows, of the prior "columns vary independently" in the covariance."""
    calibrate: bool = True
    """Whether to scale the stated uncertainty so that 80 % intervals cover 80 % of held-out training cells."""
    sweeps_max: int = 30
    rows_max: int = 4000
    patterns_max: int = 100
    """``sweeps_max``, ``rows_max`` and ``patterns_max`` bound the work; beyond them the densest rows are used."""

    def fit(self, rows: MeasuredRows) -> FittedGaussian:
        """Learn the moments, and calibrate them on rows held out by group."""
        return self.renew(rows, None)

    def renew(self, rows: MeasuredRows, before: Fitted | None) -> FittedGaussian:
        """Learn the moments; reuse the calibration of ``before`` if it is still valid."""
        rows = rows.in_order()
        chosen = self._densest(rows)
        near = before.moments if isinstance(before, FittedGaussian) and before.rows.columns == rows.columns else None
        moments = self.moments(chosen, near)
        if not self.calibrate:
            return FittedGaussian(rows=rows, moments=moments, tail=self.tail, stretch=np.ones(len(rows.columns)))
        if isinstance(before, FittedGaussian) and still_judged(rows, before.rows, before.judged_by):
            stretch, judged_by = before.stretch_of(rows.columns), before.judged_by
        else:
            stretch, judged_by = self._stretch(chosen, moments), len(rows)
        return FittedGaussian(rows=rows, moments=moments, tail=self.tail, stretch=stretch, judged_by=judged_by)

    def _densest(self, rows: MeasuredRows) -> MeasuredRows:
        """Return informative rows, densest first, within the bounds; a RATIO row with one cell has no shape."""
        known = ~np.isnan(rows.values)
        counts = known.sum(1)
        order = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= (2 if rows.scale is Scale.RATIO else 1)]
        patterns: set[bytes] = set()
        chosen: list[int] = []
        for i in order[: self.rows_max]:
            patterns.add(known[i].tobytes())
            if len(patterns) > self.patterns_max:
                break
            chosen.append(int(i))
        return rows.take(sorted(chosen))

    def moments(self, rows: MeasuredRows, near: Moments | None = None) -> Moments:
        """Return mean and covariance of all columns; an unmeasured column is wide and independent.

        ``near``: moments expected to be close, used as the starting point so that fewer sweeps are needed.
        """
        columns = len(rows.columns)
        wide = WIDE[rows.scale] ** 2
        if rows.scale is Scale.SCORE:
            known = rows.values[~np.isnan(rows.values)]
            row, effect = np.zeros(len(rows)), np.full(columns, known.mean() if known.size else 0.5)
        else:
            row, effect = row_effects(rows.values)
        mean, covariance = effect, np.eye(columns) * wide
        seen = np.flatnonzero((~np.isnan(rows.values)).any(0))
        if len(rows) and len(seen):
            free_bias, begin = rows.scale is Scale.RATIO, None
            if near is not None:
                begin = near.mean[seen], near.covariance[np.ix_(seen, seen)]
            part_mean, part = self._maximise(rows.values[:, seen], effect[seen], begin, free_bias=free_bias)
            part = self._shrink(part, len(rows), rows.scale)
            mean[seen], covariance[np.ix_(seen, seen)] = part_mean, part
        spread = float(row.var()) if len(rows) > 1 else 0.0
        level = float(row.mean()) if len(rows) else 0.0
        return Moments(mean=mean, covariance=covariance, level=level, level_variance=spread + wide, count=len(rows))

    def _shrink(self, covariance: Matrix, count: int, scale: Scale) -> Matrix:
        """Return the covariance mixed with that of independent columns.

        RATIO columns measure one quantity in many places, so they share a variance. SCORE columns are different
        resources and keep their own variances (target D of Schäfer and Strimmer, Stat. Appl. Genet. Mol. Biol. 2005).
        """
        columns, few = len(covariance), max(0, 5 - count)
        wide, floor = WIDE[scale] ** 2, NOISE[scale] ** 2 / 4
        typical = (np.trace(covariance) / columns * count + wide * few) / (count + few)
        prior = np.full(columns, max(typical, floor))
        if scale is Scale.SCORE:
            prior = (count * np.maximum(covariance.diagonal(), floor) + few * prior) / (count + few)
        mixed = (count * covariance + (self.prior_rows + few) * np.diag(prior)) / (count + self.prior_rows + few)
        return np.asarray(mixed + floor * np.eye(columns))

    def _maximise(
        self, values: Matrix, mean: Matrix, begin: tuple[Matrix, Matrix] | None, *, free_bias: bool
    ) -> tuple[Matrix, Matrix]:
        """Run expectation-maximisation; with a free bias the covariance is centred, as its level is not identified."""
        count, columns = values.shape
        centring = np.eye(columns) - (1.0 / columns if free_bias else 0.0)
        start = float(np.nanvar(values - np.nanmean(values, 1, keepdims=True) - mean if free_bias else values - mean))
        covariance = np.eye(columns) * max(start, 1e-6)
        if begin is not None:
            mean, covariance = begin
        patterns, grain = _patterns(values), np.eye(columns)
        for _ in range(self.sweeps_max):
            expected, weights, within = self._expect(values, patterns, mean, covariance, free_bias=free_bias)
            shift = np.add.reduce(weights[:, None] * expected, 0) / np.add.reduce(weights)
            around = expected - shift
            new = centring @ (((around * weights[:, None]).T @ around + within) / count) @ centring
            new = (new + new.T) / 2 + 1e-9 * grain
            moved = float(np.maximum.reduce(np.abs(new - covariance), None))
            mean, covariance = mean + shift, new
            if moved <= 1e-3 * np.trace(covariance) / columns + 1e-9:
                break
        return mean, covariance

    def _expect(
        self, values: Matrix, patterns: _Patterns, mean: Matrix, covariance: Matrix, *, free_bias: bool
    ) -> tuple[Matrix, Matrix, Matrix]:
        """Return expected deviations (rows x columns), row weights (rows), and the summed conditional covariance."""
        expected, weights = np.zeros_like(values), np.ones(len(values))
        residuals, ridge = values - mean, covariance.copy()
        ridge.flat[:: len(covariance) + 1] += NOISE[Scale.RATIO] ** 2 / 4
        results = [alike.conditionals(residuals, ridge, covariance, free_bias) for alike in patterns.alike]
        if not results:
            return expected, weights, np.zeros(covariance.shape)
        expected[patterns.rows] = np.concatenate([each for means, _, _ in results for each in means])
        if self.tail is not None:
            surprise = np.concatenate([each for _, surprises, _ in results for each in surprises])
            weights[patterns.rows] = (self.tail + (patterns.known - free_bias)) / (self.tail + surprise)
        left = np.concatenate([each for _, _, each in results])
        return expected, weights, np.add.reduce(left[patterns.order], 0)

    def _stretch(self, rows: MeasuredRows, of_all: Moments) -> Matrix:
        """Return the factors on stated deviations that make 80 % intervals cover 80 % of held-out cells, (columns).

        Each fold leaves out whole groups. With many rows that changes nothing, so ``of_all`` is evaluated instead.
        Cells are predicted from pairs, the default density of the papers.
        """
        groups = sorted(set(rows.groups))
        pairs = evenly(list(itertools.combinations(range(len(rows.columns)), 2)), CALIBRATION_PAIRS_MAX)
        folds = min(FOLDS, len(groups)) if len(rows) <= CALIBRATION_ROWS_MAX else 1
        if not pairs or len(groups) < 3:
            return np.full(len(rows.columns), UNCALIBRATED)
        scores: list[Matrix] = []
        for fold in range(folds):
            out = set(groups[fold::folds])
            held = [i for i, group in enumerate(rows.groups) if group in out]
            kept = [i for i, group in enumerate(rows.groups) if group not in out]
            moments = self.moments(rows.take(kept)) if folds > 1 else of_all
            fitted = FittedGaussian(rows=rows, moments=moments, tail=self.tail, stretch=np.ones(len(rows.columns)))
            judged = rows.values[evenly(held, CALIBRATION_ROWS_MAX // 5)]
            scores += [fitted.scores(judged, np.array(pair)) for pair in pairs]
        return _stretches(np.concatenate(scores))


def _stretches(scores: Matrix) -> Matrix:
    """Return the factor of each column from |error| / stated deviation, (predictions x columns), NaN where not judged.

    Columns differ: pressures on some resources are either 0 or 100. One with few scores leans on all.
    """
    judged = ~np.isnan(scores)
    count = judged.sum(0)
    if count.sum() < FEWEST_SCORES:
        return np.full(len(count), UNCALIBRATED)
    whole = float(np.quantile(scores[judged], INTERVAL))
    own = [float(np.quantile(scores[judged[:, j], j], INTERVAL)) if count[j] else whole for j in range(len(count))]
    weight = count / (count + FEWEST_SCORES)
    return np.asarray(np.clip((weight * np.array(own) + (1.0 - weight) * whole) / Z80, 0.5, 5.0))


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` items, evenly spaced and deterministic."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).astype(int)]


Cells = tuple[int, ...]
"""Ascending indices of the columns a row knows."""


class _Alike(NamedTuple):
    """Patterns (sets of known columns) with equally many known cells."""

    cells: Index
    """Column indices, (patterns x cells)."""
    squares: Index
    """Flat positions of all pairs of cells in a covariance, (patterns x cells x cells)."""
    counts: Matrix
    """Number of rows of each pattern."""
    places: list[tuple[slice, Index]]
    """Slices of patterns with equally many rows, each with its cells' flat positions, (patterns x rows x cells)."""

    def conditionals(
        self, residuals: Matrix, ridge: Matrix, covariance: Matrix, free_bias: bool
    ) -> tuple[list[Matrix], list[Matrix], Matrix]:
        """Return expected deviations of the patterns' rows, their squared distances, and the remaining covariance.

        Shapes: (rows x columns) and (rows) per slice; (patterns x columns x columns), summed over each pattern's rows.
        """
        precision, pull, left = self._given(ridge, covariance, free_bias)
        means, surprises = [], []
        for some, places in self.places:
            residual = residuals.take(places)
            means.append(np.matmul(residual, pull[some].transpose(0, 2, 1)).reshape(-1, len(covariance)))
            surprises.append(np.add.reduce(np.matmul(residual, precision[some]) * residual, 2).ravel())
        return means, surprises, left

    def _given(self, ridge: Matrix, covariance: Matrix, free_bias: bool) -> tuple[Matrix, Matrix, Matrix]:
        """Return the precision, the pull on all columns, and the remaining covariance, for all patterns at once."""
        precision: Matrix = np.asarray(np.linalg.inv(ridge.take(self.squares)), dtype=np.float64)
        if free_bias:
            ones = np.add.reduce(precision, 2)
            precision = precision - ones[:, :, None] * ones[:, None, :] / np.add.reduce(ones, 1)[:, None, None]
        pull: Matrix = np.matmul(covariance.T.take(self.cells, 0).transpose(0, 2, 1), precision)
        left = self.counts[:, None, None] * (covariance - np.matmul(pull, covariance.take(self.cells, 0)))
        return precision, pull, left


class _Patterns(NamedTuple):
    """Rows grouped by which cells they know: those that know any, by pattern, and how many they know (rows); the
    patterns, and where each is among them when all are in order of their cells."""

    rows: Index
    known: Matrix
    alike: list[_Alike]
    order: Index


def _patterns(values: Matrix) -> _Patterns:
    found: dict[Cells, list[int]] = {}
    for i, row in enumerate(~np.isnan(values)):
        found.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(i)
    by_size = sorted(filter(None, found), key=lambda cells: (len(cells), len(found[cells]), cells))
    alike = [list(same) for _, same in itertools.groupby(by_size, key=len)]
    return _Patterns(
        rows=np.array([row for cells in by_size for row in found[cells]], dtype=np.int_),
        known=np.array([len(cells) for cells in by_size for _ in found[cells]], dtype=np.float64),
        alike=[_alike(same, [np.array(found[cells]) for cells in same], values.shape[1]) for same in alike],
        order=np.array(sorted(range(len(by_size)), key=by_size.__getitem__), dtype=np.int_),
    )


def _alike(patterns: Sequence[Cells], rows: Sequence[Index], columns: int) -> _Alike:
    """``rows``: of each pattern, those with fewest first."""
    cells, counts, places = np.array(patterns), [len(own) for own in rows], []
    for count in sorted(set(counts)):
        some = slice(bisect_left(counts, count), bisect_right(counts, count))
        places.append((some, np.array(rows[some])[:, :, None] * columns + cells[some, None, :]))
    squares = cells[:, :, None] * columns + cells[:, None, :]
    return _Alike(cells, squares, np.array(counts, dtype=np.float64), places)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedGaussian(CompletesOne):
    """Learned moments. Conditionals of one set of observed columns are cached."""

    rows: MeasuredRows
    moments: Moments
    tail: float | None
    stretch: Matrix
    """Factor on stated deviations, (columns)."""
    judged_by: int = 0
    """Number of rows when the stretch was calibrated."""
    _known: dict[bytes, Conditional] = field(default_factory=dict, repr=False, compare=False)

    @property
    def free_bias(self) -> bool:
        """Whether a row's overall scale is unknown."""
        return self.rows.scale is Scale.RATIO

    def given(self, index: Index) -> Conditional:
        """Return (and cache) the conditional given these columns."""
        key = index.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            covariance = self.moments.covariance
            found = condition(covariance, index, _inverse(covariance, index), free_bias=self.free_bias)
            self._known[key] = found
        return found

    def stretch_of(self, columns: Sequence[str]) -> Matrix:
        """Return the factors on stated deviations of other columns; new ones get the mean of all."""
        known = dict(zip(self.rows.columns, self.stretch.tolist(), strict=True))
        mean = float(self.stretch.mean()) if len(self.stretch) else UNCALIBRATED
        return np.array([known.get(column, mean) for column in columns])

    def with_columns(self, new: Sequence[str]) -> FittedGaussian:
        """Return the fit with unmeasured columns added: wide and independent, as in :meth:`GaussianFoldIn.moments`."""
        rows, old = self.rows.with_columns(new), self.moments
        known, size = len(self.rows.columns), len(rows.columns)
        cells = self.rows.values[~np.isnan(self.rows.values)]
        typical = 0.0 if self.free_bias else cells.mean() if cells.size else 0.5
        mean, covariance = np.full(size, typical), np.eye(size) * WIDE[rows.scale] ** 2
        mean[:known], covariance[:known, :known] = old.mean, old.covariance
        moments, stretch = replace(old, mean=mean, covariance=covariance), self.stretch_of(rows.columns)
        return replace(self, rows=rows, moments=moments, stretch=stretch, _known={})

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Condition on the observed cells; without any, return the typical row, widened by the spread of scales."""
        mean, sd = self.predict(seen)
        return completed(self.rows, seen, mean, sd, shrunk=True)

    def learned(self, row: Matrix) -> FittedGaussian:
        """Return the fit updated with one row (columns, NaN unknown): a rank-one update instead of a refit.

        Unknown cells enter with their expectation and covariance, as in an expectation-maximisation sweep. Reference
        rows and stretch are unchanged. A row without information on shape changes nothing.
        """
        index = np.flatnonzero(~np.isnan(row))
        if len(index) < (2 if self.free_bias else 1):
            return self
        old, given = self.moments, self.given(index)
        pull = old.covariance[:, index] @ given.precision
        deviation = pull @ (row[index] - old.mean[index])
        within = old.covariance - pull @ old.covariance[index]
        step = 1.0 / (old.count + 1)
        moved = (1 - step) * (old.covariance + step * np.outer(deviation, deviation)) + step * within
        moments = replace(old, mean=old.mean + step * deviation, covariance=(moved + moved.T) / 2, count=old.count + 1)
        return replace(self, moments=moments, _known={})

    def predict(self, seen: ObservedRows) -> tuple[Matrix, Matrix]:
        """Return mean and effective standard deviation, (rows x columns).

        Estimates of observed columns with noise lie between them and what the others predict.
        """
        observed = seen.observed
        counts = observed.sum(1)
        mean, sd = np.empty_like(seen.values), np.empty_like(seen.values)
        for count in sorted(set(counts.tolist())):
            alike = np.flatnonzero(counts == count)
            index = np.nonzero(observed[alike])[1].reshape(len(alike), count)
            cells = alike[:, None], index
            mean[alike], sd[alike] = self._conditioned(index, seen.values[cells], seen.noise[cells])
        return mean, sd

    def _conditioned(self, index: Index, values: Matrix, noise: Matrix) -> tuple[Matrix, Matrix]:
        """Return what :meth:`predict` does for rows with equally many observed cells; arguments: (rows x observed)."""
        moments = self.moments
        if not index.shape[1]:
            variance = moments.covariance.diagonal() + (moments.level_variance if self.free_bias else 0.0)
            level = moments.level if self.free_bias else 0.0
            return moments.mean + level, self.stretch * np.sqrt(variance)
        residual = values - moments.mean[index]
        inverse, scale = self._inverse_scaled(index, residual, noise)
        given = condition(moments.covariance, index, inverse, free_bias=self.free_bias)
        mean = moments.mean + np.matmul(given.gain, residual[:, :, None])[:, :, 0]
        widening = self._widening(_surprise(given.precision, residual) / scale, given.freedom)
        return mean, self.stretch * np.sqrt(scale * widening * np.maximum(given.variance, 0.0))

    def _inverse_scaled(self, index: Index, residual: Matrix, noise: Matrix) -> tuple[Matrix, Matrix]:
        """Return the inverse covariances of the observed cells, and the factors on them, (rows x 1).

        Where cells were measured with noise, the covariance is scaled up, step by step, for a row further from the
        others than it states (multivariate t): few programs differ from all others, but the readings of those must not
        be taken for errors.
        """
        covariance, scale, noisy = self.moments.covariance, np.ones((len(residual), 1)), noise.any(1)
        inverse = _inverse(covariance, index, noise)
        for _ in range(SCALE_STEPS if noisy.any() else 0):
            precision = _without_bias(inverse)[2] if self.free_bias else inverse
            step = self._widening(_surprise(precision, residual) / scale, index.shape[1] - self.free_bias)
            step[~noisy] = 1.0
            if (step == 1.0).all():
                break
            scale = scale * step
            # A covariance times `scale` and noise is, but for the factor, the covariance and that part of the noise.
            inverse = _inverse(covariance, index, noise / np.sqrt(scale))
        return inverse, scale

    def predict_many(self, index: Index, values: Matrix) -> Matrix:
        """Return means (rows x columns) given encoded values (rows x observed) of rows with the same known columns."""
        return np.asarray(self.moments.mean + (values - self.moments.mean[index]) @ self.given(index).gain.T)

    def _widening(self, surprise: Matrix, freedom: int) -> Matrix:
        """Return the multivariate t variance factor for the distance of the observed cells; at least 1."""
        if self.tail is None or freedom == 0:
            return np.ones_like(surprise)
        return np.asarray(np.maximum(1.0, (self.tail + surprise) / (self.tail + freedom)))

    def scores(self, values: Matrix, index: Index) -> Matrix:
        """Return |error| / stated deviation of known cells outside ``index``, (rows that know ``index`` x columns).

        NaN elsewhere.
        """
        usable = values[(~np.isnan(values[:, index])).all(1)]
        given = self.given(index)
        residual = usable[:, index] - self.moments.mean[index]
        surprise = ((residual @ given.precision) * residual).sum(1, keepdims=True)
        scale = np.sqrt(self._widening(surprise, given.freedom))
        errors = np.abs(usable - self.predict_many(index, usable[:, index]))
        scored = errors / (scale * np.sqrt(np.maximum(given.variance, NOISE[self.rows.scale] ** 2)))
        scored[:, index] = np.nan
        return np.asarray(scored, dtype=np.float64)


def _surprise(precision: Matrix, residual: Matrix) -> Matrix:
    """Return the squared distances, (rows x 1), of residuals (rows x observed) by their precision."""
    return np.asarray(np.matmul(residual[:, None, :], np.matmul(precision, residual[:, :, None]))[:, :, 0])
