"""What earlier plans worked out of records that are still the very same objects: saves time, decides nothing.

Records are frozen, so what was worked out of one holds for as long as it is that one. Whoever drives the cycle keeps a
:class:`PlanCache` from snapshot to snapshot; a plan made with an empty one is the same plan, only later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hcloud.planner.occupancy import Occupancy

T = TypeVar("T")
_KEPT_ASKS = 1000


class PlanCache:
    """One answer by name, with the objects it was worked out of. Answers are shared: nobody may change them.

    ``asks``: by the identity of a job's spec that spec and a number, the same for all specs that ask for the same.
    ``occupancy``: which units hold what. ``posts``: by running job what stays the same of it between two samples,
    with the records that was worked out of.
    """

    __slots__ = ("_known", "_numbers", "asks", "occupancy", "posts")

    def __init__(self) -> None:
        """Know nothing."""
        self._known: dict[str, tuple[tuple[object, ...], object]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self.occupancy = Occupancy()
        self.asks: dict[int, tuple[object, int]] = {}
        self.posts: dict[str, Any] = {}

    def number_asks(self, spec: object, asks: tuple[object, ...]) -> int:
        """Note, and return the number of, what ``spec`` asks for. It is kept here, so no other gets its identity."""
        number = self._numbers.setdefault(asks, len(self._numbers))
        self.asks[id(spec)] = (spec, number)
        return number

    def forget_asks(self, but: int) -> None:
        """Begin anew where more than twice ``but`` specs are kept; only between two plans, as numbers change."""
        if len(self.asks) > 2 * but + _KEPT_ASKS:
            self.asks.clear()
            self._numbers.clear()

    def forget_others(self, but: int) -> None:
        """Begin anew with the posts where more than twice ``but`` are kept: most are of what has ended."""
        if len(self.posts) > 2 * but + _KEPT_ASKS:
            self.posts.clear()

    def latest(self, name: str) -> Any:
        """Return the last answer of this name, whatever it was made of; None: there is none."""
        known = self._known.get(name)
        return None if known is None else known[1]

    def keep(self, name: str, answer: object) -> None:
        """Keep ``answer`` for :meth:`latest`: whoever asks for it finds out what of it still holds."""
        self._known[name] = ((), answer)

    def of(self, name: str, made_of: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """Return the answer ``name``, worked out anew unless all of ``made_of`` are the objects it was made of."""
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
