"""What may befall a daemon between any two lines: death, a long pause, a database that fails; counted: repeatable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from hcloud.core.errors import StoreBusy

Port = TypeVar("Port")
PROVIDER_CALLS = ("offers", "launch", "instances", "terminate")
RUNNER_CALLS = ("observe", "start", "stop", "resize", "renew", "logs", "forget")


EFFECT_POINTS = tuple(
    f"{call}:{when}"
    for call in ("provider.launch", "provider.terminate", "runner.start", "runner.stop")
    for when in ("before", "after")
)
"""The moments between an intent, its effect and the record of it: one in thirty of all that there are."""


class Killed(BaseException):
    """The daemon dies here, as by SIGKILL: whoever catches it forgets everything that it had in memory."""


@dataclass(slots=True)
class CrashPoints:
    """Counts the moments before and after each call of a port and each commit, and strikes at the chosen ones.

    ``kill_in``: so many moments from now (1: the next); ``kill_at``: at the next moment of this name. ``pause_in``: so
    many calls of a port. ``fail_commit_in``: so many commits from now one fails, before anything is written or, if
    ``too_late``, after all of it was (a server that went away in the very moment). ``pause`` is what happens meanwhile.
    """

    pause: Callable[[], None] = lambda: None
    kill_in: int = 0
    kill_at: str = ""
    pause_in: int = 0
    fail_commit_in: int = 0
    fail_after_commit: bool = False
    injected: list[str] = field(default_factory=list)

    def disarm(self) -> None:
        """Let nothing more befall."""
        self.cancel_kill()
        self.pause_in = self.fail_commit_in = 0

    def cancel_kill(self) -> None:
        """Let the daemon live on."""
        self.kill_in, self.kill_at = 0, ""

    def hit(self, label: str) -> None:
        """Pass a moment. Raises Killed, StoreBusy."""
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
        """Return ``port`` with moments around the named calls."""
        return cast(Port, CrashPointProxy(port, {call: f"{name}.{call}" for call in calls}, self.hit))


class CrashPointProxy:
    """Passes everything on to ``inner``; the named methods (with their labels) tell ``hit`` before and after."""

    def __init__(self, inner: object, labels: Mapping[str, str], hit: Callable[[str], None]) -> None:
        self._inner, self._labels, self._hit = inner, labels, hit

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        label = self._labels.get(name)
        if label is None:
            return found

        def told(*arguments: object, **named: object) -> object:
            """Call ``inner``; either ``hit`` may raise, before anything happened or when all has."""
            self._hit(f"{label}:before")
            result = found(*arguments, **named)
            self._hit(f"{label}:after")
            return result

        return told
