"""Work directories: packed with their times, and sent once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from hcloud.client.connection import Connection
from hcloud.client.transfers import CHUNK_BYTES, Transfer, no_bar
from hcloud.core.errors import BadInput, NotFound

IGNORE_FILE = ".hcloudignore"
ALWAYS_IGNORED = (".git", "__pycache__")


def upload_workdir(client: Connection, directory: Path, limit_bytes: int, shown: Transfer = no_bar) -> dict[str, str]:
    """Pack ``directory``, send it unless the daemon has it already, and return the fields of a job that name it.

    ``shown`` shows how far the transfer has got.

    Raises:
        BadInput: it cannot be read, has a link that leads outside, or is larger than ``limit_bytes`` when packed.
    """
    with tempfile.TemporaryFile(prefix="hcloud-workdir-") as archive:
        content_sha256 = pack(directory, archive, limit_bytes)
        size = archive.tell()
        archive.seek(0)
        sha256 = hashlib.file_digest(archive, "sha256").hexdigest()
        try:
            client.get(f"/v1/uploads/{sha256}")
        except NotFound:
            archive.seek(0)
            with shown(f"uploading {directory}", size) as advance:
                client.put_file(f"/v1/uploads/{sha256}", _chunks(archive, advance), size)
    return {"workdir_sha256": sha256, "workdir_content_sha256": content_sha256}


def pack(directory: Path, archive: IO[bytes], limit_bytes: int) -> str:
    """Write ``directory`` as tar.gz, and return a digest of what it holds, without the times of files.

    Links to absolute paths inside become relative. ``.git``, ``__pycache__`` and what ``.hcloudignore`` names (one
    pattern per line) are left out.

    Raises:
        BadInput: it cannot be read, has a link that leads outside, or is larger than ``limit_bytes`` when packed.
    """
    ignored = _ignored(directory)
    bounded: Any = _Bounded(archive, limit_bytes, directory)
    try:
        with (
            gzip.GzipFile(fileobj=bounded, mode="wb", mtime=0, filename="", compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            digest = hashlib.sha256()
            for path in _walk(directory, directory, ignored):
                _add(tar, path, directory, digest)
    except OSError as error:
        raise BadInput(f"cannot pack {directory}: {error.filename or ''}: {error.strerror}") from error
    return digest.hexdigest()


def check_links(directory: Path) -> None:
    """Check what :func:`pack` would refuse but the size, without reading files.

    Raises:
        BadInput: a directory cannot be read, or a link leads outside.
    """
    try:
        for path in _walk(directory, directory, _ignored(directory)):
            if path.is_symlink():
                _link_inside(path, directory)
    except OSError as error:
        raise BadInput(f"cannot pack {directory}: {error.filename or ''}: {error.strerror}") from error


def _ignored(directory: Path) -> tuple[str, ...]:
    try:
        lines = (directory / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ALWAYS_IGNORED
    patterns = [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
    return (*ALWAYS_IGNORED, *patterns)


def _walk(top: Path, directory: Path, ignored: tuple[str, ...]) -> Iterator[Path]:
    for entry in sorted(os.scandir(directory), key=lambda each: each.name):
        path = Path(entry.path)
        relative = str(path.relative_to(top))
        if any(fnmatch(entry.name, pattern) or fnmatch(relative, pattern) for pattern in ignored):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield path
            yield from _walk(top, path, ignored)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():  # sockets and pipes stay here
            yield path


def _add(tar: tarfile.TarFile, path: Path, top: Path, digest: hashlib._Hash) -> None:
    member = tar.gettarinfo(path, arcname=str(path.relative_to(top)))
    # User ids of this machine mean nothing on an instance.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.issym():
        member.linkname = _link_inside(path, top)
    content_sha256 = ""
    if member.isreg():
        with path.open("rb") as content:
            content_sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            content.seek(0)
            tar.addfile(member, content)
    else:
        tar.addfile(member)
    parts = (member.name, member.type.decode(), member.mode, member.linkname, content_sha256)
    digest.update(json.dumps(parts).encode())


def _link_inside(path: Path, top: Path) -> str:
    """Return where a link leads, relative to its directory. Raises BadInput if that is outside ``top``."""
    target, whole = os.readlink(path), top.resolve()
    try:
        found = (path.parent / target).resolve()
    except RuntimeError:  # links in a circle: Python before 3.13
        found = path.parent.resolve() / target
    if not found.is_relative_to(whole):
        raise BadInput(
            f"{path} is a link to {target}, outside of the work directory, which a machine does not have; "
            f"replace it, or name {path.relative_to(top)} in {top / IGNORE_FILE}"
        )
    return os.path.relpath(found, path.parent.resolve()) if os.path.isabs(target) else target


class _Bounded(io.RawIOBase):
    """Stops the packing of a directory that turns out too large, before it fills the disk."""

    def __init__(self, inner: IO[bytes], limit_bytes: int, directory: Path) -> None:
        self._inner, self._left, self._limit, self._directory = inner, limit_bytes, limit_bytes, directory

    def writable(self) -> bool:
        """True: ``io`` asks before it writes."""
        return True

    def write(self, content: Any) -> int:
        """Return the bytes written. Raises BadInput once more than ``limit_bytes`` would be."""
        self._left -= len(content)
        if self._left < 0:
            raise BadInput(
                f"{self._directory} is larger than {self._limit / 2**20:.0f} MiB when packed, the most the daemon "
                f"takes (engine.max_workdir_mib); name what to leave out in {IGNORE_FILE}"
            )
        return self._inner.write(content)


def _chunks(archive: IO[bytes], advance: Callable[[float], None]) -> Iterator[bytes]:
    while chunk := archive.read(CHUNK_BYTES):
        yield chunk
        advance(len(chunk))
