"""Repeat a small unit of a reference program's work forever and write how much is done: ``loop.py MODE ...``.

A stand-alone program using only the standard library, copied into a recipe's work directory. One run can then be
measured in windows, with and without interference. Modes (see ``Recipe.loop``)::

    feed FILE COMMAND...      write the file to the command's standard input repeatedly; counts MiB
    repeat COMMAND...         run the command repeatedly; counts runs
    call FILE                 call ``unit()`` of that Python file repeatedly; counts calls
    exchange FILE COMMAND...  start the command as a server, send it the file and read an answer as long as
                              the first one; counts exchanges
"""

from __future__ import annotations

import fcntl
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

PROGRESS = "progress"
EVERY_S = 0.002
CHUNK = 16 << 10
ADDRESS = "server.sock"
PORT = 8080
PATIENCE_S = 20.0
SILENCE_S = 0.2
F_SETPIPE_SZ = 1031


def feed(file: str, command: Sequence[str]) -> Iterator[float]:
    """Write the file to the command's standard input repeatedly; its output is discarded."""
    with open(file, "rb") as stream:
        content = stream.read()
    parts = [memoryview(content)[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdin is not None
        handle = process.stdin.fileno()
        fcntl.fcntl(handle, F_SETPIPE_SZ, 4 * CHUNK)
        while True:
            for part in parts:
                left = part
                while left:
                    left = left[os.write(handle, left) :]
                yield len(part) / (1 << 20)


def repeat(command: Sequence[str]) -> Iterator[float]:
    """Run the command to its end repeatedly."""
    nothing = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, nothing, number) for number in (0, 1)]
    while True:
        child = os.posix_spawnp(command[0], list(command), os.environ, file_actions=actions)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            sys.exit(f"loop: {command[0]} ended with {code}")
        yield 1.0


def call(file: str) -> Iterator[float]:
    """Call ``unit`` of a Python file repeatedly."""
    unit: Callable[[], object] = runpy.run_path(file)["unit"]
    while True:
        unit()
        yield 1.0


def exchange(file: str, command: Sequence[str]) -> Iterator[float]:
    """Send a request to the server that the command starts, and wait for as many bytes as in its first answer."""
    with open(file, "rb") as stream:
        request = stream.read()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        line = _connected(server)
        line.sendall(request)
        answered = len(_whole_answer(line))
        room = bytearray(CHUNK)
        while True:
            line.sendall(request)
            left = answered
            while left > 0:
                got = line.recv_into(room, min(left, CHUNK))
                if got == 0:
                    sys.exit(f"loop: {command[0]} closed the connection")
                left -= got
            yield 1.0


def _connected(server: subprocess.Popen[bytes]) -> socket.socket:
    """Connect to the server's socket file, or to its port, as soon as it listens."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and server.poll() is None:
        for family, address in ((socket.AF_UNIX, ADDRESS), (socket.AF_INET, ("127.0.0.1", PORT))):
            line = socket.socket(family)
            try:
                line.connect(address)
                return line
            except OSError:
                line.close()
        time.sleep(0.02)
    sys.exit("loop: the server does not listen")


def _whole_answer(line: socket.socket) -> bytes:
    """Read until no data arrives for a while."""
    answer = line.recv(CHUNK)
    line.settimeout(SILENCE_S)
    try:
        while more := line.recv(CHUNK):
            answer += more
    except TimeoutError:
        pass
    line.settimeout(None)
    return answer


def main(arguments: Sequence[str]) -> None:
    """Work forever; the progress file holds the amount done so far as one number."""
    mode, *rest = arguments
    work = {
        "feed": lambda: feed(rest[0], rest[1:]),
        "repeat": lambda: repeat(rest),
        "call": lambda: call(rest[0]),
        "exchange": lambda: exchange(rest[0], rest[1:]),
    }[mode]()
    handle = os.open(PROGRESS, os.O_WRONLY | os.O_CREAT, 0o644)
    done, last = 0.0, 0.0
    for amount in work:
        done += amount
        now = time.monotonic()
        if now - last >= EVERY_S:
            os.pwrite(handle, b"%024.6f\n" % done, 0)  # fixed length: readers never see a partial number
            last = now


if __name__ == "__main__":
    main(sys.argv[1:])
