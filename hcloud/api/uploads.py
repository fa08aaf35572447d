"""Uploads of work directories: archives named by their SHA-256, stored completely or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from fastapi import APIRouter
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from hcloud.api.context import Context
from hcloud.core.errors import BadInput, NotFound, StoreBusy

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
PART_PREFIX = ".part-"
SUFFIX = ".tar.gz"
Sha256 = Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive, in hexadecimal")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An archive that the daemon stores."""

    sha256: str
    bytes: int


def archive_path(uploads_dir: Path, sha256: str) -> Path:
    """Return the path of a complete archive."""
    return uploads_dir / f"{sha256}{SUFFIX}"


def remove_parts(uploads_dir: Path) -> None:
    """Delete incomplete uploads of a killed daemon. Call before the server starts."""
    for part in uploads_dir.glob(PART_PREFIX + "*"):
        part.unlink(missing_ok=True)


def touch_archive(uploads_dir: Path, sha256: str) -> bool:
    """Reset the age of an archive; return whether it exists."""
    try:
        os.utime(archive_path(uploads_dir, sha256))
    except FileNotFoundError:
        return False
    return True


def prune(uploads_dir: Path, in_use: Collection[str], before: float) -> int:
    """Delete archives that were not used since ``before`` (Unix seconds) and are not in ``in_use``.

    Returns how many were deleted. ``in_use``: digests of archives that live jobs need.
    """
    old = [path for path in uploads_dir.glob("*" + SUFFIX) if path.stat().st_mtime < before]
    unused = [path for path in old if path.name.removesuffix(SUFFIX) not in in_use]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


@router.get("/{sha256}")
def find_upload(context: Context, sha256: Sha256) -> Upload:
    """Return whether the daemon has this archive (404 if not), so that it need not be sent again."""
    # The caller is about to submit a job with it, so it must not be pruned now.
    if not touch_archive(context.uploads_dir, sha256):
        raise NotFound(f"archive {sha256} has not been uploaded")
    return Upload(sha256=sha256, bytes=archive_path(context.uploads_dir, sha256).stat().st_size)


_BODY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "required": True}


@router.put("/{sha256}", status_code=201, openapi_extra={"requestBody": _BODY})
async def store_upload(context: Context, request: Request, sha256: Sha256) -> Upload:
    """Store a work directory as tar.gz. Safe to repeat."""
    try:
        context.uploads_dir.mkdir(exist_ok=True)  # the directory may have been deleted
        handle, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=context.uploads_dir)
        try:
            with os.fdopen(handle, "wb") as file:
                size = await _receive(request, file, sha256)
                await run_in_threadpool(_sync, file)
            await run_in_threadpool(_publish, Path(part), archive_path(context.uploads_dir, sha256))
        finally:
            Path(part).unlink(missing_ok=True)
    except ClientDisconnect as gone:
        raise BadInput("the upload was interrupted; nothing was stored") from gone
    except OSError as error:  # mostly a full disk
        raise StoreBusy(f"cannot store the upload in {context.uploads_dir}: {error.strerror}") from error
    return Upload(sha256=sha256, bytes=size)


async def _receive(request: Request, file: BinaryIO, sha256: str) -> int:
    digest, size = hashlib.sha256(), 0
    async for chunk in request.stream():
        digest.update(chunk)
        size += len(chunk)
        file.write(chunk)
    if digest.hexdigest() != sha256:
        raise BadInput(f"the {size} bytes received have SHA-256 {digest.hexdigest()}, not {sha256}; nothing was stored")
    return size


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(part: Path, target: Path) -> None:
    part.chmod(0o640)
    part.rename(target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
