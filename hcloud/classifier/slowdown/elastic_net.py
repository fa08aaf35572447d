"""Elastic net (Zou and Hastie, 2005): linear regression that shrinks coefficients and sets useless ones to zero.

Minimises ``||y - X w||^2 / (2 n) + penalty * (l1_share * |w|_1 + (1 - l1_share) / 2 * |w|_2^2)`` by coordinate descent
on the covariances, over standardised columns (Friedman, Hastie and Tibshirani, 2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SWEEPS_MAX = 1000
_LEAST_SD = 1e-9


def solve(
    covariance: Floats, target: Floats, penalty: float, l1_share: float, start: Floats, tolerance: float
) -> Floats:
    """Return the coefficients ``w`` (p) for ``covariance`` = X'X / n (p x p) and ``target`` = X'y / n (p).

    ``start``: coefficients to begin with. It ends when no coefficient moves by more than ``tolerance`` in a sweep.
    """
    w, l1, l2 = start.copy(), penalty * l1_share, penalty * (1.0 - l1_share)
    gradient: Floats = target - covariance @ w
    active = np.flatnonzero(w)
    for _ in range(SWEEPS_MAX):
        for _ in range(SWEEPS_MAX):
            if _sweep(covariance, gradient, w, active, l1, l2) <= tolerance:
                break
        # Of the coefficients at zero, those whose gradient exceeds the penalty do not belong there.
        violating = np.flatnonzero((w == 0.0) & (np.abs(gradient) > l1 + tolerance))
        if not violating.size:
            break
        active = np.union1d(np.flatnonzero(w), violating)
    return w


def _sweep(
    covariance: Floats, gradient: Floats, w: Floats, active: npt.NDArray[np.intp], l1: float, l2: float
) -> float:
    """Update each active coefficient once; return the largest change."""
    most = 0.0
    for j in active.tolist():
        own = float(covariance[j, j])
        pull = float(gradient[j]) + own * float(w[j])
        updated = (abs(pull) - l1) / (own + l2) if abs(pull) > l1 else 0.0
        change = (updated if pull > 0.0 else -updated) - float(w[j])
        if change != 0.0:
            w[j] += change
            gradient -= change * covariance[j]
            most = max(most, abs(change))
    return most


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A fitted regression."""

    centre: Floats
    """Mean of each column, shape ``(p,)``."""
    scale: Floats
    """Standard deviation of each column, shape ``(p,)``; infinite for constant ones."""
    coefficients: Floats
    """By standardised column, shape ``(p,)``."""
    intercept: float

    def predict(self, x: Floats) -> Floats:
        """Return the prediction for each row of ``x`` (n x p), shape ``(n,)``."""
        predicted: Floats = self.intercept + ((x - self.centre) / self.scale) @ self.coefficients
        return predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticNet:
    """Fits the penalty by cross-validation over whole groups of rows."""

    l1_share: float = 0.5
    """Share of the penalty on absolute values (ESP: 0.5)."""
    penalties: int = 15
    """How many penalties are compared, from the least that sets all coefficients to zero downwards."""
    least_penalty: float = 1e-3
    """The smallest of them, as a share of the largest."""
    folds: int = 5
    tolerance: float = 1e-4
    """Convergence, in standard deviations of ``y`` per standard deviation of a column."""

    def fit(self, x: Floats, y: Floats, groups: Sequence[object]) -> LinearModel:
        """Return the regression of ``y`` (n) on ``x`` (n x p); rows of one group are held out together."""
        penalties = self._penalties(x, y)
        fold = folds_of(groups, self.folds)
        errors = np.zeros(len(penalties))
        for number in range(int(fold.max()) + 1 if fold.size and fold.max() > 0 else 0):
            held_out = fold == number
            models = self._path(x[~held_out], y[~held_out], penalties)
            errors += [float(((model.predict(x[held_out]) - y[held_out]) ** 2).sum()) for model in models]
        best = int(errors.argmin()) if errors.any() else len(penalties) - 1
        return list(self._path(x, y, penalties[: best + 1]))[-1]

    def _penalties(self, x: Floats, y: Floats) -> Floats:
        _, scale, target = _standardised(x, y)
        most = float(np.abs(target).max(initial=0.0)) / max(self.l1_share, 1e-3)
        return np.geomspace(1.0, self.least_penalty, self.penalties) * max(most, 1e-12) if scale.size else np.ones(1)

    def _path(self, x: Floats, y: Floats, penalties: Floats) -> Iterator[LinearModel]:
        """Yield the models of descending penalties; each starts from the one before."""
        centre, scale, target = _standardised(x, y)
        standard = (x - centre) / scale
        covariance, w = standard.T @ standard / len(x), np.zeros(x.shape[1])
        tolerance = self.tolerance * max(float(y.std()), 1e-12)
        for penalty in penalties.tolist():
            w = solve(covariance, target, penalty, self.l1_share, w, tolerance)
            yield LinearModel(centre, scale, w, float(y.mean()))


def _standardised(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Return means and standard deviations of the columns, and their covariances with ``y``, all of shape ``(p,)``."""
    centre, sd = x.mean(axis=0), x.std(axis=0)
    scale = np.where(sd > _LEAST_SD * np.maximum(1.0, np.abs(centre)), sd, np.inf)
    return centre, scale, ((x - centre) / scale).T @ (y - y.mean()) / len(x)


def folds_of(groups: Sequence[object], count: int) -> npt.NDArray[np.intp]:
    """Return the fold (0 to ``count - 1``) of each row: groups in the order in which they first appear, by turns."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) % count for group in groups], dtype=np.intp)
