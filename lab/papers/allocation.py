"""How closely schedulers follow what jobs need, and which jobs queues let go first (Dissertation figs. 3.7, 3.8, 6.4,
6.5a, tables 6.2 and 6.3): on the paper's small cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from hcloud.core.model import EventKind
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.run import simulated
from hcloud.simulator.workload import Workload
from hcloud.spec.policy import Policy
from lab.papers.clusters import SCHEDULERS, scheduler
from lab.papers.study import Case, Claim, Effect, Figure, Numbers, RunSize, SizedCase, setting_of

MEDIUM, FULL = "paragon-small-medium", "paragon-small-oversubscribed"
URGENT_SHARE, URGENT = 0.2, 10
"""The share of jobs with a higher priority, and that priority (Dissertation §6.5)."""
QUEUES, SHORTEST, PRIORITIES = "ARQ", "ARQ, shortest first", "ARQ, priorities"
SHORTEST_PCT = (25, 50, 75)
"""Jobs with the shortest ideal run times, in percent of all; with fewer than 178 jobs less would be a handful."""
NEEDED_LEAST = 0.02
"""Times at which less of the most that is ever needed is needed are left out: begin and end of the run."""


def allocation_figures() -> Iterator[Figure]:
    """Yield how schedulers follow what is needed."""
    yield _allocation()


def order_figures() -> Iterator[Figure]:
    """Yield which jobs queues let go first."""
    yield _orders()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulated:
    outcome: SimulationResult
    workload: Workload
    ideal_s: Mapping[str, float]
    """Ideal run time by job."""
    priority: Mapping[str, int]


def _simulated(case: Case, seed: int, size: RunSize, within: Path | None, *, urgent: bool = False) -> _Simulated:
    setting = setting_of(case, seed, size)
    if urgent:
        setting = replace(setting, workload=_with_urgent(setting.workload, seed))
    with tempfile.TemporaryDirectory(dir=within) as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        ideals = simulation.ideals()
        outcome = outcome_of(case.label, simulation.events, commitments, ideals)
        priority = {
            event.job_id or "": int(cast(Any, event.fields.get("priority", 0)))
            for event in simulation.events()
            if event.kind is EventKind.JOB_SUBMITTED
        }
    ideal_s = {name: ideal.run_s for name, ideal in ideals.items()}
    return _Simulated(outcome=outcome, workload=setting.workload, ideal_s=ideal_s, priority=priority)


def _with_urgent(workload: Workload, seed: int) -> Workload:
    """Return the workload with a share of its jobs, drawn by lot, at a higher priority."""
    drawn = np.random.default_rng(seed).random(len(workload.arrivals)) < URGENT_SHARE
    arrivals = tuple(
        replace(each, spec=replace(each.spec, priority=URGENT)) if is_urgent else each
        for each, is_urgent in zip(workload.arrivals, drawn.tolist(), strict=True)
    )
    return replace(workload, arrivals=arrivals)


# ----------------------------------------------------------------------------------------------------------- allocation
def allocation_numbers(name: str, load: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how far what jobs hold is from what they need at each time, how full the cluster is, how long the whole
    load takes, and which part of a job's time it waits."""
    found = _simulated(Case(label=name, experiment=load, policy=scheduler(**SCHEDULERS[name])), seed, size, within)
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


def _allocation() -> Figure:
    names, full = ("LL", "NH", "NI", "Paragon"), ("LL", "Paragon", "Paragon+ARQ")
    cases = {f"{name}, medium": (name, MEDIUM) for name in names}
    cases |= {f"{name}, oversubscribed": (name, FULL) for name in full}

    def fuller(name: str) -> Claim:
        published = {"Paragon": 47.0, "Paragon+ARQ": 45.5}[name]
        return Claim(
            text=f"{name} holds more of the cluster than least loaded does (oversubscribed)",
            published=f"{published:g} % more",
            ours=lambda seed: 100.0 * (_of(seed, name, "held_pct") / _of(seed, "LL", "held_pct") - 1.0),
            effect=Effect(published),
            unit="% more",
        )

    return Figure(
        name="paragon-allocation",
        title="What jobs hold beside what they need, 40 servers of ten types",
        source="Dissertation §3.5.1, figs. 3.7 and 3.8; §6.5.1, figs. 6.4 and 6.5a",
        cases=tuple(SizedCase(label=label, numbers=partial(allocation_numbers, *of)) for label, of in cases.items()),
        columns=("allocation_off_pct", "held_pct", "whole_s", "waiting_pct"),
        claims=(
            Claim(
                text="Paragon holds what is needed, but for times when more is needed than there is (medium)",
                published="less than 3.5 % off",
                ours=lambda seed: seed["Paragon, medium"]["allocation_off_pct"],
                holds=lambda value: value < 3.5,
                unit="% off",
            ),
            Claim(
                text="least loaded is farther off than Paragon (medium)",
                published="significant deviation",
                ours=lambda seed: (
                    seed["LL, medium"]["allocation_off_pct"] - seed["Paragon, medium"]["allocation_off_pct"]
                ),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="the whole load takes longer under least loaded than under Paragon (medium)",
                published="15 %",
                ours=lambda seed: 100.0 * (seed["LL, medium"]["whole_s"] / seed["Paragon, medium"]["whole_s"] - 1.0),
                effect=Effect(15.0),
                unit="% longer",
            ),
            fuller("Paragon"),
            fuller("Paragon+ARQ"),
            Claim(
                text="which part of their time jobs wait in queues (oversubscribed)",
                published="less than 5 % at all times",
                ours=lambda seed: _of(seed, "Paragon+ARQ", "waiting_pct"),
                holds=lambda value: value < 5.0,
                unit="% of their time",
            ),
        ),
        drawn="allocation_off_pct",
        published={"Paragon, medium": 3.5},
    )


