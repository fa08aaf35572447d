"""The Runner contract on the fake engine over a mock cloud: in memory and with a journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.model import InstanceId
from hcloud.fake_runner.runner import FakeRunner, StartFault, work_from
from hcloud.provider import LaunchRequest, Runner
from providers.mock import MockProvider
from tests.contract.benches import VirtualTime
from tests.contract.fencing_contract import FencingContract
from tests.contract.pause_contract import PauseContract
from tests.contract.profiling_contract import ProfilingContract
from tests.contract.resize_contract import ResizeContract
from tests.contract.runner_contract import SCRIPTS, RunnerAbility, RunnerBench, RunnerContract

OWNER = "hcloud-contract"


class FakeBench(VirtualTime, RunnerBench):
    """Two machines of a mock cloud that boots at once, on a manual clock."""

    instances = ("inst-1", "inst-2")

    def __init__(self, state_dir: Path, settings: Mapping[str, object]) -> None:
        self._manual_clock = ManualClock()
        VirtualTime.__init__(self, self._manual_clock)
        RunnerBench.__init__(self)
        self.cloud = MockProvider(
            "mock", {"boot": {"p50_s": 0}, "stop_s": 0, **settings}, self.clock, OWNER, str(state_dir)
        )
        self._machines = {each: self._launch(each) for each in self.instances}
        self.runner: FakeRunner = self._made()

    def silence(self, instance_id: InstanceId) -> None:
        self.runner.silence(instance_id)

    def unsilence(self, instance_id: InstanceId) -> None:
        self.runner.unsilence(instance_id)

    def hold_answers(self, instance_id: InstanceId) -> None:
        self.runner.hold_answers(instance_id)

    def release_answers(self, instance_id: InstanceId) -> None:
        self.runner.release_answers(instance_id)

    def kill_machine(self, instance_id: InstanceId) -> None:
        self.cloud.kill(self._machines[instance_id])

    def engine_away(self) -> None:
        self.runner.disconnect()

    def engine_back(self) -> None:
        self.runner.reconnect()

    def break_next(self, fault: RunnerAbility) -> None:
        lost_reply = fault is RunnerAbility.LOSE_START_REPLY
        self.runner.inject(StartFault.LOSE_REPLY if lost_reply else StartFault.LOSE_REQUEST)

    def restarted(self) -> Runner:
        return self._made()

    def announce_preemption(self, instance_id: InstanceId, preempt_at: float) -> None:
        self.cloud.preempt(self._machines[instance_id], preempt_at - self.clock.now())

    def _made(self) -> FakeRunner:
        return FakeRunner([self.cloud], self.clock, work=work_from(SCRIPTS), sample_every_s=1.0)

    def _launch(self, instance_id: InstanceId) -> str:
        offer = next(each for each in self.cloud.offers() if each.instance_type.name == "m.medium")
        request = LaunchRequest(
            token=f"t-{instance_id}",
            instance_id=instance_id,
            owner=OWNER,
            offer=offer,
            expires_at=self.clock.now() + 36000,
        )
        return self.cloud.launch(request).provider_id


class TestFakeRunnerInMemory(RunnerContract, FencingContract, ProfilingContract, ResizeContract, PauseContract):
    elsewhere: ClassVar = frozenset({RunnerAbility.RESTART})
    abilities: ClassVar = frozenset(RunnerAbility) - elsewhere

    @pytest.fixture
    def bench(self, tmp_path: Path) -> RunnerBench:
        return FakeBench(tmp_path, {})


class TestFakeRunnerWrittenDown(RunnerContract, FencingContract, ProfilingContract, ResizeContract, PauseContract):
    abilities: ClassVar = frozenset(RunnerAbility)

    @pytest.fixture
    def bench(self, tmp_path: Path) -> RunnerBench:
        return FakeBench(tmp_path, {"persist": True})
