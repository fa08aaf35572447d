"""Buying and placing beside Ray's autoscaler: the same demands and machine types, both in processor time, in one run.

``make bench-beside-ray`` installs Ray beside the environment of HCloud. Ray decides how many machines of which type to
launch, or on which it has room; HCloud also decides where each job goes, and, where it knows the jobs, beside whom,
within budgets and limits, with a reason for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.placement import APPLICATIONS, _applications
from bench.planner import _machine, offer_of
from bench.rows import Row, machine
from hcloud.core.estimates import Classification, Estimate
from hcloud.core.gc_tuning import infrequent_gc
from hcloud.core.model import BatchTarget, Job, JobSpec, JobState, Offer, Resources
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, Caps, PlacementPolicy, Policy, RetentionPolicy, simple_policy

SIZES = (2, 4, 8, 16, 32, 48, 64)
FAMILIES = {"c": 2, "m": 4, "r": 8}
"""GiB of memory per vCPU."""
RUNNING = "m16"
PENDING, NODES, GROWTH = (1000, 3000), (0, 100, 1000), (500, 1000, 2000, 4000)
ROUNDS = 3
RAY = Path(__file__).parent.parent / "build" / "ray"
"""Where ``scripts/beside_ray`` installs Ray."""
_PARTS = (0.5, 1, 2, 4, 8)
_CAPS = Caps(max_instances=100_000, max_vcpus=None, max_queued_jobs=10**7)
_FILL = RetentionPolicy(drain=False)
"""Machines that are up are always filled, as Ray does."""
KNOWING = Policy(
    placement=PlacementPolicy(order="paragon"),
    admission=AdmissionPolicy(queues="by_quality", order="shortest"),
    caps=_CAPS,
    retention=_FILL,
)
PLAIN = simple_policy(caps=_CAPS, retention=_FILL)


def demands(pending: int) -> list[tuple[float, float]]:
    """Return the vCPUs and GiB of memory that so many jobs ask for."""
    chosen = random.Random(1)
    return [(chosen.choice(_PARTS), chosen.choice(_PARTS)) for _ in range(pending)]


def ray_rate(pending: int, nodes: int, rounds: int) -> float:
    """Return how many of the demands Ray's scheduler decides a second. Raises CalledProcessError if it fails."""
    question = {
        "types": {f"{name}{size}": (size, size * gib) for name, gib in FAMILIES.items() for size in SIZES},
        "running": RUNNING,
        "nodes": nodes,
        "demands": demands(pending),
        "rounds": rounds,
    }
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(RAY.resolve())}
    command = [sys.executable, str(Path(__file__).with_name("ray_scheduler.py"))]
    ran = subprocess.run(
        command, input=json.dumps(question), env=environment, capture_output=True, text=True, check=True
    )
    return pending / float(json.loads(ran.stdout.splitlines()[-1])["median_s"])


def hcloud_rate(pending: int, nodes: int, *, known: bool, rounds: int) -> tuple[float, str]:
    """Return how many of the jobs HCloud's planner decides a second, and what it decided."""
    snapshot, policy = snapshot_of(pending, nodes, known=known), KNOWING if known else PLAIN
    times_s = []
    for _ in range(rounds):
        fresh = replace(snapshot, plan_cache=PlanCache())
        began = time.process_time()
        plan = make_plan(fresh, policy, np.random.default_rng(0))
        times_s.append(time.process_time() - began)
    launches = sum(isinstance(each, Launch) for each in plan.actions)
    places = sum(isinstance(each, Place) for each in plan.actions)
    return pending / statistics.median(times_s), f"{launches} launched, {places} placed"


def snapshot_of(pending: int, nodes: int, *, known: bool) -> Snapshot:
    """Return so many queued jobs and idle machines; ``known``: each job is of one of 40 classified programs."""
    offers = [_offer(f"{name}{size}", size, gib) for name, gib in FAMILIES.items() for size in SIZES]
    running = next(offer for offer in offers if offer.instance_type.name == RUNNING)
    machines = tuple(_machine(number, running) for number in range(1, nodes + 1))
    return Snapshot(
        now=1000.0,
        jobs=tuple(_job(n, *asked, known=known) for n, asked in enumerate(demands(pending), start=1)),
        instances=machines,
        offers=tuple(sorted(offers, key=lambda offer: offer.key)),
        reachable=frozenset(each.id for each in machines),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
        applications=_known(offers) if known else {},
    )


def _known(offers: list[Offer]) -> Mapping[str, Classification]:
    by_type = {
        f"mock/{offer.instance_type.name}": Estimate(value=1.0 + 0.01 * n, low=0.9 + 0.01 * n, high=1.1 + 0.01 * n)
        for n, offer in enumerate(offers)
    }
    return {name: replace(each, by_type=by_type) for name, each in _applications().items()}


def _offer(name: str, vcpus: int, gib_per_vcpu: int) -> Offer:
    capacity = Resources(vcpus=float(vcpus), memory_mib=vcpus * gib_per_vcpu * 1024, disk_gib=500.0)
    return offer_of(name, capacity, 0.04 * vcpus * (1 + gib_per_vcpu / 20))


def _job(number: int, vcpus: float, memory_gib: float, *, known: bool) -> Job:
    need = Resources(vcpus=vcpus, memory_mib=int(memory_gib * 1024), disk_gib=1.0)
    spec = JobSpec(
        name="bench",
        user=f"user{number % 20}",
        command=("true",),
        target=BatchTarget(finish_within_s=1e6),
        resources=need,
    )
    at = float(number % 900)
    application = f"app-{number % APPLICATIONS}" if known else ""
    return Job(
        id=f"job-{number}",
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=at,
        queued_at=at,
        application=application,
    )


def rows(rounds: int, *, largest: bool) -> Iterator[Row]:
    """Yield the decisions a second of both, and how the planner's time grows with the number of jobs."""
    for nodes in NODES:
        for pending in PENDING if largest or not nodes else PENDING[:1]:
            theirs = ray_rate(pending, nodes, rounds)
            where = f"{pending:,} pending, {nodes:,} machines"
            yield Row(name=f"Ray, {where}", value=theirs, unit="/s")
            for known in (False, True):
                value, note = hcloud_rate(pending, nodes, known=known, rounds=rounds)
                what = "known" if known else "unknown"
                name = f"HCloud, {what} jobs, {where}"
                yield Row(name=name, value=value, unit="/s", target=theirs, better="higher", note=note)
    for known in (False, True):
        times_s = [count / hcloud_rate(count, 0, known=known, rounds=rounds)[0] for count in GROWTH]
        growth = float(np.polyfit(np.log(GROWTH), np.log(times_s), 1)[0])
        what, sizes = "known" if known else "unknown", f"{GROWTH[0]:,} to {GROWTH[-1]:,} jobs"
        yield Row(name=f"exponent of growth, {what} jobs", value=growth, unit="", target=1.1, note=sizes)


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def main() -> int:
    """Measure and print; end with 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside_ray", description=__doc__)
    rounds_help = "plans per figure, of which the median counts"
    parser.add_argument("--rounds", type=_at_least_one, default=ROUNDS, help=rounds_help)
    parser.add_argument("--largest", action="store_true", help="also 3,000 jobs on 100 and 1,000 machines")
    given = parser.parse_args()
    if not RAY.is_dir():
        parser.error(f"Ray is not in {RAY}: run make bench-beside-ray, which installs it there")
    print(f"machine: {machine()}")
    missed = 0
    with infrequent_gc():  # as the daemon does
        for row in rows(given.rounds, largest=given.largest):
            print(row.line(), flush=True)
            missed += row.holds is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
