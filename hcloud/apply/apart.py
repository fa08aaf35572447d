"""What fails by a defect of ours is kept apart: one unit's report, one row or one call must not stop all the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from traceback import format_exception
from typing import NamedTuple, TypeVar

from hcloud.clock import Clock
from hcloud.errors import OutcomeUnknown, ProviderError, StoreError
from hcloud.model import JobId
from hcloud.planner.despite import said
from hcloud.store import Lease, Store, Transaction

_log = logging.getLogger("hcloud")
A = TypeVar("A")
R = TypeVar("R")
TOGETHER = 20
"""Where more items than these fail, each of the others gets a transaction of its own."""
ALONE = 8
"""Where more items than these fail alone, it is not they: what was not tried yet is left for later."""


class Trouble(NamedTuple):
    """What HCloud failed with, a defect, and its trace; ``job_id``: the job that it fails on, where it is one."""

    error: str
    trace: Sequence[str]
    job_id: JobId | None = None


Troubles = Mapping[str, Trouble]
"""By what HCloud fails on, in words."""
Recording = Callable[[], Callable[[Transaction, A], R]]
"""Begins with nothing counted, and returns what carries out the row changes of one item."""


class _Failed(Exception):
    """The item at this place of a list fails; its cause says with what."""

    def __init__(self, at: int, defect: Exception) -> None:
        self.at, self.defect = at, defect


def in_one_go(
    store: Store,
    clock: Clock,
    lease: Lease | None,
    items: Sequence[A],
    recording: Recording[A, R],
    instead: Callable[[A, Exception], A | None],
) -> list[tuple[A, R]]:
    """Carry out the row changes of ``items`` in one transaction; return those done, and what they gave.

    Where one fails by a defect that transaction is given up, as half of it may have been written, and the others are
    carried out in another, with what ``instead`` returns in its place, if anything. Raises StoreError.
    """
    left, failures = list(items), 0
    while left and failures <= TOGETHER:
        try:
            return _in_one_transaction(store, clock, lease, left, recording())
        except _Failed as failed:
            failures += 1
            other = instead(left[failed.at], failed.defect)
            left[failed.at : failed.at + 1] = [] if other is None else [other]
    done = list[tuple[A, R]]()
    for item in left:
        try:
            done += _in_one_transaction(store, clock, lease, [item], recording())
        except _Failed as failed:
            instead(item, failed.defect)
    return done


def _in_one_transaction(
    store: Store, clock: Clock, lease: Lease | None, items: Sequence[A], carry_out: Callable[[Transaction, A], R]
) -> list[tuple[A, R]]:
    done: list[tuple[A, R]] = []
    with store.transaction(clock.now(), lease) as txn:
        for at, item in enumerate(items):
            try:
                done.append((item, carry_out(txn, item)))
            except StoreError:
                raise
            except Exception as defect:  # whatever it is, the others are to be carried out
                raise _Failed(at, defect) from defect
    return done


def by_halves(items: Sequence[A], do: Callable[[Sequence[A]], object], fails: Callable[[A, Trouble], object]) -> None:
    """Do something with all ``items`` at once; where that fails by a defect, with halves of them, and so on, until only
    those are left that fail alone. It must be harmless to repeat. Raises StoreError."""
    untried, alone = [items], 0
    while untried and alone <= ALONE:
        some = untried.pop()
        try:
            do(some)
        except StoreError:
            raise
        except Exception as defect:  # noqa: BLE001 whatever it is, the others are to be served
            if len(some) > 1:
                untried += [some[len(some) // 2 :], some[: len(some) // 2]]
            elif some:
                alone += 1
                fails(some[0], Trouble(said(defect), format_exception(defect)))


def asked(call: Callable[[], R], what: str) -> R:
    """Return what a provider answers. Raises ProviderError, and nothing else: what a provider fails with by a defect of
    its own is OutcomeUnknown."""
    try:
        return call()
    except ProviderError:
        raise
    except Exception as defect:  # a plug-in may raise anything; what it did is not known
        _log.exception("%s fails in a way that it never should", what)
        raise OutcomeUnknown(f"{what} fails in a way that it never should: {said(defect)}") from defect
