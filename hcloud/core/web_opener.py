"""HTTP requests with the standard library that go where they are sent, and nowhere else."""

from __future__ import annotations

import ssl
import urllib.request
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def web_opener(url: str) -> urllib.request.OpenerDirector:
    """Return what opens requests to ``url``: it follows no redirects, and reads no files.

    Proxies are those of the environment, but not for this machine itself.
    """
    opener = urllib.request.OpenerDirector()  # has no handler of redirects, files or FTP
    parts = urlsplit(url)
    direct = parts.hostname in _LOOPBACK
    if not direct or parts.scheme != "http":  # to read this host's certificates takes 40 ms
        opener.add_handler(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    for handler in (
        urllib.request.ProxyHandler({} if direct else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
