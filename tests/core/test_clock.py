"""Events that signal handlers set, also while the main thread holds their lock."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hcloud.core.clock import SignalledEvent

INTERRUPTED = """
import signal, threading
from hcloud.core.clock import SignalledEvent
event = {kind}()
signal.signal(signal.SIGTERM, lambda *_: event.set())
with event._cond:  # as within clear() and wait()
    signal.raise_signal(signal.SIGTERM)
print(event.is_set())
"""


@pytest.fixture
def signalled() -> Iterator[SignalledEvent]:
    """An event that SIGUSR1 sets, for this test."""
    event = SignalledEvent()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)


def test_event_is_set_by_a_signal_that_comes_while_its_lock_is_held() -> None:
    def run(kind: str, patience_s: float) -> str:
        program = [sys.executable, "-c", INTERRUPTED.format(kind=kind)]
        return subprocess.run(program, capture_output=True, text=True, timeout=patience_s, check=True).stdout

    assert run("SignalledEvent", 60.0) == "True\n"
    with pytest.raises(subprocess.TimeoutExpired):  # what an ordinary event does there
        run("threading.Event", 3.0)


def test_event_that_was_set_by_a_signal_ends_a_wait_and_can_be_cleared(signalled: SignalledEvent) -> None:
    threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
    assert signalled.wait(30.0)
    signalled.clear()
    assert not signalled.is_set()
