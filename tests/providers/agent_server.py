"""A TLS server like the gateway's for archives of the agent, made to misbehave by tests."""

import hashlib
import io
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hcloud.engine.tls import issue, make_ca


def archive_of(**files: str) -> bytes:
    """A small archive with these programs below ``bin/``."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.size, entry.mode = len(content.encode()), 0o755
            archive.addfile(entry, io.BytesIO(content.encode()))
    return made.getvalue()


@dataclass
class AgentServer:
    """What it serves, and what it was asked for."""

    url: str
    authority_pem: str
    archives: dict[str, bytes] = field(default_factory=dict)
    """Content by SHA-256 as it stands in the URL."""
    asked: list[str] = field(default_factory=list)
    sent_bytes_max: int | None = None
    """Where each answer is cut off; None: nowhere."""

    def add(self, content: bytes) -> str:
        """Serve an archive; return its SHA-256."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.archives[sha256] = content
        return sha256


@contextmanager
def agent_server(folder: Path, name: str = "gateway") -> Iterator[AgentServer]:
    """Serve archives at a free port of this host, with a certificate for ``name`` of the authority in ``folder``."""
    make_ca(folder)
    issue(folder, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            content = made.archives.get(self.path.removeprefix("/agent/").removesuffix(".tar.gz"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write((content or b"")[: made.sent_bytes_max])

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # The handshake is the handler's, so that a client that breaks it off disturbs no other.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    made = AgentServer(f"https://127.0.0.1:{server.server_address[1]}/agent/", (folder / "ca.pem").read_text())
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()
