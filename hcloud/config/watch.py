"""Following the policy file: an edit takes effect, a broken edit leaves the last good policy in force and says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hcloud.config.files import load_policy
from hcloud.core.errors import ConfigError
from hcloud.spec.policy import Policy

Fingerprint = tuple[int, int, int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """The policy in force and, when the file holds something else that is wrong, what is wrong with it."""

    policy: Policy
    digest: str
    error: str | None = None
    """Why the file as it is now was not taken; None when it is in force."""
    changed: bool = False
    """Whether policy or error differ from what the poll before told."""
    notes: tuple[str, ...] = ()
    """A sentence for each key of the policy in force that was renamed or removed."""


class PolicyWatch:
    """Keeps the last good policy of one file. Not for use by several threads at once."""

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        """Read ``path``, or start from ``policy`` as if it had been read just now.

        Raises:
            ConfigError: no policy was given and the file holds no valid one.
        """
        self.path = path
        self._seen = _fingerprint(path)
        notes: list[str] = []
        policy = policy or load_policy(path, notes)
        self._status = PolicyStatus(policy=policy, digest=policy.digest, notes=tuple(notes))

    @property
    def status(self) -> PolicyStatus:
        """What the last poll found."""
        return self._status

    def poll(self, *, force: bool = False) -> PolicyStatus:
        """Take what the file holds if it changed (time, size or inode); ``force`` reads it in any case."""
        seen = _fingerprint(self.path)
        if seen == self._seen and not force:
            self._status = replace(self._status, changed=False)
            return self._status
        # The fingerprint from before the reading: an edit during it is seen by the next poll.
        self._seen, before = seen, self._status
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
    """Identify a file's content cheaply; a file that cannot be looked at has the reason as its fingerprint."""
    try:
        found = path.stat()
    except OSError as error:
        return str(error)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
