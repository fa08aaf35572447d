"""What is believed of every known application: fitted once per library, classified once per application and change.

Bounded work: however many jobs wait, an application is classified once, not per job or cycle; the estimators are fitted
anew only when a good part of the rows has changed; and one call classifies only so many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hcloud.classifier.applications import LEAST_SPREAD, TO_80, is_profiled, measured_of, row_name, scale_of
from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.library import Library, Question
from hcloud.classifier.source_selection import SourcePrior, source_prior
from hcloud.classifier.type_selection import TypePrior, type_prior
from hcloud.classifier.utility_matrix import Scale
from hcloud.core.estimates import Application, Classification, Estimate, LayeredRows

REFIT_SHARE = 0.2
"""Fit again when this part of the fitted rows is new or has changed since."""
SETTLED = LEAST_SPREAD
"""A row counts as changed when a cell has moved by more than many measurements can make sure of: nearly every job that
ends moves one a little, and neither fitting nor classifying again would tell more."""
CLASSIFIED_AT_ONCE = 10
"""Applications classified in one call; the others keep what was believed of them, or come next time."""
K = TypeVar("K", str, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """A cell that was measured after it had been estimated."""

    application: Application
    question: str
    column: str
    estimate: Estimate
    measured: float


@dataclass(slots=True)
class BeliefStore:
    """Follows the rows of known applications. ``library``: the reference programs.

    A new process fits all that is stored, while a running one goes on with a fit of some rows ago and with how sure its
    answers were found to be then. So after a restart estimates may move a little; what was measured does not.
    """

    library: Library = field(default_factory=Library)
    classifier: Classifier = field(default_factory=Classifier)
    surprises: list[PredictionError] = field(default_factory=list)
    """Cells measured after they had been estimated, since last taken out by the caller."""
    _rows: Mapping[str, Application] = field(default_factory=dict)
    _programs: LayeredRows[tuple[Application, ...]] = field(default_factory=LayeredRows)
    _fitted: FittedClassifier | None = None
    _fit_number: int = 0
    _changed: set[str] = field(default_factory=set)
    _fitted_rows: dict[str, Application] = field(default_factory=dict)
    _beliefs: dict[str, tuple[int, Application, Classification]] = field(default_factory=dict)
    _same: dict[str, Application] = field(default_factory=dict)
    """Rows that were found to say the same as those their beliefs rest on."""
    _scaled: dict[str, tuple[Classification, float, Classification]] = field(default_factory=dict)
    _prior: tuple[int, SourcePrior | None] = (0, None)
    _types: tuple[int, TypePrior | None] = (0, None)
    _told: dict[str, Classification] = field(default_factory=dict)
    _answers: dict[str, tuple[str, Application, int, Classification]] = field(default_factory=dict)
    """By key: its row's name, and what was believed of that row by which fit."""

    def follow(self, rows: Mapping[str, Application]) -> None:
        """Take in all rows as they are now; costs nothing where none has changed."""
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
        """The rows of each program, in the order of their names; what was returned before never changes."""
        return self._programs

    def believe(self, wanted: Iterable[str]) -> Mapping[str, Classification]:
        """Return what is believed of each of the ``wanted`` applications (``Job.application``) that are known: the same
        object as the last time while that is the same."""
        found = self._believe(wanted)
        told = self._told
        if len(found) != len(told) or any(told.get(key) is not belief for key, belief in found.items()):
            self._told = found
        return self._told

    def _believe(self, wanted: Iterable[str]) -> dict[str, Classification]:
        fitted, left, found = self._fit(), CLASSIFIED_AT_ONCE, dict[str, Classification]()
        for key in wanted:
            known = self._answers.get(key)
            if known is not None and known[2] == self._fit_number and known[1] is self._rows.get(known[0]):
                found[key] = known[3]
                continue
            row = self._rows.get(row_name(key))
            if row is None or not row.cells:
                continue
            number, seen, belief = self._beliefs.get(row.name, (0, None, None))
            if belief is None or ((number != self._fit_number or self._says_else(seen, row)) and left > 0):
                if left <= 0:
                    continue
                left -= 1
                belief = _widened(replace(fitted.classify(measured_of(row)), measure=row.measure), row)
                self._beliefs[row.name] = (self._fit_number, row, belief)
                self._same[row.name] = row
            found[key] = self._at_scale(key, belief, scale_of(row, key))
            if self._same.get(row.name) is row:  # it rests on this very row, or on one that says the same
                self._answers[key] = (row.name, row, self._beliefs[row.name][0], found[key])
        return found

    def source_prior(self) -> SourcePrior | None:
        """Return how pressures go together in what is known, the same object until the estimators are fitted anew."""
        fitted = self._fit()
        if self._prior[0] != self._fit_number:
            self._prior = (self._fit_number, source_prior(fitted.fitted))
        return self._prior[1]

    def _says_else(self, seen: Application | None, row: Application) -> bool:
        """Return whether a row says something else than the one its belief rests on; looked at once per row."""
        if self._same.get(row.name) is row:
            return False
        moved = _moved(seen, row)
        if not moved:
            self._same[row.name] = row
        return moved

    def _at_scale(self, key: str, belief: Classification, scale: float) -> Classification:
        """Return a belief at a scale: the same object as long as both are the same."""
        known = self._scaled.get(key)
        if known is None or known[0] is not belief or known[1] != scale:
            known = self._scaled[key] = (belief, scale, _scaled(belief, scale))
        return known[2]

    def type_prior(self) -> TypePrior | None:
        """Return how performance on machine types goes together in what is known, the same object until the estimators
        are fitted anew."""
        fitted = self._fit()
        if self._types[0] != self._fit_number:
            self._types = (self._fit_number, type_prior(fitted.fitted[Question.TYPE]))
        return self._types[1]

    def _fit(self) -> FittedClassifier:
        """Return the fitted classifier, renewed where enough rows have changed."""
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
                # The first cell of a row only sets its scale: nothing was predicted.
                if estimate is not None and column not in before.cells.get(question, {}) and before.cells.get(question):
                    yield PredictionError(
                        application=after, question=question, column=column, estimate=estimate, measured=value
                    )


