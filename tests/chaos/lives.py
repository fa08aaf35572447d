"""Lives of a daemon, each in a forked process that is really killed, or ends well and writes down what it found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.scene import PROFILED, CrashPoints, Scene, build, play, violations

Build = Callable[[Path, CrashPoints], Scene]
Check = Callable[[Scene], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How one process ended: ``killed``, or the moments it passed and the promises it found broken."""

    killed: bool
    passed: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()


def live(
    home: Path,
    build: Build,
    kill_at: int | None = None,
    check: Check = violations,
    look: Callable[[int], None] = lambda _: None,
) -> Life:
    """Play the scene in a child process, killed at moment ``kill_at`` (None: to its end), and return how it went.

    ``check`` tells the promises that were broken in a life that came to its end; ``look`` is told each moment's number.
    """
    _prepare_forks()
    home.mkdir(exist_ok=True)
    report = home / "report.json"
    report.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_the_daemon(home, build, CrashPoints(kill_at=kill_at, look=look), report, check)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Life(killed=True)
    told = json.loads(report.read_text())
    return Life(killed=False, passed=tuple(told["passed"]), violations=tuple(told["violations"]))


@cache
def _prepare_forks() -> None:
    """Play a life in this process: what it makes once, schemas of documents above all, no fork has to make again."""
    with fresh_home() as home:
        scene = build(home, CrashPoints(), cast_of=PROFILED)
        with suppress(AssertionError):  # a fork finds the same, and says what was broken
            play(scene)
        scene.close()


def _be_the_daemon(home: Path, build: Build, crash: CrashPoints, report: Path, check: Check) -> None:
    """Never returns. What goes wrong is a violation too."""
    try:
        scene = build(home, crash)
        try:
            play(scene)
            found = check(scene)
        except AssertionError as stuck:
            found = [str(stuck)[:2000], *check(scene)]
        scene.close()
    except BaseException:  # noqa: BLE001 a forked child must never return into the test runner
        found = [traceback.format_exc()]
    report.write_text(json.dumps({"passed": crash.passed, "violations": found}))
    os._exit(0)


@contextmanager
def fresh_home() -> Iterator[Path]:
    """A directory for one deployment, in memory where there is such a place: thousands of commits are made there.

    A killed process loses nothing that it has written, disk or not; what a power cut does is not played here.
    """
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="hcloud-chaos-") as made:
        yield Path(made)


def crash_and_recover(home: Path, build: Build, kill_at: int, check: Check = violations) -> Life:
    """Play until killed at ``kill_at``, then start again in the same place and play to the end."""
    first = live(home, build, kill_at, check)
    return live(home, build, check=check) if first.killed else first


def broken_after_kills(build: Build, numbers: Sequence[int], check: Check = violations) -> dict[int, tuple[str, ...]]:
    """Return the promises broken by lives that follow a kill, by the number of the moment of the kill.

    At the first of ``numbers`` a process is really killed. What a killed process leaves is what its directory holds at
    that moment: for the others one life is played, its directory is copied at each moment, and the life that follows
    begins with the copy. So the time before a kill is not played anew for each.
    """
    found = {}
    with fresh_home() as around:
        home, images = around / "home", around / "images"
        first, *others = numbers
        found[first] = crash_and_recover(home, build, first, check).violations
        shutil.rmtree(home)
        wanted = frozenset(others)

        def look(number: int) -> None:
            if number in wanted:
                shutil.copytree(home, images / str(number))

        live(home, build, check=check, look=look)
        for number in others:
            shutil.rmtree(home)
            (images / str(number)).rename(home)
            found[number] = live(home, build, check=check).violations
    return {number: violations for number, violations in found.items() if violations}
