"""The provider contract on a fake Compute Engine over real HTTP, through the official client library."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.contract.provider_contract import ProviderAbility, ProviderBench, ProviderContract
from tests.providers.gce.bench import GceBench


class TestGceProvider(ProviderContract):
    abilities: ClassVar = frozenset(ProviderAbility)

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[ProviderBench]:
        bench = GceBench(tmp_path)
        yield bench
        bench.close()
