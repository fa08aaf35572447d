"""The real cycle under each strategy: reserved machines first, full servers where asked, and their reports."""

from pathlib import Path

import pytest

from hcloud.core.model import BatchTarget, EventKind, JobState, Market, Resources
from hcloud.report import build_report
from tests.apply.deployment import deployment

TYPES = {
    "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.1},
    "m.full": {"vcpus": 16, "memory_mib": 32768, "usd_per_h": 0.8},
}
CLOUD = {
    "markets": ["reserved", "on_demand"],
    "types": TYPES,
    "reserved": {"m.one": 1},
    "reserved_default": 0,
    "zones": ["east-1a"],
}


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        ("sr", {("m.one", "reserved")}),
        ("odf", {("m.full", "on_demand")}),
        ("odm", {("m.one", "on_demand")}),
        ("hf", {("m.one", "reserved"), ("m.full", "on_demand")}),
        ("hm", {("m.one", "reserved"), ("m.one", "on_demand")}),
    ],
)
def test_jobs_run_to_their_end_on_the_machines_of_the_strategy(
    tmp_path: Path, strategy: str, kinds: set[tuple[str, str]]
) -> None:
    policy = {"provisioning": {"strategy": strategy}, "spot": {"for_targets": []}}
    at = deployment(tmp_path, CLOUD, policy)
    asked = {"target": BatchTarget(finish_within_s=9000.0), "resources": Resources(vcpus=1.0), "profiling": "never"}
    at.submit("sleep", "30", count=4, **asked)
    at.until(lambda: all(at.state(n) is JobState.SUCCEEDED for n in (1, 2, 3, 4)), cycles=400)
    requested = at.events(EventKind.INSTANCE_REQUESTED)
    assert {(str(each.fields["type"]), str(each.fields["market"])) for each in requested} == kinds
    events = at.scene.store.iter_events()
    table = build_report("commitments", events, at.now, by="market")
    assert [row[0] for row in table.rows] == ([Market.RESERVED.value] if ("m.one", "reserved") in kinds else [])
