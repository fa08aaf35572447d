"""``python -m bench.switches queues``: what one rule of the planner is worth, side by side, and how often it acts.

All variants of a rule run with the same seeds, jobs and machines, and interference affects run times. At each cycle the
plan is also made as the first variant would make it from the same snapshot; the jobs and machines that the two plans
treat differently are counted. Differences from the first variant are seed by seed, with 95 % limits.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from hcloud.config import load_policy, package_data
from hcloud.core.model import EventKind
from hcloud.planner.cache import PlanCache
from hcloud.planner.make import make_plan
from hcloud.planner.plan import Place, Plan, Terminate
from hcloud.planner.snapshot import Snapshot
from hcloud.simulator.clouds import SPOT
from hcloud.simulator.clusters import gce
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.run import simulated
from hcloud.simulator.seeds import mean_of
from hcloud.spec.policy import Policy
from lab.papers.clusters import scheduler
from lab.papers.hybrid import strategy
from lab.papers.study import Case, RunSize, lost_numbers, numbers_of, setting_of

SHIPPED = package_data.path("policies")
DEFAULT = load_policy(SHIPPED / "default.yaml")
COLUMNS = {
    "performance_pct": "performance %",
    "turnaround_pct": "turnaround %",
    "qos_kept_pct": "QoS kept %",
    "lost_by_type_pct": "lost by type %",
    "lost_by_neighbours_pct": "by neighbours %",
    "target_met_pct": "targets %",
    "wait_p95_s": "wait p95 s",
    "cost_usd": "cost USD",
}
"""Shown numbers. Performance and turnaround are relative to the ideal run, from the start and from submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorld:
    """Load and machines, the same for all variants."""

    experiment: str
    size: RunSize
    cloud: Mapping[str, object] = field(default_factory=dict)
    """Settings of the experiment's cloud to change."""


HYBRID = RunSize(share=0.1, hours=1.0)
WORLDS = {
    "cluster": SimulatedWorld(experiment="paragon-small-oversubscribed", size=RunSize()),
    "reserved": SimulatedWorld(
        experiment="high-variability",
        size=HYBRID,
        cloud={
            "reserved": {"n1.16": 3},
            "markets": ["reserved"],
            "types": {"n1.16": cast(Mapping[str, object], gce()["types"])["n1.16"]},
        },
    ),
    "on-demand": SimulatedWorld(experiment="high-variability", size=HYBRID, cloud={"reserved": {"n1.16": 2}}),
    "spot": SimulatedWorld(
        experiment="low-variability",
        size=RunSize(share=0.05, hours=1.0),
        cloud={"reserved": {"n1.16": 1}, "markets": ["on_demand", "reserved", "spot"], "spot": SPOT},
    ),
}
"""``cluster``: 40 servers of ten types (Paragon §6.1); ``reserved``: three equal servers. Both are oversubscribed, and
nothing can be rented. The other two rent what they lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row."""

    label: str
    policy: Policy
    oracle: bool = False
    """The planner knows the world's truth; such rows are compared with the first of them."""


def _with(policy: Policy, section: str, **values: object) -> Policy:
    return replace(policy, **{section: replace(getattr(policy, section), **cast(dict[str, Any], values))})


def queues(order: str, world: str) -> list[Variant]:
    """Return one queue, queues by quality, and these with a slack of a whole run, under one order of placement.

    All of them profile: before jobs start on the cluster, as in the paper, and beside them elsewhere.
    """
    rules = scheduler(order) if world == "cluster" else _with(DEFAULT, "placement", order=order)
    rules = _with(rules, "profiling", when="before" if world == "cluster" else "beside")
    long_slack = {"tolerance": 1.0, "patience_s": 300.0, "patience_cap_s": 3600.0}
    admissions: Mapping[str, Mapping[str, object]] = {
        "one queue": {"queues": "one"},
        "by quality": {"queues": "by_quality"},
        "by quality, slack of a run": {"queues": "by_quality", **long_slack},
    }
    return [
        Variant(
            label=f"{order}, {name}{', truth known' if oracle else ''}",
            policy=_with(rules, "admission", **values),
            oracle=oracle,
        )
        for oracle in (False, True)
        for name, values in admissions.items()
    ]


