"""A unit's output on disk: segments named by the offset of their first byte; old ones can go, offsets stay."""

from __future__ import annotations

import os
from pathlib import Path

SEGMENTS = 8


class OutputFile:
    """Appends one stream; keeps the newest part when it grows over ``limit_bytes``. Raises OSError (disk full)."""

    def __init__(self, directory: Path, stream: str, limit_bytes: int) -> None:
        self._prefix = directory / stream
        self._segment_bytes = max(4096, limit_bytes // SEGMENTS)
        self._starts = _starts(directory, stream)  # what an earlier phase (the setup) wrote stays
        self._offset = 0
        if self._starts:
            self._offset = self._starts[-1] + _segment(self._prefix, self._starts[-1]).stat().st_size
        self._handle = -1

    @property
    def offset(self) -> int:
        """How much was written, in bytes, what was dropped since included."""
        return self._offset

    def write(self, content: bytes) -> None:
        """Append, and drop the oldest segment when there are too many."""
        if self._handle < 0 or self._offset + len(content) > self._starts[-1] + self._segment_bytes:
            self._next_segment()
        view = memoryview(content)
        while view:
            written = os.write(self._handle, view)
            self._offset += written
            view = view[written:]

    def _next_segment(self) -> None:
        self.close()
        if self._offset not in self._starts:
            self._starts.append(self._offset)
        path, flags = _segment(self._prefix, self._offset), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._handle = os.open(path, flags, 0o600)
        except FileNotFoundError:  # the first output of all
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._handle = os.open(path, flags, 0o600)
        while len(self._starts) > SEGMENTS:
            _segment(self._prefix, self._starts.pop(0)).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the present segment."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read_output(directory: Path, stream: str, offset: int, limit: int) -> tuple[bytes, int, bool]:
    """Return content from ``offset`` (at most ``limit`` bytes), the next offset, and whether nothing is behind it now.

    Where the part at ``offset`` was dropped, one line says how much, and reading goes on behind the gap.
    """
    starts = _starts(directory, stream)
    if not starts:
        return b"", offset, True
    if offset < starts[0]:
        return f"[hcloud: {starts[0] - offset} bytes of older output were dropped]\n".encode(), starts[0], False
    at = max(index for index, start in enumerate(starts) if start <= offset)
    last = at == len(starts) - 1
    try:
        with _segment(directory / stream, starts[at]).open("rb") as file:
            file.seek(offset - starts[at])
            content = file.read(limit)
            behind = file.tell() < os.fstat(file.fileno()).st_size
    except FileNotFoundError:  # dropped just now
        return b"", offset, False
    if not content and not last:
        return read_output(directory, stream, starts[at + 1], limit)
    return content, offset + len(content), last and not behind


def written_streams(directory: Path) -> list[str]:
    """Return the streams to which anything was written, in order of name."""
    try:
        return sorted({name.partition(".")[0] for name in os.listdir(directory)})
    except FileNotFoundError:
        return []


def _segment(prefix: Path, start: int) -> Path:
    return prefix.with_name(f"{prefix.name}.{start:015d}")


def _starts(directory: Path, stream: str) -> list[int]:
    head = f"{stream}."
    try:
        return sorted(int(name[len(head) :]) for name in os.listdir(directory) if name.startswith(head))
    except FileNotFoundError:
        return []
