"""What is measured of one reference program: performance at several sizes, and interference tolerated and caused.

It measures a program that is ready to run, on any machine, with what an agent has; ``bootstrap`` prepares programs and
makes profiles of what was found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hcloud.core.errors import NotFound, Unmeasurable
from hcloud.core.estimates import Findings, Reading
from hcloud.core.model import ProfileRequest
from hcloud.profiler.host import ProfilingHost
from hcloud.profiler.measure import Bench, Rate, Subject
from hcloud.profiler.sources import InterferenceSource, source_named

BESIDE_VCPUS = 1.0
"""Size at which interference is measured: one core, as sources use one."""
LOOK_SHARE, RATE_SHARE = 0.035, 0.03
"""Shares of a program's time for the first run, and for performance at one size."""
THROTTLED_RATE_SHARE = 0.05
"""Share of time for amounts that are not whole CPUs, which need longer windows."""
CROSS_CORE_WEIGHT = 3.0
"""Time for a source that reaches other cores, in multiples of that for others: these decide which jobs share machines,
and their effects are smaller."""
SPARE_S = 30.0
STARTS_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What to measure of every program."""

    provider: str
    types: Mapping[str, float]
    """vCPUs by instance type; all fit this machine."""
    steps: tuple[float, ...]
    """vCPUs; all fit this machine."""
    sources: tuple[InterferenceSource, ...]
    seconds: float
    """Approximate time per program for one answer to each question."""
    most_s: float = 0.0
    """Longest time per program: until then the widest answers about sources felt across cores are asked for again."""

    @property
    def beside_vcpus(self) -> float:
        """Size at which interference is measured, limited by the size of the machine."""
        return min(BESIDE_VCPUS, max(self.types.values(), default=BESIDE_VCPUS))

    @property
    def questions(self) -> int:
        """Number of answers per program: sizes, tolerated and caused."""
        return len(self.sizes) + 2 * len(self.sources)

    @property
    def sizes(self) -> tuple[float, ...]:
        """All sizes in vCPUs, largest first; that of the interference measurements last, as its copy keeps running."""
        wanted = {*self.steps, *self.types.values()} | ({self.beside_vcpus} if self.sources else set())
        return tuple(sorted(wanted, key=lambda vcpus: (vcpus == self.beside_vcpus, -vcpus)))

    def rate_s(self, vcpus: float) -> float:
        """Return the seconds for measuring performance at one size."""
        return self.seconds * (RATE_SHARE if vcpus == round(vcpus) else THROTTLED_RATE_SHARE)

    @property
    def sources_s(self) -> float:
        """Seconds for all questions about sources together."""
        rates_s = sum(map(self.rate_s, self.sizes))
        return max(0.1, self.seconds - self.seconds * LOOK_SHARE - rates_s - STARTS_S)


class Answers(Protocol):
    """The part of a bench that this module uses."""

    notes: list[str]

    @property
    def spent_s(self) -> float:
        """Seconds since the bench was prepared."""

    def look(self, vcpus: float) -> object:
        """Run the program for the first time."""

    def rate(self, vcpus: float, *, within_s: float) -> Rate:
        """Return performance at a size."""

    def tolerated(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        """Return the intensity at which 5 % is lost."""

    def caused(self, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        """Return the intensity that exerts the same pressure as the program."""

    def note(self, sentence: str) -> None:
        """Record a sentence once."""


def measure_reference(
    request: ProfileRequest,
    subject: Subject,
    host: ProfilingHost,
    *,
    report: Callable[[Findings], None] = lambda _: None,
    bench_for: Callable[..., AbstractContextManager[Answers]] = Bench,
) -> Findings:
    """Measure on an instance what ``bootstrap.measure_recipe`` measures on the operator's machine.

    ``report`` receives interim findings before each question. The largest size is taken for the whole machine. Never
    raises for failures of the subject or the machine: the findings contain the available readings, and notes in whole
    sentences.
    """
    plan, unknown = _plan_of(request)
    began, rates, readings, missed = time.monotonic(), dict[float, Rate](), list[Reading](), list(unknown)
    with bench_for(subject, host, run_s=plan.seconds * LOOK_SHARE, deadline_s=request.total_s) as bench:
        # Reported repeatedly, so that an interrupted run keeps its readings.
        def so_far() -> Findings:
            whole = rates.get(max(request.steps_vcpus))
            return Findings(
                measure=whole.measure if whole is not None else None,
                readings=tuple(readings),
                use=whole.use if whole is not None else (),
                duration_s=time.monotonic() - began,
                notes=(*bench.notes, *missed),
            )

        try:
            rates |= measured_rates(bench, plan, lambda _: report(so_far()))
            readings += performance_readings(plan, rates)
            for reading in interference_readings(bench, plan, lambda _: report(so_far())):
                readings.append(reading)
        except Unmeasurable as error:
            missed.append(str(error))
        except OSError as error:
            missed.append(f"this machine failed: {error}")
        return so_far()


def _plan_of(request: ProfileRequest) -> tuple[MeasurementPlan, list[str]]:
    """Return the plan a reference job requests, and sentences about unknown sources."""
    sources, unknown = list[InterferenceSource](), list[str]()
    for name in request.sources:
        try:
            sources.append(source_named(name))
        except NotFound as error:
            unknown.append(str(error))
    provider, _, kind = request.type_column.partition("/")
    plan = MeasurementPlan(
        provider=provider,
        types={kind: max(request.steps_vcpus)},
        steps=request.steps_vcpus,
        sources=tuple(sources),
        seconds=(request.total_s - SPARE_S) / 3,
    )
    return plan, unknown


def measured_rates(bench: Answers, plan: MeasurementPlan, advance: Callable[[str], None]) -> dict[float, Rate]:
    """Measure performance at every size; return it by vCPUs."""
    found = {}
    for vcpus in plan.sizes:
        advance(f"{vcpus:g} vCPU")
        bench.look(vcpus)
        found[vcpus] = bench.rate(vcpus, within_s=plan.rate_s(vcpus))
    return found


def performance_readings(plan: MeasurementPlan, rates: Mapping[float, Rate], total: float = 1.0) -> list[Reading]:
    """Return the cells of types and steps. A slice is an amount of this machine, so one measurement serves both."""
    columns = [("type", f"{plan.provider}/{kind}", vcpus) for kind, vcpus in plan.types.items()]
    columns += [("step", f"{vcpus:g} vCPU", vcpus) for vcpus in plan.steps]
    return [
        Reading(
            question=question,
            column=column,
            value=rates[vcpus].value * total,
            low=rates[vcpus].low * total,
            high=rates[vcpus].high * total,
            runs=rates[vcpus].runs,
        )
        for question, column, vcpus in columns
    ]


def interference_readings(bench: Answers, plan: MeasurementPlan, advance: Callable[[str], None]) -> Iterator[Reading]:
    """Measure every source both ways and yield the readings; failures are noted and left out.

    Time that a question does not need is left to those after it.
    """
    asked = [(word, source) for word in ("tolerated", "caused") for source in plan.sources]
    weights = [CROSS_CORE_WEIGHT if source.cross_core else 1.0 for _, source in asked]
    ends_s = bench.spent_s + plan.sources_s
    for number, (word, source) in enumerate(asked):
        advance(f"{word} {source.name}")
        within_s = max(0.1, ends_s - bench.spent_s) * weights[number] / sum(weights[number:])
        ask = bench.tolerated if word == "tolerated" else bench.caused
        try:
            yield within_scale(ask(source, plan.beside_vcpus, within_s=within_s))
        except Unmeasurable as error:
            bench.note(f"{word} {source.name} was not measured: {error}")


def within_scale(reading: Reading) -> Reading:
    """Return a pressure with value and limits within 0..100."""
    low, value, high = (min(100.0, max(0.0, each)) for each in (reading.low, reading.value, reading.high))
    return Reading(question=reading.question, column=reading.column, value=value, low=low, high=high, runs=reading.runs)
