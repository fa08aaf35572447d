"""A bar on standard error for measurements that take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hcloud.cli.output import console


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show how far a measurement is, on a terminal only. Drawn from this thread: a load dies with its thread."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance
