"""What an ended unit leaves behind: the files its job wants back, packed on its machine and read in pieces.

``python -m hcloud.engine.outputs`` packs. It is a process of its own, as the unit's user, so that it can read nothing
that the unit could not, and begins when the daemon first asks. Nothing of the unit runs by then, so files do not change
under it. It can be killed and begun anew at any time: an archive appears whole, by one rename, next to ``root/``:

    outputs.tar    the archive
    outputs.json   its :class:`OutputsManifest`
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from hcloud.engine import launch
from hcloud.engine.unit import Unit, sync_directory, write_json
from hcloud.provider import OutputsManifest

ARCHIVE, MANIFEST = "outputs.tar", "outputs.json"
FILES_MAX = 100_000
NAMES_IN_NOTE = 3
TRIES_MAX = 3
"""So often packing may be killed, by lack of memory for instance, until the unit's outputs are given up."""
COPY_BYTES = 1 << 20


class UnitOutputs:
    """Packs outputs of ended units, each in a process of its own, and reads the archives. For the link's one thread."""

    def __init__(self, limit_bytes: int, *, root: bool) -> None:
        """Prepare. ``limit_bytes``: the largest archive. ``root``: whether this process may become the units' users."""
        self._limit_bytes, self._root = limit_bytes, root
        self._packing: dict[str, subprocess.Popen[bytes]] = {}
        self._tries: dict[str, int] = {}

    def read(self, unit: Unit, offset: int, limit: int) -> dict[str, Any]:
        """Return a piece on the wire. Without a manifest it is not packed yet: ask again."""
        found = unit.read(MANIFEST)
        if found is None and unit.ended:
            self._pack(unit)
            found = unit.read(MANIFEST)
        if found is None:
            return {"content": b"", "next_offset": offset, "end": False, "manifest": None}
        content = b""
        if found["bytes"]:
            with (unit.path / ARCHIVE).open("rb") as archive:
                archive.seek(offset)
                content = archive.read(limit)
        after = offset + len(content)
        return {"content": content, "next_offset": after, "end": after >= found["bytes"], "manifest": found}

    def _pack(self, unit: Unit) -> None:
        """Begin to pack, or make visible what was packed."""
        process = self._packing.get(unit.id)
        if process is None:
            self._begin(unit)
            return
        if process.poll() is None:
            return
        del self._packing[unit.id]
        tries = self._tries[unit.id] = self._tries.get(unit.id, 0) + 1
        packed = unit.read(f".{MANIFEST}") if process.returncode == 0 else None
        if packed is None and tries < TRIES_MAX:
            return
        self._tries.pop(unit.id)
        if packed is None:
            packed = asdict(OutputsManifest(note=f"its outputs could not be packed: code {process.returncode}"))
        if packed["bytes"]:
            (unit.path / f".{ARCHIVE}").rename(unit.path / ARCHIVE)
            sync_directory(unit.path)
        write_json(unit.path / MANIFEST, packed, durable=True)

    def _begin(self, unit: Unit) -> None:
        spec = unit.read("spec.json") or {}
        patterns = spec.get("unit", {}).get("outputs", [])
        if not patterns or not (unit.path / "root" / "job").is_dir():
            note = "it ended before it had a work directory" if patterns else ""
            write_json(unit.path / MANIFEST, asdict(OutputsManifest(note=note)), durable=True)
            return
        asked = {
            "folder": str(unit.path / "root" / "job"),
            "patterns": patterns,
            "limit_bytes": self._limit_bytes,
            "uid": spec["uid"] if self._root else None,
        }
        without_site = ["-S"] if sys.flags.no_site else []
        command = [sys.executable, *without_site, "-W", "ignore", "-m", "hcloud.engine.outputs"]
        with _new(unit.path / f".{ARCHIVE}") as archive, _new(unit.path / f".{MANIFEST}") as manifest:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=archive, stderr=manifest)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(asked).encode())
        self._packing[unit.id] = process

    def forget(self, unit_ids: Sequence[str]) -> None:
        """Let go of what is known of units."""
        for unit_id in unit_ids:
            process = self._packing.pop(unit_id, None)
            if process is not None:
                process.kill()
                process.wait()
            self._tries.pop(unit_id, None)


def _new(path: Path) -> IO[bytes]:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


class _TooLarge(Exception):
    """More than the limit was to be written."""


class _Hashing:
    """Writes through, counts and hashes; raises _TooLarge beyond the limit."""

    def __init__(self, file: IO[bytes], limit_bytes: int) -> None:
        self._file, self._limit_bytes, self.count, self.digest = file, limit_bytes, 0, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.count += len(content)
        if self.count > self._limit_bytes:
            raise _TooLarge
        self.digest.update(content)
        return self._file.write(content)


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
        with tarfile.open(fileobj=written, mode="w|", format=tarfile.PAX_FORMAT, bufsize=COPY_BYTES) as tar:  # type: ignore[call-overload]
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
    try:
        handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            return False
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
    manifest = pack(Path(), asked["patterns"], sys.stdout.buffer, asked["limit_bytes"])
    sys.stdout.buffer.flush()
    os.fsync(sys.stdout.fileno())
    sys.stderr.write(json.dumps(asdict(manifest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
