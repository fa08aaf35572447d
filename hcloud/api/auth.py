"""Authentication, roles and body limits of requests, checked before anything reads the body.

On the Unix socket the kernel identifies the caller (SO_PEERCRED); over TCP a token does. A reader's request with any
method but GET is rejected here, whatever routes exist.
"""

from __future__ import annotations

import functools
import pwd
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hcloud.api.errors import Forbidden, TooLarge, Unauthenticated, failure_response
from hcloud.api.tokens import TokenFile
from hcloud.api.turns import Busy, Turns
from hcloud.core.errors import BadInput, HCloudError

MAX_BODY_BYTES = 32 * 2**20
UPLOADS_PREFIX = "/v1/uploads/"
OPEN_PATHS = frozenset({"/healthz"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Role(StrEnum):
    """What a caller may do: readers read, submitters also submit and cancel own jobs, admins do anything."""

    READER = "reader"
    SUBMITTER = "submitter"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPeer:
    """The process at the other end of a Unix socket, as identified by the kernel when it connected."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user or token that sent a request."""

    name: str
    """User or token name; it becomes the ``actor`` of events."""
    role: Role

    @property
    def is_admin(self) -> bool:
        """Whether they may do anything, and wait for nobody."""
        return self.role is Role.ADMIN

    def may_see(self, user: str) -> bool:
        """Whether what belongs to ``user`` may be shown to them."""
        return self.name == user or self.is_admin

    def require_admin(self, what: str) -> None:
        """Raise Forbidden unless the caller is an admin."""
        if self.role is not Role.ADMIN:
            raise Forbidden(f"only an admin may {what}; {self.name} is a {self.role}")

    def require_owner(self, user: str, what: str) -> None:
        """Raise Forbidden unless the caller is ``user`` or an admin."""
        if not self.may_see(user):
            raise Forbidden(f"only {user} or an admin may {what}; you are {self.name}")


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the login name of ``uid``, or ``uid:<n>`` if this host has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def caller_of_peer(peer: SocketPeer, readers: frozenset[str], admins: frozenset[str]) -> Caller:
    """Return the user of a Unix socket connection with their role."""
    name = user_name(peer.uid)
    if peer.uid == 0 or name in admins:  # not the daemon's own user by itself: jobs may run under it
        return Caller(name=name, role=Role.ADMIN)
    return Caller(name=name, role=Role.READER if name in readers else Role.SUBMITTER)


class Pages(Protocol):
    """Pages for browsers, served beside the API: they know callers by cookie, and show errors as pages."""

    def covers(self, path: str) -> bool:
        """Return whether a page has this path; all others belong to the API, which reads no cookie."""

    def is_open(self, path: str) -> bool:
        """Return whether everybody may use the page without credentials."""

    def is_stream(self, path: str) -> bool:
        """Return whether the answer lasts as long as the browser shows a page; it takes no turn of its caller's."""

    def caller(self, scope: Scope, tokens: TokenFile) -> Caller | None:
        """Return the caller who logged in, by the request's cookie; None: nobody did."""

    def refuse(self, scope: Scope, error: HCloudError) -> Response:
        """Return the answer to a request that is not admitted."""

    def failure(self, scope: Scope, status: int, message: str) -> Response:
        """Return a page that says why a request failed."""

    def install(self, app: FastAPI) -> None:
        """Add the pages to an application."""


class AuthMiddleware:
    """ASGI middleware in front of every route; puts the :class:`Caller` into the scope's state."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        readers: frozenset[str],
        admins: frozenset[str],
        tokens: TokenFile | None,
        max_upload_bytes: int,
        pages: Pages | None = None,
    ) -> None:
        self._app = app
        self._pages = pages
        self._readers = readers
        self._admins = admins
        self._tokens = tokens
        self._max_upload_bytes = max_upload_bytes
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its caller, or answer with the reason for rejecting it."""
        if scope["type"] != "http":  # websockets are not supported
            return
        pages = self._pages if self._pages is not None and self._pages.covers(scope["path"]) else None
        try:
            limit = self._max_upload_bytes if scope["path"].startswith(UPLOADS_PREFIX) else MAX_BODY_BYTES
            _refuse_nul(scope)
            _refuse_two_lengths(scope)
            scope.setdefault("state", {})["caller"] = self._admit(scope, pages)
            _refuse_long(scope, limit)
        except HCloudError as error:
            response = failure_response(error) if pages is None else pages.refuse(scope, error)
            if not isinstance(error, TooLarge | Forbidden):
                # What strangers send is not read, however long it is; nor is what two parties could read in two ways.
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        caller, limited = scope["state"]["caller"], _limit_body(receive, limit)
        if caller.is_admin or (pages is not None and pages.is_stream(scope["path"])):
            await self._app(scope, limited, send)
            return
        try:
            async with self._turns.taken(caller.name):
                await self._app(scope, limited, send)
        except Busy as busy:
            await failure_response(busy)(scope, receive, send)

    def _admit(self, scope: Scope, pages: Pages | None) -> Caller:
        if scope["path"] in OPEN_PATHS or (pages is not None and pages.is_open(scope["path"])):
            return Caller(name="anyone", role=Role.READER)
        caller = self._identify(scope, pages)
        if caller.role is Role.READER and scope["method"] not in SAFE_METHODS:
            raise Forbidden(f"{caller.name} may only read; {scope['method']} {scope['path']} needs another role")
        return caller

    def _identify(self, scope: Scope, pages: Pages | None) -> Caller:
        peer = scope.get("state", {}).get("peer")
        if isinstance(peer, SocketPeer):
            return caller_of_peer(peer, self._readers, self._admins)
        if pages is not None and self._tokens is not None and (known := pages.caller(scope, self._tokens)) is not None:
            return known
        presented = header_of(scope, b"authorization")
        if self._tokens is None or not presented.lower().startswith("bearer "):
            raise Unauthenticated("send a token: 'Authorization: Bearer <token>'")
        entry = self._tokens.find(presented[len("bearer ") :].strip())
        if entry is None:
            raise Unauthenticated("this token is not in the daemon's tokens file")
        return Caller(name=entry.name, role=Role(entry.role))


def header_of(scope: Scope, name: bytes) -> str:
    """Return the first header of this name (in lower case), or the empty text."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _refuse_two_lengths(scope: Scope) -> None:
    # Servers in front of this one may believe the other, and take a part of this body for another request.
    if header_of(scope, b"content-length") and header_of(scope, b"transfer-encoding"):
        raise BadInput("the request has both Content-Length and Transfer-Encoding; send one of them")


def _refuse_nul(scope: Scope) -> None:
    # Databases differ in whether text may contain NUL; no name, tag or id does.
    if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
        raise BadInput("the URL contains a NUL character; remove it")


def _refuse_long(scope: Scope, limit: int) -> None:
    stated = header_of(scope, b"content-length")
    if stated.isdigit() and int(stated) > limit:
        raise TooLarge(f"the body has {int(stated)} bytes; the limit is {limit}")


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Limit bodies without a Content-Length while they are received."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(status_code=413, detail=f"the body exceeds the limit of {limit} bytes")
        return message

    return receive_bounded
