"""Work directories, and inputs of the submitter's machine: packed with their times, and sent once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from hcloud.client.chunks import Chunk, ChunkedGzip
from hcloud.client.connection import Connection
from hcloud.client.transfers import CHUNK_BYTES, Transfer, no_bar
from hcloud.core.errors import BadInput, NotFound

IGNORE_FILE = ".hcloudignore"
CHUNKED_FROM_BYTES = 256 << 10
"""Smaller archives are sent whole."""
ROUNDS_MAX = 3
"""So often chunks are sent that are missing; then the whole archive is."""
ALWAYS_IGNORED = (".git", "__pycache__")


@dataclass(frozen=True, slots=True)
class LocalInput:
    """A file or folder of this machine that is to be in the work directory."""

    path: Path
    to: str

    def members(self) -> Iterator[_Member]:
        """Yield what is packed of it. Raises BadInput: it is not there."""
        path = self.path.resolve()
        if path.is_dir():
            folder = "" if self.to == "." else f"{self.to.rstrip('/')}/"
            for each in _walk(path, path, _ignored(path)):
                yield _Member(f"{folder}{each.relative_to(path)}", each, path)
        elif path.is_file():
            is_folder = self.to == "." or self.to.endswith("/")
            yield _Member(
                f"{self.to}/{self.path.name}".replace("//", "/").removeprefix("./") if is_folder else self.to,
                path,
                path.parent,
            )
        else:
            raise BadInput(f"the input {self.path} is neither a file nor a folder of this machine")


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    path: Path
    top: Path
    """Links must not lead out of it."""


def with_files_sent(
    client: Connection,
    job: Mapping[str, Any],
    sent: dict[tuple[Any, ...], dict[str, str]],
    shown: Transfer = no_bar,
    *,
    upload: bool = True,
) -> dict[str, Any]:
    """Return a job as the API takes it: its work directory, and inputs of this machine, sent, or else only checked.

    ``sent``: fields of what was sent before; it is added to. Raises BadInput.
    """
    document = {key: value for key, value in job.items() if key not in ("workdir", "inputs")}
    local, others = local_inputs(job)
    if others:
        document["inputs"] = others
    workdir = job.get("workdir")
    if workdir is None and not local:
        return document
    directory = Path(str(workdir)) if workdir is not None else None
    if not upload:
        check_links(directory, local)
        return document
    key = (directory, *local)
    if key not in sent:
        limit_bytes = int(client.get("/v1/status")["max_upload_bytes"])
        sent[key] = upload_workdir(client, directory, limit_bytes, shown, local)
    return document | sent[key]


def local_inputs(job: Mapping[str, Any]) -> tuple[list[LocalInput], list[dict[str, str]]]:
    """Return a job's inputs of this machine, and the others as the API takes them. Raises BadInput."""
    from hcloud.spec.file_parts import InputPart, input_from_text
    from hcloud.spec.validation import key_path, parse

    local, others = list[LocalInput](), list[dict[str, str]]()
    for index, each in enumerate(job.get("inputs") or ()):
        plain = each if isinstance(each, InputPart) else input_from_text(each)
        part = parse(InputPart, plain, lambda path, at=index: key_path(("inputs", at, *path)))  # type: ignore[misc]
        if part.is_local:
            local.append(LocalInput(Path(part.source).expanduser().absolute(), part.to))
        else:
            others.append({"from": part.source, "to": part.to})
    return local, others


def upload_workdir(
    client: Connection,
    directory: Path | None,
    limit_bytes: int,
    shown: Transfer = no_bar,
    inputs: Sequence[LocalInput] = (),
) -> dict[str, str]:
    """Pack ``directory`` and ``inputs``, send them unless the daemon has them already, and return the fields of a job
    that name them.

    ``shown`` shows how far the transfer has got.

    Raises:
        BadInput: it cannot be read, has a link that leads outside, or is larger than ``limit_bytes`` when packed.
    """
    with tempfile.TemporaryFile(prefix="hcloud-workdir-") as archive:
        content_sha256, chunks = pack(directory, archive, limit_bytes, inputs)
        size = archive.tell()
        archive.seek(0)
        sha256 = hashlib.file_digest(archive, "sha256").hexdigest()
        try:
            client.get(f"/v1/uploads/{sha256}")
        except NotFound:
            what = f"uploading {directory or inputs[0].path}"
            if size < CHUNKED_FROM_BYTES or not _sent_in_chunks(client, sha256, archive, chunks, what, shown):
                archive.seek(0)
                with shown(what, size) as advance:
                    client.put_file(f"/v1/uploads/{sha256}", _pieces(archive, size, advance), size)
    return {"workdir_sha256": sha256, "workdir_content_sha256": content_sha256}


