"""Work directories on their way to the engine: archives named by their SHA-256, stored whole or not at all."""

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
    """An archive the daemon has."""

    sha256: str
    bytes: int


def archive_path(uploads_dir: Path, sha256: str) -> Path:
    """Return where the archive of that digest lies once it is whole."""
    return uploads_dir / f"{sha256}{SUFFIX}"


def remove_parts(uploads_dir: Path) -> None:
    """Delete what a killed daemon left half written; call before anything can be uploaded."""
    for part in uploads_dir.glob(PART_PREFIX + "*"):
        part.unlink(missing_ok=True)


def note_use(uploads_dir: Path, sha256: str) -> bool:
    """Count an archive's age from now on, and return whether there is one."""
    try:
        os.utime(archive_path(uploads_dir, sha256))
    except FileNotFoundError:
        return False
    return True


def prune(uploads_dir: Path, in_use: Collection[str], before: float) -> int:
    """Delete archives not used since ``before`` (Unix seconds) and no digest ``in_use`` names; return how
    many."""
    old = [path for path in uploads_dir.glob("*" + SUFFIX) if path.stat().st_mtime < before]
    unused = [path for path in old if path.name.removesuffix(SUFFIX) not in in_use]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


@router.get("/{sha256}")
def find_upload(context: Context, sha256: Sha256) -> Upload:
    """Return whether the daemon has this archive already (404 if not), so that it need not be sent again."""
    # Whoever asks is about to submit a job with it: from now on it must not count as forgotten.
    if not note_use(context.uploads_dir, sha256):
        raise NotFound(f"no archive {sha256} was uploaded")
    return Upload(sha256=sha256, bytes=archive_path(context.uploads_dir, sha256).stat().st_size)


_BODY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "required": True}


@router.put("/{sha256}", status_code=201, openapi_extra={"requestBody": _BODY})
async def store_upload(context: Context, request: Request, sha256: Sha256) -> Upload:
    """Take a work directory as tar.gz. Repeating it is harmless."""
    try:
        context.uploads_dir.mkdir(exist_ok=True)  # somebody may have cleared up with a broad hand
        handle, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=context.uploads_dir)
        try:
            with os.fdopen(handle, "wb") as file:
                size = await _receive(request, file, sha256)
                await run_in_threadpool(_sync, file)
            await run_in_threadpool(_publish, Path(part), archive_path(context.uploads_dir, sha256))
        finally:
            Path(part).unlink(missing_ok=True)
    except ClientDisconnect as gone:
        raise BadInput("the upload broke off; nothing was stored") from gone
    except OSError as error:  # a full disk, above all
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
