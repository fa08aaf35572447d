"""Content of files, which flows from agents to the daemon as plain bytes, past the messages of the wire.

An agent sends a part of an open file (:class:`FileRange`) in frames; the gateway passes each on as it came
(:class:`ContentStream`), so that it holds one frame of each stream at a time. Between gateway and daemon it flows
through a Unix socket beside that for messages: a connection for each request, which is a length (4 bytes, big-endian)
and that many bytes; the answer is a length, a document, and content until the connection is closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hcloud.engine.channel import CONTENT_BYTES_MAX, FRAME_BYTES, MESSAGE_BYTES_MAX

REQUEST_BYTES_MAX = 1 << 16


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


async def send(call: Any, answer: bytes, content: FileRange) -> None:
    """Send an answer and its content over an open call, each frame once there is room for it. Raises OSError."""
    await call.write(answer)
    frames = content.frames()
    while (frame := await asyncio.to_thread(next, frames, b"")) != b"":
        await call.write(frame)
    await call.done_writing()
    await call
