"""Google credentials that contact no host but the token's source.

The library's own credentials also look up the regions in which an account may be used (``allowedLocations`` at
iamcredentials.googleapis.com), whatever endpoint is configured.
"""

from __future__ import annotations

from typing import Any

import google.auth
from google.auth.credentials import AnonymousCredentials, Credentials
from google.oauth2 import service_account

SCOPE = "https://www.googleapis.com/auth/compute"


class TokenOnly(Credentials):
    """Takes tokens from other credentials and uses nothing else of them."""

    def __init__(self, inner: Any) -> None:
        """``inner``: any credentials of the library."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._inner = inner
        self._quota_project_id = getattr(inner, "quota_project_id", None)

    def refresh(self, request: Any) -> None:
        """Fetch a new token."""
        self._inner.refresh(request)
        self.token, self.expiry = self._inner.token, self._inner.expiry


def load_credentials(named: str, scope: str = SCOPE) -> Credentials:
    """Return the credentials of the setting ``credentials``: ``default``, ``anonymous`` or the path of a key file.

    A key file signs its tokens itself, without any other host. Raises google.auth's errors, OSError and ValueError.
    """
    if named == "anonymous":
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if named == "default":
        return TokenOnly(google.auth.default(scopes=[scope])[0])
    key = service_account.Credentials.from_service_account_file(named, scopes=[scope])  # type: ignore[no-untyped-call]
    return TokenOnly(key.with_always_use_jwt_access(True))
