"""What every Runner must do when running units are paused and resumed."""

from hcloud.core.model import FailureCause
from hcloud.provider import UnitSample, UnitSpec, UnitState
from tests.contract.benches import ContractSuite, needs
from tests.contract.runner_contract import BURNS_CPU, IGNORES_TERM, SAYS_BYE, RunnerAbility, RunnerBench


class PauseContract(ContractSuite):
    """The tests. Subclasses give the ``bench`` fixture, and end what it made."""

    def test_paused_unit_uses_no_cpu_time_until_it_is_resumed(self, bench: RunnerBench) -> None:
        unit = bench.started(BURNS_CPU)
        bench.until_running(unit)
        for _ in range(2):
            assert _ask(bench, unit, True) == "done"
        first = _paused_for(bench, unit, 0.0)
        last = _paused_for(bench, unit, first.paused_s + 2.0)
        assert (last.cpu_s or 0.0) - (first.cpu_s or 0.0) < 0.2 * (last.at - first.at), "it may use 0.5 of a CPU"
        assert last.paused_s - first.paused_s >= 0.8 * (last.at - first.at)
        for _ in range(2):
            assert _ask(bench, unit, False) == "done"

        def goes_on() -> bool:
            sample = bench.sample(unit)
            return sample is not None and (sample.cpu_s or 0.0) > (last.cpu_s or 0.0) + 0.3

        assert bench.until(goes_on, bench.patience_s)
        paused_s = bench.until(lambda: bench.sample(unit), bench.patience_s).paused_s
        at = bench.until(lambda: bench.sample(unit), bench.patience_s).at
        later = bench.until(lambda: _sample_after(bench, unit, at + 2.0), bench.patience_s)
        assert later.paused_s == paused_s, "it counts pauses only"

    def test_paused_unit_ends_as_asked_within_its_grace(self, bench: RunnerBench) -> None:
        unit = bench.started(SAYS_BYE)
        bench.until_output(unit, "ready")
        assert _ask(bench, unit, True) == "done"
        _paused_for(bench, unit, 0.0)
        bench.runner.stop({unit.id: unit.instance_id}, cause=FailureCause.EVICTED)
        assert bench.until_ended(unit).exit_code == 7

    def test_paused_unit_that_ignores_a_stop_is_killed(self, bench: RunnerBench) -> None:
        unit = bench.started(IGNORES_TERM)
        bench.until_output(unit, "ready")
        assert _ask(bench, unit, True) == "done"
        _paused_for(bench, unit, 0.0)
        bench.runner.stop({unit.id: unit.instance_id}, cause=FailureCause.EVICTED)
        assert bench.until_ended(unit).cause is FailureCause.EVICTED

    def test_time_limit_does_not_count_pauses(self, bench: RunnerBench) -> None:
        unit = bench.started(BURNS_CPU, max_runtime_s=4.0)
        bench.until_running(unit)
        assert _ask(bench, unit, True) == "done"
        paused_s = _paused_for(bench, unit, 5.0).paused_s
        assert bench.report(unit).state is UnitState.RUNNING
        assert _ask(bench, unit, False) == "done"
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.TIMEOUT
        assert record.ended_at - record.started_at >= 4.0 + paused_s - 0.5

    @needs(RunnerAbility.RESTART)
    def test_unit_stays_paused_when_the_daemon_begins_anew(self, bench: RunnerBench) -> None:
        unit = bench.started(BURNS_CPU)
        bench.until_running(unit)
        assert _ask(bench, unit, True) == "done"
        before = _paused_for(bench, unit, 0.0)
        bench.runner = bench.restarted()
        assert _paused_for(bench, unit, before.paused_s + 2.0).paused_s > before.paused_s
        assert _ask(bench, unit, False) == "done"

    def test_pause_by_who_led_before_comes_too_late(self, bench: RunnerBench) -> None:
        unit = bench.started("sleep 300")
        bench.until_running(unit)
        outcomes = [
            bench.runner.pause({unit.id: (unit.instance_id, paused)}, epoch=epoch)[unit.id].outcome
            for paused, epoch in ((True, 5), (False, 4), (False, 5), (True, 4), (False, 6))
        ]
        assert outcomes == ["done", "refused", "done", "refused", "done"]

    def test_pause_of_what_does_not_run_is_refused(self, bench: RunnerBench) -> None:
        unit = bench.started("exit 0")
        bench.until_ended(unit)
        never = bench.unit("exit 0")
        wanted = {each.id: (each.instance_id, True) for each in (unit, never)}
        assert [each.outcome for each in bench.runner.pause(wanted).values()] == ["refused", "refused"]

    def test_pause_on_a_machine_that_never_registered_is_unknown(self, bench: RunnerBench) -> None:
        unit = bench.unit("exit 0", instance_id="inst-never-registered")
        found = bench.runner.pause({unit.id: (unit.instance_id, True)})
        assert [each.outcome for each in found.values()] == ["unknown"]


def _ask(bench: RunnerBench, unit: UnitSpec, paused: bool) -> str:
    return bench.runner.pause({unit.id: (unit.instance_id, paused)})[unit.id].outcome


def _paused_for(bench: RunnerBench, unit: UnitSpec, seconds: float) -> UnitSample:
    """Return the first sample in which it was paused for longer."""

    def found() -> UnitSample | None:
        sample = bench.sample(unit)
        return sample if sample is not None and sample.paused_s > seconds else None

    return bench.until(found, bench.patience_s)


def _sample_after(bench: RunnerBench, unit: UnitSpec, at: float) -> UnitSample | None:
    sample = bench.sample(unit)
    return sample if sample is not None and sample.at > at else None
