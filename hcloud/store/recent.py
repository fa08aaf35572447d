"""The newest events that this process committed, kept for its own followers of the log: reading them back costs more
than all else that is done with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hcloud.core.model import Event

KEPT = 5_000
"""So many wait for a follower; who is slower, or comes later, reads them from the database."""
NewEvent = tuple[int, Callable[[], Event]]
"""Its sequence number, and what builds it."""


class RecentEvents:
    """Committed events without a gap between them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[NewEvent] = []

    def add(self, events: Sequence[NewEvent]) -> None:
        """Add the events of one transaction after its commit; earlier ones are dropped if others lie between."""
        with self._lock:
            if self._events and events and self._events[-1][0] + 1 != events[0][0]:
                self._events = []
            self._events += events
            if len(self._events) > 2 * KEPT:
                self._events = self._events[-KEPT:]

    def between(self, after_seq: int, last_seq: int, limit: int) -> tuple[Event, ...] | None:
        """Return the first ``limit`` events after ``after_seq`` up to ``last_seq``; None if some are not kept.

        Those up to ``after_seq`` are dropped: they were followed.
        """
        if after_seq >= last_seq:
            return ()
        with self._lock:
            events = self._events
            if not events or events[0][0] > after_seq + 1 or events[-1][0] < last_seq:
                return None
            first = after_seq + 1 - events[0][0]
            self._events = events[first:]
            chosen = self._events[: min(limit, last_seq - after_seq)]
        return tuple(build() for _, build in chosen)
