"""Login by API token on the TLS port, logout, and the files that pages refer to."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from hcloud.api.auth import SocketPeer
from hcloud.api.errors import Forbidden, Unauthenticated
from hcloud.core.errors import NotFound
from hcloud.web.headers import COOKIE, cookie_of
from hcloud.web.site import form_of, login_cookie, page_router, pages_of

router = page_router()
_KEPT = "public, max-age=31536000, immutable"


@router.get("/static/{name:path}")
async def static_file(request: Request, name: str) -> Response:
    """Return a file. Raises NotFound."""
    found = pages_of(request).files.get(name)
    if found is None:
        raise NotFound(f"there is no file {name}")
    # Its address changes with its content.
    cache = _KEPT if request.query_params.get("v") else "no-cache"
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": cache})


@router.get("/login")
def show_login(request: Request) -> Response:
    """Show where to enter a token."""
    if isinstance(request.scope.get("state", {}).get("peer"), SocketPeer):
        return RedirectResponse("/", status_code=303)  # the kernel said who it is
    return pages_of(request).render(request, "login.html", problem="")


@router.post("/login")
def log_in(request: Request) -> Response:
    """Exchange a token for a cookie."""
    pages, tokens = pages_of(request), request.app.state.tokens
    token = form_of(request).get("token", "").strip()
    try:
        if tokens is None:
            raise Forbidden("logins are for the TLS port only")
        entry = tokens.find(token)
    except Unauthenticated as error:
        return pages.render(request, "login.html", status=401, problem=str(error))
    if entry is None:
        problem = "this token is not in the daemon's tokens file"
        return pages.render(request, "login.html", status=401, problem=problem)
    response = RedirectResponse("/", status_code=303)
    login_cookie(response, pages.sessions.begin(token, entry.name))
    return response


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the login."""
    pages_of(request).sessions.end(cookie_of(request.scope))
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return response
