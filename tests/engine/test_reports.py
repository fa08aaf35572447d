"""What the daemon's side of the engine concludes from workers' reports, those that make no sense among them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.clock import ManualClock
from hcloud.engine import gateway_pb2
from hcloud.engine.runner import GatewayRunner

GOOD = {"units": [], "isolation": ["bwrap"], "preempt_at": None}
BAD = {"units": [{"id": "job-1.1.0"}], "isolation": [], "preempt_at": None}


class FakeWire:
    """Returns the reports that changed since it was asked last, as the gateway does."""

    def __init__(self, **reports: dict[str, Any]) -> None:
        self.reports, self.changed_at, self.turn = {}, {}, 0
        self.tell(**reports)

    def tell(self, **reports: dict[str, Any]) -> None:
        self.turn += 1
        for name, report in reports.items():
            self.reports[name], self.changed_at[name] = report, self.turn

    def observe(self, epoch: str, since: int) -> FakeReply:
        changed = {name: document(each) for name, each in self.reports.items() if self.changed_at[name] > since}
        known = list(self.reports)
        return FakeReply(gateway_pb2.ObserveReply(epoch="e", until=self.turn, connected=known, reports=changed))


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
