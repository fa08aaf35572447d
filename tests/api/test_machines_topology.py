"""What machines report of their CPUs is stored with them, and shown with a machine and in a job's timeline."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.core.cpu_topology import regular_topology
from tests.api.deployment import CLOUD, SUBMITTER, Deployment, job

WORDS = "2 sockets of 8 cores, 2 L3 caches, 2 NUMA nodes"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    types = {"m.2xlarge": {"vcpus": 16, "memory_mib": 65536, "usd_per_h": 0.768}}
    made = Deployment(tmp_path, cloud={**CLOUD, "types": types, "topology_from_vcpus": 16})
    yield made
    made.close()


def test_a_machines_sockets_are_known_once_it_is_ready(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    assert client.post("/v1/jobs", json=[job("long", command=["sleep", "900"])]).status_code < 300
    deployment.cycle_until(lambda: client.get("/v1/jobs/job-1").json()["state"] == "running")
    (machine,) = client.get("/v1/instances").json()
    assert machine["topology"] == WORDS
    assert deployment.store.instance("inst-1").cpu_topology == regular_topology(sockets=2, cores=8)
    lines = [each["text"] for each in client.get("/v1/jobs/job-1/explain").json()["steps"]]
    assert any(each.startswith("inst-1 is ready") and each.endswith(WORDS) for each in lines), lines
