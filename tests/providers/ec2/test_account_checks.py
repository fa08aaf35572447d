"""Looking an account over: each check tells right from wrong, and nothing is launched or ended by it."""

from typing import Any

import pytest

from hcloud.core.clock import SystemClock
from hcloud.provider import Examinable, Finding
from providers.ec2.account_checks import skew_finding
from tests.providers.ec2.ec2_bench import Ec2Bench
from tests.providers.ec2.test_permissions import allows, listed, needs_of, policy


def examined(bench: Ec2Bench, **changes: Any) -> dict[str, Finding]:
    provider = bench.build({"read_attempts": 1, **changes})
    assert isinstance(provider, Examinable)
    found = provider.examine()
    assert bench.fake.machines() == []
    assert all(each.do for each in found if each.verdict == "fail")
    return {each.check: each for each in found}


@pytest.fixture
def present(bench: Ec2Bench) -> Ec2Bench:
    """A bench at the present: the fake's server dates its answers by the wall clock."""
    bench.manual.advance(SystemClock().now() - bench.manual.now())
    route(bench, "nat")
    return bench


def route(bench: Ec2Bench, target: str) -> None:
    """Give the default network a way out by a NAT or an internet gateway."""
    ec2 = bench.provider.clients.writing()
    table, subnet = ec2.describe_route_tables()["RouteTables"][0], ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    whole = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "0.0.0.0/0"}
    if any(each["DestinationCidrBlock"] == "0.0.0.0/0" for each in table["Routes"]):
        ec2.delete_route(**whole)
    if target == "nat":
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
        ec2.create_route(**whole, NatGatewayId=nat)
    elif target == "igw":
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=table["VpcId"])
        ec2.create_route(**whole, GatewayId=gateway)
    bench.fake.calls.clear()  # these are not the daemon's


@pytest.mark.parametrize(
    ("target", "settings", "verdict", "says"),
    [
        ("nat", {}, "ok", "have a way out"),
        ("igw", {"public_ip": True}, "ok", "have a way out"),
        ("igw", {}, "fail", "leads to an internet gateway, and instances get no public address"),
        ("igw", {"system_packages": False}, "warn", "leads to an internet gateway"),
        ("none", {"public_ip": True}, "fail", "has no default route"),
    ],
)
def test_subnets_without_a_way_out_are_told_before_anything_is_launched(
    present: Ec2Bench, target: str, settings: dict[str, Any], verdict: str, says: str
) -> None:
    route(present, target)
    found = examined(present, **settings)["routes"]
    assert found.verdict == verdict
    assert says in found.finding


def test_routes_that_may_not_be_read_are_a_warning(present: Ec2Bench) -> None:
    present.fake.arm("DescribeRouteTables", "forbidden")
    assert examined(present)["routes"].verdict == "warn"


def test_an_account_that_is_right_is_found_right(present: Ec2Bench) -> None:
    found = examined(present)
    assert {each.check for each in found.values() if each.verdict != "ok"} == set()
    assert {"credentials", "permissions", "image", "region", "quota", "clock"} <= found.keys()
    assert "ec2:TerminateInstances" in found["permissions"].finding  # what is not tried is said


@pytest.mark.parametrize("action", ["RunInstances", "DescribeSpotPriceHistory", "DescribeInstances", "ReceiveMessage"])
def test_a_missing_permission_is_named(present: Ec2Bench, action: str) -> None:
    present.fake.arm(action, "forbidden", times=9)
    found = present.build({"read_attempts": 1}).examine()
    service = "sqs" if action == "ReceiveMessage" else "ec2"
    [missing] = [each for each in found if each.check == "permission" and each.verdict == "fail"]
    assert missing.finding == f"{service}:{action} is not allowed"
    assert "ec2-daemon.json" in missing.do


def test_a_launch_that_would_be_refused_is_a_failure(present: Ec2Bench) -> None:
    present.fake.arm("RunInstances", "no_profile")
    found = examined(present)
    assert found["launch"].verdict == "fail"
    assert "the dry run of a launch fails: " in found["launch"].finding
    assert "Invalid IAM Instance Profile name" in found["launch"].finding
    assert "permissions" not in found


def test_a_stockout_is_no_fault_of_the_account(present: Ec2Bench) -> None:
    present.fake.arm("RunInstances", "stockout")
    assert {each.verdict for each in examined(present).values()} == {"ok", "warn"}


def test_credentials_that_have_expired_are_told(present: Ec2Bench) -> None:
    present.fake.arm("GetCallerIdentity", "expired")
    found = examined(present)
    assert found.keys() == {"credentials"}
    assert found["credentials"].verdict == "fail"
    assert "ExpiredToken" in found["credentials"].finding


def test_an_image_that_is_not_there_is_told(present: Ec2Bench) -> None:
    region = examined(present, image="ami-00000000000000000")["region"]
    assert region.verdict == "fail"
    assert "ami-0000" in region.finding


def test_a_quota_of_nothing_is_told(present: Ec2Bench) -> None:
    present.fake.quota_vcpus = 0.0
    assert examined(present)["quota"].verdict == "warn"


@pytest.mark.parametrize(("skew_s", "verdict"), [(1.0, "ok"), (-60.0, "warn"), (600.0, "fail")])
def test_a_wrong_clock_is_told(skew_s: float, verdict: str) -> None:
    assert skew_finding(skew_s, "AWS").verdict == verdict


def test_looking_needs_no_permission_that_the_daemon_does_not_need(present: Ec2Bench) -> None:
    present.fake.calls.clear()
    examined(present)
    statements = policy("ec2-daemon.json", present.owner)
    made = [call for call in present.fake.calls if call.service != "sts"]  # whom one is, anybody may ask
    assert made
    granted = {action for each in statements for action in listed(each["Action"])}
    assert {f"{call.service}:{call.action}".replace("service-quotas", "servicequotas") for call in made} <= granted
    launches = [call for call in made if call.action == "RunInstances"]
    assert all(allows(statements, need) for call in launches for need in needs_of(call, present.fake))
