"""The mock cloud's memory: its machines, in time order of what becomes of them, and optionally written down."""

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

MACHINE = "machine:"
BIRTH = "cloud"


class Cloud:
    """All machines ever launched. Use only inside :meth:`hold`, which brings it up to the present first.

    ``now`` is the cloud's own time: it never runs backwards, whatever its clock does. ``touched``: the ids,
    again and again, that something visible of it changed. ``live`` are the machines that have not ended;
    ``reserved`` counts the reserved ones of them by zone and type.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._heap: list[tuple[float, str]] = []
        self._listeners: list[Callable[[str, Any], None]] = []
        self.now = float("-inf")
        self.born_at: float | None = None
        self.touched: list[str] = []
        self.machines: dict[str, MachineRow] = {}
        self.live: dict[str, MachineRow] = {}
        self.ended: dict[str, MachineRow] = {}
        self.reserved: Counter[tuple[str, str]] = Counter()
        self.by_token: dict[str, str] = {}
        self.by_instance: dict[tuple[str, str], str] = {}

    @property
    def version(self) -> int:
        """Another number whenever anything visible of a machine has changed."""
        return len(self.touched)

    def listen(self, take_row: Callable[[str, Any], None]) -> None:
        """Hand rows that are not machines, written by other processes, to ``take_row(key, row)``."""
        self._listeners.append(take_row)

    @contextmanager
    def hold(self, now: float) -> Iterator[None]:
        """Keep others out, learn what they wrote, and let everything happen that is due by ``now``."""
        with self._held() as told:
            news = {} if self._journal is None else cast(Mapping[str, object], told)
            for key, row in news.items():
                self._learn(key, row)
            self._advance(now)
            if self.born_at is None:
                self.write({BIRTH: self.now})
                self.born_at = self.now
            yield

    def put(self, *rows: MachineRow) -> None:
        """Write new or changed machines down, then know them."""
        if self._journal is not None and rows:
            self._journal.write({MACHINE + row.provider_id: row.to_json() for row in rows})
        for row in rows:
            self._know(row)

    def write(self, rows: Mapping[str, object]) -> None:
        """Write rows down if there is a journal."""
        if self._journal is not None:
            self._journal.write(rows)

    def next_change_at(self) -> float | None:
        """Return when something next changes by itself, or None."""
        while self._heap:
            at, provider_id = self._heap[0]
            if at in self.machines[provider_id].changes():
                return at
            heapq.heappop(self._heap)  # settled otherwise since
        return None

    def _held(self) -> AbstractContextManager[object]:
        """What keeps others out, and with a journal gives what they wrote."""
        return self._lock if self._journal is None else self._journal.hold()

    def _learn(self, key: str, row: object) -> None:
        if key.startswith(MACHINE):
            self._know(MachineRow.from_json(cast(Mapping[str, Any], row)))
        elif key == BIRTH:
            self.born_at = cast(float, row)
            self.now = max(self.now, self.born_at)
        else:
            for take_row in self._listeners:
                take_row(key, row)

    def _know(self, row: MachineRow) -> None:
        self.touched.append(row.provider_id)
        self.machines[row.provider_id] = row
        self.by_token[row.token] = row.provider_id
        self.by_instance[row.owner, row.instance_id] = row.provider_id
        self._sort_in(row)
        for at in row.changes():
            if at > self.now:
                heapq.heappush(self._heap, (at, row.provider_id))

    def _sort_in(self, row: MachineRow) -> None:
        ended, lived = row.ends_at <= self.now, row.provider_id in self.live
        if row.market is Market.RESERVED:
            self.reserved[row.zone, row.type_name] += (not ended) - lived
        (self.live if ended else self.ended).pop(row.provider_id, None)
        (self.ended if ended else self.live)[row.provider_id] = row

    def _advance(self, now: float) -> None:
        self.now = max(self.now, now)
        while self._heap and self._heap[0][0] <= self.now:
            _, provider_id = heapq.heappop(self._heap)
            self._sort_in(self.machines[provider_id])
            self.touched.append(provider_id)
