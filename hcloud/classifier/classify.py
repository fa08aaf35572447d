"""The four classifications of a job: heterogeneity, scale-up, scale-out and interference (tolerated and caused).

Each question has its own matrix and shares nothing with the others, which keeps every matrix small and dense (Quasar,
Dissertation §4.3.2, "multiple parallel versus single exhaustive classification").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import WIDE, Completion, Estimator, Fitted, Renewing, Widening
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.needed_quality import ToleranceScale
from hcloud.classifier.neighbours import NeighbourFoldIn
from hcloud.classifier.scaling import CurveFoldIn, node_count
from hcloud.classifier.step_curve import rate_at, rates_by_vcpus, vcpus_of
from hcloud.classifier.unmeasured_types import apart
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Classification, Estimate, Neighbour

NEAREST = 5
LINKED_MIN = 5
"""Rows measured on a type and on an observed one, from which on they decide how sure the comparison is."""
SAME_VALUE = 1e-9
"""Logarithms of performance closer than this are of one measurement."""
NEAR_APART = 2.5
"""Performance is interpolated between two measured amounts whose ratio is at most this."""


METHODS: Mapping[Question, Estimator] = MappingProxyType(
    {
        Question.TYPE: NeighbourFoldIn(),
        Question.STEP: GaussianFoldIn(),
        Question.NODES: CurveFoldIn(),
        Question.TOLERATED: GaussianFoldIn(),
        Question.CAUSED: GaussianFoldIn(),
    }
)
"""The estimator of each question. Benchmarks evaluate these same objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """The estimator of each question; the defaults were the most accurate in ``make bench-accuracy``."""

    methods: Mapping[Question, Estimator] = field(default_factory=lambda: METHODS)

    def fit(self, library: Library, before: FittedClassifier | None = None) -> FittedClassifier:
        """Fit every question's estimator. Raises BadInput, naming row and column, for an invalid cell.

        ``before``: an earlier fit to fewer of these rows; expensive choices that hardly change are reused from it.
        """
        fitted = {}
        for question, method in self.methods.items():
            rows = library.rows(question)
            known = before.fitted.get(question) if before is not None else None
            fitted[question] = method.renew(rows, known) if isinstance(method, Renewing) else method.fit(rows)
        return FittedClassifier(library=library, methods=self.methods, fitted=fitted, scale=ToleranceScale.of(library))


