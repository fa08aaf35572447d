"""The tokens file: credentials for callers over TCP. A line: ``name:sha256-of-token:role``; ``#`` begins a comment."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hcloud.api.errors import Unauthenticated
from hcloud.config import FileWatch, TokenEntry
from hcloud.config.accepted_limits import ROLES
from hcloud.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


def parse_tokens(text: str, where: str) -> tuple[TokenEntry, ...]:
    """Parse the file's text.

    Raises ConfigError with the line: malformed, unknown role, or a token that appears twice.
    """
    entries: dict[str, TokenEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        entry = _parse_line(line, f"{where}:{number}")
        if entry.digest in entries:
            raise ConfigError(
                f"the same token already belongs to {entries[entry.digest].name}", where=f"{where}:{number}"
            )
        entries[entry.digest] = entry
    if not entries:
        raise ConfigError("contains no token; add a line name:sha256-of-token:role", where=where)
    return tuple(entries.values())


def _parse_line(line: str, where: str) -> TokenEntry:
    parts = [part.strip() for part in line.split(":")]
    if len(parts) != 3 or not _NAME.fullmatch(parts[0]):
        raise ConfigError("expected name:sha256-of-token:role", where=where)
    name, digest, role = parts[0], parts[1].lower(), parts[2]
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"expected the SHA-256 of {name}'s token, 64 hexadecimal digits (printf %s TOKEN | sha256sum)",
            where=where,
        )
    if role not in ROLES:
        raise ConfigError(f"unknown role {role!r}; must be one of {', '.join(ROLES)}", where=where)
    return TokenEntry(name=name, digest=digest, role=role)


class TokenFile:
    """A tokens file that is read again when it changes. While it cannot be read, no token is accepted."""

    def __init__(self, path: Path) -> None:
        """Read ``path``. Raises ConfigError: it is missing, malformed, or writable by other users."""
        self._path = path
        self._lock = threading.Lock()
        self._file = FileWatch(path)
        self._seen = self._fingerprint()
        self._entries = self._read()
        self._complete: tuple[TokenEntry, ...] | None = self._entries
        self._accepted: Mapping[tuple[str, str], str] | None = None

    @property
    def complete(self) -> tuple[TokenEntry, ...] | None:
        """The tokens of the file as of the last poll; None: it cannot be read."""
        return self._complete

    @property
    def is_settling(self) -> bool:
        """Whether the file has changed, and is read at a later poll."""
        return self._file.is_settling

    def poll(self, now: float, *, force: bool = False) -> bool:
        """Read the file if it has changed and is complete, or with ``force``; return whether ``complete`` changed."""
        before = self._complete
        if self._file.poll(now, force=force):
            try:
                entries: tuple[TokenEntry, ...] | None = self._read()
            except ConfigError:
                entries = None  # ``find`` logs why
            if self._file.is_current():
                self._complete = entries
        return self._complete != before

    def accept(self, tokens: Iterable[TokenEntry]) -> None:
        """Let ``find`` return these tokens only, with no higher roles; without a call, all of the file."""
        self._accepted = {(each.digest, each.name): each.role for each in tokens}

    def find(self, token: str) -> TokenEntry | None:
        """Return the entry of ``token``, with the role that was accepted if that is lower; None if there is none.

        A token that was removed is none at once. Raises Unauthenticated: the token waits until it is accepted.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        match = None
        for entry in self._current():  # compare all, so that timing reveals nothing
            if hmac.compare_digest(entry.digest, digest):
                match = entry
        if match is None or self._accepted is None:
            return match
        role = self._accepted.get((match.digest, match.name))
        if role is None:
            raise Unauthenticated(
                f"this token of {match.name} is not in force until an admin runs 'hcloud policy accept'"
            )
        return replace(match, role=min(match.role, role, key=ROLES.index))

    def _current(self) -> tuple[TokenEntry, ...]:
        with self._lock:
            try:
                seen = self._fingerprint()
                if seen != self._seen:
                    self._seen, self._entries = seen, ()
                    self._entries = self._read()
            except ConfigError as error:
                _log.error("no token is accepted until this is fixed: %s", error)
                self._entries = ()
            return self._entries

    def _fingerprint(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise ConfigError(f"cannot read the tokens file: {error.strerror}", where=str(self._path)) from error
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError("other users may write to this file; run chmod go-w on it", where=str(self._path))
        return (status.st_mtime_ns, status.st_size, status.st_ino)

    def _read(self) -> tuple[TokenEntry, ...]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the tokens file: {error}", where=str(self._path)) from error
        return parse_tokens(text, str(self._path))
