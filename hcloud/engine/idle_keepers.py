"""Keepers whose unit has ended, and that keep further ones: a process that is forked anew costs much more.

A keeper keeps one unit at a time, so that its death ends no other. Worker and keeper share a socket. The keeper writes
a byte when its unit has begun, if that runs for long, and one when it is idle; the worker sends it a unit, with the
descriptor of the unit's lock, or closes the socket.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcloud.engine.prepared_roots import PreparedRoot
from hcloud.engine.unit import Unit
from hcloud.engine.wire import unit_from_wire
from hcloud.provider import UnitSpec

KEPT_IDLE_S = 10.0
IDLE_MAX = 64
SEND_TIMEOUT_S = 1.0
"""A keeper that does not take a unit in this time is given up."""
_IDLE, _BEGUN = b"i", b"b"
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class GivenUnit:
    """What a keeper is to keep."""

    unit: Unit
    lock: int
    """Descriptor of the unit's lock, which is held."""
    spec: UnitSpec
    uid: int
    prepared: PreparedRoot | None


class IdleKeepers:
    """The worker's side: sockets of its keepers, idle ones among them."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._busy: dict[socket.socket, tuple[Unit, float]] = {}
        """What each keeps, and since when (monotonic seconds; long ago if that has begun)."""
        self._idle: dict[socket.socket, float] = {}
        """Since when each is idle (monotonic seconds), the longest first."""

    def add(self, ours: socket.socket, unit: Unit) -> None:
        """Take the socket of a new keeper, which keeps ``unit``."""
        ours.settimeout(SEND_TIMEOUT_S)
        self._busy[ours] = unit, time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, self)

    def take(self, ours: socket.socket) -> Unit | None:
        """Read what a keeper says: its unit has begun, it is idle, or it has ended; return the unit that it kept."""
        if ours not in self._busy and ours not in self._idle:
            return None  # dropped just now
        try:
            said = ours.recv(1)
        except OSError:
            said = b""
        if said == _BEGUN and ours in self._busy:
            self._busy[ours] = self._busy[ours][0], -math.inf
            return None
        kept, _ = self._busy.pop(ours, (None, 0.0))
        if said != _IDLE or len(self._idle) >= IDLE_MAX:
            self._drop(ours)
        else:
            self._idle[ours] = time.monotonic()
        return kept

    def starting(self, within_s: float) -> int:
        """Return how many keepers got their unit at most so many seconds ago, which has not begun."""
        since = time.monotonic() - within_s
        return sum(at > since for _, at in self._busy.values())

    def give(self, given: GivenUnit, spec: Mapping[str, Any]) -> bool:
        """Give a unit to an idle keeper; return whether one took it. ``spec`` is the unit's on the wire."""
        prepared = given.prepared
        root = [str(prepared.path), prepared.mounted] if prepared is not None else None
        plain = json.dumps({"path": str(given.unit.path), "spec": spec, "uid": given.uid, "prepared": root}).encode()
        message = len(plain).to_bytes(_LENGTH_BYTES, "big") + plain
        while self._idle:
            ours, _ = self._idle.popitem()  # the one whose memory is warmest
            try:
                sent = socket.send_fds(ours, [message], [given.lock])
                ours.sendall(message[sent:])
            except OSError:  # it was killed, or does not read: without a whole message it ends
                self._drop(ours)
                continue
            self._busy[ours] = given.unit, time.monotonic()
            return True
        return False

    def end_old(self) -> None:
        """End keepers that have been idle for long."""
        for ours, since in list(self._idle.items()):
            if time.monotonic() >= since + KEPT_IDLE_S:
                self._drop(ours)

    def _drop(self, ours: socket.socket) -> None:
        self._busy.pop(ours, None)
        self._idle.pop(ours, None)
        self._selector.unregister(ours)
        ours.close()


def say_begun(worker: socket.socket) -> None:
    """Say that the unit has begun, so that others may."""
    with suppress(OSError):  # the worker is gone
        worker.sendall(_BEGUN)


def next_unit(worker: socket.socket) -> GivenUnit | None:
    """Say that this keeper is idle, and wait for its next unit; None: there will be none."""
    with suppress(OSError):
        worker.sendall(_IDLE)
        head, handles, _, _ = socket.recv_fds(worker, _LENGTH_BYTES, 1)
        plain = _received(worker, int.from_bytes(head + _received(worker, _LENGTH_BYTES - len(head)), "big"))
        if head and handles:
            os.set_inheritable(handles[0], False)
            given = json.loads(plain)
            root = given["prepared"]
            prepared = PreparedRoot(Path(root[0]), tuple(root[1])) if root is not None else None
            return GivenUnit(
                Unit(Path(given["path"])), handles[0], unit_from_wire(given["spec"]), given["uid"], prepared
            )
    return None


def _received(worker: socket.socket, count: int) -> bytes:
    """Return so many bytes. Raises OSError: the worker is gone before."""
    content = bytearray()
    while len(content) < count:
        part = worker.recv(count - len(content))
        if not part:
            raise ConnectionResetError("the worker is gone")
        content += part
    return bytes(content)
