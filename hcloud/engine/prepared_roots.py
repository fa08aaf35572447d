"""Root directories for sandboxes, each prepared once for all units of one user id.

Mounts are what a sandbox costs most, so small files of ``/etc`` are copied; only large trees are mounted over that.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.files import remove_tree
from hcloud.engine.unit import boot_id

READONLY_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
READONLY_FILES = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/localtime", "/etc/timezone", "/etc/resolv.conf", "/etc/hosts",
    "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/magic", "/etc/fonts",
    "/etc/python3.11",
    "/etc/perl", "/etc/java-17-openjdk", "/sys/devices/system/cpu",
)  # fmt: skip
COPIED_FILES_MAX, COPIED_BYTES_MAX = 100, 1 << 20
"""Directories with more are mounted."""
LOOKED_AT_EVERY_S = 5.0
_OWN = ("etc", "proc", "dev", "job", "tmp", "home/job")


@dataclass(frozen=True, slots=True)
class PreparedRoot:
    """What a sandbox sees as ``/``."""

    path: Path
    mounted: tuple[str, ...]
    """Files and directories of this machine to be mounted over it, read-only, at the same place."""


class PreparedRoots:
    """The roots of one worker's sandboxes, in ``<state_dir>/roots``. What has changed in ``/etc`` makes new ones."""

    def __init__(self, state_dir: Path, readonly: Sequence[str] = ()) -> None:
        """``readonly``: further paths that units see."""
        self._path, self._readonly = state_dir / "roots", readonly
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._digest, self._mounted, self._looked_at = "", tuple[str, ...](), 0.0

    def root(self, uid: int) -> PreparedRoot:
        """Return the root for a user id, made if it is not there. Raises OSError: it cannot be made."""
        if not self._digest or time.monotonic() >= self._looked_at + LOOKED_AT_EVERY_S:
            self._look()
        path = self._path / f"{self._digest}-{uid}"
        if not path.exists():
            self._make(path, uid)
        return PreparedRoot(path, self._mounted)

    def sweep(self) -> None:
        """Remove roots that are out of date or half made. For a worker without units: those may use any."""
        self._look()
        for path in self._path.iterdir():
            if not path.name.startswith(f"{self._digest}-"):
                remove_tree(path)

    def _look(self) -> None:
        """Take note of what there is to copy and to mount."""
        states: list[object] = [boot_id(), *self._readonly]  # what was not written out before a crash is made anew
        mounted = [tree for tree in READONLY_TREES if not os.path.islink(tree) and _has_content(tree)]
        states += [(tree, os.path.islink(tree) and os.readlink(tree)) for tree in READONLY_TREES]
        for path in READONLY_FILES:
            if (found := _copied(path)) is not None:
                states += found
            elif os.path.exists(path):
                mounted.append(path)
        mounted += [path for path in self._readonly if os.path.exists(path)]
        self._digest = f"{zlib.crc32(repr((states, mounted)).encode(errors='surrogateescape')):08x}"
        self._mounted, self._looked_at = tuple(mounted), time.monotonic()

    def _make(self, path: Path, uid: int) -> None:
        made = self._path / f".new-{os.urandom(6).hex()}"
        made.mkdir()
        made.chmod(0o755)
        for tree in READONLY_TREES:
            if os.path.islink(tree):
                os.symlink(os.readlink(tree), f"{made}{tree}")
        for name in _OWN:
            _folder(made, name)
        for tree in READONLY_TREES:  # those that are empty are not mounted
            if os.path.isdir(tree) and not os.path.islink(tree):
                _folder(made, tree)
        for source in READONLY_FILES:
            if source not in self._mounted and os.path.exists(source):
                _folder(made, os.path.dirname(source))
                with suppress(OSError):  # what this user may not read, no job of it could
                    _copy(source, f"{made}{source}")
        for source in self._mounted:
            _mount_point(made, source)
        for name, text in account_files(uid).items():
            (made / "etc" / name).write_text(text)
            (made / "etc" / name).chmod(0o644)
        try:
            made.rename(path)
        except OSError:
            remove_tree(made)
            if not path.exists():  # else another process was quicker
                raise


def account_files(uid: int) -> dict[str, str]:
    """Return the accounts that a unit of this user id sees, by file of ``/etc``."""
    return {
        "passwd": f"root:x:0:0:root:/:/bin/false\njob:x:{uid}:{uid}:job:/home/job:/bin/sh\n",
        "group": f"root:x:0:\njob:x:{uid}:\n",
    }


def _has_content(tree: str) -> bool:
    """Return whether a directory is there and not empty."""
    with suppress(OSError), os.scandir(tree) as entries:
        return next(entries, None) is not None
    return False


def _copied(path: str) -> list[object] | None:
    """Return the states of the files to be copied from a path; None: it does not exist, or is to be mounted."""
    if path.startswith("/sys/"):
        return None
    states, total = list[object](), 0
    with suppress(OSError):
        for each, state in _files(path):
            states.append((each, state.st_ino, state.st_mtime_ns, state.st_size, state.st_mode, state.st_uid))
            total += state.st_size
            if len(states) > COPIED_FILES_MAX or total > COPIED_BYTES_MAX:
                return None
    return states or None


def _files(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all files below a path, itself included; only its own link is followed."""
    yield path, os.stat(path)
    if os.path.isdir(path):
        for folder, names, others in os.walk(path):
            for name in (*names, *others):
                yield f"{folder}/{name}", os.lstat(f"{folder}/{name}")


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
    if os.geteuid() == 0:
        for each, state in _files(source):
            os.chown(target + each[len(source) :], state.st_uid, state.st_gid, follow_symlinks=False)
            if not os.path.islink(each) or each == source:
                os.chmod(target + each[len(source) :], state.st_mode & 0o777)


def _folder(made: Path, name: str) -> None:
    """Make a directory and those above it, which everybody may pass through."""
    path = made
    for part in name.strip("/").split("/"):
        path /= part
        if not path.exists():
            path.mkdir()
            path.chmod(0o755)


def _mount_point(made: Path, source: str) -> None:
    within_tree = any(source.startswith(f"{tree}/") for tree in READONLY_TREES)
    if within_tree or source == "/":
        return
    if os.path.isdir(source):
        _folder(made, source)
    else:
        _folder(made, os.path.dirname(source))
        (made / source.lstrip("/")).touch()
