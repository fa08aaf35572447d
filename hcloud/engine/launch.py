"""One run of a command inside a cell: forked, bounded, its output copied to segments, its end collected."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hcloud.engine.output import OutputFile
from hcloud.engine.sandbox import Cell, held_in_memory, split_environment
from hcloud.engine.syscall_filter import syscall_filter

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_libc = ctypes.CDLL(None, use_errno=True)
OPEN_FILES = 4096
DRAIN_S = 2.0
LATE_READS = 64
"""What lay in the pipes when that time was over is still taken: so many reads, of 64 KiB each, hold all of it."""
ABOVE_STANDARD = 16
COMMANDS_FD, RESULTS_FD = 6, 7
"""Of a launcher of tasks: what it is to start, and how that ended."""
ENTRANCE = (
    'umask 022; ulimit -c 0; ulimit -f "$1"; shift; '
    'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 126; shift; done; shift; exec "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Bounds that a shell takes on before it turns into the sandbox."""

    groups: Sequence[str]
    """Directories of control groups to enter."""
    file_mib: int
    """Largest file that may be written."""


class RunningCommand:
    """A started command. ``status`` is its wait status once it has ended; ``missing``: there is no such command."""

    def __init__(
        self,
        cell: Cell,
        command: Sequence[str],
        environment: Mapping[str, str],
        bound: Callable[[], None],
        log: Path,
        log_bytes: int,
        entrance: Entrance | None = None,
        *,
        is_launcher: bool = False,
    ) -> None:
        """Start. ``bound`` is called in a forked child, still as the worker's user, to take on limits.

        ``entrance``: the same limits for a start without that copy of this process, where there is a sandbox.
        ``is_launcher``: the command starts others, as it is sent with :meth:`command`.
        """
        is_direct = entrance is not None and not is_launcher and cell.needs_no_shell(command, environment)
        pipes = [os.pipe() for _ in range(2 if is_direct else 3)]
        commands, results = (os.pipe(), os.pipe()) if is_launcher else ((-1, -1), (-1, -1))
        theirs = [commands[0], results[1]] if is_launcher else []
        writers = [writer for _, writer in pipes]
        self.status: int | None = None
        self.missing = False
        plain, script = split_environment(environment)
        # A shell outside of the sandbox must read no variable of the job.
        is_plain = all(name == "PATH" or name.startswith("HCLOUD_") for name in plain)
        if entrance is not None and is_direct:
            self.pid = _spawn(cell.wrap(command, is_direct=True), environment, entrance, writers, _held(cell, None))
        elif entrance is not None and cell.isolation.bwrap and is_plain:
            self.pid = _spawn(cell.wrap(command), plain, entrance, writers, _held(cell, script, theirs), theirs)
        else:
            self.pid = _fork(cell, command, plain, script, bound, writers, theirs)
        for handle in (*writers, *theirs):
            os.close(handle)
        self._commands, self.results = commands[1], results[0]
        out, err = pipes[0][0], pipes[1][0]
        self._launch_fd = -1 if is_direct else pipes[2][0]
        self._files = OutputFile(log, "stdout", log_bytes), OutputFile(log, "stderr", log_bytes)
        self._outputs = dict(zip((out, err), self._files, strict=True))
        self.lost_output = False

    @property
    def handles(self) -> list[int]:
        """Descriptors to wait on."""
        return [*self._outputs, *([self._launch_fd] if self._launch_fd >= 0 else [])]

    @property
    def written(self) -> tuple[int, int]:
        """How much there is of both outputs by now, in bytes."""
        return self._files[0].offset, self._files[1].offset

    def command(self, text: str) -> None:
        """Send a launcher what it is to do; one that is gone takes nothing."""
        with suppress(BrokenPipeError):
            view = memoryview(text.encode())
            while view:
                view = view[os.write(self._commands, view) :]

    def end_commands(self) -> None:
        """Let a launcher end: there is nothing more to do."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def take_rest(self) -> None:
        """Copy what is in the pipes now."""
        while ready := select.select(self.handles, [], [], 0.0)[0]:
            self.take(ready)

    def take(self, ready: Iterable[int]) -> None:
        """Copy what the readable descriptors hold."""
        for handle in ready:
            if handle == self._launch_fd:
                self._read_launch()
            elif handle in self._outputs:
                self._copy(handle)

    def drain(self) -> None:
        """Copy what is left in the pipes after the last writer."""
        deadline, late = time.monotonic() + DRAIN_S, 0
        while self.handles and late < LATE_READS:
            over = time.monotonic() >= deadline  # perhaps only because nobody here got any CPU
            ready = select.select(self.handles, [], [], 0.0 if over else 0.2)[0]
            if over and not ready:
                break
            late += over
            self.take(ready)
        for handle, output in self._outputs.items():
            output.close()
            os.close(handle)
        self._outputs.clear()
        if self._launch_fd >= 0:
            os.close(self._launch_fd)
        self.end_commands()
        if self.results >= 0:
            os.close(self.results)
            self.results = -1

    def _read_launch(self) -> None:
        self.missing = bool(os.read(self._launch_fd, 64))
        os.close(self._launch_fd)
        self._launch_fd = -1

    def _copy(self, handle: int) -> None:
        content = os.read(handle, 1 << 16)
        if not content:
            self._outputs.pop(handle).close()
            os.close(handle)
            return
        try:
            self._outputs[handle].write(content)
        except OSError:  # the disk is full: the unit goes on without its output rather than hang on it
            self.lost_output = True


def become_subreaper() -> None:
    """Have orphans below this process handed to it, so that nothing can slip out of its tree."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become_user(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def close_inherited(*kept: int) -> None:
    """Close every descriptor above the standard ones except some."""
    first = 3
    for each in (*sorted(kept), OPEN_FILES):
        os.closerange(first, each)
        first = each + 1


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _held(cell: Cell, script: bytes | None, of_launcher: Sequence[int] = ()) -> list[int]:
    """Return files in memory: the script that sets the command's environment, if it gets one, and the filter of system
    calls."""
    files = [script] if script is not None else []
    files += [syscall_filter() or b""] if cell.isolation.bwrap and cell.isolation.filters_calls else []
    files += [b""] if of_launcher and len(files) == 1 else []
    return [held_in_memory(each) for each in files]


