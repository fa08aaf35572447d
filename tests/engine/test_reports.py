"""What the daemon's side of the engine concludes from workers' reports, those that make no sense among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.clock import ManualClock
from hcloud.engine import gateway_pb2
from hcloud.engine.calls import Command
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.wire import exit_to_wire, unit_report_from_wire
from hcloud.provider import ExitRecord, LogChunk, LogPiece, Stream

GOOD = {"units": [], "isolation": ["bwrap"], "preempt_at": None}
BAD = {"units": [{"id": "job-1.1.0"}], "isolation": [], "preempt_at": None}


class FakeWire:
    """Returns the reports that changed since it was asked last, as the gateway does."""

    def __init__(self, **reports: dict[str, Any]) -> None:
        self.reports, self.changed_at, self.turn = {}, {}, 0
        self.asked: list[Command] = []
        self.tell(**reports)

    def tell(self, **reports: dict[str, Any]) -> None:
        self.turn += 1
        for name, report in reports.items():
            self.reports[name], self.changed_at[name] = report, self.turn

    def observe(self, epoch: str, since: int) -> FakeReply:
        changed = {name: document(each) for name, each in self.reports.items() if self.changed_at[name] > since}
        known = list(self.reports)
        return FakeReply(gateway_pb2.ObserveReply(epoch="e", until=self.turn, connected=known, reports=changed))

    def groups(self, commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
        """Note commands, and send none of them."""
        self.asked += commands
        yield from ()


class FakeReply:
    """A reply that is there at once."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def result(self, timeout_s: float) -> Any:
        return self.reply


def document(report: dict[str, Any]) -> bytes:
    machine = {name: value for name, value in report.items() if name != "units"}
    return json.dumps({"units": report["units"], "machine": machine}).encode()


def runner_on(wire: FakeWire, tmp_path: Path) -> GatewayRunner:
    runner = GatewayRunner(tmp_path / "gateway.sock", b"key", ManualClock(0.0))
    runner._wire = wire  # type: ignore[assignment]
    return runner


def seen(runner: GatewayRunner) -> tuple[list[str], list[str]]:
    view = runner.observe()
    return [each.instance_id for each in view.workers], sorted(view.silent)


def test_a_report_that_makes_no_sense_hides_no_other_and_says_nothing_of_its_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wire = FakeWire(a=BAD, b=GOOD, c=GOOD)
    runner = runner_on(wire, tmp_path)
    assert [seen(runner) for _ in range(3)] == [(["b", "c"], ["a"])] * 3
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "the report of the worker on a makes no sense"
    ]
    wire.tell(a=GOOD)
    assert seen(runner) == (["a", "b", "c"], [])


def test_where_a_later_report_makes_no_sense_the_earlier_one_stands(tmp_path: Path) -> None:
    wire = FakeWire(a=GOOD, b=GOOD)
    runner = runner_on(wire, tmp_path)
    before = runner.observe()
    wire.tell(a=BAD)
    assert runner.observe().workers == before.workers
    assert runner.observe().silent == frozenset()


def test_the_made_messages_are_those_of_the_protocol_file() -> None:
    """Message and field names with their numbers; ``scripts/protocol`` makes the one of the other."""
    text = re.sub(r"//.*", "", (Path(gateway_pb2.__file__).parent / "gateway.proto").read_text())
    written = {
        name: set(re.findall(r"(\w+) = (\d+);", body))
        for name, body in re.findall(r"message (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text)
    }
    made = {
        name: {(field.name, str(field.number)) for field in message.fields}
        for name, message in gateway_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert written == made


@pytest.mark.parametrize("more", [{}, {"taken_s": 2.5}, {"a_later_agents_word": [1]}])
def test_samples_of_earlier_and_later_agents_are_read(more: dict[str, object]) -> None:
    sample = {"at": 1.0, "cpu_s": 3.0, **more}
    report = {"id": "job-1.1.0", "state": "running", "started_at": 1.0, "sample": sample, "exit": None}
    read = unit_report_from_wire(report).sample
    assert read is not None and (read.cpu_s, read.taken_s) == (3.0, more.get("taken_s"))


def test_output_is_asked_for_only_of_streams_that_may_hold_any(tmp_path: Path) -> None:
    record = exit_to_wire(ExitRecord(exit_code=0, cause=None, started_at=1.0, ended_at=2.0))
    ended = {"state": "ended", "started_at": 1.0, "sample": None, "exit": record}
    units = [
        {**ended, "id": "job-1.1.0", "wrote": ["stdout"]},
        {**ended, "id": "job-2.1.0", "wrote": []},
        {**ended, "id": "job-3.1.0"},  # of an agent of before
        {**ended, "id": "job-4.1.0", "state": "running", "exit": None, "wrote": None},
    ]
    wire = FakeWire(a={**GOOD, "units": units})
    runner = GatewayRunner(tmp_path / "gateway.sock", b"key", ManualClock(0.0), {"answer_within_s": 0})
    runner._wire = runner._calls.wire = wire  # type: ignore[assignment]
    runner.observe()
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    pieces = [
        LogPiece(unit=f"job-{number}.1.0", instance_id=machine, stream=stream, offset=5, limit=9)
        for number, machine in enumerate("aaaab", start=1)
        for stream in streams
    ]
    chunks = runner.read_logs(pieces)
    silent = {("job-1.1.0", "stderr"), ("job-2.1.0", "stdout"), ("job-2.1.0", "stderr")}
    assert {(piece.unit, piece.stream) for piece in chunks} == silent
    assert set(chunks.values()) == {LogChunk(content=b"", next_offset=5, end=True)}
    asked = [(each.request["unit"], each.request["stream"]) for each in wire.asked]
    assert asked == [(each.unit, each.stream) for each in pieces if (each.unit, each.stream) not in silent]


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [([[0, 0, 0, 0, 0], [1, 1, 0, 0, 0]], (0, 1)), ([[0, 0, 0, 0]], None), ("0-1", None), ([[10**12] * 5], None)],
)
def test_cpus_that_cannot_be_are_as_good_as_none(tmp_path: Path, rows: object, numbers: tuple[int, ...] | None) -> None:
    runner = runner_on(FakeWire(a={**GOOD, "cpu_topology": rows}, b=GOOD), tmp_path)
    of_a, of_b = (each.cpu_topology for each in runner.observe().workers)
    assert (of_a and of_a.numbers, of_b) == (numbers, None)
