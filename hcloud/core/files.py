"""Removing what programs of other people left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Delete a directory with all that is in it, however deep it is; what cannot be removed stays."""
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)
