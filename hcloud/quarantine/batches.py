"""What fails by a defect of ours is kept apart: one unit's report, one row or one call must not stop all the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from hcloud.core.clock import Clock
from hcloud.core.errors import OutcomeUnknown, ProviderError, StaleWrite, StoreBusy, StoreDamaged
from hcloud.core.model import JobId
from hcloud.quarantine.planning import error_text
from hcloud.store import LeaderLease, Store, Transaction

_log = logging.getLogger("hcloud")
A = TypeVar("A")
R = TypeVar("R")
DEFECT_RETRY_S = 30.0
"""What cannot be carried out, by a defect, is tried again after this long."""
CYCLE_ERRORS = (StoreBusy, StaleWrite, StoreDamaged)
"""What is no item's fault: the database cannot be written to at all now, or not by us. The cycle ends with it."""
BATCH_FAILURES_MAX = 20
"""Where more items than these fail, each of the others gets a transaction of its own."""
SINGLE_FAILURES_MAX = 8
"""Where more items than these fail alone, it is not they: what was not tried yet is left for later."""


class Failure(NamedTuple):
    """What HCloud failed with, a defect (``exc_info``); ``job_id``: the job that it fails on, where it is one."""

    error: str
    exc_info: Exception | None
    job_id: JobId | None = None

    @classmethod
    def from_error(cls, *, exc_info: Exception, job_id: JobId | None = None) -> Failure:
        """Return a defect as a failure."""
        return cls(error_text(exc_info), exc_info, job_id)


Failures = Mapping[str, Failure]
"""By what HCloud fails on, in words."""
Recording = Callable[[], Callable[[Transaction, A], R]]
"""Begins with nothing counted, and returns what carries out the row changes of one item."""


class _Failed(Exception):
    """The item at this place of a list fails; its cause says with what."""

    def __init__(self, at: int, defect: Exception) -> None:
        self.at, self.defect = at, defect


def run_batch(
    store: Store,
    clock: Clock,
    lease: LeaderLease | None,
    items: Sequence[A],
    recording: Recording[A, R],
    instead: Callable[[A, Exception], A | None],
) -> list[tuple[A, R]]:
    """Carry out the row changes of ``items`` in one transaction; return those done, and what they gave.

    Where one fails by a defect that transaction is given up, as half of it may have been written, and the others are
    carried out in another, with what ``instead`` returns in its place, if anything. Raises NO_FAULT.
    """
    left, failures = list(items), 0
    while left and failures <= BATCH_FAILURES_MAX:
        try:
            return _in_one_transaction(store, clock, lease, left, recording())
        except _Failed as failed:
            failures += 1
            other = instead(left[failed.at], failed.defect)
            left[failed.at : failed.at + 1] = [] if other is None else [other]
    done = list[tuple[A, R]]()
    for item in left:
        alone: A | None = item
        while alone is not None:
            try:
                done += _in_one_transaction(store, clock, lease, [alone], recording())
                break
            except _Failed as failed:
                alone = instead(alone, failed.defect)
    return done


def _in_one_transaction(
    store: Store, clock: Clock, lease: LeaderLease | None, items: Sequence[A], carry_out: Callable[[Transaction, A], R]
) -> list[tuple[A, R]]:
    """Carry out all; raises _Failed. An error leaves the transaction first: only there does the store say whether it is
    its own (a full disk, a lost connection), which is no defect of the item."""
    done: list[tuple[A, R]] = []
    at: int | None = None
    try:
        with store.transaction(clock.now(), lease) as txn:
            for at, item in enumerate(items):  # noqa: B007 it tells where it failed
                done.append((item, carry_out(txn, item)))
            at = None
    except CYCLE_ERRORS:
        raise
    except Exception as defect:  # whatever it is, the others are to be carried out
        if at is None:
            raise
        raise _Failed(at, defect) from defect
    return done


def bisect_failures(
    items: Sequence[A], do: Callable[[Sequence[A]], object], fails: Callable[[A, Failure], object]
) -> Failure | None:
    """Do something with all ``items`` at once; where that fails by a defect, with halves of them, and so on, until only
    those are left that fail alone. It must be harmless to repeat.

    Returns the failure, if no item failed alone. Raises NO_FAULT.
    """
    untried, alone, failed = [items] if items else [], 0, list[Failure]()
    while untried and alone <= SINGLE_FAILURES_MAX:
        some = untried.pop()
        try:
            do(some)
        except CYCLE_ERRORS:
            raise
        except Exception as defect:  # noqa: BLE001 whatever it is, the others are to be served
            failed.append(Failure.from_error(exc_info=defect))
            if len(some) > 1:
                untried += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                alone += 1
                fails(some[0], failed[-1])
    return failed[0] if failed and not alone else None


def call_provider(call: Callable[[], R], what: str, answers: Callable[[object], bool] = lambda _: True) -> R:
    """Return what a provider answers, if that is of the kind it has to be (``answers``). Raises ProviderError, and
    nothing else: what a provider fails with by a defect of its own is OutcomeUnknown."""
    try:
        told = call()
    except ProviderError:
        raise
    except Exception as defect:  # a plug-in may raise anything; what it did is not known
        _log.exception("%s failed with an unexpected error", what)
        raise OutcomeUnknown(f"{what} failed with an unexpected error: {error_text(defect)}") from defect
    if not answers(told):
        raise OutcomeUnknown(f"{what} returned a {type(told).__name__}, not what the port defines")
    return told
