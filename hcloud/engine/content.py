"""Content of files, which flows from agents to the daemon as plain bytes, past the messages of the wire.

An agent sends a part of an open file (:class:`FileRange`), or what a process writes (:class:`PipeRange`), in frames;
the gateway passes each on as it came (:class:`ContentStream`), so that it holds one frame of each stream at a time.
Between gateway and daemon it flows through a Unix socket beside that for messages: a connection for each request, which
is a length (4 bytes, big-endian) and that many bytes; the answer is a length, a document, and content until the
connection is closed.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hcloud.engine.channel import CONTENT_BYTES_MAX, FRAME_BYTES, MESSAGE_BYTES_MAX

REQUEST_BYTES_MAX = 1 << 16
STALLED_S = 1.0
"""A frame of a pipe is sent as it is when nothing more came for so long."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A part of a file that stays open: it may be renamed meanwhile."""

    file: IO[bytes]
    offset: int
    size_bytes: int

    @classmethod
    def of(cls, path: Path, offset: int, limit: int) -> FileRange:
        """Return what a file holds from ``offset`` on, at most ``limit`` bytes. Raises OSError."""
        file = path.open("rb")  # closed by what reads it
        return cls(file, offset, max(0, min(limit, os.fstat(file.fileno()).st_size - offset)))

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + self.size_bytes

    def frames(self) -> Iterator[bytes]:
        """Yield its content; it is closed then. A file that became shorter yields less. Raises OSError."""
        with self.file as file:
            for at in range(self.offset, self.end, FRAME_BYTES):
                yield os.pread(file.fileno(), min(FRAME_BYTES, self.end - at), at)

    def read(self) -> bytes:
        """Return its content; it is closed then. Raises OSError."""
        return b"".join(self.frames())


class PipeReader:
    """Reads what a process writes to a pipe, part by part, each in whichever thread. Safe in several threads."""

    def __init__(self, pipe: IO[bytes], offset: int) -> None:
        """``pipe``: without a buffer; closed by :meth:`close`. ``offset``: of its first byte in the whole."""
        self._pipe, self._offset = pipe, offset
        self._lock, self._is_read, self._is_closed = threading.Lock(), False, False

    @property
    def offset(self) -> int | None:
        """The offset of what is read next; None while a part is being read, or once it is closed."""
        with self._lock:
            return None if self._is_read or self._is_closed else self._offset

    def is_at_end(self) -> bool:
        """Return whether all is read, and nothing writes to it any more."""
        with self._lock:
            return not self._is_closed and not self._is_read and self._events(0.0) == select.POLLHUP

    def frames(self, limit: int) -> Iterator[bytes]:
        """Yield what comes, at most ``limit`` bytes, until nothing does for STALLED_S; all but the last are full."""
        with self._lock:
            if self._is_read or self._is_closed:
                return
            self._is_read = True
        last = b""
        try:
            while limit > 0:
                frame = self._frame(min(FRAME_BYTES, limit))
                limit -= len(frame)
                if limit <= 0 or len(frame) < FRAME_BYTES:
                    last = frame
                    break
                yield frame
        finally:
            self._end_reading()
        if last:  # now: the next part may be asked for before this returns
            yield last

    def _end_reading(self) -> None:
        with self._lock:
            self._is_read = False
            if self._is_closed:
                self._pipe.close()

    def _frame(self, size_bytes: int) -> bytes:
        """Return so many bytes, or fewer if the pipe is at its end or stalled."""
        frame, filled = bytearray(size_bytes), 0
        with memoryview(frame) as view:
            while filled < size_bytes and self._events(STALLED_S) and not self._is_closed:
                if not (count := os.readv(self._pipe.fileno(), [view[filled:]])):
                    break
                filled += count
        self._offset += filled
        return bytes(frame) if filled == size_bytes else bytes(frame[:filled])

    def _events(self, within_s: float) -> int:
        poll = select.poll()
        poll.register(self._pipe.fileno(), select.POLLIN)
        found = poll.poll(1000 * within_s)
        return found[0][1] if found else 0

    def close(self) -> None:
        """Close the pipe, or have it closed by what reads it."""
        with self._lock:
            self._is_closed = True
            if not self._is_read:
                self._pipe.close()


@dataclass(frozen=True, slots=True)
class PipeRange:
    """What a pipe brings next."""

    reader: PipeReader
    limit: int
    size_bytes: int = -1
    """Not known."""

    def frames(self) -> Iterator[bytes]:
        """Yield its content; all frames but the last are full."""
        return self.reader.frames(self.limit)

    def read(self) -> bytes:
        """Return its content."""
        return b"".join(self.frames())


@dataclass(frozen=True, slots=True)
class ContentStream:
    """An agent's answer to one command: a document, then frames."""

    document: bytes
    incoming: AsyncIterator[bytes]

    async def frames(self, idle_s: float, may_go_on: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield frames until one is not full, which is the last, or the most that may be have come, none comes within
        ``idle_s``, or it may not go on: so their number is bounded, too."""
        with suppress(TimeoutError, StopAsyncIteration):
            for _ in range(CONTENT_BYTES_MAX // FRAME_BYTES):
                if not may_go_on():
                    return
                async with asyncio.timeout(idle_s):
                    frame = await anext(self.incoming)
                yield frame
                if len(frame) != FRAME_BYTES:
                    return


def content_socket(path: Path) -> Path:
    """Return the socket for content of a gateway whose socket for messages is ``path``."""
    return path.with_name(f"{path.name}.content")


def ask(path: Path, request: bytes, within_s: float) -> Iterator[bytes]:
    """Yield the document of an answer, then its content as it comes; the connection is closed with the iterator.

    ``within_s``: the time limit of each part. Raises OSError, also if the gateway goes before there is a document.
    """
    limit = struct.pack("ll", int(within_s), int(within_s % 1 * 1e6))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        # Not settimeout, with which the kernel would wake this thread for each few kilobytes.
        for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, which, limit)
        connection.sendall(struct.pack(">I", len(request)) + request)
        length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
        document = connection.recv(min(length, MESSAGE_BYTES_MAX), socket.MSG_WAITALL)
        if not length or len(document) < length:
            raise ConnectionError("it closed the connection")
        yield document
        while part := connection.recv(FRAME_BYTES, socket.MSG_WAITALL):
            yield part


async def serve(path: Path, answer: Callable[[bytes], AsyncGenerator[bytes, None]]) -> asyncio.Server:
    """Answer requests on a new Unix socket with a document, then frames of content. Raises OSError."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            length = int.from_bytes(await reader.readexactly(4))
            if length <= REQUEST_BYTES_MAX:
                async with aclosing(answer(await reader.readexactly(length))) as frames:
                    document = await anext(frames)
                    writer.write(struct.pack(">I", len(document)) + document)
                    async for frame in frames:
                        writer.write(frame)
                        await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(serve_one, path)


async def send(call: Any, answer: bytes, content: FileRange | PipeRange) -> None:
    """Send an answer and its content over an open call, each frame once there is room for it. Raises OSError."""
    await call.write(answer)
    frames = content.frames()
    while (frame := await asyncio.to_thread(next, frames, b"")) != b"":
        await call.write(frame)
    await call.done_writing()
    await call
