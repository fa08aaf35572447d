"""Files of a unit that its job wants back, or its next attempt needs, packed on its machine and read in pieces.

``python -m hcloud.engine.outputs`` packs. It is a process of its own, as the unit's user, so that it can read nothing
that the unit could not, and begins when the daemon first asks. It can be killed and begun anew at any time.

What an ended unit leaves behind is sent while it is packed, and lies on no disk on its way: nothing of the unit runs,
so packed anew it is the same, and goes on at any byte. The rest appears whole, by renames, next to ``root/``:

    outputs.json     the :class:`OutputsManifest` of what an ended unit leaves behind, once all was packed
    listing.tar      the names of files that are to go to buckets, a JSON object per line, and listing.json
    checkpoint.tar   what a running unit keeps for its next attempt, packed once it has not changed for a moment, and
    checkpoint.json  again if it changed meanwhile; its manifest has a number: that of the request it was packed for
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import IO, Any

from hcloud.core.files import EarlyWriteback
from hcloud.engine import launch
from hcloud.engine.content import FileRange, PipeRange, PipeReader
from hcloud.engine.unit import Unit, sync_directory, write_json
from hcloud.provider import OutputsManifest

OUTPUTS, CHECKPOINT, LISTING = "outputs", "checkpoint", "listing"
FILES_MAX = 100_000
LISTED_MAX = 10_000
NAMES_IN_NOTE = 3
TRIES_MAX = 3
"""So often packing may be killed, by lack of memory for instance, until the unit's outputs are given up."""
COPY_BYTES = 256 << 10  # stays in a core's cache while it is hashed and written
PIPE_BYTES = 1 << 20  # the most that any user may have
SETTLED_S, SETTLING_S, LOOK_S = 0.5, 20.0, 0.1
"""What has not changed for the first time is packed, and after the second one, or half of the time between two
checkpoints if that is less, whatever is there; looked at this often."""
CHANGES_MAX = 5
"""So often files may change while they are packed."""


