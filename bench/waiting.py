"""``python -m bench waiting``: how long a wide, urgent job waits behind a stream of small ones, which must not be late.

A fleet of 16 vCPUs is full of a stream of jobs of one vCPU; then a job of 8 vCPUs with priority and a deadline arrives.
Each figure comes from simulations: the daemon's own cycle on a mock cloud. A Slurm-like rule (strict order of priority,
no job passes) serves the same stream. Constants of the reservation of room, and the whole stage, are switched off in
turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench import planner as planner_bench
from bench.rows import Row
from hcloud.config import load_policy
from hcloud.core.model import BatchTarget, Event, EventKind, JobSpec, Resources
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.placement import place, room_reservation
from hcloud.planner.plan import Plan
from hcloud.planner.provisioning import provision
from hcloud.planner.provisioning.strategies import Rented, strategy_named
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine.planning import Planner
from hcloud.simulator.peers import peer_named
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Arrival, Workload, workload_of
from hcloud.spec.policy import Policy, parse_policy, simple_policy

POLICIES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "policies").glob("*.yaml"))}
ORDERS = (
    "least_loaded",
    "first_fit",
    "random",
    "largest_first",
    "paragon",
    "quasar",
    "heterogeneity_oblivious",
    "interference_oblivious",
    "least_loss",
    "paragon_sampled",
    "tarcil",
    "co_schedule",
)
QUEUES = [(queues, order) for queues in ("one", "by_quality") for order in ("priority", "shortest")]
MACHINES, VCPUS = 2, 8.0
RUN_S, CYCLE_S, BOOT_S = 60.0, 5.0, 20.0
SMALL_WITHIN_S, WIDE_WITHIN_S = 600.0, 1800.0
WIDE_AT_S, UNTIL_S = 120.0, 480.0
WIDE = "wide"
USERS = 8
"""Of small jobs, so that limits by user do not keep the fleet from being full."""
SEEDS = range(3)
LATEST, FEWEST_MET = 1.5, 0.99
"""Goals: the wait of the wide job in terms of that under the Slurm-like rule, and the share of small jobs in time."""
WIDE_ASKS = JobSpec(
    name=WIDE, user="bob", command=(WIDE,), target=BatchTarget(finish_within_s=WIDE_WITHIN_S), priority=100,
    resources=Resources(vcpus=VCPUS, memory_mib=4096),
)  # fmt: skip
SMALL_ASKS = JobSpec(
    name="small", user="user0", command=("small",), target=BatchTarget(finish_within_s=SMALL_WITHIN_S),
    resources=Resources(vcpus=1.0, memory_mib=512),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waited:
    """What one simulation measured."""

    wide_s: float
    """Wait of the wide job until it started."""
    met: float
    """Share of the small jobs that ended by their deadline."""
    small_s: float
    """Mean wait of the small jobs."""
    events: Sequence[Event] = field(repr=False)


def stream(
    seed: int = 0,
    *,
    wide_at_s: float = WIDE_AT_S,
    until_s: float = UNTIL_S,
    wide: JobSpec = WIDE_ASKS,
    small: JobSpec = SMALL_ASKS,
    load: float = 1.0,
) -> Workload:
    """Return ``small`` jobs that fill the fleet at once and arrive as fast as it can run them (times ``load``), and one
    ``wide`` job; small ones run for 30 to 90 s."""
    rng, full = np.random.default_rng(seed), int(MACHINES * VCPUS)
    later = np.arange(RUN_S / full, until_s, RUN_S / full / load).tolist()
    arrivals = [
        Arrival(at_s=at_s, run_s=RUN_S * float(rng.uniform(0.5, 1.5)), spec=replace(small, user=f"user{n % USERS}"))
        for n, at_s in enumerate([0.0] * full + later)
    ]
    return workload_of("stream", [*arrivals, Arrival(at_s=wide_at_s, run_s=RUN_S, spec=wide)])


def measure(jobs: Workload, policy: Policy, planner: Planner = make_plan, *, reserved: bool = False) -> Waited:
    """Run ``jobs`` on two machines, rented or ``reserved``, as ``policy`` and ``planner`` decide."""
    cloud: dict[str, object] = {
        "types": {"large": {"vcpus": VCPUS, "memory_mib": int(4096 * VCPUS), "usd_per_h": 0.4}},
        "zones": ["a"],
        "boot": {"p50_s": BOOT_S, "p95_s": BOOT_S},
        "markets": ["reserved", "on_demand"] if reserved else ["on_demand"],
        "reserved": {"large": MACHINES} if reserved else {},
    }
    full = replace(policy, caps=replace(policy.caps, max_instances=MACHINES))
    setting = Setting(workload=jobs, policy=full, cloud=cloud, planner=planner, cycle_s=CYCLE_S)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        simulation.run()
        events = list(simulation.events())
    arrived = {e.job_id: e for e in events if e.kind is EventKind.JOB_SUBMITTED}
    started = {e.job_id: e.at for e in reversed(events) if e.kind is EventKind.UNIT_STARTED}
    waits = {job: (e.fields["name"], started[job] - e.at) for job, e in arrived.items() if job in started}
    ended = [e for e in events if e.kind is EventKind.JOB_FINISHED and arrived[e.job_id].fields["name"] != WIDE]
    return Waited(
        wide_s=next(wait_s for name, wait_s in waits.values() if name == WIDE),
        met=fmean(e.fields["target_met"] is True for e in ended),
        small_s=fmean(wait_s for name, wait_s in waits.values() if name != WIDE),
        events=events,
    )


def slurm_like(jobs: Workload) -> Waited:
    """Run ``jobs`` by the Slurm-like rule."""
    return measure(jobs, simple_policy(), peer_named("slurm-like").plan)


def run() -> Iterator[Row]:
    """Compare shipped policies, orders and queues with the Slurm-like rule; then switch off parts of the stage."""
    streams = [stream(seed) for seed in SEEDS]
    slurm = [slurm_like(jobs) for jobs in streams]
    yield Row(name="Slurm-like rule: wait of the wide job", value=fmean(each.wide_s for each in slurm), unit="s",
              note=f"small ones {fmean(each.small_s for each in slurm):.0f} s")  # fmt: skip
    for name, path in POLICIES.items():
        policy = load_policy(path)
        rents = strategy_named(policy.provisioning.strategy).rented is not Rented.NONE
        for reserved in (False, True) if rents else (True,):
            ours = [measure(jobs, policy, reserved=reserved) for jobs in streams]
            yield from _compared(f"{name}, {'reserved' if reserved else 'rented'}", ours, slurm)
    for order in ORDERS:
        for queues, within in QUEUES:
            sections = {"placement": {"order": order}, "admission": {"queues": queues, "order": within}}
            ours = [measure(streams[0], parse_policy(sections))]
            yield from _compared(f"{order}, {queues}, {within}", ours, slurm[:1])
    yield from _ablations(streams, slurm)
    yield from _costs()


def _compared(name: str, ours: Sequence[Waited], slurm: Sequence[Waited]) -> Iterator[Row]:
    ratio = fmean(each.wide_s for each in ours) / fmean(each.wide_s for each in slurm)
    note = f"wide {fmean(each.wide_s for each in ours):.0f} s, small {fmean(each.small_s for each in ours):.0f} s"
    yield Row(name=f"{name}: wait beside Slurm's", value=ratio, unit="times", target=LATEST, note=note)
    met = min(each.met for each in ours)
    if met < FEWEST_MET:
        yield Row(name=f"{name}: small ones in time", value=met, unit="", target=FEWEST_MET, better="higher")


# ------------------------------------------------------------------------------------------------------------ ablations
SWITCHES: dict[str, dict[tuple[Any, str], object]] = {
    "the whole stage off": {
        (place, "reserve_first"): lambda *_: None,
        (provision, "reserve_first"): lambda *_: None,
        (place, "_place_urgent"): lambda *_: None,
    },
    "starts only as early as estimated (ABOUT_AS_EARLY 1)": {(room_reservation, "ABOUT_AS_EARLY"): 1.0},
    "urgent jobs get none": {(place, "_place_urgent"): lambda *_: None},
}
UNLIMITED: dict[tuple[Any, str], object] = {(place, "MOST_SOUGHT"): 10**9, (room_reservation, "MOST_SOUGHT"): 10**9}


@contextmanager
def switched(changes: dict[tuple[Any, str], object]) -> Iterator[None]:
    """Replace attributes of modules for a block."""
    before = {key: getattr(*key) for key in changes}
    try:
        for (module, name), value in changes.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


@dataclass(slots=True)
class SwitchedPlanner:
    """Plans with a switch, and counts the plans in which it made a difference."""

    changes: dict[tuple[Any, str], object]
    plans: int = 0
    differing: int = 0

    def plan(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Return the plan with the switch."""
        usual = make_plan(replace(snapshot, plan_cache=PlanCache()), policy, np.random.default_rng(0))
        with switched(self.changes):
            plan = make_plan(snapshot, policy, np.random.default_rng(0))
        self.plans += 1
        self.differing += plan.actions != usual.actions
        return plan


