"""Ended tasks of arrays: recorded with their array, which keeps two numbers for a run of them, without their rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from hcloud.core.clock import Clock
from hcloud.core.rows import number_of
from hcloud.store import LeaderLease, Store
from hcloud.store.forgetting import referenced_numbers

FOLDED_MOST = 4_000
"""Tasks recorded in one cycle; the others follow in the next."""


@dataclass(slots=True)
class EndedTasks:
    """Folds the rows of ended tasks into those of their arrays.

    A row that is still needed stays: of an open intent, or of a task that is being measured.
    """

    store: Store
    clock: Clock

    def fold(self, lease: LeaderLease | None = None) -> int:
        """Record ended tasks with their arrays and delete their rows; return how many. Raises StoreBusy, StaleWrite."""
        view = self.store.live()
        if not view.arrays:
            return 0
        ended = self.store.ended_tasks(FOLDED_MOST)
        if not ended:
            return 0
        needed, _ = referenced_numbers(view)
        needed |= {number_of(each.subject) for each in view.intents if each.subject.startswith("job-")}
        free = [each for each in ended if each.number not in needed]
        if not free:
            return 0
        with self.store.transaction(self.clock.now(), lease) as txn:
            for array_id, tasks in groupby(free, key=lambda each: each.array_id):
                txn.fold_tasks(txn.job(array_id), list(tasks))
        return len(free)
