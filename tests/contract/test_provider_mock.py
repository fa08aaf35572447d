"""The Provider contract on the mock cloud: in memory, and in a file that outlives the process."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hcloud.core.clock import ManualClock
from hcloud.provider import Provider
from providers.mock import Fault, FaultKind, MockProvider
from tests.contract.benches import VirtualTime
from tests.contract.provider_contract import ProviderAbility, ProviderBench, ProviderContract

SETTINGS = {"list_lag_s": 8.0, "quality": {"spread": 0.1}}


class MockBench(VirtualTime, ProviderBench):
    """A mock cloud on a manual clock."""

    misspelt_setting = ("list_lags", "list_lag_s")

    def __init__(self, state_dir: Path, settings: Mapping[str, object]) -> None:
        VirtualTime.__init__(self, ManualClock())
        ProviderBench.__init__(self)
        self._state_dir = state_dir
        self._settings = settings
        self.provider: MockProvider = self._made(self.owner)

    def build(self, settings: Mapping[str, object]) -> Provider:
        return self._made(self.owner, settings)

    def break_next(self, fault: ProviderAbility) -> None:
        match fault:
            case ProviderAbility.LOSE_TERMINATE_REPLY:
                self.provider.inject(Fault(kind=FaultKind.LOSE_REPLY, call="terminate"))
            case _:
                self.provider.inject(Fault(kind=FaultKind(fault.value)))

    def strike(self, provider_id: str, how: ProviderAbility) -> None:
        if how is ProviderAbility.DIE:
            self.provider.kill(provider_id)
        else:
            self.provider.preempt(provider_id)

    def restarted(self) -> Provider:
        return self._made(self.owner)

    def for_owner(self, owner: str) -> Provider:
        return self._made(owner)

    def _made(self, owner: str, settings: Mapping[str, object] | None = None) -> MockProvider:
        return MockProvider("mock", {**self._settings, **(settings or {})}, self.clock, owner, str(self._state_dir))


OUTLIVING = frozenset({ProviderAbility.RESTART, ProviderAbility.SECOND_OWNER})
"""What needs the file: nothing in memory outlives its process, or is shared by two."""
ABILITIES = frozenset(ProviderAbility) - {ProviderAbility.RESERVE}
"""Its reserved machines are in no reservation of their own."""


class TestMockProviderInMemory(ProviderContract):
    abilities: ClassVar = ABILITIES - OUTLIVING
    elsewhere: ClassVar = OUTLIVING

    @pytest.fixture
    def bench(self, tmp_path: Path) -> ProviderBench:
        return MockBench(tmp_path, SETTINGS)


class TestMockProviderInAFile(ProviderContract):
    abilities: ClassVar = ABILITIES

    @pytest.fixture
    def bench(self, tmp_path: Path) -> ProviderBench:
        return MockBench(tmp_path, {**SETTINGS, "persist": True})


class TestMockProviderWithoutDelays(ProviderContract):
    elsewhere: ClassVar = OUTLIVING | {ProviderAbility.LIST_LATE}
    abilities: ClassVar = ABILITIES - elsewhere

    @pytest.fixture
    def bench(self, tmp_path: Path) -> ProviderBench:
        return MockBench(tmp_path, {"boot": {"p50_s": 0}, "stop_s": 0})
