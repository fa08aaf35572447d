"""Which part of committed capacity ends when, and until when instances that use it are covered.

Clouds charge usage to commitments without saying which instance used which. Usage is taken here to fill the commitments
that end last first. So what is free ends first, and at an end exactly the instances that no other commitment has
capacity for become on demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from hcloud.core.model import CommittedCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentKind:
    """The commitments of one kind that cover instances of a type in a zone."""

    name: str
    usd_per_h: float
    """Price of one instance."""
    parts: tuple[CommittedCapacity, ...]
    """Its capacity by end, the last end first."""
    pool: str = ""
    """Name of the pool that other types or zones share; "" if this type and zone have it alone."""

    @property
    def free(self) -> int:
        """How many more instances it covers."""
        return sum(each.free for each in self.parts)

    @property
    def ends_at(self) -> float | None:
        """When the capacity that the next instance uses ends; if none is free, the first end."""
        return next_end(self.parts)


def next_kind(kinds: Sequence[CommitmentKind]) -> CommitmentKind | None:
    """Return the kind that the next instance uses: the first one with free capacity, else the first."""
    return next((each for each in kinds if each.free > 0), kinds[0] if kinds else None)


def parts_by_kind(kinds: Iterable[CommitmentKind]) -> tuple[CommittedCapacity, ...]:
    """Return the capacity of all kinds, each part with the name and the price of its kind."""
    return tuple(replace(part, kind=each.name, usd_per_h=each.usd_per_h) for each in kinds for part in each.parts)


def capacity_by_end(totals: Iterable[tuple[float | None, int]], free: int) -> tuple[CommittedCapacity, ...]:
    """Return capacity by its end, the last end first.

    ``totals``: each end, the last first, with how many instances all commitments of this end or a later one cover
    together. ``free``: how many of all are unused.
    """
    parts, below = list[tuple[float | None, int]](), 0
    for ends_at, total in totals:
        parts.append((ends_at, max(0, total - below)))
        below = max(below, total)
    used, found = max(0, below - free), []
    for ends_at, count in parts:
        taken = min(used, count)
        used -= taken
        if count > 0:
            found.append(CommittedCapacity(ends_at=ends_at, free=count - taken, used=taken))
    return tuple(found)


def joined_by_end(parts: Iterable[CommittedCapacity]) -> tuple[CommittedCapacity, ...]:
    """Return the sums of capacity with the same end, the last end first."""
    sums: dict[float | None, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in parts:
        free, used = sums[each.ends_at]
        sums[each.ends_at] = (free + each.free, used + each.used)
    return tuple(
        CommittedCapacity(ends_at=ends_at, free=free, used=used)
        for ends_at, (free, used) in sorted(sums.items(), key=lambda each: last_end_first(each[0]))
    )


def last_end_first(ends_at: float | None) -> float:
    """Return a sort key of ends (Unix seconds; None: not known to end) that puts the last one first."""
    return -inf if ends_at is None else -ends_at


def next_end(committed: Sequence[CommittedCapacity]) -> float | None:
    """Return when the capacity that a launch would use ends; if none is free, the first end."""
    for each in committed:
        if each.free > 0:
            return each.ends_at
    return committed[-1].ends_at if committed else None


def covered_until(committed: Sequence[CommittedCapacity], count: int) -> list[float | None]:
    """Return until when ``count`` instances are covered, the first end first; fewer if less capacity is in use.

    Others may use the same commitments, so these are those in use that end first.
    """
    ends: list[float | None] = []
    for each in reversed(committed):
        ends += [each.ends_at] * min(each.used, count - len(ends))
    return ends
