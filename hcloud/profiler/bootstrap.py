"""Measure reference programs on this machine, one file each: the dense rows from which classification starts.

Every program runs on throw-away views of its prepared work directory, at several sizes. At one vCPU it then runs with
every source of interference (tolerated) and with each source's probe (caused).
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hcloud import __version__
from hcloud.classifier.profiles import LOCAL_TYPES, ProfileUnits, Provenance, ReferenceProfile, cells_of_readings
from hcloud.core.errors import NotFound, Unmeasurable
from hcloud.core.estimates import SOURCES as COLUMNS
from hcloud.core.estimates import Findings, Measure, Reading
from hcloud.core.model import ProfileRequest, ProgressHook
from hcloud.core.units import utc_text
from hcloud.profiler import loop
from hcloud.profiler.host import ProfilingHost
from hcloud.profiler.measure import Bench, Rate, Subject
from hcloud.profiler.recipes import Recipe, package_versions, prepared
from hcloud.profiler.sources import SOURCES, InterferenceSource, source_named, stress_ng

STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)
BESIDE_VCPUS = 1.0
"""Size at which interference is measured: one core, as sources use one."""
TOTAL = 1e9
"""Progress total large enough that the loop never finishes."""
LOOK_SHARE, RATE_SHARE = 0.035, 0.03
THROTTLED_RATE_SHARE = 0.05
"""Share of time for amounts that are not whole CPUs, which need longer windows."""
CROSS_CORE_WEIGHT = 3.0
"""Time for a source that reaches other cores, in multiples of that for others: these decide which jobs share machines,
and their effects are smaller."""
SPARE_S = 30.0
STARTS_S = 3.0
AGAIN_S = 15.0
"""Time for one question asked again."""
WIDTH_MAX = 25.0
"""Wanted median width of 95 % limits (points) over the sources that are felt across cores."""


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


def plan_for(
    provider: str,
    whole_type: str | None,
    seconds: float,
    sources: Iterable[str] = COLUMNS,
    cpus: int | None = None,
    *,
    most_s: float = 0.0,
) -> MeasurementPlan:
    """Return what can be measured on this machine of ``cpus`` (default: the CPUs this process may use).

    ``seconds``, ``most_s``: time per program. ``whole_type``: the instance type of the whole machine; None: slices, as
    the local provider offers them.
    """
    most = float(cpus if cpus is not None else len(os.sched_getaffinity(0)))
    types = LOCAL_TYPES if whole_type is None else {whole_type: most}
    return MeasurementPlan(
        provider=provider,
        types={name: vcpus for name, vcpus in types.items() if vcpus <= most},
        steps=tuple(step for step in STEPS if step <= most),
        sources=tuple(source_named(name) for name in sources),
        seconds=seconds,
        most_s=most_s,
    )


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


def measure_recipe(
    name: str,
    recipe: Recipe,
    plan: MeasurementPlan,
    host: ProfilingHost,
    *,
    now: float,
    advance: Callable[[str], None] = lambda _: None,
    bench_for: Callable[..., AbstractContextManager[Answers]] = Bench,
) -> ReferenceProfile:
    """Prepare and measure one program; ``advance`` receives the name of each question as it begins.

    Raises Unmeasurable if it could not be run or gives no usable readings, UnitRefused if its files cannot be created
    or packages are missing.
    """
    load, began = os.getloadavg()[0], time.monotonic()
    stress_ng()
    look_s, deadline_s = plan.seconds * LOOK_SHARE, max(3 * plan.seconds, plan.most_s) + SPARE_S
    with (
        prepared(recipe) as folder,
        bench_for(subject(name, recipe, folder), host, run_s=look_s, deadline_s=deadline_s) as bench,
    ):
        rates = _rates(bench, plan, advance)
        for vcpus, rate in rates.items():
            if rate.measure is not Measure.PROGRESS:
                raise Unmeasurable(f"its loop reported too little progress at {vcpus:g} vCPU")
        interference = _narrowed(bench, plan, list(_interference(bench, plan, advance)), advance)
        readings = [*_performance(plan, rates, TOTAL), *interference]
        notes = tuple(bench.notes)
    return ReferenceProfile(
        profile=name,
        format=1,
        group=recipe.group,
        program=recipe.program or name,
        measure=Measure.PROGRESS,
        units=ProfileUnits(performance=f"{recipe.unit}/s"),
        provenance=_provenance(recipe, plan, load=load, now=now, took_s=time.monotonic() - began),
        cells=cells_of_readings(readings),
        use={
            f"{plan.provider}/{kind}": tuple(float(f"{each:.4g}") for each in rates[vcpus].use)
            for kind, vcpus in plan.types.items()
            if vcpus in rates and rates[vcpus].use
        },
        type_vcpus={f"{plan.provider}/{kind}": vcpus for kind, vcpus in plan.types.items()},
        notes=notes,
    )


def measure_reference(
    request: ProfileRequest,
    subject: Subject,
    host: ProfilingHost,
    *,
    report: Callable[[Findings], None] = lambda _: None,
    bench_for: Callable[..., AbstractContextManager[Answers]] = Bench,
) -> Findings:
    """Measure on an instance what ``measure_recipe`` measures here.

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
            rates |= _rates(bench, plan, lambda _: report(so_far()))
            readings += _performance(plan, rates)
            for reading in _interference(bench, plan, lambda _: report(so_far())):
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


