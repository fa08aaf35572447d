"""The provider contract on EC2: the real provider and library, over real HTTP, against moto behind a fault layer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.provider_contract import ProviderAbility, ProviderContract
from tests.providers.ec2.ec2_bench import Ec2Bench, served_fake
from tests.providers.ec2.fake_ec2 import FakeEc2


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEc2]:
    with served_fake() as fake:
        yield fake


class TestEc2Provider(ProviderContract):
    """It shows every ability."""

    abilities = frozenset(ProviderAbility)

    @pytest.fixture
    def bench(self, fake: FakeEc2, tmp_path: Path) -> Iterator[Ec2Bench]:
        yield Ec2Bench(fake, tmp_path)
        assert fake.unknown_calls == []
