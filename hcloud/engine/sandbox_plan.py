"""A keeper's side of the process that makes its sandboxes (``sandbox_maker``)."""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hcloud.engine import sandbox_maker
from hcloud.engine.prepared_roots import PreparedRoot
from hcloud.engine.sandbox_maker import LENGTH, NODEV, NOSUID, RDONLY, SYS_CLONE
from hcloud.engine.syscall_filter import syscall_filter

ANSWER_S = 30.0
"""A maker that does not answer in this time is given up, with the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPlan:
    """A sandbox, and the command that is to run in it."""

    root: PreparedRoot
    files: Path
    """The unit's own files: ``job``, ``home`` and ``tmp``."""
    uid: int
    has_own_network: bool
    groups: Sequence[str]
    """Directories of control groups to enter."""
    file_bytes: int
    """Largest file that may be written."""
    command: Sequence[str]
    environment: Mapping[str, str]

    def encode(self) -> bytes:
        """Return it as ``sandbox_maker`` reads it."""
        fields = [str(self.root.path), str(self.files), str(self.uid), str(self.file_bytes)]
        fields.append(str(int(self.has_own_network)))
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        for each in (self.root.mounted, self.groups, self.command, variables):
            fields += [str(len(each)), *each]
        return os.fsencode("\0".join(fields))


class SandboxMaker:
    """The maker of one keeper: a child of it, as its sandboxes are. ``pid`` is 0 once it was collected."""

    def __init__(self, *, filters_calls: bool) -> None:
        """Start it, which takes longer than one sandbox saves. Raises OSError."""
        program = (syscall_filter() or b"") if filters_calls else b""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_S)
        search = f"import sys; sys.path[:0] = {[str(Path(__file__).parents[2])]!r}; "
        start = f"{search}from hcloud.engine.sandbox_maker import main; main()"
        arguments = [sys.executable, "-I", "-S", "-B", "-c", start, "3", str(SYS_CLONE[platform.machine()])]
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)] if theirs.fileno() != 3 else []
        try:
            self.pid = os.posix_spawn(
                sys.executable, arguments, {}, file_actions=actions, setsid=True, setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )  # fmt: skip
        finally:
            theirs.close()
        self._send(program)

    def start(self, plan: SandboxPlan, outputs: Sequence[int], reports: int) -> int:
        """Start a command in a sandbox of its own; return the id of the first process inside, which ends as it does.

        ``outputs``: descriptors of its standard output and error. ``reports``: a pipe that is closed once the command
        runs, or has ``missing`` written to it. The sandbox ends with the calling process.

        Raises:
            BrokenPipeError: the maker is gone, and has made nothing.
            OSError: there is no sandbox, or one that ends with this process.
        """
        if self._socket.fileno() < 0:
            raise BrokenPipeError("it was closed")
        self._send(plan.encode(), *outputs, reports)
        answer = b""
        while len(answer) < LENGTH.size:
            part = self._socket.recv(LENGTH.size - len(answer))
            if not part:
                raise ConnectionResetError("what makes sandboxes has ended")
            answer += part
        (pid,) = LENGTH.unpack(answer)
        if not pid:
            raise OSError("no process could be made for a sandbox")
        return int(pid)

    def close(self) -> None:
        """Have it end."""
        self._socket.close()

    def _send(self, content: bytes, *handles: int) -> None:
        socket.send_fds(self._socket, [LENGTH.pack(len(content))], handles)
        self._socket.sendall(content)


def children_of_this_process() -> set[int] | None:
    """Return the ids of the children of this process's only thread, also of those that have ended; None: the kernel
    does not say."""
    try:
        handle = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return {int(pid) for pid in os.read(handle, 1 << 16).split()}
    finally:
        os.close(handle)


def can_make_sandboxes() -> bool:
    """Return whether sandboxes can be made in this way here (found out by trying)."""
    if os.geteuid() != 0 or platform.machine() not in SYS_CLONE or children_of_this_process() is None:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            sandbox_maker.enter_namespaces(has_own_network=True)
            sandbox_maker.bind("/usr", "/usr", RDONLY | NOSUID | NODEV)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
