"""How fast simulations are, profiling and classification included: processor time of whole experiments, and what one
decision about a job costs. Takes many minutes; ``growth`` is enough to see whether something got slower."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.rows import Row
from hcloud.core.model import EventKind
from hcloud.simulator.run import Progress, simulated
from lab.papers.clusters import SCHEDULERS, scheduler
from lab.papers.hybrid import HIGH, STRATEGIES, strategy
from lab.papers.study import Case, RunSize, setting_of

CYCLE_S = 5.0
"""So often HCloud's experiment is decided about here; see docs/simulation.md on what that changes."""
DECISIONS = frozenset({EventKind.JOB_STATE, EventKind.ATTEMPT_PLACED, EventKind.JOB_CLASSIFIED, EventKind.CORRECTION})
"""What is written down of a decision about a job (or a profiling run of one) and of what came of it."""
LARGE = "paragon-large-oversubscribed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one simulation took."""

    took_s: float
    """CPU time in seconds."""
    jobs: int
    """Jobs that users submitted."""
    ended: int
    of_jobs: int
    """Jobs of the whole workload."""
    hours: float
    """Simulated time until the end, or until it was cut."""
    decisions: int
    cycles: int

    def row(self, name: str, target: float | None = None) -> Row:
        """Return it as a figure: seconds, with what a job and a decision cost."""
        of_job, of_decision = 1e3 * self.took_s / self.jobs, 1e3 * self.took_s / self.decisions
        of_cycle = 1e3 * self.took_s / self.cycles
        note = f"{self.jobs} jobs, {of_job:.1f} ms each; {self.decisions} decisions, {of_decision:.2f} ms each"
        note += f"; {self.cycles} cycles, {of_cycle:.1f} ms each"
        if self.ended < self.of_jobs:
            note += f"; cut after {self.hours:.2f} h, when {self.ended} of {self.of_jobs} jobs had ended"
        return Row(name=name, value=self.took_s, unit="s", target=target, note=note)


def run() -> Iterator[Row]:
    """Measure HCloud's high variability under each strategy, then Paragon's largest run."""
    for name in STRATEGIES:
        yield timed(hybrid(name), RunSize(), CYCLE_S).row(f"high variability, 2 h, {name}", 15.0)
    yield timed(paragon(LARGE), RunSize(), 1.0).row(f"{LARGE}, 1,000 servers", 60.0)


def hybrid(name: str) -> Case:
    """Return HCloud's case of a strategy with profiles: users guess what their jobs need."""
    return Case(label=name, experiment=HIGH, policy=strategy(name), guessed=True)


def paragon(load: str) -> Case:
    """Return Paragon's scheduler on one of its clusters."""
    return Case(label=load, experiment=load, policy=scheduler(**SCHEDULERS["Paragon"]))


class _Enough(Exception):
    """The processor time that a simulation may take is used up."""


def timed(case: Case, size: RunSize, cycle_s: float, limit_s: float = math.inf) -> Timed:
    """Simulate a case once, with seed 0; cut it after ``limit_s`` of processor time."""
    setting = replace(setting_of(case, 0, size), cycle_s=cycle_s)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        began = time.process_time()

        def watch(_: Progress) -> None:
            """Cut the run once it has used ``limit_s`` of processor time."""
            if time.process_time() - began > limit_s:
                raise _Enough

        with suppress(_Enough):
            simulation.run(watch)
        took_s, progress = time.process_time() - began, simulation.progress
        failed = next((e.fields["text"] for e in simulation.events() if e.kind is EventKind.PLANNING_TROUBLE), None)
        if failed is not None:
            raise RuntimeError(str(failed))
        decisions = sum(event.kind in DECISIONS for event in simulation.events())
        return Timed(
            took_s=took_s,
            jobs=progress.submitted,
            ended=progress.ended,
            of_jobs=len(setting.workload.arrivals),
            hours=progress.now_s / 3600,
            decisions=decisions,
            cycles=progress.cycles,
        )
