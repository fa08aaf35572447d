"""One fake per module of tests; a bench on a fresh account per test. Whatever a test asks for, the daemon may do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.config import package_data
from tests.providers.ec2.ec2_bench import Ec2Bench, served_fake
from tests.providers.ec2.fake_ec2 import FakeEc2, Recorded


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEc2]:
    with served_fake() as fake:
        yield fake


@pytest.fixture
def bench(fake: FakeEc2, tmp_path: Path) -> Iterator[Ec2Bench]:
    yield Ec2Bench(fake, tmp_path)
    assert fake.unknown_calls == []


NAMES = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}
"""Calls that IAM knows under another name."""
OF_TESTS = frozenset({"ec2:CreateKeyPair"})
"""What tests themselves do to prepare an account."""
OF_EVERYBODY = frozenset({"sts:GetCallerIdentity"})


@pytest.fixture(autouse=True)
def allowed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every call that any of these tests brings about is granted by the shipped policy."""
    yield
    if "fake" in request.fixturenames:
        made = {action_of(each) for each in request.getfixturevalue("fake").calls}
        assert made - granted() - OF_TESTS - OF_EVERYBODY == set()


def action_of(call: Recorded) -> str:
    """Return the name of a call as policies have it."""
    return NAMES.get(name := f"{call.service.replace('service-quotas', 'servicequotas')}:{call.action}", name)


def granted() -> set[str]:
    """Return the actions that the daemon's policy grants on anything."""
    statements = json.loads(package_data.path("deploy/iam/ec2-daemon.json").read_text())["Statement"]
    actions = [each["Action"] for each in statements]
    return {name for each in actions for name in ([each] if isinstance(each, str) else each)}
