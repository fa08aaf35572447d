"""Whole experiments by name: the workload, its machines, and the truth of the world.

Besides HCloud's three scenarios, these are Paragon's (§5) and Quasar's (Dissertation §4.6) on clusters: fixed servers
of many types. What the papers do not state (sizes and run times of single jobs) is an assumption of ours, chosen to
give the stated load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, BestEffortTarget, JobSpec, Nodes, ProgressHook, Resources
from hcloud.simulator.deadline_mix import NODE_GIB, NODE_VCPUS, NODES, RACKS, JobTrace, make_trace, rack_type
from hcloud.simulator.program_models import SERVER_PRESSURE_SHARE
from hcloud.simulator.programs import Programs, Run
from hcloud.simulator.scenarios import SCENARIOS, make_scenario, service_job
from hcloud.simulator.workload import MIB_PER_VCPU, Arrival, Workload, workload_of
from hcloud.simulator.world import FULL_VCPUS, Truth
from hcloud.spec.validation import nearest

WARM_UP_S = 60.0
"""How long all servers of a cluster take to boot before the first job."""
WARM_UP = "warm-up"
"""Tag ``kind`` of the jobs that boot them, one for each server; they do not count in the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A workload, its cloud, and the truth of the world. The caller chooses the policy.

    On a cluster the policy should keep idle machines (``retention.minimum_s``) and allow all of them (``caps``).
    """

    workload: Workload
    cloud: Mapping[str, object] = field(default_factory=dict)
    """Settings of the mock provider."""
    truth: Truth = field(default_factory=Truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A number of servers of one type."""

    name: str
    vcpus: int
    memory_gib: float
    count: int


PARAGON_SMALL = tuple(
    Server(name=name, vcpus=vcpus, memory_gib=memory, count=count)
    for name, vcpus, memory, count in (
        ("westmere.l5609", 8, 24, 1), ("westmere.x5650", 12, 24, 2), ("westmere.x5670", 12, 48, 2),
        ("westmere.l5640", 12, 48, 1), ("netburst.mp", 4, 8, 5), ("core.e5345", 4, 32, 8), ("core.e5335", 4, 16, 8),
        ("k8.opteron-240", 2, 4, 7), ("atom.330", 2, 4, 5), ("atom.d510", 2, 8, 1),
    )
)  # fmt: skip
"""Paragon's table V; types of one microarchitecture form a family."""
PARAGON_EC2 = tuple(
    Server(name=name, vcpus=vcpus, memory_gib=memory, count=count)
    for name, vcpus, memory, count in (
        ("m1.small", 1, 1.7, 78), ("m1.medium", 1, 3.75, 69), ("m1.large", 2, 7.5, 82), ("m1.xlarge", 4, 15, 81),
        ("m3.xlarge", 4, 15, 82), ("m3.2xlarge", 8, 30, 68), ("c1.medium", 2, 1.7, 67), ("c1.xlarge", 8, 7, 65),
        ("m2.xlarge", 2, 17.1, 73), ("m2.2xlarge", 4, 34.2, 70), ("m2.4xlarge", 8, 68.4, 58),
        ("cr1.8xlarge", 32, 244, 62), ("hi1.4xlarge", 16, 60.5, 72), ("hs1.8xlarge", 16, 117, 73),
    )
)  # fmt: skip
"""Paragon's table VI: 1,000 servers of 14 types. Amazon's m1 to m3 families differ as types, not only in size."""
PARAGON_DAY = tuple(replace(each, count=10 * each.count) for each in PARAGON_EC2)
"""Ten times the large cluster, to test the limits of simulation; not from a paper."""
QUASAR_EC2 = tuple(replace(each, count=round(each.count / 5)) for each in PARAGON_EC2)
"""200 servers of the same types; Quasar states only their number."""
GCE = {"n1.1": 1, "n1.2": 2, "n1.4": 4, "n1.8": 8, "n1.16": 16}
"""HCloud partitions servers of 16 vCPUs into these sizes (§8.2.2), which differ only in size and external load."""
GCE_USD_PER_VCPU_H = 0.05
ON_DEMAND_OVER_RESERVED = 2.74
"""The mean ratio of hourly prices (Dissertation §8.5.1)."""
PRESSURE_BY_SIZE = math.log(SERVER_PRESSURE_SHARE) / math.log(2.0 / FULL_VCPUS)
"""Exponent by which pressure falls with a server's size, from two cores to sixteen."""
Pool = tuple[str, str, int, int]
"""Name, kind of program, cores, number of programs."""
POOLS: tuple[Pool, ...] = (
    ("st", "single", 1, 29), ("mt", "single", 4, 22), ("mp", "single", 4, 60), ("io", "analytics", 2, 25),
)  # fmt: skip
"""Paragon's kinds of workload in equal shares. Of its 350 mixes of four programs only 60 are used, so that each recurs
in the large runs."""


