"""The real cycle under each strategy: reserved machines first, full servers where asked, and their reports."""

from collections import Counter
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
    [row] = table.rows  # that machine is paid for, launched or not
    used_h = float(str(row[[each.name for each in table.columns].index("used_h")]))
    assert row[0] == Market.RESERVED.value and (used_h > 0) == (("m.one", "reserved") in kinds)


def test_frequent_preemptions_drive_jobs_to_on_demand_before_they_cost_more(tmp_path: Path) -> None:
    cloud = {
        "markets": ["on_demand", "spot"],
        "types": {f"m.t{n}": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3 + 0.01 * n} for n in range(5)},
        "zones": ["east-1a", "east-1b"],
        "spot": {"preemptions_per_h": 120, "volatility": 0.0, "notice_s": 5},
        "billing_minimum_s": 60,
        "boot": {"p50_s": 20, "p95_s": 20},
    }
    at = deployment(tmp_path, cloud)
    at.submit("sleep", "240", count=4, resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0))
    at.until(lambda: all(at.state(n) is JobState.SUCCEEDED for n in (1, 2, 3, 4)), cycles=700)
    launched = Counter(machine.market for machine in at.scene.cloud.machines(at.now))
    assert launched[Market.ON_DEMAND] == 4 and 0 < launched[Market.SPOT] <= 8  # without expected cost: 28
    assert at.scene.cloud.billed_usd(at.now) <= 1.3 * 4 * 240 / 3600 * 0.3
