"""The files that a job left, copied to here; nothing is seen half-written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hcloud.client.connection import Connection
from hcloud.client.transfers import Transfer, no_bar
from hcloud.core.errors import BadInput, HCloudError, NotFound

PIECE_BYTES = 8 << 20
COPY_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    files: int
    note: str
    """What the job did not leave, and why; empty if nothing."""


def copy_outputs(
    client: Connection,
    job: str,
    destination: Path,
    wanted: str = "",
    *,
    rank: int = 0,
    attempt: int | None = None,
    shown: Transfer = no_bar,
) -> Copied:
    """Copy a job's outputs below ``destination``; ``wanted``: only that file, or what is in that folder.

    Raises:
        NotFound: it left none, or none of that name.
        BadInput: ``destination`` cannot be written, or a name leads outside of it.
    """
    if destination.exists() and not destination.is_dir():
        raise BadInput(f"{destination} is not a folder")
    described = _described(client, job, rank, attempt)
    if not described["bytes"]:
        raise NotFound(f"{job} left no outputs{': ' if described['note'] else ''}{described['note']}")
    with downloaded(client, job, rank=rank, attempt=attempt, shown=shown) as archive:
        try:
            destination.mkdir(parents=True, exist_ok=True)
            files = _unpack(archive, destination, wanted)
        except OSError as error:
            raise BadInput(f"cannot write to {destination}: {error.filename or ''}: {error.strerror}") from error
    if not files:
        raise NotFound(f"{job} left nothing named {wanted!r}; 'hcloud cp --list {job}' shows what it left")
    return Copied(files, described["note"])


def downloaded(client: Connection, job: str, *, rank: int, attempt: int | None, shown: Transfer = no_bar) -> IO[bytes]:
    """Return the archive of a job's outputs as a file without a name, checked by its digest.

    Raises:
        NotFound: it left none.
    """
    described = _described(client, job, rank, attempt)
    size, query = described["bytes"], {"rank": rank, "attempt": attempt}
    if not size:
        raise NotFound(f"{job} left no outputs{': ' if described['note'] else ''}{described['note']}")
    archive: IO[bytes] = tempfile.TemporaryFile(prefix="hcloud-outputs-")  # noqa: SIM115 the caller closes it
    digest = hashlib.sha256()
    with shown(f"copying outputs of {job}", size) as advance:
        for content in _pieces(client, job, query, size):
            digest.update(content)
            archive.write(content)
            advance(len(content))
            if not content or archive.tell() > size:
                break
    if digest.hexdigest() != described["sha256"]:
        archive.close()
        raise HCloudError(f"the outputs of {job} changed while they were copied, or are damaged; nothing was written")
    archive.seek(0)
    return archive


def _pieces(client: Connection, job: str, query: Mapping[str, Any], size: int) -> Iterator[bytes]:
    """Yield the archive in pieces, the next of which comes while the caller has one."""

    def piece(at: int) -> bytes:
        part = {"Range": f"bytes={at}-{min(size, at + PIECE_BYTES) - 1}"}
        return client.send("GET", f"/v1/jobs/{job}/outputs/archive", query, headers=part).content

    with ThreadPoolExecutor(1, "outputs") as ahead:
        following = ahead.submit(piece, 0)
        for at in range(PIECE_BYTES, size + PIECE_BYTES, PIECE_BYTES):
            content = following.result()
            if at < size:
                following = ahead.submit(piece, at)
            yield content


def _described(client: Connection, job: str, rank: int, attempt: int | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.get(f"/v1/jobs/{job}/outputs", rank=rank, attempt=attempt)
    return found


def members(archive: IO[bytes], wanted: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the files of an archive that a machine made which may be anybody's by now: only plain files, and no name
    that leads outside. Raises BadInput."""
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if not member.isreg() or name.is_absolute() or ".." in name.parts or not name.parts:
                    raise BadInput(
                        f"the outputs hold {member.name!r}, no plain file below a folder; nothing was written"
                    )
                content = tar.extractfile(member)
                if content is not None and _is_wanted(name, wanted):
                    yield member, content
    except tarfile.TarError as error:
        raise BadInput(f"the outputs cannot be read: {error}") from error


def _is_wanted(name: PurePosixPath, wanted: str) -> bool:
    return not wanted or str(name) == wanted or name.is_relative_to(wanted)


def _unpack(archive: IO[bytes], destination: Path, wanted: str) -> int:
    """Write each file beside its place and move it there whole; return how many."""
    count, top = 0, PurePosixPath(wanted).parent
    for _ in members(archive, ""):  # before anything is written
        pass
    archive.seek(0)
    with tempfile.TemporaryDirectory(prefix=".hcloud-cp-", dir=destination) as beside:
        new = Path(beside) / "new"
        for member, content in members(archive, wanted):
            place = destination / PurePosixPath(member.name).relative_to(top)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.parent.resolve().is_relative_to(destination.resolve()):
                raise BadInput(f"{place.parent} is a link that leads outside of {destination}")
            with new.open("wb") as file:
                shutil.copyfileobj(content, file, COPY_BYTES)
            new.chmod(0o777 & ~_umask() if member.mode & 0o100 else 0o666 & ~_umask())
            os.utime(new, (member.mtime, member.mtime))
            new.replace(place)
            count += 1
    return count


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
