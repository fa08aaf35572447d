"""``python -m bench.phases``: how many changes of phase of long jobs are noticed, and how often by mistake.

Simulated jobs of an hour or so change twice (speed and pressure). A change that slows a job by a tenth or more is
noticed *reactively* if HCloud corrects something for that job while the phase lasts. A check of a running job in place
is right if it finds a change where the job is in another phase than its estimates are of, and none where it is not
(*proactively*).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median

from hcloud.core.model import Event, EventKind
from hcloud.simulator.clusters import make_experiment
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.program_models import STEADY, Phase
from hcloud.simulator.run import Progress, Setting, Simulation, simulated
from hcloud.spec.policy import Policy
from lab.papers.clusters import scheduler

EXPERIMENT = "paragon-small-phases"
SLOWER = 0.9
"""A change is to be noticed reactively if it leaves at most this share of the speed."""
LATE_S, LASTS_S = 600.0, 300.0
"""And if it comes at least so long after the start, and the phase lasts at least so long."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One phase of one job."""

    job_id: str
    phase: Phase
    began_at: float
    ended_at: float


@dataclass(slots=True)
class Phases:
    """Follows the true phases of all jobs of a simulation."""

    simulation: Simulation
    _now: dict[str, tuple[Phase, float]] = field(default_factory=dict)
    stays: list[Stay] = field(default_factory=list)

    def look(self, progress: Progress) -> None:
        """Note which jobs are in another phase than before."""
        at = self.simulation.setting.starts_at + progress.now_s
        for unit_id, phase in self.simulation.phases.items():
            job_id = unit_id.partition(".")[0]
            before = self._now.get(job_id)
            if before is None or before[0] is not phase:
                if before is not None:
                    self.stays.append(Stay(job_id, before[0], before[1], at))
                self._now[job_id] = (phase, at)

    def all(self, ends: dict[str, float]) -> Iterator[Stay]:
        """Yield every phase, the last one up to the end of its job."""
        yield from self.stays
        for job_id, (phase, at) in self._now.items():
            yield Stay(job_id, phase, at, ends.get(job_id, at))


@dataclass(slots=True)
class Counts:
    """What was noticed, over seeds."""

    slowed: int = 0
    noticed: int = 0
    delays_s: list[float] = field(default_factory=list)
    checks: int = 0
    changed: int = 0
    """Checks of a job in another phase than its estimates are of."""
    found: int = 0
    same: int = 0
    mistaken: int = 0


def count(stays: Sequence[Stay], events: Sequence[Event], counts: Counts) -> None:
    """Add one simulation."""
    corrections, by_job = defaultdict[str, list[Event]](list), defaultdict[str, list[Stay]](list)
    for event in events:
        if event.kind is EventKind.CORRECTION and event.fields.get("code") != "profiling_in_place":
            corrections[event.job_id or ""].append(event)
    for stay in sorted(stays, key=lambda each: each.began_at):
        by_job[stay.job_id].append(stay)
    for job_id, of_job in by_job.items():
        for before, after in itertools.pairwise(of_job):
            late = after.began_at - of_job[0].began_at >= LATE_S and after.ended_at - after.began_at >= LASTS_S
            if after.phase.speed <= SLOWER * before.phase.speed and late:
                counts.slowed += 1
                at = [each.at for each in corrections[job_id] if after.began_at <= each.at <= after.ended_at]
                counts.noticed += bool(at)
                counts.delays_s += [min(at) - after.began_at] if at else []
    believed: dict[str, float] = {}
    for event in events:
        if event.kind is EventKind.JOB_PROFILED and event.fields.get("in_place"):
            at, name = event.at - float(event.fields["duration_s"]), str(event.fields["application"])
            now = [each for each in by_job[event.job_id or ""] if each.began_at <= at and event.at <= each.ended_at]
            if len(now) == 1:  # it did not change meanwhile
                counts.checks += 1
                pressure, changed = now[0].phase.pressure, bool(event.fields["changed"])
                if pressure != believed.get(name, STEADY.pressure):
                    counts.changed, counts.found = counts.changed + 1, counts.found + changed
                else:
                    counts.same, counts.mistaken = counts.same + 1, counts.mistaken + changed
                if changed:
                    believed[name] = pressure


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    stays: Sequence[Stay]
    events: Sequence[Event]
    performance_pct: float
    """Mean over the jobs."""


def simulate(policy: Policy, seed: int, share: float, longer: float) -> Run:
    """Run one world."""
    made = make_experiment(EXPERIMENT, seed, share=share)
    arrivals = tuple(replace(each, run_s=longer * each.run_s) for each in made.workload.arrivals)
    setting = Setting(
        workload=replace(made.workload, arrivals=arrivals), policy=policy, cloud=made.cloud, seed=seed, truth=made.truth
    )
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        phases = Phases(simulation)
        commitments = simulation.commitments()
        simulation.run(phases.look)
        events = list(simulation.events())
        result = outcome_of(policy.name, simulation.events, commitments, simulation.ideals(), made.workload.span_s)
    ends = {event.job_id or "": event.at for event in events if event.kind is EventKind.JOB_FINISHED}
    performance = [each.running for each in result.performance]
    return Run(list(phases.all(ends)), events, 100.0 * mean(performance))


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.phases", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.5, help="share of the experiment's 178 jobs")
    parser.add_argument("--longer", type=float, default=8.0, help="how much longer its jobs run than 450 s")
    given = parser.parse_args()
    if given.seeds < 1 or not 0 < given.share <= 1 or given.longer <= 0:
        parser.error("--seeds must be at least 1, --share above 0 up to 1, and --longer above 0")
    checked = scheduler("paragon")
    unchecked = replace(checked, name="no checks", correction=replace(checked.correction, sample_share=0.0))
    for policy in (checked, unchecked):
        counts, performance = Counts(), list[float]()
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            run = simulate(policy, seed, given.share, given.longer)
            count(run.stays, run.events, counts)
            performance.append(run.performance_pct)
        print(f"{policy.name:12} {_line(counts)}; mean performance {mean(performance):.1f} %", flush=True)
    return 0


def _line(counts: Counts) -> str:
    reactive = f"{counts.noticed} of {counts.slowed} slowed jobs noticed ({_pct(counts.noticed, counts.slowed)})"
    delay = f"after {median(counts.delays_s):.0f} s" if counts.delays_s else "never"
    proactive = f"{counts.found} of {counts.changed} changes found ({_pct(counts.found, counts.changed)})"
    mistaken = f"{counts.mistaken} of {counts.same} mistaken ({_pct(counts.mistaken, counts.same)})"
    return f"{reactive}, {delay}; {counts.checks} checks: {proactive}, {mistaken}"


def _pct(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


if __name__ == "__main__":
    sys.exit(main())
