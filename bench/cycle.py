"""The cycle's target: a full cycle over a long queue and a large fleet."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.rows import Row
from hcloud.core.model import BestEffortTarget, InstanceState, JobSpec, Resources
from hcloud.store import Submission
from tests.apply.deployment import Deployment, deployment

QUEUED = 10_000
INSTANCES = 1_000
CYCLES = 25


def run() -> list[Row]:
    """Measure full cycles: nothing changed, and one job submitted and one ended in between."""
    with tempfile.TemporaryDirectory() as made:
        site = deployment(
            Path(made),
            cloud={"persist": False, "boot": {"p50_s": 0, "p95_s": 0}, "markets": ["on_demand"]},
            policy={
                "caps": {"max_instances": INSTANCES, "max_vcpus": None},
                "disruption": {"max_terminations_per_cycle": 1},
            },
        )
        _fill(site)
        quiet = [_timed_cycle(site) for _ in range(CYCLES)]
        busy = []
        for _ in range(CYCLES):
            site.submit("sleep", "1")
            busy.append(_timed_cycle(site))
        note = f"{len(site.scene.store.live().jobs)} jobs, {len(site.scene.store.live().instances)} instances"
        site.scene.close()
    return [
        Row(
            name="full cycle, nothing changed (median)",
            value=statistics.median(quiet),
            unit="ms",
            target=100,
            note=note,
        ),
        Row(
            name="full cycle, a job submitted each time (median)", value=statistics.median(busy), unit="ms", target=100
        ),
        Row(name="full cycle, slowest of all", value=max(quiet + busy), unit="ms"),
    ]


def _fill(site: Deployment) -> None:
    """Fill every machine with two long jobs, and queue the rest behind them."""
    specs = [_spec(number) for number in range(2 * INSTANCES + QUEUED)]
    store, clock = site.scene.store, site.scene.clock
    store.submit([Submission(spec=spec, actor=spec.user) for spec in specs], clock.now())
    for _ in range(400):
        site.scene.controller.cycle()
        clock.advance(1.0)
        ready = [i for i in store.live().instances if i.state is InstanceState.READY]
        running = sum(job.state == "running" for job in store.live().jobs)
        if len(ready) == INSTANCES and running >= 2 * INSTANCES:
            return
    raise AssertionError(f"{len(ready)} instances are ready and {running} jobs run")


def _spec(number: int) -> JobSpec:
    """Jobs of a few hundred different shapes, all of which fit twice on a machine."""
    shape = Resources(vcpus=0.9 + (number % 10) / 100, memory_mib=512 + 16 * (number % 37), disk_gib=1.0)
    base = JobSpec(
        name=f"job {number}", user=f"user{number % 20}", command=("sleep", "100000"), target=BestEffortTarget()
    )
    return replace(base, resources=shape)


def _timed_cycle(site: Deployment) -> float:
    site.scene.clock.advance(1.0)
    began = time.perf_counter()
    site.scene.controller.cycle()
    return (time.perf_counter() - began) * 1e3
