"""Directories that vanish with whoever made them: at the end of a block, or, after a kill -9, when the next is made.

A directory is locked (flock) as long as its maker lives, so that another process can recognise what was left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hcloud.core.clock import SystemClock, holds_within

PREFIX = "hcloud-scratch-"
YOUNG_S = 60.0
"""A directory is not taken for a leftover before it is so old: its maker may not have locked it yet."""
REMOVED_WITHIN_S = 1.0
"""So long it is tried to remove a directory in which something is still made."""


@contextmanager
def scratch(what: str, above: Path | None = None) -> Iterator[Path]:
    """Make a directory below ``above`` (default: the place for temporary files); it is gone after the block.

    Only its owner may list it, everybody may pass through it.
    """
    if above is None:
        _sweep_once(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-", dir=above))
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        folder.chmod(0o711)
        yield folder
    finally:
        remove(folder)
        os.close(held)


def sweep(above: Path, now: float) -> None:
    """Remove directories of processes that have ended."""
    for folder in above.glob(f"{PREFIX}*"):
        try:
            state = folder.lstat()
            if state.st_uid != os.geteuid() or now - state.st_mtime < YOUNG_S:
                continue
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except BlockingIOError:  # somebody works there
            continue
        finally:
            os.close(held)


@cache
def _sweep_once(above: Path) -> None:
    sweep(above, SystemClock().now())


def remove(folder: Path) -> None:
    """Remove a directory, and in it what an overlay leaves without permissions. What cannot be removed stays.

    A process that was killed may write until it is gone: what it made meanwhile is removed, too.
    """
    holds_within(lambda: _removed(folder), REMOVED_WITHIN_S, every_s=0.01)


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, onerror=_force)
    return not os.path.lexists(folder)


def _force(again: Callable[[str], object], path: str, _: object) -> None:
    try:
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        shutil.rmtree(path) if again in (os.open, os.scandir, os.lstat) else again(path)
    except OSError:
        return
