"""The workload of 3Sigma's experiments (EuroSys 2018, §5): jobs with deadlines and of best effort on 256 nodes.

The paper draws from the Google trace, of which it states no numbers. What it does state is kept: load, shares, slacks,
arrivals with a squared coefficient of variation of 4, and that each job with a deadline prefers a random three quarters
of the cluster and runs 1.5 times as long elsewhere. Sizes and run times are ours: 60 programs, a third of which hardly
vary, some of which vary by a factor of three and more or have two modes. The mean of a program's runs is within a
factor of two of four runs in five (the paper: 77 to 92 % on its traces).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.core.errors import NoJobs
from hcloud.core.model import BatchTarget, BestEffortTarget, JobSpec, Nodes, Resources
from hcloud.core.pricing import HOUR_S
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.simulator.workload import MIB_PER_VCPU

RACKS, NODES = 4, 256
PREFERRED_RACKS = 3
SLOWER_ELSEWHERE = 1.5
PROGRAMS, USERS = 60, 20
PAST_RUNS = 40
"""Runs of each program before the experiment, on average."""
LOAD, SLACKS = 1.4, (0.2, 0.4, 0.6, 0.8)
"""Offered load, half of it by jobs with a deadline; slack of their deadlines over their run times."""
HOURS = 5.0
NODE_VCPUS, NODE_GIB = 4, 16
NUMBER_TAG = "number"
"""Tag of a job: its number in the trace."""
SHORTEST_S, LONGEST_S = 20.0, 3 * HOUR_S
LARGEST_SHARE = 0.03
"""No job is more than this part of all work."""
_MOST_TOO_LARGE = 2_000
"""So many jobs in a row that are more than that are drawn at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """One job of a workload."""

    number: int
    features: RunFeatures
    nodes: int
    run_s: float
    """On nodes that it prefers."""
    submitted_s: float
    deadline_s: float | None
    """None: best effort."""
    preferred: frozenset[int]
    """Racks."""

    def to_spec(self) -> JobSpec:
        """Return what a user submits: a rank on each of its nodes, all of which it needs."""
        within_s, types = self.deadline_s, tuple(rack_type(rack) for rack in sorted(self.preferred))
        return JobSpec(
            name=self.features.name or "",
            user=self.features.user or "",
            command=(self.features.name or "",),
            target=BestEffortTarget() if within_s is None else BatchTarget(finish_within_s=within_s - self.submitted_s),
            resources=Resources(vcpus=NODE_VCPUS, memory_mib=MIB_PER_VCPU * NODE_VCPUS),
            nodes=Nodes(count=self.nodes, minimum=self.nodes),
            profiling="never",
            preferred_types=() if within_s is None else types,
            slower_elsewhere=1.0 if within_s is None else SLOWER_ELSEWHERE,
            tags={"kind": "batch" if within_s is not None else "best_effort", NUMBER_TAG: str(self.number)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrace:
    """The jobs of an experiment, and the runs before it."""

    jobs: tuple[TracedJob, ...]
    past: tuple[tuple[RunFeatures, float], ...]
    """Features and run times in seconds, in order."""
    span_s: float


@dataclass(frozen=True, slots=True)
class _TracedProgram:
    features: RunFeatures
    nodes: int
    median_s: float
    spread: float
    """Standard deviation of log run times."""
    second_mode: float
    """How many times as long a quarter of the runs take; 1: none does."""

    def draw(self, rng: np.random.Generator) -> float:
        run_s = self.median_s * math.exp(rng.normal(0.0, self.spread))
        if rng.random() < 0.25:
            run_s *= self.second_mode
        return float(min(max(run_s, SHORTEST_S), LONGEST_S))


def make_trace(
    seed: int,
    *,
    load: float = LOAD,
    slacks: Sequence[float] = SLACKS,
    hours: float = HOURS,
    past_runs: float = PAST_RUNS,
    nodes: int = NODES,
) -> JobTrace:
    """Return the workload of a seed. ``load``: work offered, in parts of what ``nodes`` can do; on fewer nodes than
    the paper's, jobs are as much smaller. Raises NoJobs where hardly any job is small enough for that."""
    rng, span_s = np.random.default_rng([seed, 3]), hours * HOUR_S
    programs = [_program(number, rng, nodes) for number in range(PROGRAMS)]
    past = [programs[int(rng.integers(PROGRAMS))] for _ in range(round(past_runs * PROGRAMS))]
    whole_s = load * nodes * span_s
    drawn = [
        (program, run_s, promised) for promised in (True, False) for program, run_s in _draw(programs, rng, whole_s / 2)
    ]
    at_s = _arrivals(rng, len(drawn), span_s)
    jobs = []
    for number, (place, submitted_s) in enumerate(zip(rng.permutation(len(drawn)).tolist(), at_s, strict=True), 1):
        program, run_s, promised = drawn[place]
        slack = float(rng.choice(slacks))
        jobs.append(
            TracedJob(
                number=number,
                features=program.features,
                nodes=program.nodes,
                run_s=run_s,
                submitted_s=submitted_s,
                deadline_s=submitted_s + run_s * (1.0 + slack) if promised else None,
                preferred=frozenset(rng.choice(RACKS, PREFERRED_RACKS, replace=False).tolist()),
            )
        )
    runs = tuple((program.features, program.draw(rng)) for program in past)
    return JobTrace(jobs=tuple(jobs), past=runs, span_s=span_s)


def rack_type(rack: int) -> str:
    """Return the machine type of the nodes of a rack."""
    return f"rack{rack}.node"


def _program(number: int, rng: np.random.Generator, available: int) -> _TracedProgram:
    user, part = f"user{rng.integers(USERS)}", available / NODES
    nodes = min(available // 2, max(1, round(part * math.exp(rng.normal(1.6, 1.2)))))
    name = f"program{number}"
    return _TracedProgram(
        features=RunFeatures(user=user, name=name, application=f"{user}:{name}", size=float(nodes)),
        nodes=nodes,
        median_s=400.0 * math.exp(rng.normal(0.0, 1.0)),
        spread=float(rng.choice((0.08, 0.3, 0.7, 1.2), p=(0.35, 0.3, 0.2, 0.15))),
        second_mode=float(rng.choice((1.0, 3.0, 8.0), p=(0.75, 0.125, 0.125))),
    )


def _draw(
    programs: Sequence[_TracedProgram], rng: np.random.Generator, work_s: float
) -> list[tuple[_TracedProgram, float]]:
    """Return runs that are ``work_s`` node-seconds in all."""
    found, done_s, too_large = list[tuple[_TracedProgram, float]](), 0.0, 0
    while done_s < work_s:
        program = programs[int(rng.integers(len(programs)))]
        run_s = program.draw(rng)
        if run_s * program.nodes <= 2 * LARGEST_SHARE * work_s:
            found.append((program, run_s))
            done_s, too_large = done_s + run_s * program.nodes, 0
            continue
        too_large += 1
        if too_large > _MOST_TOO_LARGE:
            raise NoJobs("3sigma: too few nodes or hours for jobs of 20 s and more; increase --share or --hours")
    return found


def _arrivals(rng: np.random.Generator, count: int, span_s: float) -> list[float]:
    """Return times of submission with hyperexponential gaps (squared coefficient of variation 4)."""
    often = 0.5 * (1.0 + math.sqrt(3.0 / 5.0))
    short = rng.random(count) < often
    gaps = np.where(short, rng.exponential(1 / (2 * often), count), rng.exponential(1 / (2 * (1 - often)), count))
    at = np.cumsum(gaps)
    return [float(each) for each in at * span_s / at[-1]]
