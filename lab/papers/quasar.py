"""Quasar's single batch jobs, frameworks and services beside best-effort jobs, and what it costs and saves on 200
servers (Dissertation figs. 4.6, 4.9 to 4.11a, 4.13, 4.15b, 4.16; iBench's figs. 5.5c, 5.6d), simulated.

Analytics jobs hold some servers and have no parameters such as heap or block size; services have a load that does not
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hcloud.core.model import BatchTarget, EventKind, JobSpec, Nodes, ProgressHook, Resources
from hcloud.report.spending_accounts import Account
from hcloud.simulator.clusters import PARAGON_SMALL, ClusterExperiment, evenly_spaced, private_cluster
from hcloud.simulator.programs import Programs, Run
from hcloud.simulator.scenarios import service_job
from hcloud.simulator.workload import MIB_PER_VCPU, Arrival
from lab.papers.allocation import FinishedSimulation, finished, profiling_runs
from lab.papers.clusters import scheduler
from lab.papers.study import (
    Case,
    Claim,
    Effect,
    Figure,
    Numbers,
    RunSize,
    number,
    points_more,
    setting_of,
    sized_cases,
)

HETEROGENEITY = 5.2
"""As on Paragon's 40 servers, which are Quasar's."""
BEST_EFFORT = -10
"""Priority of jobs that fill what others leave; they are measured, too."""
LOADED, INTERFERENCE, JOINT = "least loaded", "interference alone (iBench)", "Quasar"
TRUTH = "Quasar, told the truth"
RESERVED = "reservation+LL"
ORDERS = {
    LOADED: "least_loaded",
    RESERVED: "least_loaded",
    INTERFERENCE: "heterogeneity_oblivious",
    JOINT: "quasar",
    TRUTH: "quasar",
}
LONG_S, FRAMEWORK_S, FILLER_S, SERVICE_S = 7200.0, 1800.0, 600.0, 3600.0
"""Mean run times: the paper's Hadoop jobs take two to twenty hours; others are not stated."""


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _jobs()
    yield _services()
    yield _large()


# ---------------------------------------------------------------------------------------------------------------- loads
def _job(run: Run, number: int, vcpus: int, *, nodes: int = 1, priority: int = 0) -> JobSpec:
    return JobSpec(
        name=f"{run.command[0]}.{number}",
        user=run.user,
        command=run.command,
        target=BatchTarget(),
        resources=Resources(vcpus=vcpus, memory_mib=vcpus * MIB_PER_VCPU),
        nodes=Nodes(count=nodes, minimum=nodes),
        priority=priority,
        progress=ProgressHook(file="progress"),
        tags={"kind": "filler" if priority < 0 else "batch", "program_kind": run.kind},
    )


def _analytics(rng: np.random.Generator, programs: Programs, count: int, step_s: float, mean_s: float) -> list[Arrival]:
    runs = [programs.pick("analytics", 2, mean_s, programs=count, inputs=1) for _ in range(count)]
    nodes = rng.choice([2, 4], count).tolist()
    return [
        Arrival(at_s=step_s * at, run_s=run.run_s, spec=_job(run, at, 2, nodes=nodes[at]))
        for at, run in enumerate(runs)
    ]


def _fillers(programs: Programs, count: int, step_s: float) -> list[Arrival]:
    runs = [programs.pick("single", 1, FILLER_S, name="filler", programs=40, inputs=1) for _ in range(count)]
    return [
        Arrival(at_s=at_s, run_s=run.run_s, spec=_job(run, at, 1, priority=BEST_EFFORT))
        for at, (at_s, run) in enumerate(zip(evenly_spaced(step_s, count), runs, strict=True))
    ]


def _single_jobs(rng: np.random.Generator, _: float) -> list[Arrival]:
    return _analytics(rng, Programs(rng), 10, 10.0 * LONG_S, LONG_S)


def _frameworks(rng: np.random.Generator, share: float) -> list[Arrival]:
    programs = Programs(rng)
    analytics = _analytics(rng, programs, round(24 * share), 5.0 / share, FRAMEWORK_S)
    return sorted(analytics + _fillers(programs, round(350 * share), 1.0 / share), key=lambda each: each.at_s)


def _served(rng: np.random.Generator, share: float) -> list[Arrival]:
    programs = Programs(rng)
    runs = [programs.pick("service", 2, SERVICE_S, name="service", programs=8) for _ in range(round(16 * share))]
    services = [Arrival(at_s=0.0, run_s=SERVICE_S, spec=service_job(run, number, 2)) for number, run in enumerate(runs)]
    return services + _fillers(programs, round(600 * share), 5.0 / share)


