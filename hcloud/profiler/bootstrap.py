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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from hcloud import __version__
from hcloud.classifier.profiles import LOCAL_TYPES, ProfileUnits, Provenance, ReferenceProfile, cells_of_readings
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import SOURCES as COLUMNS
from hcloud.core.estimates import Measure, Reading
from hcloud.core.model import ProgressHook
from hcloud.core.units import utc_text
from hcloud.profiler import loop
from hcloud.profiler.host import ProfilingHost
from hcloud.profiler.measure import Bench, Subject
from hcloud.profiler.recipes import Recipe, package_versions, prepared
from hcloud.profiler.reference_runs import (
    LOOK_SHARE,
    SPARE_S,
    Answers,
    MeasurementPlan,
    interference_readings,
    measured_rates,
    performance_readings,
    within_scale,
)
from hcloud.profiler.sources import SOURCES, source_named, stress_ng

STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)
TOTAL = 1e9
"""Progress total large enough that the loop never finishes."""
AGAIN_S = 15.0
"""Time for one question asked again."""
WIDTH_MAX = 25.0
"""Wanted median width of 95 % limits (points) over the sources that are felt across cores."""


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
        rates = measured_rates(bench, plan, advance)
        for vcpus, rate in rates.items():
            if rate.measure is not Measure.PROGRESS:
                raise Unmeasurable(f"its loop reported too little progress at {vcpus:g} vCPU")
        interference = _narrowed(bench, plan, list(interference_readings(bench, plan, advance)), advance)
        readings = [*performance_readings(plan, rates, TOTAL), *interference]
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


def subject(name: str, recipe: Recipe, folder: Path) -> Subject:
    """Return a recipe as the profiler's subject, with its work directory prepared."""
    return Subject(
        name=name,
        command=recipe.loop_command,
        workdir=folder,
        progress=ProgressHook(file=loop.PROGRESS, total=TOTAL),
        memory_mib=round(recipe.memory_mib),
    )


def _narrowed(
    bench: Answers, plan: MeasurementPlan, readings: list[Reading], advance: Callable[[str], None]
) -> list[Reading]:
    """Ask again what is widest across cores, until the median width is ``WIDTH_MAX`` points or ``most_s`` is over.

    Answers without any width are not counted: a program without a network, or that writes nothing, is sure of its
    zeros from the first, and would hide that the other half is not.
    """
    found, asked = {(each.question, each.column): each for each in readings}, Counter[tuple[str, str]]()
    across = {
        (word, source.name): source
        for word in ("tolerated", "caused")
        for source in plan.sources
        if source.cross_core and (word, source.name) in found
    }
    while across and bench.spent_s < plan.most_s:
        widths = {question: found[question].high - found[question].low for question in across}
        unsure = [width for width in widths.values() if width > 0.0]
        if not unsure or _median(unsure) <= WIDTH_MAX:
            break
        question = max(across, key=lambda each: widths[each] / (1 + asked[each]))
        word, name = question
        asked[question] += 1
        advance(f"{word} {name} again")
        ask = bench.tolerated if word == "tolerated" else bench.caused
        try:
            found[question] = within_scale(ask(across[question], plan.beside_vcpus, within_s=AGAIN_S))
        except Unmeasurable as error:
            bench.note(f"{word} {name} was not measured again: {error}")
            del across[question]
    return list(found.values())


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

    Questions without a cell are omitted; cells across cores whose limits have no width are not counted.
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
            if name in _ACROSS_CORES and cell.high > cell.low
        ],
    }
    return {name: _median(values) for name, values in halves.items() if values}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
