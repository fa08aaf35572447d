"""The size the planner chooses for a job is what its unit gets on a real machine, and so is one it is given later."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.apply.units import UnitActions
from hcloud.core.clock import SystemClock
from hcloud.core.model import Allocation, Attempt
from hcloud.planner.plan import Place
from hcloud.provider import UnitSpec
from hcloud.store import MemoryStore
from tests.engine.site import PATIENCE_S, Site, Watch
from tests.machine import groups_named
from tests.planner.scenes import decide, machine, of, offer
from tests.planner.test_joint_sizing import QUASAR, here, sized
from tests.waiting import wait_until

ROOMY = offer("large", vcpus=4.0)


def chosen_unit(folder: Path, watch: Watch) -> UnitSpec:
    """A job that may get 1 to 4 vCPUs and needs 2 for its deadline, as its plan places it."""
    command = ("/bin/sh", "-c", "echo vcpus=$HCLOUD_VCPUS; sleep 300")
    job = sized(1, 600.0, vcpus_within=(1.0, 4.0), command=command)
    [place] = of(decide(here(machine(1, ROOMY), job), QUASAR), Place)
    [rank] = place.ranks
    held = Allocation(rank=0, instance_id=rank.instance_id, resources=replace(rank.resources, disk_gib=0.1))
    # Control groups go by the unit's id, and another test may run a unit of job-1 at the same time.
    attempt = Attempt(id=f"job-{os.getpid()}.1", number=1, placed_at=0.0, allocations=(held,))
    actions = UnitActions(store=MemoryStore(), runner=watch.runner, clock=SystemClock(), uploads_dir=folder)
    return actions.unit_spec(job, attempt, held)


def quotas(unit: UnitSpec) -> list[float]:
    """How many vCPUs the kernel lets the unit use, by its control group (version 1 or 2)."""
    own = [group for group in groups_named(unit.id) if group.name == unit.id]
    files = [group / name for group in own for name in ("cpu.cfs_quota_us", "cpu.max")]
    return [float(path.read_text().split()[0]) / 100_000 for path in files if path.exists()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_gets_the_vcpus_it_was_granted_and_later_more(site: Site) -> None:
    try:
        site.machine("inst-1", capacity={"vcpus": 4, "memory_mib": 1024, "disk_gib": 1})
        watch = Watch(site.runner())
        watch.registered("inst-1")
        unit = chosen_unit(site.folder, watch)
        assert unit.resources.vcpus == 2.0
        assert watch.runner.start([unit])[unit.id].outcome == "started"
        assert watch.says(unit, "vcpus=2\n")
        assert quotas(unit) == [2.0]
        more = {unit.id: (unit.instance_id, replace(unit.resources, vcpus=3.5))}
        assert watch.runner.resize(more)[unit.id].outcome == "resized"
        wait_until(lambda: quotas(unit) == [3.5], PATIENCE_S)
    finally:
        site.close()
