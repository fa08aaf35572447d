"""The planner's targets: deciding over a long queue and a large fleet, alone (no store, provider or engine).

All times are of the processor."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from bench.rows import Row
from hcloud.core.model import (
    Allocation,
    Attempt,
    BatchTarget,
    Instance,
    InstanceState,
    InstanceType,
    Job,
    JobSpec,
    JobState,
    Market,
    Offer,
    Resources,
    ServiceTarget,
)
from hcloud.core.rows import RowJournal, number_of
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Place, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Budgets, Caps, Policy, ScopeBudget
from tests.planner.apply_model import apply_ideally

QUEUED = 10_000
INSTANCES = 1_000
LONG_QUEUE = 100_000
FEW_INSTANCES = 300
PLACEABLE = 3_000
ROUNDS = 15
_SIZE = Resources(vcpus=4.0, memory_mib=16384, disk_gib=100.0)
_SHAPES = 40
# A cap of vCPUs: at a cap of instances, small ones would give way to larger ones.
CLOSED = Policy(caps=Caps(max_instances=2 * INSTANCES, max_vcpus=INSTANCES * _SIZE.vcpus))


def run() -> list[Row]:
    """Measure a settled long queue (few shapes, all different, limits by user), and a fleet with room for everybody."""
    users = Budgets(per_user={"default": ScopeBudget(per_day_usd=1e6)})
    poor = Policy(
        caps=Caps(max_instances=2 * INSTANCES, max_vcpus=None), budgets=Budgets(per_hour_usd=1e-3, per_day_usd=1e-3)
    )
    rows = [
        _settled("10,000 queued, 1,000 full machines, at the cap", CLOSED, _SHAPES, target=60),
        _settled("the same, every job of another shape", CLOSED, QUEUED),
        _settled("the same, only services run", CLOSED, _SHAPES, services=True),
        _settled("the same, out of budget instead of at the cap", poor, _SHAPES),
        _settled("the same, with limits by user", replace(CLOSED, budgets=users), _SHAPES),
    ]
    long = Policy(caps=Caps(max_instances=2 * FEW_INSTANCES, max_vcpus=FEW_INSTANCES * _SIZE.vcpus))
    name = f"{LONG_QUEUE:,} queued, {FEW_INSTANCES} full machines, at the cap"
    waiting = settled_fleet(_SHAPES, long, queued=LONG_QUEUE, instances=FEW_INSTANCES)
    return [*rows, _quiet(name, waiting, long, target=5), _first(waiting, long), _placing()]


def _settled(name: str, policy: Policy, shapes: int, target: float | None = None, *, services: bool = False) -> Row:
    return _quiet(name, settled_fleet(shapes, policy, services=services), policy, target)


def _quiet(name: str, snapshot: Snapshot, policy: Policy, target: float | None = None) -> Row:
    """Time plans that find nothing new to do."""
    times_ms = []
    for _ in range(ROUNDS):
        began = time.process_time()
        plan = _plan(snapshot, policy)
        times_ms.append((time.process_time() - began) * 1e3)
        assert not plan.actions, plan.actions[:3]
    return Row(name=name, value=statistics.median(times_ms), unit="ms", target=target)


def _first(snapshot: Snapshot, policy: Policy) -> Row:
    """Time the plan of a daemon that has just started: nothing of earlier ones is known."""
    snapshot, began = replace(snapshot, plan_cache=PlanCache()), time.process_time()
    _plan(snapshot, policy)
    return Row(name="the same, first plan", value=(time.process_time() - began) * 1e3, unit="ms", target=1500)


def settled_fleet(
    shapes: int,
    policy: Policy = CLOSED,
    *,
    services: bool = False,
    queued: int = QUEUED,
    instances: int = INSTANCES,
) -> Snapshot:
    """Return a full fleet and a long queue of so many shapes, for which there is nothing new to do."""
    snapshot = _fleet(busy=2, instances=instances)
    waiting = tuple(_job(2 * instances + number, shapes) for number in range(1, queued + 1))
    jobs = tuple(_as_service(job) for job in snapshot.jobs) if services else snapshot.jobs
    snapshot = replace(snapshot, jobs=(*jobs, *waiting))
    while (plan := _plan(snapshot, policy)).actions:
        snapshot = apply_ideally(snapshot, plan)
    queue, machines = RowJournal[Job](), RowJournal[Instance]()  # as the store gives them
    queue.write({number_of(each.id): each for each in snapshot.jobs})
    machines.write({number_of(each.id): each for each in snapshot.instances})
    return replace(snapshot, jobs=queue.snapshot(), instances=machines.snapshot())


def _as_service(job: Job) -> Job:
    return replace(job, spec=replace(job.spec, target=ServiceTarget(requests_per_s=1.0, latency_ms=9.0)))


def _placing() -> Row:
    snapshot = replace(_fleet(busy=0), jobs=tuple(_job(number, _SHAPES) for number in range(1, PLACEABLE + 1)))
    times_ms = []
    for _ in range(3):
        began = time.process_time()
        plan = _plan(snapshot, Policy(caps=Caps(max_instances=INSTANCES, max_vcpus=None)))
        times_ms.append((time.process_time() - began) * 1e3)
    placed = sum(isinstance(action, Place) for action in plan.actions)
    note = f"{placed} placed, {placed / statistics.median(times_ms) * 1e3:.0f}/s"
    return Row(
        name="3,000 placeable jobs, 1,000 machines",
        value=statistics.median(times_ms),
        unit="ms",
        target=1000,
        note=note,
    )


def _plan(snapshot: Snapshot, policy: Policy) -> Plan:
    return make_plan(snapshot, policy, np.random.default_rng(0))


def _fleet(busy: int, instances: int = INSTANCES) -> Snapshot:
    """Return machines that each run so many jobs which leave no room for another."""
    kinds = [offer_of(name, size) for name, size in (("m4", _SIZE), ("m8", _SIZE.plus(_SIZE)))]
    machines = tuple(_machine(number, kinds[0]) for number in range(1, instances + 1))
    jobs = tuple(_running(number, machines[number % instances], busy) for number in range(1, busy * instances + 1))
    return Snapshot(
        now=1000.0,
        jobs=jobs,
        instances=machines,
        offers=tuple(kinds),
        reachable=frozenset(machine.id for machine in machines),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
    )


def offer_of(name: str, size: Resources, usd_per_h: float | None = None) -> Offer:
    """Return an offer of the mock cloud, by default at 0.05 USD per vCPU and hour."""
    return Offer(
        provider="mock",
        region="r",
        zone="a",
        instance_type=InstanceType(provider="mock", name=name, capacity=size),
        market=Market.ON_DEMAND,
        price_usd_per_h=0.05 * size.vcpus if usd_per_h is None else usd_per_h,
        priced_at=0.0,
    )


def _machine(number: int, offer: Offer) -> Instance:
    return Instance(
        id=f"inst-{number}",
        offer=offer,
        state=InstanceState.READY,
        token=f"token-{number}",
        requested_at=0.0,
        expires_at=4000.0,
        provider_id=f"cloud-{number}",
        launched_at=0.0,
        ready_at=60.0,
        seen_at=1000.0,
        idle_since=990.0,
    )


def _job(number: int, shapes: int) -> Job:
    kind = number % shapes
    need = Resources(vcpus=0.5 + kind / shapes, memory_mib=512 + kind, disk_gib=1.0)
    spec = JobSpec(
        name="bench",
        user=f"user{number % 20}",
        command=("true",),
        target=BatchTarget(finish_within_s=1e6),
        resources=need,
        priority=number % 3,
    )
    at = float(number % 900)
    return Job(id=f"job-{number}", spec=spec, state=JobState.QUEUED, submitted_at=at, queued_at=at)


def _running(number: int, machine: Instance, busy: int) -> Job:
    waiting = _job(number, 1)
    need = Resources(vcpus=_SIZE.vcpus / busy - 0.1, memory_mib=1024, disk_gib=1.0)
    held = Allocation(rank=0, instance_id=machine.id, resources=need, started_at=100.0)
    attempt = Attempt(id=f"job-{number}.1", number=1, placed_at=100.0, allocations=(held,))
    return replace(
        waiting, spec=replace(waiting.spec, resources=need), state=JobState.RUNNING, attempt=attempt, attempts_made=1
    )
