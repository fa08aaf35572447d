"""What every Runner must do (``hcloud.provider``): one class of tests, run on each implementation.

Commands are real shell scripts, so that a real engine runs them; ``SCRIPTS`` says what those do that the fake runner's
small shell does not understand by itself. Durations are short because real engines take real time.
"""

import abc
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import pytest

from hcloud.core.clock import Clock
from hcloud.core.errors import NotFound, WorkerUnreachable
from hcloud.core.model import Checkpoint, FailureCause, InstanceId, MetricsHook, ProgressHook, Resources, UnitId
from hcloud.fake_runner.work import Work
from hcloud.provider import (
    ExitRecord,
    LogPiece,
    OutputsManifest,
    OutputsPiece,
    Runner,
    RunnerView,
    Stream,
    UnitReport,
    UnitSample,
    UnitSpec,
    UnitState,
    WorkerReport,
)
from tests.contract.benches import ContractSuite, needs, numbers

T = TypeVar("T")

LOOP = "while :; do sleep 0.05; done"
IGNORES_TERM = f"trap '' TERM; echo ready; {LOOP}"
SAYS_BYE = f"trap 'echo bye; exit 7' TERM; echo ready; {LOOP}"
BURNS_CPU = "i=0; while :; do i=$((i+1)); done"
HALF_DONE = "echo 5/10 > progress; sleep 300"
FILLS_MEMORY = "exec python3 -c 'x = bytearray(1 << 30); print(len(x)); import signal; signal.pause()'"
PROBE = """echo '{"requests_per_s": 12.5, "latency_ms": {"50": 1.5, "99": 9.0}}'"""
SERVES = "echo serving; sleep 300"
COUNTS_ON = "i=0; while :; do i=$((i+1)); [ $((i % 5000)) -ne 0 ] || echo $i/1000000000 > progress; done"
COUNTS = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done"

FOREVER_S = 1e9
SCRIPTS: Mapping[str, Work] = {
    IGNORES_TERM: Work(duration_s=FOREVER_S, output=((0.0, "stdout", "ready\n"),), on_term="ignores"),
    SAYS_BYE: Work(duration_s=FOREVER_S, output=((0.0, "stdout", "ready\n"),), on_term=7, last_words="bye\n"),
    BURNS_CPU: Work(duration_s=FOREVER_S, cpu_share=1.0),
    HALF_DONE: Work(duration_s=300, progress_at=0.5),
    FILLS_MEMORY: Work(duration_s=30, memory_mib=1100),
    SERVES: Work(
        duration_s=300, output=((0.0, "stdout", "serving\n"),), requests_per_s=12.5, latency_ms={"50": 1.5, "99": 9.0}
    ),
    COUNTS_ON: Work(duration_s=5000.0),
    COUNTS: Work(duration_s=0.1, output=((0.0, "stdout", "".join(f"line {i}\n" for i in range(200))),)),
}
"""What these scripts do, for a fake runner."""


class RunnerAbility(StrEnum):
    """What a bench can make its runner, or the machines under it, do."""

    FALL_SILENT = "fall_silent"  # a worker stops answering and comes back: ``silence``, ``unsilence``
    HOLD_ANSWERS = "hold_answers"  # a worker takes starts and answers later: ``hold_answers``, ``release_answers``
    LOSE_MACHINE = "lose_machine"  # a machine dies with all its units: ``kill_machine``
    LOSE_ENGINE = "lose_engine"  # the engine does not answer and comes back: ``engine_away``, ``engine_back``
    LOSE_START_REPLY = "lose_start_reply"  # the next start happens, its outcome is unknown: ``break_next``
    LOSE_START_REQUEST = "lose_start_request"  # the next start does not happen, its outcome is unknown: ``break_next``
    LIMIT_MEMORY = "limit_memory"  # a unit above its memory limit is killed and reported as OUT_OF_MEMORY
    MEASURE_CPU = "measure_cpu"  # samples carry CPU seconds
    RESIZE = "resize"  # the bounds of a running unit can be changed
    RESTART = "restart"  # another Runner object on the same engine, as after a kill -9: ``restarted``
    NOTICE = "notice"  # the instance itself sees a preemption notice: ``announce_preemption``


