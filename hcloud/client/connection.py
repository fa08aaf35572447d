"""The daemon as commands see it: HTTP over its Unix socket, or TLS with a token, with harmless retries."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from hcloud.client.http import Http, Response, TransportError
from hcloud.config.locate import SYSTEM_CONFIG, find_config, stated_socket
from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import BadInput, ConfigError, DaemonUnreachable, HCloudError, NotFound, Refused

if TYPE_CHECKING:
    import ssl

SYSTEM_SOCKET = Path("/run/hcloud/hcloud.sock")
PATIENCE_S = 1.0
WAITING_PATIENCE_S = 60.0
"""For commands that follow a job: a restart of the daemon must not end them."""
BUSY_PATIENCE_S = 10.0
FIRST_PAUSE_S = 0.1
ANSWER_TIMEOUT_S = 60.0
GRACE_S = 0.5
"""How much longer than the remaining time a daemon may take to say that the time is up."""
_ERRORS: Mapping[int, type[HCloudError]] = {
    400: BadInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    405: BadInput,
    409: Refused,
    413: BadInput,
    422: BadInput,
    503: DaemonUnreachable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the daemon is: a socket, or a URL with a token."""

    socket: Path | None = None
    url: str = "http://hcloud"
    token: str | None = None
    ca_file: str | None = None
    """Certificates of the authorities to trust; None: the system's."""

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else self.url


