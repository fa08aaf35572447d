"""Do something for many items without letting one defective item stop the others.

:func:`run_batch` writes rows, in one transaction if possible. :func:`bisect_failures` calls the outside world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hcloud.core.clock import Clock
from hcloud.quarantine.failures import CYCLE_ERRORS, Failure
from hcloud.store import LeaderLease, Store, Transaction

A = TypeVar("A")
R = TypeVar("R")
DEFECT_RETRY_S = 30.0
"""An operation that failed because of a defect is retried after this long."""
BATCH_FAILURES_MAX = 20
"""After more failures than these in one batch, each remaining item gets a transaction of its own."""
SINGLE_FAILURES_MAX = 8
"""After more items than these failed alone, the items are not to blame: the untried ones wait for the next cycle."""
Recording = Callable[[], Callable[[Transaction, A], R]]
"""Resets its own counters and returns the function that changes the rows of one item."""


class _ItemFailed(Exception):
    """The item at this index failed; the cause is the defect."""

    def __init__(self, index: int, defect: Exception) -> None:
        self.index, self.defect = index, defect


def run_batch(
    store: Store,
    clock: Clock,
    lease: LeaderLease | None,
    items: Sequence[A],
    recording: Recording[A, R],
    replace_failed: Callable[[A, Exception], A | None],
) -> list[tuple[A, R]]:
    """Change the rows of all ``items`` in one transaction; return each item that succeeded with its result.

    If an item fails, the transaction is rolled back and repeated without it, or with what ``replace_failed`` returns
    for it. Raises CYCLE_ERRORS.
    """
    left, failures = list(items), 0
    while left and failures <= BATCH_FAILURES_MAX:
        try:
            return _in_one_transaction(store, clock, lease, left, recording())
        except _ItemFailed as failed:
            failures += 1
            other = replace_failed(left[failed.index], failed.defect)
            left[failed.index : failed.index + 1] = [] if other is None else [other]
    done = list[tuple[A, R]]()
    for item in left:
        current: A | None = item
        while current is not None:
            try:
                done += _in_one_transaction(store, clock, lease, [current], recording())
                break
            except _ItemFailed as failed:
                current = replace_failed(current, failed.defect)
    return done


def _in_one_transaction(
    store: Store, clock: Clock, lease: LeaderLease | None, items: Sequence[A], change: Callable[[Transaction, A], R]
) -> list[tuple[A, R]]:
    """Change the rows of all ``items``. Raises _ItemFailed, CYCLE_ERRORS."""
    done: list[tuple[A, R]] = []
    index: int | None = None
    # Errors are caught outside the transaction: only on leaving it does the store turn its own errors (a full disk, a
    # lost connection) into StoreBusy, which is no item's fault.
    try:
        with store.transaction(clock.now(), lease) as txn:
            for index, item in enumerate(items):  # noqa: B007 the handler below reads it
                done.append((item, change(txn, item)))
            index = None
    except CYCLE_ERRORS:
        raise
    except Exception as defect:  # any defect: the other items must still be written
        if index is None:
            raise
        raise _ItemFailed(index, defect) from defect
    return done


def bisect_failures(
    items: Sequence[A], do: Callable[[Sequence[A]], object], on_failure: Callable[[A, Failure], object]
) -> Failure | None:
    """Call ``do`` with all ``items``; if that fails, with halves of them, until only items are left that fail alone.

    ``do`` must be safe to repeat. Returns the failure if no item failed alone, else None. Raises CYCLE_ERRORS.
    """
    untried, failed_alone, failures = [items] if items else [], 0, list[Failure]()
    while untried and failed_alone <= SINGLE_FAILURES_MAX:
        some = untried.pop()
        try:
            do(some)
        except CYCLE_ERRORS:
            raise
        except Exception as defect:  # noqa: BLE001 any defect: the other items must still be served
            failures.append(Failure.from_error(exc_info=defect))
            if len(some) > 1:
                untried += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                failed_alone += 1
                on_failure(some[0], failures[-1])
    return failures[0] if failures and not failed_alone else None
