"""Small fleets for tests of single decisions: every value has a default, so a test states only what matters to it."""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hcloud.core.model import (
    Allocation,
    Attempt,
    BatchTarget,
    FailureCause,
    Instance,
    InstanceState,
    InstanceType,
    Job,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Offer,
    Resources,
    Target,
)
from hcloud.planner import make_plan
from hcloud.planner.plan import Action, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.policies import simple

NOW = 50_000.0
A = TypeVar("A", bound=Action)


def need(vcpus: float = 1.0, memory_mib: int = 512) -> Resources:
    return Resources(vcpus=vcpus, memory_mib=memory_mib, disk_gib=1.0)


def offer(name: str = "small", vcpus: float = 2.0, usd_per_h: float = 0.1, **changes: Any) -> Offer:
    """Return an on-demand offer of 4 GiB per vCPU that boots in 30 s."""
    size = Resources(vcpus=vcpus, memory_mib=int(vcpus * 4096), disk_gib=100.0)
    kind = InstanceType(provider="mock", name=name, capacity=size, boot_delay_s=30.0)
    plain = Offer(
        provider="mock",
        region="r",
        zone="a",
        instance_type=kind,
        market=Market.ON_DEMAND,
        price_usd_per_h=usd_per_h,
        priced_at=NOW,
    )
    return replace(plain, **changes)


def machine(number: int, of: Offer | None = None, **changes: Any) -> Instance:
    """Return a READY instance that became idle just now, with most of its lease left."""
    plain = Instance(
        id=f"inst-{number}",
        offer=of or offer(),
        state=InstanceState.READY,
        token=f"token-{number}",
        requested_at=NOW - 500,
        expires_at=NOW + 3000,
        provider_id=f"cloud-{number}",
        launched_at=NOW - 500,
        ready_at=NOW - 470,
        seen_at=NOW,
        idle_since=NOW - 1,
    )
    return replace(plain, **changes)


def spec(**changes: Any) -> JobSpec:
    """Return a batch job of one vCPU with a distant deadline."""
    target: Target = BatchTarget(finish_within_s=90_000.0)
    return replace(JobSpec(name="job", user="ann", command=("true",), target=target, resources=need()), **changes)


def job(number: int, state: JobState = JobState.QUEUED, *, asks: JobSpec | None = None, **changes: Any) -> Job:
    """Return a waiting job; jobs are submitted in the order of their numbers."""
    plain = Job(id=f"job-{number}", spec=asks or spec(), state=state, submitted_at=NOW - 100 + number)
    return replace(plain, **changes)


def running(number: int, *on: Instance, asks: JobSpec | None = None, **changes: Any) -> Job:
    """Return a job with one rank on each instance, running for 100 s."""
    asks = asks or spec()
    asks = replace(asks, nodes=Nodes(count=len(on), gang=asks.nodes.gang))
    held = tuple(
        Allocation(rank=rank, instance_id=each.id, resources=asks.resources, started_at=NOW - 100)
        for rank, each in enumerate(on)
    )
    attempt = Attempt(id=f"job-{number}.1", number=1, placed_at=NOW - 101, allocations=held)
    return job(number, JobState.RUNNING, asks=asks, **{"attempt": attempt, "attempts_made": 1, **changes})


def ended(given: Job, cause: FailureCause | None = None, *, ranks: tuple[int, ...] | None = None) -> Job:
    """Return the job with the units of ``ranks`` (default: all) ended 2 s ago."""
    assert given.attempt is not None
    over = tuple(
        replace(a, ended_at=NOW - 2, exit_code=0 if cause is None else 1, cause=cause)
        if ranks is None or a.rank in ranks
        else a
        for a in given.attempt.allocations
    )
    return replace(given, attempt=replace(given.attempt, allocations=over))


def scene(*things: Job | Instance | Offer, **changes: Any) -> Snapshot:
    """Return a snapshot in which every provider and every READY or DRAINING instance answers."""
    machines = tuple(t for t in things if isinstance(t, Instance))
    up = (InstanceState.READY, InstanceState.DRAINING)
    plain = Snapshot(
        now=NOW,
        jobs=tuple(t for t in things if isinstance(t, Job)),
        instances=machines,
        offers=tuple(sorted((t for t in things if isinstance(t, Offer)), key=lambda o: o.key)),
        reachable=frozenset(m.id for m in machines if m.state in up),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
    )
    return replace(plain, **changes)


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    """Return the plan, under a policy without limits unless one is given."""
    return make_plan(snapshot, policy or simple(), np.random.default_rng(0))


def of(plan: Plan, kind: type[A]) -> list[A]:
    """Return the actions of one kind."""
    return [action for action in plan.actions if isinstance(action, kind)]


def told(plan: Plan, job_id: str) -> str:
    """Return the code of the last reason recorded for a job."""
    codes = [a.reason.code for a in plan.actions if getattr(a, "job_id", "") == job_id]
    return codes[-1] if codes else ""
