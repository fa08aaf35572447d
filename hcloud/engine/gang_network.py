"""A network of its own for the ranks of a gang. On one host it is a loopback that they share, and nothing else; across
hosts see :mod:`hcloud.engine.gang_tunnel`.

The keeper of rank 0 makes a network namespace, and passes it to the keepers of the other ranks through an abstract Unix
socket. Its name is made of the attempt's certificate, so that nothing else on the host knows it, and both ends check
that the other is root. The namespace goes with the last process in it; no file is left.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from hcloud.core.errors import UnitRefused
from hcloud.core.processes import raise_loopback
from hcloud.engine.gang_tunnel import TUNNEL, TunnelKind, gang_tunnel
from hcloud.provider import UnitSpec

MEET_S, LOOK_S = 3600.0, 0.2
"""So long the other ranks wait for the first, whose set-up may take its time, and so often they look."""
GREETING_S = 5.0
_CREDENTIALS = struct.Struct("3i")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class GangNetwork(NamedTuple):
    """What a rank enters."""

    path: str = ""
    """Of its network namespace; empty: it has what other units have."""
    program: int | None = None
    """Process id of a child of this process without which the network is lost; None: there is none."""


def is_one_host(addresses: Sequence[str]) -> bool:
    """Return whether the ranks at ``addresses`` are all on this host."""
    return all(map(_is_loopback, addresses))


def why_not_reachable(addresses: Sequence[str]) -> str:
    """Return why ranks at ``addresses`` cannot reach each other; empty if they may."""
    if is_one_host(addresses) or not any(map(_is_loopback, addresses)):
        return ""
    return "its nodes are on machines of different providers, some of which have no address; set placement.labels"


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


@contextmanager
def gang_network(spec: UnitSpec, is_stopped: Callable[[], bool], tunnel: TunnelKind) -> Iterator[GangNetwork]:
    """Yield what a rank enters, while this process lives: a namespace that all ranks share, or across hosts one of its
    own that ``tunnel`` connects to theirs.

    ``is_stopped``: whether the unit is asked to end; the path may be empty then. Raises UnitRefused: there is none, or
    rank 0 never came.
    """
    if not is_one_host(spec.addresses):
        own = _made()
        try:
            with gang_tunnel(spec.id, spec.env[TUNNEL], tunnel, own) as program:
                yield GangNetwork(f"/proc/{os.getpid()}/fd/{own}", program)
        finally:
            os.close(own)
        return
    name = b"\0hcloud-gang-" + hashlib.sha256(spec.env["HCLOUD_GANG_PEM"].encode()).hexdigest()[:40].encode()
    if spec.rank:
        received = _received(name, is_stopped)
        if received is None:
            yield GangNetwork()
            return
        try:
            yield GangNetwork(f"/proc/{os.getpid()}/fd/{received}")
        finally:
            os.close(received)
        return
    network = _made()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(len(spec.addresses))
        threading.Thread(target=_serve, args=(listener, network), name="gang network", daemon=True).start()
        yield GangNetwork(f"/proc/{os.getpid()}/fd/{network}")
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        os.close(network)


def _made() -> int:
    """Return a descriptor of a new network namespace whose loopback is up. Raises UnitRefused."""
    theirs, ours = socket.socketpair()
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            ours.close()
            if _libc.unshare(_CLONE_NEWNET) == 0:
                raise_loopback()
                theirs.send(b"1")
                theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        is_made = ours.recv(1) == b"1"
        network = os.open(f"/proc/{child}/ns/net", os.O_RDONLY | os.O_CLOEXEC) if is_made else -1
    os.waitpid(child, 0)
    if network < 0:
        raise UnitRefused("its gang's own network cannot be made: the kernel refuses network namespaces here")
    return network


def _serve(listener: socket.socket, network: int) -> None:
    with suppress(OSError):  # it is closed in the end
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                if _is_root(connection):
                    socket.send_fds(connection, [b"1"], [network])


def _received(name: bytes, is_stopped: Callable[[], bool]) -> int | None:
    """Return a descriptor of the namespace that rank 0 made; None if stopped. Raises UnitRefused: it never came."""
    pause = threading.Event()
    for _ in range(int(MEET_S / LOOK_S)):
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(GREETING_S)
            connection.connect(name)
            if _is_root(connection):
                _, handles, _, _ = socket.recv_fds(connection, 1, 1)
                if handles:
                    os.set_inheritable(handles[0], False)
                    return handles[0]
        if is_stopped():
            return None
        pause.wait(LOOK_S)
    raise UnitRefused("the first rank of its gang never came")


def _is_root(connection: socket.socket) -> bool:
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == 0)