def subject(name: str, recipe: Recipe, folder: Path) -> Subject:
    """Return a recipe as the profiler's subject, with its work directory prepared."""
    return Subject(
        name=name,
        command=recipe.loop_command,
        workdir=folder,
        progress=ProgressHook(file=loop.PROGRESS, total=TOTAL),
        memory_mib=round(recipe.memory_mib),
    )


def _rates(bench: Answers, plan: MeasurementPlan, advance: Callable[[str], None]) -> dict[float, Rate]:
    """Measure performance at every size."""
    found = {}
    for vcpus in plan.sizes:
        advance(f"{vcpus:g} vCPU")
        bench.look(vcpus)
        found[vcpus] = bench.rate(vcpus, within_s=plan.rate_s(vcpus))
    return found


def _performance(plan: MeasurementPlan, rates: Mapping[float, Rate], total: float = 1.0) -> list[Reading]:
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


def _interference(bench: Answers, plan: MeasurementPlan, advance: Callable[[str], None]) -> Iterator[Reading]:
    """Measure every source both ways; failures are noted and left out.

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
            yield _within_scale(ask(source, plan.beside_vcpus, within_s=within_s))
        except Unmeasurable as error:
            bench.note(f"{word} {source.name} was not measured: {error}")


def _narrowed(
    bench: Answers, plan: MeasurementPlan, readings: list[Reading], advance: Callable[[str], None]
) -> list[Reading]:
    """Ask again what is widest across cores, until the median width is ``WIDTH_MAX`` points or ``most_s`` is over."""
    found, asked = {(each.question, each.column): each for each in readings}, Counter[tuple[str, str]]()
    across = {
        (word, source.name): source
        for word in ("tolerated", "caused")
        for source in plan.sources
        if source.cross_core and (word, source.name) in found
    }
    while across and bench.spent_s < plan.most_s:
        widths = {question: found[question].high - found[question].low for question in across}
        if _median(list(widths.values())) <= WIDTH_MAX:
            break
        question = max(across, key=lambda each: widths[each] / (1 + asked[each]))
        word, name = question
        asked[question] += 1
        advance(f"{word} {name} again")
        ask = bench.tolerated if word == "tolerated" else bench.caused
        try:
            found[question] = _within_scale(ask(across[question], plan.beside_vcpus, within_s=AGAIN_S))
        except Unmeasurable as error:
            bench.note(f"{word} {name} was not measured again: {error}")
            del across[question]
    return list(found.values())


def _within_scale(reading: Reading) -> Reading:
    low, value, high = (min(100.0, max(0.0, each)) for each in (reading.low, reading.value, reading.high))
    return Reading(question=reading.question, column=reading.column, value=value, low=low, high=high, runs=reading.runs)


# --------------------------------------------------------------------------------------------------------- provenance
def _provenance(recipe: Recipe, plan: MeasurementPlan, *, load: float, now: float, took_s: float) -> Provenance:
    return Provenance(
        measured_at=utc_text(now),
        provider=plan.provider,
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        hcloud=__version__,
        stress_ng=_stress_ng_version(),
        packages=dict(package_versions(recipe.packages)),
        load_average=round(load, 2),
        took_s=round(took_s, 1),
        command=" ".join(recipe.command) or recipe.loop,
    )


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.machine()


def _stress_ng_version() -> str:
    output = subprocess.run([stress_ng(), "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\S+?),? ", output)
    return version[1] if version else "unknown"


_ACROSS_CORES = frozenset(source.name for source in SOURCES if source.cross_core)


def confidence(profile: ReferenceProfile) -> Mapping[str, float]:
    """Return the median half width of the 95 % limits, by performance (%) and pressure (points).

    Questions without a cell are omitted.
    """
    performance = [*profile.cells.step.values(), *profile.cells.type.values()]
    halves = {
        "performance_percent": [50 * (cell.high - cell.low) / cell.value for cell in performance],
        "tolerated_points": [(cell.high - cell.low) / 2 for cell in profile.cells.tolerated.values()],
        "caused_points": [(cell.high - cell.low) / 2 for cell in profile.cells.caused.values()],
        "across_cores_points": [
            (cell.high - cell.low) / 2
            for cells in (profile.cells.tolerated, profile.cells.caused)
            for name, cell in cells.items()
            if name in _ACROSS_CORES
        ],
    }
    return {name: _median(values) for name, values in halves.items() if values}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
