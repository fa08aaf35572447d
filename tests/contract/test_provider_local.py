"""The provider contract on slices of this host, with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.provider_contract import ProviderAbility, ProviderContract
from tests.providers.local_bench import LocalBench


class TestLocalProvider(ProviderContract):
    """Faults of a network (lost replies, throttling, partial lists) cannot happen here: the calls are local."""

    abilities = frozenset(
        {ProviderAbility.DIE, ProviderAbility.PREEMPT, ProviderAbility.RESTART, ProviderAbility.SECOND_OWNER}
    )

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LocalBench]:
        bench = LocalBench(tmp_path / "local")
        yield bench
        bench.close()
