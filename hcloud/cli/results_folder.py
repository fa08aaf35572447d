"""The folder that a command's results go to: made before the work begins, gone again where nothing came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hcloud.errors import BadInput


@contextmanager
def results_folder(folder: Path | None, named: str) -> Iterator[None]:
    """Make the folder for results now: whoever cannot write there should not learn it after a long run. Where nothing
    came of that, the folders that were made for it go again. ``None``: no results are kept.

    Raises BadInput, which begins with ``named``, where it cannot be made or written to.
    """
    made = [] if folder is None else [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        if folder is not None:
            _make(folder, named)
        yield
    except BaseException:
        with suppress(OSError):  # somebody put something there meanwhile
            for each in made:
                each.rmdir()
        raise


def _make(folder: Path, named: str) -> None:
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    if os.path.lexists(there) and not there.is_dir():
        whose = named if there == folder else f"{named} cannot be made: {there}"
        raise BadInput(f"{whose} is not a directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{named} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{named} cannot be written to; name a directory of yours")
