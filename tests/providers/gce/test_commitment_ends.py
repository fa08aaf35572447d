"""The end of what is committed to on Compute Engine, through the real cycle over HTTP."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.scene import CrashPoints, FileClock, Scene
from tests.providers.commitment_ends import ENDS_AT, LATER_AT, POLICY, Prices, play_one_end_of_two, play_the_end
from tests.providers.gce.answers import stamp
from tests.providers.gce.bench import PRICES
from tests.providers.gce.compute import FakeCompute
from tests.providers.gce.scene import build_on_gce
from tests.providers.gce.server import Server

COMMITTED: Mapping[str, Mapping[str, Mapping[str, float]]] = json.loads(json.dumps(PRICES)) | {
    "us-central1": {"e2-standard-2": {"on_demand": 0.067, "commit_1y": 0.042, "commit_3y": 0.03}}
}


@dataclass(frozen=True, slots=True)
class Site:
    """A deployment that may use what is reserved, and its fake project."""

    scene: Scene
    compute: FakeCompute


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    compute = FakeCompute(FileClock(tmp_path / "clock"), checked=False)
    server = Server(compute)
    more = {"markets": ["reserved", "on_demand"], "zones": ["us-central1-a"]}
    made = build_on_gce(tmp_path, CrashPoints(), endpoint=server.endpoint, policy=POLICY, prices=COMMITTED, more=more)
    yield Site(made, compute)
    made.close()
    server.close()
    assert compute.problems == []


def commit(compute: FakeCompute, vcpus: int, ends_at: float, plan: str = "TWELVE_MONTH") -> None:
    """Buy committed use of E2, with 4 GiB for each vCPU."""
    compute.commitments.append(
        {
            "name": f"commitment-{len(compute.commitments)}",
            "region": "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1",
            "status": "ACTIVE",
            "plan": plan,
            "type": "GENERAL_PURPOSE_E2",
            "endTimestamp": stamp(ends_at),
            "resources": [{"type": "VCPU", "amount": str(vcpus)}, {"type": "MEMORY", "amount": str(vcpus * 4096)}],
        }
    )


def test_machine_of_a_commitment_is_on_demand_from_its_end_on(site: Site) -> None:
    commit(site.compute, 2, ENDS_AT)
    play_the_end(site.scene, Prices(reserved_usd_per_h=0.042, on_demand_usd_per_h=0.067))


def test_machine_in_a_reservation_is_on_demand_from_its_end_on(site: Site) -> None:
    site.compute.reserve("kept", "us-central1-a", "e2-standard-2", 1, named=True, deleteAtTime=stamp(ENDS_AT))
    play_the_end(site.scene, Prices(reserved_usd_per_h=0.067, on_demand_usd_per_h=0.067))


def test_at_the_first_end_of_two_commitments_just_one_of_three_machines_is_on_demand(site: Site) -> None:
    commit(site.compute, 2, ENDS_AT)
    commit(site.compute, 4, LATER_AT)
    play_one_end_of_two(site.scene, Prices(reserved_usd_per_h=0.042, on_demand_usd_per_h=0.067))
