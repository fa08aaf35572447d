"""Persistent rows in an append-only file: one JSON line per write, under a lock. The latest row of a key wins."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import to_json


class FileJournal:
    """A ``Journal`` in a file, shared by threads and processes.

    If a writer is killed in the middle of a line, the next holder cuts that line off. So each write happens
    entirely or not at all. Nothing is synced to disk: the file survives the process, not a crash of the host.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._lock = threading.Lock()
        self._read_to = 0

    @contextmanager
    def hold(self) -> Iterator[Mapping[str, object]]:
        """Lock out every other thread and process; yield the rows that others have written since the last hold."""
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield self._read_new_rows()
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def write(self, rows: Mapping[str, object]) -> None:
        """Append rows, all or none. Call only while holding."""
        line = memoryview(to_json(rows, inf_nan_mode="constants") + b"\n")
        written = len(line)
        while line:
            line = line[os.write(self._file, line) :]
        self._read_to += written

    def _read_new_rows(self) -> Mapping[str, object]:
        size = os.fstat(self._file).st_size
        if size == self._read_to:
            return {}
        text = os.pread(self._file, size - self._read_to, self._read_to)
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.ftruncate(self._file, self._read_to + whole)
        self._read_to += whole
        rows: dict[str, object] = {}
        for line in text[:whole].splitlines():
            rows.update(json.loads(line))
        return rows