def _on_forty(name: str, arrivals: Any) -> Case:
    made = ClusterExperiment(
        summary=name, servers=PARAGON_SMALL, truth=private_cluster(HETEROGENEITY, PARAGON_SMALL), arrivals=arrivals
    )
    return Case(label=name, experiment=name, policy=scheduler("least_loaded"), cluster=made)


SINGLE, FRAMEWORKS, SERVED = (
    replace(_on_forty("one job at a time", _single_jobs), guessed=True),
    replace(_on_forty("frameworks", _frameworks), guessed=True),
    _on_forty("services", _served),
)


# -------------------------------------------------------------------------------------------------------------- numbers
def _finished(case: Case, name: str, size: RunSize, seed: int, within: Path | None) -> FinishedSimulation:
    policy = scheduler(ORDERS[name], types=2)
    return finished(name, setting_of(replace(case, policy=policy, oracle=name == TRUTH), seed, size), within)


def kind_numbers(case: Case, name: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how well jobs of each kind do, and how full the cluster is while others than fillers run."""
    found = _finished(case, name, size, seed, within)
    kinds = {
        event.job_id or "": str(tags.get("kind", ""))
        for event in found.events
        if event.kind is EventKind.JOB_SUBMITTED and isinstance(tags := event.fields.get("tags"), Mapping)
    }
    numbers = {"used_pct": 100.0 * found.outcome.held_vcpu_h / found.outcome.up_vcpu_h, "whole_s": found.outcome.span_s}
    for kind, word in (("batch", "framework"), ("service", "service"), ("filler", "filler")):
        mine = [each for each in found.outcome.performance if kinds.get(each.job_id) == kind]
        if mine:
            numbers[f"{word}_pct"] = 100.0 * float(np.mean([each.running for each in mine]))
            numbers[f"{word}_turnaround_pct"] = 100.0 * float(np.mean([each.turnaround for each in mine]))
    if found.outcome.service_met_pct is not None:
        numbers["service_met_pct"] = found.outcome.service_met_pct
    return numbers


def large_numbers(name: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return what managing jobs costs them, and which part of the cluster they hold and use, on 200 servers."""
    case = Case(label=name, experiment="quasar", policy=scheduler(ORDERS[name]), guessed=True)
    found = _finished(case, name, size, seed, within)
    spent, waits = found.outcome.spending, list[float]()
    profiled_s = sum(
        max(run.ended_at for run in mine) - min(run.began_at for run in mine)
        for _, mine in profiling_runs(found.events)
    )
    waits = [1.0 - each.turnaround / each.running for each in found.outcome.performance if each.running > 0.0]
    used, beyond = spent.share_pct(Account.USED) or 0.0, spent.share_pct(Account.BEYOND_NEED) or 0.0
    return {
        "profiling_pct": 100.0 * profiled_s / sum(found.ideal_s.values()),
        "waiting_pct": 100.0 * float(np.mean(waits)),
        "needed_pct": used,
        "beyond_need_pct": beyond,
        "held_pct": used + beyond,
    }


# -------------------------------------------------------------------------------------------------------------- figures
def _jobs() -> Figure:
    names = {SINGLE.label: (RESERVED, JOINT, TRUTH), FRAMEWORKS.label: (RESERVED, JOINT)}
    of = {f"{name}, {case.label}": (case, name) for case in (SINGLE, FRAMEWORKS) for name in names[case.label]}

    def sooner(case: Case, published: float, most: str) -> Claim:
        def ours(seed: Mapping[str, Numbers]) -> float:
            before, after = (seed[f"{name}, {case.label}"]["framework_pct"] for name in (RESERVED, JOINT))
            return 100.0 * (1.0 - before / after)

        return Claim(
            text=f"Quasar takes less time than what users ask for, placed least loaded ({case.label})",
            published=f"{published:g} % less on average{most}",
            ours=ours,
            effect=Effect(published),
            unit="% less",
        )

    def near(case: Case, published: float, name: str = JOINT) -> Claim:
        return Claim(
            text=f"{name}: near the best performance ({case.label})",
            published=f"within {published:g} %",
            ours=lambda seed: 100.0 - seed[f"{name}, {case.label}"]["framework_pct"],
            holds=lambda value: value <= published,
            unit="% below",
        )

    return Figure(
        name="quasar-jobs",
        title="Ten batch jobs one at a time, and 24 of frameworks beside 350 fillers: 40 servers of ten types",
        source="Dissertation §4.6.1, fig. 4.6; §4.6.2, figs. 4.9 and 4.10",
        cases=sized_cases(kind_numbers, of=of),
        columns=("framework_pct", "framework_turnaround_pct", "filler_pct", "used_pct", "whole_s"),
        claims=(
            sooner(SINGLE, 29.0, ", up to 58 %"),
            near(SINGLE, 5.8),
            near(SINGLE, 5.8, TRUTH),
            sooner(FRAMEWORKS, 27.0, ""),
            near(FRAMEWORKS, 5.3),
            Claim(
                text="jobs that fill what is left come near the best performance (frameworks)",
                published="within 7.8 %",
                ours=lambda seed: 100.0 - seed[f"{JOINT}, frameworks"]["filler_pct"],
                holds=lambda value: value <= 7.8,
                unit="% below",
            ),
            Claim(
                text="more of the cluster is held (frameworks)",
                published="62 % beside 34 %",
                ours=points_more(f"{JOINT}, frameworks", f"{RESERVED}, frameworks", "used_pct"),
                effect=Effect(62.0 - 34.0),
                unit="points more",
            ),
        ),
        drawn="framework_pct",
        published={f"{RESERVED}, {SINGLE.label}": 77.0, f"{JOINT}, {SINGLE.label}": 94.2},
    )


def _services() -> Figure:
    names = (LOADED, INTERFERENCE, JOINT)
    return Figure(
        name="quasar-services",
        title="16 services of steady load beside 600 jobs that fill 40 servers of ten types",
        source="Dissertation §4.6.3, fig. 4.11a; §4.6.4, fig. 4.13; §5.5.1, figs. 5.5c and 5.6d",
        cases=sized_cases(kind_numbers, of={name: (SERVED, name) for name in names}),
        columns=("service_met_pct", "service_pct", "filler_pct", "filler_turnaround_pct", "used_pct", "whole_s"),
        claims=(
            Claim(
                text="services meet their latency under Quasar",
                published="98.8 % of requests (memcached)",
                ours=number(JOINT, "service_met_pct"),
                holds=lambda value: value >= 95.0,
                unit="% of samples",
            ),
            Claim(
                text="they meet it more often than placed least loaded",
                published="98.8 beside 80 % (memcached), 98.6 beside 93 % (Cassandra)",
                ours=points_more(JOINT, LOADED, "service_met_pct"),
                effect=Effect((18.8 + 5.6) / 2.0),
                unit="points more",
            ),
            Claim(
                text="jobs that fill what is left come nearer to the best performance",
                published="within 5 % beside 24 %",
                ours=points_more(JOINT, LOADED, "filler_pct"),
                effect=Effect(19.0),
                unit="points",
            ),
            Claim(
                text="services do better where servers are chosen by interference alone",
                published="improves (fig. 5.5c)",
                ours=points_more(INTERFERENCE, LOADED, "service_pct"),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="and more of the cluster is held meanwhile",
                published="27.1 % more",
                ours=lambda seed: 100.0 * (seed[INTERFERENCE]["used_pct"] / seed[LOADED]["used_pct"] - 1.0),
                effect=Effect(27.1),
                unit="% more",
            ),
        ),
        drawn="service_met_pct",
        published={JOINT: 98.8, LOADED: 80.0},
    )


def _large() -> Figure:
    return Figure(
        name="quasar-overheads",
        title="What managing costs jobs, and what they hold beyond their need: 1,200 mixed jobs on 200 servers",
        source="Dissertation §4.6.5, figs. 4.15b and 4.16",
        cases=sized_cases(large_numbers, (RESERVED, JOINT)),
        columns=("needed_pct", "beyond_need_pct", "held_pct", "profiling_pct", "waiting_pct"),
        claims=(
            Claim(
                text="time of profiling runs under Quasar",
                published="4.1 % of the run time, up to 9 % of short jobs",
                ours=number(JOINT, "profiling_pct"),
                holds=lambda value: value <= 4.1,
                unit="% of the run time",
            ),
            Claim(
                text="jobs wait less than under reservations",
                published="no waits",
                ours=points_more(RESERVED, JOINT, "waiting_pct"),
                holds=lambda value: value > 0.0,
                unit="points of their time",
            ),
            Claim(
                text="more of the cluster is in use than under reservations",
                published="62 % beside 15 %",
                ours=points_more(JOINT, RESERVED, "needed_pct"),
                effect=Effect(62.0 - 15.0),
                unit="points more",
            ),
            Claim(
                text="vCPUs held beyond need under Quasar, where more of them make up for a worse type",
                published="roughly 10 % of the cluster",
                ours=number(JOINT, "beyond_need_pct"),
                holds=lambda value: value <= 10.0,
                unit="% of the cluster",
            ),
            Claim(
                text="reservations hold more beyond need than Quasar does",
                published="more than the whole cluster is reserved",
                ours=points_more(RESERVED, JOINT, "beyond_need_pct"),
                holds=lambda value: value > 0.0,
                unit="points more",
            ),
        ),
        drawn="needed_pct",
        published={JOINT: 62.0, RESERVED: 15.0},
    )
