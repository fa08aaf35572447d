"""Reloading of the policy file: a valid edit takes effect, an invalid one leaves the last valid policy in force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from hcloud.config.files import load_policy
from hcloud.core.errors import ConfigError
from hcloud.spec.policy import Policy

Fingerprint = tuple[int, int, int] | str
"""Time, size and inode of a file, or the error if there is none."""
SETTLE_S = 1.0
"""How long a file must stay the same before it is read: one that is being written is empty or cut off."""


class FileWatch:
    """Reports when a file has changed and is complete. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Watch ``path``; its current content counts as read."""
        self.path = path
        self._read = self._seen = _fingerprint(path)
        self._seen_at = -inf

    @property
    def is_settling(self) -> bool:
        """Whether the file has changed, and may still be written."""
        return self._seen != self._read

    def poll(self, now: float, *, force: bool = False) -> bool:
        """Return whether to read the file: it differs and has stayed the same for ``SETTLE_S``, or ``force``."""
        fingerprint = _fingerprint(self.path)
        if fingerprint != self._seen:
            self._seen, self._seen_at = fingerprint, now
        is_young = 0.0 <= now - self._seen_at < SETTLE_S  # a clock that was set back ends the wait
        if not force and (not self.is_settling or is_young):
            return False
        self._read = fingerprint
        return True

    def is_current(self) -> bool:
        """Return whether the file is still the one that was to be read: what was read of another may be cut off."""
        return _fingerprint(self.path) == self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """The policy in force, and the error of the file if its current content is not valid."""

    policy: Policy
    digest: str
    error: str | None = None
    """Why the current content of the file is not valid; None: it is in force."""
    changed: bool = False
    """Whether policy or error changed since the previous poll."""
    notes: tuple[str, ...] = ()
    """A sentence for each key of the policy in force that was renamed or removed."""


class PolicyWatch:
    """Holds the last valid policy of one file. Not thread-safe."""

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        """Read ``path``, or start with ``policy`` as its content.

        Raises:
            ConfigError: no ``policy`` was given, and the file contains no valid one.
        """
        self.path = path
        self._file = FileWatch(path)
        notes: list[str] = []
        policy = policy or load_policy(path, notes)
        self._status = PolicyStatus(policy=policy, digest=policy.digest, notes=tuple(notes))

    @property
    def status(self) -> PolicyStatus:
        """The result of the last poll."""
        return self._status

    @property
    def is_settling(self) -> bool:
        """Whether the file has changed, and is read at a later poll."""
        return self._file.is_settling

    def poll(self, now: float, *, force: bool = False) -> PolicyStatus:
        """Read the file if it has changed (time, size or inode) and is complete, or with ``force`` in any case."""
        before = self._status
        self._status = replace(before, changed=False)
        if not self._file.poll(now, force=force):
            return self._status
        try:
            notes: list[str] = []
            policy = load_policy(self.path, notes)
            after = PolicyStatus(policy=policy, digest=policy.digest, notes=tuple(notes))
        except ConfigError as error:
            after = replace(before, error=str(error))
        if self._file.is_current():
            changed = (after.digest, after.error) != (before.digest, before.error)
            self._status = replace(after, changed=changed)
        return self._status


def _fingerprint(path: Path) -> Fingerprint:
    try:
        status = path.stat()
    except OSError as error:
        return str(error)
    return (status.st_mtime_ns, status.st_size, status.st_ino)
