"""How closely schedulers follow what jobs need, and what knowing and deciding cost, on Paragon's clusters (Dissertation
figs. 3.7 to 3.9, 3.12, 6.4, 6.5a)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.planner import make_plan
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.simulator.clusters import WARM_UP_S
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.qos_losses import UnitRun, unit_runs
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Workload
from hcloud.spec.policy import Policy
from lab.papers.clusters import LARGE, SCHEDULERS, scheduler
from lab.papers.study import (
    Case,
    Claim,
    Effect,
    Figure,
    Numbers,
    RunSize,
    SizedCase,
    number,
    percent_more,
    points_more,
    setting_of,
    sized_cases,
)

MEDIUM, FULL = "paragon-small-medium", "paragon-small-oversubscribed"
NEEDED_LEAST = 0.02
"""Times at which less of the most that is ever needed is needed are left out: begin and end of the run."""
LONGER = 10.0
"""How many times as long jobs run, and as far apart they are, where the cost of knowing them is compared."""


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _allocation()
    yield _large()
    yield _overheads()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSimulation:
    """A simulation that has ended, with its log."""

    outcome: SimulationResult
    workload: Workload
    events: tuple[Event, ...]
    ideal_s: Mapping[str, float]
    """Ideal run time by job."""


def finished(label: str, setting: Setting, within: Path | None) -> FinishedSimulation:
    """Return a simulation of ``setting``, run to its end in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=within) as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        ideals, events = simulation.ideals(), tuple(simulation.events())
        needs_vcpus = dict(simulation.needs_vcpus())
    outcome = outcome_of(label, lambda: iter(events), commitments, ideals, needs_vcpus=needs_vcpus)
    ideal_s = {name: ideal.run_s for name, ideal in ideals.items()}
    return FinishedSimulation(outcome=outcome, workload=setting.workload, events=events, ideal_s=ideal_s)


def setting_on(load: str, name: str, seed: int, size: RunSize) -> Setting:
    """Return the simulation of an experiment under one of the schedulers."""
    return setting_of(Case(label=name, experiment=load, policy=scheduler(**SCHEDULERS[name])), seed, size)