def late_stream(seed: int = 0) -> Workload:
    """Return a stream in which the small jobs have the higher priority."""
    wide = replace(WIDE_ASKS, priority=0, target=BatchTarget(finish_within_s=300.0))
    return stream(seed, wide_at_s=40.0, until_s=480.0, wide=wide, small=replace(SMALL_ASKS, priority=100))


def _ablations(streams: Sequence[Workload], slurm: Sequence[Waited]) -> Iterator[Row]:
    late = [late_stream(seed) for seed in SEEDS]
    for name, changes in SWITCHES.items():
        urgent = name == "urgent jobs get none"
        planner = SwitchedPlanner(changes)
        off = [measure(jobs, simple_policy(), planner.plan) for jobs in (late if urgent else streams)]
        base = [measure(jobs, simple_policy()) for jobs in late] if urgent else slurm
        beside = "ours" if urgent else "Slurm's"
        ratio = fmean(each.wide_s for each in off) / fmean(each.wide_s for each in base)
        waits = f"wide {fmean(each.wide_s for each in off):.0f} s, {beside} {fmean(each.wide_s for each in base):.0f} s"
        note = f"{waits}, small in time {fmean(each.met for each in off):.3f}"
        note += f"; {planner.differing} of {planner.plans} plans differ"
        yield Row(name=f"{name}: wait beside {beside}", value=ratio, unit="times", note=note)


def _costs() -> Iterator[Row]:
    """Yield the processor time of quiet plans over a long queue, with and without the stage and its limit."""
    for label, shapes in (("40 shapes", 40), ("every job of another shape", planner_bench.QUEUED)):
        for services in (False, True):
            snapshot = planner_bench.settled_fleet(shapes, services=services)
            fleet = f"10,000 queued, {label}" + (", only services run" if services else "")
            base_ms = _cpu_ms(snapshot, {})
            off_ms = _cpu_ms(snapshot, SWITCHES["the whole stage off"])
            endless_ms = _cpu_ms(snapshot, UNLIMITED)
            note = f"with {base_ms:.0f} ms, without {off_ms:.0f} ms, MOST_SOUGHT unlimited {endless_ms:.0f} ms"
            yield Row(name=f"{fleet}: the stage's share", value=100 * (base_ms / off_ms - 1), unit="%", note=note)


def _cpu_ms(snapshot: Snapshot, changes: dict[tuple[Any, str], object]) -> float:
    taken = list[float]()
    with switched(changes):
        for _ in range(5):
            began = time.process_time()
            make_plan(snapshot, planner_bench.CLOSED, np.random.default_rng(0))
            taken.append(1e3 * (time.process_time() - began))
    return min(taken)
