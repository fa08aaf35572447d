"""Workers that share one collection: all tests are imported and collected once, then the workers are forked.

Collecting takes half a minute of processor time in a new checkout. Workers of pytest-xdist each collect for themselves,
and no test begins before the last of them has.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

Message = dict[str, Any]
LONGEST = ("tests/simulator/test_joints", "tests/upgrade/")
"""Files whose tests take long, and would come last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plug-in."""
    group = parser.getgroup("workers")
    group.addoption("--workers", type=int, default=1, help="run the tests in this many forked processes, file by file")
    group.addoption("--test-by-test", action="store_true", help="let workers share the tests of a file as well")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without collecting garbage, of which imports leave little, and exempt what they made for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # With Python's own thresholds: what 20,000 new objects leave is looked through at twice the cost of 700's.
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers if more than one is wanted; leave them to pytest otherwise."""
    workers: int = session.config.getoption("workers")
    if workers < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    _Pool(session).run(workers)
    return True


class _Pool:
    """Forks workers and reports in this process what they report to it."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        by_test = session.config.getoption("test_by_test")
        portions: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            portions.setdefault(item.nodeid if by_test else item.nodeid.partition("::")[0], []).append(item)
        # Not in the order of their names: else one worker ends with the longest ones, and the others wait for it.
        self._portions = sorted(portions.values(), key=lambda items: not items[0].nodeid.startswith(LONGEST))
        # All workers read the numbers of portions at one common offset, so that each number is read once. Not in a
        # memfd, whose offset Linux does not lock: two workers could read the same number.
        with tempfile.TemporaryFile(buffering=0) as numbers:
            numbers.write(b"".join(number.to_bytes(4, "big") for number in range(len(portions))))
            numbers.seek(0)
            self._numbers = os.dup(numbers.fileno())
        self._basetemp: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._workers: list[_Worker] = []
        self._forked = 0

    def run(self, workers: int) -> None:
        """Run all tests. Raises what pytest's own loop raises when a session ends early."""
        session = self._session
        try:
            for _ in range(min(workers, len(self._portions))):
                self._fork(())
            while self._workers:
                self._attend()
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers:
                signal.pidfd_send_signal(worker.process, signal.SIGINT)
            for worker in self._workers:
                worker.end()

    def _fork(self, begin_with: Sequence[pytest.Item]) -> None:
        near, far = socket.socketpair()
        self._forked += 1
        pid = os.fork()
        if pid == 0:
            near.close()
            _work(self._session, far, self._basetemp / f"worker{self._forked}", self._taken(begin_with))
        far.close()
        self._workers.append(_Worker(pid, near))

    def _taken(self, begin_with: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        yield from begin_with
        while number := os.read(self._numbers, 4):
            yield from self._portions[int.from_bytes(number, "big")]

    def _attend(self) -> None:
        """Wait until workers report or end, and pass on what they say."""
        with selectors.DefaultSelector() as ready:
            for worker in self._workers:
                ready.register(worker.socket, selectors.EVENT_READ, worker)
                ready.register(worker.process, selectors.EVENT_READ, worker)
            events = [key for key, _ in ready.select()]
        ended = [key.data for key in events if key.fileobj == key.data.process]
        for worker in dict.fromkeys(key.data for key in events):
            for message in worker.messages():
                self._pass_on(message, worker)
        for worker in ended:
            self._workers.remove(worker)
            code = worker.wait()
            if worker.running:
                self._report_crash(worker.running, code)

    def _pass_on(self, message: Message, worker: _Worker) -> None:
        config = self._session.config
        if "started" in message:
            worker.running = message["started"]
            config.hook.pytest_runtest_logstart(nodeid=worker.running, location=self._items[worker.running].location)
        elif "finished" in message:
            worker.running = None
            config.hook.pytest_runtest_logfinish(
                nodeid=message["finished"], location=self._items[message["finished"]].location
            )
        elif "report" in message:
            report = config.hook.pytest_report_from_serializable(config=config, data=message["report"])
            if isinstance(report.longrepr, list):  # of a skipped test: a place and a reason, a list only in JSON
                report.longrepr = tuple(report.longrepr)
            config.hook.pytest_runtest_logreport(report=report)
        elif "warning" in message:
            warning = warnings.WarningMessage(message["warning"], UserWarning, *message["at"])
            config.hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": warning, "when": "runtest", "nodeid": message["nodeid"], "location": None}
            )
        else:
            raise RuntimeError(f"a worker of the tests failed:\n{message['defect']}")

    def _report_crash(self, nodeid: str, code: int) -> None:
        """Report a test whose worker has ended, and have the rest of its portion run by another."""
        item = self._items[nodeid]
        report = pytest.TestReport(
            nodeid=nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"the process that ran this test ended with code {code}",
            when="call",
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        portion = next(portion for portion in self._portions if item in portion)
        self._fork(portion[portion.index(item) + 1 :])


class _Worker:
    """A forked process, and what it says."""

    def __init__(self, pid: int, near: socket.socket) -> None:
        self._pid = pid
        self.socket = near
        self.process = os.pidfd_open(pid)
        """Readable once the process has ended; the socket may be held open by what it has started."""
        self.running: str | None = None
        """The test that it has begun and not ended."""
        self._rest = b""
        near.setblocking(False)

    def messages(self) -> list[Message]:
        """Return all messages that have come."""
        while True:
            try:
                received = self.socket.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                break
            if not received:
                break
            self._rest += received
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Wait for its end, and interrupt it at its next test as well, for a test may keep an interrupt to itself."""
        with selectors.DefaultSelector() as ready:
            for each in (self.socket, self.process):
                ready.register(each, selectors.EVENT_READ)
            while self.process not in {key.fileobj for key, _ in ready.select()}:
                if any("started" in message for message in self.messages()):
                    signal.pidfd_send_signal(self.process, signal.SIGINT)
        self.wait()

    def wait(self) -> int:
        """Wait for its end and return its exit code, which is negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self.process)
        self.socket.close()
        return os.waitstatus_to_exitcode(status)


class _Reporter:
    """Sends what pytest reports in a worker to the process that shows it."""

    def __init__(self, config: pytest.Config, far: socket.socket) -> None:
        self._config = config
        self._far = far

    def send(self, message: Message) -> None:
        """Send a message; end this process if no process reads it any more."""
        try:
            self._far.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Send which test begins."""
        self.send({"started": nodeid})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Send which test has ended."""
        self.send({"finished": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send how a phase of a test went."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.send({"report": data})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        """Send a warning."""
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        self.send({"warning": text, "at": (warning_message.filename, warning_message.lineno), "nodeid": nodeid})


def _work(session: pytest.Session, far: socket.socket, basetemp: Path, items: Iterator[pytest.Item]) -> NoReturn:
    """Run tests in a forked process, which ends here."""
    config = session.config
    reporter = _Reporter(config, far)
    try:
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(reporter)
        config._tmp_path_factory._given_basetemp = basetemp  # type: ignore[attr-defined]
        config._tmp_path_factory._basetemp = None  # type: ignore[attr-defined]
        # The files that output is captured in are the worker's own.
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        item = next(items, None)
        while item is not None:
            after = next(items, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            item = after
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
    except BaseException:  # noqa: BLE001 a fork must never return into the loop that it came from
        reporter.send({"defect": traceback.format_exc()})
    finally:
        os._exit(0)
