"""The application: routes behind the gate, one form of failure, and an OpenAPI document that says so."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from hcloud import __version__
from hcloud.api import drain, errors, jobs, operations, uploads
from hcloud.api.auth import AuthMiddleware
from hcloud.api.context import ApiContext
from hcloud.api.schemas import ErrorBody
from hcloud.api.tokens import TokenFile
from hcloud.spec import jobfile
from hcloud.spec.validation import describe

DESCRIPTION = """\
Submit jobs with performance targets, watch them, and ask what they cost and why.

Times are Unix seconds (UTC), money is USD. Every failure has the body `{"error": {"code", "message"}}`:
400 bad input, 401 no or unknown token, 403 not allowed for your role, 404 not found, 409 refused by policy or
budget, 413 body too large, 503 unavailable (retry after `Retry-After` seconds). Repeating any request is harmless; give
a `token` with each submitted job, so that a repeated submission is recognised.
"""
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Bad input: what, where, what would be right"},
    401: {"model": ErrorBody, "description": "No token, or not a known one (TCP only)"},
    403: {"model": ErrorBody, "description": "Your role does not allow it"},
    404: {"model": ErrorBody, "description": "Not found"},
    409: {"model": ErrorBody, "description": "Refused by policy or budget"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    503: {"model": ErrorBody, "description": "Unavailable; retry after the seconds in Retry-After"},
}


def build_app(context: ApiContext, tokens: TokenFile | None = None) -> FastAPI:
    """Build the application. ``tokens`` admits TCP callers; without it only Unix socket peers come in."""
    app = _App(
        title="HCloud",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        responses=_ERRORS,
        redirect_slashes=False,
    )
    app.state.context = context
    app.add_middleware(
        AuthMiddleware,
        readers=context.readers,
        admins=context.admins,
        tokens=tokens,
        max_upload_bytes=context.max_upload_bytes,
    )
    errors.install(app)
    for router in (jobs.router, operations.router, drain.router, uploads.router, operations.probes):
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's document with job files described, without its own validation errors, never sent here."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
            describe(document["components"]["schemas"], jobfile.parts())
        return super().openapi()
