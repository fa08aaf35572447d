"""Small programs that each feel pressure on one resource: ``victims.py KIND`` reads seconds, prints rates.

A stand-alone program using only the standard library, so that it can be moved into groups and namespaces before it
runs. Its files are created unlinked in its directory.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from collections.abc import Callable

BLOCK = 1 << 20
STREAM_BYTES = 32 << 20


def cpu() -> Callable[[], object]:
    """Integer arithmetic that stays in the registers and the nearest cache."""
    return lambda: sum(range(20_000))


def memory() -> Callable[[], object]:
    """Streaming copy, larger than most shares of a last level cache."""
    source, target = memoryview(bytearray(STREAM_BYTES)), memoryview(bytearray(STREAM_BYTES))
    source[:: mmap.PAGESIZE] = bytes(len(source[:: mmap.PAGESIZE]))

    def copy() -> None:
        target[:] = source

    return copy


def disk() -> Callable[[], object]:
    """Write one block with direct I/O if the file system supports it, otherwise synchronously."""
    try:
        handle = os.open("victim", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        handle = os.open("victim", os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o600)
    os.unlink("victim")
    block = mmap.mmap(-1, BLOCK)  # page-aligned, as direct writing requires
    return lambda: os.pwrite(handle, block, 0)


def network() -> Callable[[], object]:
    """Send a block to itself over TCP on the loopback interface."""
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    message, room = bytes(16 << 10), bytearray(16 << 10)

    def exchange() -> None:
        near.sendall(message)
        left = len(message)
        while left:
            left -= far.recv_into(room, left)

    return exchange


KINDS = {"cpu": cpu, "memory": memory, "disk": disk, "network": network}


def main(kind: str) -> None:
    """For every line of standard input, a number of seconds: repeat the operation for that long, print its rate."""
    operation = KINDS[kind]()
    operation()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, count, began = float(line), 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            operation()
            count += 1
        print(max(count, 1) / taken, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
