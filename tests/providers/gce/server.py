"""The fake Compute Engine over real HTTP, with the troubles of a network."""

from __future__ import annotations

import json
import socket
import threading
import traceback
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.providers.gce.answers import Refusal
from tests.providers.gce.compute import FakeCompute
from tests.providers.gce.discovery import find

LATE_S = 5.0
TRUTH_PATH = "/truth"
"""A side door for tests: what really is, and machines' renewals."""


class Server:
    """Serves one fake on a port of its own, and can be away: then connections are refused, and the port stays ours.

    A second socket, bound to the port but not listening, keeps it meanwhile.
    """

    def __init__(self, compute: FakeCompute) -> None:
        self.compute = compute
        self.released = threading.Event()
        self.authorizations: set[str] = set()
        self._connections: set[socket.socket] = set()
        self._keeper = _bound(0)
        self.port: int = self._keeper.getsockname()[1]
        self._http: _Http | None = None
        self.come_back()

    @property
    def endpoint(self) -> str:
        """What clients are to be told."""
        return f"http://127.0.0.1:{self.port}"

    def go_away(self) -> None:
        """Refuse connections and break those that are open."""
        http, self._http = self._http, None
        if http is None:
            return
        http.shutdown()
        http.server_close()
        for each in list(self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def come_back(self) -> None:
        """Accept connections again."""
        if self._http is None:
            self._http = _Http(self._listening(), partial(_Handler, self), self.compute.problems)
            threading.Thread(target=self._http.serve_forever, args=(0.01,), name="fake-gce", daemon=True).start()

    def close(self) -> None:
        """Stop for good."""
        self.released.set()
        self.go_away()
        self._keeper.close()

    def opened(self, connection: socket.socket) -> None:
        """Note an open connection."""
        self._connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def _listening(self) -> socket.socket:
        listening = _bound(self.port)
        listening.listen(64)
        return listening


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: Any, problems: list[str]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self._problems = listening, problems

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Remember what went wrong in the fake itself: it fails the test."""
        self._problems.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # answers in one piece: else Nagle's algorithm and delayed acknowledgements cost 40 ms a call
    disable_nagle_algorithm = True

    def __init__(self, server: Server, *args: Any) -> None:
        self.fake = server
        super().__init__(*args)

    def setup(self) -> None:
        super().setup()
        self.fake.opened(self.connection)

    def finish(self) -> None:
        self.fake.closed(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def serve(self) -> None:
        """Answer one request, or do to it what a fault says."""
        parts = urlsplit(self.path)
        self.fake.authorizations.add(self.headers.get("Authorization", ""))
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        body = json.loads(sent) if sent else None
        if parts.path == TRUTH_PATH:
            self._reply(200, json.dumps(self.fake.compute.renew(body or {})).encode(), "application/json")
            return
        if parts.path.endswith(":testIamPermissions"):
            self._reply_json(partial(_granted, self.fake.compute, body))
            return
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        act = partial(self.fake.compute.answer, self.command, parts.path, query, body)
        method, zone = _meant(self.command, parts.path)
        drawn = self.fake.compute.chance(method, parts.path)

        def take(kind: str) -> bool:
            return kind == drawn or self.fake.compute.take(kind, method, zone) is not None

        if take("lose_request"):
            self.close_connection = True
        elif take("late"):
            self.close_connection = True
            self.fake.compute.settle()
            self.fake.compute.later(LATE_S, partial(_quietly, act))
        elif take("lose_reply"):
            _quietly(act)
            self.close_connection = True
        elif take("hang"):
            self.fake.released.wait()
            self.close_connection = True
        elif take("html"):
            self._reply(502, b"<html>Bad Gateway</html>", "text/html")
        elif take("cut"):
            self._reply_json(act, cut=True)
        else:
            self._reply_json(partial(_judged, take, act))

    do_GET = do_POST = do_DELETE = do_PATCH = serve

    def _reply_json(self, act: Any, *, cut: bool = False) -> None:
        headers: dict[str, str] = {}
        try:
            code, answer = 200, act()
        except Refusal as refusal:
            code, answer, headers = refusal.code, refusal.body, refusal.headers
        self._reply(code, json.dumps(answer).encode(), "application/json; charset=UTF-8", headers, cut=cut)

    def _reply(
        self, code: int, content: bytes, kind: str, headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        self.send_response(code)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.wfile.flush()
        self.close_connection = self.close_connection or cut


def _judged(take: Any, act: Any) -> Any:
    if take("throttle"):
        message = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"
        raise Refusal(429, "rateLimitExceeded", message, {"Retry-After": "2"})
    if take("throttle_403"):
        raise Refusal(403, "rateLimitExceeded", "Rate Limit Exceeded")
    if take("unavailable"):
        raise Refusal(503, "backendError", "Backend Error")
    if take("forbidden"):
        raise Refusal(403, "forbidden", "Required 'compute.instances.list' permission for 'projects/hcloud-testing'")
    return act()


def _granted(compute: FakeCompute, body: Any) -> dict[str, Any]:
    """Answer as the Resource Manager does: which of the permissions asked about the caller has."""
    if compute.refusal is not None:
        raise compute.refusal
    missing = compute.not_granted
    return {"permissions": [each for each in body["permissions"] if each not in missing]}


def _meant(http: str, path: str) -> tuple[str, str | None]:
    found = find(http, path)
    return (found[0].id, found[1].get("zone")) if found else ("", None)


def _quietly(act: Any) -> None:
    with suppress(Refusal):
        act()
