"""Commands in processes of their own, forked from one that has imported everything already.

To start Python and import what a command needs takes most of a second of processor time, and the tests run hundreds of
commands. Here one process per worker of the tests does that once; each command is a fork of it, with its own arguments,
environment, directory and output. That a command imports what it needs by itself, and how it bears signals, is for the
tests that start it anew.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

_IMPORTED = {
    "hcloud.cli.main": (
        "rich.live",
        "rich.progress",
        "hcloud.wiring",
        "hcloud.spec.jobfile",
        "hcloud.cli.follow",
        "hcloud.client.connection",
        "hcloud.client.workdir",
        "providers.mock",
        "scipy.optimize",
        "scipy.special",
    ),
    "lab.papers.__main__": ("scipy.special",),
    "tests.engine.alone": (),
}
"""By program: what it imports besides its commands, and only when it needs it."""


class WarmProcess:
    """A command that goes on, forked from the process of a :class:`WarmProgram`; used like a ``Popen``."""

    def __init__(self, near: socket.socket) -> None:
        self._near = near
        self.pid = int(near.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._near.settimeout(timeout)
            try:
                answer = self._near.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a forked command", timeout or 0) from None
            assert answer, "the process that all commands are forked from has ended"
            self.returncode = int(answer)
            self._near.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class WarmProgram:
    """Starts commands of a program, ``python -m <program>``; their common process starts with the first of them."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._near: socket.socket | None = None

    def run(
        self,
        arguments: tuple[str, ...],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        constants: Mapping[str, float] | None = None,
        one_output: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end, with nothing to read on its standard input.

        ``constants`` are set before, by their full names: waits that are shorter than a user's. With ``one_output``
        errors are written where the output is, in their order.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as other:
            err = out if one_output else other
            process = self.start(arguments, cwd=cwd, environment=environment, out=out, err=err, constants=constants)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            shown, complained = (_all_of(file) for file in (out, other))
        return subprocess.CompletedProcess(arguments, code, shown, complained)

    def start(
        self,
        arguments: tuple[str, ...],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        out: BinaryIO,
        err: BinaryIO,
        constants: Mapping[str, float] | None = None,
    ) -> WarmProcess:
        """Start a command that writes to two files."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "arguments": arguments, "cwd": str(cwd), "environment": dict(environment), "constants": constants or {}
        }  # fmt: skip
        with far:
            socket.send_fds(self._open(), [json.dumps(order).encode()], [out.fileno(), err.fileno(), far.fileno()])
        return WarmProcess(near)

    def close(self) -> None:
        """End the process, and what it runs."""
        if self._near is not None and self._process is not None:
            self._near.close()
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._near = self._process = None

    def _open(self) -> socket.socket:
        if self._near is None:
            self._near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.warm", self.program, str(far.fileno())]
            root = Path(__file__).parents[1]
            self._process = subprocess.Popen(
                command, cwd=root, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
            far.close()
        return self._near


WARM = WarmProgram("hcloud.cli.main")
"""``hcloud``; ended with the session of tests."""
PAPERS = WarmProgram("lab.papers.__main__")
"""``python -m lab.papers``; ended with the session of tests."""
ALONE = WarmProgram("tests.engine.alone")
"""``python -m tests.engine.alone``; ended with the session of tests."""


def _all_of(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def _serve(program: str, orders: socket.socket) -> None:
    """Fork a command for each order, and send its process id and its exit code, until the other side has gone."""
    with selectors.DefaultSelector() as ready:
        ready.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not orders:
                    ready.unregister(key.fileobj)
                    os.close(key.fd)
                    pid, far = key.data
                    _send(far, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    far.close()
                    continue
                sent, files, _, _ = socket.recv_fds(orders, 2**20, 3)
                if not sent:
                    return
                order, far = json.loads(sent), socket.socket(fileno=files.pop())
                if order["arguments"][:1] == ["daemon"]:
                    _prepare_daemons()
                pid = os.fork()
                if not pid:
                    for each in (ready, orders, far):
                        each.close()
                    _become(program, order, files)
                _send(far, pid)
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, far))
                for file in files:
                    os.close(file)


@cache
def _prepare_daemons() -> None:
    """Import what only daemons need, and derive what each of them would derive at its first requests, in 0.2 s."""
    importlib.import_module("hcloud.daemon")
    for route in importlib.import_module("hcloud.api.app").api_routes():
        route.matches({"type": "http", "method": "GET", "path": "/none", "root_path": ""})
    gc.collect()
    gc.freeze()


def _send(far: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # a test that failed has gone already
        far.send(str(number).encode())


def _become(program: str, order: dict[str, object], files: list[int]) -> None:
    """Run the program as ``python -m`` would. Never returns."""
    for file, place in zip(files, (1, 2), strict=True):
        os.dup2(file, place)
        os.close(file)
    assert isinstance(order["environment"], dict)
    assert isinstance(order["arguments"], list)
    assert isinstance(order["constants"], dict)
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    os.chdir(str(order["cwd"]))
    sys.argv = [program, *order["arguments"]]
    for name, value in order["constants"].items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    code: object = 0
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end touches, and so copies, all that was imported: that costs more than the command.
    os._exit(code if isinstance(code, int) else 1)


def _import_everything(program: str) -> None:
    from hcloud.cli.main import COMMANDS

    commands = {module for module, _, _ in COMMANDS.values()} if program == "hcloud.cli.main" else set()
    for name in (*commands, *_IMPORTED[program], program):
        importlib.import_module(name)
    sys.modules.pop(program)
    gc.collect()
    gc.freeze()  # so that no collection in a fork touches it


if __name__ == "__main__":
    _import_everything(sys.argv[1])
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
