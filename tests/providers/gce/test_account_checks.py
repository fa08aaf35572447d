"""Looking a project over: each check tells right from wrong."""

from typing import Any

import pytest
import yaml

from hcloud.config import package_data
from hcloud.core.clock import SystemClock
from hcloud.provider import Examinable, Finding
from providers.gce import GceProvider
from providers.gce.account_checks import needed_permissions
from tests.providers.gce.answers import Refusal
from tests.providers.gce.bench import GceBench
from tests.providers.gce.compute import Fault, firewall_rule
from tests.providers.gce.test_permissions import EVERYTHING


class PresentClock(SystemClock):
    """The wall clock, which a machine may have wrong."""

    off_s = 0.0

    def now(self) -> float:
        return super().now() + self.off_s


def examined(bench: GceBench, off_s: float = 0.0, **changes: Any) -> dict[str, Finding]:
    clock = PresentClock()
    clock.off_s = off_s
    provider = GceProvider("gce", {**bench.settings, "read_tries": 1, **changes}, clock, bench.owner, str(bench.folder))
    assert isinstance(provider, Examinable)
    found = provider.examine()
    assert all(each.do for each in found if each.verdict == "fail")
    return {each.check: each for each in found}


def test_a_project_that_is_right_is_found_right(bench: GceBench) -> None:
    found = examined(bench)
    assert {each.verdict for each in found.values()} == {"ok"}
    assert {"credentials", "permissions", "clock", "quota us-central1"} <= found.keys()


def test_a_missing_permission_is_named(bench: GceBench) -> None:
    bench.compute.not_granted = {"compute.instances.delete"}
    missing = examined(bench)["permission"]
    assert (missing.verdict, missing.finding) == ("fail", "compute.instances.delete is not granted")
    assert "gce-daemon-role.yaml" in missing.do


def test_permissions_asked_about_are_those_of_the_shipped_role(bench: GceBench) -> None:
    role = yaml.safe_load(package_data.path("deploy/iam/gce-daemon-role.yaml").read_text())["includedPermissions"]
    with_subnetwork, plain = bench.plain(**EVERYTHING).settings, bench.plain().settings
    # Without these two checks are left out, and all else works.
    only_looked_with = {"compute.routers.list", "compute.firewalls.list"}
    assert {*needed_permissions(with_subnetwork), *needed_permissions(plain), *only_looked_with} == set(role)


def test_credentials_that_are_not_valid_are_told(bench: GceBench) -> None:
    bench.compute.refusal = Refusal(401, "authError", "Invalid Credentials")
    assert examined(bench)["credentials"].verdict == "fail"


def test_permissions_that_cannot_be_tried_are_not_called_missing(bench: GceBench) -> None:
    bench.compute.refusal = Refusal(403, "forbidden", "Cloud Resource Manager API has not been used")
    found = examined(bench)
    assert found["permissions"].verdict == "warn"
    assert "not been used" in found["permissions"].finding


@pytest.mark.parametrize(("off_s", "verdict"), [(0.0, "ok"), (60.0, "warn"), (-900.0, "fail")])
def test_a_wrong_clock_is_told(bench: GceBench, off_s: float, verdict: str) -> None:
    assert examined(bench, off_s)["clock"].verdict == verdict


def test_a_quota_that_is_nearly_used_up_is_told(bench: GceBench) -> None:
    bench.compute.quota_cpus = 2.0
    provider = bench.plain()
    provider.launch(bench.request())
    quota = examined(bench)["quota us-central1"]
    assert "left" in quota.finding


def test_a_region_without_cloud_nat_is_named_where_machines_get_no_external_address(bench: GceBench) -> None:
    bench.compute.regions_with_nat = ("europe-west1",)
    found = examined(bench)
    assert (found["way out europe-west1"].verdict, found["way out us-central1"].verdict) == ("ok", "warn")
    assert "no Cloud NAT" in found["way out us-central1"].finding
    assert examined(bench, network="global/networks/other")["way out europe-west1"].verdict == "warn"
    assert examined(bench, subnetwork="private")["way out europe-west1"].verdict == "ok"
    assert not [check for check in examined(bench, external_ip=True) if check.startswith("way")]


