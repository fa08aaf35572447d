"""Right-sizing report: what each program's jobs asked for, what profile or measurements show it needs, and the money.

What a program needs, from the best evidence that there is:

* vCPUs: the smallest profiled size with 95 % of the speed of the size that was asked for; else the most vCPUs that its
  units used between two measurements, in whole vCPUs. Of services only a profile tells, as latency needs vCPUs that CPU
  time does not show.
* Memory: the most that was measured, and a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.core.pricing import HOUR_S, cost_usd, dominant_share, split
from hcloud.report.fleet import FLEET_KINDS, FleetHistory, Stretch, unit_id
from hcloud.report.grouping import Grouping, JobFacts, text
from hcloud.report.spending_accounts import whole_vcpus
from hcloud.report.table import ReportTable, Row, columns, total_row

RIGHT_SIZING_KINDS: frozenset[EventKind] = FLEET_KINDS | {
    EventKind.SAMPLE,
    EventKind.JOB_PROFILED,
    EventKind.JOB_CLASSIFIED,
}
"""Event kinds that the report reads."""
GROUPINGS = ("program", "user", "job")
FAST_ENOUGH = 0.95
"""A smaller size with this part of the speed is as good."""
MEMORY_HEADROOM, MEMORY_STEP_MIB = 1.1, 64.0
PROFILE, MEASURED, UNKNOWN = "profile", "measured use", "not known"
_STEP, _VCPU = "step", " vCPU"


@dataclass(slots=True)
class _Program:
    """Jobs of one row, and what is known of their needs."""

    jobs: set[str] = field(default_factory=set)
    seconds: float = 0.0
    usd: float = 0.0
    asked_vcpus: float = 0.0
    asked_memory_mib: float = 0.0
    is_service: bool = False
    used_vcpus: float | None = None
    used_memory_mib: float | None = None
    speeds: dict[float, float] = field(default_factory=dict)
    """Profiled speed by vCPUs."""
    held_usd: dict[tuple[float, float, float, float], float] = field(default_factory=dict)
    """Cost by what a unit held (vCPUs, MiB) of what machine (vCPUs, MiB)."""

    def needed_vcpus(self) -> tuple[float | None, str]:
        """Return the vCPUs that a unit needs, at most what was asked for, and what shows it."""
        sizes = sorted(size for size in self.speeds if size <= self.asked_vcpus)
        if len(sizes) > 1:
            enough = FAST_ENOUGH * self.speeds[sizes[-1]]
            return next(size for size in sizes if self.speeds[size] >= enough), PROFILE
        if self.used_vcpus is None or self.is_service:
            return None, UNKNOWN
        return min(self.asked_vcpus, whole_vcpus(self.used_vcpus)), MEASURED

    def needed_memory_mib(self) -> float | None:
        """Return the memory that a unit needs, at most what was asked for; None if it was not measured."""
        if self.used_memory_mib is None:
            return None
        steps = -(-self.used_memory_mib * MEMORY_HEADROOM // MEMORY_STEP_MIB)
        return min(self.asked_memory_mib, steps * MEMORY_STEP_MIB)

    def saved_usd(self) -> float | None:
        """Return what units of the needed size would have saved on the same machines; None if no need is known."""
        vcpus, memory_mib = self.needed_vcpus()[0], self.needed_memory_mib()
        if vcpus is None and memory_mib is None:
            return None
        saved_usd = 0.0
        for (held_vcpus, held_mib, machine_vcpus, machine_mib), usd in self.held_usd.items():
            held = dominant_share(held_vcpus, held_mib, machine_vcpus, machine_mib)
            least_vcpus = held_vcpus if vcpus is None else min(held_vcpus, vcpus)
            least_mib = held_mib if memory_mib is None else min(held_mib, memory_mib)
            needed = dominant_share(least_vcpus, least_mib, machine_vcpus, machine_mib)
            saved_usd += usd * (1.0 - needed / held) if held > 0.0 else 0.0
        return saved_usd


class _Sizes:
    """Reads the log into programs."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.programs: dict[tuple[str, ...], _Program] = {}
        self.applications: dict[str, str] = {}
        """By job, the application it was classified as."""

    def add(self, stretch: Stretch) -> None:
        """Charge a stretch to the programs of its units."""
        fractions, _ = split([holding.share for holding in stretch.holdings])
        usd, machine = cost_usd(stretch.price_usd_per_h, stretch.seconds), stretch.machine
        for holding, fraction in zip(stretch.holdings, fractions, strict=True):
            if PROFILE_TAG in holding.job.tags:
                continue
            program = self.programs.setdefault(self._key(holding.job), _Program())
            program.jobs.add(holding.job.array or holding.job.id)
            program.seconds += stretch.seconds
            program.usd += usd * fraction
            program.asked_vcpus = max(program.asked_vcpus, holding.vcpus)
            program.asked_memory_mib = max(program.asked_memory_mib, holding.memory_mib)
            program.is_service = program.is_service or holding.job.target_kind == "service"
            use = holding.use
            if use.vcpus_max is not None:
                program.used_vcpus = max(program.used_vcpus or 0.0, use.vcpus_max)
            if use.memory_mib_max is not None:
                program.used_memory_mib = max(program.used_memory_mib or 0.0, use.memory_mib_max)
            if not holding.gpu_share:  # GPUs decide what a unit costs, and how many it needs is not measured
                held = (holding.vcpus, holding.memory_mib, machine.vcpus, machine.memory_mib)
                program.held_usd[held] = program.held_usd.get(held, 0.0) + usd * fraction

    def learn(self, event: Event, history: FleetHistory) -> None:
        """Take what was measured into account, before ``history`` does."""
        if event.kind in (EventKind.SAMPLE, EventKind.UNIT_ENDED):
            _, holding = history.units.get(unit_id(event), (None, None))
            if holding is not None:
                holding.use.measure(event)
        elif event.kind is EventKind.JOB_CLASSIFIED:
            self.applications[event.job_id or ""] = text(event, "application")
        elif event.kind is EventKind.JOB_PROFILED and (job := history.jobs.get(event.job_id or "")) is not None:
            self._profiled(job, event)

    def _profiled(self, job: JobFacts, event: Event) -> None:
        self.applications[job.id] = text(event, "application") or self.applications.get(job.id, "")
        speeds = self.programs.setdefault(self._key(job), _Program()).speeds
        readings = event.fields.get("readings")
        for line in readings if isinstance(readings, list) else ():
            question, _, rest = str(line).partition(":")
            column, *numbers = rest.split(":")
            if question == _STEP and column.endswith(_VCPU) and numbers:
                speeds[float(column.removesuffix(_VCPU))] = float(numbers[0])

    def _key(self, job: JobFacts) -> tuple[str, ...]:
        if self.grouping.kind == "program":
            return (job.name, job.user)
        return (job.user,) if self.grouping.kind == "user" else (job.array or job.id, job.name, job.user)


