"""``python -m bench.rules``: what each rule of thumb of the planner is worth, switched off alone, in several worlds.

All variants of a world run with the same seeds, jobs and machines, and interference affects run times. A row shows how
much more a world costs without the rule, and how many more points of targets are met, seed by seed, with 95 % limits.
*Fired* is counted with the first seed: at each cycle the plan is also made with the rule, from the same snapshot, and
the jobs and machines that the two plans treat differently are counted. A rule that never fires with the first seed
is not run with the others. Where ``--results`` names a file, runs are kept there, and those it has are not run again.

The worlds ``kth`` and ``curie`` replay parts of two public job logs (``--logs``, ``../shared/data/jobs`` beside the
repository); without these files they are skipped.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from hcloud.config import load_policy, package_data
from hcloud.core.model import BatchTarget, BestEffortTarget, EventKind, FailureCause, JobSpec, ProgressHook, Resources
from hcloud.planner import make
from hcloud.planner.cache import PlanCache
from hcloud.planner.make import make_plan
from hcloud.planner.placement import holdback
from hcloud.planner.plan import Correct, Drain, Launch, Place, Plan, Profile, StopAttempt, StopRank, Terminate
from hcloud.planner.snapshot import LeftOut, Snapshot
from hcloud.planner.spot_preemption import SpotDeadlines, SpotRisk
from hcloud.simulator.clouds import SPOT
from hcloud.simulator.clusters import gce
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.pool import in_order, open_pool
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.seeds import mean_of
from hcloud.simulator.workload import MIB_PER_VCPU, Arrival, Workload, workload_of
from hcloud.simulator.world import CLOUDS_OF_2014, Truth
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest
from lab.papers.study import Case, RunSize, setting_of

LOGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "jobs"
DEFAULT = load_policy(package_data.path("policies") / "default.yaml")
WITH_ALL = "as shipped"
"""The variant that the others are compared with."""
FIRING_SEEDS = 1
"""A rule that does not fire with so many seeds is not run with more."""
HOUR_S = 3600.0
MOST_LOGGED, LONGEST_LOGGED_S = 60, 4 * HOUR_S
"""Of a log at most so many jobs are taken for one simulation, and none that ran longer."""
FIGURES = {
    "cost_pct": "cost %",
    "targets": "targets",
    "services": "services",
    "performance": "performance",
    "wait_p95_s": "wait p95 s",
}
"""Shown differences: cost in percent of the variant with all rules, the rest in points or seconds."""


def _with(policy: Policy, section: str, **values: object) -> Policy:
    return replace(policy, **{section: replace(getattr(policy, section), **cast(dict[str, Any], values))})


# -------------------------------------------------------------------------------------------------------------- worlds
@dataclass(frozen=True, slots=True, kw_only=True)
class RulesWorld:
    """Load, machines and the truth about programs, the same for all variants."""

    summary: str
    setting: Callable[[Policy, int], Setting]
    """Returns the simulation of a policy with one seed."""
    base: Policy = DEFAULT


def _scenario(
    policy: Policy,
    seed: int,
    experiment: str,
    share: float,
    *,
    guessed: bool,
    cloud: Mapping[str, object],
    truth: Mapping[str, float] | None = None,
) -> Setting:
    case = Case(
        label="", experiment=experiment, policy=policy, guessed=guessed, cloud=cloud, truth=truth or {}
    )  # fmt: skip
    return setting_of(case, seed, RunSize(share=share, hours=1.0))


RESERVED: Mapping[str, object] = {"reserved": {"n1.16": 2}}
WITH_SPOT: Mapping[str, object] = {
    "reserved": {"n1.16": 1},
    "markets": ["on_demand", "reserved", "spot"],
    "spot": SPOT,
}


def _job(
    number: int, at_s: float, run_s: float, vcpus: float, *, program: str, user: str, within_s: float | None
) -> Arrival:
    spec = JobSpec(
        name=f"{program}-{number}",
        user=user,
        command=(program,),
        target=BestEffortTarget() if within_s is None else BatchTarget(finish_within_s=within_s),
        resources=Resources(vcpus=vcpus, memory_mib=max(1, int(vcpus * MIB_PER_VCPU))),
        progress=ProgressHook(file="progress"),
        tags={"program_kind": "single"},
    )
    return Arrival(at_s=at_s, run_s=run_s, spec=spec)


def _rented(policy: Policy, workload: Workload, seed: int, markets: Sequence[str]) -> Setting:
    cloud = {**gce(), "markets": list(markets), "spot": SPOT, "keep_terminated_s": 600}
    return Setting(workload=workload, policy=policy, cloud=cloud, seed=seed, truth=Truth())


def _evictions(policy: Policy, seed: int) -> Setting:
    """Ten long best-effort jobs; a short job with a deadline comes every minute for four hours."""
    rng = np.random.default_rng([seed, 1])
    long = [
        _job(n, float(rng.uniform(0, 600)), float(rng.uniform(1, 4)) * HOUR_S, 2, program=f"long-{n % 3}",
             user="research", within_s=None)
        for n in range(10)
    ]  # fmt: skip
    short = [
        _job(n, 60.0 * n + float(rng.uniform(0, 30)), float(rng.uniform(30, 120)), 2, program=f"short-{n % 3}",
             user="web", within_s=300.0)
        for n in range(240)
    ]  # fmt: skip
    return _rented(policy, workload_of("evictions", long + short), seed, ("on_demand",))


@lru_cache(maxsize=2)
def _log(path: Path) -> list[dict[str, float]]:
    with gzip.open(path, "rt") as file:
        return [
            {name: float(row[name]) for name in ("submit_s", "runtime_s", "procs", "req_time_s", "user")}
            for row in csv.DictReader(file)
        ]


def _from_log(policy: Policy, seed: int, path: Path, hours: float, per_vcpu: int) -> Setting:
    """A part of a log, another with each seed; ``per_vcpu`` of its processors are one vCPU, and jobs must end within
    what their users requested."""
    rows = [row for row in _log(path) if 0 < row["runtime_s"] <= LONGEST_LOGGED_S and row["procs"] > 0]
    span_s, length_s = rows[-1]["submit_s"], hours * HOUR_S
    # Parts spread over the log; one without 20 jobs is left out.
    for turn in range(1000):
        begin_s = np.random.default_rng([seed, turn]).uniform(0, span_s - length_s)
        chosen = [row for row in rows if begin_s <= row["submit_s"] < begin_s + length_s]
        if len(chosen) >= 20:
            break
    jobs = []
    for number, row in enumerate(chosen[:MOST_LOGGED]):
        vcpus = float(min(16, max(1, round(row["procs"] / per_vcpu))))
        within_s = max(row["req_time_s"], row["runtime_s"] * 1.5) + 600.0
        program = f"u{row['user']:.0f}-{row['procs']:.0f}"
        jobs.append(
            _job(number, row["submit_s"], row["runtime_s"], vcpus, program=program, user=f"u{row['user']:.0f}",
                 within_s=within_s)
        )  # fmt: skip
    return _rented(policy, workload_of(path.name, jobs), seed, ("on_demand", "spot"))


def _worlds(logs: Path) -> dict[str, RulesWorld]:
    high = partial(_scenario, experiment="high-variability", share=0.1, cloud=RESERVED)
    found = {
        "guess": RulesWorld(summary="high variability, users guess sizes", setting=partial(high, guessed=True)),
        "know": RulesWorld(summary="high variability, users know sizes", setting=partial(high, guessed=False)),
        "clouds-of-2014": RulesWorld(
            summary="high variability, users guess sizes, other tenants slow small machines as in 2014",
            setting=partial(high, guessed=True, truth={"external_severity": CLOUDS_OF_2014.external_severity}),
        ),
        "spot": RulesWorld(
            summary="low variability with spot machines, users guess sizes",
            setting=partial(_scenario, experiment="low-variability", share=0.05, cloud=WITH_SPOT, guessed=True),
        ),
        "capped": RulesWorld(
            summary="high variability, at most 10 machines, users know sizes",
            setting=partial(high, guessed=False),
            base=_with(DEFAULT, "caps", max_instances=10),
        ),
        "evictions": RulesWorld(
            summary="ten long best-effort jobs, a short one with a deadline every minute; 32 vCPUs at most",
            setting=_evictions,
            base=_with(DEFAULT, "caps", max_vcpus=32),
        ),
        "evictions-full": RulesWorld(
            summary="the same, 22 vCPUs at most, of which the long jobs need 20",
            setting=_evictions,
            base=_with(DEFAULT, "caps", max_vcpus=22),
        ),
    }
    for name, file, hours, per_vcpu in (
        ("kth", "kth_sp2.csv.gz", 24.0, 2),
        ("curie", "cea_curie_sample.csv.gz", 3.0, 256),
    ):
        if (logs / file).is_file():
            found[name] = RulesWorld(
                summary=f"{hours:g} h of the log {file.partition('.')[0]}",
                setting=partial(_from_log, path=logs / file, hours=hours, per_vcpu=per_vcpu),
            )
    return found


# --------------------------------------------------------------------------------------------------------------- rules
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of thumb, and how a variant goes without it."""

    without: str
    """What the variant does."""
    change: Callable[[Policy], Policy] = lambda policy: policy
    patch: Callable[[], AbstractContextManager[object]] = nullcontext
    """Changes code while the variant plans, for rules without a key."""
    skip_stage: str = ""
    """A stage of the plan that the variant leaves out."""


