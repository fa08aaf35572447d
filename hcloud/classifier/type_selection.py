"""Which machine types a job is profiled on: those that leave least to guess of how fast it is on all others.

Conditioned on performance measured on some types, the classifier's Gaussian says how much doubt is left of each other
type, whatever the values (Gaussian processes; Rasmussen and Williams, eq. 2.24), so the set can be chosen before
anything is measured (Paragon §2.2 takes two at random). What one type adds depends on which others are measured: two
of one family add hardly more than either, so sets are compared, not single types.
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
"""Standard deviation of the logarithm of what one profiling run reads."""
ROWS_MIN = 5
"""A covariance of fewer programs says nothing yet."""
COMPARED_TYPES = 16
"""Of more types only the first so many are compared: sets of three become too many."""
_ANSWERS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypePrior:
    """How performance on machine types goes together in a library. ``columns``: ``provider/name``; ``covariance``:
    (types x types) of the logarithm of performance, an application's overall scale taken out."""

    columns: tuple[str, ...]
    covariance: Matrix
    _answers: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict, repr=False)

    def most_telling(
        self, among: Sequence[str], count: int, *, one_of: Collection[str], already: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the ``count`` types of ``among`` (fewer where there are no more) that leave least doubt of all others,
        on average, at least one of them ``one_of`` some; (): none is, or nothing is known of them.

        ``already``: types that are measured as well. Equal sets: the first in the order of ``among``.
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
    """Return what a fit knows of how types go together; None: it was fitted to too little, or is of another kind."""
    base = fitted.base if isinstance(fitted, FittedNeighbours) else fitted
    if not isinstance(base, FittedGaussian) or base.moments.count < ROWS_MIN:
        return None
    return TypePrior(columns=base.rows.columns, covariance=base.moments.covariance)


def _doubt(covariance: Matrix, sets: NDArray[np.int_]) -> Matrix:
    """Return the mean standard deviation of all types when those of each set (sets x k) are measured: kriging with an
    unknown level (:func:`hcloud.classifier.gaussian.condition`), all sets at one stroke."""
    own = covariance[sets[:, :, None], sets[:, None, :]] + READING_SD**2 * np.eye(sets.shape[1])
    inverse = np.linalg.inv(own)
    cross = covariance[:, sets].transpose(1, 0, 2)
    variance = covariance.diagonal() - ((cross @ inverse) * cross).sum(2)
    ones = inverse.sum(2)
    variance = variance + (1.0 - (cross * ones[:, None, :]).sum(2)) ** 2 / ones.sum(1)[:, None]
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)).mean(axis=1))