def classify(library: Library, observations: MeasuredApplication) -> Classification:
    """Classify one job with the default methods. For many jobs, fit a :class:`Classifier` once instead."""
    return Classifier().fit(library).classify(observations)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedClassifier:
    """Estimators fitted to one library."""

    library: Library
    methods: Mapping[Question, Estimator]
    fitted: Mapping[Question, Fitted]
    scale: ToleranceScale = field(default_factory=ToleranceScale)
    """How well the sources of interference tell programs apart, for the quality they need."""
    _names: list[_Names] = field(default_factory=list, compare=False, repr=False)
    _distances: dict[tuple[tuple[str, ...], tuple[str, ...]], Matrix] = field(
        default_factory=dict, compare=False, repr=False
    )
    """By columns and observed columns, the least standard deviation of each."""

    def classify(self, observations: MeasuredApplication) -> Classification:
        """Answer all questions from the observed cells, of which there may be none.

        Invalid values (NaN, zero, a crash) are left out and listed in ``notes``. Unobserved cells come from the
        library's prior, with its width. No value returned is NaN or infinite.
        """
        notes: list[str] = []
        completions: dict[Question, Completion] = {}
        for question in self.methods:
            usable = _usable(question, observations, notes)
            found = self._complete(question, usable, observations, notes)
            if found is not None:
                completions[question] = found
        answers = {question: _estimates(question, each) for question, each in completions.items()}
        tolerated = answers.get(Question.TOLERATED, {})
        needed = self.scale.needed(tolerated, observations)
        return Classification(
            by_type=answers.get(Question.TYPE, {}),
            by_step=answers.get(Question.STEP, {}),
            by_nodes={node_count(column): each for column, each in answers.get(Question.NODES, {}).items()},
            tolerated=tolerated,
            caused=answers.get(Question.CAUSED, {}),
            quality_target=needed,
            nearest=self._nearest(completions, observations.name),
            notes=tuple(notes),
        )

    def _complete(
        self, question: Question, observed: Mapping[str, float], seen: MeasuredApplication, notes: list[str]
    ) -> Completion | None:
        fitted = self.fitted[question]
        noise = {column: doubt for column, doubt in seen.noise(question).items() if column in observed}
        if question is Question.STEP:
            between = _between(observed, fitted.rows.columns)
            # An interpolated rate is no surer than the least sure one.
            noise = {**dict.fromkeys(between, max(noise.values(), default=0.0)), **noise}
            observed = {**between, **observed}
        new = sorted(set(observed) - set(fitted.rows.columns))
        if new:
            notes.append(f"{question}: first measurement at {', '.join(new)}; it says little about other columns")
            if isinstance(fitted, Widening):
                fitted = fitted.with_columns(new)
            else:
                fitted = self.methods[question].fit(fitted.rows.with_columns(new))
        if not fitted.rows.columns:
            notes.append(f"{question}: not measured, and no known application has measurements")
            return None
        if not observed:
            notes.append(f"{question}: not measured; using the estimate of a typical application")
        if question is not Question.TYPE:
            return fitted.complete(observed, None, noise)
        return self._with_distance(fitted.complete(observed, _use(fitted.rows, seen), noise), fitted.rows)

    def _with_distance(self, completion: Completion, rows: MeasuredRows) -> Completion:
        """Return performance by type, no surer than the distance to measured types where few rows link them.

        Rows of other types alone say how those compare with each other, but not with the measured ones. Nor do types of
        one row that are exactly alike: they were converted from one measurement.
        """
        observed = [column for column, known in zip(completion.columns, completion.observed, strict=True) if known]
        key = (completion.columns, tuple(observed))
        if observed and key not in self._distances:
            values, places = rows.values, np.flatnonzero(completion.observed)
            apart_in = [np.abs(values - values[:, [place]]) > SAME_VALUE for place in places]  # False where unknown
            linked = np.logical_or.reduce(apart_in).sum(axis=0)
            nearest = [min(apart(each, column) for each in observed) for column in completion.columns]
            self._distances[key] = np.where((linked < LINKED_MIN) & ~completion.observed, nearest, 0.0)
        if not observed:
            return completion
        return replace(completion, sd=np.maximum(completion.sd, self._distances[key]))

    def _nearest(self, completions: Mapping[Question, Completion], own_name: str) -> tuple[Neighbour, ...]:
        names, places, known_cells = self._all_names()
        total, count = np.zeros(len(names)), np.zeros(len(names), dtype=np.int_)
        for question, completion in completions.items():
            if completion.observed.any():
                known = known_cells[question].counts > 0
                at = places[question][known]
                total[at] += known_cells[question].distances(completion)[known]
                count[at] += 1
        mean = np.where(count > 0, total / np.maximum(count, 1), np.inf)
        nearest = [at for at in np.argsort(mean, kind="stable")[: NEAREST + 1].tolist() if count[at]]
        found = [Neighbour(name=names[at], similarity=math.exp(-mean[at])) for at in nearest if names[at] != own_name]
        return tuple(found[:NEAREST])

    def _all_names(self) -> _Names:
        """Return the sorted names of all known rows, each question's positions in them, and its known cells; cached."""
        if not self._names:
            names = sorted({name for fitted in self.fitted.values() for name in fitted.rows.names})
            place = {name: at for at, name in enumerate(names)}
            places = {
                question: np.array([place[name] for name in fitted.rows.names], dtype=np.int_)
                for question, fitted in self.fitted.items()
            }
            known = {question: _Known.of(fitted.rows) for question, fitted in self.fitted.items()}
            self._names.append((names, places, known))
        return self._names[0]


