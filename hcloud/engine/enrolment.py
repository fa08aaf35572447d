"""The gateway's HTTPS port for machines that have no certificate yet: the agent's archives, and certificates.

``GET /agent/<sha256>.tar.gz`` returns an archive, ``POST /certificate`` a certificate (``Admission.certify``). Anybody
may connect, so a connection has a time limit, and each address and all together have a limit on connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import h11

from hcloud.engine.admission import Admission, NotAdmitted, RefusalLog

REQUEST_TIMEOUT_S, DOWNLOAD_TIMEOUT_S = 10.0, 300.0
CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS_MAX = 256, 16
BODY_BYTES_MAX = 64 << 10
_CHUNK_BYTES = 1 << 18
_ARCHIVE = re.compile(r"/agent/([0-9a-f]{64})\.tar\.gz")


class EnrolmentServer:
    """Serves the port in the running event loop."""

    def __init__(
        self,
        admission: Admission,
        archives: Path | None,
        tls: ssl.SSLContext,
        on_refusal: Callable[[str], None],
        log: RefusalLog,
    ) -> None:
        """``archives``: directory of the agent's archives. ``on_refusal`` is called with the kind of each refusal."""
        self._admission, self._archives, self._tls, self._on_refusal = admission, archives, tls, on_refusal
        self._log = log
        self._open: Counter[str] = Counter()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Begin to listen; the connections' handshakes are limited like all else. Raises OSError."""
        return await asyncio.start_server(self._take, host, port, limit=BODY_BYTES_MAX, backlog=1024)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, unless there are too many: TLS begins here, so that strangers cannot hold more."""
        address = str(writer.get_extra_info("peername", ("",))[0])
        if self._open.total() >= CONNECTIONS_MAX or self._open[address] >= CONNECTIONS_OF_ADDRESS_MAX:
            self._on_refusal("connections")
            writer.transport.abort()
            return
        self._open[address] += 1
        try:
            async with asyncio.timeout(DOWNLOAD_TIMEOUT_S):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await writer.start_tls(self._tls)
                    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=BODY_BYTES_MAX)
                    request, body = await _read(connection, reader)
                    status, content = self._answer(request, body, address)
                await _write(connection, writer, status, content)
        except (TimeoutError, OSError, h11.ProtocolError, asyncio.IncompleteReadError, EOFError):
            self._on_refusal("malformed")
        finally:
            self._open[address] -= 1
            self._open += Counter()  # drops zeros
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    def _answer(self, request: h11.Request, body: bytes, address: str) -> tuple[int, bytes | Path]:
        method, target = request.method, request.target.decode("ascii", "replace")
        if method == b"POST" and target == "/certificate":
            try:
                return 200, self._admission.certify(body, address)
            except NotAdmitted as refusal:
                if not refusal.again:
                    self._on_refusal("certificate")
                    self._log.write(f"{address} gets no certificate: {refusal}")
                return 503 if refusal.again else 403, f"{refusal}\n".encode()
        if method == b"GET" and (archive := _ARCHIVE.fullmatch(target)) and self._archives is not None:
            path = self._archives / f"{archive[1]}.tar.gz"
            return (200, path) if path.is_file() else (404, b"there is no such archive\n")
        self._on_refusal("request")
        return 404, b"there are only /agent/SHA256.tar.gz and /certificate\n"


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes]:
    request, body = None, b""
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise EOFError("the body is too large")
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request, body
        else:
            raise EOFError("the connection was closed")


async def _write(connection: h11.Connection, writer: asyncio.StreamWriter, status: int, content: bytes | Path) -> None:
    length = len(content) if isinstance(content, bytes) else content.stat().st_size
    headers = [("Content-Length", str(length)), ("Connection", "close")]
    writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
    async for piece in _pieces(content):
        writer.write(connection.send(h11.Data(data=piece)) or b"")
        await writer.drain()
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def _pieces(content: bytes | Path) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece
