"""Logins of browsers: sessions by cookie, and the tokens that a form must carry to change anything."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from starlette.types import Scope

from hcloud.api.auth import Caller, Role, header_of
from hcloud.api.tokens import TokenFile
from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import HCloudError
from hcloud.web.headers import RELAYED_SESSION, cookie_of

LASTS_S = 12 * 3600.0
SESSIONS_PER_NAME = 50
"""Logins of one token at once; of more, the oldest ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """One login."""

    token: str
    """The API token, which is looked up again with each request: once it is removed, so is the login."""
    name: str
    ends_at: float


@dataclass(slots=True)
class Sessions:
    """The logins of one process, in memory only: they end with it."""

    clock: Clock = field(default_factory=SystemClock)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _by_id: OrderedDict[str, Session] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self, token: str, name: str) -> str:
        """Return the cookie's value of a new login with an API token of this name."""
        made, now = secrets.token_urlsafe(32), self.clock.now()
        with self._lock:
            for key in [key for key, each in self._by_id.items() if each.ends_at <= now]:
                del self._by_id[key]
            own = [key for key, each in self._by_id.items() if each.name == name]
            for key in own[: max(0, len(own) - SESSIONS_PER_NAME + 1)]:
                del self._by_id[key]
            self._by_id[made] = Session(token, name, now + LASTS_S)
        return made

    def end(self, session_id: str) -> None:
        """Forget a login."""
        with self._lock:
            self._by_id.pop(session_id, None)

    def caller(self, scope: Scope, tokens: TokenFile) -> Caller | None:
        """Return who logged in with the request's cookie; None: nobody, or the token is no longer in force."""
        with self._lock:
            found = self._by_id.get(cookie_of(scope))
        if found is None or found.ends_at <= self.clock.now():
            return None
        try:
            entry = tokens.find(found.token)
        except HCloudError:
            return None
        return None if entry is None else Caller(name=entry.name, role=Role(entry.role))

    def form_token(self, scope: Scope, caller: Caller) -> str:
        """Return what a form of this caller must carry: only a page that was served to the same login has it."""
        relayed = header_of(scope, RELAYED_SESSION) if scope.get("state", {}).get("peer") is not None else ""
        bound = f"{cookie_of(scope)}\n{relayed}\n{caller.name}"
        return hmac.new(self._secret, bound.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, presented: str, scope: Scope, caller: Caller) -> bool:
        """Return whether a form carries the right token."""
        return hmac.compare_digest(presented.encode(), self.form_token(scope, caller).encode())
