"""Reference programs measured on other instances: the jobs that do so, and the profile built from their results."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hcloud import __version__
from hcloud.classifier.profiles import ProfileUnits, Provenance, ReferenceProfile, cells_of_readings
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import SOURCES, Measure, Reading
from hcloud.core.units import utc_text
from hcloud.profiler import loop
from hcloud.profiler.bootstrap import STEPS, TOTAL
from hcloud.profiler.recipes import Recipe

FACT = "hcloud-fact"
"""Prefix of output lines in which a job reports facts about its machine."""
_PERFORMANCE = ("type", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one job is to measure, or has measured, of a program on one instance type."""

    provider: str
    instance_type: str
    vcpus: float
    """vCPUs of the instance type."""
    whole: bool
    """Whether every size and source is measured; otherwise only the performance of the whole machine."""
    measure: str | None = None
    readings: tuple[Reading, ...] = ()
    """Performance in fractions of ``TOTAL`` per second."""
    use: tuple[float, ...] = ()
    facts: Mapping[str, str] | None = None
    """Facts about its machine."""
    notes: tuple[str, ...] = ()
    """What was not measured, and why."""
    measured_at: float = 0.0
    took_s: float = 0.0

    @property
    def column(self) -> str:
        """The instance type's column in the utility matrix."""
        return f"{self.provider}/{self.instance_type}"

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes in vCPUs, largest first."""
        steps = [step for step in STEPS if step < self.vcpus] if self.whole else []
        return (self.vcpus, *reversed(steps))


def job_of(name: str, recipe: Recipe, part: Part, seconds: float) -> dict[str, Any]:
    """Return the job that measures one part, in the form of a job file, without work directory and tags."""
    letters = "".join(each if each.isalnum() or each in "._-" else "-" for each in f"{name}.{part.instance_type}")
    return {
        "name": letters[:63],
        "command": list(recipe.loop_command),
        "target": "batch",
        "resources": {"vcpus": part.vcpus, "memory": f"{round(recipe.memory_mib)}MiB"},
        "setup": setup_script(recipe),
        "progress": {"file": loop.PROGRESS, "total": TOTAL},
        "measure": {
            "on": part.column,
            "sizes": list(part.sizes),
            "sources": list(SOURCES) if part.whole else [],
            "seconds": seconds,
        },
    }


def setup_script(recipe: Recipe) -> str:
    """Return the script that prepares a machine: install packages if permitted, report facts, prepare inputs."""
    packages = " ".join(map(shlex.quote, sorted({*recipe.packages, "stress-ng"})))
    lines = [
        "set -e",
        'missing=""',
        # The sandbox of a unit hides the package database, but each package has a directory here.
        'has() { dpkg-query -s "$1" 2>&1 | grep -q "ok installed" || [ -d "/usr/share/doc/$1" ]; }',
        f'for each in {packages}; do has "$each" || missing="$missing $each"; done',
        'lacking() { echo "not installed on this machine:$missing; add them to its image" >&2; return 3; }',
        'install() { [ "$(id -u)" = 0 ] && DEBIAN_FRONTEND=noninteractive apt-get install -qy $missing >/dev/null; }',
        '[ -z "$missing" ] || install || lacking',
        f'fact() {{ printf "{FACT} %s %s\\n" "$1" "$2"; }}',
        'fact cpu "$(sed -n "s/^model name[^:]*: *//p" /proc/cpuinfo | head -n 1)"',
        'fact cores "$(nproc)"',
        'fact kernel "$(uname -r)"',
        'fact load "$(cut -d " " -f 1 /proc/loadavg)"',
        'fact stress-ng "$(stress-ng --version | sed -n "s/.*version \\([^ ,]*\\).*/\\1/p")"',
        'version() { dpkg-query -W -f "\\${Version}" "$1" 2>/dev/null || read_version "/usr/share/doc/$1"; }',
        'read_version() { zcat "$1/changelog.Debian.gz" 2>/dev/null | sed -n "1s/.*(\\([^)]*\\)).*/\\1/p"; }',
        f'for each in {packages}; do fact "package:$each" "$(version "$each")"; done',
        *recipe.prepare,
    ]
    return "\n".join(lines) + "\n"


def facts_of(output: str) -> dict[str, str]:
    """Return the facts about its machine in a job's output."""
    found = (line.split(" ", 2) for line in output.splitlines() if line.startswith(f"{FACT} "))
    return {words[1]: words[2].strip() for words in found if len(words) == 3 and words[2].strip()}


def readings_of(lines: Sequence[str]) -> tuple[Reading, ...]:
    """Return the readings of a JOB_PROFILED event: ``question:column:value:low:high:runs``."""
    return tuple(_reading(line) for line in lines)


def _reading(line: str) -> Reading:
    place, *numbers = line.rsplit(":", 4)
    question, _, column = place.partition(":")
    value, low, high = map(float, numbers[:3])
    return Reading(question=question, column=column, value=value, low=low, high=high, runs=int(numbers[3]))


def profile_of(name: str, recipe: Recipe, parts: Sequence[Part]) -> ReferenceProfile:
    """Return the profile built from jobs on one or more types; the whole part supplies sizes and interference.

    Raises Unmeasurable if they have no usable readings of progress; the message ends with their notes.
    """
    measured = [part for part in parts if part.measure == Measure.PROGRESS and part.readings]
    main = next((part for part in measured if part.whole), None)
    if main is None:
        notes = [note for part in parts for note in part.notes]
        raise Unmeasurable("; ".join(notes) or "its loop reported too little progress")
    others = (cell for part in measured if part is not main for cell in _cells(part))
    cells = [*_cells(main), *(cell for cell in others if cell.question == "type")]
    return ReferenceProfile(
        profile=name,
        format=1,
        group=recipe.group,
        program=recipe.program or name,
        measure=Measure.PROGRESS,
        units=ProfileUnits(performance=f"{recipe.unit}/s"),
        provenance=_provenance(recipe, main, sum(part.took_s for part in measured)),
        cells=cells_of_readings(cells),
        use={part.column: part.use for part in measured if part.use},
        type_vcpus={part.column: max(part.sizes) for part in measured},
        notes=main.notes,
    )


def _cells(part: Part) -> Iterator[Reading]:
    """Yield the cells of a part, performance in units per second. The trivial cell for one node is skipped."""
    for each in part.readings:
        if each.question in _PERFORMANCE:
            yield replace(each, value=each.value * TOTAL, low=each.low * TOTAL, high=each.high * TOTAL)
        elif each.question != "nodes":
            yield each


def _provenance(recipe: Recipe, part: Part, took_s: float) -> Provenance:
    facts = part.facts or {}
    return Provenance(
        measured_at=utc_text(part.measured_at),
        provider=part.provider,
        cpu=facts.get("cpu", "unknown"),
        cores=int(facts.get("cores", "0")) or max(1, int(part.vcpus)),
        kernel=facts.get("kernel", "unknown"),
        hcloud=__version__,
        stress_ng=facts.get("stress-ng", "unknown"),
        packages={each: facts.get(f"package:{each}", "unknown") for each in recipe.packages},
        load_average=float(facts.get("load", "0")),
        took_s=round(took_s, 1),
        command=" ".join(recipe.command) or recipe.loop,
    )
