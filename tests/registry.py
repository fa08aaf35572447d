"""A registry of container images over HTTP that may ask for a token, as the large ones do."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class FakeRegistry:
    """Serves images by repository, each a folder as ``podman push IMAGE dir:FOLDER`` makes it."""

    images: dict[str, Path]
    login: str = ""
    """``USER:PASSWORD`` that may read; empty: anybody may."""
    asked: list[str] = field(default_factory=list)
    is_down: bool = False
    """Whether it has no answers."""
    address: str = ""
    """``HOST:PORT``."""

    @contextmanager
    def serve(self) -> Iterator[FakeRegistry]:
        """Serve on a port of this host."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_RegistryHandler,), {"registry": self}))
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.address = f"127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class _RegistryHandler(BaseHTTPRequestHandler):
    registry: FakeRegistry

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.registry.asked.append(f"{self.command} {self.path}")
        if self.registry.is_down:
            self.answer(503)
            return
        given = self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            basic = "Basic " + base64.b64encode(self.registry.login.encode()).decode()
            self.answer(200, json.dumps({"token": "good" if given == basic else "none"}).encode())
        elif self.registry.login and given != "Bearer good":
            realm = f'Bearer realm="http://{self.registry.address}/token",service="test"'
            self.answer(401, WWW_Authenticate=realm)
        else:
            self.serve_content()

    do_HEAD = do_GET

    def serve_content(self) -> None:
        parts = self.path.strip("/").split("/")
        if parts == ["v2"]:
            self.answer(200)
            return
        folder = self.registry.images.get("/".join(parts[1:-2]))
        if folder is None or (parts[-2] == "manifests" and parts[-1] not in ("1", "latest")):
            self.answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown"}]}')
        elif parts[-2] == "manifests":
            content = (folder / "manifest.json").read_bytes()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.answer(
                200,
                content,
                Content_Type=json.loads(content).get("mediaType", OCI_MANIFEST),
                Docker_Content_Digest=digest,
            )
        else:
            self.answer(200, (folder / parts[-1].removeprefix("sha256:")).read_bytes())