def _key(section: str, **values: object) -> Rule:
    text = ", ".join(f"{section}.{name}: {_plain(value)}" for name, value in values.items())
    return Rule(without=text, change=lambda policy: _with(policy, section, **values))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


@contextmanager
def _replaced(place: object, name: str, by: object) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, by)
    try:
        yield
    finally:
        setattr(place, name, before)


def _not_held(_: object, __: object, ___: object) -> None:
    return None


def _without_holdback(name: str) -> Rule:
    return Rule(
        without="patched out", patch=partial(_replaced, getattr(holdback, name), "held_back", _not_held)
    )  # fmt: skip


def _without_step(name: str) -> Rule:
    steps = tuple(each for each in DEFAULT.correction.steps if each != name)
    return _key("correction", steps=steps)


RULES: Mapping[str, Rule] = {
    # Which instances are held back
    "keep_for_dearer": _key("provisioning", keep_for_dearer=0.0),
    "keep_for_quiet": _key("provisioning", keep_for_quiet=1.3),
    "drain": _key("retention", drain=False),
    "services_apart": _key("placement", services_apart=False),
    "failing_services": _without_holdback("FailingServices"),
    "too_small": _without_holdback("TooSmall"),
    # How long machines are kept, and which are emptied
    "learn": _key("retention", learn=False),
    "spin_up_multiple_0": _key("retention", learn=False, spin_up_multiple=0.0),
    "spin_up_multiple_10": _key("retention", learn=False, spin_up_multiple=10.0),
    "upsizing": Rule(without="patched out", patch=partial(_replaced, make, "upsize_machines", lambda _: None)),
    "lateness": Rule(without="stage left out", skip_stage="lateness"),
    # Evictions
    "eviction": _key("disruption", evict_best_effort=False),
    # Spot
    "most_losses": _key("spot", most_losses=0),
    "quick_losses": _key("spot", quick_losses=0),
    "spot_risk": Rule(without="patched out", patch=partial(_replaced, SpotRisk, "cost_factor", lambda *_: 1.0)),
    "spot_deadlines": Rule(
        without="patched out", patch=partial(_replaced, SpotDeadlines, "avoids_spot", lambda *_: False)
    ),
    # Queues and mapping
    "queues": _key("admission", queues="one"),
    "wait_for_suitable": _key("admission", tolerance=1e-6, patience_s=1e-3),
    "dynamic_limit": _key("provisioning", soft_limit_fall_per_job=0.0),
    "limits": _key("provisioning", soft_limit=1.0, hard_limit=1.0, soft_limit_fall_per_job=0.0),
    "mapping_p6": _key("provisioning", mapping="p6"),
    "wait_quantile": _key("provisioning", wait_quantile=0.5),
    "unmeasured_quality": _key("provisioning", unmeasured_quality_small=0.5),
    # Placement
    "neighbour_tolerance": _key("placement", neighbour_tolerance=0.99),
    "confidence": _key("placement", confidence=0.5),
    # Profiling
    "profiling": _key("profiling", when="never"),
    "expected_saving": _key("profiling", expected_saving=1.0, expected_saving_sized=1.0),
    "sources": _key("profiling", sources=()),
    "types": _key("profiling", types=1),
    "skip_if_shorter": _key("profiling", skip_if_shorter_than_s=0.0),
    "fruitless_runs": _key("profiling", fruitless_runs=1000),
    # Corrections
    "corrections": _key("correction", steps=()),
    **{f"correct_{name}": _without_step(name) for name in DEFAULT.correction.steps},
    "promise_worth": _key("correction", promise_worth=1.0),
    "phase_checks": _key("correction", sample_share=0.0),
    "stragglers": _key("correction", max_relaunches_per_attempt=0),
}  # fmt: skip
"""By name. Of rules that are off as shipped the variant has them on."""


