"""Reference programs measured elsewhere: what a job needs to do so, and the profile made of what such jobs found."""

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
"""How lines of a job's output begin that tell of its machine."""
_PERFORMANCE = ("type", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one job is to find, or has found, of a program: on one instance type of ``vcpus``.

    ``whole``: every size and source; else only how fast it is there. ``readings``: performance in fractions of
    ``TOTAL`` per second. ``facts``: of its machine. ``notes``: what was not measured, and why.
    """

    provider: str
    instance_type: str
    vcpus: float
    whole: bool
    measure: str | None = None
    readings: tuple[Reading, ...] = ()
    use: tuple[float, ...] = ()
    facts: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    measured_at: float = 0.0
    took_s: float = 0.0

    @property
    def column(self) -> str:
        """The instance type's column in the utility matrix."""
        return f"{self.provider}/{self.instance_type}"

    @property
    def sizes(self) -> tuple[float, ...]:
        """At how many vCPUs it is measured, the most first."""
        steps = [step for step in STEPS if step < self.vcpus] if self.whole else []
        return (self.vcpus, *reversed(steps))


def job_of(name: str, recipe: Recipe, part: Part, seconds: float) -> dict[str, Any]:
    """Return the job that measures one part, as job files have it, without work directory and tags."""
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
    """Return what prepares a machine: packages where they may be installed, facts about it, the recipe's own lines."""
    packages = " ".join(map(shlex.quote, sorted({*recipe.packages, "stress-ng"})))
    lines = [
        "set -e",
        'missing=""',
        # The sandbox of a unit hides the database of packages; each has a directory here, though.
        'has() { dpkg-query -s "$1" 2>&1 | grep -q "ok installed" || [ -d "/usr/share/doc/$1" ]; }',
        f'for each in {packages}; do has "$each" || missing="$missing $each"; done',
        'lacking() { echo "not installed on this machine:$missing; they belong into its image" >&2; return 3; }',
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
    """Return readings as a JOB_PROFILED event has them: ``question:column:value:low:high:runs``."""
    return tuple(_reading(line) for line in lines)


def _reading(line: str) -> Reading:
    place, *numbers = line.rsplit(":", 4)
    question, _, column = place.partition(":")
    value, low, high = map(float, numbers[:3])
    return Reading(question=question, column=column, value=value, low=low, high=high, runs=int(numbers[3]))


def profile_of(name: str, recipe: Recipe, parts: Sequence[Part]) -> ReferenceProfile:
    """Return the profile made of what jobs found on one or more types; the complete one has sizes and neighbours.

    Raises:
        Unmeasurable: they found nothing of it, or not by its progress; the sentence ends with what they noted.
    """
    told = [part for part in parts if part.measure == Measure.PROGRESS and part.readings]
    main = next((part for part in told if part.whole), None)
    if main is None:
        notes = [note for part in parts for note in part.notes]
        raise Unmeasurable("; ".join(notes) or "its loop told of too little progress")
    cells = [*_cells(main), *(cell for part in told if part is not main for cell in _cells(part) if _on_type(cell))]
    return ReferenceProfile(
        profile=name,
        format=1,
        group=recipe.group,
        program=recipe.program or name,
        measure=Measure.PROGRESS,
        units=ProfileUnits(performance=f"{recipe.unit}/s"),
        provenance=_provenance(recipe, main, sum(part.took_s for part in told)),
        cells=cells_of_readings(cells),
        use={part.column: part.use for part in told if part.use},
        notes=main.notes,
    )


def _on_type(cell: Reading) -> bool:
    return cell.question == "type"


def _cells(part: Part) -> Iterator[Reading]:
    """Yield the cells of a part, performance in units per second; whether it runs on one node was not measured."""
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