class RunnerBench(abc.ABC):
    """An implementation under test. Subclass with VirtualTime or RealTime for ``clock``, ``let_pass`` and ``until``."""

    runner: Runner
    clock: Clock
    instances: tuple[InstanceId, InstanceId]
    """Two instances with registered workers, each with 2 vCPUs and 1 GiB."""
    patience_s = 20.0
    """Timeout of every wait of a test."""
    unit_resources = Resources(vcpus=0.5, memory_mib=128, disk_gib=0.1)

    def __init__(self) -> None:
        self._numbers = numbers()

    @abc.abstractmethod
    def let_pass(self, seconds: float) -> None:
        """Let time pass."""

    @abc.abstractmethod
    def until(self, condition: Callable[[], T | None], timeout_s: float) -> T:
        """Let time pass until the condition holds; return its value or raise TimeoutError."""

    def silence(self, instance_id: InstanceId) -> None:
        """Cut a worker off; its units go on."""
        raise NotImplementedError

    def unsilence(self, instance_id: InstanceId) -> None:
        """Let it answer again."""
        raise NotImplementedError

    def hold_answers(self, instance_id: InstanceId) -> None:
        """Let a worker that responds carry out and answer no start, and let callers wait for it no longer."""
        raise NotImplementedError

    def release_answers(self, instance_id: InstanceId) -> None:
        """Let it carry out and answer what it took."""
        raise NotImplementedError

    def kill_machine(self, instance_id: InstanceId) -> None:
        """End a machine and everything on it at once."""
        raise NotImplementedError

    def engine_away(self) -> None:
        """Cut the engine off; workers and units go on."""
        raise NotImplementedError

    def engine_back(self) -> None:
        """Let it answer again."""
        raise NotImplementedError

    def break_next(self, fault: RunnerAbility) -> None:
        """Arm a fault for the next start."""
        raise NotImplementedError

    def restarted(self) -> Runner:
        """Return a new Runner on the same engine; the old one is not used any more."""
        raise NotImplementedError

    def announce_preemption(self, instance_id: InstanceId, preempt_at: float) -> None:
        """Send the instance a preemption notice."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ made from these
    def unit(self, script: str, **changes: object) -> UnitSpec:
        """A unit with a fresh id that runs a shell script on the first instance."""
        unit = UnitSpec(
            id=f"job-{next(self._numbers)}.1.0",
            instance_id=self.instances[0],
            rank=0,
            command=("/bin/sh", "-c", script),
            resources=self.unit_resources,
            peers=(self.instances[0],),
            stop_grace_s=1.0,
        )
        return replace(unit, **changes)  # type: ignore[arg-type]

    def started(self, script: str, **changes: object) -> UnitSpec:
        """Start such a unit and return it."""
        unit = self.unit(script, **changes)
        result = self.runner.start([unit])[unit.id]
        assert result.outcome == "started", result
        return unit

    def worker(self, instance_id: InstanceId) -> WorkerReport | None:
        """The report of an instance's worker now."""
        return {each.instance_id: each for each in self.runner.observe().workers}.get(instance_id)

    def report(self, unit: UnitSpec) -> UnitReport | None:
        """The report of a unit now."""
        worker = self.worker(unit.instance_id)
        return {each.id: each for each in worker.units}.get(unit.id) if worker is not None else None

    def sample(self, unit: UnitSpec) -> UnitSample | None:
        """The last sample of a unit."""
        report = self.report(unit)
        return report.sample if report is not None else None

    def until_running(self, unit: UnitSpec) -> UnitReport:
        """Let time pass until the unit runs."""

        def running() -> UnitReport | None:
            report = self.report(unit)
            return report if report is not None and report.state is not UnitState.STARTING else None

        report = self.until(running, self.patience_s)
        assert report.state is UnitState.RUNNING, report
        return report

    def until_ended(self, unit: UnitSpec) -> ExitRecord:
        """Let time pass until the unit has ended and return how."""

        def ended() -> ExitRecord | None:
            report = self.report(unit)
            return report.exit if report is not None and report.state is UnitState.ENDED else None

        return self.until(ended, self.patience_s)

    def output(self, unit: UnitSpec, stream: Stream = "stdout") -> str:
        """All output so far."""
        content, offset = b"", 0
        while True:
            chunk = self.runner.logs(unit.id, unit.instance_id, stream, offset, 65536)
            content += chunk.content
            if chunk.end or not chunk.content:
                return content.decode()
            offset = chunk.next_offset

    def until_output(self, unit: UnitSpec, text: str) -> str:
        """Let time pass until the unit has written the text."""

        def written() -> str | None:
            output = self.output(unit)
            return output if text in output else None

        return self.until(written, self.patience_s)


