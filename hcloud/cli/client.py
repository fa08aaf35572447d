"""The daemon as commands see it: HTTP over its Unix socket (or TLS with a token), with retries that are harmless."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import BadInput, ConfigError, DaemonUnreachable, HCloudError, NotFound, Refused

SYSTEM_CONFIG = Path("/etc/hcloud/config.yaml")
SYSTEM_SOCKET = Path("/run/hcloud/hcloud.sock")
PATIENCE_S = 1.0
WAITING_PATIENCE_S = 60.0
"""A daemon that restarts must not end what follows it."""
BUSY_PATIENCE_S = 10.0
FIRST_PAUSE_S = 0.1
ANSWER_TIMEOUT_S = 60.0
GRACE_S = 0.5
"""So much longer than the time that is left a daemon may take to say that this time is up."""
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
    """Where the daemon is: a socket, or a URL with a token and the file of the CA to trust."""

    socket: Path | None = None
    url: str = "http://hcloud"
    token: str | None = None
    ca_file: str | None = None

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
    from hcloud.config import Config, find_config, read_config  # 0.1 s, which $HCLOUD_SOCKET saves
    from hcloud.spec.validation import parse

    try:
        found = find_config()
    except ConfigError:
        return SYSTEM_SOCKET
    if found == SYSTEM_CONFIG and not os.access(found, os.R_OK):  # meant for the daemon alone
        return SYSTEM_SOCKET
    document = read_config(found, [])
    # The database may be named by a variable that only the daemon has; nobody needs it here.
    value = document.value
    known = {key: each for key, each in value.items() if key != "database"} if isinstance(value, Mapping) else value
    return parse(Config, known, document.where, context={"base": found.expanduser().absolute().parent}).socket_path


class Client:
    """Requests to one daemon. Every request may be repeated without harm, so lost connections and 503 are retried."""

    def __init__(self, door: Endpoint | None = None, clock: Clock | None = None) -> None:
        """Prepare; nothing is sent yet."""
        self.door = door or find_endpoint()
        self.clock = clock or SystemClock()
        self.patience_s = PATIENCE_S
        """How long a daemon that does not answer is asked again; ``be_patient`` where a restart must not matter."""
        self.tell: Callable[[str], None] | None = None
        """Is told, once each time, that the daemon does not answer and is waited for."""
        self._give_up_at = math.inf
        transport = httpx.HTTPTransport(uds=str(self.door.socket)) if self.door.socket is not None else None
        headers = {"Authorization": f"Bearer {self.door.token}"} if self.door.token else {}
        self._http = httpx.Client(
            base_url=self.door.url,
            transport=transport,
            headers=headers,
            timeout=ANSWER_TIMEOUT_S,
            trust_env=False,  # a proxy from the environment has no business on a socket
            verify=_trust(self.door.ca_file),
        )

    def pause(self, seconds: float) -> None:
        """Let time pass; Ctrl-C ends it."""
        self.clock.wait(threading.Event(), seconds)

    def be_patient(self, timeout_s: float | None = None) -> None:
        """From now on wait for a daemon that restarts, saying so, but no longer than ``timeout_s`` in all."""
        self.patience_s = WAITING_PATIENCE_S
        self.tell = self.tell or (lambda line: click.echo(line, err=True))
        self._give_up_at = math.inf if timeout_s is None else self.clock.now() + timeout_s

    def left_s(self) -> float:
        """Return how much is left of the time given to ``be_patient``; infinite where none was."""
        return self._give_up_at - self.clock.now()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of a GET. Parameters that are None are left out."""
        return self.send("GET", path, parameters).json()

    def post(self, path: str, body: Any = None) -> Any:
        """Return the JSON of a POST."""
        return self.send("POST", path, body=body).json()

    def put_file(self, path: str, chunks: Iterator[bytes], length: int) -> Any:
        """Send a file's bytes once (a failed upload is started anew by the caller's next run)."""
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        try:
            response = self._http.put(path, content=chunks, headers=headers)
        except httpx.TransportError as error:
            raise _unreachable(self.door, error) from error
        return _checked(response).json()

    def send(
        self, method: str, path: str, parameters: Mapping[str, Any] | None = None, body: Any = None
    ) -> httpx.Response:
        """Send a request, again where that may help.

        Raises:
            BadInput, NotFound, Refused: the daemon said so, in its words.
            Unreachable: no daemon answers, or it stayed busy.
        """
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        began_at, pause_s, told = self.clock.now(), FIRST_PAUSE_S, self.tell is None
        while True:
            waited_s = self.clock.now() - began_at
            last = self.left_s() <= 0
            timeout_s = min(ANSWER_TIMEOUT_S, max(0.0, self.left_s()) + GRACE_S)
            try:
                response = self._http.request(method, path, params=given, json=body, timeout=timeout_s)
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or waited_s >= BUSY_PATIENCE_S or last:
                    return _checked(response)
            except httpx.TransportError as error:
                if waited_s >= self.patience_s or last or _forbidden(error):
                    raise _unreachable(self.door, error) from error
                told = told or self._told(self.clock.now() - began_at)
            self.pause(min(pause_s, max(0.0, self.left_s())))
            pause_s = min(1.0, pause_s * 2)

    def _told(self, silent_s: float) -> bool:
        """Say that the daemon is waited for, where that takes longer than any command would wait."""
        if self.tell is None or silent_s < PATIENCE_S:
            return False
        self.tell(f"no daemon answers {_at(self.door)}; waiting for it")
        return True


def _trust(ca_file: str | None) -> Any:
    if ca_file is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BadInput(f"HCLOUD_CA_FILE: cannot read {ca_file}: {error.strerror}") from error


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the daemon answered {response.status_code}: {response.text[:200]}"
    raise _ERRORS.get(response.status_code, HCloudError)(message)


def _cause(error: BaseException) -> OSError | None:
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen


def _forbidden(error: httpx.TransportError) -> bool:
    cause = _cause(error)
    return cause is not None and cause.errno in (errno.EACCES, errno.EPERM)


def _unreachable(door: Endpoint, error: httpx.TransportError) -> DaemonUnreachable:
    if _forbidden(error):
        return DaemonUnreachable(f"you may not use {door}; ask for membership in its group (ls -l {door} shows which)")
    if isinstance(error, httpx.ConnectError):
        if door.socket is None:
            return DaemonUnreachable(f"no daemon answers {_at(door)} ({error})")
        return DaemonUnreachable(
            f"no daemon answers {_at(door)}; start it with 'hcloud daemon' or 'systemctl start hcloud'"
        )
    return DaemonUnreachable(f"the daemon on {door} broke off ({type(error).__name__}: {error}); see its log")


def _at(door: Endpoint) -> str:
    return f"at {door}" if door.socket is None else f"on {door}"
