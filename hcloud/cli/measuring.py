"""Measurements that take minutes: with which seeds, a bar on standard error, and their end in good order."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hcloud.assembly import load_mock_cloud
from hcloud.cli.output import WholeRange, console
from hcloud.errors import BadInput

AGAIN_S = 0.2
"""So often a signal is acted on again that something has swallowed."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """With which seeds something is measured, and how many of them at the same time."""

    every: range
    processes: int


_SEED = (
    click.option(
        "--seed",
        type=WholeRange(min=0),
        default=0,
        show_default=True,
        help="Other chances; where jobs are made, other jobs, too.",
    ),
    click.option(
        "--seeds",
        "count",
        type=WholeRange(1, 10_000),
        default=1,
        show_default=True,
        help="With so many seeds, from --seed on: means, their limits, and which differences may be chance.",
    ),
    click.option("--processes", type=WholeRange(1, 1024), help="So many --seeds at the same time (default: CPUs)."),
)


def seeds_options(function: F) -> F:
    """Add ``--seed``, ``--seeds`` and ``--processes``, which the command is given as ``seeds``, a :class:`Seeds`."""

    @wraps(function)
    def told(*args: Any, seed: int, count: int, processes: int | None, **others: Any) -> Any:
        """Put the three together. Raises BadInput where one of them would count for nothing."""
        if processes is not None and count == 1:
            raise BadInput("--processes says how many of --seeds are tried at once; add --seeds, or leave it out")
        seeds = Seeds(every=range(seed, seed + count), processes=processes or os.cpu_count() or 1)
        return function(*args, seeds=seeds, **others)

    made: Any = told
    for option in reversed(_SEED):
        made = option(made)
    return cast(F, made)


@contextmanager
def ending_in_order() -> Iterator[Callable[[], None]]:
    """Leave the block by ``SystemExit`` on SIGTERM and SIGHUP, by ``KeyboardInterrupt`` on SIGINT, so that whatever it
    opened is closed on the way out. Whoever is on the way is deaf to further signals; forked children just end.

    What a signal's handler raises is lost where CPython runs code that nobody called (a hook of a fork, of a weak
    reference, of an import's lock), and turned into something else by some libraries: it is raised again until it is
    on its way. What the block is given raises it where it was asked for: to be called before anything is told.
    """
    own, asked, timer = os.getpid(), list[int](), signal.getitimer(signal.ITIMER_REAL)

    def end(number: int, _: object) -> None:
        """Begin to leave."""
        if os.getpid() != own:  # a child on its way to another program
            os._exit(128 + number)
        asked.append(number)
        broken_off.setLevel(logging.CRITICAL)
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        leave(number, None)

    def leave(_: int, __: object) -> None:
        """Raise what was asked for first, unless that is being handled already, or what it has become."""
        raised = sys.exc_info()[1]
        while raised is not None and not isinstance(raised, (SystemExit, KeyboardInterrupt)):
            raised = raised.__context__
        if raised is None:
            raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])

    def go_on() -> None:
        """Raise what was asked for, if it was."""
        if asked:
            leave(asked[0], None)

    load_mock_cloud()
    broken_off = logging.getLogger("sqlalchemy.pool")  # of a connection that is cut off as it closes it has a trace
    level = broken_off.level
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    alarm = signal.getsignal(signal.SIGALRM)
    try:
        yield go_on
        go_on()
    finally:
        if asked:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        for number, earlier in before.items():
            signal.signal(number, earlier)
        broken_off.setLevel(level)
        if asked:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, alarm)


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