_Names = tuple[list[str], Mapping[Question, NDArray[np.int_]], Mapping[Question, "_Known"]]


def _between(observed: Mapping[str, float], columns: Iterable[str]) -> dict[str, float]:
    """Interpolate performance at ``columns`` between two near observed amounts (straight line, both axes logarithmic).

    The library may have no application measured at 0.3 and 0.6 vCPUs, but many at 0.5, from which curves can be
    continued.
    """
    rates = rates_by_vcpus(observed)
    found: dict[str, float] = {}
    for less, more in pairwise(rates):
        for column in columns if more <= NEAR_APART * less else ():
            vcpus = vcpus_of(column)
            if vcpus is not None and less < vcpus < more:
                found[column] = rate_at(rates, vcpus)
    return found


def _usable(question: Question, observations: MeasuredApplication, notes: list[str]) -> dict[str, float]:
    """Return the valid observed cells, performance as time; invalid ones are added to ``notes``."""
    usable, scale = {}, question.scale
    for column, value in sorted(observations.cells.get(question, {}).items()):
        where, turned = f"{question} {column!r}", value
        try:
            scale.to_axis(value, where)
            if scale is Scale.RATIO:
                turned = 1.0 / value
                scale.to_axis(turned, f"{where}, as time")
            if question is Question.NODES:
                node_count(column)
        except BadInput as reason:
            notes.append(f"left out: {reason}")
            continue
        usable[column] = turned
    return usable


def _use(rows: MeasuredRows, seen: MeasuredApplication) -> Mapping[str, list[float]] | None:
    """Return the resource use of the runs that have as many features as the library, or None."""
    if rows.context is None:
        return None
    features = rows.context.shape[2]
    fitting = {column: list(use) for column, use in seen.use.items() if len(use) == features}
    return fitting or None


def _estimates(question: Question, completion: Completion) -> dict[str, Estimate]:
    low, high = completion.interval()
    values = completion.values
    if question.scale is Scale.RATIO:
        values, low, high = 1.0 / values, 1.0 / high, 1.0 / low
    estimates = map(Estimate, values.tolist(), low.tolist(), high.tolist(), completion.observed.tolist())
    return dict(zip(completion.columns, estimates, strict=True))


class _Known(NamedTuple):
    """The known cells of a matrix, prepared for distances."""

    rows: MeasuredRows
    there: NDArray[np.bool_]
    """Which cells are known, (rows x columns)."""
    counts: NDArray[np.int_]
    """Number of cells each row's distance uses; 0 for a RATIO row with one cell, which has no shape."""
    divisor: NDArray[np.int_]
    """What sums over a row's cells are divided by, (rows)."""

    @classmethod
    def of(cls, rows: MeasuredRows) -> _Known:
        """Prepare the rows."""
        there = ~np.isnan(rows.values)
        count = there.sum(axis=1)
        shapes = np.where(count > 1, count, 0) if rows.scale is Scale.RATIO else count
        return cls(rows, there, shapes, np.maximum(count, 1))

    def distances(self, completion: Completion) -> Matrix:
        """Return each row's distance: root mean square over its known cells, in widths of an unknown cell.

        For RATIO rows the difference in overall scale is removed, so only the shape counts.
        """
        columns, mean = self.rows.columns, completion.mean
        if completion.columns != columns:
            mean = mean[[completion.columns.index(column) for column in columns]]
        cells = np.where(self.there, self.rows.values - mean, 0.0)
        if self.rows.scale is Scale.RATIO:
            level = cells.sum(axis=1) / self.divisor
            cells = np.where(self.there, cells - level[:, None], 0.0)
        return np.asarray(np.sqrt((cells**2).sum(axis=1) / self.divisor) / WIDE[self.rows.scale])
