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
    for each in bench.provider.clients.writing().describe_security_groups()["SecurityGroups"]:
        group = each["GroupId"]  # a default one, which on AWS lets in what comes from itself; the fake's does not
        let_in(bench, group, "-1", -1, -1, UserIdGroupPairs=[{"GroupId": group}])
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


@pytest.fixture
def group(present: Ec2Bench) -> str:
    """A security group of the default network that lets nothing in."""
    ec2 = present.provider.clients.writing()
    vpc = ec2.describe_subnets()["Subnets"][0]["VpcId"]
    made = ec2.create_security_group(GroupName="workers", Description="workers", VpcId=vpc)
    present.fake.calls.clear()  # these are not the daemon's
    return str(made["GroupId"])


def let_in(bench: Ec2Bench, group: str, protocol: str, first: int, last: int, **source: Any) -> None:
    rule = {"IpProtocol": protocol, "FromPort": first, "ToPort": last, **source}
    bench.provider.clients.writing().authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    bench.fake.calls.clear()


def test_the_default_group_of_a_network_lets_gangs_have_a_network(present: Ec2Bench) -> None:
    found = examined(present)["gang network"]
    assert found.verdict == "ok" and "lets instances reach each other by UDP 51820 to 52843" in found.finding
    assert "wireguard-tools" not in found.finding
    assert "wireguard-tools" in examined(present, system_packages=False)["gang network"].finding


def from_everywhere(cidr: str) -> dict[str, Any]:
    return {"IpRanges": [{"CidrIp": cidr}]}


@pytest.mark.parametrize(
    ("rules", "verdict", "says"),
    [
        ([("udp", 51820, 52843, None)], "ok", "lets instances"),
        ([("-1", -1, -1, None)], "ok", "lets instances"),
        ([("udp", 51820, 52000, None), ("udp", 52001, 52843, from_everywhere("0.0.0.0/0"))], "ok", "lets instances"),
        ([("udp", 0, 65535, from_everywhere("172.31.0.0/16"))], "ok", "lets instances"),
        ([], "warn", "by UDP 51820 to 52843 (in)"),
        ([("udp", 51820, 52000, None)], "warn", "by 843 ports of UDP 51820 to 52843 (in)"),
        ([("tcp", 0, 65535, None)], "warn", "by UDP 51820 to 52843 (in)"),
        ([("udp", 0, 65535, from_everywhere("10.0.0.0/8"))], "warn", "by UDP 51820 to 52843 (in)"),
    ],
)
def test_ports_of_gangs_that_a_security_group_opens_or_not(
    present: Ec2Bench, group: str, rules: list[Any], verdict: str, says: str
) -> None:
    for protocol, first, last, source in rules:
        let_in(present, group, protocol, first, last, **(source or {"UserIdGroupPairs": [{"GroupId": group}]}))
    found = examined(present, security_groups=[group])["gang network"]
    assert found.verdict == verdict and group in found.finding and says in found.finding
    assert (verdict == "ok") == (found.do == "") and (verdict == "ok" or "docs/aws.md" in found.do)


def test_a_group_that_lets_nothing_out_closes_the_ports_too(present: Ec2Bench, group: str) -> None:
    let_in(present, group, "-1", -1, -1, UserIdGroupPairs=[{"GroupId": group}])
    ec2 = present.provider.clients.writing()
    out = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissionsEgress"]
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=out)
    present.fake.calls.clear()
    found = examined(present, security_groups=[group])["gang network"]
    assert found.verdict == "warn" and "(out)" in found.finding


def test_security_groups_that_may_not_be_read_are_a_warning(present: Ec2Bench) -> None:
    present.fake.arm("DescribeSecurityGroups", "forbidden")
    found = examined(present)["gang network"]
    assert found.verdict == "warn" and "ec2:DescribeSecurityGroups" in found.do


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
