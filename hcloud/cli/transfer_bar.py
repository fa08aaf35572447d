"""A bar on standard error for what takes long to send or to fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hcloud.cli.output import console
from hcloud.client.transfers import CHUNK_BYTES, no_bar


def transfer_bar(what: str, size: int) -> AbstractContextManager[Callable[[float], None]]:
    """Return a bar for ``size`` bytes, which is gone afterwards; none where it would be of no use."""
    shown = console(stderr=True)
    if not shown.is_terminal or size < 2 * CHUNK_BYTES:
        return no_bar(what, size)
    return _terminal_bar(shown, what, size)


@contextmanager
def _terminal_bar(shown: Any, what: str, size: int) -> Iterator[Callable[[float], None]]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=shown, transient=True) as progress:
        task = progress.add_task(what, total=size)
        yield lambda advance: progress.update(task, advance=advance)
