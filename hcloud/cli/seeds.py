"""Options for the random seeds of simulations, apart from what simulates: help must not import that."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click

from hcloud.cli.output import WholeRange
from hcloud.core.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """The random seeds of a comparison."""

    every: range
    processes: int
    """Number of seeds that are simulated in parallel."""


_SEED = (
    click.option(
        "--seed",
        type=WholeRange(min=0),
        default=0,
        show_default=True,
        help="Random seed: boot times, stockouts, spot preemptions, and the jobs of scenarios.",
    ),
    click.option(
        "--seeds",
        "count",
        type=WholeRange(1, 10_000),
        default=1,
        show_default=True,
        help="Simulate N seeds, starting at --seed; show means with confidence limits, and which differences may be "
        "chance.",
        metavar="N",
    ),
    click.option(
        "--processes", type=WholeRange(1, 1024), help="Number of --seeds to simulate in parallel (default: CPUs)."
    ),
)


def seeds_options(function: F) -> F:
    """Add ``--seed``, ``--seeds`` and ``--processes``; the command receives them as ``seeds``, a :class:`Seeds`."""

    @wraps(function)
    def command(*args: Any, seed: int, count: int, processes: int | None, **others: Any) -> Any:
        if processes is not None and count == 1:
            raise BadInput("--processes needs --seeds: it sets how many seeds are simulated in parallel")
        seeds = Seeds(every=range(seed, seed + count), processes=processes or os.cpu_count() or 1)
        return function(*args, seeds=seeds, **others)

    decorated: Any = command
    for option in reversed(_SEED):
        decorated = option(decorated)
    return cast(F, decorated)
