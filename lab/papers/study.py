"""Figures of papers: their cases, the numbers read from each run, and claims judged over several seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import repeat
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np

from hcloud.core.errors import BadInput, HCloudError
from hcloud.planner.make import make_plan
from hcloud.planner.placement.orders import order_named
from hcloud.quarantine.planning import Planner
from hcloud.report.table import share_pct
from hcloud.simulator.clouds import reserved_for
from hcloud.simulator.clusters import ClusterExperiment, Experiment, make_experiment
from hcloud.simulator.optimality import distance, run_times_s
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.performance import kept_pct, mean, quantile
from hcloud.simulator.pool import open_pool
from hcloud.simulator.qos_losses import NEIGHBOURS, REST, TYPE
from hcloud.simulator.run import Commitment, Setting, simulated
from hcloud.simulator.scratch import quick_folder
from hcloud.simulator.seeds import Mean, mean_of
from hcloud.simulator.world import FULL_VCPUS
from hcloud.spec.policy import Policy, Strategy
from lab.papers.dask_cluster import dask_executor
from lab.papers.discounts import sustained_part
from lab.papers.user_requests import with_user_requests

Numbers = Mapping[str, float]
"""Numbers of one run, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSize:
    """The size of a run of experiments."""

    share: float = 1.0
    """Share (0..1] of the jobs or load."""
    hours: float = 2.0
    """Length of HCloud's scenarios."""
    seeds: int = 10
    data: Path | None = None
    """Folder of others' measurements, for figures that follow from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedCase:
    """One bar of a figure that is computed, without a simulated cloud."""

    label: str
    numbers: Callable[[Path | None, int], Numbers]
    """Returns its numbers from the folder of measurements and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCase:
    """One bar of a figure whose chapter simulates it in its own way, in the size of the run."""

    label: str
    numbers: Callable[[RunSize, int, Path | None], Numbers]
    """Returns its numbers from the size, a seed, and the folder that temporary ones are made in (None: the default)."""
    lasting: bool = True
    """Its length follows the size's hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bar of a figure."""

    label: str
    experiment: str
    """The name of one of the simulator's, or of ``cluster``."""
    policy: Policy
    cluster: ClusterExperiment | None = None
    """An experiment that only a chapter has."""
    truth: Mapping[str, object] = field(default_factory=dict)
    """Parameters of the experiment's world to change."""
    cloud: Mapping[str, object] = field(default_factory=dict)
    """Settings of the experiment's cloud to change."""
    planner: Planner = make_plan
    """Decides instead of HCloud's planner."""
    commits: Strategy | None = None
    """The strategy by which machines are reserved, if not the policy's."""
    plain: bool = False
    """Without interference, and with a lower bound on cost."""
    guessed: bool = False
    """Users request what they guess; a planner that profiles may size their jobs."""
    oracle: bool = False
    """The planner knows the world's truth."""
    sensitive: float | None = None
    """Share of latency-critical jobs, if not the scenario's."""

    def make(self, seed: int, size: RunSize) -> Experiment:
        """Return the experiment in this size."""
        if self.cluster is not None:
            return self.cluster.make(self.experiment, seed, size.share)
        return make_experiment(self.experiment, seed, hours=size.hours, share=size.share, sensitive=self.sensitive)


def computed_cases(
    numbers: Callable[..., Numbers], labels: Iterable[str] = (), *, of: Mapping[str, Sequence[Any]] | None = None
) -> tuple[ComputedCase, ...]:
    """Return a case for each label, which calls ``numbers`` with its label, or what ``of`` has for it, and a folder and
    a seed."""
    arguments = of or {label: (label,) for label in labels}
    return tuple(ComputedCase(label=label, numbers=partial(numbers, *each)) for label, each in arguments.items())


def sized_cases(
    numbers: Callable[..., Numbers], labels: Iterable[str] = (), *, of: Mapping[str, Sequence[Any]] | None = None
) -> tuple[SizedCase, ...]:
    """Return such cases of a chapter that simulates itself, of a length that does not follow the size's hours."""
    arguments = of or {label: (label,) for label in labels}
    return tuple(
        SizedCase(label=label, numbers=partial(numbers, *each), lasting=False) for label, each in arguments.items()
    )


