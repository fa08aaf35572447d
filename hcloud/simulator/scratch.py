"""Folders that simulations work in: in memory where there is such a place, and removed after use."""

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
    """Open a folder for a block: in ``$TMPDIR`` if that is set, else in memory, else where temporary files go.

    It is held by a lock that ends with the process (and those it forked), however that ends. So what a killed one left
    is recognised as abandoned, and the next one removes it. Raises BadInput where no folder can be made.
    """
    place = _parent_folder()
    try:
        _sweep(place)
        made, held = _create_locked(place)
    except OSError as error:
        said = f"no folder for temporary files can be made in {place}: {error.strerror}"
        raise BadInput(f"{said}; set TMPDIR to a directory of yours") from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(held)


@contextmanager
def folder_in(place: Path | None) -> Iterator[Path]:
    """Open a folder for a block, in one that the caller holds and removes (None: :func:`quick_folder`)."""
    with quick_folder() if place is None else tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)


def _parent_folder() -> Path:
    chosen = os.environ.get("TMPDIR")
    if chosen:
        return Path(chosen)
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _create_locked(place: Path) -> tuple[Path, int]:
    """Make a folder and lock it. Another process may take it for a left one in between: then make another."""
    while True:
        made = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        held = _lock(Path(made), fcntl.LOCK_SH)
        if held is not None and os.path.lexists(made):
            return Path(made), held
        if held is not None:
            os.close(held)


def _lock(folder: Path, how: int) -> int | None:
    """Return a descriptor that holds the lock, or None where that is held otherwise or the folder is gone."""
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
    """Remove what ended processes of this user left."""
    for left in place.glob(f"{PREFIX}*"):
        try:
            held = _lock(left, fcntl.LOCK_EX) if left.lstat().st_uid == os.geteuid() else None
        except OSError:  # another one sweeps as well, or it is no folder
            continue
        if held is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