def keep_for_quiet(base: str, _: str) -> list[Variant]:
    """Return ``provisioning.keep_for_quiet`` off and at the value of ``hm.yaml``.

    ``base``: a shipped policy, here with spot machines where they are on offer, or ``paper``: HM as in the chapter.
    """
    policy = strategy("hm") if base == "paper" else replace(load_policy(SHIPPED / f"{base}.yaml"), spot=DEFAULT.spot)
    return [
        Variant(label=f"{base}, keep_for_quiet {limit:g}", policy=_with(policy, "provisioning", keep_for_quiet=limit))
        for limit in (0.0, 1.3)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A rule that can be switched."""

    variants: Callable[[str, str], list[Variant]]
    """Returns the rows for one base and world."""
    bases: tuple[str, ...]
    worlds: tuple[str, ...]


SWITCHES = {
    "queues": Switch(variants=queues, bases=("least_loaded", "paragon"), worlds=("cluster", "reserved")),
    "keep_for_quiet": Switch(
        variants=keep_for_quiet, bases=("default", "hm", "paper"), worlds=("on-demand", "spot")
    ),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class ComparedPlanner:
    """Plans by one policy, and counts what another one would have decided differently."""

    base: Policy
    """The policy of the first variant."""
    differing: set[str] = field(default_factory=set)
    """Jobs placed by one plan only, or elsewhere or in another size; machines terminated by one plan only."""
    cache: PlanCache = field(default_factory=PlanCache)
    """Of the base's plans."""

    def plan(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Return the plan of ``policy``."""
        spare = copy.deepcopy(rng)
        made = make_plan(snapshot, policy, rng)
        if policy != self.base:
            other = make_plan(replace(snapshot, plan_cache=self.cache), self.base, spare)
            self.differing |= {name for name, _ in _decisions(made) ^ _decisions(other)}
        return made


def _decisions(plan: Plan) -> set[tuple[str, object]]:
    found: set[tuple[str, object]] = set()
    for action in plan.actions:
        if isinstance(action, Place):
            found.add((action.job_id, tuple((rank.instance_id, rank.resources.vcpus) for rank in action.ranks)))
        elif isinstance(action, Terminate):
            found.add((action.instance_id, "terminated"))
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    numbers: Mapping[str, float]
    fired: Counter[str]
    """How often rules acted."""


def simulate(world: SimulatedWorld, variant: Variant, base: Policy, seed: int) -> Run:
    """Run one variant with one seed; ``base``: the policy of the first variant."""
    planner = ComparedPlanner(base)
    case = Case(
        label=variant.label,
        experiment=world.experiment,
        policy=variant.policy,
        cloud=world.cloud,
        planner=planner.plan,
        oracle=variant.oracle,
    )
    setting = setting_of(case, seed, world.size)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of(case.label, simulation.events, commitments, simulation.ideals(), setting.workload.span_s)
        lost = lost_numbers(simulation.qos_losses(outcome.performance), len(outcome.performance))
        fired = Counter[str]({"decided differently": len(planner.differing), "placed": 0})
        for event in simulation.events():
            if event.kind is EventKind.ATTEMPT_PLACED:
                fired["placed"] += 1
                if event.fields.get("diverted") not in (None, "no"):
                    fired[f"diverted {event.fields['diverted']}"] += 1
    return Run({**numbers_of(outcome, setting.workload.span_s), **lost}, fired)


def _line(label: str, runs: Sequence[Run], first: Sequence[Run]) -> str:
    """Return one row: means over seeds, differences from the first row, and what fired in all seeds."""
    words = []
    for column, title in COLUMNS.items():
        values, before = ([run.numbers.get(column, 0.0) for run in each] for each in (runs, first))
        more = [value - base for value, base in zip(values, before, strict=True)]
        words.append(f"{title} {mean_of(values).text()}" + (f" ({mean_of(more).text()})" if runs is not first else ""))
    fired = sum((run.fired for run in runs), Counter[str]())
    words += [f"{count} {name}" for name, count in sorted(fired.items())]
    return f"  {label:44} {'; '.join(words)}"


def main() -> int:
    """Simulate and print; means over seeds, and in brackets paired differences from the first row."""
    parser = argparse.ArgumentParser(prog="python -m bench.switches", description=__doc__)
    parser.add_argument("switch", choices=tuple(SWITCHES))
    parser.add_argument("--worlds", nargs="+", choices=tuple(WORLDS))
    parser.add_argument("--bases", nargs="+", help="orders of placement for queues, policies for keep_for_quiet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    switch, seeds = SWITCHES[given.switch], range(given.first_seed, given.first_seed + given.seeds)
    if given.seeds < 1 or given.first_seed < 0:
        parser.error("--seeds must be at least 1, --first-seed 0 or more")
    if unknown := set(given.bases or ()) - set(switch.bases):
        parser.error(f"--bases: {', '.join(sorted(unknown))} is none of {', '.join(switch.bases)}")
    for name in given.worlds or switch.worlds:
        world = WORLDS[name]
        print(f"{name}: {world.experiment} x {world.size.share:g}, seeds {seeds[0]} to {seeds[-1]}")
        for base in given.bases or switch.bases:
            first: dict[bool, list[Run]] = {}
            variants = switch.variants(base, name)
            for variant in variants:
                runs = [simulate(world, variant, variants[0].policy, seed) for seed in seeds]
                print(_line(variant.label, runs, first.setdefault(variant.oracle, runs)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
