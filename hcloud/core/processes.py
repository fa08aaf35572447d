"""Child processes, and what a process has of its own."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
from contextlib import suppress

_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child that was killed, and set its ``returncode``.

    Without ``process.wait``: what a signal's handler raised within it may have left its lock held for ever.
    """
    if process.returncode is None:
        with suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def raise_loopback() -> None:
    """Switch on the loopback of the calling process's network namespace. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
