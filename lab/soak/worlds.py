"""Small worlds drawn from a seed: clouds with scripted faults, policies, and jobs of every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    FailureCause,
    JobSpec,
    MetricsHook,
    Nodes,
    Resources,
    Retries,
    ServiceTarget,
    Spread,
    Target,
)
from hcloud.fake_runner.runner import Work, read_work
from hcloud.planner.make import OPTIONAL_STAGES
from hcloud.provider import UnitSpec
from hcloud.spec.policy import Policy, parse_policy
from lab.soak.planted_defects import DEFECT, FAILING_STEPS

FAULTS_LAST_S = 240.0
"""Faults occur only in the first part of a run."""
DAY_STARTS_AT = (1_900_022_400.0, 1_901_232_000.0)
"""Two midnights: an ordinary one, and the first of a month (2030-04-01)."""
ON_TERM, NEEDED_VCPUS, EXPECTED = "ON_TERM", "THIRST", "deserves"
"""Names on a soak job. The environment says how it reacts to TERM, and the vCPUs a service needs to meet its latency
(more than it requests). The tag says how the job must end."""
PATIENT = Retries(limits={cause.value: 1000 for cause in FailureCause}, backoff_s=1.0, backoff_cap_s=10.0)
STRATEGIES = ("best_value", "best_value", "odf", "odm", "hf", "hm")
ORDERS = ("least_loaded", "first_fit", "random", "paragon", "quasar")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that a client submits, and perhaps cancels."""

    at_s: float
    """Submission, in seconds from the start."""
    spec: JobSpec
    token: str
    cancel_at_s: float | None = None
    """Cancellation, in seconds from the start; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Chances of each fault per cycle while faults last, and switches for a whole world."""

    kill: float
    pause: float
    commit: float
    database_away: float
    engine_away: float
    silence: float
    start: float
    storm: float
    death: float
    sleep: float
    clock_step: float
    policy: float
    operator_pause: float
    two_daemons: bool
    """Two daemons share the database."""
    foreign_launches: float
    """Another tenant launches a machine on the account."""
    directives: float
    """An operator drains or destroys a machine, or withdraws a directive."""
    midnight_jumps: float
    """Nothing happens until about midnight."""
    abandoned: bool
    """After the faults, all daemons are down for longer than any machine may live."""
    refused_resizes: float = 0.0
    """A machine starts to refuse every resize of its units."""
    failing_stage: str = ""
    """Planning fails in this stage; tags say on which jobs it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakWorld:
    """All inputs of a soak run."""

    seed: int
    starts_at: float
    clouds: Mapping[str, Mapping[str, object]]
    """Settings of mock providers by name."""
    policies: tuple[Policy, ...]
    """The first one is in force at the start."""
    jobs: tuple[PlannedJob, ...]
    fault_rates: FaultRates


def draw_world(seed: int) -> SoakWorld:
    """Return the world of a seed."""
    rng, more = np.random.default_rng([seed, 77]), np.random.default_rng([seed, 79])
    rates = _draw_rates(rng, more)
    names = ["mock"] if rng.random() < 0.7 else ["alpha", "beta"]
    usd_per_h = float(rng.choice([3.6, 18.0]))
    clouds = {name: _extend_cloud(more, _cloud(rng, seed, usd_per_h)) for name in names}
    policy_count = 1 if rates.policy == 0 else 4
    limits = _Limits.draw(more, usd_per_h, nights=rates.midnight_jumps > 0)
    world = SoakWorld(
        seed=seed,
        starts_at=_start_time(rng),
        clouds=clouds,
        policies=tuple(_policy(rng, names, n, usd_per_h, limits) for n in range(policy_count)),
        jobs=tuple(_extend_job(more, _job(rng, n), usd_per_h, limits) for n in range(int(rng.integers(3, 11)))),
        fault_rates=rates,
    )
    # Each later addition has a generator of its own, so that it changes nothing else of older seeds.
    for number, chance, change in (
        (82, 0.3, _with_undersized_services),
        (83, 0.2, _with_defects),
        (84, 0.25, _with_failing_steps),
        (85, 0.2, _with_memory_heavy_jobs),
        (86, 0.25, _with_demands),
        (87, 0.2, _with_agreed_prices),
    ):
        own_rng = np.random.default_rng([seed, number])
        world = change(own_rng, world) if own_rng.random() < chance else world
    return world


def _with_memory_heavy_jobs(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with half of its jobs using much memory and few vCPUs, so that shares add up to more than a
    machine."""
    jobs = list(world.jobs)
    for at in rng.permutation(len(jobs))[: (len(jobs) + 1) // 2]:
        if jobs[at].spec.resources.vcpus < 2:
            jobs[at] = replace(jobs[at], spec=replace(jobs[at].spec, resources=Resources(vcpus=0.2, memory_mib=3000)))
    return replace(world, jobs=tuple(jobs))


def _with_demands(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with half of its jobs asking for zones, for nodes apart, or to be apart from other jobs."""
    fewest_zones = min(len(_zones(world, policy)) for policy in world.policies)

    def demand(job: PlannedJob) -> PlannedJob:
        choice, spec = rng.random(), job.spec
        if spec.nodes.count > 1:
            spread: Spread = "zone" if choice < 0.5 and fewest_zones >= spec.nodes.count else "host"
            constraints = Constraints(spread=spread)
        else:
            constraints = Constraints(zones=("east-1*",)) if choice < 0.5 else Constraints(apart_from=("job *",))
        return replace(job, spec=replace(spec, placement=constraints))

    jobs = tuple(demand(job) if rng.random() < 0.5 else job for job in world.jobs)
    return replace(world, jobs=jobs)


def _zones(world: SoakWorld, policy: Policy) -> set[str]:
    """Return the zones of the clouds that a policy allows."""
    allowed = policy.allow.providers
    clouds = [cloud for name, cloud in world.clouds.items() if allowed is None or name in allowed]
    return {str(zone) for cloud in clouds for zone in cast(Sequence[str], cloud["zones"])}


def _with_agreed_prices(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with machines that cost less than their offers say."""
    factor = float(rng.choice([0.6, 0.9]))
    clouds = {name: {**cloud, "launched_price_factor": factor} for name, cloud in world.clouds.items()}
    return replace(world, clouds=clouds)


def _with_failing_steps(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with two to four jobs on which starting, stopping, observing or the like fails."""
    jobs = list(world.jobs)
    for at in rng.permutation(len(jobs))[: int(rng.integers(2, 5))]:
        tags = {**jobs[at].spec.tags, DEFECT: str(rng.choice(FAILING_STEPS))}
        jobs[at] = replace(jobs[at], spec=replace(jobs[at].spec, tags=tags))
    return replace(world, jobs=tuple(jobs))


def _with_defects(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with a failing stage, or with one or two jobs on which planning or placing fails, or with
    both."""
    kind, jobs = rng.random(), list(world.jobs)
    for at in rng.permutation(len(jobs))[: int(rng.integers(1, 3))] if kind < 0.8 else ():
        job, when = jobs[at], str(rng.choice(["waiting", "running", "always", "placing"]))
        jobs[at] = replace(job, spec=replace(job.spec, tags={**job.spec.tags, DEFECT: when}))
    stage = str(rng.choice(OPTIONAL_STAGES)) if kind > 0.6 else ""
    return replace(world, jobs=tuple(jobs), fault_rates=replace(world.fault_rates, failing_stage=stage))


def _with_undersized_services(rng: np.random.Generator, world: SoakWorld) -> SoakWorld:
    """Return the world with services that need more than they request, and policies that detect and resize them
    soon."""

    def undersize(job: PlannedJob) -> PlannedJob:
        vcpus, runs_s, spec = float(rng.choice([0.5, 0.8])), float(rng.integers(40, 200)), job.spec
        env = {**spec.env, NEEDED_VCPUS: f"{vcpus * rng.uniform(1.1, 1.8):.3f}"}
        if rng.random() < 0.3 or spec.tags[EXPECTED] != "succeeded" or spec.exclusive:
            return job
        changes: dict[str, Any] = {
            "command": ("/bin/sh", "-c", f"sleep {runs_s:g}; exit 0"),
            "resources": replace(spec.resources, vcpus=vcpus),
            "nodes": Nodes(count=2, minimum=2) if rng.random() < 0.4 else spec.nodes,
            "target": ServiceTarget(requests_per_s=10.0, latency_ms=50.0),
            "metrics": MetricsHook(probe=("true",), every_s=5.0),
        }
        return replace(job, spec=replace(spec, env=env, **changes))

    def correct_early(policy: Policy) -> Policy:
        return replace(policy, correction=replace(policy.correction, settle_s=5.0, readings=3))

    rates = replace(world.fault_rates, refused_resizes=float(rng.choice([0.0, 0.03])))
    policies, jobs = tuple(map(correct_early, world.policies)), tuple(map(undersize, world.jobs))
    return replace(world, policies=policies, jobs=jobs, fault_rates=rates)


def _start_time(rng: np.random.Generator) -> float:
    """Return a start time; half of them have a day or month end while faults last."""
    midnight = float(rng.choice(DAY_STARTS_AT))
    return midnight - float(rng.uniform(20, FAULTS_LAST_S)) if rng.random() < 0.5 else midnight + 40_000.0


def _draw_rates(rng: np.random.Generator, more: np.random.Generator) -> FaultRates:
    """Return fault rates; each fault occurs in about half of the worlds, with a random rate."""

    def rate(highest: float, worlds: float = 0.5, rng: np.random.Generator = rng) -> float:
        # 10 to 100 % of the highest rate in a share of the worlds, else 0.
        present, factor = rng.random() < worlds, float(rng.uniform(0.1, 1.0))
        return highest * factor if present else 0.0

    return FaultRates(
        kill=rate(0.08),
        pause=rate(0.1),
        commit=rate(0.2),
        database_away=rate(0.04, 0.3),
        engine_away=rate(0.08),
        silence=rate(0.08),
        start=rate(0.2),
        storm=rate(0.06),
        death=rate(0.06),
        sleep=rate(0.02, 0.3),
        clock_step=rate(0.05, 0.3),
        policy=rate(0.06, 0.5),
        operator_pause=rate(0.04, 0.3),
        two_daemons=bool(rng.random() < 0.25),
        foreign_launches=rate(0.1, 0.5, more),
        directives=rate(0.05, 0.3, more),
        midnight_jumps=rate(0.03, 0.25, more),
        abandoned=bool(more.random() < 0.2),
    )


# --------------------------------------------------------------------------------------------------------------- clouds
def _cloud(rng: np.random.Generator, seed: int, usd_per_h: float) -> dict[str, Any]:
    types = {
        "m.small": {"vcpus": 1, "memory_mib": 2048, "usd_per_h": 0.6 * usd_per_h},
        "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": usd_per_h},
        "m.large": {"vcpus": 4, "memory_mib": 8192, "usd_per_h": 2 * usd_per_h},
    }
    zones = ["east-1a"] if rng.random() < 0.4 else ["east-1a", "east-1b", "west-1a"]
    reserved = int(rng.integers(0, 3))
    return {
        "seed": seed,
        "types": types,
        "zones": zones,
        "markets": [["on_demand"], ["on_demand", "spot"], ["on_demand", "spot", "reserved"]][int(rng.integers(0, 3))],
        "reserved_default": 0,
        "reserved": {"m.one": reserved} if reserved else {},
        "billing_minimum_s": float(rng.choice([0.0, 60.0])),
        "boot": {"p50_s": 5, "p95_s": float(rng.choice([5.0, 40.0]))},
        "stop_s": float(rng.choice([0.0, 1.0, 3.0])),
        "list_lag_s": float(rng.choice([0.0, 3.0, 8.0])),
        "keep_terminated_s": float(rng.choice([0.0, 3600.0])),
        "spot": {"volatility": float(rng.choice([0.0, 0.3])), "step_s": 60, "notice_s": float(rng.choice([5.0, 30.0]))},
        "quality": {"spread": float(rng.choice([0.0, 0.2]))},
        "throttle": {"calls_per_s": 2.0, "burst": 5} if rng.random() < 0.15 else {},
        "script": [_draw_fault(rng, zones) for _ in range(int(rng.integers(0, 14)))],
    }


def _extend_cloud(rng: np.random.Generator, cloud: dict[str, Any]) -> dict[str, Any]:
    """Return the cloud with a lease that expires without contact (None: the full expiry), foreign machines in listings,
    and perhaps a machine that never boots once other faults are over."""
    listings = [_foreign_listing(rng) for _ in range(int(rng.integers(0, 3)))]
    lease_s = [None, 150.0, 400.0][int(rng.integers(0, 3))]
    late = np.random.default_rng([cloud["seed"], 80])
    no_boot = [{"kind": "never_boot", "from_s": FAULTS_LAST_S * late.uniform(0.6, 1.0)}] if late.random() < 0.3 else []
    return {**cloud, "lease_s": lease_s, "script": [*cloud["script"], *listings, *no_boot]}


def _foreign_listing(rng: np.random.Generator) -> dict[str, Any]:
    from_s = float(rng.uniform(0, 0.8 * FAULTS_LAST_S))
    return {"kind": "list_others", "times": None, "from_s": from_s, "to_s": from_s + float(rng.uniform(5, 100))}


def _draw_fault(rng: np.random.Generator, zones: Sequence[str]) -> dict[str, Any]:
    kinds = (
        "throttle", "be_away", "run_out", "exceed_quota", "reject", "lose_request", "lose_reply", "answer_late",
        "list_partly", "list_late", "never_boot", "die", "preempt",
    )  # fmt: skip
    kind = str(rng.choice(kinds))
    from_s = float(rng.uniform(0, 0.8 * FAULTS_LAST_S))
    fault: dict[str, Any] = {
        "kind": kind,
        "times": None if rng.random() < 0.3 else int(rng.integers(1, 4)),
        "from_s": from_s,
        "to_s": min(FAULTS_LAST_S, from_s + float(rng.uniform(5, 100))),
        "delay_s": float(rng.uniform(1, 30)),
    }
    return fault | ({"zone": str(rng.choice(zones))} if kind != "reject" and rng.random() < 0.3 else {})


# ------------------------------------------------------------------------------------------------------------- policies
@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Limits that all policies of a world share, so that they hold whichever is in force. Empty: none."""

    budgets: Mapping[str, Any]
    caps: Mapping[str, Any]
    horizon_s: float | None

    @classmethod
    def draw(cls, rng: np.random.Generator, usd_per_h: float, *, nights: bool) -> _Limits:
        """Return limits of users in half of the worlds. If days pass, a month's limit is little more than a day's."""
        day_usd = usd_per_h * float(rng.choice([0.25, 0.6]))
        per_user: dict[str, Any] = {
            "default": {"per_day_usd": usd_per_h * float(rng.choice([0.05, 0.1, 0.3]))},
            "user0": {"per_day_usd": usd_per_h * float(rng.choice([0.02, 0.03, 0.05]))},
            "user1": {"per_day_usd": None, "per_month_usd": usd_per_h * float(rng.choice([0.03, 0.1]))},
        }
        budgets: dict[str, Any] = {"per_user": per_user} if rng.random() < 0.5 else {}
        short = rng.random() < (0.7 if budgets else 0.2)
        if nights and rng.random() < 0.7:
            budgets |= {"per_day_usd": day_usd, "per_month_usd": 1.3 * day_usd, "per_hour_usd": None}
        caps: dict[str, Any] = {}
        if rng.random() < 0.3:
            caps["max_jobs_per_user"] = int(rng.integers(1, 3))
        if rng.random() < 0.3:
            caps |= {"max_vcpus": float(rng.choice([4, 6])), "max_instances_per_type": {"m.small": 1}}
        return cls(budgets=budgets, caps=caps, horizon_s=120.0 if short else None)


def _policy(
    rng: np.random.Generator, providers: Sequence[str], number: int, usd_per_h: float, limits: _Limits
) -> Policy:
    horizon_s = float(rng.choice([300.0, 900.0]))
    horizon_s = limits.horizon_s or horizon_s
    sections: dict[str, Any] = {
        "name": f"p{number}",
        "budgets": {**_budgets(rng, usd_per_h), **limits.budgets},
        "caps": {"max_instances": int(rng.integers(2, 8)), **limits.caps},
        "allow": _allow(rng, providers),
        "retention": {"spin_up_multiple": float(rng.choice([0.0, 2.0])), "maximum_s": 30},
        "lease": {"horizon_s": horizon_s, "renew_before_s": 0.3 * horizon_s},
        "boot": {"timeout_s": 60},
        "unreachable": {"terminate_after_s": 30},
        "stockout": {"backoff_s": 5, "backoff_cap_s": 20},
        "disruption": {"optional_ranks_rest_s": 5 if rng.random() < 0.3 else 30},
        "admission": {"queues": "by_quality" if rng.random() < 0.2 else "one"},
        "provisioning": {"strategy": str(rng.choice(STRATEGIES)), "full_server_vcpus": 4},
        "placement": {"order": str(rng.choice(ORDERS))},
        "profiling": _profiling(rng),
        "timing": {"sample_every_s": 5},
    }
    return parse_policy(sections)


def _allow(rng: np.random.Generator, providers: Sequence[str]) -> dict[str, Any]:
    choice = rng.random()
    if choice < 0.6:
        return {}
    return {"providers": [str(rng.choice(providers))]} if choice < 0.8 else {"instance_types": ["m.one", "m.l*"]}


def _budgets(rng: np.random.Generator, usd_per_h: float) -> dict[str, Any]:
    """Return budgets from hardly enough for one lease of a machine to plenty."""
    per_day_usd = usd_per_h * float(rng.choice([0.25, 0.6, 3.0]))
    choice = rng.random()
    if choice < 0.3:
        return {}
    if choice < 0.6:
        return {"per_day_usd": per_day_usd}
    if choice < 0.8:
        return {"per_hour_usd": 2.5 * usd_per_h, "per_day_usd": 3 * usd_per_h, "per_month_usd": 3.5 * usd_per_h}
    return {"per_day_usd": per_day_usd, "per_user": {"default": {"per_day_usd": per_day_usd / 2}}}


def _profiling(rng: np.random.Generator) -> dict[str, Any]:
    if rng.random() < 0.75:
        return {"when": "never"}
    return {"when": "before", "run_s": 0.5, "total_s": 6,
            "max_share_of_slack": 1, "skip_if_shorter_than_s": 0, "max_usd_per_job": None, "max_share_of_budget": 1,
            "patience_s": 60}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- jobs
def _job(rng: np.random.Generator, number: int) -> PlannedJob:
    run_s, kind = float(rng.integers(2, 90)), rng.random()
    fails, too_big, impatient = kind < 0.1, 0.1 <= kind < 0.13, 0.13 <= kind < 0.25
    expected = "failed" if fails or too_big else "any" if impatient else "succeeded"
    script = f"sleep {run_s:g}; exit {3 if fails else 0}"
    # Failures that are not the job's fault must not count against it, so only its own exit code may fail it.
    limits = {each.value: 0 if each is FailureCause.EXIT_CODE else 1000 for each in FailureCause}
    target = _target(rng, run_s)
    spec = JobSpec(
        name=f"job {number}",
        user=f"user{int(rng.integers(0, 3))}",
        command=("/bin/sh", "-c", script),
        target=target,
        resources=Resources(vcpus=64.0 if too_big else float(rng.choice([0.5, 1.0, 1.8])), memory_mib=900),
        nodes=_nodes(rng),
        env={ON_TERM: str(rng.choice(["ends", "ends", "ignores"]))},
        tags={EXPECTED: expected},
        priority=int(rng.integers(0, 3)),
        interruptible=bool(rng.random() < 0.8),
        retries=Retries() if impatient else Retries(limits=limits, backoff_s=1.0, backoff_cap_s=10.0),
        stop_grace_s=float(rng.choice([1.0, 10.0])),
        metrics=MetricsHook(probe=("true",), every_s=5.0) if isinstance(target, ServiceTarget) else None,
        exclusive=bool(rng.random() < 0.1),
    )
    at_s = float(rng.choice([0.0, rng.uniform(0, 0.7 * FAULTS_LAST_S)]))
    cancel_at_s = at_s + float(rng.uniform(0, 100)) if rng.random() < 0.15 else None
    return PlannedJob(at_s=at_s, spec=spec, token=f"token-{number}", cancel_at_s=cancel_at_s)


def _extend_job(rng: np.random.Generator, job: PlannedJob, usd_per_h: float, limits: _Limits) -> PlannedJob:
    """Return the job, perhaps with its own (small) budget, with required machine types, or with a longer run time."""
    choice = rng.random()
    if choice < 0.1:
        tags = {**job.spec.tags, EXPECTED: "any"}
        return replace(job, spec=replace(job.spec, budget_usd=usd_per_h * float(rng.choice([0.002, 0.01])), tags=tags))
    if choice < 0.2 and job.spec.resources.vcpus < 2:
        return replace(job, spec=replace(job.spec, instance_types=("m.one", "m.l*")))
    if choice < (0.6 if "per_user" in limits.budgets else 0.35) and job.spec.tags[EXPECTED] == "succeeded":
        longer_s = float(rng.integers(100, 500))  # longer than most leases
        return replace(job, spec=replace(job.spec, command=("/bin/sh", "-c", f"sleep {longer_s:g}; exit 0")))
    return job


def _target(rng: np.random.Generator, run_s: float) -> Target:
    choice = rng.random()
    if choice < 0.4:
        return BestEffortTarget()
    if choice < 0.85:
        return BatchTarget(finish_within_s=3 * run_s + 60)
    return ServiceTarget(requests_per_s=10.0, latency_ms=50.0)


def _nodes(rng: np.random.Generator) -> Nodes:
    choice = rng.random()
    if choice < 0.75:
        return Nodes()
    return Nodes(count=2, minimum=2) if choice < 0.9 else Nodes(count=3, minimum=1, gang=False)


def work_of(unit: UnitSpec) -> Work:
    """Return what a unit's script does, how it reacts to TERM, and how fast a service is with its vCPUs."""
    work = read_work(unit)
    if NEEDED_VCPUS in unit.env:
        latency_ms = 20.0 if unit.resources.vcpus >= float(unit.env[NEEDED_VCPUS]) else 200.0
        work = replace(work, requests_per_s=10.0, latency_ms=dict.fromkeys(("50", "95", "99"), latency_ms))
    return replace(work, on_term="ignores") if unit.env.get(ON_TERM) == "ignores" else work