# --------------------------------------------------------------------------------------------------------------- clouds
def cluster(servers: Sequence[Server]) -> dict[str, object]:
    """Return settings of a mock provider that has exactly these servers, paid for all the time."""
    return {
        "types": {
            each.name: {"vcpus": each.vcpus, "memory_mib": int(each.memory_gib * 1024), "usd_per_h": 0.05 * each.vcpus}
            for each in servers
        },
        "zones": ["dc-1a"],
        "region_price_factors": {},
        "markets": ["reserved"],
        "reserved": {each.name: each.count for each in servers},
        "reserved_default": 0,
        "boot": {"p50_s": 1.0, "p95_s": 1.0},
    }


def gce() -> dict[str, object]:
    """Return settings of a mock provider like HCloud's: one family in five sizes, which boots in 15 s to 2 min."""
    return {
        "types": {
            name: {"vcpus": vcpus, "memory_mib": 3840 * vcpus, "usd_per_h": GCE_USD_PER_VCPU_H * vcpus}
            for name, vcpus in GCE.items()
        },
        "zones": ["us-1a"],
        "region_price_factors": {},
        "markets": ["on_demand", "reserved"],
        "reserved_default": 0,
        "reserved_price_factor": 1 / ON_DEMAND_OVER_RESERVED,
        "boot": {"p50_s": 15.0, "p95_s": 120.0},
    }


# ------------------------------------------------------------------------------------------------------------ workloads
def _batch(run: Run, number: int, vcpus: int, nodes: int = 1) -> JobSpec:
    """Return a job without a deadline that should lose at most 5 % of its performance (Paragon's QoS)."""
    return JobSpec(
        name=f"{run.command[0]}.{number}",
        user=run.user,
        command=run.command,
        target=BatchTarget(),
        resources=Resources(vcpus=vcpus, memory_mib=vcpus * MIB_PER_VCPU),
        nodes=Nodes(count=nodes, minimum=nodes),
        progress=ProgressHook(file="progress"),
        tags={"kind": "batch", "program_kind": run.kind},
    )


def paragon_jobs(
    rng: np.random.Generator,
    times: Sequence[float],
    mean_run_s: float,
    pools: Sequence[tuple[str, str, int, int]] = POOLS,
) -> list[Arrival]:
    """Return jobs that arrive at these times, of each of the ``pools`` as many."""
    programs, arrivals = Programs(rng), []
    for number, at_s in enumerate(sorted(times), 1):
        name, kind, vcpus, count = pools[int(rng.integers(len(pools)))]
        run = programs.pick(kind, vcpus, mean_run_s, name=name, programs=count, inputs=1)
        arrivals.append(Arrival(at_s=at_s, run_s=run.run_s, spec=_batch(run, number, vcpus)))
    return arrivals


def evenly_spaced(step_s: float, count: int) -> list[float]:
    """Return ``count`` times of arrival, the first at 0."""
    return [step_s * number for number in range(count)]


def _gaussian(rng: np.random.Generator, mean_s: float, sigma_s: float, count: int) -> list[float]:
    """Gaussian inter-arrival times, as §5 states, but never negative."""
    gaps = np.maximum(0.0, rng.normal(mean_s, sigma_s, count))
    return [float(each) for each in np.cumsum(gaps)]


def _burst(share: float) -> list[float]:
    """7,500 jobs a second apart, and 1,000 more within 100 s after the first 3,750; or a share of both."""
    evenly, at_once = evenly_spaced(1.0 / share, round(7500 * share)), evenly_spaced(0.1 / share, round(1000 * share))
    return evenly + [3750.0 + at_s for at_s in at_once]


