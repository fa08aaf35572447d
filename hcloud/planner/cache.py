"""Results of earlier plans, reused while the rows they were computed from are the same objects.

Rows are frozen, so a result holds as long as its inputs are identical. The driver of the cycle passes one
:class:`PlanCache` from snapshot to snapshot; an empty cache gives the same plan, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hcloud.planner.occupancy import Occupancy

T = TypeVar("T")
_KEPT_ASKS = 1000


class PlanCache:
    """One result per name, with the objects it was computed from. Results are shared and must not be modified."""

    __slots__ = ("_known", "_numbers", "asks", "expectations", "occupancy", "run_times")

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], object]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self.occupancy = Occupancy()
        """Which units hold what."""
        self.asks: dict[int, tuple[object, int]] = {}
        """By id of a spec: the spec, and a number shared by all specs with the same requirements."""
        self.expectations: dict[str, Any] = {}
        """By running job: what does not change between two of its samples."""
        self.run_times: dict[str, Any] = {}
        """By job: how long it runs, and what this follows from."""

    def number_asks(self, spec: object, asks: tuple[object, ...]) -> int:
        """Return the number of the requirements ``asks``. Keeps ``spec`` alive, so that its id is not reused."""
        number = self._numbers.setdefault(asks, len(self._numbers))
        self.asks[id(spec)] = (spec, number)
        return number

    def trim_asks(self, but: int) -> None:
        """Clear the numbers if more than twice ``but`` specs are kept. Call only between plans, because numbers
        change."""
        if len(self.asks) > 2 * but + _KEPT_ASKS:
            self.asks.clear()
            self._numbers.clear()

    def trim_by_job(self, but: int) -> None:
        """Clear what is kept by job if that is more than twice ``but``; most is of ended jobs."""
        for kept in (self.expectations, self.run_times):
            if len(kept) > 2 * but + _KEPT_ASKS:
                kept.clear()

    def latest(self, name: str) -> Any:
        """Return the last result of this name, whatever it was computed from; None if there is none."""
        known = self._known.get(name)
        return None if known is None else known[1]

    def keep(self, name: str, answer: object) -> None:
        """Store ``answer`` for :meth:`latest`; the reader checks what of it still holds."""
        self._known[name] = ((), answer)

    def get(self, name: str, made_of: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """Return the result ``name``, computed again unless ``made_of`` are the identical objects it was computed
        from."""
        known = self._known.get(name)
        if known is not None and len(known[0]) == len(made_of):
            for before, now in zip(known[0], made_of, strict=True):
                if before is not now:
                    break
            else:
                return cast(T, known[1])
        answer = work_out()
        self._known[name] = (made_of, answer)
        return answer
