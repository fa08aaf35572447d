"""Waiting for a change in unit directories (inotify), with a slow poll where the kernel gives no watch."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Set
from pathlib import Path

_IN_MOVED_TO, _IN_MOVED_FROM, _IN_Q_OVERFLOW = 0x80, 0x40, 0x4000
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, and length of the name that follows."""
UNWATCHED_POLL_S = 0.25
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Notices files that are renamed into place (as all records are) and directories that come or go."""

    def __init__(self, units: Path) -> None:
        self._units = units
        self._handle = -1
        self._watched: dict[Path, int] = {}
        self._changed = set[int]()
        """Numbers of watches of which something was noticed since that was taken last."""
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._units_at = 0

    async def wait(self, live: Iterable[Path], timeout_s: float, others: Iterable[Path] = ()) -> bool:
        """Return at the next change (True) or after ``timeout_s``, then saying whether units came or went unwatched.

        ``others`` are watched as well, but never polled.
        """
        wanted = {self._units, *live}
        self._watch(wanted.union(others))
        if self._handle < 0 and len(wanted) > 1:
            timeout_s = min(timeout_s, UNWATCHED_POLL_S)
        if not self._woken:
            await self._sleep(timeout_s)
        changed = self._woken or self._units_changed()
        self._woken = False
        return changed

    def take_unchanged(self) -> Set[Path]:
        """Return the directories in which nothing was renamed since this was asked last; those that are not watched
        may have changed."""
        changed, self._changed = self._changed, set()
        return {path for path, number in self._watched.items() if number not in changed}

    async def _sleep(self, timeout_s: float) -> None:
        """Wait to be woken. A timer and a future: ``wait_for`` makes a task each time, and hundreds of workers wait."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._rouse)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _units_changed(self) -> bool:
        before, self._units_at = self._units_at, os.stat(self._units).st_mtime_ns
        return before != self._units_at

    def wake(self) -> None:
        """Have the present, or the next, wait return at once."""
        self._woken = True
        self._rouse()

    def wake_unwatched(self) -> None:
        """The same where the kernel gives no watch, which would have noticed any change."""
        if self._handle < 0:
            self.wake()

    def close(self) -> None:
        """Close the watches."""
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
            self._watched.clear()

    def _watch(self, wanted: set[Path]) -> None:
        if self._handle < 0:
            self._handle = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._handle < 0:  # too many watchers on this host: the poll does it alone
                return
            asyncio.get_running_loop().add_reader(self._handle, self._wake)
        for path in wanted - self._watched.keys():
            number = _libc.inotify_add_watch(self._handle, os.fsencode(path), _IN_MOVED_TO | _IN_MOVED_FROM)
            if number >= 0:
                self._watched[path] = number
                self._changed.add(number)
                self._woken = True  # what happened before the watch stood is looked at once more
        for path in self._watched.keys() - wanted:
            _libc.inotify_rm_watch(self._handle, self._watched.pop(path))

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._handle, 1 << 16):
                self._note(events)
                self.wake()

    def _note(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            number, mask, _, name_bytes = _EVENT.unpack_from(events, at)
            at += _EVENT.size + name_bytes
            self._changed.add(number)
            if mask & _IN_Q_OVERFLOW:
                self._changed.update(self._watched.values())
