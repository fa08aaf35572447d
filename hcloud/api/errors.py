"""HTTP responses for errors: ``{"error": {"code", "message"}}`` with one clear sentence, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hcloud.core.errors import (
    BadInput,
    HCloudError,
    InvalidTransition,
    NotFound,
    ProviderError,
    Refused,
    RunnerError,
    StoreError,
    printable,
)

if TYPE_CHECKING:
    from hcloud.api.auth import Pages

RETRY_AFTER_S = 1
_log = logging.getLogger(__name__)


class Forbidden(Refused):
    """The caller's role does not allow the request."""


class Unauthenticated(Refused):
    """The caller sent no valid credentials."""


class TooLarge(BadInput):
    """The body exceeds the limit."""


# The first match wins, so subclasses precede their bases.
_STATUS: tuple[tuple[type[HCloudError], HTTPStatus, str], ...] = (
    (Unauthenticated, HTTPStatus.UNAUTHORIZED, "unauthenticated"),
    (Forbidden, HTTPStatus.FORBIDDEN, "forbidden"),
    (Refused, HTTPStatus.CONFLICT, "refused"),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large"),
    (InvalidTransition, HTTPStatus.CONFLICT, "invalid_transition"),
    (BadInput, HTTPStatus.BAD_REQUEST, "bad_input"),
    (NotFound, HTTPStatus.NOT_FOUND, "not_found"),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE, "store_busy"),
    (RunnerError, HTTPStatus.SERVICE_UNAVAILABLE, "worker_unreachable"),
    (ProviderError, HTTPStatus.SERVICE_UNAVAILABLE, "provider_unavailable"),
    (HCloudError, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)


def status_of(error: HCloudError) -> HTTPStatus:
    """Return the status of the response for ``error``."""
    return next(status for kind, status, _ in _STATUS if isinstance(error, kind))


def failure_response(error: HCloudError) -> JSONResponse:
    """Return the response for ``error``: status, code, message and headers."""
    status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
    headers = {}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return _response(status, code, str(error), headers)


def _response(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        {"error": {"code": code, "message": printable(message)}}, status_code=status, headers=dict(headers or {})
    )


def install(app: FastAPI, pages: Pages | None = None) -> None:
    """Register handlers so that every failure has the same form; those of ``pages`` are pages."""

    def failure(request: Request, status: int, code: str, message: str, headers: Mapping[str, str] | None) -> Response:
        if pages is not None and pages.covers(request.url.path):
            return pages.failure(request.scope, status, message)
        return _response(status, code, message, headers)

    @app.exception_handler(HCloudError)
    async def on_hcloud_error(request: Request, error: HCloudError) -> JSONResponse:
        return failure_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return failure_response(BadInput(describe_invalid(error.errors())))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            code = "too_large"
        message = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = f"no route {request.method} {request.url.path}; see /openapi.json"
            if pages is not None and pages.covers(request.url.path):
                message = f"there is no page {request.url.path}"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            message = f"{request.url.path} does not allow {request.method}"
        return failure(request, error.status_code, code, message, error.headers)

    @app.exception_handler(Exception)
    async def on_defect(request: Request, error: Exception) -> Response:
        # The top of one request: a defect in a handler must not end the daemon. Its message may contain secrets, so
        # it is only logged.
        _log.error("defect in the handler of %s %s", request.method, request.url.path, exc_info=error)
        message = f"a defect in HCloud ({type(error).__name__}); the daemon's log has the details"
        return failure(request, HTTPStatus.INTERNAL_SERVER_ERROR, "defect", message, None)


def describe_invalid(errors: Sequence[Mapping[str, object]]) -> str:
    """Return one sentence for the first validation error of a request: where, what, and what is expected."""
    first = errors[0]
    where = _location(first.get("loc"))
    kind = first.get("type")
    message = str(first.get("msg", "is invalid")).removeprefix("Value error, ")
    shown = "" if kind in {"missing", "extra_forbidden"} else _shown_value(first.get("input"))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}{more}"


def _location(loc: object) -> str:
    if not isinstance(loc, tuple | list) or not loc:
        return "the request"
    head, *rest = [str(part) for part in loc]
    return f"{head} {'.'.join(rest)}".strip()


def _shown_value(value: object) -> str:
    if value is None or isinstance(value, Mapping | list | bytes):
        return ""
    text = repr(value)
    return f", not {text if len(text) <= 80 else text[:77] + '...'}"
