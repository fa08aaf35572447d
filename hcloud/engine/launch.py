"""One run of a command inside a cell: forked, bounded, its output copied to segments, its end collected."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hcloud.engine.output import OutputFile
from hcloud.engine.sandbox import Cell, held_in_memory, split_environment
from hcloud.engine.syscall_filter import syscall_filter

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
OPEN_FILES = 4096
DRAIN_S = 2.0
LATE_READS = 64
"""What lay in the pipes when that time was over is still taken: so many reads, of 64 KiB each, hold all of it."""


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
    ) -> None:
        """Fork and start. ``bound`` is called in the child, still as the worker's user, to take on limits."""
        pipes = [os.pipe() for _ in range(3)]
        parent = os.getpid()
        self.status: int | None = None
        self.missing = False
        self.pid = os.fork()
        if self.pid == 0:
            _become_command(cell, command, environment, bound, [writer for _, writer in pipes], parent)
        for _, writer in pipes:
            os.close(writer)
        (out, _), (err, _), (self._launch_fd, _) = pipes
        self._outputs = {out: OutputFile(log, "stdout", log_bytes), err: OutputFile(log, "stderr", log_bytes)}
        self.lost_output = False

    @property
    def handles(self) -> list[int]:
        """Descriptors to wait on."""
        return [*self._outputs, *([self._launch_fd] if self._launch_fd >= 0 else [])]

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


def close_inherited(keep: int) -> None:
    """Close every descriptor above the standard ones except ``keep``."""
    os.closerange(3, keep)
    os.closerange(keep + 1, OPEN_FILES)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _become_command(
    cell: Cell,
    command: Sequence[str],
    environment: Mapping[str, str],
    bound: Callable[[], None],
    writers: list[int],
    parent: int,
) -> None:
    """In the child: take descriptors, limits and user, then turn into the sandbox. Never returns."""
    try:
        os.setsid()
        plain, script = split_environment(environment)
        filters = [syscall_filter() or b""] if cell.isolation.bwrap and cell.isolation.filters_calls else []
        _take_descriptors([*writers, *map(held_in_memory, [script, *filters])])
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
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # Python ignores some (PIPE, XFSZ), and an ignored signal stays so
    os.umask(0o022)
