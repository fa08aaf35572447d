"""Stores of objects over real HTTP: moto's S3, and a small GCS that checks its signed URLs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa


@contextmanager
def moto_s3() -> Iterator[str]:
    """Serve S3 on a port of this host; gives its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@dataclass
class FakeGcs:
    """What of GCS is used: lists by JSON, and content by URLs with a V4 signature."""

    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    address: str = ""
    is_read_only: bool = False
    """Whether the account may write nothing."""
    begun: list[str] = field(default_factory=list)
    """Uploads that were begun, and neither finished nor cancelled."""

    def client(self) -> Any:
        """Return Google's own client, with the credentials of a service account."""
        from google.cloud import storage
        from google.oauth2 import service_account

        credentials = service_account.Credentials.from_service_account_info(self.account())  # type: ignore[no-untyped-call]
        return storage.Client(project="test", credentials=credentials, client_options={"api_endpoint": self.address})

    def account(self) -> dict[str, str]:
        """Return the key file of its service account."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        return {"client_email": "hcloud@test.example", "token_uri": f"{self.address}/token", "private_key": pem}

    @staticmethod
    @lru_cache(maxsize=4)
    def generation(content: bytes) -> str:
        return str(int(hashlib.sha256(content).hexdigest()[:8], 16))

    @staticmethod
    @lru_cache(maxsize=4)
    def md5(content: bytes) -> str:
        """Return the MD5 of an object as its store knows it, computed once."""
        return base64.b64encode(hashlib.md5(content).digest()).decode()

    def is_signed(self, method: str, path: str, query: dict[str, str], headers: Any) -> bool:
        """Return whether a URL was signed with our key, as Google checks it."""
        signature = bytes.fromhex(query.get("X-Goog-Signature", ""))
        rest = sorted((name, value) for name, value in query.items() if name != "X-Goog-Signature")
        from urllib.parse import quote

        canonical_query = "&".join(f"{quote(n, safe='-_.~')}={quote(v, safe='-_.~')}" for n, v in rest)
        signed = query.get("X-Goog-SignedHeaders", "").split(";")
        lines = "".join(f"{name}:{headers.get(name, '')}\n" for name in signed)
        payload = headers.get("x-goog-content-sha256", "UNSIGNED-PAYLOAD")
        request = "\n".join([method, path, canonical_query, lines, ";".join(signed), payload])
        scope = query.get("X-Goog-Credential", "").partition("/")[2]
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["GOOG4-RSA-SHA256", query.get("X-Goog-Date", ""), scope, digest])
        try:
            self.key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, ValueError):
            return False
        return True

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve on a port of this host; gives the address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_GcsHandler,), {"store": self}))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self.address
        finally:
            server.shutdown()
            server.server_close()


class _GcsHandler(BaseHTTPRequestHandler):
    store: FakeGcs

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, code: int, content: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "/upload/" in self.path:
            name = json.loads(content)["name"]
            if self.store.is_read_only:
                self.answer(403, b"{}", Content_Type="application/json")
                return
            self.store.begun.append(name)
            self.answer(200, b"", Location=f"{self.store.address}/session/{name}")
            return
        token = {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}
        self.answer(200, json.dumps(token).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path.startswith("/storage/v1/b/"):
            self.list(url.path.split("/")[4], query.get("prefix", ""))
            return
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        content = self.store.objects.get((bucket, name))
        if not self.store.is_signed("GET", url.path, query, self.headers):
            self.answer(403, b"no")
        elif content is None or query.get("generation") != self.store.generation(content):
            self.answer(404, b"gone")
        else:
            self.answer(200, content, x_goog_generation=self.store.generation(content))

    def do_DELETE(self) -> None:
        self.store.begun.remove(unquote(self.path.removeprefix("/session/")))
        self.answer(499, b"")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        least, _, most = self.headers["x-goog-content-length-range"].partition(",")
        md5 = self.store.md5(content)
        if not self.store.is_signed("PUT", url.path, query, self.headers):
            self.answer(403, b"no")
        elif md5 != self.headers["Content-MD5"] or not int(least) <= len(content) <= int(most):
            self.answer(400, b"other content")
        else:
            self.store.objects[bucket, name] = content
            self.answer(200, b"")

    def list(self, bucket: str, prefix: str) -> None:
        if bucket not in {each for each, _ in self.store.objects}:
            self.answer(404, b"{}", Content_Type="application/json")
            return
        items = [
            {
                "name": name,
                "bucket": bucket,
                "size": str(len(content)),
                "generation": self.store.generation(content),
                "md5Hash": self.store.md5(content),
            }
            for (each, name), content in sorted(self.store.objects.items())
            if each == bucket and name.startswith(prefix)
        ]
        self.answer(200, json.dumps({"items": items}).encode(), Content_Type="application/json")
