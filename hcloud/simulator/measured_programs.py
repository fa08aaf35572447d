"""Simulated programs as the shipped library measured real ones, with the errors that readings had.

The library's rows are split by the seed of a simulation: programs are drawn from one half, and the planner begins with
the other, as a new deployment begins with programs that are not its own. Were both the same, a simulation would test a
classifier on what it was trained on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, Question
from hcloud.classifier.needed_quality import SourceReliability, reliabilities
from hcloud.classifier.profiles import Cell, ReferenceProfile, library_of
from hcloud.config import package_data
from hcloud.config.profiles import library_profiles
from hcloud.core.estimates import SOURCES as ALL_SOURCES
from hcloud.core.estimates import Reading
from hcloud.simulator.program_models import (
    SERVER_PRESSURE_SHARE,
    SOURCES,
    TOLERANCE_MAX,
    ProgramModel,
    draw_program,
    seeded_random,
)

SERVICE_GROUPS = frozenset({"database", "web"})
"""Groups of the library's programs that serve requests."""
UNLIKE = 0.3
"""What a drawn program causes differs from its row's by a lognormal factor of this standard deviation."""
Z95 = 1.959963984540054
LEAST_PRESSURE = 1.0
"""Percent; lower tolerated pressures cannot be distinguished."""
OWN_CORE_SOURCES = tuple(each for each in ALL_SOURCES if each in CORE_SOURCES | NOT_COUNTED)
"""Sources that profiling measures but that do not reach a unit from other cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingError:
    """How far a reading may be from the truth, on the logarithmic scale."""

    deviation: float
    """Standard deviation of readings of one truth, from how far apart repeated runs were."""
    claimed: float
    """Half-width of the 95 % limits stated with the reading."""


@dataclass(frozen=True, slots=True)
class MeasuredPrograms:
    """The shipped library, split for one simulation."""

    seed: int
    drawn_from: tuple[ReferenceProfile, ...]
    """Rows that the simulation's programs are drawn from."""
    known: tuple[ReferenceProfile, ...]
    """The other rows, with which the planner begins."""
    _errors: Mapping[tuple[Question, str], Sequence[ReadingError]] = field(default_factory=dict, repr=False)

    @classmethod
    def split(cls, seed: int) -> MeasuredPrograms:
        """Return the shipped library split by ``seed``; each half has services and batch programs."""
        drawn, known = list[ReferenceProfile](), list[ReferenceProfile]()
        profiles = _shipped()
        for serving in (True, False):
            rows = [each for each in profiles if (each.group in SERVICE_GROUPS) == serving]
            seeded_random(seed, "halves", serving).shuffle(rows)
            drawn += rows[: len(rows) // 2]
            known += rows[len(rows) // 2 :]
        return cls(seed, tuple(drawn), tuple(known), _reading_errors())

    def library(self) -> Library:
        """Return what the planner knows at first."""
        return library_of(self.known)

    def draw(self, name: str, kind: str, *, phased: float) -> ProgramModel:
        """Return the program of this name, always the same for one seed (``kind``, ``phased``: see
        :func:`~hcloud.simulator.program_models.draw_program`).

        Sources, sizes and use are those of a row, varied; types, nodes and phases are drawn as for other programs,
        since the library was measured on one kind of machine.
        """
        chances = seeded_random(self.seed, "row", name)
        serving = kind == "service"
        row = chances.choice([each for each in self.drawn_from if (each.group in SERVICE_GROUPS) == serving])
        pressures = {source: _pressures(row, source, chances) for source in ALL_SOURCES}
        measured = row.measured()
        steps = measured.cells.get(Question.STEP, {})
        gain = steps.get("2 vCPU", 1.0) / steps.get("1 vCPU", 1.0)
        busy, *rest = max(measured.use.values(), default=(0.8, 64.0, 0.0, 0.0), key=lambda use: use[0])
        return replace(
            draw_program(name, kind, self.seed, phased=phased),
            parallel=min(0.99, max(0.0, 2 * (1 - 1 / max(gain, 1.0)))),
            tolerated=tuple(pressures[source][0] for source in SOURCES),
            caused=tuple(SERVER_PRESSURE_SHARE * pressures[source][1] for source in SOURCES),
            drawn_from=row.profile,
            own_core={source: pressures[source] for source in OWN_CORE_SOURCES},
            use=(min(1.0, busy), *rest),
        )

    def reading(
        self, question: Question, column: str, truth: float, chances: random.Random, worse: float = 1.0
    ) -> Reading:
        """Return a reading of a true value, as far off (times ``worse``) and with limits as wide as the library's."""
        error = chances.choice(self._errors.get((question, column)) or self._errors[question, ""])
        most = 100.0 if question in (Question.TOLERATED, Question.CAUSED) else math.inf
        value = min(most, truth * math.exp(chances.gauss(0.0, worse * error.deviation)))
        reach = math.exp(error.claimed)
        low, high = value / reach, min(most, value * reach)
        return Reading(question=question.value, column=column, value=value, low=low, high=high, runs=2)


def _pressures(row: ReferenceProfile, source: str, chances: random.Random) -> tuple[float, float]:
    """Return what a program like ``row`` tolerates (may exceed 100) and causes, in percent of the machine."""
    tolerated, caused = (row.cells.of(each).get(source) for each in (Question.TOLERATED, Question.CAUSED))
    limit = _draw_tolerated(source, tolerated, chances) if tolerated is not None else math.inf
    pressure = caused.value if caused is not None else 0.0
    beyond, unlike = chances.uniform(100.0, TOLERANCE_MAX), chances.lognormvariate(0.0, UNLIKE)
    return beyond if limit >= 100 else max(LEAST_PRESSURE, limit), min(100.0, pressure * unlike)


def _draw_tolerated(source: str, cell: Cell, chances: random.Random) -> float:
    """Draw what may be true where ``cell`` was read: a single extreme reading is mostly an error.

    The truth is about as far from the mean of all programs as the reading, times the reading's part of true variance.
    """
    known = _reliabilities()[source]
    error = (min(100.0, cell.high) - max(0.0, cell.low)) / 2.0 / Z95
    part = known.variance / (known.variance + error**2) if known.variance > 0 else 0.0
    return chances.gauss(known.mean + part * (cell.value - known.mean), math.sqrt(part) * error)


@lru_cache(maxsize=1)
def _reliabilities() -> Mapping[str, SourceReliability]:
    return reliabilities(library_of(_shipped()))


@lru_cache(maxsize=1)
def _shipped() -> tuple[ReferenceProfile, ...]:
    found = (profile for _, profile in library_profiles([package_data.path("profiles")]))
    return tuple(sorted((each for each in found if each.provenance is not None), key=lambda each: each.profile))


@lru_cache(maxsize=1)
def _reading_errors() -> Mapping[tuple[Question, str], Sequence[ReadingError]]:
    """Return errors by question and source; those of speeds, and of sources never repeated, by question alone ("")."""
    repeated = dict[Question, list[float]]()
    cells = [
        (question, column, cell)
        for profile in _shipped()
        for question in Question
        for column, cell in profile.cells.of(question).items()
        if cell.value > 0
    ]
    for question, _, cell in cells:
        if cell.runs > 1:
            repeated.setdefault(question, []).append(_deviation(cell))
    usual = {question: median(deviations) for question, deviations in repeated.items()}
    found = dict[tuple[Question, str], list[ReadingError]]()
    for question, column, cell in cells:
        deviation = _deviation(cell) if cell.runs > 1 else usual.get(question, 0.0)
        error = ReadingError(deviation=deviation, claimed=_half_width(cell))
        found.setdefault((question, column), []).append(error)
        found.setdefault((question, ""), []).append(error)
    return found


def _deviation(cell: Cell) -> float:
    """Return the standard deviation of the logarithm of a mean, whose 95 % limits are Student's."""
    from scipy.special import stdtrit  # slow to import, and only asked in measured worlds

    return _half_width(cell) / float(stdtrit(cell.runs - 1, 0.975))


def _half_width(cell: Cell) -> float:
    """Return the larger distance from value to limit, on the logarithmic scale; at most a factor of ten."""
    low = max(cell.low, cell.value / 10.0)
    return max(math.log(cell.value / low), math.log(max(cell.high, cell.value) / cell.value))
