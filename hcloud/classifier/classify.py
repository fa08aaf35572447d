"""The four classifications of a job: heterogeneity, scale-up, scale-out and interference (tolerated and caused).

Each question has its own matrix and shares nothing with the others, which keeps every matrix small and dense (Quasar,
Dissertation §4.3.2, "multiple parallel versus single exhaustive classification").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import (
    Completion,
    Estimates,
    Estimator,
    Fitted,
    Renewing,
    Widening,
    rows_by_pattern,
)
from hcloud.classifier.gaussian import GaussianFoldIn, Index
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.needed_quality import UNKNOWN, ToleranceScale
from hcloud.classifier.neighbours import NeighbourFoldIn
from hcloud.classifier.readings import Readings, readings_of, use_of, with_between
from hcloud.classifier.scaling import CurveFoldIn, node_count
from hcloud.classifier.similar_programs import KnownPrograms
from hcloud.classifier.unmeasured_types import apart
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from hcloud.core.estimates import Classification, Estimate

LINKED_MIN = 5
"""Rows measured on a type and on an observed one, from which on they decide how sure the comparison is."""
RATIO_SD = 0.3
"""Standard deviation among programs of how two types compare (natural logarithm); ``python -m bench.few_rows``."""
SAME_VALUE = 1e-9
"""Logarithms of performance closer than this are of one measurement."""
T = TypeVar("T")
Mask = NDArray[np.bool_]
_NONE: Mapping[Any, Estimate] = MappingProxyType({})
CELLS_AT_ONCE = 2**20
"""Most cells of known rows, times jobs, that are compared at once; more need too much memory."""


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
    _known: list[KnownPrograms] = field(default_factory=list, compare=False, repr=False)
    _distances: dict[tuple[tuple[str, ...], tuple[str, ...]], _Distances] = field(
        default_factory=dict, compare=False, repr=False
    )
    """By columns and observed columns."""

    def classify(self, observations: MeasuredApplication) -> Classification:
        """Classify one job; see :meth:`classify_many`."""
        return self.classify_many([observations])[0]

    def classify_many(self, seen: Sequence[MeasuredApplication]) -> list[Classification]:
        """Answer all questions about each job from its observed cells, of which there may be none.

        Invalid values (NaN, zero, a crash) are left out and listed in ``notes``. Unobserved cells come from the
        library's prior, with its width. No value returned is NaN or infinite. Jobs do not affect each other.
        """
        step = max(1, CELLS_AT_ONCE // self._programs.cells)
        return [each for at in range(0, len(seen), step) for each in self._classified(seen[at : at + step])]

    def _classified(self, seen: Sequence[MeasuredApplication]) -> list[Classification]:
        notes: list[list[str]] = [[] for _ in seen]
        answers: dict[Question, list[Mapping[Any, Estimate]]] = {question: [_NONE] * len(seen) for question in Question}
        needed, completions = [UNKNOWN] * len(seen), list[tuple[Question, Index, Completion]]()
        for question in self.methods:
            whole = readings_of(question, seen, self.fitted[question].rows.columns, notes)
            for readings in whole.by_new_columns():
                if not readings.columns:
                    _note(notes, readings.jobs, f"{question}: not measured, and no known application has measurements")
                    continue
                completion = self._complete(question, readings, seen, notes)
                completions.append((question, readings.jobs, completion))
                estimates = Estimates.of(completion, as_rates=question.scale is Scale.RATIO)
                keys: Sequence[Any] = readings.columns
                if question is Question.NODES:
                    keys = [node_count(column) for column in keys]
                _put(answers[question], readings.jobs, estimates.by_row(keys))
                if question is Question.TOLERATED:
                    measured = question.scale.from_axis(readings.cells.values)
                    found = self.scale.needed(estimates, measured, readings.spreads)
                    _put(needed, readings.jobs, found)
        nearest = self._programs.nearest([each.name for each in seen], completions)
        return [
            Classification(
                by_type=by_type,
                by_step=by_step,
                by_nodes=by_nodes,
                tolerated=tolerated,
                caused=caused,
                quality_target=needed[job],
                nearest=nearest[job],
                notes=tuple(notes[job]),
            )
            for job, (by_type, by_step, by_nodes, tolerated, caused) in enumerate(
                zip(*(answers[question] for question in Question), strict=True)
            )
        ]

    def _complete(
        self, question: Question, readings: Readings, seen: Sequence[MeasuredApplication], notes: Sequence[list[str]]
    ) -> Completion:
        """Return the completed rows of ``readings``, whose jobs have the same new columns."""
        fitted, cells = self.fitted[question], readings.cells
        if readings.new:
            where = ", ".join(readings.new)
            _note(notes, readings.jobs, f"{question}: first measurement at {where}; it says little about other columns")
            if isinstance(fitted, Widening):
                fitted = fitted.with_columns(readings.new)
            else:
                fitted = self.methods[question].fit(fitted.rows.with_columns(readings.new))
        empty = readings.jobs[~cells.observed.any(1)]
        _note(notes, empty, f"{question}: not measured; using the estimate of a typical application")
        if question is Question.STEP:
            cells = with_between(cells, readings.columns)
        if question is not Question.TYPE:
            return fitted.complete_many(cells)
        if fitted.rows.context is not None:
            use = use_of([seen[job] for job in readings.jobs], readings.columns, fitted.rows.context.shape[2])
            cells = replace(cells, context=use)
        return self._with_distance(fitted.complete_many(cells), fitted.rows)

    def _with_distance(self, completion: Completion, rows: MeasuredRows) -> Completion:
        """Return performance by type, where few rows link a type to measured ones by its distance to these, too.

        Without such rows its level is that of the nearest measured types. Few rows count as much as programs differ
        less than types do, and make nothing surer than the distance. Rows of other types alone say how those compare
        with each other, but not with the measured ones. Nor do types of one row that are exactly alike: they were
        converted from one measurement.
        """
        mean, least = completion.mean.copy(), np.zeros_like(completion.sd)
        for places, jobs in rows_by_pattern(completion.observed):
            observed = tuple(completion.columns[place] for place in places)
            key = (completion.columns, observed)
            if observed and key not in self._distances:
                apart_in = [np.abs(rows.values - rows.values[:, [place]]) > SAME_VALUE for place in places]
                linked = np.logical_or.reduce(apart_in).sum(axis=0)  # a comparison with an unknown cell is False
                away = np.array([[apart(each, column) for each in observed] for column in completion.columns])
                few = linked < LINKED_MIN
                few[places] = False
                has_many = (~np.isnan(rows.values)).sum(axis=0) >= LINKED_MIN
                self._distances[key] = _Distances.of(away, np.where(few, linked, np.inf), has_many)
            if observed:
                found = self._distances[key]
                least[jobs] = found.least_sd
                by_rows = completion.mean[jobs]
                by_distance = by_rows[:, places] @ found.nearest.T + by_rows @ found.relative.T
                mean[jobs] = by_distance + found.weight * (by_rows - by_distance)
        return replace(completion, mean=mean, sd=np.maximum(completion.sd, least))

    @property
    def _programs(self) -> KnownPrograms:
        if not self._known:
            self._known.append(KnownPrograms.of({question: each.rows for question, each in self.fitted.items()}))
        return self._known[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Distances:
    """How types that few rows link to the observed ones follow from these."""

    nearest: Matrix
    """Weights of the observed types by which a type's performance follows from those nearest, (columns x observed)."""
    relative: Matrix
    """Weights by which a type differs from others as far away, where enough rows say so, (columns x columns)."""
    weight: Matrix
    """Weight of what the rows say, beside the nearest types, (columns)."""
    least_sd: Matrix
    """(columns)."""

    @classmethod
    def of(cls, away: Matrix, linked: Matrix, has_many: Mask) -> _Distances:
        """``away``: standard deviations between types, (columns x observed); ``linked``: rows that link a column with
        an observed one, infinite where they need no distance; ``has_many``: whether many rows have a column."""
        least = away.min(axis=1)
        is_nearest = (away <= least[:, None]).astype(np.float64)
        few = np.isfinite(linked)
        relative = np.zeros((len(away), len(away)))
        for distance in set(least[few].tolist()):
            alike = np.flatnonzero(few & has_many & (least == distance))
            relative[np.ix_(alike, alike)] = np.eye(len(alike)) - 1.0 / max(1, len(alike))
        known = np.where(few, linked, 0.0) * least**2
        weight = np.where(few, known / (known + RATIO_SD**2), 1.0)
        nearest = is_nearest / is_nearest.sum(axis=1, keepdims=True)
        return cls(nearest, relative, weight, np.where(few, least, 0.0))


def _put(rows: list[T], jobs: Index, found: Sequence[T]) -> None:
    """Replace the rows of ``jobs``."""
    if len(jobs) == len(rows):  # all of them, in order
        rows[:] = found
        return
    for job, row in zip(jobs.tolist(), found, strict=True):
        rows[job] = row


def _note(notes: Sequence[list[str]], jobs: Index, text: str) -> None:
    for job in jobs.tolist():
        notes[job].append(text)