def _quasar(rng: np.random.Generator, times: Sequence[float]) -> list[Arrival]:
    """Analytics on several nodes, services and single-server jobs in equal shares.

    At one arrival per second they need 2.2 vCPUs per second of mean run time. Quasar used 62 % of the 1,462 vCPUs
    (Dissertation §4.6.5), which gives 410 s.
    """
    programs, made = Programs(rng), []
    for number, at_s in enumerate(times):
        kind = ("analytics", "service", "single")[int(rng.integers(3))]
        if kind == "service":
            run = programs.pick(kind, 2, 410.0, programs=12)
            made.append(Arrival(at_s=at_s, run_s=run.run_s, spec=service_job(run, number, 2)))
            continue
        vcpus, nodes = (2, int(rng.choice([1, 2, 4], p=[0.4, 0.4, 0.2]))) if kind == "analytics" else (1, 1)
        run = programs.pick(kind, vcpus, 410.0, programs=20)
        made.append(Arrival(at_s=at_s, run_s=run.run_s, spec=_batch(run, number, vcpus, nodes)))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterExperiment:
    """One experiment on a cluster."""

    summary: str
    servers: Sequence[Server]
    arrivals: Callable[[np.random.Generator, float], list[Arrival]]
    """Called with a generator and a share of the jobs."""
    truth: Truth

    def make(self, name: str, seed: int, share: float) -> Experiment:
        """Return it with a ``share`` (0..1] of its jobs and servers."""
        rng = np.random.default_rng([seed, sum(map(ord, name))])
        servers = [replace(each, count=max(1, round(each.count * share))) for each in self.servers]
        jobs = [replace(each, at_s=each.at_s + WARM_UP_S) for each in self.arrivals(rng, share)]
        made = workload_of(name if share == 1 else f"{name} x {share:g}", [*_warm_up(servers), *jobs])
        return Experiment(workload=made, cloud=cluster(servers), truth=self.truth)


def private_cluster(heterogeneity: float, servers: Sequence[Server]) -> Truth:
    """Return the truth of a cluster of old and new servers without other tenants (Paragon §5).

    Its types differ more than a cloud's, and pressure is higher on smaller servers. Under medium load 88 % of the jobs
    ran on their best type (Paragon fig. 9), so the common ranking of types follows their number.
    """
    # The mean over cores of the size of their server.
    usual_vcpus = sum(each.count * each.vcpus**2 for each in servers) / sum(each.count * each.vcpus for each in servers)
    pressure = (FULL_VCPUS / usual_vcpus) ** PRESSURE_BY_SIZE
    room = tuple((each.name, float(each.count * each.vcpus)) for each in servers)
    return Truth(external_load=0.0, heterogeneity=heterogeneity, room=room, pressure=pressure)


_SMALL, _LARGE = private_cluster(5.2, PARAGON_SMALL), private_cluster(2.8, PARAGON_EC2)
"""Heterogeneity is calibrated so that a random server that fits runs a job at 0.77 and 0.78 of its best speed on
average. Choosing types well gained 20 to 40 % by kind of workload on the small cluster (§2.2); ignoring them lost 22 %
on the large one (§1)."""
_CLUSTER_EXPERIMENTS: dict[str, ClusterExperiment] = {
    "paragon-small-low": ClusterExperiment(
        summary="178 jobs on 40 servers, every 10 s", servers=PARAGON_SMALL, truth=_SMALL,
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(10.0 / share, round(178 * share)), 150.0),
    ),
    "paragon-small-medium": ClusterExperiment(
        summary="178 jobs on 40 servers, every 10 s or so, Gaussian", servers=PARAGON_SMALL, truth=_SMALL,
        arrivals=lambda rng, share: paragon_jobs(
            rng, _gaussian(rng, 10.0 / share, 1.0 / share, round(178 * share)), 330.0
        ),
    ),
    "paragon-small-phases": ClusterExperiment(
        summary="178 jobs with phases on 40 servers, every 10 s", servers=PARAGON_SMALL,
        truth=replace(_SMALL, phased=1.0),
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(10.0 / share, round(178 * share)), 450.0),
    ),
    "paragon-small-oversubscribed": ClusterExperiment(
        summary="178 jobs on 40 servers, every second", servers=PARAGON_SMALL, truth=_SMALL,
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(1.0 / share, round(178 * share)), 330.0),
    ),
    "paragon-large-low": ClusterExperiment(
        summary="2,500 jobs on 1,000 servers, every second", servers=PARAGON_EC2, truth=_LARGE,
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(1.0 / share, round(2500 * share)), 1000.0),
    ),
    "paragon-large-high": ClusterExperiment(
        summary="5,000 jobs on 1,000 servers, every second", servers=PARAGON_EC2, truth=_LARGE,
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(1.0 / share, round(5000 * share)), 2200.0),
    ),
    "paragon-large-oversubscribed": ClusterExperiment(
        summary="8,500 jobs on 1,000 servers, every second and a burst", servers=PARAGON_EC2, truth=_LARGE,
        arrivals=lambda rng, share: paragon_jobs(rng, _burst(share), 2600.0),
    ),
    "paragon-day": ClusterExperiment(
        summary="100,000 jobs on 10,000 servers, in a day", servers=PARAGON_DAY, truth=_LARGE,
        arrivals=lambda rng, share: paragon_jobs(rng, evenly_spaced(0.864 / share, round(100_000 * share)), 8640.0),
    ),
    "quasar": ClusterExperiment(
        summary="1,200 mixed jobs on 200 servers, every second", servers=QUASAR_EC2, truth=_LARGE,
        arrivals=lambda rng, share: _quasar(rng, evenly_spaced(1.0 / share, round(1200 * share))),
    ),
}  # fmt: skip
_DEADLINE_MIXES: Mapping[str, Mapping[str, Any]] = {
    "3sigma": {},
    **{f"3sigma-load-{load:g}": {"load": load} for load in (1.0, 1.2, 1.6)},
    **{f"3sigma-slack-{slack}": {"slacks": (slack / 100,)} for slack in (20, 60, 100, 140, 180)},
}
"""What differs from 3Sigma's workload: the load offered, or the slack of all deadlines in percent of the run time."""
EXPERIMENTS: dict[str, str] = {each.name: each.summary for each in SCENARIOS.values()} | {
    name: plan.summary for name, plan in _CLUSTER_EXPERIMENTS.items()
}
EXPERIMENTS |= dict.fromkeys(_DEADLINE_MIXES, "jobs with deadlines and of best effort on 256 nodes, more than fit")
"""Summaries of all experiments by name."""


