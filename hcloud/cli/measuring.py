"""A bar on standard error for measurements that take minutes, and their end in good order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hcloud.cli.output import console


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Leave the block by ``SystemExit`` on SIGTERM and SIGHUP, so that whatever it opened is closed on the way out.

    Without this a measurement that is ended would leave the directories of its copies behind.
    """
    own = os.getpid()

    def end(number: int, _: object) -> None:
        """Raise SystemExit (128 + the signal), deaf to further ones; a forked child ends without our clean-up."""
        if os.getpid() != own:  # a child on its way to another program
            os._exit(128 + number)
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show how far a measurement is, on a terminal only. Drawn from this thread: a load dies with its thread."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Progress(*columns, console=shown, transient=True, auto_refresh=False, disable=not shown.is_terminal)
    with ending_in_order(), drawn as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(name: str) -> None:
            """Draw one more of ``total`` steps as done, under what is being measured now."""
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance
