"""Files: removing what programs of other people left behind, and writing large ones to the disk while they grow."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO


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
