"""Count processor events of processes (``perf_event_open``): instructions, where the machine supports it.

Virtual machines rarely do. ``counted`` then raises Unmeasurable, and another measure of performance is used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.errors import Unmeasurable

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_TIMES = 1 | 2
"""Read format: with each count, how long it was enabled and how long a hardware counter was available (both in ns)."""
_CLOSE_ON_EXEC = 1 << 3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """An event to count: type and number as in ``perf_event_open(2)``."""

    name: str
    kind: int
    number: int


INSTRUCTIONS = Countable(name="instructions", kind=0, number=1)
TASK_CLOCK = Countable(name="task-clock", kind=1, number=1)
"""CPU time in ns, counted by the kernel itself and therefore available on every machine."""


class PerfCounter:
    """Counts for a set of threads, and for all threads and processes they start later."""

    def __init__(self, handles: list[int]) -> None:
        """Own these open counters (file descriptors), one per thread."""
        self._handles = handles

    def total(self) -> float:
        """Return the count so far, scaled up where the processor had to multiplex its counters."""
        found = 0.0
        for handle in self._handles:
            count, wanted_ns, counted_ns = struct.unpack("QQQ", os.read(handle, 24))
            found += count * wanted_ns / counted_ns if counted_ns else 0.0
        return found


def can_count(what: Countable) -> bool:
    """Return whether this machine can count the event."""
    try:
        with counted([os.getpid()], what):
            return True
    except Unmeasurable:
        return False


@contextmanager
def counted(processes: Iterable[int], what: Countable) -> Iterator[PerfCounter]:
    """Count an event for processes, all their threads and children, while a block lasts.

    Raises Unmeasurable if this machine does not support it, denies access, or no process is alive.
    """
    handles: list[int] = []
    try:
        for thread in _threads(processes):
            handle = _opened(thread, what)
            if handle is not None:
                handles.append(handle)
        if not handles:
            raise Unmeasurable(f"{what.name} could not be counted: the program had ended")
        yield PerfCounter(handles)
    finally:
        for handle in handles:
            os.close(handle)


def _threads(processes: Iterable[int]) -> Iterator[int]:
    for process in processes:
        try:
            yield from (int(name) for name in os.listdir(f"/proc/{process}/task"))
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue


def _opened(thread: int, what: Countable) -> int | None:
    """Return a descriptor, or None for a thread that has ended."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise Unmeasurable(f"{what.name} cannot be counted on {platform.machine()} by this HCloud")
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    asked = struct.pack("IIQQQQQIIQ", what.kind, 64, what.number, 0, 0, _TIMES, flags, 0, 0, 0)
    handle = _libc.syscall(number, asked, thread, -1, -1, _CLOSE_ON_EXEC)
    if handle >= 0:
        return int(handle)
    error = ctypes.get_errno()
    if not Path(f"/proc/{thread}").exists():
        return None
    raise Unmeasurable(f"this machine does not count {what.name}: {os.strerror(error)}")
