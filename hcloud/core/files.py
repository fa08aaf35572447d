"""Files: removing what programs of other people left behind, and writing large ones to the disk while they grow."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO

_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREES = 0x80086601, 0x40086602, 0x00020000
"""``FS_IOC_GETFLAGS``, ``FS_IOC_SETFLAGS``, ``FS_TOPDIR_FL`` of Linux."""


def spread_directories(path: Path) -> None:
    """Have ext4 place the directories made in this one far from each other (``chattr +T``); elsewhere do nothing.

    Without a journal it searches past every file that was deleted lately nearby, whenever one is made.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            (flags,) = struct.unpack("i", fcntl.ioctl(handle, _GET_FLAGS, struct.pack("i", 0)))
            fcntl.ioctl(handle, _SET_FLAGS, struct.pack("i", flags | _TOP_OF_TREES))
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Delete a directory with all that is in it, however deep it is; what cannot be removed stays."""
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)


class EarlyWriteback:
    """Has a growing file written to the disk meanwhile, so that its fsync at the end finds little to do."""

    EVERY_BYTES = 32 << 20

    def __init__(self, file: IO[bytes]) -> None:
        """``file``: open for writing."""
        self._file, self._begun_bytes = file, 0

    def note_size(self, size_bytes: int) -> None:
        """Begin to write what is new, if it is much. Never waits for the disk."""
        new_bytes = size_bytes - self._begun_bytes
        if new_bytes >= self.EVERY_BYTES:
            # Of pages that are not on the disk yet it only begins their writing; they stay in memory.
            os.posix_fadvise(self._file.fileno(), self._begun_bytes, new_bytes, os.POSIX_FADV_DONTNEED)
            self._begun_bytes = size_bytes
