"""Ended tasks of arrays: recorded with their array, which keeps two numbers for a run of them, without their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hcloud.core.clock import Clock
from hcloud.core.rows import number_of
from hcloud.quarantine import Failure, Failures, run_batch
from hcloud.store import LeaderLease, Store, Transaction
from hcloud.store.array_rows import EndedTask
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
    _failures: dict[str, Failure] = field(default_factory=dict)

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
        arrays = [list(tasks) for _, tasks in groupby(free, key=lambda each: each.array_id)]

        def record(txn: Transaction, tasks: Sequence[EndedTask]) -> None:
            txn.fold_tasks(txn.job(tasks[0].array_id), tasks)

        done = run_batch(self.store, self.clock, lease, arrays, lambda: record, self._skip_failed)
        return sum(len(tasks) for tasks, _ in done)

    def _skip_failed(self, tasks: Sequence[EndedTask], defect: Exception) -> None:
        array_id = tasks[0].array_id
        self._failures[f"recording tasks of {array_id}"] = Failure.from_error(exc_info=defect, job_id=array_id)

    def take_failures(self) -> Failures:
        """Return, once, the arrays whose tasks could not be recorded because of a defect since the last call."""
        taken, self._failures = self._failures, {}
        return taken
