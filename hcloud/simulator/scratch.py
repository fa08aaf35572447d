"""Scratch folders for simulations: in memory if possible, and removed after use."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hcloud.core.errors import BadInput

IN_MEMORY = Path("/dev/shm")
PREFIX = "hcloud-virtual-"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Create a scratch folder for a block: in ``$TMPDIR`` if set, else in memory, else in the default temporary
    directory.

    The folder is locked by this process and its forks. The lock ends with them, however they end, so the next call
    removes the folder of a killed process. Raises BadInput if no folder can be created.
    """
    place = _parent_folder()
    try:
        _sweep(place)
        folder, lock = _create_locked(place)
    except OSError as error:
        raise BadInput(
            f"cannot create a temporary folder in {place}: {error.strerror}; set TMPDIR to a writable directory"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def folder_in(place: Path | None) -> Iterator[Path]:
    """Create a folder for a block inside ``place``, which the caller owns and removes; None: a :func:`quick_folder`."""
    with quick_folder() if place is None else tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)


def _parent_folder() -> Path:
    chosen = os.environ.get("TMPDIR")
    if chosen:
        return Path(chosen)
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _create_locked(place: Path) -> tuple[Path, int]:
    """Create a folder and lock it."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        lock = _lock(Path(folder), fcntl.LOCK_SH)
        # Between both calls another process may have swept the folder as abandoned: then create another.
        if lock is not None and os.path.lexists(folder):
            return Path(folder), lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, how: int) -> int | None:
    """Return a descriptor that holds the lock; None if another process holds it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(place: Path) -> None:
    """Remove folders that ended processes of this user left behind."""
    for folder in place.glob(f"{PREFIX}*"):
        try:
            lock = _lock(folder, fcntl.LOCK_EX) if folder.lstat().st_uid == os.geteuid() else None
        except OSError:  # another process sweeps at the same time, or this is not a folder
            continue
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
