"""The runner contract on the real engine: gateway, agents and units as processes of this host."""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from hcloud.core.clock import SystemClock
from hcloud.core.model import FailureCause, InstanceId
from hcloud.engine.runner import EngineAway, GatewayRunner
from hcloud.provider import Runner, UnitState
from tests.contract.benches import RealTime
from tests.contract.fencing_contract import FencingContract
from tests.contract.pause_contract import PauseContract
from tests.contract.profiling_contract import ProfilingContract
from tests.contract.resize_contract import ResizeContract
from tests.contract.runner_contract import FILLS_MEMORY, RunnerAbility, RunnerBench, RunnerContract
from tests.engine.site import Site
from tests.waiting import wait_until

NAMES = ("inst-1", "inst-2")
CALL_TIMEOUT_S, SHORT_CALL_TIMEOUT_S = 120.0, 2.0
"""Each worker answers within this time on a busy machine, unless a test silenced it."""


class LossyWire:
    """A connection to the engine with an injected fault: one lost request or reply."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.lose: RunnerAbility | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def call(self, commands: Any, timeout_s: float) -> Any:
        """Forward the call, except for the injected fault."""
        lost, self.lose = self.lose, None
        if lost is RunnerAbility.LOSE_START_REQUEST:
            raise EngineAway("the request was lost")
        for answers in self._wire.call(commands, timeout_s):
            if lost is RunnerAbility.LOSE_START_REPLY:
                raise EngineAway("the reply was lost")
            yield answers


class GatewayBench(RealTime, RunnerBench):
    """One site for all tests; each test leaves it repaired and with no unit."""

    instances = NAMES
    patience_s = 120.0

    def __init__(self, site: Site, numbers: Iterator[int]) -> None:
        RunnerBench.__init__(self)
        RealTime.__init__(self, SystemClock())
        self._numbers = numbers  # ids are fenced for ever, so no test may use one again
        self.site = site
        self.runner: Runner = self._new_runner()
        self._until_registered()

    def _new_runner(self) -> GatewayRunner:
        runner = self.site.runner()
        runner._calls.wire = LossyWire(runner._calls.wire)  # type: ignore[assignment]
        return runner

    def _until_registered(self) -> None:
        def registered() -> bool:
            view = self.runner.observe()
            return {each.instance_id for each in view.workers} >= set(NAMES) and not view.silent

        wait_until(registered, self.patience_s)

    def silence(self, instance_id: InstanceId) -> None:
        os.kill(self.site.machines[instance_id].link(), signal.SIGSTOP)
        self._allow(SHORT_CALL_TIMEOUT_S)

    def unsilence(self, instance_id: InstanceId) -> None:
        os.kill(self.site.machines[instance_id].link(), signal.SIGCONT)
        self._allow(CALL_TIMEOUT_S)

    def _allow(self, timeout_s: float) -> None:
        self.runner._calls.timeout_s = timeout_s  # type: ignore[attr-defined]
        self.runner._wire._sign_of_life_s = timeout_s  # type: ignore[attr-defined]

    def hold_answers(self, instance_id: InstanceId) -> None:
        os.kill(self.site.machines[instance_id].supervisor.pid, signal.SIGSTOP)
        self.runner._calls.within_s = 0.0  # type: ignore[attr-defined]
        self.runner.observe()

    def release_answers(self, instance_id: InstanceId) -> None:
        os.kill(self.site.machines[instance_id].supervisor.pid, signal.SIGCONT)
        self.runner._calls.within_s = CALL_TIMEOUT_S  # type: ignore[attr-defined]

    def kill_machine(self, instance_id: InstanceId) -> None:
        self.site.machines[instance_id].kill()

    def engine_away(self) -> None:
        self.site.kill_engine()

    def engine_back(self) -> None:
        self.site.start_engine()

    def break_next(self, fault: RunnerAbility) -> None:
        self.runner._calls.wire.lose = fault  # type: ignore[attr-defined]

    def restarted(self) -> Runner:
        return self._new_runner()

    def announce_preemption(self, instance_id: InstanceId, preempt_at: float) -> None:
        self.site.machines[instance_id].notice_file.write_text(json.dumps({"preempt_at": preempt_at}))

    def tidy(self) -> None:
        """Undo the faults of the test and end its units."""
        assert self.site.engine is not None
        if self.site.engine.poll() is not None:
            self.site.start_engine()
        for machine in self.site.machines.values():
            machine.notice_file.unlink(missing_ok=True)
            if machine.supervisor.poll() is not None:
                machine.start()
            os.kill(machine.supervisor.pid, signal.SIGCONT)
            os.kill(machine.link(), signal.SIGCONT)
        self._until_registered()
        wait_until(self._without_units, self.patience_s)
        self.runner.close()

    def _without_units(self) -> bool:
        workers = self.runner.observe().workers
        live = {each.id: worker.instance_id for worker in workers for each in worker.units}
        ended = {each.id for worker in workers for each in worker.units if each.state is UnitState.ENDED}
        self.runner.stop({unit: name for unit, name in live.items() if unit not in ended}, cause=None)
        self.runner.forget({unit: name for unit, name in live.items() if unit in ended})
        return not live


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort")
    try:
        for name in NAMES:
            site.machine(name)
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count(1)


class TestGatewayRunner(RunnerContract, FencingContract, ProfilingContract, ResizeContract, PauseContract):
    """All of it can be shown on real processes; lost messages are lost on the daemon's side of the wire."""

    abilities = frozenset(RunnerAbility)

    @pytest.fixture
    def bench(self, site: Site, numbers: Iterator[int]) -> Iterator[GatewayBench]:
        bench = GatewayBench(site, numbers)
        yield bench
        bench.tidy()

    def test_a_child_killed_for_memory_is_told_though_the_unit_succeeds(self, bench: GatewayBench) -> None:
        child = FILLS_MEMORY.removeprefix("exec ")
        record = bench.until_ended(bench.started(f"{child}; exit 0"))
        if record.cause is None:  # where the kernel kills a process and not the whole group
            assert record.exit_code == 0
            assert "a process of it was killed when its" in record.detail
        else:
            assert record.cause is FailureCause.OUT_OF_MEMORY

    def test_a_code_like_that_of_a_signal_is_not_called_one(self, bench: GatewayBench) -> None:
        record = bench.until_ended(bench.started("exit 137"))
        assert (record.exit_code, record.detail) == (137, "ended with code 137, as after SIGKILL")