def where(*units: UnitSpec) -> dict[UnitId, InstanceId]:
    """Unit ids and their instances, as ``stop`` and ``forget`` take them."""
    return {each.id: each.instance_id for each in units}


def content_of(piece: OutputsPiece) -> bytes:
    """All content of a piece, once it has come."""
    return b"".join(piece.content)


def piece(unit: UnitSpec, stream: Stream = "stdout") -> LogPiece:
    """The beginning of a unit's output."""
    return LogPiece(unit=unit.id, instance_id=unit.instance_id, stream=stream, offset=0, limit=1000)


class RunnerContract(ContractSuite):
    """The tests. Subclasses give the ``bench`` fixture, and end what it made."""

    # ----------------------------------------------------------------------------------------------------- observation
    def test_registered_workers_are_reported_with_no_units(self, bench: RunnerBench) -> None:
        def all_there() -> RunnerView | None:
            view = bench.runner.observe()
            there = {each.instance_id for each in view.workers} >= set(bench.instances) and not view.silent
            return view if view.reachable and there else None

        assert all(not each.units for each in bench.until(all_there, bench.patience_s).workers)

    def test_facts_are_words(self, bench: RunnerBench) -> None:
        facts = bench.runner.facts()
        assert facts
        assert {type(word) for item in facts.items() for word in item} == {str}

    # ------------------------------------------------------------------------------------------------- start and end
    def test_unit_runs_and_its_success_is_reported_with_its_times(self, bench: RunnerBench) -> None:
        before_at = bench.clock.now()
        unit = bench.started("echo hello")
        record = bench.until_ended(unit)
        assert (record.exit_code, record.cause) == (0, None)
        assert before_at - 1 <= record.started_at <= record.ended_at <= bench.clock.now() + 1

    @pytest.mark.parametrize("code", [1, 3, 77])
    def test_exit_code_is_reported(self, bench: RunnerBench, code: int) -> None:
        record = bench.until_ended(bench.started(f"exit {code}"))
        assert (record.exit_code, record.cause) == (code, FailureCause.EXIT_CODE)

    def test_running_unit_is_reported_with_its_start(self, bench: RunnerBench) -> None:
        before_at = bench.clock.now()
        report = bench.until_running(bench.started("sleep 300"))
        assert report.started_at is not None and before_at - 1 <= report.started_at <= bench.clock.now() + 1
        assert report.exit is None

    def test_missing_command_is_refused_or_ends_as_not_startable(self, bench: RunnerBench) -> None:
        unit = bench.unit("", command=("/no/such/program", "--flag"))
        result = bench.runner.start([unit])[unit.id]
        assert result.outcome in {"refused", "started"}
        if result.outcome == "refused":
            assert "/no/such/program" in result.detail
        else:
            record = bench.until_ended(unit)
            assert record.cause is FailureCause.START_REFUSED
            assert "/no/such/program" in record.detail

    def test_missing_workdir_is_refused_or_ends_as_not_startable(self, bench: RunnerBench) -> None:
        unit = bench.unit("echo never", workdir="/no/such/archive.tar.gz")
        if bench.runner.start([unit])[unit.id].outcome != "refused":
            assert bench.until_ended(unit).cause is FailureCause.START_REFUSED

    def test_unit_that_is_refused_by_the_daemon_never_starts(self, bench: RunnerBench) -> None:
        unit = bench.unit("echo never", refusal="its secret cannot be read")
        result = bench.runner.start([unit])[unit.id]
        assert (result.outcome, result.detail) == ("refused", "its secret cannot be read")
        again = bench.runner.start([replace(unit, refusal="")])[unit.id]
        assert again.outcome == "refused"

    def test_refusal_of_a_unit_that_was_started_before_changes_nothing(self, bench: RunnerBench) -> None:
        unit = bench.started("echo go; sleep 600")
        assert bench.runner.start([replace(unit, refusal="too late")])[unit.id].outcome == "started"

    def test_unit_over_its_time_ends_as_timeout(self, bench: RunnerBench) -> None:
        unit = bench.started("echo go; sleep 600", max_runtime_s=0.5)
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.TIMEOUT
        assert record.ended_at - record.started_at < 300

    @needs(RunnerAbility.LIMIT_MEMORY)
    def test_unit_over_its_memory_ends_as_out_of_memory(self, bench: RunnerBench) -> None:
        unit = bench.started(FILLS_MEMORY)
        assert bench.until_ended(unit).cause is FailureCause.OUT_OF_MEMORY

    def test_setup_runs_before_the_command(self, bench: RunnerBench) -> None:
        unit = bench.started("echo command", setup="echo setup")
        bench.until_ended(unit)
        assert bench.output(unit).splitlines()[-1] == "command"

    def test_many_units_on_two_instances_get_one_result_each(self, bench: RunnerBench) -> None:
        units = [bench.unit("echo x", instance_id=bench.instances[i % 2]) for i in range(6)]
        results = bench.runner.start(units)
        assert {key: value.outcome for key, value in results.items()} == {each.id: "started" for each in units}
        assert [bench.until_ended(each).exit_code for each in units] == [0] * 6

    def test_unit_sees_its_environment_rank_and_peers(self, bench: RunnerBench) -> None:
        unit = bench.started(
            "echo $GREETING $HCLOUD_UNIT_ID $HCLOUD_RANK $HCLOUD_PEERS",
            id="job-900.2.1",
            rank=1,
            peers=bench.instances,
            env={"GREETING": "hello"},
        )
        bench.until_ended(unit)
        peers = ",".join(bench.instances)
        assert bench.output(unit) == f"hello job-900.2.1 1 {peers}\n"

    # ------------------------------------------------------------------------------------------------------------ stop
    def test_stopped_unit_ends_with_the_given_cause(self, bench: RunnerBench) -> None:
        unit = bench.started("echo ready; sleep 600")
        bench.until_output(unit, "ready")
        assert bench.runner.stop(where(unit), cause=FailureCause.EVICTED) == {unit.id}
        assert bench.until_ended(unit).cause is FailureCause.EVICTED

    def test_cancelled_unit_ends(self, bench: RunnerBench) -> None:
        unit = bench.started("echo ready; sleep 600")
        bench.until_output(unit, "ready")
        assert bench.runner.stop(where(unit), cause=None) == {unit.id}
        bench.until_ended(unit)

    def test_stop_gives_the_unit_its_grace(self, bench: RunnerBench) -> None:
        unit = bench.started(SAYS_BYE, stop_grace_s=10.0)
        bench.until_output(unit, "ready")
        bench.runner.stop(where(unit), cause=FailureCause.EVICTED)
        record = bench.until_ended(unit)
        assert (record.exit_code, record.cause) == (7, FailureCause.EVICTED)
        assert bench.output(unit).endswith("bye\n")

    def test_unit_that_ignores_term_is_killed_after_its_grace(self, bench: RunnerBench) -> None:
        unit = bench.started(IGNORES_TERM, stop_grace_s=0.5)
        bench.until_output(unit, "ready")
        asked_at = bench.clock.now()
        bench.runner.stop(where(unit), cause=FailureCause.PREEMPTED)
        record = bench.until_ended(unit)
        assert record.cause is FailureCause.PREEMPTED
        assert record.ended_at >= asked_at + 0.4

    def test_repeated_stop_does_not_shorten_or_lengthen_the_grace(self, bench: RunnerBench) -> None:
        unit = bench.started(IGNORES_TERM, stop_grace_s=1.0)
        bench.until_output(unit, "ready")
        asked_at = bench.clock.now()
        for _ in range(3):
            bench.runner.stop(where(unit), cause=FailureCause.EVICTED)
            bench.let_pass(0.2)
        record = bench.until_ended(unit)
        assert asked_at + 0.9 <= record.ended_at <= asked_at + 1.0 + bench.patience_s / 2

    def test_stop_after_the_end_changes_nothing(self, bench: RunnerBench) -> None:
        unit = bench.started("exit 5")
        record = bench.until_ended(unit)
        bench.runner.stop(where(unit), cause=FailureCause.EVICTED)
        bench.let_pass(0.3)
        assert bench.until_ended(unit) == record

    # ------------------------------------------------------------------------------------------------------------ logs
    def test_logs_are_read_by_offset_while_running_and_after_the_end(self, bench: RunnerBench) -> None:
        unit = bench.started("echo first; sleep 1; echo second")
        bench.until_output(unit, "first\n")
        early = bench.runner.logs(unit.id, unit.instance_id, "stdout", 0, 1000)
        bench.until_ended(unit)
        late = bench.runner.logs(unit.id, unit.instance_id, "stdout", early.next_offset, 1000)
        assert early.content + late.content == b"first\nsecond\n"
        assert (late.next_offset, late.end) == (13, True)

    def test_logs_of_a_running_unit_do_not_say_end(self, bench: RunnerBench) -> None:
        unit = bench.started("echo x; sleep 300")
        bench.until_output(unit, "x")
        assert bench.runner.logs(unit.id, unit.instance_id, "stdout", 0, 1000).end is False
        assert bench.runner.logs(unit.id, unit.instance_id, "stdout", 2, 1000).content == b""

    def test_logs_in_small_pieces_add_up_and_only_the_last_says_end(self, bench: RunnerBench) -> None:
        unit = bench.started(COUNTS)
        bench.until_ended(unit)
        pieces, offset, end = [], 0, False
        while not end:
            chunk = bench.runner.logs(unit.id, unit.instance_id, "stdout", offset, 100)
            assert len(chunk.content) <= 100 and chunk.next_offset == offset + len(chunk.content)
            pieces.append(chunk.content)
            offset, end = chunk.next_offset, chunk.end
        assert b"".join(pieces).decode() == "".join(f"line {i}\n" for i in range(200))

    def test_streams_are_kept_apart(self, bench: RunnerBench) -> None:
        unit = bench.started("echo out; echo err >&2")
        bench.until_ended(unit)
        assert (bench.output(unit), bench.output(unit, "stderr")) == ("out\n", "err\n")

    def test_logs_of_an_unknown_unit_are_not_found(self, bench: RunnerBench) -> None:
        with pytest.raises(NotFound, match=r"job-404\.1\.0"):
            bench.runner.logs("job-404.1.0", bench.instances[0], "stdout", 0, 100)

    def test_output_of_many_units_is_read_at_once(self, bench: RunnerBench) -> None:
        one, other = (bench.started(f"echo {n}", instance_id=at) for n, at in enumerate(bench.instances))
        unknown = bench.unit("", id="job-404.1.0")
        bench.until_ended(one)
        bench.until_ended(other)
        pieces = [piece(one), piece(one, "stderr"), piece(other), piece(unknown)]
        read = bench.runner.read_logs(pieces)
        assert [(read[each].content, read[each].next_offset, read[each].end) for each in pieces] == [
            (b"0\n", 2, True),
            (b"", 0, True),
            (b"1\n", 2, True),
            (b"", 0, True),
        ]

    # --------------------------------------------------------------------------------------------------------- outputs
    def test_outputs_are_there_once_a_unit_has_ended(self, bench: RunnerBench) -> None:
        unit = bench.started(f"echo result > out.txt; {LOOP}", outputs=("out.txt",))
        bench.until_running(unit)
        before = bench.runner.read_outputs(unit.id, unit.instance_id, 0, 1 << 20)
        assert (content_of(before), before.manifest) == (b"", None)
        bench.runner.stop({unit.id: unit.instance_id}, cause=None)
        bench.until_ended(unit)

        def received(offset: int) -> tuple[bytes, OutputsManifest]:
            parts = list[bytes]()

            def whole() -> OutputsManifest | None:
                at = offset + sum(map(len, parts))
                piece = bench.runner.read_outputs(unit.id, unit.instance_id, at, 1000)
                parts.append(content_of(piece))
                is_whole = piece.manifest is not None and at + len(parts[-1]) >= piece.manifest.bytes
                return piece.manifest if is_whole else None

            manifest = bench.until(whole, bench.patience_s)
            return b"".join(parts), manifest

        content, manifest = received(0)
        assert len(content) == manifest.bytes
        assert manifest.sha256 in ("", hashlib.sha256(content).hexdigest())
        if len(content) > 1:  # another daemon goes on from where one was
            assert received(1) == (content[1:], manifest)
        assert (manifest.files == 0) == (manifest.note != "")

    def test_an_unknown_unit_left_no_outputs(self, bench: RunnerBench) -> None:
        piece = bench.runner.read_outputs("job-404.1.0", bench.instances[0], 0, 100)
        assert content_of(piece) == b"" and piece.manifest is not None and piece.manifest.bytes == 0

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def test_what_a_running_unit_keeps_is_where_the_next_one_starts(self, bench: RunnerBench, tmp_path: Path) -> None:
        script = "trap 'mkdir -p state; echo kept > state/a' USR1; echo ready; " + LOOP
        checkpoint = Checkpoint(path="state", every_s=60.0, signal="USR1")
        unit = bench.started(script, checkpoint=checkpoint)
        bench.until(lambda: bench.runner.logs(unit.id, unit.instance_id, "stdout", 0, 9).content, bench.patience_s)

        def packed(number: int) -> OutputsPiece | None:
            piece = bench.runner.read_checkpoint(unit.id, unit.instance_id, number, 0, 1 << 20)
            return piece if piece.manifest is not None else None

        piece = bench.until(lambda: packed(1), bench.patience_s)
        content = content_of(piece)
        assert piece.manifest is not None and len(content) == piece.manifest.bytes
        assert piece.manifest.files == 1 or "no program runs" in piece.manifest.note
        bench.runner.stop({unit.id: unit.instance_id}, cause=None)
        bench.until_ended(unit)
        if content:
            archive = tmp_path / "kept.tar"
            archive.write_bytes(content)
            later = bench.started("cat state/a", checkpoint=checkpoint, restore=str(archive))
            bench.until_ended(later)
            assert bench.runner.logs(later.id, later.instance_id, "stdout", 0, 100).content == b"kept\n"

    def test_an_unknown_unit_keeps_nothing(self, bench: RunnerBench) -> None:
        piece = bench.runner.read_checkpoint("job-404.1.0", bench.instances[0], 1, 0, 100)
        assert content_of(piece) == b"" and piece.manifest is not None and piece.manifest.bytes == 0

    # ---------------------------------------------------------------------------------------------------------- forget
    def test_forgotten_unit_is_reported_no_more(self, bench: RunnerBench) -> None:
        unit, other = bench.started("echo x"), bench.started("echo y")
        bench.until_ended(unit)
        bench.until_ended(other)
        bench.runner.forget(where(unit))
        bench.until(lambda: bench.report(unit) is None and bench.report(other), bench.patience_s)

    def test_forget_does_not_touch_a_running_unit(self, bench: RunnerBench) -> None:
        unit = bench.started("echo x; sleep 300")
        bench.until_output(unit, "x")
        bench.runner.forget(where(unit))
        bench.let_pass(0.3)
        assert bench.until_running(unit).state is UnitState.RUNNING

    # --------------------------------------------------------------------------------------------------------- samples
    @needs(RunnerAbility.MEASURE_CPU)
    def test_sample_counters_and_times_never_fall(self, bench: RunnerBench) -> None:
        unit = bench.started(BURNS_CPU)
        seen: list[UnitSample] = []

        def three_samples() -> bool:
            sample = bench.sample(unit)
            if sample is not None and (not seen or sample != seen[-1]):
                seen.append(sample)
            return len(seen) >= 3 and seen[-1].cpu_s != seen[0].cpu_s

        bench.until(three_samples, bench.patience_s * 3)
        assert [each.at for each in seen] == sorted({each.at for each in seen})
        used_s = [each.cpu_s for each in seen if each.cpu_s is not None]
        assert len(used_s) == len(seen)
        assert used_s == sorted(used_s) and used_s[-1] > used_s[0]
        assert used_s[-1] <= (seen[-1].at - bench.until_running(unit).started_at + 1) * 1.5  # type: ignore[operator]

    def test_progress_is_read_from_its_file(self, bench: RunnerBench) -> None:
        unit = bench.started(HALF_DONE, progress=ProgressHook(file="progress"))

        def progress() -> float | None:
            sample = bench.sample(unit)
            return sample.progress if sample is not None else None

        assert bench.until(progress, bench.patience_s * 2) == pytest.approx(0.5)

    def test_service_rate_and_latency_come_from_its_probe(self, bench: RunnerBench) -> None:
        hook = MetricsHook(probe=("/bin/sh", "-c", PROBE), every_s=0.5)
        unit = bench.started(SERVES, metrics=hook)

        def measured() -> UnitSample | None:
            sample = bench.sample(unit)
            return sample if sample is not None and sample.requests_per_s is not None else None

        sample = bench.until(measured, bench.patience_s * 2)
        assert sample.requests_per_s == pytest.approx(12.5)
        assert dict(sample.latency_ms) == {"50": 1.5, "99": 9.0}

    # ----------------------------------------------------------------------------------------------------------- renew
    def test_renew_tells_which_machines_took_it(self, bench: RunnerBench) -> None:
        expires_at = bench.clock.now() + 7200
        expiries = {bench.instances[0]: expires_at, "inst-never-registered": expires_at}
        assert bench.runner.renew(expiries) == {bench.instances[0]}

    # ---------------------------------------------------------------------------------------------------------- faults
    @needs(RunnerAbility.FALL_SILENT)
    def test_silent_worker_says_nothing_and_its_units_go_on(self, bench: RunnerBench) -> None:
        unit = bench.started("echo ready; sleep 2; echo done")
        bench.until_output(unit, "ready")
        bench.silence(unit.instance_id)

        def silent_workers() -> set[InstanceId] | None:
            view = bench.runner.observe()
            speaking = {each.instance_id for each in view.workers}
            return speaking if unit.instance_id in view.silent and bench.instances[1] in speaking else None

        assert unit.instance_id not in bench.until(silent_workers, bench.patience_s)
        _assert_unreachable(bench, unit)
        bench.unsilence(unit.instance_id)
        assert bench.until_ended(unit).exit_code == 0
        assert bench.output(unit) == "ready\ndone\n"

    @needs(RunnerAbility.FALL_SILENT)
    def test_start_on_a_silent_worker_is_not_sent_and_never_happens_by_itself(self, bench: RunnerBench) -> None:
        silent, other = bench.unit("echo once"), bench.unit("echo other", instance_id=bench.instances[1])
        bench.silence(silent.instance_id)
        bench.let_pass(1.0)  # one that sent something just now is taken to respond
        results = bench.runner.start([silent, other])
        assert [results[each.id].outcome for each in (silent, other)] == ["not_sent", "started"]
        assert silent.instance_id in bench.runner.observe().silent
        bench.unsilence(silent.instance_id)
        bench.until(lambda: bench.worker(silent.instance_id), bench.patience_s)
        bench.let_pass(0.3)
        assert bench.report(silent) is None
        assert bench.runner.start([silent])[silent.id].outcome == "started"
        bench.until_ended(silent)
        assert bench.output(silent) == "once\n"

    @needs(RunnerAbility.HOLD_ANSWERS)
    def test_late_answer_counts_when_it_comes_and_the_start_is_sent_once(self, bench: RunnerBench) -> None:
        slow, other = bench.unit("echo once"), bench.unit("echo other", instance_id=bench.instances[1])
        bench.hold_answers(slow.instance_id)
        results = [bench.runner.start([slow])[slow.id].outcome for _ in range(3)]
        assert results == ["pending"] * 3
        assert slow.id not in bench.runner.observe().answered
        # Who waits no more for one worker does so for the others.
        bench.until(lambda: bench.runner.start([other])[other.id].outcome == "started", bench.patience_s)
        bench.release_answers(slow.instance_id)
        bench.until(lambda: slow.id in bench.runner.observe().answered, bench.patience_s)
        assert bench.runner.start([slow])[slow.id].outcome == "started"
        assert slow.id not in bench.runner.observe().answered
        bench.until_ended(slow)
        assert bench.output(slow) == "once\n"

    @needs(RunnerAbility.LOSE_MACHINE)
    def test_units_of_a_lost_machine_are_reported_no_more(self, bench: RunnerBench) -> None:
        unit = bench.started("echo ready; sleep 600")
        bench.until_output(unit, "ready")
        bench.kill_machine(unit.instance_id)
        bench.until(
            lambda: bench.worker(unit.instance_id) is None and bench.worker(bench.instances[1]), bench.patience_s
        )
        fresh = bench.unit("echo never")
        assert bench.runner.start([fresh])[fresh.id].outcome in {"refused", "unknown", "not_sent"}
        assert bench.runner.renew({unit.instance_id: bench.clock.now() + 7200}) == frozenset()

    @needs(RunnerAbility.LOSE_ENGINE)
    def test_unreachable_engine_is_reported_and_observe_never_raises(self, bench: RunnerBench) -> None:
        unit = bench.started("echo ready; sleep 1; echo done")
        bench.until_output(unit, "ready")
        bench.engine_away()
        bench.until(lambda: not bench.runner.observe().reachable, bench.patience_s)
        assert bench.runner.observe().workers == ()
        _assert_unreachable(bench, unit)
        bench.engine_back()
        assert bench.until_ended(unit).exit_code == 0
        assert bench.output(unit) == "ready\ndone\n"

    @needs(RunnerAbility.LOSE_START_REPLY)
    def test_lost_reply_to_start_is_unknown_and_repeating_starts_once(self, bench: RunnerBench) -> None:
        bench.break_next(RunnerAbility.LOSE_START_REPLY)
        unit = bench.unit("echo once; sleep 0.5")
        assert bench.runner.start([unit])[unit.id].outcome == "unknown"
        assert bench.runner.start([unit])[unit.id].outcome == "started"
        bench.until_ended(unit)
        assert bench.output(unit) == "once\n"

    @needs(RunnerAbility.LOSE_START_REQUEST)
    def test_lost_start_is_unknown_and_repeating_starts_it(self, bench: RunnerBench) -> None:
        bench.break_next(RunnerAbility.LOSE_START_REQUEST)
        unit = bench.unit("echo once; sleep 0.5")
        assert bench.runner.start([unit])[unit.id].outcome == "unknown"
        assert bench.runner.start([unit])[unit.id].outcome == "started"
        bench.until_ended(unit)
        assert bench.output(unit) == "once\n"

    @needs(RunnerAbility.NOTICE)
    def test_notice_seen_by_the_instance_is_reported(self, bench: RunnerBench) -> None:
        preempt_at = bench.clock.now() + 120
        bench.announce_preemption(bench.instances[0], preempt_at)

        def noticed() -> float | None:
            worker = bench.worker(bench.instances[0])
            return worker.preempt_at if worker is not None else None

        assert bench.until(noticed, bench.patience_s) == pytest.approx(preempt_at, abs=1)

    # --------------------------------------------------------------------------------------------------------- restart
    @needs(RunnerAbility.RESTART)
    def test_units_outlive_the_daemon_and_are_found_again(self, bench: RunnerBench) -> None:
        running, ended = bench.started("echo on; sleep 300"), bench.started("exit 6")
        bench.until_output(running, "on")
        bench.until_ended(ended)
        bench.runner.close()
        bench.runner = bench.restarted()
        assert bench.until_ended(ended).exit_code == 6
        assert bench.until_running(running).started_at is not None
        assert bench.runner.start([running])[running.id].outcome == "started"
        assert bench.output(running) == "on\n"


def output_if_any(bench: RunnerBench, unit: UnitSpec) -> str:
    try:
        return bench.output(unit)
    except NotFound:
        return ""


def _assert_unreachable(bench: RunnerBench, unit: UnitSpec) -> None:
    """Check that calls for a unit return unknown outcomes while its worker does not answer."""
    fresh = bench.unit("echo never", instance_id=unit.instance_id)
    assert bench.runner.start([fresh])[fresh.id].outcome in {"unknown", "not_sent"}
    assert bench.runner.stop(where(fresh), cause=FailureCause.EVICTED) == frozenset()
    assert bench.runner.renew({unit.instance_id: bench.clock.now() + 7200}) == frozenset()
    with pytest.raises(WorkerUnreachable):
        bench.runner.logs(unit.id, unit.instance_id, "stdout", 0, 100)
    assert bench.runner.read_logs([piece(unit)]) == {}
    bench.runner.forget(where(fresh))
