"""Temporary directories that are removed with their owner: at the end of a block, or after a kill -9 by the next owner.

A directory is locked (flock) as long as its owner lives, so that other processes can recognise leftovers.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from hcloud.core.clock import SystemClock, holds_within
from hcloud.core.files import remove_tree

PREFIX = "hcloud-scratch-"
YOUNG_S = 60.0
"""Minimum age of a leftover: a newer directory may not have been locked yet."""
REMOVED_WITHIN_S = 1.0
"""Time limit for removing a directory in which files are still being created."""


_owners: dict[Path, int] = {}
"""Directories not yet removed, and the process that removes them."""


@contextmanager
def scratch(what: str, above: Path | None = None) -> Iterator[Path]:
    """Create a directory below ``above`` (default: the system's temporary directory); it is removed after the block.

    Only its owner may list it; all users may traverse it.
    """
    if above is None:
        above = Path(tempfile.gettempdir())
        _sweep_once(above)
    # The name is known before the directory exists: a signal that raises at any point later leaves no directory.
    folder = above / f"{PREFIX}{what}-{secrets.token_hex(6)}"
    _owners[folder] = os.getpid()
    held = None
    try:
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_SH)
        folder.chmod(0o711)
        yield folder
    finally:
        remove(folder)
        if held is not None:
            os.close(held)
        del _owners[folder]


@atexit.register
def _remove_what_is_left() -> None:
    """Remove directories whose block was left by an exception in its first or last instructions."""
    for folder in [folder for folder, owner in _owners.items() if owner == os.getpid()]:
        remove(folder)


def sweep(above: Path, now: float) -> None:
    """Remove directories of owners that no longer exist."""
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
        except BlockingIOError:  # still in use
            continue
        finally:
            os.close(held)


@cache
def _sweep_once(above: Path) -> None:
    sweep(above, SystemClock().now())


def remove(folder: Path) -> None:
    """Remove a directory, including files an overlay leaves without permissions; failures are ignored.

    A killed process may write until it is gone, so removal is repeated for up to ``REMOVED_WITHIN_S``.
    """
    holds_within(lambda: _removed(folder), REMOVED_WITHIN_S, every_s=0.01)


def _removed(folder: Path) -> bool:
    with suppress(RecursionError):
        shutil.rmtree(folder, onerror=_force)
    remove_tree(folder)
    return not os.path.lexists(folder)


def _force(again: Callable[[str], object], path: str, _: object) -> None:
    try:
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        shutil.rmtree(path) if again in (os.open, os.scandir, os.lstat) else again(path)
    except OSError:
        return
