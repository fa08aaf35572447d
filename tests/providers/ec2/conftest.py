"""One fake per module of tests; a bench on a fresh account per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.ec2.ec2_bench import Ec2Bench, served_fake
from tests.providers.ec2.fake_ec2 import FakeEc2


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEc2]:
    with served_fake() as fake:
        yield fake


@pytest.fixture
def bench(fake: FakeEc2, tmp_path: Path) -> Iterator[Ec2Bench]:
    yield Ec2Bench(fake, tmp_path)
    assert fake.unknown_calls == []
