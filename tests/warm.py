"""``hcloud`` commands in processes of their own, forked from one that has imported everything already.

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
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

PROGRAM = "hcloud.cli.main"
_IMPORTED = (
    "rich.live",
    "rich.progress",
    "hcloud.wiring",
    "hcloud.spec.jobfile",
    "hcloud.cli.follow",
    "hcloud.cli.client",
)


class WarmProgram:
    """Runs commands one after the other; started with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._near: socket.socket | None = None

    def run(
        self, arguments: tuple[str, ...], *, cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end, with nothing to read on its standard input."""
        near = self._open()
        order = {"arguments": arguments, "cwd": str(cwd), "environment": dict(environment)}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            near.settimeout(timeout_s)
            try:
                socket.send_fds(near, [json.dumps(order).encode()], [out.fileno(), err.fileno()])
                answer = near.recv(64)
            except TimeoutError:
                self.close()
                raise
            assert answer, "the process that all commands are forked from has ended"
            shown, complained = (_all_of(file) for file in (out, err))
        return subprocess.CompletedProcess(arguments, int(answer), shown, complained)

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
            command = [sys.executable, "-m", "tests.warm", str(far.fileno())]
            root = Path(__file__).parents[1]
            self._process = subprocess.Popen(
                command, cwd=root, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
            far.close()
        return self._near


WARM = WarmProgram()
"""The one of this process; ended with the session of tests."""


def _all_of(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def _serve(far: socket.socket) -> None:
    """Fork a command for each order, until the other side has gone."""
    while True:
        order, handles, _, _ = socket.recv_fds(far, 2**20, 2)
        if not order:
            return
        child = os.fork()
        if not child:
            far.close()
            _become(json.loads(order), handles)
        for handle in handles:
            os.close(handle)
        far.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _become(order: dict[str, object], handles: list[int]) -> None:
    """Run the program as ``python -m`` would. Never returns."""
    for handle, place in zip(handles, (1, 2), strict=True):
        os.dup2(handle, place)
        os.close(handle)
    assert isinstance(order["environment"], dict)
    assert isinstance(order["arguments"], list)
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    os.chdir(str(order["cwd"]))
    sys.argv = [PROGRAM, *order["arguments"]]
    code: object = 0
    try:
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end touches, and so copies, all that was imported: that costs more than the command.
    os._exit(code if isinstance(code, int) else 1)


def _import_everything() -> None:
    from hcloud.cli.main import COMMANDS

    for name in (*{module for module, _, _ in COMMANDS.values()}, *_IMPORTED):
        importlib.import_module(name)
    sys.modules.pop(PROGRAM)
    gc.collect()
    gc.freeze()  # so that no collection in a fork touches it


if __name__ == "__main__":
    _import_everything()
    _serve(socket.socket(fileno=int(sys.argv[1])))
