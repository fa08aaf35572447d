"""Which sources of interference a job is profiled beside: those that leave least to guess of the others.

The classifier's Gaussians say how the pressures that programs tolerate and cause go together. Conditioned on two of
them they say how much doubt is left of each of the others, whatever the values (Gaussian processes; Rasmussen and
Williams, eq. 2.24), so the pair can be chosen before anything is measured (Paragon §2.2 takes two at random).

Only sources that decisions count are asked, and count: those of one core cannot be told apart from taking turns on it,
and locking the bus troubles everybody on the host. With every program of the library left out in turn
(``make bench-accuracy``) floating-point and llc-capacity are the most informative of all sixteen, but of those that
count 4 points less (tolerated) and 3 (caused).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.classifier.estimator import NOISE, Fitted
from hcloud.classifier.gaussian import FittedGaussian
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Drift, Question
from hcloud.classifier.utility_matrix import Matrix, Scale
from hcloud.core.estimates import SOURCES, Application

COUNT = 2
"""Two probes per question and run, as in Paragon §2.2."""
USUAL = ("llc-capacity", "memory-bandwidth", "storage-bandwidth", "memory-capacity")
"""The first are asked while little is known: felt from other cores, and best in the shipped library."""
ROWS_MIN = 5
"""A covariance of fewer programs says nothing yet."""
GAIN_MIN = 0.1
"""The usual pair stays unless another leaves this part less in doubt: a covariance of twenty programs is not better
known. Without this limit tolerated pressures of programs left out were 2.5 points further off."""
DRIFTED_SD = 0.15
"""What was measured of a program before it drifted is known no better than to 15 points."""
NORMAL_95 = 1.959963984540054
_QUESTIONS = (Question.TOLERATED, Question.CAUSED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcePrior:
    """How pressures go together in a library. ``covariances``: (sources x sources) each, of what is tolerated and what
    is caused, squared, on the axis of scores (0..1). ``rows``: programs it was learned from."""

    sources: tuple[str, ...]
    covariances: tuple[Matrix, Matrix]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressing:
    """The sources to measure beside, and the end of a sentence that says why these."""

    sources: tuple[str, ...]
    why: str


def source_prior(fitted: Mapping[Question, Fitted]) -> SourcePrior | None:
    """Return what two fitted Gaussians know of the sources that count and that enough programs were measured beside.

    None: too few programs or sources are known, or the questions are answered by other estimators.
    """
    both = [fitted.get(question) for question in _QUESTIONS]
    gaussians = [each for each in both if isinstance(each, FittedGaussian)]
    if len(gaussians) < len(_QUESTIONS):
        return None
    rows = min(each.moments.count for each in gaussians)
    known = [
        source
        for source in SOURCES
        if source not in CORE_SOURCES | NOT_COUNTED
        and all(_times_measured(each, source) >= ROWS_MIN for each in gaussians)
    ]
    if rows < ROWS_MIN or len(known) <= COUNT:
        return None
    tolerated, caused = (_covariance(each, known) for each in gaussians)
    return SourcePrior(sources=tuple(known), covariances=(tolerated, caused), rows=rows)


def _times_measured(fitted: FittedGaussian, source: str) -> int:
    columns = fitted.rows.columns
    return int((~np.isnan(fitted.rows.values[:, columns.index(source)])).sum()) if source in columns else 0


def _covariance(fitted: FittedGaussian, sources: Sequence[str]) -> Matrix:
    index = [fitted.rows.columns.index(source) for source in sources]
    return np.asarray(fitted.moments.covariance[np.ix_(index, index)])


def choose_sources(
    prior: SourcePrior | None,
    *,
    left_out: Collection[str] = (),
    row: Application | None = None,
    besides: Sequence[str] = (),
) -> Pressing:
    """Return the two sources that leave least doubt, on average, of what a job tolerates and causes of all that count.

    ``left_out``: sources that its machine cannot press. ``row``: what was measured of it before, each cell as sure as
    its limits say, so that a further profile asks what is least known. ``besides``: sources that another run measures
    at the same time. The same answer for the same input, always.
    """
    usual = tuple(source for source in USUAL if source not in left_out and source not in besides)[:COUNT]
    if prior is None:
        return Pressing(
            sources=usual, why=f"the usual ones, as fewer than {ROWS_MIN} programs were measured beside all"
        )
    known = [_given(each, *_known(prior, row, q)) for each, q in zip(prior.covariances, _QUESTIONS, strict=True)]
    others = [at for at, source in enumerate(prior.sources) if source in besides]
    before = [_given(each, others, [NOISE[Scale.SCORE]] * len(others)) for each in known]
    free = [at for at, source in enumerate(prior.sources) if source not in left_out and source not in besides]
    pairs = list(itertools.combinations(free, min(COUNT, len(free))))
    doubt = {tuple(prior.sources[at] for at in pair): _doubt(before, pair) for pair in pairs}
    best = min(doubt, key=lambda pair: (doubt[pair], pair))
    familiar = next((pair for pair in doubt if set(pair) == set(usual)), None)
    if familiar is not None and doubt[best] > (1.0 - GAIN_MIN) * doubt[familiar]:
        best = familiar
    why = f"after which the {len(prior.sources)} that count are known to {100 * doubt[best]:.0f} points on average"
    return Pressing(sources=best, why=f"{why}, {100 * _doubt(known, ()):.0f} without")


def _known(prior: SourcePrior, row: Application | None, question: Question) -> tuple[list[int], list[float]]:
    """Return which sources a row knows, and the standard deviation of each, about as on the axis."""
    cells = row.cells.get(question.value, {}) if row is not None else {}
    spreads = row.spreads.get(question.value, {}) if row is not None else {}
    least = DRIFTED_SD if row is not None and Drift(missed=row.missed).drifted else NOISE[Scale.SCORE]
    index = [at for at, source in enumerate(prior.sources) if source in cells]
    return index, [max(least, spreads.get(prior.sources[at], 0.0) / 100.0 / NORMAL_95) for at in index]


def _given(covariance: Matrix, index: Sequence[int], deviations: Sequence[float]) -> Matrix:
    """Return the covariance (sources x sources) left when the sources at ``index`` are measured that well."""
    if not index:
        return covariance
    own = covariance[np.ix_(index, index)] + np.diag(np.square(deviations))
    return np.asarray(covariance - covariance[:, index] @ np.linalg.solve(own, covariance[index]))


def _doubt(covariances: Sequence[Matrix], pair: Sequence[int]) -> float:
    """Return the mean standard deviation of all sources, on the axis (0..1), when those of ``pair`` are measured."""
    left = [_given(each, list(pair), [NOISE[Scale.SCORE]] * len(pair)).diagonal() for each in covariances]
    return float(np.sqrt(np.maximum(np.concatenate(left), 0.0)).mean())
