"""Classifications of all known applications: fitted once per library, classified once per application and change.

Work is bounded: an application is classified once, not per job or cycle. Estimators are refitted only after a
sufficient share of the rows has changed, and one call classifies a limited number of applications.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hcloud.classifier.applications import LEAST_SPREAD, is_profiled, measured_of, row_name, scale_of
from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.library import Library, Question
from hcloud.classifier.source_selection import SourcePrior, source_prior
from hcloud.classifier.type_selection import TypePrior, type_prior
from hcloud.classifier.utility_matrix import Scale
from hcloud.core.estimates import Application, Classification, Estimate, LayeredRows

REFIT_SHARE = 0.2
"""Refit once this share of the fitted rows is new or has changed."""
SETTLED = LEAST_SPREAD
"""A row counts as changed once a cell has moved by more than the uncertainty many measurements leave. Nearly every
finished job moves a cell a little; refitting or reclassifying then would not improve the result."""
CLASSIFIED_AT_ONCE = 50
"""Maximum applications classified in one call; others keep their earlier classification or wait for the next call."""
_PENDING = Classification(quality_target=Estimate(0.5, 0.0, 1.0))
"""Keeps the place of an answer among others until its row is classified."""
K = TypeVar("K", str, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """A cell that was estimated before it was measured."""

    application: Application
    question: str
    column: str
    estimate: Estimate
    measured: float


@dataclass(slots=True)
class BeliefStore:
    """Follows the rows of known applications and returns their classifications.

    After a restart the store fits all stored rows, while a running one may still use an older fit. Estimates may
    therefore change slightly at a restart; measured cells do not.
    """

    library: Library = field(default_factory=Library)
    """The reference programs."""
    classifier: Classifier = field(default_factory=Classifier)
    surprises: list[PredictionError] = field(default_factory=list)
    """Cells measured after they were estimated; the caller removes the entries it has processed."""
    _rows: Mapping[str, Application] = field(default_factory=dict)
    _programs: LayeredRows[tuple[Application, ...]] = field(default_factory=LayeredRows)
    _fitted: FittedClassifier | None = None
    _fit_number: int = 0
    _changed: set[str] = field(default_factory=set)
    _fitted_rows: dict[str, Application] = field(default_factory=dict)
    _beliefs: dict[str, tuple[int, Application, Classification]] = field(default_factory=dict)
    _same: dict[str, Application] = field(default_factory=dict)
    """Rows that do not differ from those their classifications are based on (see ``SETTLED``)."""
    _scaled: dict[str, tuple[Classification, float, Classification]] = field(default_factory=dict)
    _prior: tuple[int, SourcePrior | None] = (0, None)
    _types: tuple[int, TypePrior | None] = (0, None)
    _returned: dict[str, Classification] = field(default_factory=dict)
    _answers: dict[str, tuple[str, Application, int, Classification]] = field(default_factory=dict)
    """By key: row name, row, fit number and the classification returned for them."""

    def follow(self, rows: Mapping[str, Application]) -> None:
        """Accept the current rows of all applications; free if nothing has changed."""
        if rows is self._rows:
            return
        programs = dict[str, tuple[Application, ...]]()
        for name, row in rows.since(self._rows) if isinstance(rows, LayeredRows) else rows.items():
            before = self._rows.get(name)
            if before is None or before.revision != row.revision:
                programs[row.program] = _with_row(programs.get(row.program) or self._programs.get(row.program, ()), row)
                if is_profiled(row) and _moved(self._fitted_rows.get(name), row):
                    self._changed.add(name)
                if before is not None and before.runs != row.runs:
                    self.surprises += self._surprises(before, row)
        self._programs = self._programs.over(programs)
        self._rows = rows

    @property
    def programs(self) -> Mapping[str, tuple[Application, ...]]:
        """Rows of each program, sorted by name. Mappings returned earlier never change."""
        return self._programs

    def believe(self, wanted: Iterable[str]) -> Mapping[str, Classification]:
        """Return the classification of each known application in ``wanted`` (values of ``Job.application``).

        Returns the same object as the last call while no classification has changed.
        """
        found = self._believe(wanted)
        last = self._returned
        if len(found) != len(last) or any(last.get(key) is not belief for key, belief in found.items()):
            self._returned = found
        return self._returned

    def of_rows(self, names: Iterable[str]) -> Mapping[str, Classification]:
        """Return the classifications of known applications by name of their row, at the scale of its cells."""
        return self._believe(names)

    def _believe(self, wanted: Iterable[str]) -> dict[str, Classification]:
        fitted, found, rows = self._fit(), dict[str, Classification](), dict[str, Application]()
        for key in wanted:
            known = self._answers.get(key)
            if known is not None and known[2] == self._fit_number and known[1] is self._rows.get(known[0]):
                found[key] = known[3]
                continue
            row = self._rows.get(row_name(key))
            if row is not None and row.cells:
                found[key], rows[key] = _PENDING, row
        self._classify(rows.values(), fitted)
        for key, row in rows.items():
            number, _, belief = self._beliefs.get(row.name, (0, None, None))
            if belief is None:
                del found[key]
                continue
            found[key] = self._at_scale(key, belief, scale_of(row, key))
            if self._same.get(row.name) is row:  # based on this row or on an equivalent one
                self._answers[key] = (row.name, row, number, found[key])
        return found

    def _classify(self, rows: Iterable[Application], fitted: FittedClassifier) -> None:
        """Classify those rows, within the bound, that are new, have changed, or were classified by an earlier fit."""
        chosen = dict[str, Application]()
        for row in rows:
            if len(chosen) == CLASSIFIED_AT_ONCE:
                break
            number, seen, belief = self._beliefs.get(row.name, (0, None, None))
            if belief is None or number != self._fit_number or self._differs(seen, row):
                chosen[row.name] = row
        beliefs = fitted.classify_many([measured_of(row) for row in chosen.values()])
        for row, belief in zip(chosen.values(), beliefs, strict=True):
            own = replace(belief, measure=row.measure, reference_vcpus=row.reference_vcpus)
            self._beliefs[row.name] = (self._fit_number, row, own)
            self._same[row.name] = row

    def source_prior(self) -> SourcePrior | None:
        """Return the covariance of pressures in the known rows; the same object until the next refit."""
        fitted = self._fit()
        if self._prior[0] != self._fit_number:
            self._prior = (self._fit_number, source_prior(fitted.fitted, fitted.scale))
        return self._prior[1]

    def _differs(self, seen: Application | None, row: Application) -> bool:
        """Return whether a row differs from the one its classification is based on; computed once per row."""
        if self._same.get(row.name) is row:
            return False
        moved = _moved(seen, row)
        if not moved:
            self._same[row.name] = row
        return moved

    def _at_scale(self, key: str, belief: Classification, scale: float) -> Classification:
        """Return a classification at a scale; the same object while both are unchanged."""
        known = self._scaled.get(key)
        if known is None or known[0] is not belief or known[1] != scale:
            known = self._scaled[key] = (belief, scale, _scaled(belief, scale))
        return known[2]

    def type_prior(self) -> TypePrior | None:
        """Return the covariance of performance across machine types; the same object until the next refit."""
        fitted = self._fit()
        if self._types[0] != self._fit_number:
            self._types = (self._fit_number, type_prior(fitted.fitted[Question.TYPE]))
        return self._types[1]

    def _fit(self) -> FittedClassifier:
        """Return the fitted classifier, refitted if enough rows have changed."""
        if self._fitted is None or len(self._changed) > REFIT_SHARE * len(self._fitted.library.known):
            self._fitted_rows = {name: row for name, row in self._rows.items() if is_profiled(row)}
            own = {name: measured_of(row) for name, row in self._fitted_rows.items()}
            self._fitted = self.classifier.fit(Library(known={**self.library.known, **own}), self._fitted)
            self._fit_number += 1
            self._changed.clear()
        return self._fitted

    def _surprises(self, before: Application, after: Application) -> Iterator[PredictionError]:
        _, seen, belief = self._beliefs.get(before.name, (0, None, None))
        if belief is None or _moved(seen, before) or before.measure is not after.measure:
            return
        answers: dict[str, Mapping[str, Estimate]] = {
            "type": belief.by_type,
            "step": belief.by_step,
            "nodes": {str(count): each for count, each in belief.by_nodes.items()},
            "tolerated": belief.tolerated,
            "caused": belief.caused,
        }
        for question, columns in after.cells.items():
            for column, value in columns.items():
                estimate = answers.get(question, {}).get(column)
                # The first cell of a row only sets its scale, so it was not predicted.
                if estimate is not None and column not in before.cells.get(question, {}) and before.cells.get(question):
                    yield PredictionError(
                        application=after, question=question, column=column, estimate=estimate, measured=value
                    )


def _with_row(rows: tuple[Application, ...], row: Application) -> tuple[Application, ...]:
    return tuple(sorted([*(each for each in rows if each.name != row.name), row], key=lambda each: each.name))


def _moved(then: Application | None, now: Application) -> bool:
    """Return whether a row differs from ``then`` by more than ``SETTLED``."""
    if then is now:
        return False
    if then is None or then.measure is not now.measure or then.type_column != now.type_column:
        return True
    return _cells_moved(then.cells, now.cells, as_ratio=True) or _cells_moved(then.spreads, now.spreads, as_ratio=False)


def _cells_moved(
    then: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]], *, as_ratio: bool
) -> bool:
    for question, columns in now.items():
        before = then.get(question, {})
        if columns == before:
            continue
        score = Question(question).scale is Scale.SCORE
        for column, value in columns.items():
            known = before.get(column)
            if known is None:
                return True
            if value != known:
                ratio = as_ratio and not score
                change = abs(math.log(value / known)) if ratio else abs(value - known) / (100.0 if score else 1.0)
                if change > SETTLED:
                    return True
    return False


def _scaled(belief: Classification, scale: float) -> Classification:
    """Return a classification with performance multiplied by ``scale``; 0 means in an unknown unit."""
    if scale == 1.0:
        return belief
    if scale == 0.0:
        return replace(belief, measure=None)
    return replace(
        belief,
        by_type=_times(belief.by_type, scale),
        by_step=_times(belief.by_step, scale),
        by_nodes=_times(belief.by_nodes, scale),
    )


def _times(answers: Mapping[K, Estimate], scale: float) -> dict[K, Estimate]:
    return {
        column: Estimate(value * scale, low * scale, high * scale, observed)
        for column, (value, low, high, observed) in answers.items()
    }
