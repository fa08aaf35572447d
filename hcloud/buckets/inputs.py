"""Lists of what machines are to fetch for an attempt, made in threads beside the daemon's loop.

A list is a JSON file that goes to each machine of the attempt as an archive does: for each file its path, size, signed
URL, and what shows that it is the content that was listed. It is deleted once the attempt has started.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hcloud.buckets.access import BucketAccess, BucketFile
from hcloud.buckets.clients import BucketProblem
from hcloud.core.model import AttemptId, JobSpec

_log = logging.getLogger("hcloud")
VALID_S: Final = 6 * 3600.0
"""So long a machine may take to fetch its inputs; then its URLs end."""
AT_ONCE: Final = 4
"""Attempts whose lists are made at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedInputs:
    """What is known of the inputs of an attempt."""

    path: Path | None = None
    """The list; None while it is being made, or where it cannot be."""
    problem: str = ""
    """Why it cannot be made."""
    files: int = 0
    bytes: int = 0

    @property
    def is_pending(self) -> bool:
        """Whether it is still being made."""
        return self.path is None and not self.problem


@dataclass(slots=True)
class InputPreparer:
    """Makes lists of inputs. What hangs here delays starts of jobs with inputs only."""

    folder: Path
    access: BucketAccess
    on_done: Callable[[], object] = lambda: None
    """Called when a list is made."""
    _known: dict[AttemptId, PreparedInputs] = field(default_factory=dict)
    _waiting: dict[AttemptId, JobSpec] = field(default_factory=dict)
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepared(self, attempt: AttemptId, spec: JobSpec) -> PreparedInputs:
        """Return the list of an attempt's inputs, or that it is being made. Never waits."""
        with self._lock:
            found = self._known.get(attempt)
            if found is not None and not (found.path is not None and not found.path.exists()):
                return found
            self._known[attempt] = PreparedInputs()
            self._waiting[attempt] = spec
            begin = self._running < AT_ONCE
            self._running += begin
        if begin:
            threading.Thread(target=self._work, name="inputs", daemon=True).start()
        return PreparedInputs()

    def drop(self, attempt: AttemptId) -> None:
        """Delete the list of an attempt that has started, or never will."""
        with self._lock:
            found = self._known.pop(attempt, None)
            self._waiting.pop(attempt, None)
        if found is not None and found.path is not None:
            found.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the lists of a daemon before."""
        for path in self.folder.glob("*") if self.folder.exists() else ():
            path.unlink(missing_ok=True)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                attempt = next(iter(self._waiting))
                spec = self._waiting.pop(attempt)
            made = self._made(attempt, spec)
            with self._lock:
                is_wanted = attempt in self._known
                if is_wanted:
                    self._known[attempt] = made
            if not is_wanted and made.path is not None:
                made.path.unlink(missing_ok=True)
            self.on_done()

    def _made(self, attempt: AttemptId, spec: JobSpec) -> PreparedInputs:
        try:
            files = self.access.files(spec.inputs, spec.user, spec.resources.disk_gib)
            listed = [_entry(each) for each in files]
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{attempt}.json"
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps({"files": listed}))
            new.rename(path)
        except BucketProblem as error:
            return PreparedInputs(problem=f"its inputs cannot be listed: {error}")
        except OSError as error:
            return PreparedInputs(problem=f"its inputs cannot be listed in {self.folder}: {error.strerror}")
        except Exception as defect:  # noqa: BLE001 any defect: the attempt fails, and may be tried again
            _log.exception("listing the inputs of %s failed, a defect", attempt)
            return PreparedInputs(problem=f"its inputs cannot be listed: {type(defect).__name__}")
        return PreparedInputs(path=path, files=len(files), bytes=sum(each.stored.size_bytes for each in files))


def _entry(each: BucketFile) -> dict[str, Any]:
    signed = each.client.sign_get(each.bucket, each.stored, VALID_S)
    return {
        "path": each.path,
        "bytes": each.stored.size_bytes,
        "url": signed.url,
        "headers": dict(signed.headers),
        "answers": dict(signed.answers),
        "md5": each.stored.md5,
        "key": each.stored.key,
    }
