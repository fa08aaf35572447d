"""Launch tokens that were already sent, one file each. A repeated launch looks up its instance before sending again."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from hcloud.core.clock import Clock

KEEP_S = 30 * 86_400.0
CLIENT_TOKEN_MAX = 64


class SentTokens:
    """Tokens sent by this or an earlier process of the deployment. Old ones are deleted at start."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Open the directory and delete old tokens. Raises OSError: it cannot be created."""
        self._directory = directory
        directory.mkdir(exist_ok=True)
        forget_before = clock.now() - KEEP_S
        for path in directory.iterdir():
            if path.stat().st_mtime < forget_before:
                path.unlink(missing_ok=True)

    def contains(self, token: str) -> bool:
        """Return whether the token was sent before."""
        return self._file(token).exists()

    def add(self, token: str) -> None:
        """Record a token before it is sent. Without the record, a repeat is safe only while EC2 knows the token."""
        try:
            os.close(os.open(self._file(token), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:  # a full disk must not block launches: EC2 remembers the token for about a day
            return

    def forget(self, token: str) -> None:
        """Delete the record: the token launched nothing."""
        self._file(token).unlink(missing_ok=True)

    def _file(self, token: str) -> Path:
        return self._directory / hashlib.sha256(token.encode()).hexdigest()


def client_token(token: str) -> str:
    """Return the token in EC2's form: at most 64 printable ASCII characters."""
    if len(token) <= CLIENT_TOKEN_MAX and re.fullmatch(r"[!-~]+", token):
        return token
    return hashlib.sha256(token.encode()).hexdigest()
