"""The shipped IAM policies allow every call that is made and nothing else: judged on the calls as they arrived."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest

from hcloud.core.model import Market
from tests.house.tree import ROOT
from tests.providers.ec2.conftest import action_of
from tests.providers.ec2.ec2_bench import Ec2Bench
from tests.providers.ec2.fake_ec2 import ACCOUNT, INSTANCE_PROFILE, QUEUE, REGION, FakeEc2, Recorded
from tests.providers.ec2.test_commitments import plan

IAM = ROOT / "deploy" / "iam"


@dataclass(frozen=True, slots=True)
class Need:
    """One thing a caller must be allowed to do."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


def policy(name: str, owner: str) -> list[dict[str, Any]]:
    """The statements of a shipped policy, filled in as the document says."""
    text = (IAM / name).read_text().replace("ACCOUNT", ACCOUNT).replace("OWNER", owner).replace("REGION", REGION)
    statements: list[dict[str, Any]] = json.loads(text)["Statement"]
    return statements


def listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else list(value)  # type: ignore[call-overload]


def allows(statements: list[dict[str, Any]], need: Need) -> bool:
    """Judge as IAM does, as far as these policies go: Allow only, StringEquals only."""
    for each in statements:
        assert each["Effect"] == "Allow"
        assert each.get("Condition", {}).keys() <= {"StringEquals"}
        conditions = each.get("Condition", {}).get("StringEquals", {})
        if (
            need.action in listed(each["Action"])
            and any(fnmatchcase(need.resource, pattern) for pattern in listed(each["Resource"]))
            and all(need.context.get(key) == value for key, value in conditions.items())
        ):
            return True
    return False


def needs_of(call: Recorded, fake: FakeEc2) -> Iterator[Need]:
    """What a call requires by AWS's service authorization reference."""
    name = action_of(call)
    if name == "ec2:RunInstances":
        yield from _needs_of_launch(call.parameters)
    elif name == "ec2:TerminateInstances":
        for key, value in call.parameters.items():
            if key.startswith("InstanceId."):
                owner = fake.bodies[value].tags["hcloud:owner"]
                yield Need(name, _ec2(f"instance/{value}"), {"aws:ResourceTag/hcloud:owner": owner})
    elif call.service == "ssm":
        parameter = call.parameters["Name"]
        account = "" if parameter.startswith("/aws/") else ACCOUNT
        yield Need(name, f"arn:aws:ssm:{REGION}:{account}:parameter{parameter}")
    elif call.service == "sqs":
        yield Need(name, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}")
    else:
        yield Need(name, "*")


def _ec2(what: str, account: str = ACCOUNT) -> str:
    return f"arn:aws:ec2:{REGION}:{account}:{what}"


def _needs_of_launch(sent: Mapping[str, str]) -> Iterator[Need]:
    tags = _tags_by_kind(sent)
    kinds = ["instance", "volume", "network-interface"]
    for kind in kinds:
        yield Need("ec2:RunInstances", _ec2(f"{kind}/*"), tags[kind])
        yield Need("ec2:CreateTags", _ec2(f"{kind}/*"), {**tags[kind], "ec2:CreateAction": "RunInstances"})
    yield Need("ec2:RunInstances", _ec2(f"image/{sent['ImageId']}", account=""))
    yield Need("ec2:RunInstances", _ec2(f"subnet/{sent['NetworkInterface.1.SubnetId']}"))
    yield Need("ec2:RunInstances", _ec2("security-group/sg-default"))
    if "KeyName" in sent:
        yield Need("ec2:RunInstances", _ec2(f"key-pair/{sent['KeyName']}"))
    if sent.get("InstanceMarketOptions.MarketType") == "spot":
        yield Need("ec2:RunInstances", _ec2("spot-instances-request/*"))
    room = sent.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId")
    if room:
        yield Need("ec2:RunInstances", _ec2(f"capacity-reservation/{room}"))
    assert sent["IamInstanceProfile.Name"] == INSTANCE_PROFILE
    role = f"arn:aws:iam::{ACCOUNT}:role/{INSTANCE_PROFILE}"
    yield Need("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def _tags_by_kind(sent: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for key, kind in sent.items():
        match = re.fullmatch(r"TagSpecification\.(\d+)\.ResourceType", key)
        if match is None:
            continue
        for other, name in sent.items():
            tag = re.fullmatch(rf"TagSpecification\.{match[1]}\.Tag\.(\d+)\.Key", other)
            if tag is not None:
                value = sent[f"TagSpecification.{match[1]}.Tag.{tag[1]}.Value"]
                found.setdefault(kind, {})[f"aws:RequestTag/{name}"] = value
    return found


@pytest.fixture
def busy(bench: Ec2Bench) -> Ec2Bench:
    """A provider that has made every call it can make."""
    bench.fake.capacity = [
        {
            "capacityReservationId": "cr-0123456789abcdef0",
            "availabilityZone": f"{REGION}a",
            "instanceType": "m5.large",
            "instancePlatform": "Linux/UNIX",
            "tenancy": "default",
            "availableInstanceCount": 1,
        }
    ]
    bench.fake.savings_plans = [plan(usd_per_h=0.001)]  # too small for any machine, but read
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    bench.settings["key_name"] = bench.provider.clients.writing().create_key_pair(KeyName="ops")["KeyName"]
    bench.fake.calls.clear()
    bench.provider = bench.build({})
    bench.provider.examine()
    offers = {each.market: each for each in bench.provider.offers()}
    machines = [bench.provider.launch(bench.order(offers[market])) for market in Market]
    bench.fake.preempt(machines[0].provider_id, bench.queue_url)
    bench.let_lists_settle()
    bench.provider.terminate([each.provider_id for each in machines])
    return bench


def test_daemon_is_allowed_every_call_it_makes_and_nothing_else(busy: Ec2Bench) -> None:
    statements = policy("ec2-daemon.json", busy.owner)
    needs = [need for call in busy.fake.calls for need in needs_of(call, busy.fake)]
    needs = [need for need in needs if need.action != "sts:GetCallerIdentity"]  # which nobody can be denied
    assert [need for need in needs if not allows(statements, need)] == []
    granted = {action for each in statements for action in listed(each["Action"])}
    assert granted == {need.action for need in needs}


def test_daemon_may_neither_touch_machines_of_others_nor_make_machines_without_its_tag(busy: Ec2Bench) -> None:
    statements = policy("ec2-daemon.json", busy.owner)
    somebody = {"aws:ResourceTag/hcloud:owner": "somebody-else"}
    assert not allows(statements, Need("ec2:TerminateInstances", _ec2("instance/i-1"), somebody))
    assert not allows(statements, Need("ec2:TerminateInstances", _ec2("instance/i-1")))
    assert not allows(statements, Need("ec2:RunInstances", _ec2("instance/*")))
    later = {"aws:RequestTag/hcloud:owner": busy.owner, "ec2:CreateAction": "CreateVolume"}
    assert not allows(statements, Need("ec2:CreateTags", _ec2("instance/i-1"), later))
    assert not allows(statements, Need("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin"))


def test_every_grant_is_needed(busy: Ec2Bench) -> None:
    statements = policy("ec2-daemon.json", busy.owner)
    needs = [need for call in busy.fake.calls for need in needs_of(call, busy.fake)]
    for each in statements:
        others = [other for other in statements if other is not each]
        assert not all(allows(others, need) for need in needs), each["Sid"]
