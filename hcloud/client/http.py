"""HTTP with the standard library, over a Unix socket or TLS: an HTTP library costs most of a short command's time."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from hcloud.core.errors import error_text

if TYPE_CHECKING:
    import ssl


class TransportError(Exception):
    """A request got no answer. ``connected``: whether the connection had been made; the cause is chained."""

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status_code: int
    headers: Mapping[str, str]
    """By name in lower case."""
    content: bytes

    @property
    def text(self) -> str:
        """The content as UTF-8; what is none is replaced."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Return the content as JSON. Raises ValueError."""
        return json.loads(self.content)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("hcloud", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """Sends requests to one server, each over a connection of its own."""

    url: str
    socket_path: Path | None = None
    """Connect there instead of to the URL's host."""
    headers: Mapping[str, str]
    """Sent with every request."""
    tls: ssl.SSLContext | None = None
    """None: trust the system's authorities."""

    def request(
        self, method: str, path: str, *, parameters: Mapping[str, Any] | None = None, body: Any = None,
        content: Iterable[bytes] | None = None, headers: Mapping[str, str] | None = None, timeout_s: float,
    ) -> Response:  # fmt: skip
        """Send a request with a JSON ``body`` or raw ``content`` and return the answer.

        Raises:
            TransportError: there was no connection, no answer in time, or no whole one.
        """
        target = urlsplit(self.url).path + quote(path, safe="/%:,~")
        given = [(name, _text(each)) for name, value in (parameters or {}).items() for each in _several(value)]
        if given:
            target += f"?{urlencode(given)}"
        sent = {**self.headers, **(headers or {}), "Connection": "close"}
        payload: Any = content
        if body is not None:
            payload, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection, connected = self._connection(timeout_s), False
        try:
            connection.connect()
            connected = True
            connection.request(method, target, body=payload, headers=sent)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, names, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(error_text(error), connected=connected) from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.socket_path is not None:
            return _UnixConnection(self.socket_path, timeout_s)
        server = urlsplit(self.url)
        return http.client.HTTPSConnection(server.hostname or "", server.port, timeout=timeout_s, context=self.tls)


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
