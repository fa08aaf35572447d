"""Which launch tokens were sent already: a file each, so that a repeated launch first looks for its machine."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from hcloud.core.clock import Clock

KEEP_S = 30 * 86_400.0
CLIENT_TOKEN_MAX = 64


class SentTokens:
    """Tokens sent by this or an earlier process of the deployment. Old ones are forgotten at the start."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Raises OSError: the directory cannot be made."""
        self._directory = directory
        directory.mkdir(exist_ok=True)
        forget_before = clock.now() - KEEP_S
        for path in directory.iterdir():
            if path.stat().st_mtime < forget_before:
                path.unlink(missing_ok=True)

    def contains(self, token: str) -> bool:
        """Whether the token was sent before."""
        return self._file(token).exists()

    def add(self, token: str) -> None:
        """Note a token before it is sent; a note that cannot be written costs safety after a day only."""
        try:
            os.close(os.open(self._file(token), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:  # a full disk must not keep machines from being launched: EC2 knows the token too
            return

    def forget(self, token: str) -> None:
        """Take a note back: nothing came of the token."""
        self._file(token).unlink(missing_ok=True)

    def _file(self, token: str) -> Path:
        return self._directory / hashlib.sha256(token.encode()).hexdigest()


def client_token(token: str) -> str:
    """Return the token as EC2 takes it: at most 64 printable ASCII characters."""
    if len(token) <= CLIENT_TOKEN_MAX and re.fullmatch(r"[!-~]+", token):
        return token
    return hashlib.sha256(token.encode()).hexdigest()
