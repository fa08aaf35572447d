"""Profiles of reference programs: the checked content of a library file, and the differences between two of them.

A profile holds the cells of the classifier's questions with 95 % limits, and their provenance. One program may have
several files, measured on machines of different providers; their cells are merged.
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

from hcloud.classifier.library import Library, MeasuredApplication, Question, half_width, use_per_vcpu
from hcloud.classifier.step_curve import LIBRARY_VCPUS, conversion
from hcloud.core.estimates import SOURCES, Measure, Reading
from hcloud.core.units import NonEmptyText, Number, PositiveCount, Text, shown
from hcloud.spec.validation import AtKey, KeyPath, key_path, nearest, parse

_STRICT = ConfigDict(extra="forbid")
USE_UNITS = ("vCPUs busy", "MiB of memory", "MiB/s read", "MiB/s written")
LOCAL_TYPES: Mapping[str, float] = {"local.small": 0.5, "local.medium": 1.0, "local.large": 2.0,
                                    "local.xlarge": 4.0, "local.2xlarge": 8.0}  # fmt: skip
"""Default slices of the local provider, and their vCPUs."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$"


def _spelled(pattern: str, wanted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{shown(text)} is not a valid column; {wanted}")
        return text

    return check


def _check_source(text: str) -> str:
    if text not in SOURCES:
        raise ValueError(f"{shown(text)} is not a source of interference; {nearest(text, SOURCES)}")
    return text


def _check_per_second(text: str) -> str:
    if not text.endswith("/s"):
        raise ValueError(f"must be an amount per second such as MiB/s, not {shown(text)}: more must be better")
    return text


def _check_use(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) != len(USE_UNITS) or min(values, default=0.0) < 0:
        raise ValueError(f"must be {len(USE_UNITS)} numbers, 0 or more ({', '.join(USE_UNITS)})")
    return values


Name = Annotated[str, Field(pattern=NAME)]
TypeColumn = Annotated[str, AfterValidator(_spelled(r"[a-z0-9-]+/[\w.-]+", "write provider/type, as aws/m5.large"))]
StepColumn = Annotated[str, AfterValidator(_spelled(r"(0\.[0-9]*[1-9]|[1-9][0-9]*(\.[0-9]*[1-9])?) vCPU", "write an "
                                                    "amount of one machine, as 0.5 vCPU"))]  # fmt: skip
NodesColumn = Annotated[str, AfterValidator(_spelled(r"[1-9][0-9]{0,5}", 'write a number of nodes in quotes, as "2"'))]
SourceColumn = Annotated[str, AfterValidator(_check_source)]
Use = Annotated[tuple[Number, ...], AfterValidator(_check_use)]
VcpuCount = Annotated[Number, Field(gt=0, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PerformanceCell:
    """A measured amount per second, more is better."""

    value: Annotated[Number, Field(gt=0, le=1e15)]
    """Measured value."""
    low: Number
    """Lower 95 % limit."""
    high: Number
    """Upper 95 % limit."""
    runs: PositiveCount = 1
    """Number of repeats."""

    def __post_init__(self) -> None:
        """Raise AtKey if the value is outside its limits."""
        _check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PressureCell:
    """A measured intensity of a source of interference, in percent."""

    value: Annotated[Number, Field(ge=0, le=100)]
    """Measured value."""
    low: Annotated[Number, Field(ge=0, le=100)]
    """Lower 95 % limit."""
    high: Annotated[Number, Field(ge=0, le=100)]
    """Upper 95 % limit."""
    runs: PositiveCount = 1
    """Number of repeats."""

    def __post_init__(self) -> None:
        """Raise AtKey if the value is outside its limits."""
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
    """Intensity of each source at which performance falls by 5 %; 100 means never."""
    caused: Mapping[SourceColumn, PressureCell] = field(default_factory=dict)
    """Intensity of each source that exerts the same pressure as the program."""

    def of(self, question: Question) -> Mapping[str, Cell]:
        """Return one question's cells by column."""
        found: Mapping[str, Cell] = getattr(self, question.value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProfileUnits:
    """Units of the numbers. Other units are rejected, because later code would not detect them."""

    performance: Annotated[NonEmptyText, AfterValidator(_check_per_second)]
    """Unit of type, step and nodes."""
    interference: Literal["percent"] = "percent"
    """Unit of tolerated and caused."""
    use: tuple[Text, ...] = USE_UNITS
    """Unit of each number of resource use."""

    def __post_init__(self) -> None:
        """Raise AtKey if resource use has units, or an order, other than ``USE_UNITS``."""
        if self.use != USE_UNITS:
            raise AtKey("use", f"must be {', '.join(USE_UNITS)}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Provenance:
    """Where, when and with which software a profile was measured."""

    measured_at: NonEmptyText
    """UTC date and time."""
    provider: NonEmptyText
    """Provider of the machine."""
    cpu: NonEmptyText
    """Processor of the machine."""
    cores: PositiveCount
    """Number of CPUs the measurement could use."""
    kernel: NonEmptyText
    """Kernel of the machine."""
    hcloud: NonEmptyText
    """Version of HCloud."""
    stress_ng: NonEmptyText
    """Version of stress-ng, which generates the interference."""
    packages: Mapping[NonEmptyText, NonEmptyText]
    """Versions of the measured program."""
    load_average: Annotated[Number, Field(ge=0)]
    """Load average of the machine at the start. In a bootstrap it still includes the previous program (about two
    processes); higher values mean other work was running and the numbers are rough."""
    took_s: Annotated[Number, Field(ge=0)]
    """Duration in seconds."""
    command: NonEmptyText
    """Command that was run."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class FitProvenance:
    """Where the numbers of a profile come from that HCloud did not measure."""

    source: NonEmptyText
    """The measurements it was fitted to, and their version."""
    licence: NonEmptyText
    """What their licence permits."""
    columns: NonEmptyText
    """Which of their columns were used."""
    method: NonEmptyText
    """How they became the cells and their limits."""
    provider: NonEmptyText
    """Provider of the machines they were measured on."""
    fitted_at: NonEmptyText
    """UTC date."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ReferenceProfile:
    """One reference program as measured on one kind of machine, or a typical one fitted to measurements of others."""

    profile: Name
    """Name of the profile."""
    format: Literal[1]
    """Version of the file format."""
    group: NonEmptyText
    """Kind of program."""
    program: NonEmptyText
    """Shared by several profiles of one program; they are never used to evaluate each other."""
    measure: Measure
    """Measure of performance."""
    units: ProfileUnits
    """Units of the numbers below."""
    cells: Cells
    """Measured cells, by question and column."""
    provenance: Provenance | None = None
    """Where and how it was measured; None if it was fitted."""
    fitted: FitProvenance | None = None
    """What it was fitted to; None if it was measured."""
    use: Mapping[TypeColumn, Use] = field(default_factory=dict)
    """Resource use of an isolated run on each type."""
    type_vcpus: Mapping[TypeColumn, VcpuCount] = field(default_factory=dict)
    """vCPUs with which the program ran on each type; where not stated, all of that type."""
    notes: tuple[Text, ...] = ()
    """Limits of the measurement, in sentences."""

    def __post_init__(self) -> None:
        """Raise AtKey if there is no cell."""
        if not any(self.cells.of(question) for question in Question):
            raise AtKey("cells", "must contain at least one measurement")
        if (self.provenance is None) == (self.fitted is None):
            raise AtKey("provenance", "must say where it was measured, or `fitted` what it was fitted to; not both")
        unstated = [column for column in self.cells.type if self.fitted is not None and column not in self.type_vcpus]
        if unstated:
            raise AtKey("type_vcpus", f"must state the vCPUs of every type of a fitted profile; {unstated[0]} has none")

    def measured(self, steps: Mapping[str, float] | None = None) -> MeasuredApplication:
        """Return the profile as the classifier's input; performance by type refers to ``LIBRARY_VCPUS`` everywhere.

        A type measured with other amounts is converted by the profile's step curve, else by ``steps`` (rates of the
        same program by step), and left out without either.
        """
        cells = {q: {column: cell.value for column, cell in self.cells.of(q).items()} for q in Question}
        spreads = {q: {c: half_width(q, x.value, x.low, x.high) for c, x in self.cells.of(q).items()} for q in Question}
        steps, types, doubts = cells[Question.STEP] or steps or {}, dict[str, float](), dict[str, float]()
        for column, rate in cells[Question.TYPE].items():
            vcpus, doubt = self.vcpus_on(column), spreads[Question.TYPE][column]
            factor = conversion(steps, vcpus, LIBRARY_VCPUS)
            if factor is not None:
                types[column] = rate * factor
                doubts[column] = doubt if factor == 1.0 else max([doubt, *spreads[Question.STEP].values()])
        cells[Question.TYPE], spreads[Question.TYPE] = types, doubts
        return MeasuredApplication(
            name=self.profile,
            program=self.program,
            cells={question: row for question, row in cells.items() if row},
            spreads={question: row for question, row in spreads.items() if row},
            use={column: use_per_vcpu(use, self.vcpus_on(column)) for column, use in self.use.items()},
        )

    def vcpus_on(self, type_column: str) -> float:
        """Return the vCPUs with which the program ran on a type."""
        stated = self.type_vcpus.get(type_column) or LOCAL_TYPES.get(type_column.removeprefix("local/"))
        return stated or float(self.provenance.cores if self.provenance is not None else LIBRARY_VCPUS)

    @property
    def provider(self) -> str:
        """The provider of the machines it is about."""
        about = self.provenance or self.fitted
        return about.provider if about is not None else ""

    @property
    def made_at(self) -> str:
        """When it was measured or fitted, UTC."""
        if self.provenance is not None:
            return self.provenance.measured_at
        return self.fitted.fitted_at if self.fitted is not None else ""

    @property
    def origin(self) -> tuple[str, ...]:
        """Where its numbers come from, in lines."""
        if self.fitted is not None:
            return (f"fitted {self.fitted.fitted_at} to {self.fitted.source} ({self.fitted.columns}), not measured",
                    f"method: {self.fitted.method}", f"licence: {self.fitted.licence}")  # fmt: skip
        about = self.provenance
        if about is None:
            return ()
        packages = ", ".join(f"{name} {version}" for name, version in about.packages.items())
        return (
            f"measured {about.measured_at} on {about.provider}: {about.cpu}, {about.cores} CPUs, Linux {about.kernel}, "
            f"load {about.load_average:g}",
            f"with {packages}, stress-ng {about.stress_ng}, HCloud {about.hcloud}, in {about.took_s:g} s",
        )


def parse_profile(mapping: object, locate: Callable[[KeyPath], str] = key_path) -> ReferenceProfile:
    """Return the validated profile of a document. Raises ConfigError, naming file, line and key."""
    return parse(ReferenceProfile, mapping, locate)


def cells_of_readings(readings: Iterable[Reading]) -> Cells:
    """Return readings as cells. Raises BadInput for an invalid value."""
    found: dict[str, dict[str, object]] = {}
    for each in readings:
        cell = {"value": each.value, "low": each.low, "high": each.high, "runs": each.runs}
        found.setdefault(each.question, {})[each.column] = {name: _rounded(number) for name, number in cell.items()}
    return parse(Cells, found)


def _rounded(number: object) -> object:
    return float(f"{number:.5g}") if isinstance(number, float) else number


def document(profile: ReferenceProfile) -> dict[str, Any]:
    """Return a profile as plain values, as written to its file."""
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
        **_origin_document(profile),
        "cells": {
            question.value: {column: _fields(cell) for column, cell in profile.cells.of(question).items()}
            for question in Question
            if profile.cells.of(question)
        },
        "use": {column: list(use) for column, use in profile.use.items()},
        "type_vcpus": dict(profile.type_vcpus),
        "notes": list(profile.notes),
    }


def _origin_document(profile: ReferenceProfile) -> dict[str, Any]:
    if profile.fitted is not None:
        return {"fitted": _fields(profile.fitted)}
    about = profile.provenance
    return {"provenance": _fields(about) | {"packages": dict(about.packages)}} if about is not None else {}


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


# ---------------------------------------------------------------------------------------------------------- libraries
def library_of(profiles: Iterable[ReferenceProfile]) -> Library:
    """Return a library of these profiles; cells of one name are merged, later ones replacing earlier ones."""
    known: dict[str, MeasuredApplication] = {}
    profiles = list(profiles)
    steps = {
        each.profile: {c: cell.value for c, cell in each.cells.step.items()} for each in profiles if each.cells.step
    }
    for profile in profiles:
        new, old = profile.measured(steps.get(profile.profile)), known.get(profile.profile)
        known[profile.profile] = new if old is None else _together(old, new)
    return Library(known=known)


def _together(old: MeasuredApplication, new: MeasuredApplication) -> MeasuredApplication:
    questions = {**old.cells, **new.cells}
    earlier = {**old.cells, Question.STEP: _on_machine_of(old.cells.get(Question.STEP, {}), new.cells)}
    return MeasuredApplication(
        name=new.name,
        program=new.program,
        cells={question: {**earlier.get(question, {}), **new.cells.get(question, {})} for question in questions},
        spreads={
            question: {**old.spreads.get(question, {}), **new.spreads.get(question, {})} for question in questions
        },
        use={**old.use, **new.use},
    )


def _on_machine_of(steps: Mapping[str, float], new: Mapping[Question, Mapping[str, float]]) -> Mapping[str, float]:
    """Return a step curve scaled to another machine's at the amounts both have, so that one row is of one machine."""
    others = new.get(Question.STEP, {})
    ratios = [math.log(others[column] / rate) for column, rate in steps.items() if column in others]
    factor = math.exp(math.fsum(ratios) / len(ratios)) if ratios else 1.0
    return {column: rate * factor for column, rate in steps.items() if ratios or not others}


# -------------------------------------------------------------------------------------------------------- differences
@plain(frozen=True, slots=True, kw_only=True)
class Difference:
    """One cell in two profiles."""

    question: Question
    column: str
    first: Cell | None
    """None if only the second profile has the cell."""
    second: Cell | None
    """None if only the first profile has the cell."""
    change: float | None
    """Percent (performance) or points (interference); None if not comparable."""
    beyond_limits: bool
    """Whether the two 95 % intervals do not overlap."""


def differences(first: ReferenceProfile, second: ReferenceProfile) -> tuple[Difference, ...]:
    """Compare two profiles cell by cell, in the order of questions and columns.

    If their units of performance differ, only interference is compared.
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
