"""Processes that simulate side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from hcloud.engine.launch import die_with_parent

A = TypeVar("A")
R = TypeVar("R")


@contextmanager
def open_pool(processes: int) -> Iterator[Executor]:
    """Open a pool for a block; whoever leaves that early does not wait until every process has done what it is at."""
    # One whose parent was killed would wait for work for ever.
    pool = ProcessPoolExecutor(processes, initializer=die_with_parent)
    with ExitStack() as early:
        early.callback(_terminate_workers, pool)
        yield pool
        early.pop_all()
        pool.shutdown()


def in_order(pool: Executor, function: Callable[[A], R], arguments: Iterable[A], ahead: int) -> Iterator[R]:
    """Yield what a pool makes of each argument, in their order, of which only ``ahead`` are taken before their turn.

    Raises what ``function`` raises.
    """
    asked = deque[Future[R]]()
    for each in arguments:
        asked.append(pool.submit(function, each))
        if len(asked) >= ahead:
            yield asked.popleft().result()
    while asked:
        yield asked.popleft().result()


def _terminate_workers(pool: Executor) -> None:
    workers = multiprocessing.active_children()
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
