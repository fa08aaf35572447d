"""Which columns to measure: at random as the papers do, or those that leave least to guess."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.random import Generator

from hcloud.classifier.estimator import NOISE
from hcloud.classifier.gaussian import FittedGaussian, Index
from hcloud.classifier.utility_matrix import Matrix, Scale
from hcloud.core.errors import BadInput

SAMPLES = 512
PAIRS_MAX = 60
REGRET_MAX = 3.0


def random_probes(
    columns: Sequence[str], count: int, rng: Generator, *, already: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return ``count`` further columns at random (Paragon §2.2), fewer where there are no more."""
    left = [column for column in columns if column not in set(already)]
    chosen = [int(i) for i in rng.permutation(len(left))[:count]]
    return tuple(left[i] for i in sorted(chosen))


def choose_probes(
    fitted: FittedGaussian,
    count: int,
    rng: Generator,
    *,
    already: Sequence[str] = (),
    candidates: Sequence[str] | None = None,
    price: Mapping[str, float] | None = None,
    decision_weight: float = 1.0,
) -> tuple[str, ...]:
    """Return ``count`` further columns that leave the least expected loss, fewer where there are no more.

    The loss of a set is the mean expected error of the columns left to guess plus ``decision_weight`` times the
    expected regret (how much worse than the best the column is that would then be taken for the best), both relative.
    Regret is estimated on rows drawn with ``rng`` from the fitted distribution; runs of RATIO columns are taken to be
    *times* (less is better), SCORE columns have no best. With ``price`` (any unit, per column) the set with the largest
    *fall* in loss per price is taken. The first two are chosen as a pair, for a single value tells an application's
    scale but nothing of its shape; further ones greedily.

    Raises BadInput for an unknown column or a price that is not above 0.
    """
    place = {column: j for j, column in enumerate(fitted.rows.columns)}
    for column in (*already, *(candidates or ()), *(price or ())):
        if column not in place:
            raise BadInput(f"column {column!r} is not known; known columns are {', '.join(place)}")
    for column, usd in (price or {}).items():
        if not (math.isfinite(usd) and usd > 0):
            raise BadInput(f"price of column {column!r} is {usd}; it must be a finite number above 0")
    search = _Search(fitted, rng, price or {}, decision_weight if fitted.rows.scale is Scale.RATIO else 0.0)
    chosen = [place[column] for column in already]
    free = [place[column] for column in (candidates or fitted.rows.columns) if place[column] not in set(chosen)]
    wanted = min(count, len(free))
    while wanted > 0:
        size = 2 if wanted >= 2 and not chosen and search.has_scale else 1
        added = search.best(chosen, [each for each in free if each not in chosen], size)
        chosen, wanted = chosen + added, wanted - size
    return tuple(fitted.rows.columns[j] for j in chosen[len(already) :])


class _Search:
    """Losses of sets of columns, on one set of drawn rows."""

    def __init__(self, fitted: FittedGaussian, rng: Generator, price: Mapping[str, float], weight: float) -> None:
        self.fitted = fitted
        self.has_scale = fitted.free_bias
        self.weight = weight
        self.price = [price.get(column, 0.0) for column in fitted.rows.columns]
        self.drawn = _draw(fitted, rng) if weight > 0 else np.empty((0, 0))

    def best(self, chosen: list[int], free: list[int], size: int) -> list[int]:
        """Return the ``size`` columns of ``free`` whose addition serves best."""
        sets = [list(each) for each in itertools.combinations(free, size)]
        sets.sort(key=lambda added: self._rank(chosen, added, regret=False))
        finalists = sets[:PAIRS_MAX] if self.weight > 0 else sets[:1]
        return min(finalists, key=lambda added: self._rank(chosen, added, regret=True))

    def _rank(self, chosen: list[int], added: list[int], *, regret: bool) -> float:
        loss = self._loss(chosen + added, regret=regret)
        paid = sum(self.price[j] for j in added)
        return loss if paid == 0 else -(self._loss(chosen, regret=regret) - loss) / paid

    def _loss(self, columns: list[int], *, regret: bool) -> float:
        prior = self.fitted.moments.covariance.diagonal()
        if not columns:
            return float(np.sqrt(prior).mean()) + (self.weight * REGRET_MAX / 10 if regret else 0.0)
        index = np.array(sorted(columns))
        variance = self.fitted.given(index).variance
        error = float(np.sqrt(np.maximum(variance, 0.0)).mean())
        return error + (self.weight * self._regret(index) if regret and self.weight > 0 else 0.0)

    def _regret(self, index: Index) -> float:
        believed = self.fitted.predict_many(index, self.drawn[:, index])
        believed[:, index] = self.drawn[:, index]
        taken = self.drawn[np.arange(len(self.drawn)), believed.argmin(1)]
        return float(np.minimum(np.expm1(taken - self.drawn.min(1)), REGRET_MAX).mean())


def _draw(fitted: FittedGaussian, rng: Generator) -> Matrix:
    """Return rows (samples x columns) from the fitted Gaussian, at level 0: regret does not depend on the scale."""
    moments = fitted.moments
    root = np.linalg.cholesky(moments.covariance + NOISE[Scale.RATIO] ** 2 * 1e-3 * np.eye(len(moments.mean)))
    return np.asarray(moments.mean + rng.standard_normal((SAMPLES, len(moments.mean))) @ root.T)
