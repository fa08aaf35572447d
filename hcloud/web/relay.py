"""``hcloud web``: shows one user the pages in a browser on the same machine, as a browser cannot open a Unix socket.

It listens on 127.0.0.1, where any user of the machine and any web page may knock. So it admits only who opens its
address with a token that works once, then by cookie, and only requests that name that address.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import h11
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hcloud.web.headers import FORM_BYTES_MAX, RELAYED_SESSION, SAFE_METHODS, cookie_of, with_headers

START_PATH = "/start"
CONNECT_S = 10.0
HEAD_S = 120.0
"""The longest a page may take; reports of long logs take a while."""
_PASSED_ON = (b"accept", b"content-type", b"hx-request", b"hx-target", b"hx-current-url", b"last-event-id", b"origin")
_PASSED_BACK = frozenset(
    {
        *("content-type", "content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"),
        *("cross-origin-opener-policy", "cross-origin-resource-policy", "location", "hx-redirect", "retry-after"),
        "x-accel-buffering",
    }
)
_SECTIONS = frozenset({"jobs", "machines", "applications", "money", "static", "live"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonAddress:
    """Where the daemon is: a socket, or host and port over TLS with a token."""

    socket: Path | None = None
    host: str = "hcloud"
    port: int = 443
    tls: ssl.SSLContext | None = None
    token: str = field(default="", repr=False)


@dataclass(slots=True)
class WebRelay:
    """An ASGI application that passes a browser's requests on to the daemon."""

    daemon: DaemonAddress
    port: int
    """The port on 127.0.0.1 at which this is served."""
    start_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Opens the pages once."""
    _is_used: bool = False
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def start_url(self) -> str:
        """The address to open."""
        return f"http://127.0.0.1:{self.port}{START_PATH}?token={self.start_token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie; cookies of different ports are not kept apart by browsers."""
        return f"hcloud-{self.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = self._refusal(request) or await self._answer(request)
        await response(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to who may not come in; None: they may."""
        if request.headers.get("host", "") not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            # A name of somebody else's that leads here: their page must not read ours.
            return _page(421, "Wrong address", f"open http://127.0.0.1:{self.port}/ as 'hcloud web' printed it")
        origin = request.headers.get("origin")
        if (
            request.method not in SAFE_METHODS
            and origin is not None
            and urlsplit(origin).netloc != request.headers["host"]
        ):
            return _page(403, "Not allowed", "this form was sent by a page of another site")
        if request.scope["path"] == START_PATH:
            return self._start(request)
        if not hmac.compare_digest(cookie_of(request.scope, self.cookie).encode(), self._session.encode()):
            return _page(401, "Not open to you", "open the address that 'hcloud web' printed; it works once")
        return None

    def _start(self, request: Request) -> Response:
        """Exchange the token for a cookie, once."""
        if hmac.compare_digest(cookie_of(request.scope, self.cookie).encode(), self._session.encode()):
            return with_headers(RedirectResponse("/", status_code=303))
        given = parse_qs(request.url.query).get("token", [""])[0]
        if self._is_used or not hmac.compare_digest(given.encode(), self.start_token.encode()):
            why = "this address was used already" if self._is_used else "this is not the address that was printed"
            return _page(401, "Not open to you", f"{why}; stop 'hcloud web' and start it again for a new one")
        self._is_used = True
        response = with_headers(RedirectResponse("/", status_code=303))
        response.set_cookie(self.cookie, self._session, path="/", httponly=True, samesite="strict")
        return response

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        if path != "/" and path.removeprefix("/").partition("/")[0] not in _SECTIONS:
            return _page(404, "Not found", f"there is no page {path}")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                return _page(413, "Too large", f"a form has {FORM_BYTES_MAX} bytes at most")
        try:
            return await self._relayed(request, body)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            why = str(error) or type(error).__name__
            return _page(503, "The daemon does not answer", f"{why}; this page works again once it does")

    async def _relayed(self, request: Request, body: bytes) -> Response:
        connection = DaemonConnection(*await asyncio.wait_for(self._connect(), CONNECT_S))
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            head = await asyncio.wait_for(connection.ask(request, body, self._own_headers()), HEAD_S)
            on_error.pop_all()
        decoded = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in head.headers]
        headers = {name: value for name, value in decoded if name in _PASSED_BACK}
        return StreamingResponse(connection.content(), status_code=head.status_code, headers=headers)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        daemon = self.daemon
        if daemon.socket is not None:
            return await asyncio.open_unix_connection(str(daemon.socket))
        return await asyncio.open_connection(daemon.host, daemon.port, ssl=daemon.tls)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        # Not the cookie itself: the daemon needs to know browsers apart, no more.
        session = hashlib.sha256(self._session.encode()).hexdigest().encode()
        headers = [(b"connection", b"close"), (RELAYED_SESSION, session)]
        if self.daemon.token:
            headers.append((b"authorization", f"Bearer {self.daemon.token}".encode()))
        return headers


@dataclass(slots=True)
class DaemonConnection:
    """One request to the daemon and its answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _protocol: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def ask(self, request: Request, body: bytes, own: list[tuple[bytes, bytes]]) -> h11.Response:
        """Send a request, and return the head of the answer. Raises OSError, h11.ProtocolError."""
        given = {name: value for name, value in request.scope["headers"] if name in _PASSED_ON}
        headers = [(b"host", request.headers["host"].encode()), *given.items(), *own]
        if request.method not in SAFE_METHODS:
            headers.append((b"content-length", str(len(body)).encode()))
        target = request.scope["raw_path"] + (b"?" + request.scope["query_string"] if request.url.query else b"")
        self._send(h11.Request(method=request.method, target=target, headers=headers))
        if body:
            self._send(h11.Data(data=body))
        self._send(h11.EndOfMessage())
        await self.writer.drain()
        while not isinstance(event := await self._next(), h11.Response):
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the daemon closed the connection")
        return event

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer as it comes."""
        try:
            while isinstance(event := await self._next(), h11.Data):
                yield bytes(event.data)
        except (OSError, h11.ProtocolError):  # the daemon stopped: the browser asks again
            return
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.writer.close()

    def _send(self, event: h11.Event) -> None:
        self.writer.write(self._protocol.send(event) or b"")

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self.reader.read(65536))
        return event  # type: ignore[return-value]


def _page(status: int, heading: str, sentence: str) -> Response:
    """Return a page of this program, which needs nothing else."""
    return with_headers(
        HTMLResponse(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(heading)} · HCloud</title>'
            f"<main><h1>{escape(heading)}</h1><p>{escape(sentence)}</p></main></html>",
            status_code=status,
        )
    )
