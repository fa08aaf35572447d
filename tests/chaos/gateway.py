"""A gateway before a fake cloud, over real HTTP: calls fail, hang or lie there, and daemons die at it.

It carries requests to the fake unchanged, and counts them by the name of the call. One :class:`Trouble` at a time
befalls chosen calls.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, str, bytes]
"""Status, content type, content."""


class Kind(StrEnum):
    """What becomes of a call."""

    FAILS = "fails"  # an internal error; nothing was done
    HANGS = "hangs"  # no answer until the client gives up; nothing was done
    LOST = "is lost"  # the same, but it was carried out
    LIES = "lies"  # carried out, and answered by an internal error
    PARTIAL = "is partial"  # carried out, and the answer holds only part of it and says so (lists)
    DENIES = "denies"  # carried out, and answered by what says for certain that it was not


class Death(StrEnum):
    """When the daemon is killed."""

    NEVER = "never"
    ARRIVES = "as it arrives"  # before it is carried out
    ANSWERED = "as it is answered"  # after it was carried out, before anybody hears of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """From its ``occurrence`` (0: the first) on, ``times`` calls meet ``kind``.

    Where it kills, that occurrence does, and the next ``times`` calls of ``then`` meet the kind.
    """

    call: str
    occurrence: int
    kind: Kind
    death: Death = Death.NEVER
    times: int = 1
    then: str = ""

    def kills(self, call: str, occurrence: int) -> bool:
        """Whether the daemon dies of this call."""
        return self.death is not Death.NEVER and (call, occurrence) == (self.call, self.occurrence)

    def strikes(self, call: str, occurrence: int, deaths: int, struck: int) -> bool:
        """Whether this call meets the kind of trouble, after so many deaths and calls that met it."""
        if self.death is not Death.NEVER:
            return bool(deaths) and call == (self.then or self.call) and struck < self.times
        return call == self.call and self.occurrence <= occurrence < self.occurrence + self.times


class Gateway:
    """The server, in a thread of this process; ``kill`` ends the daemon that is calling."""

    def __init__(
        self,
        upstream: str,
        name_of: Callable[[str, str, Mapping[str, str], bytes], str],
        error_of: Callable[[str, Kind, Mapping[str, str]], Answer],
        partial_of: Callable[[bytes], bytes],
    ) -> None:
        self.upstream = upstream
        self.name_of, self.error_of, self.partial_of = name_of, error_of, partial_of
        self.trouble: Trouble | None = None
        self.kill: Callable[[], None] = lambda: None
        self.counts: Counter[str] = Counter()
        self.struck = 0
        self.deaths = 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        gateway = self

        class Handler(_Handler):
            fronts = gateway

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="gateway")
        self._thread.start()

    def reset(self, trouble: Trouble | None, kill: Callable[[], None]) -> None:
        """Begin anew, with other trouble."""
        self.released.set()
        self.released = threading.Event()
        with self._lock:
            self.trouble, self.kill = trouble, kill
            self.counts.clear()
            self.struck = self.deaths = 0

    def close(self) -> None:
        """Stop serving."""
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def meet(self, call: str) -> tuple[Kind | None, Death]:
        """Count a call; return what befalls it."""
        with self._lock:
            occurrence = self.counts[call]
            self.counts[call] += 1
            trouble = self.trouble
            if trouble is None:
                return None, Death.NEVER
            if trouble.kills(call, occurrence):
                self.deaths += 1
                return None, trouble.death
            if trouble.strikes(call, occurrence, self.deaths, self.struck):
                self.struck += 1
                return trouble.kind, Death.NEVER
            return None, Death.NEVER


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that are killed break off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    fronts: Gateway

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def serve(self) -> None:
        """Carry one request on, or do to it what is to befall it."""
        gateway, path = self.fronts, urlsplit(self.path).path
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = dict(self.headers.items())
        call = gateway.name_of(self.command, path, headers, content)
        kind, death = gateway.meet(call) if call else (None, Death.NEVER)
        if death is Death.ARRIVES or kind in (Kind.HANGS, Kind.FAILS):
            self._without_effect(gateway, death, kind, call, headers)
            return
        status, told, answer = self._carried_out(headers, content)
        if death is Death.ANSWERED:
            gateway.kill()
            self.close_connection = True
        elif kind is Kind.LOST:
            gateway.released.wait(30)
            self.close_connection = True
        elif kind is Kind.PARTIAL:
            self._reply(status, told.get("Content-Type", ""), gateway.partial_of(answer), told)
        elif kind is not None:
            self._reply(*gateway.error_of(call, kind, headers), {})
        else:
            self._reply(status, told.get("Content-Type", ""), answer, told)

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = serve

    def _without_effect(
        self, gateway: Gateway, death: Death, kind: Kind | None, call: str, headers: Mapping[str, str]
    ) -> None:
        if death is Death.ARRIVES:
            gateway.kill()
        elif kind is Kind.FAILS:
            self._reply(*gateway.error_of(call, kind, headers), {})
            return
        else:
            gateway.released.wait(30)
        self.close_connection = True

    def _carried_out(self, headers: Mapping[str, str], content: bytes) -> tuple[int, Mapping[str, str], bytes]:
        where = urlsplit(self.fronts.upstream)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
        try:
            passed = {key: value for key, value in headers.items() if key.lower() != "connection"}
            connection.request(self.command, self.path, content or None, passed)
            assert connection.sock is not None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = connection.getresponse()
            return answer.status, dict(answer.headers.items()), answer.read()
        finally:
            connection.close()

    def _reply(self, status: int, kind: str, content: bytes, told: Mapping[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for key, value in told.items():
                if key.lower() not in ("connection", "content-length", "content-type", "date", "server"):
                    self.send_header(key, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