def pack(
    directory: Path | None, archive: IO[bytes], limit_bytes: int, inputs: Sequence[LocalInput] = ()
) -> tuple[str, list[Chunk]]:
    """Write ``directory`` and ``inputs`` as tar.gz, and return a digest of what they hold, without the times of files,
    and the chunks of the archive.

    Links to absolute paths inside become relative. ``.git``, ``__pycache__`` and what ``.hcloudignore`` names (one
    pattern per line) are left out.

    Raises:
        BadInput: it cannot be read, has a link that leads outside, or is larger than ``limit_bytes`` when packed.
    """
    what = directory or inputs[0].path
    bounded: Any = _Bounded(archive, limit_bytes, what)
    try:
        packed, digest = ChunkedGzip(bounded), hashlib.sha256()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for each in _members(directory, inputs):
                size = each.path.lstat().st_size
                packed.begin_file(size)
                _add(tar, each, digest)
                packed.end_file(each.name, size)
        packed.close()
    except OSError as error:
        raise BadInput(f"cannot pack {what}: {error.filename or ''}: {error.strerror}") from error
    return digest.hexdigest(), packed.chunks


def _sent_in_chunks(
    client: Connection, sha256: str, archive: IO[bytes], chunks: Sequence[Chunk], what: str, shown: Transfer
) -> bool:
    """Send the chunks that the daemon lacks; return whether it has the archive then."""
    request = {"chunks": [each.sha256 for each in chunks]}
    for _ in range(ROUNDS_MAX):
        try:
            missing = set(client.post(f"/v1/uploads/{sha256}/chunks", request)["missing"])
        except NotFound:  # a daemon of before
            return False
        if not missing:
            return True
        wanted = {each.sha256: each for each in chunks if each.sha256 in missing}
        with shown(what, sum(each.size_bytes for each in wanted.values())) as advance:
            for each in wanted.values():
                archive.seek(each.offset)
                client.put_file(
                    f"/v1/uploads/chunks/{each.sha256}", _pieces(archive, each.size_bytes, advance), each.size_bytes
                )
    return False


def _members(directory: Path | None, inputs: Sequence[LocalInput]) -> Iterator[_Member]:
    """Yield what is packed. Raises BadInput: two would have one name, or an input is not there."""
    seen = dict[str, Path]()
    if directory is not None:
        for path in _walk(directory, directory, _ignored(directory)):
            member = _Member(str(path.relative_to(directory)), path, directory)
            if inputs:
                seen[member.name] = path
            yield member
    for each in inputs:
        for member in each.members():
            before = seen.get(member.name)
            if before is not None and before.is_dir() and member.path.is_dir():
                continue
            if before is not None:
                raise BadInput(f"{member.path} and {before} would both be {member.name} in the work directory")
            seen[member.name] = member.path
            yield member


def check_links(directory: Path | None, inputs: Sequence[LocalInput] = ()) -> None:
    """Check what :func:`pack` would refuse but the size, without reading files.

    Raises:
        BadInput: a directory cannot be read, an input is not there, or a link leads outside.
    """
    try:
        for each in _members(directory, inputs):
            if each.path.is_symlink():
                _link_inside(each.path, each.top)
    except OSError as error:
        raise BadInput(f"cannot pack {directory or ''}: {error.filename or ''}: {error.strerror}") from error


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


def _add(tar: tarfile.TarFile, packed: _Member, digest: hashlib._Hash) -> None:
    path = packed.path
    member = tar.gettarinfo(path, arcname=packed.name)
    # User ids of this machine mean nothing on an instance.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.issym():
        member.linkname = _link_inside(path, packed.top)
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


def _pieces(archive: IO[bytes], size: int, advance: Callable[[float], None]) -> Iterator[bytes]:
    """Yield so many bytes of an archive from where it is."""
    while size and (piece := archive.read(min(size, CHUNK_BYTES))):
        size -= len(piece)
        yield piece
        advance(len(piece))