class UnitOutputs:
    """Packs files of units, each in a process of its own, and reads the archives. For the link's one thread."""

    def __init__(self, limit_bytes: int, *, root: bool) -> None:
        """Prepare. ``limit_bytes``: the largest archive. ``root``: whether this process may become the units' users."""
        self._limit_bytes, self._root = limit_bytes, root
        self._packing: dict[tuple[str, str], tuple[subprocess.Popen[bytes], int]] = {}
        """By unit and kind, the process that packs, and for which number."""
        self._sent: dict[str, tuple[subprocess.Popen[bytes], PipeReader]] = {}
        """By unit, the process that packs its outputs while they are sent."""
        self._tries: dict[tuple[str, str], int] = {}

    def read(self, unit: Unit, offset: int, limit: int) -> dict[str, Any]:
        """Return a piece of an ended unit's outputs on the wire, its content a PipeRange or nothing.

        The manifest comes after all content; without it, more is to be asked for.
        """
        self._record_sent(unit)
        found = unit.read(f"{OUTPUTS}.json")
        if unit.ended and (found is None or offset < found["bytes"]):
            reader = self._reader(unit, offset)
            if reader is not None:
                return {"content": PipeRange(reader, limit), "next_offset": offset, "end": False, "manifest": None}
            found = unit.read(f"{OUTPUTS}.json")
        return {"content": b"", "next_offset": offset, "end": found is not None, "manifest": found}

    def _reader(self, unit: Unit, offset: int) -> PipeReader | None:
        """Return what brings an ended unit's outputs from a byte on; None: there are none, which is recorded."""
        if unit.id in self._sent and self._sent[unit.id][1].offset == offset:
            return self._sent[unit.id][1]
        self._stop_sending(unit.id)
        asked = self._asked(unit, OUTPUTS, 0)
        if asked is None:
            return None
        reads, writes = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # there is little memory for pipes: it is slower then
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with os.fdopen(writes, "wb", buffering=0) as archive, _new(unit.path / f".{OUTPUTS}.json") as manifest:
            process = _packer({**asked, "skip_bytes": offset}, archive, manifest)
        reader = PipeReader(os.fdopen(reads, "rb", buffering=0), offset)
        self._sent[unit.id] = process, reader
        return reader

    def _record_sent(self, unit: Unit) -> None:
        """Record what was packed and sent, if all was; one that was killed is tried again, not too often."""
        process, reader = self._sent.get(unit.id, (None, None))
        if process is not None and reader is not None and reader.is_at_end():
            process.wait()  # it closed its end of the pipe
            self._stop_sending(unit.id)
            if (packed := self._packed(unit, OUTPUTS, process.returncode)) is not None:
                _write_manifest(unit, OUTPUTS, packed, 0)

    def _stop_sending(self, unit_id: str) -> None:
        if (sent := self._sent.pop(unit_id, None)) is not None:
            sent[1].close()
            _end(sent[0])

    def read_listing(self, unit: Unit, offset: int, limit: int) -> dict[str, Any]:
        """Return a piece of the list of an ended unit's files that are to go to buckets."""
        found = unit.read(f"{LISTING}.json")
        if found is None and unit.ended:
            self._pack(unit, LISTING, 0)
            found = unit.read(f"{LISTING}.json")
        return _piece(unit, LISTING, found, offset, limit)

    def read_checkpoint(self, unit: Unit, number: int, offset: int, limit: int) -> dict[str, Any]:
        """Return a piece of what a unit keeps for its next attempt, packed for this ``number`` or a later one."""
        found = unit.read(f"{CHECKPOINT}.json")
        if found is None or found.pop("number") < number:
            self._pack(unit, CHECKPOINT, number)
            found = unit.read(f"{CHECKPOINT}.json")
            if found is not None and found.pop("number") < number:
                found = None
        return _piece(unit, CHECKPOINT, found, offset, limit)

    def _pack(self, unit: Unit, kind: str, number: int) -> None:
        """Begin to pack, or make visible what was packed."""
        process, packed_for = self._packing.get((unit.id, kind), (None, 0))
        if process is None:
            self._begin(unit, kind, number)
            return
        if process.poll() is None:
            return
        del self._packing[unit.id, kind]
        packed = self._packed(unit, kind, process.returncode)
        if packed is None:
            return
        if packed["bytes"]:
            (unit.path / f".{kind}.tar").rename(unit.path / f"{kind}.tar")
            sync_directory(unit.path)
        _write_manifest(unit, kind, packed, packed_for)

    def _packed(self, unit: Unit, kind: str, returncode: int) -> dict[str, Any] | None:
        """Return the manifest of a process that ended, or that it is given up; None: it is to be tried again."""
        tries = self._tries[unit.id, kind] = self._tries.get((unit.id, kind), 0) + 1
        packed = unit.read(f".{kind}.json") if returncode == 0 else None
        if packed is None and tries < TRIES_MAX:
            return None
        self._tries.pop((unit.id, kind))
        return packed or asdict(OutputsManifest(note=f"its {kind} could not be packed: code {returncode}"))

    def _begin(self, unit: Unit, kind: str, number: int) -> None:
        asked = self._asked(unit, kind, number)
        if asked is not None:
            with _new(unit.path / f".{kind}.tar") as archive, _new(unit.path / f".{kind}.json") as manifest:
                self._packing[unit.id, kind] = _packer(asked, archive, manifest), number

    def _asked(self, unit: Unit, kind: str, number: int) -> dict[str, Any] | None:
        """Return what is asked of the process that packs; None: there is nothing to pack, which is recorded."""
        spec = unit.read("spec.json") or {}
        wanted = spec.get("unit", {}).get("bucket_outputs" if kind == LISTING else kind)
        patterns = [glob.escape(wanted["path"])] if kind == CHECKPOINT and wanted else wanted or []
        if not patterns or not (unit.path / "root" / "job").is_dir():
            note = "it ended before it had a work directory" if patterns else ""
            _write_manifest(unit, kind, asdict(OutputsManifest(note=note)), number)
            return None
        if kind == CHECKPOINT and wanted["signal"]:
            unit.request_checkpoint(number)
        changes = kind == CHECKPOINT and not unit.ended
        return {
            "folder": str(unit.path / "root" / "job"),
            "patterns": patterns,
            "limit_bytes": self._limit_bytes,
            "uid": spec["uid"] if self._root else None,
            "settles_within_s": min(SETTLING_S, wanted["every_s"] / 2) if changes else None,
            "lists": kind == LISTING,
            "skip_bytes": 0,
        }

    def forget(self, unit_ids: Sequence[str]) -> None:
        """Let go of what is known of units."""
        for key in [(unit_id, kind) for unit_id in unit_ids for kind in (OUTPUTS, CHECKPOINT, LISTING)]:
            process, _ = self._packing.pop(key, (None, 0))
            if process is not None:
                _end(process)
            self._tries.pop(key, None)
        for unit_id in unit_ids:
            self._stop_sending(unit_id)


