"""State of the mock cloud: its machines, ordered by their next change, and optionally persisted in a journal."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from hcloud.core.model import Market
from hcloud.provider import Journal
from providers.mock.machine import MachineRow

MACHINE_PREFIX = "machine:"
CREATED = "cloud"


class Cloud:
    """All machines ever launched. Use it only inside :meth:`hold`, which first advances it to the current time."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._heap: list[tuple[float, str]] = []
        self._listeners: list[Callable[[str, Any], None]] = []
        self.now = float("-inf")
        """The cloud's own time. It never runs backwards, even if the clock does."""
        self.created_at: float | None = None
        self.changed_ids: list[str] = []
        """Provider ids in order of their visible changes; an id appears once per change."""
        self.machines: dict[str, MachineRow] = {}
        self.live: dict[str, MachineRow] = {}
        """Machines that have not ended, by provider id."""
        self.ended: dict[str, MachineRow] = {}
        self.reserved: Counter[tuple[str, str]] = Counter()
        """Live reserved machines by zone and type."""
        self.by_token: dict[str, str] = {}
        self.by_instance: dict[tuple[str, str], str] = {}

    @property
    def version(self) -> int:
        """Number of visible changes so far."""
        return len(self.changed_ids)

    def on_foreign_row(self, apply_row: Callable[[str, Any], None]) -> None:
        """Register a callback for rows of other processes that are not machines: ``apply_row(key, row)``."""
        self._listeners.append(apply_row)

    @contextmanager
    def hold(self, now: float) -> Iterator[None]:
        """Lock the cloud, read rows of other processes, and apply every change that is due by ``now``."""
        with self._held() as new_rows:
            news = {} if self._journal is None else cast(Mapping[str, object], new_rows)
            for key, row in news.items():
                self._apply_foreign_row(key, row)
            self._advance(now)
            if self.created_at is None:
                self.write({CREATED: self.now})
                self.created_at = self.now
            yield

    def put(self, *rows: MachineRow) -> None:
        """Persist new or changed machines, then apply them."""
        if self._journal is not None and rows:
            self._journal.write({MACHINE_PREFIX + row.provider_id: row.to_json() for row in rows})
        for row in rows:
            self._index(row)

    def write(self, rows: Mapping[str, object]) -> None:
        """Persist rows if there is a journal."""
        if self._journal is not None:
            self._journal.write(rows)

    def next_change_at(self) -> float | None:
        """Return when something next changes by itself, or None."""
        while self._heap:
            at, provider_id = self._heap[0]
            if at in self.machines[provider_id].changes():
                return at
            heapq.heappop(self._heap)  # the machine changed since
        return None

    def _held(self) -> AbstractContextManager[object]:
        return self._lock if self._journal is None else self._journal.hold()

    def _apply_foreign_row(self, key: str, row: object) -> None:
        if key.startswith(MACHINE_PREFIX):
            self._index(MachineRow.from_json(cast(Mapping[str, Any], row)))
        elif key == CREATED:
            self.created_at = cast(float, row)
            self.now = max(self.now, self.created_at)
        else:
            for apply_row in self._listeners:
                apply_row(key, row)

    def _index(self, row: MachineRow) -> None:
        self.changed_ids.append(row.provider_id)
        self.machines[row.provider_id] = row
        self.by_token[row.token] = row.provider_id
        self.by_instance[row.owner, row.instance_id] = row.provider_id
        self._sort_into_live_or_ended(row)
        for at in row.changes():
            if at > self.now:
                heapq.heappush(self._heap, (at, row.provider_id))

    def _sort_into_live_or_ended(self, row: MachineRow) -> None:
        ended, lived = row.ends_at <= self.now, row.provider_id in self.live
        if row.market is Market.RESERVED:
            self.reserved[row.zone, row.type_name] += (not ended) - lived
        (self.live if ended else self.ended).pop(row.provider_id, None)
        (self.ended if ended else self.live)[row.provider_id] = row

    def _advance(self, now: float) -> None:
        self.now = max(self.now, now)
        while self._heap and self._heap[0][0] <= self.now:
            _, provider_id = heapq.heappop(self._heap)
            self._sort_into_live_or_ended(self.machines[provider_id])
            self.changed_ids.append(provider_id)
