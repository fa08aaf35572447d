"""A metadata service over real HTTP: EC2's version 2 with its tokens, and Compute Engine's with its waiting."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class MetadataService:
    """``documents`` by path; what is not there is 404. ``asked``: every path, in order."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}
        self.token = "token-1"
        self.asked: list[str] = []
        self.broken = False
        self._changed = threading.Condition()
        self._version = 1
        self._closed = False
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def change(self, path: str, document: str) -> None:
        """Put a document; those that wait for a change are answered."""
        with self._changed:
            self.documents[path] = document
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Answer nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def waited(self, etag: str, timeout_s: float) -> str:
        """Wait until the present version is not ``etag``; return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or str(self._version) != etag, timeout_s)
            return str(self._version)


class _Handler(http.server.BaseHTTPRequestHandler):
    service: MetadataService

    def do_PUT(self) -> None:
        """Give a token to those who say how long it is to live."""
        self.service.asked.append(self.path)
        allowed = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._send(200 if allowed else 400, self.service.token if allowed else "")

    def do_GET(self) -> None:
        """Answer with a document."""
        service, parts = self.service, urlsplit(self.path)
        service.asked.append(parts.path)
        if service.broken:
            self._send(200, "<html>no metadata here</html>")
        elif parts.path.startswith("/computeMetadata/"):
            self._google(parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()})
        elif self.headers.get("X-aws-ec2-metadata-token") != service.token:
            self._send(401, "")
        else:
            self._document(parts.path)

    def _google(self, path: str, query: dict[str, Any]) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._send(403, "")
            return
        etag = ""
        if query.get("wait_for_change") == "true":
            etag = self.service.waited(query.get("last_etag", ""), float(query["timeout_sec"]))
        self._document(path, etag)

    def _document(self, path: str, etag: str = "") -> None:
        found = self.service.documents.get(path)
        self._send(200 if found is not None else 404, found or "", etag)

    def _send(self, status: int, text: str, etag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """A service for one test."""
    service = MetadataService()
    try:
        yield service
    finally:
        service.close()
