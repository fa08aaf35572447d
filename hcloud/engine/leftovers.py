"""What a worker leaves in the kernel (firewall table, groups) when its machine, a slice of a host, was just killed.

None of it is left to clean up, so each worker notes where its state is, and the next worker on the host takes back
what belongs to a state directory that is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

NOTES = Path("/run/hcloud-workers")


def note(name: str, state_dir: Path, notes: Path = NOTES) -> None:
    """Note that what is called ``name`` in the kernel belongs to ``state_dir``. Best effort."""
    with contextlib.suppress(OSError):
        notes.mkdir(mode=0o700, exist_ok=True)
        (notes / name).write_text(str(state_dir.absolute()))


def take_back(remove: Callable[[str], None], notes: Path = NOTES) -> None:
    """Call ``remove`` with each name without a state directory, and drop its note."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(notes)):
            if not os.path.isdir((notes / entry).read_text()):
                remove(entry)
                drop(entry, notes)


def drop(name: str, notes: Path = NOTES) -> None:
    """Drop a note; none is no error."""
    with contextlib.suppress(OSError):
        (notes / name).unlink()
