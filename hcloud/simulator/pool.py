"""Process pools for simulations that run in parallel; the workers end with the process that started them."""

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
    """Open a process pool for a block. If the block is left early, workers are terminated instead of awaited."""
    # A worker whose parent was killed would otherwise wait for work forever.
    pool = ProcessPoolExecutor(processes, initializer=die_with_parent)
    with ExitStack() as early:
        early.callback(_terminate_workers, pool)
        yield pool
        early.pop_all()
        pool.shutdown()


def in_order(pool: Executor, function: Callable[[A], R], arguments: Iterable[A], ahead: int) -> Iterator[R]:
    """Yield ``function`` of each argument in order, computed by the pool; at most ``ahead`` results are pending at a
    time.

    Raises what ``function`` raises.
    """
    pending = deque[Future[R]]()
    for each in arguments:
        pending.append(pool.submit(function, each))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _terminate_workers(pool: Executor) -> None:
    workers = multiprocessing.active_children()
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
