"""Uploads of work directories: archives named by their SHA-256, stored completely or not at all.

An archive belongs to all who sent it: a file of its name lies in ``of-<user>``. Others can neither use it nor see that
it exists.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from hcloud.api.auth import Caller, Role
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.errors import TooLarge
from hcloud.core.errors import BadInput, NotFound, Refused, StoreBusy

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
PART_PREFIX = ".part-"
SUFFIX = ".tar.gz"
OWNER_PREFIX, CHUNKS_PREFIX = "of-", "chunks-of-"
_publishing = threading.Lock()
"""Held while a user's share is counted and used."""
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


def touch_archive(uploads_dir: Path, sha256: str, caller: Caller) -> bool:
    """Reset the age of an archive; return whether it exists and the caller may use it."""
    if caller.role is not Role.ADMIN and not (folder_of(uploads_dir, caller.name) / sha256).exists():
        return False
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
    for chunk in uploads_dir.glob(f"{CHUNKS_PREFIX}*/*"):
        with suppress(FileNotFoundError):
            if chunk.stat().st_mtime < before:
                chunk.unlink()
    for mark in uploads_dir.glob(f"{OWNER_PREFIX}*/*"):
        if not archive_path(uploads_dir, mark.name).exists():
            mark.unlink(missing_ok=True)
    return len(unused)


def folder_of(uploads_dir: Path, user: str, prefix: str = OWNER_PREFIX) -> Path:
    """Return the folder of what belongs to a user."""
    return uploads_dir / f"{prefix}{quote(user, safe='')}"


def _make_room(context: ApiContext, user: str, sha256: str, size: int) -> None:
    """Delete the user's oldest archives that no live job needs, until one of ``size`` bytes fits their share.

    Raises TooLarge, or Refused where all that could be deleted is needed.
    """
    uploads_dir, limit = context.uploads_dir, context.max_user_upload_bytes
    if size > limit:
        raise TooLarge(f"the archive has {size} bytes; the limit for all archives of a user is {limit}")
    in_use = {job.spec.workdir_sha256 for job in context.store.live().submitted}
    in_use |= {each.spec.workdir_sha256 for each in context.store.schedules()}
    kept = []
    for mark in folder_of(uploads_dir, user).iterdir():
        with suppress(FileNotFoundError):  # pruned; so will the mark be
            state = archive_path(uploads_dir, mark.name).stat()
            kept.append((state.st_mtime, state.st_size, mark))
    used = sum(held for _, held, mark in kept if mark.name != sha256)
    for _, held, mark in sorted(kept):
        if used + size <= limit:
            return
        if mark.name != sha256 and mark.name not in in_use:
            mark.unlink()
            used -= held
            if not any(uploads_dir.glob(f"{OWNER_PREFIX}*/{mark.name}")):
                archive_path(uploads_dir, mark.name).unlink(missing_ok=True)
    if used + size > limit:
        raise Refused(
            f"{user}'s jobs need {used} bytes of uploaded work directories, {size} more would exceed "
            f"api.max_uploads_mib ({limit >> 20} MiB); wait until one has ended"
        )


@router.get("/{sha256}")
def find_upload(context: Context, caller: CurrentCaller, sha256: Sha256) -> Upload:
    """Return whether the daemon has this archive of yours (404 if not), so that it need not be sent again."""
    # The caller is about to submit a job with it, so it must not be pruned now.
    if not touch_archive(context.uploads_dir, sha256, caller):
        raise NotFound(f"archive {sha256} has not been uploaded")
    return Upload(sha256=sha256, bytes=archive_path(context.uploads_dir, sha256).stat().st_size)


BINARY_BODY = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "required": True,
}


@router.put("/{sha256}", status_code=201, openapi_extra={"requestBody": BINARY_BODY})
async def store_upload(context: Context, caller: CurrentCaller, request: Request, sha256: Sha256) -> Upload:
    """Store a work directory as tar.gz. Safe to repeat. Your oldest ones are deleted where your share is used up."""
    try:
        # The directory may have been deleted.
        folder_of(context.uploads_dir, caller.name).mkdir(mode=0o750, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=context.uploads_dir)
        try:
            with os.fdopen(handle, "wb") as file:
                size = await _receive(request, file, sha256)
                await run_in_threadpool(_sync, file)
            await run_in_threadpool(publish, context, caller.name, Path(part), sha256)
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


def publish(context: ApiContext, user: str, part: Path, sha256: str) -> None:
    """Make a complete archive visible to a user. Raises TooLarge, Refused: their share is used up."""
    part.chmod(0o640)
    with _publishing:
        _make_room(context, user, sha256, part.stat().st_size)
        part.rename(archive_path(context.uploads_dir, sha256))
        (folder_of(context.uploads_dir, user) / sha256).touch()
    for folder in (context.uploads_dir, folder_of(context.uploads_dir, user)):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