def given(folder: Path | None) -> Path:
    """Return the folder; figures of measurements are not run without."""
    assert folder is not None
    return folder


AnyCase = Case | ComputedCase | SizedCase
Ours = Callable[[Mapping[str, Numbers]], float]
"""Returns one number from those of one seed, by case."""
Results = Mapping[str, Sequence[Numbers]]
"""Numbers of each case by label, one per seed; the same index is the same seed everywhere."""
FinishedRuns = dict[str, dict[int, Numbers]]
"""What has been run of a figure so far, by case and seed."""


ENOUGH = 0.7
"""A published effect holds if this share of it is there."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The size of a published effect, as a number of the claim's unit."""

    published: float
    none: float = 0.0
    """The number if there were no effect: 1 for "so many times as much", 0 for "so many percent cheaper"."""

    def share(self, value: float) -> float:
        """Return which share of the effect ``value`` has; below 0: an effect of the opposite sign."""
        return (value - self.none) / (self.published - self.none)


class Verdict(StrEnum):
    """How our number stands beside the published one."""

    HOLDS = "holds"
    HOLDS_WITHIN_LIMITS = "holds within its limits"
    SAME_SIGN = "same sign"
    DEPARTS = "departs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of a paper: an effect of some size, or something that holds or does not."""

    text: str
    published: str
    ours: Ours
    """Returns our number for it from the numbers of one seed, by case."""
    effect: Effect | None = None
    """The published size, which judges the mean over seeds; None: ``holds`` does."""
    holds: Callable[[float], bool] = lambda _: False
    """Judges it where the paper states no size."""
    unit: str = ""
    why: str = ""
    """Why our result differs, as far as known."""


def number(case: str, name: str) -> Ours:
    """Return the number ``name`` of a case."""
    return lambda seed: seed[case][name]


def points_more(case: str, other: str, name: str) -> Ours:
    """Return by how many points a number is higher in ``case`` than in ``other``."""
    return lambda seed: seed[case][name] - seed[other][name]