# ----------------------------------------------------------------------------------------------------------- allocation
def allocation_numbers(name: str, load: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how far what jobs hold is from what they need at each time, how full the cluster is, how long the whole
    load takes, and which part of a job's time it waits."""
    found = finished(name, setting_on(load, name, seed, size), within)
    series, outcome = found.outcome.series, found.outcome
    at_s, held = np.array(series.at_s), np.array(series.held_vcpus)
    needed = _needed(found.workload, at_s)
    capacity = max(sum(market) for market in zip(*series.up_vcpus.values(), strict=True))
    counted = (needed > NEEDED_LEAST * needed.max()) & (needed <= capacity)
    off = np.abs(held[counted] - needed[counted]).sum() / needed[counted].sum()
    waits = [1.0 - each.turnaround / each.running for each in outcome.performance if each.running > 0.0]
    return {
        "allocation_off_pct": 100.0 * float(off),
        "held_pct": 100.0 * outcome.held_vcpu_h / outcome.up_vcpu_h,
        "whole_s": outcome.span_s,
        "waiting_pct": 100.0 * float(np.mean(waits)),
    }


def _needed(workload: Workload, at_s: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the vCPUs that jobs would need at these times if each started at once and ran ideally."""
    needed = np.zeros(len(at_s))
    for each in workload.arrivals:
        vcpus = each.spec.resources.vcpus * each.spec.nodes.count
        needed[(at_s >= each.at_s) & (at_s < each.at_s + each.run_s)] += vcpus
    return needed


def _cases(loads: Mapping[str, str], names: Sequence[str]) -> tuple[SizedCase, ...]:
    of = {f"{name}, {word}": (name, load) for word, load in loads.items() for name in names}
    return sized_cases(allocation_numbers, of=of)


COLUMNS = ("allocation_off_pct", "held_pct", "whole_s", "waiting_pct")


def _allocation() -> Figure:
    off, held = "allocation_off_pct", "held_pct"
    full = {"Paragon": 47.0, "Paragon+ARQ": 45.5}
    return Figure(
        name="paragon-allocation",
        title="What jobs hold beside what they need, 40 servers of ten types",
        source="Dissertation §3.5.1, figs. 3.7 and 3.8; §6.5.1, figs. 6.4 and 6.5a",
        cases=(
            *_cases({"medium": MEDIUM}, ("LL", "NH", "NI", "Paragon")),
            *_cases({"oversubscribed": FULL}, ("LL", "Paragon", "Paragon+ARQ")),
        ),
        columns=COLUMNS,
        claims=(
            Claim(
                text="Paragon holds what is needed, but for times when more is needed than there is (medium)",
                published="less than 3.5 % off",
                ours=number("Paragon, medium", off),
                holds=lambda value: value < 3.5,
                unit="% off",
            ),
            Claim(
                text="least loaded is farther off than Paragon (medium)",
                published="significant deviation",
                ours=points_more("LL, medium", "Paragon, medium", off),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="the whole load takes longer under least loaded than under Paragon (medium)",
                published="15 %",
                ours=percent_more("LL, medium", "Paragon, medium", "whole_s"),
                effect=Effect(15.0),
                unit="% longer",
            ),
            *(
                Claim(
                    text=f"{name} holds more of the cluster than least loaded does (oversubscribed)",
                    published=f"{published:g} % more",
                    ours=percent_more(f"{name}, oversubscribed", "LL, oversubscribed", held),
                    effect=Effect(published),
                    unit="% more",
                )
                for name, published in full.items()
            ),
            Claim(
                text="which part of their time jobs wait in queues (oversubscribed)",
                published="less than 5 % at all times",
                ours=number("Paragon+ARQ, oversubscribed", "waiting_pct"),
                holds=lambda value: value < 5.0,
                unit="% of their time",
            ),
        ),
        drawn=off,
        published={"Paragon, medium": 3.5},
    )


def _large() -> Figure:
    loads, off = {load.rpartition("-")[2]: load for load in LARGE[:2]}, "allocation_off_pct"

    def grows(name: str) -> Claim:
        return Claim(
            text=f"from low to high load {name} gets farther off",
            published="errors increase dramatically with load",
            ours=points_more(f"{name}, high", f"{name}, low", off),
            holds=lambda value: value > 0.0,
            unit="points",
        )

    return Figure(
        name="paragon-large-allocation",
        title="What jobs hold beside what they need, 1,000 servers of 14 types",
        source="Dissertation §3.5.2, fig. 3.12",
        cases=_cases(loads, ("LL", "NH", "NI", "Paragon")),
        columns=COLUMNS,
        claims=(
            *(
                Claim(
                    text=f"{name} is farther off than Paragon ({word})",
                    published="Paragon closest, NH mediocre, NI and LL far off",
                    ours=points_more(f"{name}, {word}", f"Paragon, {word}", off),
                    holds=lambda value: value > 0.0,
                    unit="points",
                )
                for word in ("low", "high")
                for name in ("LL", "NH", "NI")
            ),
            Claim(
                text="Paragon's deviation does not grow with load (low to high)",
                published="remains constant, without times when more is needed than there is",
                ours=points_more("Paragon, high", "Paragon, low", off),
                holds=lambda value: value < 3.5,
                unit="points",
            ),
            *map(grows, ("LL", "NH", "NI")),
        ),
        drawn=off,
    )


# ------------------------------------------------------------------------------------------------------------ overheads
def overhead_numbers(name: str, longer: float, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return what knowing and deciding cost the jobs of the medium load, in percent of their ideal run times: time of
    profiling runs, processor time of plans (which classify, too); and how soon after it arrives a job is known."""
    setting, spent_s = setting_on(MEDIUM, name, seed, size), [0.0]

    def timed(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        began = time.process_time()
        try:
            return make_plan(snapshot, policy, rng)
        finally:
            spent_s[0] += time.process_time() - began

    setting = replace(setting, workload=_longer_jobs(setting.workload, longer), planner=timed)
    found = finished(name, setting, within)
    parts = profiling_runs(found.events)
    # Profiling runs of one job go on at the same time, on servers of different types.
    profiled_s = [max(run.ended_at for run in mine) - min(run.began_at for run in mine) for _, mine in parts]
    known_s = [max(run.ended_at for run in mine) - submitted_at for submitted_at, mine in parts]
    ideal_s = sum(found.ideal_s.values())
    return {
        "profiling_pct": 100.0 * sum(profiled_s) / ideal_s,
        "planning_pct": 100.0 * spent_s[0] / ideal_s,
        "known_within_s": float(np.median(known_s)) if known_s else 0.0,
        "turnaround_pct": 100.0 * float(np.mean([each.turnaround for each in found.outcome.performance])),
    }


def profiling_runs(events: Sequence[Event]) -> Sequence[tuple[float, Sequence[UnitRun]]]:
    """Return, of each job that was profiled before its first start, when it was submitted and its profiling runs."""
    runs, submitted_at, parts = unit_runs(events).last, dict[str, float](), dict[str, list[UnitRun]]()
    started_at = dict[str, float]()
    for event in events:
        job_id = event.job_id or ""
        if event.kind is EventKind.UNIT_STARTED:
            started_at.setdefault(job_id, event.at)
        elif event.kind is EventKind.JOB_SUBMITTED:
            submitted_at[job_id], tags = event.at, event.fields.get("tags")
            if isinstance(tags, Mapping) and PROFILE_TAG in tags and job_id in runs:
                parts.setdefault(str(tags[PROFILE_TAG]), []).append(runs[job_id])
    before = {job: [run for run in mine if run.ended_at <= started_at.get(job, 0.0)] for job, mine in parts.items()}
    return [(submitted_at[job], mine) for job, mine in before.items() if mine]


def _longer_jobs(workload: Workload, times: float) -> Workload:
    """Return a workload whose jobs run ``times`` as long and are as many times as far apart: the same load."""
    arrivals = tuple(
        replace(each, at_s=WARM_UP_S + times * (each.at_s - WARM_UP_S), run_s=times * each.run_s)
        if each.at_s >= WARM_UP_S
        else each
        for each in workload.arrivals
    )
    return replace(workload, arrivals=arrivals)


def _overheads() -> Figure:
    ten = f"Paragon, jobs {LONGER:g} times as long"
    cases = {"LL": ("LL", 1.0), "Paragon": ("Paragon", 1.0), ten: ("Paragon", LONGER)}

    def profiling(label: str) -> Claim:
        return Claim(
            text=f"time of profiling runs ({label})",
            published="1.2 % of the run time",
            ours=number(label, "profiling_pct"),
            holds=lambda value: value <= 1.2,
            unit="% of the run time",
        )

    return Figure(
        name="paragon-overheads",
        title="What knowing and deciding cost, 178 jobs on 40 servers, medium load",
        source="Dissertation §3.5.1, fig. 3.9",
        cases=sized_cases(overhead_numbers, of=cases),
        columns=("profiling_pct", "planning_pct", "known_within_s", "turnaround_pct"),
        claims=(
            profiling("Paragon"),
            profiling(ten),
            Claim(
                text="classifying and deciding",
                published="0.09 % and less than 0.1 % of the run time",
                ours=number("Paragon", "planning_pct"),
                holds=lambda value: value <= 0.19,
                unit="% of the run time",
            ),
            Claim(
                text="how soon a job is known",
                published="within 1 minute of its arrival",
                ours=number("Paragon", "known_within_s"),
                holds=lambda value: value <= 60.0,
                unit="s",
            ),
        ),
        drawn="profiling_pct",
        published={"Paragon": 1.2},
    )