def find_endpoint() -> Endpoint:
    """Return where the daemon should be: $HCLOUD_URL (with $HCLOUD_TOKEN, $HCLOUD_CA_FILE), $HCLOUD_SOCKET, or the
    socket of the configuration.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    environment = os.environ
    if environment.get("HCLOUD_URL"):
        if not environment["HCLOUD_URL"].startswith("https://"):
            raise BadInput(f"HCLOUD_URL must begin with https://, not {environment['HCLOUD_URL']!r}")
        return Endpoint(
            url=environment["HCLOUD_URL"].rstrip("/"),
            token=environment.get("HCLOUD_TOKEN"),
            ca_file=environment.get("HCLOUD_CA_FILE"),
        )
    if environment.get("HCLOUD_SOCKET"):
        return Endpoint(socket=Path(environment["HCLOUD_SOCKET"]))
    return Endpoint(socket=_configured_socket())


def _configured_socket() -> Path:
    try:
        found = find_config()
    except ConfigError:
        return SYSTEM_SOCKET
    if found == SYSTEM_CONFIG and not os.access(found, os.R_OK):  # meant for the daemon alone
        return SYSTEM_SOCKET
    stated = stated_socket(found)
    if stated is not None and stated.is_socket():
        return stated
    # The whole configuration is read, which takes 0.1 s, only where that may explain why there is no socket.
    from hcloud.config import Config, read_config
    from hcloud.spec.validation import parse

    document = read_config(found, [])
    # The database may be named by a variable that only the daemon has.
    value = document.value
    known = {key: each for key, each in value.items() if key != "database"} if isinstance(value, Mapping) else value
    return parse(Config, known, document.where, context={"base": found.expanduser().absolute().parent}).socket_path


class Connection:
    """Requests to one daemon. Every request may be repeated without harm, so lost connections and 503 are retried."""

    showing_wait: ClassVar[Callable[[], AbstractContextManager[None]]] = nullcontext
    """Entered while an answer is awaited that should come at once; commands show there that it takes long."""

    def __init__(self, endpoint: Endpoint | None = None, clock: Clock | None = None) -> None:
        """Prepare; nothing is sent yet."""
        self.endpoint = endpoint or find_endpoint()
        self.clock = clock or SystemClock()
        self.patience_s = PATIENCE_S
        """How long requests to a daemon that does not answer are retried; see ``be_patient``."""
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        """Most time for connecting, and between two parts of an answer."""
        self.report_waiting: Callable[[str], None] | None = None
        """Called once per request that waits for a daemon, with a sentence that says so."""
        self._give_up_at = math.inf
        token = self.endpoint.token
        self._http = Http(
            url=self.endpoint.url,
            socket_path=self.endpoint.socket,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            tls=_trust(self.endpoint.ca_file),
        )

    def pause(self, seconds: float) -> None:
        """Let time pass; Ctrl-C ends it."""
        self.clock.wait(threading.Event(), seconds)

    def be_patient(self, timeout_s: float | None = None) -> None:
        """From now on wait for a daemon that restarts, with a message, for at most ``timeout_s`` in all."""
        self.patience_s = WAITING_PATIENCE_S
        self.report_waiting = self.report_waiting or (lambda line: click.echo(line, err=True))
        self._give_up_at = math.inf if timeout_s is None else self.clock.now() + timeout_s

    def left_s(self) -> float:
        """Return the remaining time given to ``be_patient``; infinite if none was."""
        return self._give_up_at - self.clock.now()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of a GET. Parameters that are None are left out."""
        return self.send("GET", path, parameters).json()

    def post(self, path: str, body: Any = None) -> Any:
        """Return the JSON of a POST."""
        return self.send("POST", path, body=body).json()

    def put_file(self, path: str, chunks: Iterator[bytes], length: int) -> Any:
        """Send a file's bytes once, without retries: the caller's next run starts a failed upload again."""
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        try:
            response = self._http.request("PUT", path, content=chunks, headers=headers, timeout_s=ANSWER_TIMEOUT_S)
        except TransportError as error:
            raise _unreachable(self.endpoint, error) from error
        return _checked(response).json()

    def send(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request, and retry where that may help.

        Raises:
            BadInput, NotFound, Refused: the daemon's answer, in its words.
            DaemonUnreachable: no daemon answers, or it stayed busy.
        """
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        if given.get("wait_s"):
            return self._send(method, path, given, body, headers)
        with Connection.showing_wait():
            return self._send(method, path, given, body, headers)

    def _send(
        self, method: str, path: str, given: Mapping[str, Any], body: Any, headers: Mapping[str, str] | None
    ) -> Response:
        began_at, pause_s, reported = self.clock.now(), FIRST_PAUSE_S, self.report_waiting is None
        while True:
            waited_s = self.clock.now() - began_at
            last = self.left_s() <= 0
            timeout_s = min(self.answer_timeout_s, max(0.0, self.left_s()) + GRACE_S)
            try:
                response = self._http.request(
                    method, path, parameters=given, body=body, headers=headers, timeout_s=timeout_s
                )
                if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE or waited_s >= BUSY_PATIENCE_S or last:
                    return _checked(response)
            except TransportError as error:
                if waited_s >= self.patience_s or last or _forbidden(error) or _refused_certificate(error):
                    raise _unreachable(self.endpoint, error) from error
                reported = reported or self._reported(self.clock.now() - began_at)
            self.pause(min(pause_s, max(0.0, self.left_s())))
            pause_s = min(1.0, pause_s * 2)

    def _reported(self, silent_s: float) -> bool:
        """Report that the daemon is waited for, once that takes longer than an ordinary command would wait."""
        if self.report_waiting is None or silent_s < PATIENCE_S:
            return False
        self.report_waiting(f"no daemon answers {_at(self.endpoint)}; waiting for it")
        return True


def trusted_authorities(ca_file: str | None) -> ssl.SSLContext:
    """Return settings of a TLS connection that trust the authorities of a file, or the system's. Raises BadInput."""
    import ssl

    return _trust(ca_file) or ssl.create_default_context()


def _trust(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BadInput(f"HCLOUD_CA_FILE: cannot read {ca_file}: {error.strerror}") from error


def _checked(response: Response) -> Response:
    if 200 <= response.status_code < 300:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the daemon answered {response.status_code}: {response.text[:200]}"
    raise _ERRORS.get(response.status_code, HCloudError)(message)


def _forbidden(error: TransportError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM)


def _refused_certificate(error: TransportError) -> str:
    """Return why the server's certificate is not trusted; empty if that is not what failed."""
    import ssl

    cause = error.__cause__
    return cause.verify_message.rstrip(".") if isinstance(cause, ssl.SSLCertVerificationError) else ""


def _unreachable(endpoint: Endpoint, error: TransportError) -> DaemonUnreachable:
    refused = _refused_certificate(error)
    if refused:
        authorities = "HCLOUD_CA_FILE" if endpoint.ca_file else "the system's authorities; HCLOUD_CA_FILE names others"
        return DaemonUnreachable(
            f"the certificate of {endpoint} is refused ({refused}); it must be valid, for that host, and signed by"
            f" {authorities}"
        )
    if _forbidden(error):
        return DaemonUnreachable(
            f"you may not use {endpoint}; ask for membership in its group (ls -l {endpoint} shows which)"
        )
    if isinstance(error.__cause__, TimeoutError):
        return DaemonUnreachable(f"the daemon on {endpoint} did not answer in time; see its log")
    if error.connected:
        cause = type(error.__cause__).__name__
        return DaemonUnreachable(f"the daemon on {endpoint} closed the connection ({cause}: {error}); see its log")
    if endpoint.socket is None:
        return DaemonUnreachable(f"no daemon answers {_at(endpoint)} ({error})")
    return DaemonUnreachable(
        f"no daemon answers {_at(endpoint)}; start it with 'hcloud daemon' or 'systemctl start hcloud'"
    )


def _at(endpoint: Endpoint) -> str:
    return f"at {endpoint}" if endpoint.socket is None else f"on {endpoint}"
