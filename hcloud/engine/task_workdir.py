"""The directories of a unit that runs many tasks: each finds them as the first one did.

Most tasks change nothing there, which the kernel says (inotify), so that only after the others anything is done.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hcloud.core.errors import UnitRefused
from hcloud.core.files import remove_tree

_ATTRIBUTES, _MODIFIED, _MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x4, 0x2, 0x40, 0x80, 0x100, 0x200
_CHANGES: Final = _ATTRIBUTES | _MODIFIED | _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED
FOLDERS_MOST: Final = 1_000
"""With more folders than these they are made anew after each task."""
OWN = ("job", "home", "tmp")
_libc = ctypes.CDLL(None, use_errno=True)


class TaskWorkdir:
    """Notices what a task changes in its unit's directories, and makes them as they were."""

    def __init__(self, root: Path, restore: Callable[[], None]) -> None:
        """``root``: where they are. ``restore`` empties them and unpacks the archive again, as the unit's user."""
        self._root, self._restore = root, restore
        self._handle = -1

    def watch(self) -> None:
        """Begin to notice changes, before the first task."""
        self.close()
        self._handle = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        folders = [folder for name in OWN for folder, _, _ in os.walk(self._root / name)]
        if self._handle >= 0 and (
            len(folders) > FOLDERS_MOST
            or any(_libc.inotify_add_watch(self._handle, os.fsencode(each), _CHANGES) < 0 for each in folders)
        ):
            self.close()

    def tidy(self) -> None:
        """Make the directories as they were, if the task before changed anything. Raises UnitRefused, OSError."""
        if self._is_changed():
            self._restore()
            self.watch()

    def _is_changed(self) -> bool:
        if self._handle < 0:
            return True
        try:
            os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the watches."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def open_folders(root: Path) -> list[int]:
    """Return descriptors of the directories: their user may not be able to reach them by their names."""
    return [os.open(root / name, os.O_RDONLY | os.O_DIRECTORY) for name in OWN]


def empty(folders: Sequence[int]) -> None:
    """Delete all that is in these directories, as the user to which they belong; they become the current one in turn.

    Raises UnitRefused: something stays. Raises OSError.
    """
    for handle in folders:
        os.fchmod(handle, 0o700)
        os.fchdir(handle)
        _remove_all()
        if os.listdir():  # a folder without rights for its owner
            subprocess.run(["chmod", "-R", "u+rwX", "--", "."], stderr=subprocess.DEVNULL, check=False)
            _remove_all()
        if left := os.listdir():
            raise UnitRefused(f"{left[0]!r}, which a task left, cannot be deleted")


def _remove_all() -> None:
    for entry in list(os.scandir()):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
