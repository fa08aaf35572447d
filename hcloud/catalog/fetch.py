"""Price lists over HTTP: transient errors are retried, and a list is read completely or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable, error_text

T = TypeVar("T")
TRIES: Final = 4
FIRST_PAUSE_S: Final = 1.0
SILENCE_S: Final = 30.0
"""Timeout without any data from the server."""
JSON_BYTES_MAX: Final = 256 * 2**20
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_TRANSIENT: Final = (408, 429, 500, 502, 503, 504)


class _TransientError(Exception):
    """An error that the next try may not have."""


class PriceServer:
    """One endpoint with price lists. All requests are idempotent.

    ``headers`` may contain a credential: they are sent to this endpoint only, redirects are not followed, and messages
    do not quote them.
    """

    def __init__(self, endpoint: str, clock: Clock, headers: Mapping[str, str] | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._clock = clock
        # The environment's proxy must not be used for this machine itself.
        direct = urlsplit(self.endpoint).hostname in _LOOPBACK
        self._http = httpx.Client(headers=dict(headers or {}), timeout=SILENCE_S, trust_env=not direct)

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def json(self, path: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON object at ``path``.

        Raises:
            ProviderUnavailable: no answer, an error, or no JSON object; nothing can be concluded about prices.
        """

        def read(response: httpx.Response) -> dict[str, Any]:
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if len(content) > JSON_BYTES_MAX:
                    raise ProviderUnavailable(f"{self._name(path)} sends more than {JSON_BYTES_MAX // 2**20} MiB")
            try:
                document = httpx.Response(200, content=bytes(content)).json()
            except ValueError as error:
                raise ProviderUnavailable(f"{self._name(path)} did not answer with JSON") from error
            if not isinstance(document, dict):
                raise ProviderUnavailable(f"{self._name(path)} did not answer with a JSON object")
            return document

        return self._get(path, parameters or {}, read)

    def lines(self, path: str, consume: Callable[[Iterator[str]], T]) -> T:
        """Return the result of ``consume`` for the lines at ``path``; it is called again for every try.

        Raises:
            ProviderUnavailable: as ``json``, or from ``consume``.
        """
        return self._get(path, {}, lambda response: consume(response.iter_lines()))

    def _get(self, path: str, parameters: Mapping[str, str], read: Callable[[httpx.Response], T]) -> T:
        for attempt in range(TRIES):
            try:
                return self._once(path, parameters, read)
            except (_TransientError, httpx.TransportError) as error:
                if attempt == TRIES - 1:
                    raise ProviderUnavailable(f"{self._name(path)} does not answer: {error_text(error)}") from error
                self._clock.wait(threading.Event(), FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, path: str, parameters: Mapping[str, str], read: Callable[[httpx.Response], T]) -> T:
        with self._http.stream("GET", self.endpoint + path, params=dict(parameters)) as response:
            if response.status_code in _TRANSIENT:
                raise _TransientError(f"HTTP {response.status_code}")
            if response.status_code != httpx.codes.OK:
                raise ProviderUnavailable(
                    f"{self._name(path)} refused: HTTP {response.status_code}{_server_message(response)}"
                )
            return read(response)

    def _name(self, path: str) -> str:
        return f"{self.endpoint}{path}"


def _server_message(response: httpx.Response) -> str:
    """Return the error message in a JSON response, in brackets, or an empty string."""
    try:
        response.read()
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError, httpx.HTTPError):
        return ""
    return f" ({str(message)[:200]})"
