"""Price lists over HTTP: transient errors are retried, and a list is read completely or not at all.

With the standard library: no redirects are followed, sizes and times are limited, proxies are those of the environment.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable, error_text
from hcloud.core.web_opener import web_opener

T = TypeVar("T")
TRIES: Final = 4
FIRST_PAUSE_S: Final = 1.0
SILENCE_S: Final = 30.0
"""Timeout without any data from the server."""
READ_S_MAX: Final = 3600.0
"""Timeout of one list, however steadily it comes."""
JSON_BYTES_MAX: Final = 256 * 2**20
LIST_BYTES_MAX: Final = 4 * 2**30
"""Of lists that are read line by line."""
LINE_BYTES_MAX: Final = 2**20
_PIECE_BYTES: Final = 2**18
_ERROR_BYTES: Final = 2**16
_TRANSIENT: Final = (408, 429, 500, 502, 503, 504)


class _TransientError(Exception):
    """An error that the next try may not have."""


class PriceServer:
    """One endpoint with price lists. All requests are idempotent, each over a connection of its own.

    ``headers`` may contain a credential: they are sent to this endpoint only, redirects are not followed, and messages
    do not quote them.
    """

    def __init__(self, endpoint: str, clock: Clock, headers: Mapping[str, str] | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._clock = clock
        self._headers = {"User-Agent": "hcloud", "Accept-Encoding": "gzip", **(headers or {})}
        self._opener = web_opener(self.endpoint)

    def json(self, path: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON object at ``path``.

        Raises:
            ProviderUnavailable: no answer, an error, or no JSON object; nothing can be concluded about prices.
        """

        def read(pieces: Iterator[bytes]) -> dict[str, Any]:
            try:
                document = json.loads(b"".join(pieces))
            except ValueError as error:
                raise ProviderUnavailable(f"{self._name(path)} did not answer with JSON") from error
            if not isinstance(document, dict):
                raise ProviderUnavailable(f"{self._name(path)} did not answer with a JSON object")
            return document

        return self._get(path, parameters or {}, JSON_BYTES_MAX, read)

    def lines(self, path: str, consume: Callable[[Iterator[str]], T]) -> T:
        """Return the result of ``consume`` for the lines at ``path``; it is called again for every try.

        Raises:
            ProviderUnavailable: as ``json``, or from ``consume``.
        """

        def split(pieces: Iterator[bytes]) -> Iterator[str]:
            rest = b""
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise ProviderUnavailable(f"{self._name(path)} sends a line of more than {LINE_BYTES_MAX} bytes")
                yield from (line.decode(errors="replace").removesuffix("\r") for line in whole)
            if rest:
                yield rest.decode(errors="replace").removesuffix("\r")

        return self._get(path, {}, LIST_BYTES_MAX, lambda pieces: consume(split(pieces)))

    def _get(
        self, path: str, parameters: Mapping[str, str], most_bytes: int, read: Callable[[Iterator[bytes]], T]
    ) -> T:
        query = f"?{urlencode(parameters)}" if parameters else ""
        for attempt in range(TRIES):
            request = urllib.request.Request(f"{self.endpoint}{path}{query}", headers=self._headers)
            try:
                with self._opener.open(request, timeout=SILENCE_S) as response:
                    return read(self._content(path, response, most_bytes))
            except HTTPError as refusal:
                with refusal:
                    if refusal.code not in _TRANSIENT:
                        message = f"refused: HTTP {refusal.code}{_server_message(refusal)}"
                        raise ProviderUnavailable(f"{self._name(path)} {message}") from None
                error: Exception = _TransientError(f"HTTP {refusal.code}")
            except (_TransientError, OSError, http.client.HTTPException, zlib.error) as failure:
                reason = failure.reason if isinstance(failure, URLError) else failure
                error = reason if isinstance(reason, Exception) else failure
            if attempt == TRIES - 1:
                raise ProviderUnavailable(f"{self._name(path)} does not answer: {error_text(error)}") from error
            self._clock.wait(threading.Event(), FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _content(self, path: str, response: http.client.HTTPResponse, most_bytes: int) -> Iterator[bytes]:
        """Yield what the server sends, decompressed. Raises _TransientError if it ends too early."""
        until, count = self._clock.now() + READ_S_MAX, 0
        packed = zlib.decompressobj(16 + zlib.MAX_WBITS) if response.headers["Content-Encoding"] == "gzip" else None
        while piece := response.read(_PIECE_BYTES):
            while piece:
                # In pieces, as a small answer may unpack to a large one.
                plain = packed.decompress(piece, _PIECE_BYTES) if packed is not None else piece
                piece = packed.unconsumed_tail if packed is not None else b""
                count += len(plain)
                if count > most_bytes:
                    raise ProviderUnavailable(f"{self._name(path)} sends more than {most_bytes // 2**20} MiB")
                if self._clock.now() > until:
                    raise ProviderUnavailable(f"{self._name(path)} is not read after {READ_S_MAX:.0f} s")
                yield plain
        # ``read`` with a size does not raise if the connection ends before the stated length.
        if response.length or (packed is not None and not packed.eof):
            raise _TransientError("the answer ended early")

    def _name(self, path: str) -> str:
        return f"{self.endpoint}{path}"


def _server_message(response: HTTPError) -> str:
    """Return the error message in a JSON response, in brackets, or an empty string."""
    try:
        message = json.loads(response.read(_ERROR_BYTES))["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return ""
    return f" ({str(message)[:200]})"
