"""Limits on connections: how many one user or address may hold, and how long the head of a request may take."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import struct
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hcloud.api.auth import SocketPeer

HEAD_TIMEOUT_S = 10.0
"""Time for the head of a request, from the connection or its first byte."""
CONNECTIONS_MAX = 4096
"""Connections of one listener, as far as the process may open files."""
PEER_SHARE = 4
"""One user or address may hold one in so many of them."""
_UCRED = struct.Struct("3i")


def peer_of(connection: socket.socket) -> SocketPeer:
    """Return the process at the other end of a Unix socket. The kernel sets it; the client cannot."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return SocketPeer(pid=pid, uid=uid, gid=gid)


class LimitedListener(socket.socket):
    """A listening socket that closes connections beyond the limits. Root has none."""

    def __init__(self, listener: socket.socket, connections_max: int | None = None) -> None:
        """Take over ``listener``."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # A third: there are two listeners, and the daemon itself opens files.
        self._most = connections_max or min(CONNECTIONS_MAX, files // 3)
        self._held: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that is within the limits. Raises BlockingIOError: there is none now."""
        while True:
            connection, address = super().accept()
            try:
                peer = self._peer(connection, address)
            except OSError:  # it has gone already
                connection.close()
                continue
            is_full = self._held.total() >= self._most or self._held[peer] >= max(1, self._most // PEER_SHARE)
            if peer and is_full:
                connection.close()
                continue
            self._held[peer] += bool(peer)
            return _Counted(connection, self._held, peer), address

    def _peer(self, connection: socket.socket, address: Any) -> str:
        if self.family == socket.AF_UNIX:
            uid = peer_of(connection).uid
            return "" if uid == 0 else str(uid)
        host = ipaddress.ip_address(address[0])
        # One machine has a whole network of version 6.
        return str(host) if host.version == 4 else str(ipaddress.ip_network(f"{host.exploded}/64", strict=False))


class _Counted(socket.socket):
    """A connection that counts until it is closed."""

    def __init__(self, connection: socket.socket, held: Counter[str], peer: str) -> None:
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self._counts, self._peer = held, peer

    def close(self) -> None:
        """Close it, once."""
        if self.fileno() >= 0 and self._peer:
            self._counts[self._peer] -= 1
            if not self._counts[self._peer]:
                del self._counts[self._peer]
        super().close()


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with the kernel's identification of a Unix socket's peer as ``peer`` in the scope's state."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the peer's credentials once per connection."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.app_state = {**self.app_state, "peer": peer_of(connection)}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; a request's head that is begun must be complete in time."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; where an answer is already over, only close the connection."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