def _spawn(
    arguments: list[str],
    environment: Mapping[str, str],
    entrance: Entrance,
    writers: list[int],
    held: list[int],
    of_launcher: Sequence[int] = (),
) -> int:
    """Start through a shell that takes on the bounds: no memory is copied for it, as a fork does.

    All descriptors together become 1, 2 and so on; ``held`` are closed here.
    """
    # The sandbox dies with its parent as soon as it has begun. What a keeper killed before that leaves is in its
    # unit's group, or finds that gone and ends.
    file_blocks = _at_most(resource.RLIMIT_FSIZE, entrance.file_mib << 20) // 512
    enter = ["sh", "-c", ENTRANCE, "sh", str(file_blocks), *entrance.groups, "--", *arguments]
    # Above all numbers that they are to get, so that none is overwritten before it is copied.
    sources = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD) for each in (*writers, *held, *of_launcher)]
    try:
        moves = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(sources, start=1)]
        null = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        ignored = [number for number in _CATCHABLE if signal.getsignal(number) == signal.SIG_IGN]
        return os.posix_spawn(
            "/bin/sh", enter, environment, file_actions=[null, *moves], setsid=True, setsigmask=[], setsigdef=ignored
        )
    finally:
        for handle in (*sources, *held):
            os.close(handle)


def _at_most(limit: int, value: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _fork(
    cell: Cell,
    command: Sequence[str],
    plain: Mapping[str, str],
    script: bytes,
    bound: Callable[[], None],
    writers: list[int],
    of_launcher: list[int],
) -> int:
    """Start in a child that takes descriptors, limits and user, then turns into the sandbox."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _take_descriptors([*writers, *_held(cell, script, of_launcher), *of_launcher])
        die_with_parent()
        if os.getppid() == parent:
            bound()
            if not cell.isolation.bwrap:
                os.chdir(cell.root / "job")
            arguments = cell.wrap(command)
            # Found by the worker's own PATH: the job's must not choose the program that locks it in.
            program = next(
                path for folder in os.get_exec_path() if os.access(path := f"{folder}/{arguments[0]}", os.X_OK)
            ) if "/" not in arguments[0] else arguments[0]  # fmt: skip
            os.execve(program, arguments, plain)
    except OSError as error:
        os.write(2, f"hcloud: the unit could not be started: {error}\n".encode())
    finally:
        os._exit(126)


def _take_descriptors(others: list[int]) -> None:
    """Make /dev/null the first descriptor and ``others`` the next ones; close all above."""
    high = [os.open("/dev/null", os.O_RDONLY), *others]
    while min(high) < len(high):
        high = [os.dup(each) for each in high]
    for number, handle in enumerate(high):
        os.dup2(handle, number, inheritable=True)
    os.closerange(len(high), OPEN_FILES)
    for number in _CATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN:  # Python ignores some (PIPE, XFSZ), and such a signal stays so
            signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
