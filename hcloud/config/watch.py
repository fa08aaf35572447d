"""Reloading of the policy file: a valid edit takes effect, an invalid one leaves the last valid policy in force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hcloud.config.files import load_policy
from hcloud.core.errors import ConfigError
from hcloud.spec.policy import Policy

Fingerprint = tuple[int, int, int] | str
"""Time, size and inode of a file, or the error if there is none."""


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
        self._seen = _fingerprint(path)
        notes: list[str] = []
        policy = policy or load_policy(path, notes)
        self._status = PolicyStatus(policy=policy, digest=policy.digest, notes=tuple(notes))

    @property
    def status(self) -> PolicyStatus:
        """The result of the last poll."""
        return self._status

    def poll(self, *, force: bool = False) -> PolicyStatus:
        """Read the file if it changed (time, size or inode), or with ``force`` in any case."""
        fingerprint = _fingerprint(self.path)
        if fingerprint == self._seen and not force:
            self._status = replace(self._status, changed=False)
            return self._status
        # Taken before reading, so that the next poll notices an edit made meanwhile.
        self._seen, before = fingerprint, self._status
        try:
            notes: list[str] = []
            policy = load_policy(self.path, notes)
            after = PolicyStatus(policy=policy, digest=policy.digest, notes=tuple(notes))
        except ConfigError as error:
            after = replace(before, error=str(error))
        changed = (after.digest, after.error) != (before.digest, before.error)
        self._status = replace(after, changed=changed)
        return self._status


def _fingerprint(path: Path) -> Fingerprint:
    try:
        status = path.stat()
    except OSError as error:
        return str(error)
    return (status.st_mtime_ns, status.st_size, status.st_ino)
