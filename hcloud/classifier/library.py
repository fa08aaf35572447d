"""Known applications: measured rows for each question, feedback from runs, and drift detection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hcloud.classifier.utility_matrix import MeasuredRows, Scale, rows_of
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Estimate


class Question(StrEnum):
    """The classifications (Quasar, Dissertation §4.3.2); interference has two matrices."""

    TYPE = "type"
    """Heterogeneity: performance per instance type."""
    STEP = "step"
    """Scale-up: performance per amount of one machine."""
    NODES = "nodes"
    """Scale-out: performance per number of nodes; columns are whole numbers as text."""
    TOLERATED = "tolerated"
    CAUSED = "caused"

    __hash__ = str.__hash__  # that of an Enum is a Python function, and every cell is looked up by its question

    @property
    def scale(self) -> Scale:
        """RATIO for performance, SCORE for pressures."""
        return Scale.SCORE if self in (Question.TOLERATED, Question.CAUSED) else Scale.RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredApplication:
    """Measurements of one application. Performance is work per second (more is better); pressures are 0..100."""

    name: str
    program: str = ""
    """Shared by all inputs of one program; default: the application itself."""
    cells: Mapping[Question, Mapping[str, float]] = field(default_factory=dict)
    """Performance by type is that at one number of vCPUs, the same for all types of the row."""
    spreads: Mapping[Question, Mapping[str, float]] = field(default_factory=dict)
    """95 % half-width of cells: of performance as natural logarithm, of pressures in points. Not stated: precise."""
    use: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Resource use of the run on each instance type (:func:`use_per_vcpu`); the same features for every run."""

    def with_cell(self, question: Question, column: str, value: float) -> MeasuredApplication:
        """Return a copy with one cell measured (again): the feedback loop of Dissertation §4.3.2.

        Raises BadInput for an invalid value.
        """
        question.scale.to_axis(value, f"{self.name}, {question} {column!r}")
        cells = {each: dict(columns) for each, columns in self.cells.items()}
        cells.setdefault(question, {})[column] = value
        return replace(self, cells=cells)


WIDEST = 10.0
"""Limits of performance wider than this factor are cut to it."""


def half_width(question: Question, value: float, low: float, high: float) -> float:
    """Return the 95 % half-width of a cell, as in :attr:`MeasuredApplication.spreads`."""
    if question.scale is Scale.SCORE:
        return max(high - value, value - low, 0.0)
    low, high = max(low, value / WIDEST), min(max(high, value), value * WIDEST)
    return math.log(max(high / value, value / low))


def use_per_vcpu(use: Sequence[float], vcpus: float) -> tuple[float, ...]:
    """Return resource use with the busy vCPUs as a share of those held: runs of different sizes compare by it."""
    return (use[0] / vcpus, *use[1:]) if use and vcpus > 0 else tuple(use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Known applications by name: dense rows from the library of profiles, sparse ones from jobs that ran."""

    known: Mapping[str, MeasuredApplication] = field(default_factory=dict)

    def learn(self, measured: MeasuredApplication) -> Library:
        """Return a library with this application added or replaced."""
        return Library(known={**self.known, measured.name: measured})

    def feed(self, name: str, question: Question, column: str, value: float) -> Library:
        """Return a library with one cell observed; an unknown application is added."""
        known = self.known.get(name, MeasuredApplication(name=name))
        return self.learn(known.with_cell(question, column, value))

    def rows(self, question: Question) -> MeasuredRows:
        """Return the matrix of one question, with run times in place of rates.

        Raises BadInput, naming application and column, for an invalid value.
        """
        measured = {name: row for name, each in self.known.items() if (row := each.cells.get(question))}
        use = {n: each.use for n, each in self.known.items() if each.use} if question is Question.TYPE else None
        return rows_of(
            question.scale,
            {name: as_times(question, row, name) for name, row in measured.items()},
            groups={name: self.known[name].program or name for name in measured},
            context=use or None,
        )


def as_times(question: Question, row: Mapping[str, float], name: str) -> dict[str, float]:
    """Return performance as time per unit of work, the unit of curves and regret; pressures are returned unchanged.

    Raises BadInput for an invalid value.
    """
    if question.scale is Scale.SCORE:
        return dict(row)
    for column, value in row.items():
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"{name}, {question} {column!r}: performance is {value}; it must be a finite number above 0")
    return {column: 1.0 / value for column, value in row.items()}


DRIFT_OF = 5
DRIFT_MISSES = 3
DRIFT_REACH = 1.53
"""Converts 80 % limits to 95 % limits. Three misses of five beyond those happen by chance once in 900 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Drift detection: which of the last few measurements missed their estimates."""

    missed: tuple[bool, ...] = ()

    def seen(self, estimate: Estimate, measured: float) -> Drift:
        """Return the state after one more measurement; NaN or a negative value counts as a miss.

        A measurement misses if it is outside the 95 % limits, on the axis on which ``estimate`` is symmetric.
        """
        return Drift(missed=(*self.missed, _missed(estimate, measured))[-DRIFT_OF:])

    @property
    def drifted(self) -> bool:
        """Whether so many measurements missed that the application must be profiled and classified again."""
        return sum(self.missed) >= DRIFT_MISSES


def _missed(estimate: Estimate, measured: float) -> bool:
    if not math.isfinite(measured) or measured < 0:
        return True
    ratio = min(estimate.low, estimate.value, estimate.high) > 0
    if ratio and measured == 0:
        return True
    value, low, high, now = (
        math.log(each) if ratio else each for each in (estimate.value, estimate.low, estimate.high, measured)
    )
    return not value - DRIFT_REACH * (value - low) - 1e-9 <= now <= value + DRIFT_REACH * (high - value) + 1e-9
