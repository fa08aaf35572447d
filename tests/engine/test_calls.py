"""How long commands to agents are awaited, what becomes of late answers, and how often each is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hcloud.engine.calls import Answer, Calls, Command, EngineAway, Numbered
from tests.waiting import wait_until

PATIENCE_S = 60.0
DONE: Answer = {"started": "now"}


class FakeWire:
    """Answers when the test says so, one call at a time by machine."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.answers: Callable[[Command], Answer] = lambda command: DONE
        self._hung: dict[str, threading.Event] = {}

    def hang(self, instance_id: str) -> None:
        self._hung[instance_id] = threading.Event()

    def wake(self, instance_id: str) -> None:
        self._hung[instance_id].set()

    def groups(self, commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
        for each in commands:  # so that one machine's silence holds up no other here
            yield [each]

    def call(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Sequence[Numbered]]:
        for number, each in enumerate(commands):
            self.sent.append((each.instance_id, each.request["op"]))
            if each.instance_id in self._hung:
                self._hung[each.instance_id].wait(PATIENCE_S)
            yield [(number, self.answers(each))]


@pytest.fixture
def wire() -> FakeWire:
    return FakeWire()


def start(unit: str, instance_id: str = "a", archive: Path | None = None) -> Command:
    request = {"op": "start", "spec": {"id": unit}, "archive": archive.name if archive else None}
    return Command(
        ("start", unit), instance_id, request, archives={archive.name: archive} if archive else {}, is_news=True
    )


def calls_on(wire: FakeWire, within_s: float = PATIENCE_S, news: Callable[[], object] = lambda: None) -> Calls:
    return Calls(wire, PATIENCE_S, within_s, news)


def test_what_is_answered_in_time_is_returned_and_may_be_asked_again(wire: FakeWire) -> None:
    calls = calls_on(wire)
    assert [calls.ask([start("u"), start("v", "b")]) for _ in range(2)] == [[DONE, DONE]] * 2
    assert sorted(wire.sent) == [("a", "start"), ("a", "start"), ("b", "start"), ("b", "start")]
    assert calls.answered("start") == frozenset()


def test_a_command_that_is_unanswered_is_sent_once_and_its_answer_is_news_and_taken_once(wire: FakeWire) -> None:
    came = threading.Event()
    wire.hang("a")
    calls = calls_on(wire, within_s=0.0, news=came.set)
    assert [calls.ask([start("u")]) for _ in range(3)] == [[None]] * 3
    assert not came.is_set() and calls.answered("start") == frozenset()
    wire.wake("a")
    assert came.wait(PATIENCE_S)
    assert (calls.answered("start"), calls.answered("resize")) == ({"u"}, frozenset())
    assert calls.ask([start("u")]) == [DONE]
    assert calls.answered("start") == frozenset()
    assert wire.sent == [("a", "start")]


def test_one_machine_that_hangs_is_waited_for_once_and_the_others_always(wire: FakeWire) -> None:
    calls = calls_on(wire, within_s=0.2)
    wire.hang("a")
    assert calls.ask([start("u")]) == [None]
    assert calls.left_s == 0.0
    calls.begin_round()
    # Would it wait for the hanging machine again, nothing of the round were left.
    assert calls.ask([start("u"), start("v")]) == [None, None]
    assert calls.left_s > 0.0
    assert calls.ask([start("w", "b")]) == [DONE]
    wire.wake("a")


def test_what_nobody_waits_for_makes_no_machine_slow_and_leaves_no_answer_behind(wire: FakeWire) -> None:
    wire.hang("a")
    calls = calls_on(wire)
    calls.send([Command(("forget", "u"), "a", {"op": "forget"})])
    wait_until(lambda: wire.sent, PATIENCE_S)
    started = list[list[Answer | None]]()
    asking = threading.Thread(target=lambda: started.append(calls.ask([start("v")])))
    asking.start()
    wait_until(lambda: len(wire.sent) == 2, PATIENCE_S)
    wire.wake("a")
    asking.join(PATIENCE_S)
    assert started == [[DONE]]
    assert wait_until(lambda: calls.answered("forget") == frozenset() and not calls._sent, PATIENCE_S)


def test_two_threads_that_ask_for_the_same_share_one_answer(wire: FakeWire) -> None:
    wire.hang("a")
    calls, found = calls_on(wire), list[list[Answer | None]]()
    threads = [threading.Thread(target=lambda: found.append(calls.ask([start("u")]))) for _ in range(3)]
    for each in threads:
        each.start()
    wait_until(lambda: wire.sent, PATIENCE_S)
    wire.wake("a")
    for each in threads:
        each.join(PATIENCE_S)
    assert found[0] == [DONE] and all(each in ([DONE], [None]) for each in found)


@pytest.mark.parametrize("error", [EngineAway("the engine is away"), RuntimeError("a defect")])
def test_what_a_broken_call_leaves_unanswered_is_unknown(wire: FakeWire, error: Exception) -> None:
    def fail(command: Command) -> Answer:
        raise error

    wire.answers = fail
    [answer] = calls_on(wire).ask([start("u")])
    assert answer is not None and str(error) in answer["unknown"]


def test_an_archive_is_sent_once_for_all_units_that_wait_for_it(wire: FakeWire, tmp_path: Path) -> None:
    archive, taken, calls = tmp_path / "work.tar.gz", list[bytes](), calls_on(wire)
    archive.write_bytes(b"x" * (2 << 20))

    def answer(command: Command) -> Answer:
        if command.request["op"] == "put":
            wait_until(lambda: taken or [len(each) for each in calls._uploads.values()] == [2], PATIENCE_S)
            taken.append(command.request["content"])
            return {"taken": True}
        return DONE if taken else {"need": archive.name}

    wire.answers = answer
    assert calls.ask([start("u", "a", archive), start("v", "a", archive)]) == [DONE, DONE]
    assert b"".join(taken) == archive.read_bytes()
    assert [op for _, op in wire.sent if op == "put"] == ["put", "put"]


def test_a_unit_whose_archive_cannot_be_read_is_refused_for_ever(wire: FakeWire, tmp_path: Path) -> None:
    wire.answers = lambda command: (
        {"refused": command.request["why"]} if command.request["op"] == "refuse" else {"need": "work.tar.gz"}
    )
    [answer] = calls_on(wire).ask([start("u", "a", tmp_path / "work.tar.gz")])
    assert answer is not None and answer["refused"].endswith("work.tar.gz cannot be read: No such file or directory")
    assert wire.sent == [("a", "start"), ("a", "refuse")]
