"""The progress bar of long commands; a signal leaves its block in good order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from hcloud.cli.output import console
from hcloud.cli.signals import exit_on_signal


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of ``total`` steps, on a terminal only; yields the function that completes one.

    The bar is drawn by the calling thread: a load that a measurement starts is killed when its thread ends.
    """
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Bar(*columns, console=shown, transient=True, auto_refresh=False, disable=not shown.is_terminal)
    with exit_on_signal(), drawn as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance
