"""Files of a unit that its job wants back, or its next attempt needs, packed on its machine and read in pieces.

``python -m hcloud.engine.outputs`` packs. It is a process of its own, as the unit's user, so that it can read nothing
that the unit could not, and begins when the daemon first asks. It can be killed and begun anew at any time: an archive
appears whole, by renames, next to ``root/``:

    outputs.tar      what an ended unit leaves behind: nothing of it runs, so files do not change while they are packed
    outputs.json     its :class:`OutputsManifest`
    listing.tar      the names of files that are to go to buckets, a JSON object per line, and listing.json
    checkpoint.tar   what a running unit keeps for its next attempt, packed once it has not changed for a moment, and
    checkpoint.json  again if it changed meanwhile; its manifest has a number: that of the request it was packed for
"""

from __future__ import annotations

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
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from hcloud.core.files import EarlyWriteback
from hcloud.engine import launch
from hcloud.engine.content import FileRange
from hcloud.engine.unit import Unit, sync_directory, write_json
from hcloud.provider import OutputsManifest

OUTPUTS, CHECKPOINT, LISTING = "outputs", "checkpoint", "listing"
FILES_MAX = 100_000
LISTED_MAX = 10_000
NAMES_IN_NOTE = 3
TRIES_MAX = 3
"""So often packing may be killed, by lack of memory for instance, until the unit's outputs are given up."""
COPY_BYTES = 256 << 10  # stays in a core's cache while it is hashed and written
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
        self._tries: dict[tuple[str, str], int] = {}

    def read(self, unit: Unit, offset: int, limit: int) -> dict[str, Any]:
        """Return a piece of an ended unit's outputs on the wire, its content a FileRange or nothing.

        Without a manifest it is not packed yet: ask again. What is packed so far comes already then, as nothing of the
        unit runs: packed anew it would be the same.
        """
        found = unit.read(f"{OUTPUTS}.json")
        if found is None and unit.ended:
            self._pack(unit, OUTPUTS, 0)
            found = unit.read(f"{OUTPUTS}.json")
        if found is None and (unit.id, OUTPUTS) in self._packing:
            with suppress(FileNotFoundError):
                packed = FileRange.of(unit.path / f".{OUTPUTS}.tar", offset, limit)
                return {"content": packed, "next_offset": packed.end, "end": False, "manifest": None}
        return _piece(unit, OUTPUTS, found, offset, limit)

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
        tries = self._tries[unit.id, kind] = self._tries.get((unit.id, kind), 0) + 1
        packed = unit.read(f".{kind}.json") if process.returncode == 0 else None
        if packed is None and tries < TRIES_MAX:
            return
        self._tries.pop((unit.id, kind))
        if packed is None:
            packed = asdict(OutputsManifest(note=f"its {kind} could not be packed: code {process.returncode}"))
        if packed["bytes"]:
            (unit.path / f".{kind}.tar").rename(unit.path / f"{kind}.tar")
            sync_directory(unit.path)
        _write_manifest(unit, kind, packed, packed_for)

    def _begin(self, unit: Unit, kind: str, number: int) -> None:
        spec = unit.read("spec.json") or {}
        wanted = spec.get("unit", {}).get("bucket_outputs" if kind == LISTING else kind)
        patterns = [glob.escape(wanted["path"])] if kind == CHECKPOINT and wanted else wanted or []
        if not patterns or not (unit.path / "root" / "job").is_dir():
            note = "it ended before it had a work directory" if patterns else ""
            _write_manifest(unit, kind, asdict(OutputsManifest(note=note)), number)
            return
        if kind == CHECKPOINT and wanted["signal"]:
            unit.request_checkpoint(number)
        changes = kind == CHECKPOINT and not unit.ended
        asked = {
            "folder": str(unit.path / "root" / "job"),
            "patterns": patterns,
            "limit_bytes": self._limit_bytes,
            "uid": spec["uid"] if self._root else None,
            "settles_within_s": min(SETTLING_S, wanted["every_s"] / 2) if changes else None,
            "lists": kind == LISTING,
        }
        without_site = ["-S"] if sys.flags.no_site else []
        command = [sys.executable, *without_site, "-W", "ignore", "-m", "hcloud.engine.outputs"]
        with _new(unit.path / f".{kind}.tar") as archive, _new(unit.path / f".{kind}.json") as manifest:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=archive, stderr=manifest)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(asked).encode())
        self._packing[unit.id, kind] = process, number

    def forget(self, unit_ids: Sequence[str]) -> None:
        """Let go of what is known of units."""
        for key in [(unit_id, kind) for unit_id in unit_ids for kind in (OUTPUTS, CHECKPOINT, LISTING)]:
            process, _ = self._packing.pop(key, (None, 0))
            if process is not None:
                process.kill()
                process.wait()
            self._tries.pop(key, None)


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


class _Hashing:
    """Writes through, counts and hashes; raises _TooLarge beyond the limit."""

    def __init__(self, file: IO[bytes], limit_bytes: int) -> None:
        self._file, self._limit_bytes, self.count, self.digest = file, limit_bytes, 0, hashlib.sha256()
        self._writeback = EarlyWriteback(file)

    def write(self, content: bytes) -> int:
        self.count += len(content)
        if self.count > self._limit_bytes:
            raise _TooLarge
        self.digest.update(content)
        self._writeback.note_size(self.count)
        return self._file.write(content)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.count


def pack(folder: Path, patterns: Sequence[str], archive: IO[bytes], limit_bytes: int) -> OutputsManifest:
    """Write the files of ``folder`` that match a pattern as a tar, and return what was written.

    Patterns are relative (``*``, ``?``, ``[...]``, ``**`` for any folders); a folder stands for all that is in it.
    Links and what lies behind them are left out, and special files. Too large: nothing counts, and the note says so.
    """
    written, files, notes = _Hashing(archive, limit_bytes), 0, list[str]()
    found, unmatched, skipped = _matching(folder, patterns)
    if unmatched:
        notes.append(f"nothing matched {_some(unmatched)}")
    try:
        # Not "w|", which gathers blocks by copying them again and again.
        with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT, copybufsize=COPY_BYTES) as tar:  # type: ignore[call-overload]
            for name in found:
                if files >= FILES_MAX:
                    notes.append(f"only the first {FILES_MAX} files were kept")
                    break
                if _add(tar, folder, name):
                    files += 1
                else:
                    skipped.append(name)
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
    written, files, notes, left_out = _Hashing(listing, limit_bytes), 0, list[str](), list[str]()
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
    found = list[tuple[str, int, int, int]]()
    for name in _matching(folder, patterns)[0]:
        with suppress(OSError):
            state = os.lstat(folder / name)
            found.append((name, state.st_ino, state.st_size, state.st_mtime_ns))
    return found


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


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> bool:
    """Add one regular file; return whether it was."""
    file = _opened(folder / name)
    if file is None:
        return False
    with file:
        state = os.fstat(file.fileno())
        member = tarfile.TarInfo(name)
        member.size, member.mtime = state.st_size, int(state.st_mtime)
        member.mode = 0o755 if state.st_mode & 0o111 else 0o644
        tar.addfile(member, file)
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
    files = Path(), asked["patterns"], sys.stdout.buffer, asked["limit_bytes"]
    if asked["settles_within_s"] is not None:
        manifest = pack_settled(*files, asked["settles_within_s"])
    else:
        manifest = list_files(*files) if asked["lists"] else pack(*files)
    sys.stdout.buffer.flush()
    os.fsync(sys.stdout.fileno())
    sys.stderr.write(json.dumps(asdict(manifest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
