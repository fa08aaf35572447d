"""Time as an argument: the one place that reads a wall clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the daemon and the simulator hand in. ``now`` is Unix seconds (UTC)."""

    def now(self) -> float:
        """Return the present time in Unix seconds."""
        ...

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Wait for ``wake`` at most ``timeout_s``; return whether it was set."""
        ...


class SignalledEvent(threading.Event):
    """An event that signal handlers may set. They run in the main thread, in the midst of anything.

    Also while that holds the event's own lock, for which an ordinary event would wait for ever. A wait may be told
    late then, at its end.
    """

    def __init__(self) -> None:
        """Begin unset."""
        super().__init__()
        self._cond = threading.Condition(threading.RLock())


class SystemClock:
    """The real clock, made monotonic: it never runs backwards, so a stepped host clock cannot un-happen an event.

    A forward jump is passed on (leases and expiries must notice it); a backward jump is held until real time has
    caught up, advancing by the monotonic clock meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_now = time.time()
        self._last_monotonic = time.monotonic()

    def now(self) -> float:
        """Return Unix seconds, never less than an earlier answer."""
        with self._lock:
            wall, monotonic = time.time(), time.monotonic()
            if wall < self._last_now:
                wall = self._last_now + (monotonic - self._last_monotonic)
            self._last_now, self._last_monotonic = wall, monotonic
            return wall

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Wait in real time."""
        return wake.wait(timeout_s)


class ManualClock:
    """A clock that stands still until told to move; drives tests and the simulator."""

    def __init__(self, start_at: float = 1_000_000.0) -> None:
        self._now = start_at

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward (negative: a clock jump) and return the new time."""
        self._now += seconds
        return self._now

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Jump ahead at once instead of waiting."""
        if wake.is_set():
            return True
        self.advance(timeout_s)
        return False


def holds_within(condition: Callable[[], object], timeout_s: float, every_s: float) -> bool:
    """Look again and again, in real time, until ``condition`` holds; return whether it did within ``timeout_s``.

    For what tells nobody when it happens: a process of somebody else ends, a server begins to listen.
    """
    give_up_at = time.monotonic() + timeout_s
    while True:
        # Asked before the look: who gets no CPU for long looks once more before giving up.
        last = time.monotonic() >= give_up_at
        if condition():
            return True
        if last:
            return False
        time.sleep(every_s)
