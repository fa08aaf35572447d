"""Shows that requests go to one place only: every connection and every look-up of a host name is seen."""

from __future__ import annotations

import socket
from typing import Any

import pytest

LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})


def guard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse, and return a list that will name, every attempt to reach another machine than this one."""
    strayed: list[str] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def watched_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            _refuse_strangers(str(address[0]), strayed)
        connect(self, address)

    def watched_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_strangers(host.decode() if isinstance(host, bytes) else str(host), strayed)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", watched_connect)
    monkeypatch.setattr(socket, "getaddrinfo", watched_look_up)
    return strayed


def _refuse_strangers(host: str, strayed: list[str]) -> None:
    if host not in LOCAL:
        strayed.append(host)
        raise ConnectionRefusedError(f"a test tried to reach {host}")
