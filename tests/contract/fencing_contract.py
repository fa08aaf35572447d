"""A unit's id is its fence: it starts at most once, and never where it was stopped before, refused or forgotten."""

import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor

from hcloud.core.model import FailureCause
from hcloud.provider import UnitState
from tests.contract.benches import ContractSuite
from tests.contract.runner_contract import RunnerBench, output_if_any, where


class FencingContract(ContractSuite):
    """What a Runner must do with a unit that it was asked about before."""

    def test_start_repeated_while_running_starts_once(self, bench: RunnerBench) -> None:
        unit = bench.started("echo once; sleep 300")
        bench.until_output(unit, "once")
        started_at = bench.until_running(unit).started_at
        bench.let_pass(0.2)
        assert bench.runner.start([unit])[unit.id].outcome == "started"
        bench.let_pass(0.3)
        assert bench.output(unit) == "once\n"
        assert bench.until_running(unit).started_at == started_at

    def test_start_repeated_after_the_end_starts_once(self, bench: RunnerBench) -> None:
        unit = bench.started("echo once; exit 4")
        record = bench.until_ended(unit)
        bench.let_pass(0.2)
        assert bench.runner.start([unit])[unit.id].outcome == "started"
        bench.let_pass(0.3)
        assert bench.until_ended(unit) == record
        assert bench.output(unit) == "once\n"

    def test_start_from_many_threads_starts_once(self, bench: RunnerBench) -> None:
        unit = bench.unit("echo once; sleep 0.3")
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: bench.runner.start([unit])[unit.id].outcome, range(4)))
        assert set(results) <= {"started", "unknown"} and "started" in results
        bench.until_ended(unit)
        assert bench.output(unit) == "once\n"

    def test_stop_before_start_fences_the_unit(self, bench: RunnerBench) -> None:
        unit = bench.unit("echo never")
        assert bench.runner.stop(where(unit), cause=FailureCause.EVICTED) == {unit.id}
        assert bench.runner.start([unit])[unit.id].outcome != "unknown"
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.EVICTED
        bench.let_pass(0.3)
        assert "never" not in output_if_any(bench, unit)

    def test_refused_unit_never_starts_though_the_reason_is_gone(self, bench: RunnerBench) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/upload.tar.gz"
            unit = bench.unit("echo never", workdir=path)
            first = bench.runner.start([unit])[unit.id]
            tarfile.open(path, "w:gz").close()  # the daemon that stood still asks, when the other has heard the refusal
            assert bench.runner.start([unit])[unit.id] == first
        record = bench.until_ended(unit)
        assert (first.outcome, record.cause, record.detail) == ("refused", FailureCause.START_REFUSED, first.detail)
        bench.let_pass(0.3)
        assert "never" not in output_if_any(bench, unit)

    def test_forgotten_unit_never_starts_again(self, bench: RunnerBench) -> None:
        unit = bench.started("echo once")
        bench.until_ended(unit)
        bench.runner.forget(where(unit))
        bench.until(lambda: bench.report(unit) is None, bench.patience_s)
        bench.runner.start([unit])
        bench.let_pass(0.5)
        report = bench.report(unit)
        assert report is None or report.state is UnitState.ENDED
        assert "once" not in output_if_any(bench, unit)

    def test_start_on_an_instance_without_worker_is_never_reported_as_started(self, bench: RunnerBench) -> None:
        unit = bench.unit("echo never", instance_id="inst-never-registered")
        assert bench.runner.start([unit])[unit.id].outcome in {"refused", "unknown", "not_sent"}
