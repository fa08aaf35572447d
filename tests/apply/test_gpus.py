"""GPUs are given by number when a job is placed, one job each, over restarts; and count in what a unit costs."""

from typing import Any

from hcloud.core.model import EventKind, Gpus, JobState, Resources
from hcloud.planner.explain import job_timeline
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment

CLOUD: dict[str, object] = {
    "types": {
        "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3},
        "g.four": {
            "vcpus": 8,
            "memory_mib": 32768,
            "usd_per_h": 2.0,
            "gpus": {"count": 4, "kind": "T4", "memory_gib": 16},
        },
    },
    "markets": ["on_demand"],
    "persist": True,
}


def asks(count: int) -> dict[str, Any]:
    return {"resources": Resources(vcpus=0.5, memory_mib=256, disk_gib=1.0, gpus=Gpus(count=count, kind="t4"))}


def given(site: Deployment, number: int) -> tuple[int, ...]:
    """Return the GPUs of a job by its row; those of its unit by the engine must be the same."""
    attempt = site.job(number).attempt
    assert attempt is not None
    spec = site.scene.engine._units[site.unit(number)].spec
    assert spec is not None
    assert spec.gpus == attempt.allocations[0].gpus
    return spec.gpus


def test_each_gpu_is_one_jobs_until_that_has_ended_also_for_the_next_daemon(make: MakeDeployment) -> None:
    site = make(cloud=CLOUD, policy={"caps": {"max_instances": 1}})
    site.submit("sleep", "5000", **asks(1))
    site.submit("sleep", "8", **asks(2))
    site.until_state(JobState.RUNNING, number=2)
    assert (given(site, 1), given(site, 2)) == ((0,), (1, 2))
    site.restart()
    site.submit("sleep", "5000", **asks(2))
    site.until_state(JobState.SUCCEEDED, number=2)
    site.until_state(JobState.RUNNING, number=3)
    assert given(site, 3) == (1, 2)


def test_a_unit_costs_its_share_of_the_gpus_and_explain_names_them(make: MakeDeployment) -> None:
    site = make(cloud=CLOUD)
    site.submit("sleep", "5", **asks(3))
    site.until_state(JobState.SUCCEEDED)
    [started] = site.events(EventKind.UNIT_STARTED)
    assert started.fields["gpu_share"] == 0.75
    story = job_timeline(site.job(), site.scene.store.events(limit=1000), site.scene.store.live().instances)
    texts = {line.code: line.text for line in story}
    assert "512" not in texts["submitted"]
    assert ", 3 GPUs of kind t4" in texts["submitted"]
    assert texts["placed"].endswith("; GPU 0-2 of inst-1 for rank 0")
    assert "75 % of inst-1" in texts["cost"]
