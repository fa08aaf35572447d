"""Archives of machines, received in pieces into a file: outputs of ended units, and checkpoints of running ones."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from hcloud.core.clock import Clock
from hcloud.core.files import EarlyWriteback
from hcloud.provider import OutputsManifest, OutputsPiece

PIECE_BYTES = 1 << 20
"""What a machine is asked for at once: less than it sends at most, so that a shorter piece is known to be the last."""
AHEAD = 3
"""Pieces on their way while one is hashed and written; all of them must come within the time limit of one call."""
HASHED_AT_ONCE_BYTES = 1 << 20

ReadPiece = Callable[[int, int], OutputsPiece]
"""Offset, limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """How receiving ended."""

    outcome: Literal["whole", "nothing", "not_packed", "too_late", "damaged", "too_large"]
    """``nothing``: the machine has nothing; ``not_packed``: not within the time for that; ``too_late``: it took too
    long; ``damaged``: other bytes than were announced; ``too_large``: more was announced than is allowed."""
    manifest: OutputsManifest = field(default_factory=OutputsManifest)
    """What was announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReceiver:
    """Receives one archive after the other. Safe in several threads."""

    clock: Clock
    max_mib: int
    """Largest archive."""
    packing_s: float
    """How long a machine is asked for what it is still packing, since something of it came last."""
    look_s: float
    """How often."""
    patience_s: float = float("inf")
    """How long it may take in all."""

    def receive(self, read: ReadPiece, part: Path) -> Received:
        """Add to ``part`` what it lacks of an archive, and compare the whole with its digest; it is on the disk then.

        Raises WorkerUnreachable, and OSError if it cannot be written: another call goes on from there.
        """
        never, began_at, digest = threading.Event(), self.clock.now(), hashlib.sha256()
        came_at = began_at
        with part.open("a+b") as file, _PiecesAhead(read) as pieces:
            writeback = EarlyWriteback(file)
            file.seek(0)
            while content := file.read(HASHED_AT_ONCE_BYTES):  # of a daemon before
                digest.update(content)
            while True:
                piece = pieces.read(file.tell())
                manifest, now = piece.manifest, self.clock.now()
                if manifest is None:
                    # Outputs begin to come while they are packed. What is too much waits for the machine to say so.
                    content = piece.content if file.tell() + len(piece.content) <= self.max_mib << 20 else b""
                    digest.update(content)
                    file.write(content)
                    writeback.note_size(file.tell())
                    came_at = now if content else came_at
                    if now >= came_at + self.packing_s:
                        return Received(outcome="not_packed")
                    if not content:
                        self.clock.wait(never, self.look_s)
                    continue
                if not manifest.bytes:
                    return Received(outcome="nothing", manifest=manifest)
                if manifest.bytes > self.max_mib << 20:
                    return Received(outcome="too_large", manifest=manifest)
                # What is announced counts, not what comes: the machine may send for ever.
                content = piece.content[: max(0, manifest.bytes - file.tell())]
                digest.update(content)
                file.write(content)
                writeback.note_size(file.tell())
                if file.tell() >= manifest.bytes or piece.end or not content:
                    break
                if now >= began_at + self.patience_s:
                    return Received(outcome="too_late", manifest=manifest)
            file.flush()
            os.fsync(file.fileno())
            whole = file.tell() == manifest.bytes and digest.hexdigest() == manifest.sha256
        return Received(outcome="whole" if whole else "damaged", manifest=manifest)


class _PiecesAhead:
    """Reads pieces; while they are read in order and come in full, it asks for the following ones ahead."""

    def __init__(self, read: ReadPiece) -> None:
        self._read, self._pool = read, ThreadPoolExecutor(AHEAD, "outputs ahead")
        self._asked = deque[tuple[int, Future[OutputsPiece]]]()
        self._expected = -1
        """Where the piece after the last one begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, offset: int) -> OutputsPiece:
        """Return the piece that begins at ``offset``. Raises what reading raises."""
        if self._asked and self._asked[0][0] == offset:
            piece = self._asked.popleft()[1].result()
        else:
            self._asked.clear()
            piece = self._read(offset, PIECE_BYTES)
        is_in_order, self._expected = offset == self._expected, offset + len(piece.content)
        if not is_in_order or len(piece.content) < PIECE_BYTES:
            return piece
        end = piece.manifest.bytes if piece.manifest is not None else offset + PIECE_BYTES * (1 + AHEAD)
        following = offset + PIECE_BYTES * (1 + len(self._asked))
        while len(self._asked) < AHEAD and following < end:
            self._asked.append((following, self._pool.submit(self._read, following, PIECE_BYTES)))
            following += PIECE_BYTES
        return piece
