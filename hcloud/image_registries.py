"""Whether a container image is there: asked of its registry when a job is submitted, before anything is rented.

Users name registries, so the daemon asks only over HTTPS at public addresses, and at those of the configuration. An
image of a registry that may not be asked is accepted: the machine will see. One whose registry may be asked and gives
no answer is refused, as a machine would hardly get one either, unless the configuration accepts it.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode, urlsplit

from hcloud.core.clock import Clock
from hcloud.core.errors import BadInput
from hcloud.core.image_names import IMAGE_LOGIN, SHORT_NAMES_IN, ImagePlace, image_place

TIMEOUT_S: Final = 5.0
"""So long a registry may be silent."""
ANSWER_WITHIN_S: Final = 15.0
"""So long an answer may take; a registry could send it byte by byte."""
FOUND_FOR_S: Final = 300.0
"""So long an image that was found counts as there."""
FOUND_MOST: Final = 1000
AT_ONCE: Final = 4
ANSWER_BYTES_MAX: Final = 1 << 20
_MANIFESTS: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_API_HOSTS: Final = {SHORT_NAMES_IN: "registry-1.docker.io"}
"""Registries whose API has another host."""


class _NotAsked(Exception):
    """A registry may not be asked."""


class _NoAnswer(Exception):
    """A registry gives no answer that says whether an image is there; the message is why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes = b""


@dataclass(slots=True)
class ImageRegistries:
    """Asks registries. Safe in several threads."""

    clock: Clock
    private: Sequence[str] = ()
    """Addresses (``https://HOST[:PORT]`` or ``http://...``) that are asked although they are not public."""
    is_asked: bool = True
    accepts_unanswered: bool = False
    """Whether an image is accepted whose registry gives no answer."""
    answer_within_s: float = ANSWER_WITHIN_S
    _found: dict[tuple[str, str], float] = field(default_factory=dict)
    _turns: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, image: str, login: str = "") -> None:
        """Check that an image is there, for ``login`` (``USER:PASSWORD``) or anybody.

        Raises BadInput: it is not, or that cannot be found out now.
        """
        place, now, key = image_place(image), self.clock.now(), (image, login)
        if not self.is_asked or place is None:
            return
        with self._lock:
            self._found = {each: until for each, until in self._found.items() if until > now}
            if key in self._found:
                return
        if not self._turns.acquire(timeout=TIMEOUT_S):
            return
        try:
            self._ask(place, login)
        except _NotAsked:
            return
        except (_NoAnswer, OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if self.accepts_unanswered:
                return
            raise BadInput(
                f"image {place.registry}/{place.repository} cannot be looked for: {_why_unanswered(error, place)}, so "
                "no machine is rented for it. Check the name, submit again later, or set images.unanswered: accept"
            ) from error
        finally:
            self._turns.release()
        with self._lock:
            if len(self._found) < FOUND_MOST:
                self._found[key] = now + FOUND_FOR_S

    def has_found(self, image: str) -> bool:
        """Return whether a registry said lately that it has an image; False also where none was asked."""
        with self._lock:
            return any(each == image and until > self.clock.now() for (each, _), until in self._found.items())

    def _ask(self, place: ImagePlace, login: str) -> None:
        origin = self._origin(place.registry)
        path = f"/v2/{place.repository}/manifests/{place.reference}"
        headers = {"Accept": _MANIFESTS}
        answer = self._request("HEAD", origin, path, headers)
        if answer.status == 401:
            headers["Authorization"] = self._authorization(answer.headers.get("www-authenticate", ""), place, login)
            answer = self._request("HEAD", origin, path, headers)
        shown = f"image {place.registry}/{place.repository}"
        if answer.status == 404:
            raise BadInput(f"{shown} has no {place.reference!r}, or does not exist")
        if answer.status in (401, 403):
            with_it = f"the login of {IMAGE_LOGIN}" if login else f"a login (secret {IMAGE_LOGIN}: USER:PASSWORD)"
            raise BadInput(f"{shown} does not exist, or cannot be read {'with' if login else 'without'} {with_it}")
        if answer.status != 200:
            raise _NoAnswer(f"its registry answers with status {answer.status}")

    def _authorization(self, challenge: str, place: ImagePlace, login: str) -> str:
        """Return the header that a registry asks for, with a token fetched from where it says."""
        basic = "Basic " + base64.b64encode(login.encode()).decode()
        if challenge.lower().startswith("basic"):
            return basic if login else ""
        given = dict(_CHALLENGE.findall(challenge))
        realm = urlsplit(given["realm"])
        query = {"service": given.get("service", ""), "scope": f"repository:{place.repository}:pull"}
        headers = {"Authorization": basic} if login else {}
        origin = f"{realm.scheme}://{realm.netloc}"
        answer = self._request("GET", origin, f"{realm.path}?{urlencode(query)}", headers)
        if answer.status != 200:
            return ""
        document = json.loads(answer.content)
        return f"Bearer {document.get('token') or document['access_token']}"

    def _origin(self, registry: str) -> str:
        known = [each for each in self.private if urlsplit(each).netloc == registry]
        return known[0] if known else f"https://{_API_HOSTS.get(registry, registry)}"

    def _request(self, method: str, origin: str, path: str, headers: Mapping[str, str]) -> _Answer:
        """Send one request to an address that may be asked. Raises _NotAsked: it may not; OSError, HTTPException."""
        at = urlsplit(origin)
        is_private = origin in self.private
        if at.hostname is None or (at.scheme != "https" and not is_private):
            raise _NotAsked
        port = at.port or (443 if at.scheme == "https" else 80)
        address = _address(at.hostname, port, any_address=is_private)
        connection = http.client.HTTPConnection(at.hostname, port, timeout=TIMEOUT_S)
        try:
            # To the address that was judged: the name could stand for another one by now.
            connection.sock = socket.create_connection((address, port), timeout=TIMEOUT_S)
            if at.scheme == "https":
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=at.hostname)
            with _closed_after(self.answer_within_s, connection.sock):
                connection.request(method, path, headers={"User-Agent": "hcloud", **headers})
                answer = connection.getresponse()
                content = answer.read(ANSWER_BYTES_MAX)
            return _Answer(
                status=answer.status, headers={k.lower(): v for k, v in answer.getheaders()}, content=content
            )
        finally:
            connection.close()


@contextmanager
def _closed_after(limit_s: float, connection: socket.socket) -> Iterator[None]:
    """End what is read from a connection once ``limit_s`` have passed."""

    def end() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _why_unanswered(error: Exception, place: ImagePlace) -> str:
    """Return why a registry's answer is none, without what it sent."""
    if isinstance(error, _NoAnswer):
        return str(error)
    if isinstance(error, socket.gaierror):
        return f"the name {place.registry} of its registry is not known"
    if isinstance(error, OSError):
        return f"its registry {place.registry} gives no answer ({error.strerror or 'in time'})"
    return f"its registry {place.registry} answers with nonsense"


def _address(host: str, port: int, *, any_address: bool) -> str:
    """Return an address of a host. Raises _NotAsked if one of its addresses is not public; OSError."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not any_address and not all(ipaddress.ip_address(each.partition("%")[0]).is_global for each in found):
        raise _NotAsked
    return found[0]
