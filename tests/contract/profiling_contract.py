"""What every Runner must do with units that are measured instead of run (``UnitSpec.profile``)."""

from hcloud.core.estimates import Measure
from hcloud.core.model import FailureCause, ProfileRequest, ProgressHook
from hcloud.provider import ExitRecord, UnitSpec
from tests.contract.benches import ContractSuite
from tests.contract.runner_contract import COUNTS_ON, RunnerBench, where


def profiled(
    bench: RunnerBench, script: str, *, run_s: float = 1.0, total_s: float = 5.0, look: bool = False, **changes: object
) -> UnitSpec:
    """Start a unit that is measured, at half and a quarter of a CPU, and return it."""
    request = ProfileRequest(
        job_id="job-1",
        type_column="local/here",
        steps_vcpus=(0.5, 0.25),
        run_s=run_s,
        total_s=total_s,
        look=look,
    )
    return bench.started(script, profile=request, **{"stop_grace_s": 10.0, **changes})


def measured(bench: RunnerBench, script: str, **changes: object) -> ExitRecord:
    """How such a unit ended; it is given more time where a busy machine let nothing be measured in little."""
    for total_s in (5.0, 40.0):
        record = bench.until_ended(profiled(bench, script, total_s=total_s, **changes))  # type: ignore[arg-type]
        if record.findings is None or not any("time for profiling was over" in each for each in record.findings.notes):
            break
    return record


class ProfilingContract(ContractSuite):
    """The tests. Subclasses give the ``bench`` fixture, and end what it made."""

    def test_profiled_unit_ends_well_and_tells_what_it_found(self, bench: RunnerBench) -> None:
        record = measured(bench, COUNTS_ON, progress=ProgressHook(file="progress"))
        assert (record.exit_code, record.cause) == (0, None), record
        found = record.findings
        assert found is not None and found.measure is Measure.PROGRESS, found
        columns = [(each.question, each.column) for each in found.readings]
        assert columns == [("type", "local/here"), ("nodes", "1"), ("step", "0.5 vCPU"), ("step", "0.25 vCPU")]
        assert all(0 <= each.low <= each.value <= each.high and each.value > 0 for each in found.readings)
        assert len(found.use) == 4
        assert found.duration_s > 0

    def test_looked_at_unit_is_measured_at_one_size_only(self, bench: RunnerBench) -> None:
        found = measured(bench, COUNTS_ON, progress=ProgressHook(file="progress"), look=True).findings
        assert found is not None
        assert [(each.question, each.column) for each in found.readings][-1] == ("step", "0.5 vCPU")

    def test_crash_of_a_profiled_program_is_a_note_and_no_failure_of_the_unit(self, bench: RunnerBench) -> None:
        record = measured(bench, "exit 3")
        assert (record.exit_code, record.cause) == (0, None)
        assert record.findings is not None and record.findings.readings == ()
        assert any("ended with code 3" in note for note in record.findings.notes)

    def test_missing_command_of_a_profiled_unit_is_a_note(self, bench: RunnerBench) -> None:
        record = measured(bench, "", command=("/no/such/program",))
        assert record.findings is not None and record.findings.readings == ()
        assert any("/no/such/program" in note for note in record.findings.notes)

    def test_stopped_profiling_run_tells_what_it_found_by_then(self, bench: RunnerBench) -> None:
        unit = profiled(bench, COUNTS_ON, run_s=30.0, total_s=900.0)
        bench.until_running(unit)
        bench.let_pass(0.5)
        bench.runner.stop(where(unit), cause=FailureCause.EVICTED)
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.EVICTED
        assert record.findings is not None
        assert record.findings.notes

    def test_profiling_run_over_its_time_ends_as_timeout(self, bench: RunnerBench) -> None:
        unit = profiled(bench, COUNTS_ON, run_s=30.0, total_s=900.0, max_runtime_s=1.0)
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.TIMEOUT
        assert record.findings is not None

    def test_unit_that_is_run_tells_of_no_findings(self, bench: RunnerBench) -> None:
        assert bench.until_ended(bench.started("echo x")).findings is None

    def test_unit_that_does_not_run_there_cannot_be_measured_in_place(self, bench: RunnerBench) -> None:
        request = ProfileRequest(
            job_id="job-1", type_column="local/here", steps_vcpus=(0.5,), total_s=5.0, unit_id="job-404.1.0"
        )
        unit = bench.unit("", profile=request)
        if bench.runner.start([unit])[unit.id].outcome == "started":
            record = bench.until_ended(unit)
            assert record.cause is FailureCause.START_REFUSED
            assert "job-404.1.0" in record.detail
