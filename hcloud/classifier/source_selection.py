"""Choose which sources of interference to profile with: those from which the quality it needs is best predicted.

The quality a job needs follows from the source it bears least of (:mod:`hcloud.classifier.needed_quality`). So for
each pair of sources the qualities that the known programs need are predicted from that pair alone, with the Gaussian of
what programs tolerate (Rasmussen and Williams, eq. 2.24), and the pair with the smallest mean error is taken (Paragon
§2.2 takes two at random). Pairs that leave the least uncertainty *on average over sources* predict it far worse: they
favour sources that hardly any program is sensitive to.

Only sources used by decisions are probed. Sources of one core are indistinguishable from taking turns on it, and
locking the bus disturbs every job on the host. Quality is that of the sources it is computed from, though others may
be the ones that predict it. ``make bench-accuracy`` compares other choices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.classifier.estimator import NOISE, Fitted, ObservedRows
from hcloud.classifier.gaussian import FittedGaussian, evenly
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Drift, Question
from hcloud.classifier.needed_quality import ToleranceScale
from hcloud.classifier.utility_matrix import Matrix, Scale
from hcloud.core.estimates import SOURCES, Application

COUNT = 2
"""Probes per question and run, as in Paragon §2.2."""
USUAL = ("llc-capacity", "storage-bandwidth", "memory-bandwidth", "memory-capacity")
"""Default sources, in order, while few programs are known: felt from other cores, and best for the shipped library."""
ROWS_MIN = 5
"""Minimum number of programs for a usable covariance."""
ROWS_MAX = 100
"""So many known programs are compared at most."""
SURE_BY = 3.0
"""The default pair is kept unless another reduces the error by so many standard errors, over the known programs (5 %
over all pairs together, by Bonferroni). Pairs that are about as good miss different programs: to take the best of them
by a hair is to take the one that misses the programs of which few are known. Where three pairs are nearly equal, each
program left out in turn met just that, and the error doubled."""
DRIFTED_SD = 0.15
"""Standard deviation (0..1) of cells measured before a program drifted."""
NORMAL_95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcePrior:
    """What the known programs tolerate, on the score axis (0..1)."""

    sources: tuple[str, ...]
    mean: Matrix
    """(sources)."""
    covariance: Matrix
    """(sources x sources)."""
    programs: Matrix
    """(programs x sources): each known program; what was not measured of it is expected from the rest."""
    rows: int
    """Number of programs it was learned from."""
    counted: tuple[str, ...]
    """Sources that needed quality counts: those in which readings distinguish programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressing:
    """The sources to profile a job with, and the reason."""

    sources: tuple[str, ...]
    why: str
    """End of a sentence that explains the choice."""


def source_prior(fitted: Mapping[Question, Fitted], scale: ToleranceScale) -> SourcePrior | None:
    """Return what is known of the sources that reach other cores and that enough programs were measured with.

    None if too few programs or sources are known, or if another estimator is used. ``scale`` says which sources count.
    """
    found = fitted.get(Question.TOLERATED)
    if not isinstance(found, FittedGaussian):
        return None
    columns, values = found.rows.columns, found.rows.values
    times = dict(zip(columns, (~np.isnan(values)).sum(0).tolist(), strict=True))
    sources = [s for s in SOURCES if s not in CORE_SOURCES | NOT_COUNTED and times.get(s, 0) >= ROWS_MIN]
    if found.moments.count < ROWS_MIN or len(sources) <= COUNT:
        return None
    index = np.array([columns.index(each) for each in sources])
    some = values[evenly(range(len(values)), ROWS_MAX)]
    expected, _ = found.predict(ObservedRows(values=some, noise=np.zeros_like(some)))
    return SourcePrior(
        sources=tuple(sources),
        mean=found.moments.mean[index],
        covariance=found.moments.covariance[np.ix_(index, index)],
        programs=np.where(np.isnan(some), expected, some)[:, index],
        rows=found.moments.count,
        counted=tuple(scale.counted(sources)),
    )


def choose_sources(
    prior: SourcePrior | None,
    *,
    left_out: Collection[str] = (),
    row: Application | None = None,
    besides: Sequence[str] = (),
) -> Pressing:
    """Return the two sources from which the quality a job needs is best predicted. Deterministic.

    ``left_out``: sources that the machine cannot generate. ``row``: earlier measurements of the job, each as certain as
    its limits, so that a further profile measures what is least known. ``besides``: sources that another run measures
    at the same time.
    """
    usual = tuple(source for source in USUAL if source not in left_out and source not in besides)[:COUNT]
    if prior is None:
        return Pressing(
            sources=usual, why=f"the defaults: fewer than {ROWS_MIN} programs were measured with every source"
        )
    known = _known(prior, row)
    known |= {at: NOISE[Scale.SCORE] for at, source in enumerate(prior.sources) if source in besides}
    free = [at for at, source in enumerate(prior.sources) if source not in left_out and source not in besides]
    pairs = list(itertools.combinations(free, min(COUNT, len(free))))
    errors = {tuple(prior.sources[at] for at in pair): _errors(prior, known, pair) for pair in pairs}
    best = min(errors, key=lambda pair: (errors[pair].mean(), pair))
    familiar = next((pair for pair in errors if set(pair) == set(usual)), None)
    if familiar is not None and not _surely_less(errors[best], errors[familiar]):
        best = familiar
    why = f"leaving {errors[best].mean():.0f} points of error in the quality that known programs need"
    return Pressing(sources=best, why=f"{why} ({_errors(prior, known, ()).mean():.0f} before)")


def _surely_less(errors: Matrix, others: Matrix) -> bool:
    """Return whether errors are smaller than others of the same programs, by :data:`SURE_BY` standard errors."""
    gains = others - errors
    return float(gains.mean()) > SURE_BY * float(gains.std(ddof=1)) / math.sqrt(len(gains))


def _known(prior: SourcePrior, row: Application | None) -> dict[int, float]:
    """Return which sources a row knows, and the standard deviation of each, approximately as on the axis."""
    cells = row.cells.get(Question.TOLERATED.value, {}) if row is not None else {}
    spreads = row.spreads.get(Question.TOLERATED.value, {}) if row is not None else {}
    least = DRIFTED_SD if row is not None and Drift(missed=row.missed).drifted else NOISE[Scale.SCORE]
    return {
        at: max(least, spreads.get(source, 0.0) / 100.0 / NORMAL_95)
        for at, source in enumerate(prior.sources)
        if source in cells
    }


def _errors(prior: SourcePrior, known: Mapping[int, float], pair: Sequence[int]) -> Matrix:
    """Return the errors, in points (programs), of the qualities that the known programs need, as expected from the
    ``known`` sources, each with a standard deviation, and those of ``pair``."""
    deviations = {**known, **dict.fromkeys(pair, NOISE[Scale.SCORE])}
    expected = np.broadcast_to(prior.mean, prior.programs.shape)
    if deviations:
        index = sorted(deviations)
        own = prior.covariance[np.ix_(index, index)] + np.diag([deviations[at] ** 2 for at in index])
        gain = np.linalg.solve(own, prior.covariance[index]).T
        expected = expected + (prior.programs[:, index] - prior.mean[index]) @ gain.T
    counted = [at for at, source in enumerate(prior.sources) if source in prior.counted]
    least = [Scale.SCORE.from_axis(each[:, counted].min(1)) for each in (np.clip(expected, 0.0, 1.0), prior.programs)]
    return np.abs(np.asarray(least[0] - least[1]))
