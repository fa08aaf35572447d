"""Pausing a unit: its processes get no CPU time, and keep their memory and files, until it is resumed.

By the freezer of its control group (version 1 or 2), or by STOP to each process where there is none. What is asked for
is in the unit's directory, so it holds whatever becomes of the worker; only the unit's keeper acts on it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from hcloud.engine.limits import Cgroup
from hcloud.engine.unit import Unit
from hcloud.provider import PAUSED_MOST_S

STOP_ROUNDS = 5
"""Processes may fork until they are stopped, so that they are looked for again, at most so often."""


class PauseControl:
    """Pauses and resumes what runs in one unit."""

    def __init__(self, unit: Unit, group: Cgroup | None, processes: Callable[[], set[int]]) -> None:
        """``processes`` returns those to be stopped where no control group has a freezer."""
        self._unit, self._group, self._processes = unit, group, processes
        self._since: float | None = None
        """Since when it is paused (monotonic seconds); None: it runs."""
        self._before_s = 0.0
        self._is_over = False
        """Whether the pause that is asked for lasted too long, so that it was ended."""
        self._stopped = set[int]()

    @property
    def is_on(self) -> bool:
        """Whether the unit is paused."""
        return self._since is not None

    @property
    def total_s(self) -> float:
        """How long it was paused so far."""
        return self._before_s + (0.0 if self._since is None else time.monotonic() - self._since)

    def hold(self) -> bool:
        """Pause or resume it as asked; return whether that changed."""
        wanted = self._unit.is_to_pause
        if not wanted:
            self._is_over = False
        elif self._since is not None and time.monotonic() >= self._since + PAUSED_MOST_S:
            self._is_over = True
        if not wanted or self._is_over:
            return self.resume()
        is_new = self._since is None
        if is_new:
            self._since = time.monotonic()
        self._halt()  # also what a profiler has let run
        return is_new

    def resume(self) -> bool:
        """Let it run; return whether it was paused."""
        if self._since is None:
            return False
        self._before_s, self._since = self.total_s, None
        if self._group is not None:
            with suppress(OSError):
                self._group.freeze(False)
        stopped, self._stopped = self._stopped, set()
        _send(stopped, signal.SIGCONT)
        return True

    def _halt(self) -> None:
        if self._group is not None:
            try:
                self._group.freeze(True)
            except OSError:  # no freezer
                pass
            else:
                return
        for _ in range(STOP_ROUNDS):
            new = self._processes() - self._stopped
            if not new:
                return
            _send(new, signal.SIGSTOP)
            self._stopped |= new


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
