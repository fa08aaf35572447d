"""What requests and answers of pages carry beside their content; all that ``hcloud web`` shares with the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""What a browser may load and run for a page: files of this site only, and nothing that stands in the page itself."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none, browsers do not say either which page sent a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "__Host-hcloud"
"""Browsers accept a cookie of this prefix over TLS only, for this host only, and for all of its paths."""
RELAYED_SESSION = b"x-hcloud-session"
"""Header with which ``hcloud web`` says which of its browsers asks."""
FORM_BYTES_MAX = 16 * 1024
SAFE_METHODS = frozenset({"GET", "HEAD"})


def with_headers(response: Response) -> Response:
    """Return the response with the headers of every page."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def cookie_of(scope: Scope, name: str = COOKIE) -> str:
    """Return the value of the request's cookie, or the empty text."""
    try:
        found = SimpleCookie(Request(scope).headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