# ---------------------------------------------------------------------------------------------------------------- runs
@dataclass(slots=True, eq=False)
class VariantPlanner:
    """Plans without one rule; counts what the plan with it would have decided differently from the same snapshot."""

    rule: Rule | None
    base: Policy
    """The policy with all rules."""
    counts: bool
    differing: set[str] = field(default_factory=set)
    """Jobs placed by one plan only, or elsewhere or in another size; machines terminated by one plan only; types
    launched by one plan only."""
    cache: PlanCache = field(default_factory=PlanCache)
    """Of the plans with all rules."""

    def plan(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Return the plan without the rule."""
        if self.rule is None:
            return make_plan(snapshot, policy, rng)
        spare, stage = copy.deepcopy(rng) if self.counts else rng, self.rule.skip_stage
        seen = snapshot
        if stage:
            stages = {**snapshot.left_out.stages, stage: "ablation"}
            seen = replace(snapshot, left_out=LeftOut(jobs=snapshot.left_out.jobs, stages=stages))
        with self.rule.patch():
            made = make_plan(seen, policy, rng)
        if self.counts:
            other = make_plan(replace(snapshot, plan_cache=self.cache), self.base, spare)
            self.differing |= {name for name, _ in decisions(made) ^ decisions(other)}
        return made


def decisions(plan: Plan) -> set[tuple[str, object]]:
    """Return what a plan does to jobs and machines, by their names."""
    found: set[tuple[str, object]] = set()
    for action in plan.actions:
        if isinstance(action, Place):
            found.add((action.job_id, tuple((rank.instance_id, rank.resources.vcpus) for rank in action.ranks)))
        elif isinstance(action, Terminate | Drain):
            found.add((action.instance_id, type(action).__name__))
        elif isinstance(action, StopAttempt | StopRank | Correct):
            found.add((action.job_id, type(action).__name__))
        elif isinstance(action, Profile):
            found.add((f"profile of {action.job_id}", tuple(run.profile for run in action.runs)))
        elif isinstance(action, Launch):
            found.add((f"launch of {action.offer.key}", action.for_jobs))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One simulation to run."""

    world: str
    rule: str
    seed: int
    logs: Path
    counts: bool
    """Count how often the rule fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation."""

    world: str
    rule: str
    seed: int
    numbers: Mapping[str, float]
    fired: int | None
    """How many jobs and machines were decided differently; None: not counted."""


def run_task(task: Task) -> Run:
    """Simulate one variant with one seed."""
    world = _worlds(task.logs)[task.world]
    rule = None if task.rule == WITH_ALL else RULES[task.rule]
    policy = world.base if rule is None else rule.change(world.base)
    planner = VariantPlanner(rule=rule, base=world.base, counts=task.counts and rule is not None)
    setting = replace(world.setting(policy, task.seed), planner=planner.plan)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of(task.rule, simulation.events, commitments, simulation.ideals(), setting.workload.span_s)
        ends = (event.fields.get("cause") for event in simulation.events() if event.kind is EventKind.UNIT_ENDED)
        evicted = sum(cause == FailureCause.EVICTED.value for cause in ends)
    if outcome.planning_failed:
        raise RuntimeError(f"planning failed: {outcome.planning_failed[0]}")
    performance = [each.running for each in outcome.performance]
    numbers = {
        "cost_usd": outcome.cost_usd,
        "targets": outcome.target_met_pct,
        "services": outcome.service_met_pct,
        "performance": 100 * float(np.mean(performance)) if performance else None,
        "wait_p95_s": outcome.wait_quantile_s(0.95),
        "evicted": float(evicted),
        "ended": float(outcome.succeeded),
    }
    known = {name: float(value) for name, value in numbers.items() if value is not None}
    fired = len(planner.differing) if planner.counts else None
    return Run(world=task.world, rule=task.rule, seed=task.seed, numbers=known, fired=fired)


# ------------------------------------------------------------------------------------------------------------- results
class ResultsFile:
    """Runs that are kept, one JSON object a line."""

    def __init__(self, path: Path | None) -> None:
        """Read what ``path`` has. Raises ValueError for a line that is none of a run."""
        self._path, self.runs = path, dict[tuple[str, str, int], Run]()
        for number, line in enumerate(path.read_text().splitlines() if path and path.exists() else (), 1):
            try:
                run = Run(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: is no run of this command ({error})") from error
            self.runs[run.world, run.rule, run.seed] = run

    def add(self, run: Run) -> None:
        """Keep one more run."""
        self.runs[run.world, run.rule, run.seed] = run
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")

    def fired(self, world: str, rule: str, seeds: Sequence[int]) -> int:
        """Return how often a rule fired with those of ``seeds`` for which it was counted."""
        found = (self.runs.get((world, rule, seed)) for seed in seeds)
        return sum(run.fired or 0 for run in found if run is not None)


def run_world(
    world: str, rules: Sequence[str], seeds: Sequence[int], logs: Path, processes: int, kept: ResultsFile
) -> None:
    """Run what is missing of one world: all rules with the first seeds, then those that fired with the others."""
    first, others = seeds[:FIRING_SEEDS], seeds[FIRING_SEEDS:]
    _run([*_tasks(world, [WITH_ALL], seeds, logs), *_tasks(world, rules, first, logs, counts=True)], processes, kept)
    acting = [rule for rule in rules if kept.fired(world, rule, first)]
    _run(_tasks(world, acting, others, logs), processes, kept)


def _tasks(world: str, rules: Sequence[str], seeds: Sequence[int], logs: Path, counts: bool = False) -> list[Task]:
    return [Task(world=world, rule=rule, seed=seed, logs=logs, counts=counts) for rule in rules for seed in seeds]


def _run(tasks: Sequence[Task], processes: int, kept: ResultsFile) -> None:
    missing = [task for task in tasks if (task.world, task.rule, task.seed) not in kept.runs]
    with open_pool(processes) as pool:
        for number, run in enumerate(in_order(pool, run_task, missing, processes + 1), 1):
            kept.add(run)
            print(f"  {run.world} {number}/{len(missing)}: {run.rule}, seed {run.seed}", file=sys.stderr, flush=True)


def differences(without: Sequence[Run], base: Sequence[Run]) -> dict[str, list[float]]:
    """Return by figure how a variant differs from the runs with all rules, seed by seed."""
    found = dict[str, list[float]]()
    for figure in FIGURES:
        name = "cost_usd" if figure == "cost_pct" else figure
        pairs = [(one.numbers.get(name), other.numbers.get(name)) for one, other in zip(without, base, strict=True)]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        if figure == "cost_pct":
            found[figure] = [100.0 * (one / other - 1.0) for one, other in known if other]
        else:
            found[figure] = [one - other for one, other in known]
    return found


def rows(world: str, rules: Sequence[str], seeds: Sequence[int], kept: ResultsFile) -> Iterator[str]:
    """Yield the rows of a table in Markdown about one world."""
    yield "| rule | without it | fired | seeds | " + " | ".join(FIGURES.values()) + " | evictions |"
    yield "|" + "---|" * (5 + len(FIGURES))
    for rule in (WITH_ALL, *rules):
        done = [seed for seed in seeds if (world, rule, seed) in kept.runs and (world, WITH_ALL, seed) in kept.runs]
        if not done:
            continue
        runs, base = ([kept.runs[world, name, seed] for seed in done] for name in (rule, WITH_ALL))
        if rule == WITH_ALL:
            values = [_mean([run.numbers["cost_usd"] for run in runs], " USD")]
            values += [_mean([run.numbers[each] for run in runs if each in run.numbers]) for each in list(FIGURES)[1:]]
        else:
            values = [_mean(each, sign=True) for each in differences(runs, base).values()]
        fired = kept.fired(world, rule, seeds) if rule != WITH_ALL else ""
        evicted = _mean([run.numbers["evicted"] for run in runs])
        words = RULES[rule].without if rule != WITH_ALL else ""
        yield f"| `{rule}` | {words} | {fired} | {len(done)} | {' | '.join(values)} | {evicted} |"


def summary(worlds: Sequence[str], rules: Sequence[str], seeds: Sequence[int], kept: ResultsFile) -> Iterator[str]:
    """Yield the rows of one table in Markdown: what each rule is worth in each world."""
    yield "| without | " + " | ".join(worlds) + " |"
    yield "|" + "---|" * (1 + len(worlds))
    for rule in rules:
        yield f"| `{rule}` | {' | '.join(_worth(world, rule, seeds, kept) for world in worlds)} |"


def _worth(world: str, rule: str, seeds: Sequence[int], kept: ResultsFile) -> str:
    """Return how much more a world costs without a rule, in percent, and how many more points of targets are met; "-"
    if it never fired, "" if it was not tried."""
    done = [seed for seed in seeds if (world, rule, seed) in kept.runs and (world, WITH_ALL, seed) in kept.runs]
    if not done:
        return ""
    if not kept.fired(world, rule, seeds):
        return "-"
    runs, base = ([kept.runs[world, name, seed] for seed in done] for name in (rule, WITH_ALL))
    found = differences(runs, base)
    texts = [f"{mean_of(values).value:+.1f}" if values else "-" for values in (found["cost_pct"], found["targets"])]
    shown = zip(texts, (found["cost_pct"], found["targets"]), strict=True)
    return " / ".join(f"**{text}**" if values and _beyond_chance(values) else text for text, values in shown)


def _mean(values: Sequence[float], unit: str = "", *, sign: bool = False) -> str:
    if not values:
        return "-"
    text = mean_of(values).text() + unit
    return f"**{text}**" if sign and _beyond_chance(values) else text


def _beyond_chance(values: Sequence[float]) -> bool:
    """Return whether the 95 % limits of a mean difference exclude 0."""
    made = mean_of(values)
    return made.half_width is not None and abs(made.value) > made.half_width


def main() -> int:
    """Simulate what is missing, and print a table for each world, then one of all."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("rules", nargs="*", metavar="RULE", help=f"default: all; {', '.join(RULES)}")
    parser.add_argument("--worlds", nargs="+", help="default: all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of job logs (default: ../shared/data/jobs)")
    parser.add_argument("--results", type=Path, help="a file that keeps all runs, one a line")
    given = parser.parse_args()
    worlds = _worlds(given.logs)
    if unknown := [each for each in given.rules if each not in RULES]:
        parser.error(f"there is no rule {unknown[0]!r}; {nearest(unknown[0], RULES)}")
    if unknown := [each for each in given.worlds or () if each not in worlds]:
        parser.error(f"there is no world {unknown[0]!r}; {nearest(unknown[0], worlds)}")
    if given.seeds < 1 or given.first_seed < 0 or given.processes < 1:
        parser.error("--seeds and --processes must be at least 1, --first-seed 0 or more")
    try:
        kept = ResultsFile(given.results)
    except (OSError, ValueError) as error:
        parser.error(f"--results: {error}")
    rules, seeds = given.rules or list(RULES), range(given.first_seed, given.first_seed + given.seeds)
    for name in given.worlds or worlds:
        run_world(name, rules, seeds, given.logs, given.processes, kept)
        print(f"\n{name}: {worlds[name].summary}; seeds {seeds[0]} to {seeds[-1]}\n")
        print(*rows(name, rules, seeds, kept), sep="\n", flush=True)
    print("\nall: cost in % / points of targets met, without a rule; bold: beyond chance (95 %); -: it never acted\n")
    print(*summary(tuple(given.worlds or worlds), rules, seeds, kept), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
