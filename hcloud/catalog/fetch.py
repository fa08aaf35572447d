"""Reading price lists over HTTP: patient with what passes, clear about what does not, and never half a list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable

T = TypeVar("T")
TRIES: Final = 4
FIRST_PAUSE_S: Final = 1.0
SILENCE_S: Final = 30.0
"""A server that sends nothing for so long is given up."""
JSON_BYTES_MAX: Final = 256 * 2**20
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PASSING: Final = (408, 429, 500, 502, 503, 504)


class _Passing(Exception):
    """A trouble that may be over at the next try."""


class PriceServer:
    """One endpoint with price lists. Every request may be repeated without harm.

    ``headers`` may hold a credential: they go to this endpoint only, redirects are not followed, and no message quotes
    them.
    """

    def __init__(self, endpoint: str, clock: Clock, headers: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is sent yet."""
        self.endpoint = endpoint.rstrip("/")
        self._clock = clock
        # A proxy of the environment has no business between this machine and itself.
        direct = urlsplit(self.endpoint).hostname in _LOOPBACK
        self._http = httpx.Client(headers=dict(headers or {}), timeout=SILENCE_S, trust_env=not direct)

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def json(self, path: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON object at ``path``.

        Raises:
            ProviderUnavailable: no answer, a refusal, or no JSON object; nothing may be concluded about prices.
        """

        def read(response: httpx.Response) -> dict[str, Any]:
            """Return the JSON object. Raises ProviderUnavailable for anything else, and beyond JSON_BYTES_MAX bytes."""
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if len(content) > JSON_BYTES_MAX:
                    raise ProviderUnavailable(f"{self._name(path)} sends more than {JSON_BYTES_MAX // 2**20} MiB")
            try:
                document = httpx.Response(200, content=bytes(content)).json()
            except ValueError as error:
                raise ProviderUnavailable(f"{self._name(path)} answered with something that is no JSON") from error
            if not isinstance(document, dict):
                raise ProviderUnavailable(f"{self._name(path)} answered with something that is no JSON object")
            return document

        return self._get(path, parameters or {}, read)

    def lines(self, path: str, consume: Callable[[Iterator[str]], T]) -> T:
        """Return what ``consume`` makes of the lines at ``path``; it is called anew for every try.

        Raises:
            ProviderUnavailable: as ``json``, or from ``consume``.
        """
        return self._get(path, {}, lambda response: consume(response.iter_lines()))

    def _get(self, path: str, parameters: Mapping[str, str], read: Callable[[httpx.Response], T]) -> T:
        for attempt in range(TRIES):
            try:
                return self._once(path, parameters, read)
            except (_Passing, httpx.TransportError) as trouble:
                if attempt == TRIES - 1:
                    said = str(trouble) or type(trouble).__name__
                    raise ProviderUnavailable(f"{self._name(path)} does not answer: {said}") from trouble
                self._clock.wait(threading.Event(), FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, path: str, parameters: Mapping[str, str], read: Callable[[httpx.Response], T]) -> T:
        with self._http.stream("GET", self.endpoint + path, params=dict(parameters)) as response:
            if response.status_code in _PASSING:
                raise _Passing(f"HTTP {response.status_code}")
            if response.status_code != httpx.codes.OK:
                raise ProviderUnavailable(f"{self._name(path)} refused: HTTP {response.status_code}{_said(response)}")
            return read(response)

    def _name(self, path: str) -> str:
        return f"{self.endpoint}{path}"


def _said(response: httpx.Response) -> str:
    """Return the server's own words for an error, where it uses the usual form of them."""
    try:
        response.read()
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError, httpx.HTTPError):
        return ""
    return f" ({str(message)[:200]})"