def _packer(asked: dict[str, Any], archive: IO[bytes], manifest: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process that packs what is asked."""
    without_site = ["-S"] if sys.flags.no_site else []
    command = [sys.executable, *without_site, "-W", "ignore", "-m", "hcloud.engine.outputs"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=archive, stderr=manifest)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(asked).encode())
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _piece(unit: Unit, kind: str, found: dict[str, Any] | None, offset: int, limit: int) -> dict[str, Any]:
    if found is None:
        return {"content": b"", "next_offset": offset, "end": False, "manifest": None}
    if not found["bytes"]:
        return {"content": b"", "next_offset": offset, "end": True, "manifest": found}
    content = FileRange.of(unit.path / f"{kind}.tar", offset, limit)
    return {"content": content, "next_offset": content.end, "end": content.end >= found["bytes"], "manifest": found}


def _write_manifest(unit: Unit, kind: str, manifest: dict[str, Any], number: int) -> None:
    numbered = {"number": number} if kind == CHECKPOINT else {}
    write_json(unit.path / f"{kind}.json", manifest | numbered, durable=True)


def _new(path: Path) -> IO[bytes]:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


class _TooLarge(Exception):
    """More than the limit was to be written."""


class _Archive:
    """Writes to a file or a pipe, counts and hashes; raises _TooLarge beyond the limit."""

    def __init__(self, file: IO[bytes], limit_bytes: int, skip_bytes: int = 0) -> None:
        """``skip_bytes``: so much at the beginning is hashed, and not written."""
        self._file, self._limit_bytes, self._skip_bytes = file, limit_bytes, skip_bytes
        self.count, self.digest = 0, hashlib.sha256()
        self._writeback = None if _is_pipe(file) else EarlyWriteback(file)
        self._buffer = memoryview(bytearray(COPY_BYTES))

    def write(self, content: bytes) -> None:
        """Write all of ``content``."""
        if new := self._hash(memoryview(content)):
            self._file.write(content[-new:])

    def copy(self, file: int, size_bytes: int) -> None:
        """Write so much of an open file. Raises OSError: it is shorter."""
        for offset in range(0, size_bytes, COPY_BYTES):
            content = self._buffer[: min(COPY_BYTES, size_bytes - offset)]
            if os.preadv(file, [content], offset) < len(content):
                raise OSError(errno.EIO, "a file became shorter while it was packed")
            if new := self._hash(content):
                self._file.write(content[-new:])
            if self._writeback is not None:
                self._writeback.note_size(self.count)

    def _hash(self, content: memoryview) -> int:
        """Count and hash; return how many bytes of it, the last ones, are to be written."""
        before, self.count = self.count, self.count + len(content)
        if self.count > self._limit_bytes:
            raise _TooLarge
        self.digest.update(content)
        return max(0, self.count - max(before, self._skip_bytes))


def _is_pipe(file: IO[bytes]) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    except UnsupportedOperation:
        return False


def pack(
    folder: Path, patterns: Sequence[str], archive: IO[bytes], limit_bytes: int, skip_bytes: int = 0
) -> OutputsManifest:
    """Write the files of ``folder`` that match a pattern as a tar, and return what was written.

    Patterns are relative (``*``, ``?``, ``[...]``, ``**`` for any folders); a folder stands for all that is in it.
    Links and what lies behind them are left out, and special files. Too large: nothing counts, and the note says so.
    ``skip_bytes``: so much at the beginning of the tar is not written. Raises OSError: a file became shorter.
    """
    written, files, notes = _Archive(archive, limit_bytes, skip_bytes), 0, list[str]()
    found, unmatched, skipped = _matching(folder, patterns)
    if unmatched:
        notes.append(f"nothing matched {_some(unmatched)}")
    if len(found) > FILES_MAX:
        notes.append(f"only the first {FILES_MAX} files were kept")
        found = found[:FILES_MAX]
    try:
        if sum(size for _, _, size, _ in _states(folder, found)) > limit_bytes:
            raise _TooLarge
        for name in found:
            if _add(written, folder, name):
                files += 1
            else:
                skipped.append(name)
        written.write(bytes(2 * tarfile.BLOCKSIZE))
        written.write(bytes(-written.count % tarfile.RECORDSIZE))
    except _TooLarge:
        note = f"its outputs are larger than {limit_bytes >> 20} MiB (engine.max_outputs_mib), so none is kept"
        return OutputsManifest(note=note)
    if skipped:
        notes.append(f"left out, as links, special files or unreadable: {_some(skipped)}")
    note = "; ".join(notes)
    if not files:
        return OutputsManifest(note=note)
    return OutputsManifest(files=files, bytes=written.count, sha256=written.digest.hexdigest(), note=note)


def list_files(folder: Path, patterns: Sequence[str], listing: IO[bytes], limit_bytes: int) -> OutputsManifest:
    """Write a JSON object per line for each file of ``folder`` that matches a pattern, and return what was written.

    ``pattern`` is the pattern's index, ``path`` the file, ``name`` what follows the pattern's folder, ``bytes`` and
    ``md5`` (hexadecimal) its content, as stores of objects compare it. Left out: as :func:`pack`.
    """
    written, files, notes, left_out = _Archive(listing, limit_bytes), 0, list[str](), list[str]()
    for index, pattern in enumerate(patterns):
        found, unmatched, skipped = _matching(folder, [pattern])
        if unmatched:
            notes.append(f"nothing matched {_some(unmatched)}")
        left_out += skipped
        for path in found:
            if files >= LISTED_MAX:
                notes.append(f"only the first {LISTED_MAX} files were listed")
                break
            described = _described(folder, path)
            if described is None:
                left_out.append(path)
                continue
            base = _base_of(folder, pattern)
            name = os.path.relpath(path, base) if base else path
            line = {"pattern": index, "path": path, "name": name, **described}
            written.write(json.dumps(line).encode() + b"\n")
            files += 1
    if left_out:
        notes.append(f"left out, as links, special files or unreadable: {_some(left_out)}")
    note = "; ".join(notes)
    if not files:
        return OutputsManifest(note=note)
    return OutputsManifest(files=files, bytes=written.count, sha256=written.digest.hexdigest(), note=note)


def _base_of(folder: Path, pattern: str) -> str:
    """Return the folder that a pattern's files are counted from: what it names, or what stands before its wildcards."""
    plain = os.path.normpath(pattern)
    if not glob.has_magic(pattern):
        return plain if (folder / plain).is_dir() else os.path.dirname(plain)
    parts = list(itertools.takewhile(lambda part: not glob.has_magic(part), plain.split("/")))
    return "/".join(parts)


def _described(folder: Path, path: str) -> dict[str, Any] | None:
    """Return size and MD5 of a regular file; None if it is none."""
    file = _opened(folder / path)
    if file is None:
        return None
    with file:
        size_bytes = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return {"bytes": size_bytes, "md5": digest.hexdigest()}


def _opened(path: Path) -> BufferedReader | None:
    """Return a regular file that is no link, opened for reading; None if it is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None


def pack_settled(
    folder: Path,
    patterns: Sequence[str],
    archive: IO[bytes],
    limit_bytes: int,
    settles_within_s: float = SETTLING_S,
    pause: Callable[[float], object] = time.sleep,
) -> OutputsManifest:
    """Return :func:`pack` of files that something may still write: of one moment at which none of them changed, at the
    latest after ``settles_within_s``."""
    for _ in range(CHANGES_MAX):
        before, same_for_s, waited_s = _state(folder, patterns), 0.0, 0.0
        while same_for_s < SETTLED_S and waited_s < settles_within_s:
            pause(LOOK_S)
            now, waited_s = _state(folder, patterns), waited_s + LOOK_S
            before, same_for_s = now, same_for_s + LOOK_S if now == before else 0.0
        archive.seek(0)
        archive.truncate()
        try:
            manifest = pack(folder, patterns, archive, limit_bytes)
        except OSError:  # a file became shorter
            continue
        if _state(folder, patterns) == before:
            return manifest
    return OutputsManifest(note=f"its files changed each of {CHANGES_MAX} times while they were copied")


def _state(folder: Path, patterns: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Return what shows whether files changed: name, number, size and time of each."""
    return list(_states(folder, _matching(folder, patterns)[0]))


def _states(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, int, int, int]]:
    for name in names:
        with suppress(OSError):
            state = os.lstat(folder / name)
            yield name, state.st_ino, state.st_size, state.st_mtime_ns


