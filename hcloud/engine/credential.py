"""An agent's own key and certificate: it enrols with its launch's secret once, and renews its certificate in time.

The key never leaves the machine. Both are files in ``<state_dir>/tls``.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from pathlib import Path

from hcloud.core.clock import Clock, SystemClock
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.tls import GATEWAY, MACHINE_LIFETIME, expiry_of, machine_request, new_machine_key

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 10
RENEW_SHARE = 1 / 3
"""A certificate is renewed after this share of its lifetime."""


class Credential:
    """The key and the certificate of one machine."""

    def __init__(self, bootstrap: Bootstrap, clock: Clock | None = None) -> None:
        """Read what there is; make a key if there is none. Raises OSError."""
        self._bootstrap, self._clock = bootstrap, clock or SystemClock()
        directory = bootstrap.state_dir / "tls"
        directory.mkdir(mode=0o700, exist_ok=True)
        self._key_file, self._certificate_file = directory / "agent.key", directory / "agent.pem"
        if not self._key_file.exists():
            _write(self._key_file, new_machine_key())

    def files(self) -> tuple[bytes, bytes, bytes]:
        """Return the authority's certificate, the key and the certificate, PEM. Raises OSError."""
        authority = self._bootstrap.authority_pem.encode()
        return authority, self._key_file.read_bytes(), self._certificate_file.read_bytes()

    def needs_renewal(self) -> bool:
        """Return whether there is no certificate, or it is time for a new one."""
        try:
            left_s = expiry_of(self._certificate_file.read_bytes()) - self._clock.now()
        except (OSError, ValueError):
            return True
        return left_s < MACHINE_LIFETIME.total_seconds() * (1 - RENEW_SHARE)

    def is_expired(self) -> bool:
        """Return whether nothing can be done without a new certificate first."""
        try:
            return expiry_of(self._certificate_file.read_bytes()) <= self._clock.now()
        except (OSError, ValueError):
            return True

    def renew(self, address: str) -> None:
        """Get a certificate from the gateway whose enrolment port is at ``address``. Raises OSError: why not."""
        plain = {"request": self.request().decode()}
        if self._certificate_file.exists():
            plain["certificate"] = self._certificate_file.read_text()
        else:
            plain |= {"instance_id": self._bootstrap.instance_id, "secret": self._bootstrap.enrolment_secret}
        status, answer = _post(address, self._bootstrap.authority_pem, json.dumps(plain).encode())
        if status != 200:
            raise OSError(f"the gateway at {address} gives no certificate: {answer.decode(errors='replace').strip()}")
        self.accept(answer)

    def request(self) -> bytes:
        """Return a certificate request for the key, PEM. Raises OSError."""
        return machine_request(self._key_file.read_bytes())

    def accept(self, certificate_pem: bytes) -> None:
        """Keep a new certificate. Raises OSError: it is none."""
        try:
            expiry_of(certificate_pem)
        except ValueError as error:
            raise OSError("the gateway answered with no certificate") from error
        _write(self._certificate_file, certificate_pem)


def _post(address: str, authority_pem: str, body: bytes) -> tuple[int, bytes]:
    """Return status and answer of the gateway. Raises OSError."""
    host, _, port = address.rpartition(":")
    connection = _GatewayConnection(host.strip("[]"), int(port), authority_pem)
    try:
        connection.request("POST", "/certificate", body)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)
    except http.client.HTTPException as error:
        raise OSError(f"the gateway at {address} answers with nonsense: {error}") from error
    finally:
        connection.close()


class _GatewayConnection(http.client.HTTPConnection):
    """HTTPS to the holder of the gateway's certificate, whatever its address."""

    def __init__(self, host: str, port: int, authority_pem: str) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_verify_locations(cadata=authority_pem)

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), TIMEOUT_S)
        self.sock = self._context.wrap_socket(plain, server_hostname=GATEWAY)


def _write(path: Path, content: bytes) -> None:
    """Replace a private file, so that a machine that stops meanwhile has either the old or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
