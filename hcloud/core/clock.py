"""Time as an argument: the only module that reads the wall clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The source of time that the daemon and the simulator pass in. All times are Unix seconds (UTC)."""

    def now(self) -> float:
        """Return the present time in Unix seconds."""
        ...

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for ``wake``; return whether it was set."""
        ...


class SignalledEvent(threading.Event):
    """An event that a signal handler may set.

    Handlers run in the main thread, possibly while it holds the event's own lock: an ordinary event would deadlock. A
    wait interrupted that way may notice the event only at its timeout.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cond = threading.Condition(threading.RLock())


class SystemClock:
    """The wall clock made monotonic, so that stepping the host's clock back cannot reorder events.

    Forward jumps are passed on, since leases and expiries must notice them. After a backward jump, time advances with
    the monotonic clock until the wall clock has caught up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_now = time.time()
        self._last_monotonic = time.monotonic()

    def now(self) -> float:
        """Return Unix seconds, never less than an earlier result."""
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
    """A clock that moves only when it is advanced; for tests and the simulator."""

    def __init__(self, start_at: float = 1_000_000.0) -> None:
        self._now = start_at

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward (negative: backward) and return the new time."""
        self._now += seconds
        return self._now

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Advance by ``timeout_s`` without waiting, unless ``wake`` is set."""
        if wake.is_set():
            return True
        self.advance(timeout_s)
        return False


def holds_within(condition: Callable[[], object], timeout_s: float, every_s: float) -> bool:
    """Poll ``condition`` in real time; return whether it held within ``timeout_s``.

    For conditions without a notification, such as the end of a process that is not our child.
    """
    give_up_at = time.monotonic() + timeout_s
    while True:
        # Read before the check: a process that got no CPU for long checks once more before it gives up.
        last = time.monotonic() >= give_up_at
        if condition():
            return True
        if last:
            return False
        time.sleep(every_s)
