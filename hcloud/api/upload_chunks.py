"""Uploads in chunks: a client asks which the daemon lacks, sends these, and has the archive put together.

Chunks are kept for each user apart, the newest ones up to the user's share, and are deleted like archives.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from hcloud.api.bodies import JsonRoute
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.errors import TooLarge
from hcloud.api.uploads import BINARY_BODY, CHUNKS_PREFIX, PART_PREFIX, Sha256, Upload, folder_of, publish
from hcloud.core.errors import BadInput, StoreBusy

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], route_class=JsonRoute)
CHUNK_BYTES_MAX: Final = 4 << 20
CHUNKS_MOST: Final = 20_000
CHUNKS_KEPT_MOST: Final = 2 * CHUNKS_MOST
"""Of one user: chunks may be small, and each is a file."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config={"extra": "forbid"})
class ChunkList:
    """The parts of an archive."""

    chunks: Annotated[
        tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...], Field(min_length=1, max_length=CHUNKS_MOST)
    ]
    """SHA-256 of each, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledUpload:
    """An archive made of chunks."""

    sha256: str
    bytes: int
    """0 as long as chunks are missing."""
    missing: tuple[str, ...]
    """Chunks that must be sent first."""


@router.post("/{sha256}/chunks")
def assemble_upload(context: Context, caller: CurrentCaller, sha256: Sha256, wanted: ChunkList) -> AssembledUpload:
    """Store an archive of chunks that you sent, if all are here, or return which are missing. Safe to repeat."""
    folder = folder_of(context.uploads_dir, caller.name, CHUNKS_PREFIX)
    missing = tuple(dict.fromkeys(each for each in wanted.chunks if not _touched(folder / each)))
    if missing:
        return AssembledUpload(sha256=sha256, bytes=0, missing=missing)
    try:
        folder_of(context.uploads_dir, caller.name).mkdir(mode=0o750, parents=True, exist_ok=True)
        size = _assemble(context, caller.name, sha256, [folder / each for each in wanted.chunks])
    except FileNotFoundError as error:  # deleted at this moment
        gone = Path(error.filename or "").name
        return AssembledUpload(sha256=sha256, bytes=0, missing=(gone,) if gone in wanted.chunks else wanted.chunks)
    except OSError as error:
        raise StoreBusy(f"cannot store the upload in {context.uploads_dir}: {error.strerror}") from error
    return AssembledUpload(sha256=sha256, bytes=size, missing=())


@router.put("/chunks/{sha256}", status_code=201, openapi_extra={"requestBody": BINARY_BODY})
async def store_chunk(context: Context, caller: CurrentCaller, request: Request, sha256: Sha256) -> Upload:
    """Store a part of an archive. Safe to repeat. Your oldest chunks are deleted where your share is used up."""
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > CHUNK_BYTES_MAX:
                raise TooLarge(f"a chunk has at most {CHUNK_BYTES_MAX} bytes")
    except ClientDisconnect as gone:
        raise BadInput("the upload was interrupted; nothing was stored") from gone
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BadInput(f"the {len(content)} bytes received do not have SHA-256 {sha256}; nothing was stored")
    try:
        await run_in_threadpool(_keep_chunk, context, caller.name, sha256, bytes(content))
    except OSError as error:
        raise StoreBusy(f"cannot store the upload in {context.uploads_dir}: {error.strerror}") from error
    return Upload(sha256=sha256, bytes=len(content))


def _touched(path: Path) -> bool:
    """Reset the age of a chunk; return whether it is here."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _keep_chunk(context: ApiContext, user: str, sha256: str, content: bytes) -> None:
    folder = folder_of(context.uploads_dir, user, CHUNKS_PREFIX)
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    kept = list[tuple[float, int, Path]]()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            state = path.stat()
            kept.append((state.st_mtime, state.st_size, path))
    used, count = sum(size for _, size, _ in kept) + len(content), len(kept) + 1
    for _, size, path in sorted(kept):
        if used <= context.max_user_upload_bytes and count <= CHUNKS_KEPT_MOST:
            break
        path.unlink(missing_ok=True)
        used, count = used - size, count - 1
    handle, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=context.uploads_dir)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(part).rename(folder / sha256)
    finally:
        Path(part).unlink(missing_ok=True)


def _assemble(context: ApiContext, user: str, sha256: str, chunks: list[Path]) -> int:
    """Put chunks together and store the archive; return its size. Raises FileNotFoundError: one is gone."""
    handle, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=context.uploads_dir)
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                content = chunk.read_bytes()
                size += len(content)
                if size > context.max_upload_bytes:
                    raise TooLarge(f"the archive has more than {context.max_upload_bytes} bytes, the limit")
                digest.update(content)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise BadInput(f"the chunks make an archive with SHA-256 {digest.hexdigest()}, not {sha256}")
        publish(context, user, Path(part), sha256)
    finally:
        Path(part).unlink(missing_ok=True)
    return size
