"""The real API on its Unix socket and its TLS port, with callers of each role, and a fleet in this process."""

from __future__ import annotations

import resource
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2

from hcloud.api import ApiServer
from tests.api.certificates import write_certificate
from tests.api.deployment import Deployment
from tests.engine.site import free_port

PATIENCE_S = 120.0
ROLES = {"ada": "submitter", "mallory": "submitter", "eve": "reader"}
UPLOADS_BYTES = 1 << 20
FILES = 4096


@dataclass(frozen=True)
class Served:
    """A running API, and ways to call it."""

    deployment: Deployment
    server: ApiServer
    trusted: ssl.SSLContext
    others: list[httpx2.Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        """The TLS port on the loopback."""
        assert self.server.tcp_address is not None
        return self.server.tcp_address[1]

    def caller(self, name: str, *, address: str = "127.0.0.1") -> httpx2.Client:
        """A client with the token of ``name`` that calls from ``address``."""
        transport = httpx2.HTTPTransport(verify=self.trusted, local_address=address)
        headers = {"Authorization": f"Bearer secret of {name}"}
        url = f"https://127.0.0.1:{self.port}"
        return httpx2.Client(transport=transport, base_url=url, headers=headers, timeout=PATIENCE_S)

    def root(self) -> httpx2.Client:
        """A client on the Unix socket, who is an admin."""
        transport = httpx2.HTTPTransport(uds=str(self.server.socket_path))
        return httpx2.Client(transport=transport, base_url="http://hcloud", timeout=PATIENCE_S)

    def others_are_served(self, *, anew: bool = False) -> None:
        """Another submitter, elsewhere, and the admin get their answers; ``anew``: over new connections."""
        if anew or not self.others:
            self.close()
            self.others[:] = self.caller("ada", address="127.0.0.2"), self.root()
        assert [each.get("/v1/status").json()["role"] for each in self.others] == ["submitter", "admin"]
        assert self.server.alive

    def close(self) -> None:
        """Close the connections of those who must be served."""
        for each in self.others:
            each.close()
        self.others.clear()

    def submitted(self, user: str, **fields: Any) -> str:
        """Submit a job as ``user``; return its id."""
        with self.caller(user) as client:
            answer = client.post("/v1/jobs", json=[{"job": {"name": "sort", "command": ["sleep", "3"], **fields}}])
        assert answer.status_code == 201, answer.text
        return str(answer.json()[0]["id"])


@contextmanager
def serving() -> Iterator[Served]:
    """Serve a deployment that knows the callers of ``ROLES``."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files[0], min(FILES, files[1])), files[1]))
    with tempfile.TemporaryDirectory(prefix="hcloud-threat-") as made:
        home = Path(made)
        write_certificate(home / "cert.pem", home / "key.pem")
        lines = [f"{name}:{sha256(f'secret of {name}'.encode()).hexdigest()}:{role}\n" for name, role in ROLES.items()]
        (home / "tokens").write_text("".join(lines))
        (home / "tokens").chmod(0o600)
        tcp = {"listen": f"127.0.0.1:{free_port()}", "certificate": home / "cert.pem", "key": home / "key.pem",
               "tokens_file": home / "tokens"}  # fmt: skip
        deployment = Deployment(home)
        deployment.context = replace(deployment.context, max_user_upload_bytes=UPLOADS_BYTES)
        deployment.cycle()
        try:
            with deployment.served(tcp=tcp) as server:
                served = Served(deployment, server, ssl.create_default_context(cafile=str(home / "cert.pem")))
                try:
                    yield served
                finally:
                    served.close()
        finally:
            deployment.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