def _matching(folder: Path, patterns: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return names of files below a folder that match, patterns that match nothing, and names behind links."""
    found, unmatched, skipped = set[str](), list[str](), set[str]()
    for pattern in patterns:
        matched = False
        for each in glob.iglob(pattern, root_dir=folder, recursive=True, include_hidden=True):
            matched, name = True, os.path.normpath(each)
            if _is_behind_link(folder, name):
                skipped.add(name)
            elif (folder / name).is_dir():
                found.update(_below(folder, name))
            else:
                found.add(name)
        if not matched:
            unmatched.append(pattern)
    return sorted(found), unmatched, sorted(skipped)


def _is_behind_link(folder: Path, name: str) -> bool:
    """Return whether a name or a folder on the way to it is a link, by whichever it could lead anywhere."""
    return any((folder / part).is_symlink() for part in (Path(name), *Path(name).parents))


def _below(folder: Path, name: str) -> Iterator[str]:
    for path, _, names in os.walk(folder / name):
        for each in names:
            yield os.path.relpath(os.path.join(path, each), folder)


def _add(archive: _Archive, folder: Path, name: str) -> bool:
    """Add one regular file; return whether it was."""
    file = _opened(folder / name)
    if file is None:
        return False
    with file:
        state = os.fstat(file.fileno())
        member = tarfile.TarInfo(name)
        member.size, member.mtime = state.st_size, int(state.st_mtime)
        member.mode = 0o755 if state.st_mode & 0o111 else 0o644
        archive.write(member.tobuf(tarfile.PAX_FORMAT))
        archive.copy(file.fileno(), member.size)
        archive.write(bytes(-member.size % tarfile.BLOCKSIZE))
    return True


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_IN_NOTE])
    return shown + (f" and {len(names) - NAMES_IN_NOTE} more" if len(names) > NAMES_IN_NOTE else "")


def main() -> int:
    """Pack what standard input names to standard output; the manifest goes to standard error."""
    asked = json.load(sys.stdin)
    os.chdir(asked["folder"])  # the folders above it may be closed to that user
    if asked["uid"] is not None:
        launch.become_user(asked["uid"])
    launch.die_with_parent()  # afterwards: another user takes that back
    archive = sys.stdout.buffer
    files = Path(), asked["patterns"], archive, asked["limit_bytes"]
    if asked["settles_within_s"] is not None:
        manifest = pack_settled(*files, asked["settles_within_s"])
    else:
        manifest = list_files(*files) if asked["lists"] else pack(*files, asked["skip_bytes"])
    archive.flush()
    if not _is_pipe(archive):
        os.fsync(archive.fileno())
    sys.stderr.write(json.dumps(asdict(manifest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