def _with_row(rows: tuple[Application, ...], row: Application) -> tuple[Application, ...]:
    """Return the rows of a program with one more, or with what one of them is now."""
    return tuple(sorted([*(each for each in rows if each.name != row.name), row], key=lambda each: each.name))


def _moved(then: Application | None, now: Application) -> bool:
    """Return whether a row says something else than it did ``then``; see SETTLED."""
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
                apart = abs(math.log(value / known)) if ratio else abs(value - known) / (100.0 if score else 1.0)
                if apart > SETTLED:
                    return True
    return False


def _widened(belief: Classification, row: Application) -> Classification:
    """Return a belief with limits as wide as the measurements it rests on: nothing is known better than they are."""
    nodes = {int(column): spread for column, spread in row.spreads.get("nodes", {}).items()}
    return replace(
        belief,
        by_type=_wide_ratios(belief.by_type, row.spreads.get("type", {})),
        by_step=_wide_ratios(belief.by_step, row.spreads.get("step", {})),
        by_nodes=_wide_ratios(belief.by_nodes, nodes),
        tolerated=_wide_scores(belief.tolerated, row.spreads.get("tolerated", {})),
        caused=_wide_scores(belief.caused, row.spreads.get("caused", {})),
    )


def _wide_ratios(answers: Mapping[K, Estimate], spreads: Mapping[K, float]) -> dict[K, Estimate]:
    """Widen performance on its logarithmic axis: measured cells by their own spread, others by the least of them."""
    least, widened = min(spreads.values(), default=0.0), dict[K, Estimate]()
    of_others = math.exp(least * TO_80)
    for column, (value, low, high, observed) in answers.items():
        factor = math.exp(spreads[column] * TO_80) if column in spreads else of_others
        widened[column] = Estimate(value, low / factor, high * factor, observed)
    return widened


def _wide_scores(answers: Mapping[str, Estimate], spreads: Mapping[str, float]) -> dict[str, Estimate]:
    """Give measured pressures the limits they were measured with; what is usual of a measurement (``NOISE``) is for
    those that came without."""
    widened = dict(answers)
    for column, spread in spreads.items():
        if spread > 0 and column in widened and widened[column].observed:
            value, reach = widened[column].value, spread * TO_80
            widened[column] = Estimate(value, max(0.0, value - reach), min(100.0, value + reach), True)
    return widened


def _scaled(belief: Classification, scale: float) -> Classification:
    """Return a belief with performance ``scale`` times as high; 0: in an unknown unit."""
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