def test_routers_that_cannot_be_read_are_not_called_missing(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("forbidden", "routers.aggregatedList"))
    assert examined(bench)["ways out"].finding.startswith("not looked at: ")


TAGGED = {"sourceTags": ["work"], "targetTags": ["work"]}
HALVES = [firewall_rule("low", ports=["51820-52000"]), firewall_rule("high", ports=["52001-60000", "22"])]


@pytest.mark.parametrize(
    ("rules", "settings", "says"),
    [
        ([firewall_rule("internal")], {}, "rule internal from 10.128.0.0/9"),
        (HALVES, {}, "rule low from 10.128.0.0/9, high from 10.128.0.0/9"),
        ([firewall_rule("gangs", **TAGGED)], {"network_tags": ["work"]}, "rule gangs"),
        ([firewall_rule("all", allowed=[{"IPProtocol": "all"}])], {}, "rule all from"),
        ([firewall_rule("closed", action="denied"), firewall_rule("first", priority=9)], {}, "rule first from"),
        ([firewall_rule("internal")], {"subnetwork": "private"}, "rule internal from"),
        ([firewall_rule("internal")], {"worker": {"system_packages": False}}, "must hold wireguard-tools"),
    ],
)
def test_rules_that_let_gangs_have_a_network_are_named(
    bench: GceBench, rules: list[Any], settings: dict[str, Any], says: str
) -> None:
    bench.compute.firewall_rules = rules
    worker = {**bench.settings.get("worker", {}), **settings.get("worker", {})}
    found = examined(bench, **{**settings, "worker": worker})["gang network"]
    assert found.verdict == "ok" and found.finding.startswith("instances reach each other by UDP 51820 to 52843: ")
    assert says in found.finding


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([], "no rule of network default lets instances reach each other by UDP"),
        ([firewall_rule("low", ports=["51820-52000"])], "by 843 ports of UDP"),
        ([firewall_rule("gangs", **TAGGED)], "by UDP"),
        ([firewall_rule("tcp", allowed=[{"IPProtocol": "tcp"}])], "by UDP"),
        ([firewall_rule("internal", disabled=True)], "by UDP"),
        ([firewall_rule("out", direction="EGRESS", sourceRanges=[], destinationRanges=["0.0.0.0/0"])], "by UDP"),
        ([firewall_rule("logins", sourceRanges=["35.235.240.0/20", "2600:2d00::/32"])], "by UDP"),
        ([firewall_rule("internal", network="https://x/global/networks/other")], "by UDP"),
        ([firewall_rule("internal"), firewall_rule("shut", action="denied")], "they are denied by shut from"),
    ],
)
def test_rules_that_let_gangs_have_no_network_are_a_warning_with_what_to_do(
    bench: GceBench, rules: list[Any], says: str
) -> None:
    bench.compute.firewall_rules = rules
    found = examined(bench)["gang network"]
    assert found.verdict == "warn" and says in found.finding and "docs/gcp.md" in found.do


def test_firewall_rules_that_cannot_be_read_are_not_called_missing(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("forbidden", "firewalls.list"))
    found = examined(bench)["gang network"]
    assert found.finding.startswith("not looked at: ") and "compute.firewalls.list" in found.do


def test_a_region_that_cannot_be_read_is_told(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("forbidden", "regions.get", times=None))
    assert examined(bench)["region us-central1"].verdict == "fail"


def test_a_region_in_trouble_hides_no_other(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("forbidden", "regions.get"))  # the first that is read
    found = examined(bench, zones=["europe-west1-d", "us-central1-a"])
    assert found["region europe-west1"].verdict == "fail"
    assert found["quota us-central1"].verdict == "ok"
    assert found["permissions"].verdict == "ok"


def test_nobody_there_is_told_and_not_raised(bench: GceBench) -> None:
    bench.server.go_away()
    assert examined(bench)["credentials"].verdict == "fail"
    bench.server.come_back()
