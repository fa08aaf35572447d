"""Measurements that take minutes: with which seeds, and a bar on standard error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hcloud.cli.leaving import exit_on_signal
from hcloud.cli.output import WholeRange, console
from hcloud.errors import BadInput

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
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show how far a measurement is, on a terminal only. Drawn from this thread: a load dies with its thread."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    drawn = Progress(*columns, console=shown, transient=True, auto_refresh=False, disable=not shown.is_terminal)
    with exit_on_signal(), drawn as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(name: str) -> None:
            """Draw one more of ``total`` steps as done, under what is being measured now."""
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance
