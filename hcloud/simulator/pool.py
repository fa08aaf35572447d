"""Processes that simulate side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager

from hcloud.engine.launch import die_with_parent


@contextmanager
def open_pool(processes: int) -> Iterator[Executor]:
    """Open a pool for a block; whoever leaves that early does not wait until every process has done what it is at."""
    # One whose parent was killed would wait for work for ever.
    pool = ProcessPoolExecutor(processes, initializer=die_with_parent)
    with ExitStack() as early:
        early.callback(_end_now, pool)
        yield pool
        early.pop_all()
        pool.shutdown()


def _end_now(pool: Executor) -> None:
    workers = multiprocessing.active_children()
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
