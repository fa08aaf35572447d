"""What is known of applications: measured rows for each question, feedback from runs, and when to measure again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hcloud.classifier.utility_matrix import MeasuredRows, Scale, rows_of
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Estimate


class Question(StrEnum):
    """The classifications (Quasar, Dissertation §4.3.2); interference is two matrices."""

    TYPE = "type"
    """Heterogeneity: performance per instance type."""
    STEP = "step"
    """Scale-up: performance per amount of one machine."""
    NODES = "nodes"
    """Scale-out: performance per number of nodes; columns are whole numbers written as text."""
    TOLERATED = "tolerated"
    CAUSED = "caused"

    @property
    def scale(self) -> Scale:
        """Performance is a ratio; pressures are scores."""
        return Scale.SCORE if self in (Question.TOLERATED, Question.CAUSED) else Scale.RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredApplication:
    """What was measured of one application. Performance is work per second (more is better), pressures are 0..100.

    ``program``: what inputs of one program share (default: the application itself). ``use``: resource use of the run on
    each instance type, the same list of numbers for every run of the library.
    """

    name: str
    program: str = ""
    cells: Mapping[Question, Mapping[str, float]] = field(default_factory=dict)
    use: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def with_cell(self, question: Question, column: str, value: float) -> MeasuredApplication:
        """Return this with one cell measured (again): the feedback loop of Dissertation §4.3.2.

        Raises BadInput for a value that cannot be a measurement.
        """
        question.scale.to_axis(value, f"{self.name}, {question} {column!r}")
        cells = {each: dict(columns) for each, columns in self.cells.items()}
        cells.setdefault(question, {})[column] = value
        return replace(self, cells=cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Known applications by name: dense rows from the library of profiles, sparse ones from jobs that ran."""

    known: Mapping[str, MeasuredApplication] = field(default_factory=dict)

    def learn(self, measured: MeasuredApplication) -> Library:
        """Return a library in which this application is known as given (replacing what was known under its name)."""
        return Library(known={**self.known, measured.name: measured})

    def feed(self, name: str, question: Question, column: str, value: float) -> Library:
        """Return a library in which one cell was observed; an application of that name is made where there was none."""
        known = self.known.get(name, MeasuredApplication(name=name))
        return self.learn(known.with_cell(question, column, value))

    def rows(self, question: Question) -> MeasuredRows:
        """Return the matrix of one question, run times in place of rates.

        Raises BadInput, naming application and column, for a value that cannot be a measurement.
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
    """Return performance as time per unit of work, which is what curves and regret are stated in; pressures as given.

    Raises BadInput for a value that cannot be a measurement.
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
"""From 80 % limits to 95 % limits: three of five beyond those happen by chance once in 900 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Whether an application still is what it was classified as: the last few measurements against their estimates."""

    missed: tuple[bool, ...] = ()

    def seen(self, estimate: Estimate, measured: float) -> Drift:
        """Return the watch after one more measurement; NaN or nothing positive counts as a miss.

        A measurement misses when it is outside the 95 % limits (on the axis on which ``estimate`` is symmetric).
        """
        return Drift(missed=(*self.missed, _missed(estimate, measured))[-DRIFT_OF:])

    @property
    def drifted(self) -> bool:
        """Whether it departed so often that it has to be profiled and classified again."""
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
