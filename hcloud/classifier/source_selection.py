"""Choose which sources of interference to profile a job with: those that leave the least uncertainty about the others.

The classifier's Gaussians hold the covariance of tolerated and caused pressures. Conditioned on two sources they give
the remaining uncertainty of all others, whatever the values (Gaussian processes; Rasmussen and Williams, eq. 2.24), so
the pair can be chosen before measuring (Paragon §2.2 takes two at random).

Only sources used by decisions are probed and counted. Sources of one core are indistinguishable from taking turns on
it, and locking the bus disturbs every job on the host. ``make bench-accuracy`` compares other choices.
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
"""Probes per question and run, as in Paragon §2.2."""
USUAL = ("llc-capacity", "memory-bandwidth", "storage-bandwidth", "memory-capacity")
"""Default sources, in order, while few programs are known: felt from other cores, and best for the shipped library."""
ROWS_MIN = 5
"""Minimum number of programs for a usable covariance."""
GAIN_MIN = 0.1
"""The default pair is kept unless another reduces uncertainty by this share. A covariance of few programs is too
uncertain to justify smaller gains."""
DRIFTED_SD = 0.15
"""Standard deviation (0..1) of cells measured before a program drifted."""
NORMAL_95 = 1.959963984540054
_QUESTIONS = (Question.TOLERATED, Question.CAUSED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcePrior:
    """Covariance of pressures in a library, on the score axis (0..1)."""

    sources: tuple[str, ...]
    covariances: tuple[Matrix, Matrix]
    """(sources x sources) each, of tolerated and of caused pressures."""
    rows: int
    """Number of programs it was learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressing:
    """The sources to profile a job with, and the reason."""

    sources: tuple[str, ...]
    why: str
    """End of a sentence that explains the choice."""


def source_prior(fitted: Mapping[Question, Fitted]) -> SourcePrior | None:
    """Return the covariances of the sources that count and that enough programs were measured with.

    None if too few programs or sources are known, or if other estimators are used.
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
    """Return the two sources that minimise the mean uncertainty of all sources that count. Deterministic.

    ``left_out``: sources that the machine cannot generate. ``row``: earlier measurements of the job, each as certain as
    its limits, so that a further profile measures what is least known. ``besides``: sources that another run measures
    at the same time.
    """
    usual = tuple(source for source in USUAL if source not in left_out and source not in besides)[:COUNT]
    if prior is None:
        return Pressing(
            sources=usual, why=f"the defaults: fewer than {ROWS_MIN} programs were measured with every source"
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
    why = f"leaving {100 * doubt[best]:.0f} points of uncertainty on average over {len(prior.sources)} sources"
    return Pressing(sources=best, why=f"{why} ({100 * _doubt(known, ()):.0f} before)")


def _known(prior: SourcePrior, row: Application | None, question: Question) -> tuple[list[int], list[float]]:
    """Return which sources a row knows, and the standard deviation of each, approximately as on the axis."""
    cells = row.cells.get(question.value, {}) if row is not None else {}
    spreads = row.spreads.get(question.value, {}) if row is not None else {}
    least = DRIFTED_SD if row is not None and Drift(missed=row.missed).drifted else NOISE[Scale.SCORE]
    index = [at for at, source in enumerate(prior.sources) if source in cells]
    return index, [max(least, spreads.get(prior.sources[at], 0.0) / 100.0 / NORMAL_95) for at in index]


def _given(covariance: Matrix, index: Sequence[int], deviations: Sequence[float]) -> Matrix:
    """Return the covariance (sources x sources) that remains after measuring ``index`` with these deviations."""
    if not index:
        return covariance
    own = covariance[np.ix_(index, index)] + np.diag(np.square(deviations))
    return np.asarray(covariance - covariance[:, index] @ np.linalg.solve(own, covariance[index]))


def _doubt(covariances: Sequence[Matrix], pair: Sequence[int]) -> float:
    """Return the mean standard deviation of all sources on the axis (0..1) after measuring those of ``pair``."""
    left = [_given(each, list(pair), [NOISE[Scale.SCORE]] * len(pair)).diagonal() for each in covariances]
    return float(np.sqrt(np.maximum(np.concatenate(left), 0.0)).mean())
