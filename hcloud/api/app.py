"""Builds the FastAPI application: routes behind authentication, uniform errors and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from hcloud import __version__
from hcloud.api import (
    arrays,
    drain,
    errors,
    forecasts,
    job_commands,
    job_history,
    jobs,
    operations,
    outputs,
    schedules,
    schemas,
    upload_chunks,
    uploads,
)
from hcloud.api.auth import AuthMiddleware, Pages
from hcloud.api.context import ApiContext
from hcloud.api.metrics import RequestMetrics
from hcloud.api.schemas import ErrorBody
from hcloud.api.tokens import TokenFile
from hcloud.core import model
from hcloud.spec import jobfile
from hcloud.spec.validation import describe

DESCRIPTION = """\
Submit jobs with performance targets, watch them, and explain their placement and cost.

Times are Unix seconds (UTC), money is USD. Every failure has the body `{"error": {"code", "message"}}`:
400 bad input, 401 no or unknown token, 403 not allowed for your role, 404 not found, 409 refused by policy or
budget, 413 body too large, 503 unavailable (retry after `Retry-After` seconds). Every request can be repeated safely;
give each submitted job a `token`, so that a repeated submission is recognised.
"""
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Bad input: what is wrong, where, and what is expected"},
    401: {"model": ErrorBody, "description": "No token or an unknown one (TCP only)"},
    403: {"model": ErrorBody, "description": "Your role does not allow it"},
    404: {"model": ErrorBody, "description": "Not found"},
    409: {"model": ErrorBody, "description": "Refused by policy or budget"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    503: {"model": ErrorBody, "description": "Unavailable; retry after the seconds in Retry-After"},
}


def build_app(context: ApiContext, tokens: TokenFile | None = None, pages: Pages | None = None) -> FastAPI:
    """Build the application. ``tokens`` admits TCP callers; without it only Unix socket peers are admitted.

    ``pages``: those served to browsers; None: only the API is served.
    """
    app = _App(
        title="HCloud",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # that page loads scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context, app.state.tokens = context, tokens
    app.add_middleware(
        AuthMiddleware,
        readers=context.readers,
        admins=context.admins,
        tokens=tokens,
        max_upload_bytes=context.max_upload_bytes,
        pages=pages,
    )
    app.add_middleware(RequestMetrics, telemetry=context.telemetry)  # the last one added is the outermost
    errors.install(app, pages)
    app.router.routes.extend(api_routes())
    if pages is not None:
        pages.install(app)
    return app


@cache
def api_routes() -> tuple[BaseRoute, ...]:
    """Return the routes that all applications of this process share: FastAPI takes 0.2 s to derive their models."""
    template = FastAPI(
        generate_unique_id_function=_operation_id, responses=_ERRORS, openapi_url=None, docs_url=None, redoc_url=None
    )
    parts = (jobs, arrays, outputs, job_commands, schedules, forecasts, operations, drain, upload_chunks, uploads)
    for part in parts:
        template.include_router(part.router)
    template.include_router(operations.probes)
    return tuple(template.routes)


def _operation_id(route: APIRoute) -> str:
    return route.name


def _dataclasses() -> Iterator[type]:
    shapes = (drain, forecasts, job_commands, job_history, jobs, model, operations, outputs, schemas)
    for module in (*shapes, upload_chunks, uploads):
        for each in vars(module).values():
            if isinstance(each, type) and is_dataclass(each):
                yield each


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's document with every field described and without its validation errors, which are unused."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
            describe(document["components"]["schemas"], [*jobfile.parts(), *_dataclasses()])
        return super().openapi()