def right_sizing_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return a row per program (name and user), user or job: the most to save first, unknown needs last."""
    sizes, history = _Sizes(grouping), FleetHistory(since, until)
    for event in events:
        sizes.learn(event, history)
        for stretch in history.take(event):
            sizes.add(stretch)
    for stretch in history.finish():
        sizes.add(stretch)
    keys = {"program": ("program", "user"), "user": ("user",), "job": ("job", "name", "user")}[grouping.kind]
    names = columns(
        *keys, "jobs", "unit_h", "asked_vcpus", "needed_vcpus", "asked_memory_mib", "needed_memory_mib", "shown_by",
        "cost_usd", "saved_usd",
    )  # fmt: skip
    held = [(key, program) for key, program in sizes.programs.items() if program.jobs]
    rows = [(*key, *_values(program)) for key, program in held]
    rows.sort(key=lambda row: (row[-1] is None, -float(row[-1] or 0.0), str(row[0])))
    return ReportTable(
        title=f"Right-sizing by {grouping.kind}",
        columns=names,
        rows=tuple(rows),
        total=total_row(names, rows, {"jobs", "unit_h", "cost_usd", "saved_usd"}),
        notes=(
            "asked: the largest unit; needed_vcpus: the smallest profiled size with "
            f"{FAST_ENOUGH:.0%} of the speed asked for, else the most whole vCPUs used between two measurements (not "
            "known of services); needed_memory: the most that was used, and a tenth",
            "saved: what units of the needed size would have cost less on the same machines; a unit costs the larger "
            "of its vCPU and memory shares, so one of both may save nothing",
        ),
    )


def _values(program: _Program) -> Row:
    vcpus, shown_by = program.needed_vcpus()
    asked = (program.asked_vcpus, vcpus, program.asked_memory_mib, program.needed_memory_mib(), shown_by)
    return (len(program.jobs), program.seconds / HOUR_S, *asked, program.usd, program.saved_usd())
