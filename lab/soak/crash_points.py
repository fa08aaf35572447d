"""Crash points around every effect of a daemon: it can be killed, paused, or have a commit fail at any of them.

Points are counted, so the same seed injects the same faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from hcloud.core.errors import StoreBusy

Port = TypeVar("Port")
PROVIDER_CALLS = ("offers", "launch", "instances", "terminate")
RUNNER_CALLS = ("observe", "start", "stop", "resize", "pause", "renew", "logs", "forget")


EFFECT_POINTS = tuple(
    f"{call}:{when}"
    for call in ("provider.launch", "provider.terminate", "runner.start", "runner.stop")
    for when in ("before", "after")
)
"""The points between an intent, its effect and the record of it; about one in thirty of all points."""


class Killed(BaseException):
    """Simulates SIGKILL. The code that catches it must drop all of the daemon's memory."""


@dataclass(slots=True)
class CrashPoints:
    """Counts the points before and after each call of a port and each commit, and injects faults at the chosen ones."""

    pause: Callable[[], None] = lambda: None
    """Called while the daemon stands still."""
    kill_in: int = 0
    """Kill after this many points (1: the next)."""
    kill_at: str = ""
    """Kill at the next point with this label."""
    pause_in: int = 0
    """Pause after this many calls of a port."""
    fail_commit_in: int = 0
    """Fail after this many commits."""
    fail_after_commit: bool = False
    """The commit fails after everything was written, as if the server went away at that moment; else before."""
    injected: list[str] = field(default_factory=list)
    """Every fault injected so far."""

    def disarm(self) -> None:
        """Inject no more faults."""
        self.cancel_kill()
        self.pause_in = self.fail_commit_in = 0

    def cancel_kill(self) -> None:
        """Cancel a planned kill."""
        self.kill_in, self.kill_at = 0, ""

    def hit(self, label: str) -> None:
        """Pass a point. Raises Killed, StoreBusy."""
        if label.startswith("commit"):
            self._fail_commit(label)
        elif self._due("pause_in"):
            self.injected.append(f"paused at {label}")
            self.pause()
        if self._due("kill_in") or label == self.kill_at:
            self.injected.append(f"killed at {label}")
            raise Killed(label)

    def _due(self, name: str) -> bool:
        left: int = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
        return left == 1

    def _fail_commit(self, label: str) -> None:
        when = "commit:after" if self.fail_after_commit else "commit:before"
        if label == when and self._due("fail_commit_in"):
            self.injected.append(f"database failed at {label}")
            raise StoreBusy(f"the database went away ({label})")

    def wrap(self, port: Port, calls: tuple[str, ...], name: str) -> Port:
        """Return ``port`` with points before and after the named calls."""
        return cast(Port, CrashPointProxy(port, {call: f"{name}.{call}" for call in calls}, self.hit))


class CrashPointProxy:
    """Forwards everything to ``inner``; calls ``hit`` with a label before and after each named method."""

    def __init__(self, inner: object, labels: Mapping[str, str], hit: Callable[[str], None]) -> None:
        self._inner, self._labels, self._hit = inner, labels, hit

    def __getattr__(self, name: str) -> object:
        attribute = getattr(self._inner, name)
        label = self._labels.get(name)
        if label is None:
            return attribute

        def call(*arguments: object, **named: object) -> object:
            # Either hit may raise: before the call had any effect, or after all of it.
            self._hit(f"{label}:before")
            result = attribute(*arguments, **named)
            self._hit(f"{label}:after")
            return result

        return call
