"""What all pages have in common: templates, headers, forms, errors, and who may see them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jinja2
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from starlette.types import Scope

from hcloud import __version__
from hcloud.api.auth import Caller, header_of
from hcloud.api.errors import Forbidden, Unauthenticated, describe_invalid, status_of
from hcloud.api.tokens import TokenFile
from hcloud.core.errors import BadInput, HCloudError
from hcloud.web import shapes, text
from hcloud.web.headers import COOKIE, FORM_BYTES_MAX, SAFE_METHODS, cookie_of, with_headers
from hcloud.web.sessions import Sessions

PARTS_KEPT = 64
_SECTIONS = ("jobs", "machines", "applications", "money", "static", "live", "login", "logout")
_OPEN = ("/login", "/logout")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain", ".svg": "image/svg+xml"}
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages refer to."""

    content: bytes
    media_type: str


@cache
def _static_files() -> dict[str, StaticFile]:
    folder = _HERE / "static"
    found = (each for each in folder.rglob("*") if each.suffix in _TYPES)
    return {each.relative_to(folder).as_posix(): StaticFile(each.read_bytes(), _TYPES[each.suffix]) for each in found}


@cache
def _environment(version: str) -> jinja2.Environment:
    made = jinja2.Environment(
        # Read at the start: an upgrade on disk must not mix its templates with the code that runs.
        loader=jinja2.DictLoader({each.name: each.read_text() for each in (_HERE / "templates").glob("*.html")}),
        autoescape=True,
        finalize=text.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for shown in (
        text.money,
        text.rate,
        text.duration,
        text.share,
        text.number,
        text.moment,
        text.cell,
        text.visible,
        text.prose,
        text.reason,
        text.path,
        text.job_link,
        text.state,
        shapes.bar,
    ):
        made.filters[shown.__name__] = shown
    made.globals.update(shapes=shapes, version=__version__, static=lambda name: f"/static/{name}?v={version}")
    return made


@dataclass(slots=True)
class Site:
    """What all pages share; with :class:`hcloud.web.pages.WebPages` it is a ``hcloud.api.auth.Pages``."""

    sessions: Sessions = field(default_factory=Sessions)
    files: Mapping[str, StaticFile] = field(default_factory=_static_files, repr=False)
    templates: jinja2.Environment = field(init=False, repr=False)
    _kept: dict[tuple[str, tuple[object, ...]], tuple[object, str]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(b"".join(each.content for _, each in sorted(self.files.items())))
        self.templates = _environment(digest.hexdigest()[:12])

    def covers(self, path: str) -> bool:
        """Return whether a page has this path."""
        return path == "/" or path.removeprefix("/").partition("/")[0] in _SECTIONS

    def is_open(self, path: str) -> bool:
        """Return whether everybody may see it: the login, and files without anything of this deployment."""
        return path in _OPEN or path.startswith("/static/")

    def is_stream(self, path: str) -> bool:
        """Return whether it is the stream of a page's changes."""
        return path == "/live"

    def caller(self, scope: Scope, tokens: TokenFile) -> Caller | None:
        """Return who logged in."""
        return self.sessions.caller(scope, tokens)

    def refuse(self, scope: Scope, error: HCloudError) -> Response:
        """Return the way to the login for who has not logged in, else a page that says why not."""
        request = Request(scope)
        if isinstance(error, Unauthenticated):
            if header_of(scope, b"hx-request"):  # a part of a page that is still shown
                return with_headers(Response(status_code=401, headers={"HX-Redirect": "/login"}))
            if scope["method"] in SAFE_METHODS:
                return with_headers(RedirectResponse("/login", status_code=303))
        return self.error_page(request, error)

    def render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page, or a part of one, made from a template."""
        caller: Caller | None = getattr(request.state, "caller", None)
        return HTMLResponse(
            self.text(
                template,
                caller=caller,
                form_token="" if caller is None else self.sessions.form_token(request.scope, caller),
                path=request.url.path,
                has_login=bool(cookie_of(request.scope)),
                **values,
            ),
            status_code=status,
        )

    def kept_part(self, moment: object, template: str, asked: tuple[object, ...], values: Callable[[], Any]) -> str:
        """Return a part of a page that is the same for all who look; made once for each ``moment`` and question."""
        key = (template, asked)
        known = self._kept.get(key)
        if known is not None and known[0] is moment:
            return known[1]
        made = self.text(template, **values())
        with self._lock:
            if len(self._kept) >= PARTS_KEPT:
                self._kept.clear()
            self._kept[key] = (moment, made)
        return made

    def text(self, template: str, **values: Any) -> str:
        """Return a template's text."""
        return self.templates.get_template(template).render(**values)

    def failure(self, scope: Scope, status: int, message: str) -> Response:
        """Return a page that says why a request failed."""
        request = Request(scope)
        template = "_error.html" if request.headers.get("hx-request") else "error.html"
        return with_headers(self.render(request, template, status=status, error_status=int(status), message=message))

    def error_page(self, request: Request, error: HCloudError) -> Response:
        """Return a page that says what went wrong."""
        return self.failure(request.scope, status_of(error), str(error))


def pages_of(request: Request) -> Site:
    """Return the site that the application was built with."""
    pages: Site = request.app.state.pages
    return pages


class PageRoute(APIRoute):
    """A route of a page: errors are pages, too; what changes anything must come from a form of ours."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the checks before it."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                if request.method not in SAFE_METHODS:
                    await _check_form(request)
                return with_headers(await handle(request))
            except RequestValidationError as error:
                found: HCloudError = BadInput(describe_invalid(error.errors()))
            except HCloudError as error:
                found = error
            return pages_of(request).error_page(request, found)

        return handle_page


def page_router() -> APIRouter:
    """Return a router for pages."""
    return APIRouter(route_class=PageRoute)


async def _check_form(request: Request) -> None:
    """Read the form, and check that a page of ours sent it. Raises Forbidden, BadInput."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Forbidden("this form was sent by a page of another site")
    body, kind = await request.body(), request.headers.get("content-type", "").partition(";")[0].strip()
    if body and kind != "application/x-www-form-urlencoded":
        raise BadInput("a form is sent as application/x-www-form-urlencoded")
    if len(body) > FORM_BYTES_MAX:
        raise BadInput(f"the form has more than {FORM_BYTES_MAX} bytes")
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=50)
    except (UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"the form cannot be read: {error}") from error
    request.state.form = {name: values[0] for name, values in fields.items()}
    if request.url.path in _OPEN:
        return
    sessions = pages_of(request).sessions
    if not sessions.is_form_token(request.state.form.get("form_token", ""), request.scope, request.state.caller):
        raise Forbidden("this form is out of date; reload the page and try again")


def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of the form that was sent."""
    form: Mapping[str, str] = request.state.form
    return form


def is_part(request: Request) -> bool:
    """Return whether only a part of the page is asked for, to replace that part."""
    return request.headers.get("hx-request") == "true"


def as_markup(shown: str) -> Markup:
    """Return text that a template has escaped already."""
    return Markup(shown)


def login_cookie(response: Response, value: str) -> None:
    """Let the browser keep a login."""
    response.set_cookie(COOKIE, value, path="/", secure=True, httponly=True, samesite="strict")
