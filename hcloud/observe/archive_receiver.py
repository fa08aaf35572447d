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
from typing import IO, Literal, Self

from hcloud.core.clock import Clock
from hcloud.core.files import EarlyWriteback
from hcloud.provider import OutputsManifest, OutputsPiece

PIECE_BYTES = 64 << 20
"""What a machine is asked for at once; it comes in parts, each of which counts once it is here."""
HASHED_AT_ONCE_BYTES = 1 << 20
HASHED_IN_TURN_BYTES = 128 << 10
"""Less than this is hashed at once; more of it in a thread, while the next part comes and is written."""
UNHASHED_PARTS_MAX = 4

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
        never, began_at = threading.Event(), self.clock.now()
        came_at = began_at
        with part.open("a+b") as file, _HashedFile(file) as hashed:
            while True:
                before, piece = hashed.size_bytes, read(hashed.size_bytes, PIECE_BYTES)
                manifest = piece.manifest
                if manifest is not None and not manifest.bytes:
                    return Received(outcome="nothing", manifest=manifest)
                if manifest is not None and manifest.bytes > self.max_mib << 20:
                    return Received(outcome="too_large", manifest=manifest)
                # What is announced counts, not what comes: the machine may send for ever. Outputs begin to come while
                # they are packed; of what is too much, the machine is awaited to say so.
                is_full = not hashed.take(piece, manifest.bytes if manifest is not None else self.max_mib << 20)
                is_new, now = hashed.size_bytes > before, self.clock.now()
                if manifest is not None:
                    if hashed.size_bytes >= manifest.bytes or not is_new:
                        break
                    if now >= began_at + self.patience_s:
                        return Received(outcome="too_late", manifest=manifest)
                    continue
                came_at = now if is_new else came_at
                if now >= came_at + self.packing_s:
                    return Received(outcome="not_packed")
                if is_full or not is_new:
                    self.clock.wait(never, self.look_s)
            file.flush()
            os.fsync(file.fileno())
            whole = hashed.size_bytes == manifest.bytes and hashed.hexdigest() == manifest.sha256
        return Received(outcome="whole" if whole else "damaged", manifest=manifest)


class _HashedFile:
    """A growing file and the digest of all that is in it, computed in a thread of its own."""

    def __init__(self, file: IO[bytes]) -> None:
        """``file``: open for reading and writing; what is in it is of a daemon before, and hashed first."""
        self._file, self._digest, self._pool = file, hashlib.sha256(), ThreadPoolExecutor(1, "hashing")
        self._hashing = deque[Future[None]]()
        self._writeback = EarlyWriteback(file)
        self.size_bytes = 0

    def __enter__(self) -> Self:
        self._file.seek(0)
        while content := self._file.read(HASHED_AT_ONCE_BYTES):
            self._digest.update(content)
        self.size_bytes = self._file.tell()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, piece: OutputsPiece, most_bytes: int) -> bool:
        """Add a piece as it comes, until the file has ``most_bytes``; return whether all of it fitted.

        Raises WorkerUnreachable, OSError: what came before was added.
        """
        for content in piece.content:
            fitting = content[: most_bytes - self.size_bytes] if self.size_bytes < most_bytes else b""
            self._hash(fitting)
            self._file.write(fitting)
            self.size_bytes += len(fitting)
            self._writeback.note_size(self.size_bytes)
            if len(fitting) < len(content):
                return False
        return True

    def _hash(self, content: bytes) -> None:
        if len(content) < HASHED_IN_TURN_BYTES and not self._hashing:
            self._digest.update(content)
            return
        self._hashing.append(self._pool.submit(self._digest.update, content))
        if len(self._hashing) > UNHASHED_PARTS_MAX:
            self._hashing.popleft().result()

    def hexdigest(self) -> str:
        """Return the digest of the whole file."""
        while self._hashing:
            self._hashing.popleft().result()
        return self._digest.hexdigest()