def percent_more(case: str, other: str, name: str) -> Ours:
    """Return by how many percent a number is higher in ``case`` than in ``other``."""
    return lambda seed: 100.0 * (seed[case][name] / seed[other][name] - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Cases, the numbers shown for each, and claims about them."""

    name: str
    title: str
    source: str
    cases: tuple[AnyCase, ...]
    columns: tuple[str, ...]
    """Names of the numbers shown."""
    claims: tuple[Claim, ...] = ()
    drawn: str = ""
    """The number drawn in the chart; empty: no chart."""
    published: Mapping[str, float] = field(default_factory=dict)
    """The published value of that number, by the label of the case that it is of."""
    of_data: Callable[[Path], object] | None = None
    """Reads the measurements of others from which its numbers follow (``RunSize.data``), and raises BadInput where they
    are not there; None: they follow from none."""

    def reads(self, data: Path | None) -> bool:
        """Return whether it can be run with the measurements of a folder."""
        if self.of_data is None:
            return True
        try:
            return data is not None and self.of_data(data) is not None
        except BadInput:
            return False


def run_figure(
    figure: Figure, size: RunSize, workers: int | str, done: FinishedRuns, on_done: Callable[[str], object]
) -> None:
    """Run what is not ``done`` yet of a figure, and add it there.

    ``workers``: a number of parallel processes, or the address of a Dask scheduler whose workers run it.
    All cases run with one seed, then with the next. ``on_done`` gets a case's label once its numbers are in ``done``.
    """
    tasks = [
        (case, seed)
        for seed in range(size.seeds)
        for case in figure.cases
        if seed not in done.setdefault(case.label, {})
    ]
    with closing(_run_tasks(tasks, size, workers)) as each:
        for (case, seed), numbers in zip(tasks, each, strict=True):
            done[case.label][seed] = numbers
            on_done(case.label)


def complete_results(figure: Figure, done: FinishedRuns) -> Results:
    """Return the numbers of those seeds with which every case has been run."""
    per_case = [set(done.get(case.label, {})) for case in figure.cases]
    seeds = sorted(set.intersection(*per_case))
    return {case.label: [done[case.label][seed] for seed in seeds] for case in figure.cases}


def _run_tasks(tasks: Sequence[tuple[AnyCase, int]], size: RunSize, workers: int | str) -> Generator[Numbers]:
    cases, seeds = [case for case, _ in tasks], [seed for _, seed in tasks]
    if isinstance(workers, str):
        with dask_executor(workers) as pool:
            yield from pool.map(run_case, cases, seeds, [size] * len(tasks))
        return
    with quick_folder() as folder:
        if workers <= 1:
            yield from map(run_case, cases, seeds, repeat(size), repeat(folder))
            return
        with open_pool(workers) as pool:
            yield from pool.map(run_case, cases, seeds, repeat(size), repeat(folder))


def run_case(case: AnyCase, seed: int, size: RunSize, within: Path | None = None) -> Numbers:
    """Simulate or compute one case with one seed, in a temporary folder inside ``within`` or the default location."""
    if isinstance(case, ComputedCase):
        return case.numbers(size.data, seed)
    if isinstance(case, SizedCase):
        return case.numbers(size, seed, within)
    setting = setting_of(case, seed, size)
    # The load would go on in reality, so the tail after the last arrival is not paid; bounds include it, though.
    paid_s = None if case.plain else setting.workload.span_s
    with tempfile.TemporaryDirectory(dir=within) as folder:
        with simulated(setting, Path(folder)) as simulation:
            commitments = simulation.commitments()
            simulation.run()
            ideals, needs_vcpus = simulation.ideals(), simulation.needs_vcpus()
            outcome = outcome_of(case.label, simulation.events, commitments, ideals, paid_s, needs_vcpus)
            ran_s = run_times_s(setting.workload, simulation.events())
            lost = simulation.qos_losses(outcome.performance)
        if not case.plain:
            least = _cost_without_waste(case, seed, size, commitments, outcome.committed_usd)
            return {**numbers_of(outcome, paid_s or inf), **lost_numbers(lost, len(outcome.performance)), **least}
        if outcome.succeeded < outcome.jobs:  # leaving jobs undone may cost less than the bound
            return numbers_of(outcome)
        bound = distance(setting, Path(folder), [outcome], [ran_s], in_time=False)
    return {**numbers_of(outcome), "bound_usd": bound.usd, "times_bound": outcome.cost_usd / bound.usd}


def _cost_without_waste(
    case: Case, seed: int, size: RunSize, commitments: Sequence[Commitment], committed_usd: float
) -> Numbers:
    """Return the cost of the same commitments if exactly the load above them were rented by the minute.

    Then no rented machine boots, idles or is too large. Empty if the cloud does not sell machines by size.
    """
    made = case.make(seed, size)
    types = made.cloud.get("types")
    prices = [each["usd_per_h"] / each["vcpus"] for each in types.values()] if isinstance(types, Mapping) else []
    if not prices:
        return {}
    reserved = sum(each.count * each.vcpus for each in commitments)
    above_vcpu_h = sum(max(0.0, cores - reserved) for cores in made.workload.cores(60.0)) / 60.0
    return {"without_waste_usd": committed_usd + min(prices) * above_vcpu_h}


def setting_of(case: Case, seed: int, size: RunSize) -> Setting:
    """Return the simulation of a case.

    Reservations are made knowing the load: real needs if jobs are profiled, else what users request.
    """
    made = case.make(seed, size)
    cloud, policy, requested = {"keep_terminated_s": 600, **made.cloud, **case.cloud}, case.policy, made.workload
    if case.guessed:
        sized = policy.profiles_jobs and order_named(policy.placement.order).needs.sizes
        requested = with_user_requests(requested, seed, largest_vcpus=FULL_VCPUS, sized=sized)
    if "reserved" not in cloud:
        provisioning = replace(policy.provisioning, strategy=case.commits or policy.provisioning.strategy)
        known = made.workload if policy.profiles_jobs else requested
        cloud["reserved"] = reserved_for(replace(policy, provisioning=provisioning), known, cloud)
    truth = None if case.plain else replace(made.truth, **cast(Mapping[str, Any], case.truth))
    return Setting(
        workload=requested, policy=policy, cloud=cloud, seed=seed, truth=truth, planner=case.planner,
        oracle=case.oracle,
    )  # fmt: skip


def numbers_of(outcome: SimulationResult, paid_s: float = inf) -> Numbers:
    """Return the numbers that figures show; missing ones are left out. Machines up after ``paid_s`` are not paid.

    Raises HCloudError if planning failed during the run.
    """
    if outcome.planning_failed:
        raise HCloudError(f"planning failed on {outcome.planning_failed[0]}; these results would show a bug")
    turnarounds = [each.turnaround for each in outcome.performance] or [0.0]
    found = {
        "performance_pct": _percent(mean(outcome.performance)),
        "p5_pct": _percent(quantile(outcome.performance, 0.05)),
        "batch_pct": _percent(mean(outcome.performance, "batch")),
        "service_pct": _percent(mean(outcome.performance, "service")),
        "service_p5_pct": _percent(quantile(outcome.performance, 0.05, "service")),
        "qos_kept_pct": kept_pct(outcome.performance),
        "target_met_pct": outcome.target_met_pct,
        "cost_usd": outcome.cost_usd,
        "committed_usd": outcome.committed_usd,
        "metered_usd": outcome.metered_usd,
        "metered_sustained_usd": outcome.metered_usd * sustained_part(outcome.series, paid_s),
        "reserved_used_pct": share_pct(outcome.committed_held_vcpu_h, outcome.committed_vcpu_h),
        "used_pct": share_pct(outcome.held_vcpu_h, outcome.up_vcpu_h),
        "wait_p95_s": outcome.wait_quantile_s(0.95),
        "turnaround_pct": _percent(fmean(turnarounds)),
        "turnaround_p5_pct": _percent(float(np.quantile(turnarounds, 0.05))),
        "used_once_pct": share_pct(outcome.used_once, outcome.launches),
        "misbehaved_pct": share_pct(outcome.misbehaved, outcome.launches),
        "jobs": float(outcome.jobs),
        **{f"spent_{account}_usd": usd for account, usd in outcome.spending.usd.items()},
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def lost_numbers(lost: Mapping[str, int], jobs: int) -> Numbers:
    """Return the percentage of all jobs that lost their QoS, by cause."""
    return {f"lost_by_{name}_pct": 100.0 * lost.get(name, 0) / max(1, jobs) for name in (TYPE, NEIGHBOURS, REST)}


def _percent(part: float | None) -> float | None:
    return None if part is None else 100.0 * part


def by_seed(found: Results) -> Iterable[Mapping[str, Numbers]]:
    """Yield, for each seed, the numbers of every case."""
    labels = list(found)
    for together in zip(*found.values(), strict=True):
        yield dict(zip(labels, together, strict=True))


def judge(claim: Claim, found: Results) -> tuple[Mean, Verdict]:
    """Return our number for a claim (over seeds), and how it stands beside the published one.

    A claim holds if at least ``ENOUGH`` of the published effect is there, on average or within the 95 % limits; with
    less of it the sign is the same, unless the limits include no effect.
    """
    ours = mean_of([claim.ours(numbers) for numbers in by_seed(found)])
    reach = ours.half_width or 0.0
    limits = (ours.rounded - reach, ours.rounded + reach)
    if claim.effect is None:
        if claim.holds(ours.rounded):
            return ours, Verdict.HOLDS
        return ours, Verdict.HOLDS_WITHIN_LIMITS if any(map(claim.holds, limits)) else Verdict.DEPARTS
    if claim.effect.share(ours.rounded) >= ENOUGH:
        return ours, Verdict.HOLDS
    shares = [claim.effect.share(limit) for limit in limits]
    if max(shares) >= ENOUGH:
        return ours, Verdict.HOLDS_WITHIN_LIMITS
    return ours, Verdict.SAME_SIGN if min(shares) > 0.0 else Verdict.DEPARTS
