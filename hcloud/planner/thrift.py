"""Which machines a job is kept from while better ones can be rented: those that stand half empty or are too small.

A large machine that was right for a surge, or for a profiling run, would be kept up for ever by small jobs that come
one after the other, each at the price of the whole. While something smaller can be rented for a job it goes there, and
the half empty machine is used up by those that are on it. A job that is over before them costs nothing, and may come.

A job whose size is the planner's is not squeezed into a machine where no size is likely to meet its target, only since
there is room, while one on which that is likely can be had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hcloud.model import Job
from hcloud.planner.dear_room import DearRoom
from hcloud.planner.draft import Draft, Group
from hcloud.planner.fleet import Amounts, Mask, Places
from hcloud.planner.offers import Counter
from hcloud.planner.unkept import machines_of_unkept_promises

_NOWHERE: Places = np.zeros(0, dtype=np.intp)


@dataclass(slots=True, eq=False)
class Thrift:
    """The answers for one plan. ``rented``, ``price_usd_per_h``: of each machine, shape ``(N,)``; ``none``: no machine,
    for all who are kept from none."""

    draft: Draft
    counter: Counter
    rented: Mask
    price_usd_per_h: Amounts
    none: Mask
    dear_room: DearRoom
    _needed: Amounts | None = None
    _dearer: dict[float, Places] = field(default_factory=dict)

    def closed(self, group: Group) -> Mask:
        """Return the machines that ``group`` is kept from, shape ``(N,)``."""
        dearly = self.dear_room.kept_up_dearly(group)
        if dearly is not None:
            dearly = self._unless_needed_longer(group, dearly.copy())
        closed = self._half_empty(group)
        unkept = machines_of_unkept_promises(self.draft) if group.serves and not group.application else None
        for more in (self._too_small(group), dearly, unkept, self.dear_room.paid_kept_from(group)):
            if more is not None:
                closed = closed | more
        return closed

    def _too_small(self, group: Group) -> Mask | None:
        counter, suit = self.counter, self.draft.suit
        if group.aim is None or suit is None:
            return None
        enough = suit.enough(group.application, group.aim)
        if enough.all() or (counter.shortfalls(group)[counter.obtainable(group)] > 1).all():
            return None
        return ~enough

    def _half_empty(self, group: Group) -> Mask:
        """Return the machines that would stay half empty with all that wait of ``group``, where a new one is cheaper
        for one of them than such a part of theirs, and they would keep them up longer than they are needed. To those
        that were moved none is: a machine was emptied for less than what goes on running."""
        below, fleet = self.draft.policy.retention.drain_below, self.draft.fleet
        cheapest = self.counter.worth_usd_per_h(group) if below > 0.0 and not group.moved else 0.0
        dear = self._dear(cheapest) if cheapest > 0.0 else _NOWHERE
        if not dear.size:
            return self.none
        closed: Mask = np.zeros_like(self.rented)
        capacity, ranks = fleet.capacity[:2].take(dear, axis=1), max(1, group.pending) * group.wanted
        taken = np.broadcast_to(group.taken_everywhere(fleet.capacity)[:2], (2, len(closed))).take(dear, axis=1)
        used = capacity - fleet.room[:2].take(dear, axis=1) + ranks * taken
        closed[dear[np.logical_and.reduce(used < below * capacity, axis=0)]] = True
        return self._unless_needed_longer(group, closed)

    def _unless_needed_longer(self, group: Group, closed: Mask) -> Mask:
        """Open those of ``closed`` again on which others are expected to be longer than a member of ``group``."""
        suit = self.draft.suit
        lasts_s = suit.expected_s(group.application, group.wanted) if suit is not None else None
        if lasts_s is not None:
            closed &= self._needed_s() < lasts_s
        return closed

    def _dear(self, usd_per_h: float) -> Places:
        """Return the rented machines of which the policy's part costs more: few prices are asked for, by many jobs."""
        if usd_per_h not in self._dearer:
            below = self.draft.policy.retention.drain_below
            self._dearer[usd_per_h] = np.flatnonzero(self.rented & (usd_per_h < below * self.price_usd_per_h))
        return self._dearer[usd_per_h]

    def _needed_s(self) -> Amounts:
        """Return how long each machine is expected to be in use by those that are on it, shape ``(N,)``."""
        if self._needed is None:
            residents, stopping = self.draft.fleet.holdings, self.draft.stopping
            remains_s = {job.id: 0.0 if job.id in stopping else self._remains_s(job) for job in self.draft.running}
            longest_s = [max([remains_s[job.id] for job, _ in held]) if held else 0.0 for held in residents]
            self._needed = np.array(longest_s, dtype=np.float64)
        return self._needed

    def _remains_s(self, job: Job) -> float:
        """Return how much longer ``job`` is expected to run: where nothing is known as long again (Lindy), and past its
        time as long as it is past it."""
        suit, ran_s = self.draft.suit, self.draft.now - job.attempt.placed_at if job.attempt is not None else 0.0
        lasts_s = suit.expected_s(job.application, job.spec.nodes.count) if suit is not None else None
        return ran_s if lasts_s is None else abs(lasts_s - ran_s)


def open_thrift(draft: Draft, counter: Counter) -> Thrift:
    """Return which machines are closed in this plan."""
    fleet, offers = draft.fleet, [instance.offer for instance in draft.fleet.instances]
    price_usd_per_h: Amounts = np.array([offer.price_usd_per_h for offer in offers], dtype=np.float64)
    dear_room = DearRoom(
        draft=draft,
        counter=counter,
        paid=np.flatnonzero(fleet.placeable & fleet.reserved),
        price_usd_per_h=price_usd_per_h,
    )
    return Thrift(
        draft=draft,
        counter=counter,
        rented=~fleet.reserved,
        price_usd_per_h=price_usd_per_h,
        none=np.zeros(len(offers), dtype=np.bool_),
        dear_room=dear_room,
    )