def _of(seed: Mapping[str, Numbers], name: str, number: str) -> float:
    return seed[f"{name}, oversubscribed"][number]


# --------------------------------------------------------------------------------------------------------------- orders
def _policy(name: str) -> Policy:
    plain = scheduler("paragon", queues="by_quality")
    order = "shortest" if name == SHORTEST else "priority"
    return replace(plain, admission=replace(plain.admission, order=cast(Any, order)))


def order_numbers(name: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how much longer than ideally jobs run and take with waiting, in groups by ideal run time and priority."""
    case = Case(label=name, experiment=FULL, policy=_policy(name))
    found = _simulated(case, seed, size, within, urgent=name == PRIORITIES)
    ended = [each for each in found.outcome.performance if each.running > 0.0]
    by_time = sorted(ended, key=lambda each: found.ideal_s[each.job_id])
    numbers = {"all_longer_pct": _longer(ended, "running"), "all_later_pct": _longer(ended, "turnaround")}
    for share in SHORTEST_PCT:
        part = by_time[: max(1, len(by_time) * share // 100)]
        numbers[f"shortest_{share}_longer_pct"] = _longer(part, "running")
        numbers[f"shortest_{share}_later_pct"] = _longer(part, "turnaround")
    if name == PRIORITIES:
        urgent = [each for each in ended if found.priority[each.job_id] == URGENT]
        others = [each for each in ended if found.priority[each.job_id] != URGENT]
        numbers |= {
            "urgent_later_pct": _longer(urgent, "turnaround"),
            "others_later_pct": _longer(others, "turnaround"),
        }
    return numbers


def _longer(jobs: Sequence[JobPerformance], of: str) -> float:
    """Return by how much longer than ideally jobs took, the median in percent: a few wait for very long."""
    return 100.0 * float(np.median([1.0 / getattr(each, of) - 1.0 for each in jobs])) if jobs else 0.0


def _orders() -> Figure:
    return Figure(
        name="arq-orders",
        title="Queues that let short jobs go first, or urgent ones: oversubscribed, 40 servers of ten types",
        source="Dissertation §6.5.1, tables 6.2 and 6.3",
        cases=tuple(
            SizedCase(label=name, numbers=partial(order_numbers, name)) for name in (QUEUES, SHORTEST, PRIORITIES)
        ),
        columns=(
            "all_longer_pct", "shortest_25_longer_pct", "all_later_pct", "shortest_25_later_pct", "urgent_later_pct",
            "others_later_pct",
        ),
        claims=(
            Claim(
                text="shortest first: how much longer all jobs run than expected",
                published="2.28 % (harmonic mean)",
                ours=lambda seed: seed[SHORTEST]["all_longer_pct"],
                holds=lambda value: value <= 5.0,
                unit="% longer",
            ),
            Claim(
                text="shortest first: the shortest quarter is delayed less than all",
                published="1.2 % beside 2.28 %",
                ours=lambda seed: seed[SHORTEST]["all_later_pct"] - seed[SHORTEST]["shortest_25_later_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="the shortest quarter is delayed less than it is with the oldest first",
                published="-",
                ours=lambda seed: seed[QUEUES]["shortest_25_later_pct"] - seed[SHORTEST]["shortest_25_later_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="urgent jobs end close to their ideal time",
                published="0.8 % (within 2 %)",
                ours=lambda seed: seed[PRIORITIES]["urgent_later_pct"],
                holds=lambda value: value <= 2.0,
                unit="% later",
            ),
            Claim(
                text="urgent jobs are delayed less than others",
                published="0.8 % beside 2.74 %",
                ours=lambda seed: seed[PRIORITIES]["others_later_pct"] - seed[PRIORITIES]["urgent_later_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
        ),
        drawn="all_later_pct",
    )  # fmt: skip
