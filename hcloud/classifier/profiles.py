"""Profiles: what a file of the library says of one reference program, checked, and what two of them differ in.

A profile holds the cells of the classifier's questions, each with its 95 % limits, and where they come from. Several
files may hold one program, measured on machines of several providers: their cells are put together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass as plain
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.core.estimates import SOURCES, Measure, Reading
from hcloud.core.units import NonEmptyText, Number, PositiveCount, Text, shown
from hcloud.spec.validation import AtKey, KeyPath, key_path, nearest, parse

_STRICT = ConfigDict(extra="forbid")
USE_UNITS = ("vCPUs busy", "MiB of memory", "MiB/s read", "MiB/s written")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$"


def _spelled(pattern: str, wanted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        """Return ``text`` as it is. Raises ValueError where it does not match."""
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{shown(text)} is no column; {wanted}")
        return text

    return check


def _check_source(text: str) -> str:
    if text not in SOURCES:
        raise ValueError(f"{shown(text)} is no source of interference; {nearest(text, SOURCES)}")
    return text


def _check_per_second(text: str) -> str:
    if not text.endswith("/s"):
        raise ValueError(
            f"must be an amount per second such as MiB/s, not {shown(text)}: performance is more-is-better"
        )
    return text


def _check_use(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) != len(USE_UNITS) or min(values, default=0.0) < 0:
        raise ValueError(f"must be {len(USE_UNITS)} numbers from 0 ({', '.join(USE_UNITS)})")
    return values


Name = Annotated[str, Field(pattern=NAME)]
TypeColumn = Annotated[str, AfterValidator(_spelled(r"[a-z0-9-]+/[\w.-]+", "write provider/type, as aws/m5.large"))]
StepColumn = Annotated[str, AfterValidator(_spelled(r"(0\.[0-9]*[1-9]|[1-9][0-9]*(\.[0-9]*[1-9])?) vCPU", "write an "
                                                    "amount of one machine, as 0.5 vCPU"))]  # fmt: skip
NodesColumn = Annotated[str, AfterValidator(_spelled(r"[1-9][0-9]{0,5}", 'write a number of nodes in quotes, as "2"'))]
SourceColumn = Annotated[str, AfterValidator(_check_source)]
Use = Annotated[tuple[Number, ...], AfterValidator(_check_use)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PerformanceCell:
    """A measured amount per second, more is better."""

    value: Annotated[Number, Field(gt=0, le=1e15)]
    """What was measured."""
    low: Number
    """Lower 95 % limit."""
    high: Number
    """Upper 95 % limit."""
    runs: PositiveCount = 1
    """From how many repeats."""

    def __post_init__(self) -> None:
        """Raise AtKey where the value is outside its limits."""
        _check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PressureCell:
    """A measured intensity of a source of interference, in percent."""

    value: Annotated[Number, Field(ge=0, le=100)]
    """What was measured."""
    low: Annotated[Number, Field(ge=0, le=100)]
    """Lower 95 % limit."""
    high: Annotated[Number, Field(ge=0, le=100)]
    """Upper 95 % limit."""
    runs: PositiveCount = 1
    """From how many repeats."""

    def __post_init__(self) -> None:
        """Raise AtKey where the value is outside its limits."""
        _check_limits(self)


Cell = PerformanceCell | PressureCell


def _check_limits(cell: Cell) -> None:
    if not cell.low <= cell.value <= cell.high:
        raise AtKey("value", f"must lie between low and high; {cell.value:g} is not within {cell.low:g}..{cell.high:g}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Cells:
    """The measured cells, by question and column."""

    type: Mapping[TypeColumn, PerformanceCell] = field(default_factory=dict)
    """Performance by instance type."""
    step: Mapping[StepColumn, PerformanceCell] = field(default_factory=dict)
    """Performance by amount of one machine."""
    nodes: Mapping[NodesColumn, PerformanceCell] = field(default_factory=dict)
    """Performance by number of nodes."""
    tolerated: Mapping[SourceColumn, PressureCell] = field(default_factory=dict)
    """The intensity of each source at which performance falls by 5 %; 100: never."""
    caused: Mapping[SourceColumn, PressureCell] = field(default_factory=dict)
    """The intensity of each source that presses as hard as the program does."""

    def of(self, question: Question) -> Mapping[str, Cell]:
        """Return one question's cells by column."""
        found: Mapping[str, Cell] = getattr(self, question.value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProfileUnits:
    """What the numbers are in; other units are refused, because nothing would notice them later."""

    performance: Annotated[NonEmptyText, AfterValidator(_check_per_second)]
    """Of type, step and nodes."""
    interference: Literal["percent"] = "percent"
    """Of tolerated and caused."""
    use: tuple[Text, ...] = USE_UNITS
    """Of each number of use."""

    def __post_init__(self) -> None:
        """Raise AtKey where resource use is in other units than ``USE_UNITS``, or another order."""
        if self.use != USE_UNITS:
            raise AtKey("use", f"must be {', '.join(USE_UNITS)}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Provenance:
    """Where, when and with what it was measured."""

    measured_at: NonEmptyText
    """UTC date and time."""
    provider: NonEmptyText
    """Whose machine."""
    cpu: NonEmptyText
    """Its processor."""
    cores: PositiveCount
    """How many CPUs the measurement could use."""
    kernel: NonEmptyText
    """Its kernel."""
    hcloud: NonEmptyText
    """The version of HCloud."""
    stress_ng: NonEmptyText
    """The version that made the sources of interference."""
    packages: Mapping[NonEmptyText, NonEmptyText]
    """The versions of the measured program."""
    load_average: Annotated[Number, Field(ge=0)]
    """Load average of the machine when it began. In a bootstrap it still holds the program before, about two processes;
    where others worked too, numbers are rough."""
    took_s: Annotated[Number, Field(ge=0)]
    """How long it took."""
    command: NonEmptyText
    """What was run."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ReferenceProfile:
    """One reference program as measured on one kind of machine."""

    profile: Name
    """Its name."""
    format: Literal[1]
    """Of this file."""
    group: NonEmptyText
    """What sort of program it is."""
    program: NonEmptyText
    """What several profiles of one program share; such are never each other's judge."""
    measure: Measure
    """What was taken for performance."""
    units: ProfileUnits
    """Of the numbers below."""
    provenance: Provenance
    """Where they come from."""
    cells: Cells
    """The numbers, by question and column."""
    use: Mapping[TypeColumn, Use] = field(default_factory=dict)
    """Resource use of a run alone on each type."""
    notes: tuple[Text, ...] = ()
    """What the measurement could not do, in sentences."""

    def __post_init__(self) -> None:
        """Raise AtKey where there is no cell at all."""
        if not any(self.cells.of(question) for question in Question):
            raise AtKey("cells", "holds no measurement")

    def measured(self) -> MeasuredApplication:
        """Return the row as the classifier learns it."""
        cells = {q: {column: cell.value for column, cell in self.cells.of(q).items()} for q in Question}
        return MeasuredApplication(
            name=self.profile,
            program=self.program,
            cells={question: row for question, row in cells.items() if row},
            use={column: tuple(use) for column, use in self.use.items()},
        )


def parse_profile(mapping: object, locate: Callable[[KeyPath], str] = key_path) -> ReferenceProfile:
    """Return the checked profile of one document. Raises ConfigError, naming file, line and key."""
    return parse(ReferenceProfile, mapping, locate)


def cells_of_readings(readings: Iterable[Reading]) -> Cells:
    """Return readings as cells. Raises BadInput for a value that cannot be a measurement."""
    found: dict[str, dict[str, object]] = {}
    for each in readings:
        cell = {"value": each.value, "low": each.low, "high": each.high, "runs": each.runs}
        found.setdefault(each.question, {})[each.column] = {name: _rounded(number) for name, number in cell.items()}
    return parse(Cells, found)


def _rounded(number: object) -> object:
    return float(f"{number:.5g}") if isinstance(number, float) else number


def document(profile: ReferenceProfile) -> dict[str, Any]:
    """Return a profile as plain values, as in its file; what is empty is left out."""
    return {
        "profile": profile.profile,
        "format": profile.format,
        "group": profile.group,
        "program": profile.program,
        "measure": profile.measure.value,
        "units": {
            "performance": profile.units.performance,
            "interference": profile.units.interference,
            "use": list(profile.units.use),
        },
        "provenance": _fields(profile.provenance) | {"packages": dict(profile.provenance.packages)},
        "cells": {
            question.value: {column: _fields(cell) for column, cell in profile.cells.of(question).items()}
            for question in Question
            if profile.cells.of(question)
        },
        "use": {column: list(use) for column, use in profile.use.items()},
        "notes": list(profile.notes),
    }


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


# ---------------------------------------------------------------------------------------------------------- libraries
def library_of(profiles: Iterable[ReferenceProfile]) -> Library:
    """Return a library of these; cells of one name are put together, later ones in place of earlier ones."""
    known: dict[str, MeasuredApplication] = {}
    for profile in profiles:
        new, old = profile.measured(), known.get(profile.profile)
        known[profile.profile] = new if old is None else _together(old, new)
    return Library(known=known)


def _together(old: MeasuredApplication, new: MeasuredApplication) -> MeasuredApplication:
    questions = {**old.cells, **new.cells}
    return MeasuredApplication(
        name=new.name,
        program=new.program,
        cells={question: {**old.cells.get(question, {}), **new.cells.get(question, {})} for question in questions},
        use={**old.use, **new.use},
    )


# -------------------------------------------------------------------------------------------------------- differences
@plain(frozen=True, slots=True, kw_only=True)
class Difference:
    """One cell in two profiles. ``change``: percent (performance) or points (interference); None: only one has it."""

    question: Question
    column: str
    first: Cell | None
    second: Cell | None
    change: float | None
    beyond_limits: bool
    """Whether the 95 % limits of the two do not overlap."""


def differences(first: ReferenceProfile, second: ReferenceProfile) -> tuple[Difference, ...]:
    """Compare two profiles cell by cell, in the order of questions and columns.

    Where the two are measured in different units of performance, only interference can be compared.
    """
    alike = first.units.performance == second.units.performance
    found = []
    for question in Question:
        one, two = first.cells.of(question), second.cells.of(question)
        for column in sorted({*one, *two}):
            a, b = one.get(column), two.get(column)
            comparable = alike or not isinstance(a or b, PerformanceCell)
            found.append(_difference(question, column, a, b, comparable=comparable))
    return tuple(found)


def _difference(question: Question, column: str, a: Cell | None, b: Cell | None, *, comparable: bool) -> Difference:
    change, beyond = None, False
    if a is not None and b is not None and comparable:
        change = b.value - a.value if isinstance(a, PressureCell) else 100.0 * math.expm1(math.log(b.value / a.value))
        beyond = a.high < b.low or b.high < a.low
    return Difference(question=question, column=column, first=a, second=b, change=change, beyond_limits=beyond)
