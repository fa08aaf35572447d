"""The provider contract on slices of this host, with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.provider_contract import ProviderAbility, ProviderContract
from tests.providers.local_bench import LocalBench


class TestLocalProvider(ProviderContract):
    """What only a network, an account or several zones can do cannot happen here: the calls are local."""

    abilities = frozenset(ProviderAbility) - {
        ProviderAbility.LOSE_TERMINATE_REPLY,
        ProviderAbility.THROTTLE,
        ProviderAbility.EXCEED_QUOTA,
        ProviderAbility.LIST_PARTLY,
        ProviderAbility.LIST_LATE,
        ProviderAbility.RESERVE,
    }

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LocalBench]:
        bench = LocalBench(tmp_path / "local")
        yield bench
        bench.close()
