"""``python -m bench.plan_ahead``: processor time of a plan while 500 jobs wait for paid room, and nothing changes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from bench.rows import Row, machine
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
)
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.planner import make_plan
from hcloud.planner.plan import Plan, Wait
from hcloud.planner.run_times import RunTimeForecasts, features_of
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, Caps, Policy

NOW = 1_000_000.0
PROGRAMS, WAITING, MACHINES, BESIDE = 20, 500, 40, 8
CYCLES = 10
_GIB = 1024


def _offer(name: str, vcpus: float, usd_per_h: float, market: Market) -> Offer:
    size = Resources(vcpus=vcpus, memory_mib=int(vcpus * 4 * _GIB), disk_gib=100.0)
    return Offer(
        provider="mock",
        region="r",
        zone="a",
        instance_type=InstanceType(provider="mock", name=name, capacity=size, boot_delay_s=30.0),
        market=market,
        price_usd_per_h=usd_per_h,
        priced_at=NOW,
        available=0 if market is Market.RESERVED else None,
    )


def _spec(program: int, within_s: float) -> JobSpec:
    return JobSpec(
        name=f"program-{program}",
        user="ann",
        command=(f"program-{program}",),
        target=BatchTarget(finish_within_s=within_s),
        resources=Resources(vcpus=2.0, memory_mib=4 * _GIB, disk_gib=1.0),
    )


def _queued(number: int, within_s: float) -> Job:
    return Job(
        id=f"job-{number}",
        spec=_spec(number % PROGRAMS, within_s),
        state=JobState.QUEUED,
        submitted_at=NOW - 60.0,
        queued_at=NOW - 60.0,
        wait_code="planned",
    )


def world(waiting: int = WAITING) -> Snapshot:
    """Return a fleet of busy reserved machines, jobs with time to spare that wait for it, and what is known of both."""
    rng, predictor = np.random.default_rng(0), MixturePredictor()
    typical_s = (300.0 * np.exp(rng.normal(0.0, 0.7, PROGRAMS))).tolist()
    for _ in range(20):
        for program, median_s in enumerate(typical_s):
            run_s = median_s * float(np.exp(rng.normal(0.0, 0.2)))
            predictor.observe(features_of(_spec(program, 1.0), NOW - 1e5), run_s)
    paid = _offer("paid", 16.0, 0.2, Market.RESERVED)
    machines = tuple(
        Instance(
            id=f"inst-{number}",
            offer=paid,
            state=InstanceState.READY,
            token=f"token-{number}",
            requested_at=NOW - 5e4,
            expires_at=NOW + 5e3,
            provider_id=f"cloud-{number}",
            launched_at=NOW - 5e4,
            ready_at=NOW - 5e4,
            seen_at=NOW,
        )
        for number in range(1, MACHINES + 1)
    )
    jobs = list[Job]()
    for number in range(1, MACHINES * BESIDE + 1):
        spec, began_at = _spec(number % PROGRAMS, 9e3), NOW - float(rng.uniform(0.0, 200.0))
        held = Allocation(
            rank=0, instance_id=f"inst-{1 + number % MACHINES}", resources=spec.resources, started_at=began_at
        )
        attempt = Attempt(id=f"job-{number}.1", number=1, placed_at=began_at, allocations=(held,))
        jobs.append(
            Job(
                id=f"job-{number}",
                spec=spec,
                state=JobState.RUNNING,
                submitted_at=began_at - 1.0,
                attempt=attempt,
                attempts_made=1,
            )
        )
    for number in range(len(jobs) + 1, len(jobs) + waiting + 1):
        jobs.append(_queued(number, float(rng.uniform(2000.0, 10_000.0))))
    return Snapshot(
        now=NOW,
        jobs=tuple(jobs),
        instances=machines,
        offers=tuple(sorted((paid, _offer("rent", 2.0, 0.1, Market.ON_DEMAND)), key=lambda each: each.key)),
        reachable=frozenset(each.id for each in machines),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
        run_times=RunTimeForecasts(predictor),
    )


def _policy(queues: str) -> Policy:
    """Return a policy under which as many machines may be rented as jobs wait."""
    admission = AdmissionPolicy(queues=queues)  # type: ignore[arg-type]
    return Policy(name=queues, admission=admission, caps=Caps(max_instances=10_000, max_vcpus=None))


def _plan(snapshot: Snapshot, policy: Policy) -> tuple[float, Plan]:
    began_s = time.process_time()
    plan = make_plan(snapshot, policy, np.random.default_rng(0))
    return time.process_time() - began_s, plan


def run() -> list[Row]:
    """Return the time of the first plan, and of those after which nothing changed, with this queue and without."""
    rows = list[Row]()
    for queues in ("planned", "by_quality"):
        policy, snapshot = _policy(queues), world()
        _plan(replace(snapshot, plan_cache=type(snapshot.plan_cache)()), policy)  # imports, and caches of the process
        first_s, plan = _plan(snapshot, policy)
        planned = len(plan.planned_starts)
        quiet_s = [_plan(replace(snapshot, now=NOW + 1.0 + cycle), policy)[0] for cycle in range(CYCLES)]
        waits = sum(isinstance(each, Wait) for each in plan.actions)
        note = f"{planned} planned, {len(plan.actions)} actions, {waits} waits"
        rows.append(Row(name=f"{queues}: first plan, {WAITING} waiting", value=1e3 * first_s, unit="ms", note=note))
        rows.append(Row(name=f"{queues}: a second later, nothing changed", value=1e3 * min(quiet_s), unit="ms"))
        rows.append(Row(name=f"{queues}: the same, mean of {CYCLES} s", value=1e2 * sum(quiet_s), unit="ms"))
    return rows


def main() -> int:
    """Print the rows."""
    print(machine())
    for row in run():
        print(row.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