def make_experiment(
    name: str, seed: int = 0, *, hours: float = 2.0, share: float = 1.0, sensitive: float | None = None
) -> Experiment:
    """Return an experiment with ``share`` (0..1] of its jobs.

    ``sensitive`` applies to HCloud's scenarios only (:func:`hcloud.simulator.scenarios.make_scenario`), ``hours`` also
    to 3Sigma's.
    Raises BadInput for an unknown name or an invalid size.
    """
    if name in SCENARIOS:
        made = make_scenario(name, seed, hours=hours, share=share, sensitive=sensitive)
        return Experiment(workload=made, cloud=gce(), truth=Truth(heterogeneity=0.0))
    if name in _DEADLINE_MIXES:
        return deadline_mix(make_trace(seed, hours=hours, nodes=nodes_at(share), **_DEADLINE_MIXES[name]), name, share)
    if name not in _CLUSTER_EXPERIMENTS:
        raise BadInput(f"there is no experiment {name!r}; {nearest(name, EXPERIMENTS)}")
    if not 0 < share <= 1:
        raise BadInput(f"share {share:g} is out of range; 0 < share <= 1")
    return _CLUSTER_EXPERIMENTS[name].make(name, seed, share)


def nodes_at(share: float) -> int:
    """Return how many nodes a share (0..1] of 3Sigma's cluster has, the same number in each rack."""
    if not 0 < share <= 1:
        raise BadInput(f"share {share:g} is out of range; 0 < share <= 1")
    return RACKS * max(1, round(share * NODES / RACKS))


def deadline_mix(trace: JobTrace, name: str = "3sigma", share: float = 1.0) -> Experiment:
    """Return 3Sigma's experiment with the jobs of ``trace``, on ``share`` of its nodes."""
    servers = [
        Server(name=rack_type(rack), vcpus=NODE_VCPUS, memory_gib=NODE_GIB, count=nodes_at(share) // RACKS)
        for rack in range(RACKS)
    ]
    jobs = [Arrival(at_s=each.submitted_s + WARM_UP_S, run_s=each.run_s, spec=each.to_spec()) for each in trace.jobs]
    made = workload_of(name if share == 1 else f"{name} x {share:g}", [*_warm_up(servers), *jobs])
    alike = Truth(external_load=0.0, heterogeneity=0.0, pressure=0.0, drift=0.0, phased=0.0, stragglers=0.0)
    return Experiment(workload=made, cloud=cluster(servers), truth=alike)


def _warm_up(servers: Sequence[Server]) -> list[Arrival]:
    """Return a short exclusive job for each server, which makes the daemon boot it."""
    return [
        Arrival(
            at_s=0.0,
            run_s=5.0,
            spec=JobSpec(
                name=WARM_UP,
                user=WARM_UP,
                command=(WARM_UP,),
                target=BestEffortTarget(),
                resources=Resources(vcpus=each.vcpus, memory_mib=256),
                instance_types=(each.name,),
                exclusive=True,
                profiling="never",
                tags={"kind": WARM_UP},
            ),
        )
        for each in servers
        for _ in range(each.count)
    ]
