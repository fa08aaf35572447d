"""Choose which machine types to profile a job on: those that leave the least uncertainty about all others.

Conditioned on performance on some types, the classifier's Gaussian gives the remaining uncertainty of the others,
whatever the values (Gaussian processes; Rasmussen and Williams, eq. 2.24), so the set can be chosen before measuring
(Paragon §2.2 takes two at random). Two types of one family add little over one, so sets are compared, not types.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import Fitted
from hcloud.classifier.gaussian import FittedGaussian
from hcloud.classifier.neighbours import FittedNeighbours
from hcloud.classifier.utility_matrix import Matrix

READING_SD = 0.05
"""Standard deviation of the logarithm of one profiling run's result."""
ROWS_MIN = 5
"""Minimum number of programs for a usable covariance."""
COMPARED_TYPES = 16
"""Maximum number of types compared; the number of sets of three grows too fast beyond it."""
_ANSWERS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypePrior:
    """Covariance of performance across machine types in a library."""

    columns: tuple[str, ...]
    """``provider/name`` of each type."""
    covariance: Matrix
    """(types x types) of the logarithm of performance, without an application's overall scale."""
    _answers: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict, repr=False)

    def most_telling(
        self, among: Sequence[str], count: int, *, one_of: Collection[str], already: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return ``count`` types of ``among`` (or fewer) that minimise the mean uncertainty of all others.

        At least one is in ``one_of``; returns () if none is, or if none of them is known. ``already``: types that are
        measured as well. Ties are broken by the order of ``among``.
        """
        key = (tuple(among), count, tuple(one_of), tuple(already))
        if key not in self._answers:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = self._most_telling(among, count, one_of, already)
        return self._answers[key]

    def _most_telling(
        self, among: Sequence[str], count: int, one_of: Collection[str], already: Sequence[str]
    ) -> tuple[str, ...]:
        place = {column: at for at, column in enumerate(self.columns)}
        known = [each for each in among if each in place and each not in already]
        wanted = [each for each in known if each in one_of]
        compared = (wanted[:1] + [each for each in known if each not in wanted[:1]])[:COMPARED_TYPES]
        sets = [
            each
            for each in itertools.combinations([e for e in known if e in compared], min(count, len(compared)))
            if not set(one_of).isdisjoint(each)
        ]
        if not sets or not sets[0]:
            return ()
        fixed = [place[each] for each in already if each in place]
        doubt = _doubt(self.covariance, np.array([[*fixed, *(place[column] for column in each)] for each in sets]))
        return sets[int(doubt.argmin())]


def type_prior(fitted: Fitted) -> TypePrior | None:
    """Return the covariance of a fit; None if it has too few rows or is of another kind."""
    base = fitted.base if isinstance(fitted, FittedNeighbours) else fitted
    if not isinstance(base, FittedGaussian) or base.moments.count < ROWS_MIN:
        return None
    return TypePrior(columns=base.rows.columns, covariance=base.moments.covariance)


def _doubt(covariance: Matrix, sets: NDArray[np.int_]) -> Matrix:
    """Return the mean standard deviation of all types after measuring those of each set (sets x k).

    Kriging with an unknown level (:func:`hcloud.classifier.gaussian.condition`), for all sets at once.
    """
    own = covariance[sets[:, :, None], sets[:, None, :]] + READING_SD**2 * np.eye(sets.shape[1])
    inverse = np.linalg.inv(own)
    cross = covariance[:, sets].transpose(1, 0, 2)
    variance = covariance.diagonal() - ((cross @ inverse) * cross).sum(2)
    ones = inverse.sum(2)
    variance = variance + (1.0 - (cross * ones[:, None, :]).sum(2)) ** 2 / ones.sum(1)[:, None]
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)).mean(axis=1))
