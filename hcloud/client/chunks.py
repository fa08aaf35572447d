"""Archives cut into chunks that stay the same where their content does, so that only what changed is sent.

A chunk ends with a file, or after a megabyte of a large one. Each is compressed by itself; all of them together are one
ordinary gzip file, of which the daemon needs to know no more than the digests of its parts.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import IO, Any, Final

CHUNK_BYTES: Final = 1 << 20
"""Most plain bytes of a chunk."""
LEAST_BYTES: Final = 64 << 10
ONE_IN: Final = 4
"""A chunk of at least so many bytes ends with one in so many names: others may come and go before it."""
_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an archive."""

    sha256: str
    offset: int
    size_bytes: int


class ChunkedGzip:
    """Writes gzip, and remembers its chunks; made for :mod:`tarfile`."""

    def __init__(self, out: IO[bytes] | Any) -> None:
        self._out, self._held, self._crc, self._size = out, bytearray(), 0, 0
        self._prefix, self._offset = _HEADER, 0
        self.chunks = list[Chunk]()

    def tell(self) -> int:
        """Return how many plain bytes were written."""
        return self._size

    def write(self, content: bytes) -> int:
        """Take plain bytes."""
        self._crc, self._size = zlib.crc32(content, self._crc), self._size + len(content)
        self._held += content
        while len(self._held) >= CHUNK_BYTES:
            self._end(CHUNK_BYTES)
        return len(content)

    def begin_file(self, size_bytes: int) -> None:
        """Begin a chunk with a large file."""
        if size_bytes >= CHUNK_BYTES:
            self._end(len(self._held))

    def end_file(self, name: str, size_bytes: int) -> None:
        """End a chunk after a large file, or where a name says so."""
        is_cut = hashlib.sha256(name.encode()).digest()[0] % ONE_IN == 0 and len(self._held) >= LEAST_BYTES
        if size_bytes >= CHUNK_BYTES or is_cut:
            self._end(len(self._held))

    def close(self) -> None:
        """Write what is left."""
        self._end(len(self._held))
        trailer = struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
        self._emit(zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS).flush(zlib.Z_FINISH) + trailer)

    def _end(self, count: int) -> None:
        if not count:
            return
        packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        content = packer.compress(bytes(self._held[:count])) + packer.flush(zlib.Z_FULL_FLUSH)
        del self._held[:count]
        self._emit(content)

    def _emit(self, content: bytes) -> None:
        content, self._prefix = self._prefix + content, b""
        self._out.write(content)
        self.chunks.append(Chunk(hashlib.sha256(content).hexdigest(), self._offset, len(content)))
        self._offset += len(content)
