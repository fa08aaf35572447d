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
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.dear_room import ExpensiveRoomHoldback
from hcloud.planner.fleet import Mask, Places
from hcloud.planner.offers import OfferMarket
from hcloud.planner.quiet_room import NoisyJobHoldback
from hcloud.planner.unkept import machines_failing_services


@dataclass(slots=True, eq=False)
class HalfEmptyHoldback:
    """The answers for one plan. ``rented``: of each machine, shape ``(N,)``; ``some_rented``: whether any is."""

    context: PlanContext
    offer_market: OfferMarket
    rented: Mask
    some_rented: bool
    expensive_room: ExpensiveRoomHoldback
    noisy_room: NoisyJobHoldback
    _needed: dict[int, float] = field(default_factory=dict)
    _dearer: dict[float, Mask | None] = field(default_factory=dict)

    def open(self, group: JobGroup, places: Places) -> Places:
        """Return those of the machines ``places`` that ``group`` is not kept from.

        Few are asked about, as most who wait find hardly any that have room and suit them; what costs more to find out
        is asked about those only that are still open.
        """
        shut = self._kept_up(group, places) if places.size else None
        left = places if shut is None else places[~shut]
        if left.size and (paid := self.expensive_room.paid_kept_from(group)) is not None:
            left = left[~paid[left]]
        if left.size and (loud := self.noisy_room.kept_from(group, left)) is not None:
            left = left[~loud]
        if left.size and group.serves and not group.application:
            left = left[~machines_failing_services(self.context)[left]]
        small = self._too_small(group, left) if left.size else None
        return left if small is None else left[~small]

    def _too_small(self, group: JobGroup, places: Places) -> Mask | None:
        offer_market, suit = self.offer_market, self.context.suit
        if group.aim is None or suit is None:
            return None
        small: Mask = ~suit.enough(group.application, group.aim)[places]
        if np.count_nonzero(small) and (offer_market.shortfalls(group)[offer_market.had(group)] > 1).all():
            small[:] = False
        return small

    def _kept_up(self, group: JobGroup, places: Places) -> Mask | None:
        """Return those of ``places`` that a member of ``group`` would keep up dearly, or half empty, for longer than
        they are needed; None: none."""
        shut, dearly = self._half_empty(group, places), self.expensive_room.kept_up_dearly(group)
        if dearly is not None:
            shut = dearly[places] if shut is None else shut | dearly[places]
        if shut is None:
            return None
        suit, asked = self.context.suit, places[shut].tolist()
        lasts_s = suit.expected_s(group.application, group.wanted) if suit is not None and asked else None
        if lasts_s is not None:
            # Open again where others are expected to be longer than a member of the group.
            shut[shut] = [self._needed_s(at) < lasts_s for at in asked]
        return shut

    def _half_empty(self, group: JobGroup, places: Places) -> Mask | None:
        """Return those of ``places`` that would stay half empty with all that wait of ``group``, where a new machine is
        cheaper for one of them than such a part of theirs. To those that were moved none is closed: a machine was
        emptied for less than what goes on running."""
        below, fleet = self.context.policy.retention.drain_below, self.context.fleet
        if below <= 0.0 or group.moved or not self.some_rented:
            return None
        capacity = fleet.capacity[:2].take(places, axis=1)
        used, limit = capacity - fleet.room[:2].take(places, axis=1), below * capacity
        # Prices and sizes are asked for only where something stands half empty without them.
        empty: Mask = self.rented[places] & np.logical_and.reduce(used < limit, axis=0)
        dear = self._dear(self.offer_market.alone_usd_per_h(group)) if np.count_nonzero(empty) else None
        asked = (empty & dear[places]).nonzero()[0] if dear is not None else places[:0]
        if not asked.size:
            return None
        more = max(1, group.pending) * group.wanted * group.taken_on(fleet.capacity, places[asked])[:2]
        empty[:] = False
        used, limit = used.take(asked, axis=1) + more, limit.take(asked, axis=1)
        empty[asked] = np.logical_and.reduce(used < limit, axis=0)
        return empty

    def _dear(self, usd_per_h: float) -> Mask | None:
        """Return the rented machines of which the policy's part costs more, None where there is none, or no price: few
        prices are asked for, by many jobs."""
        if usd_per_h not in self._dearer:
            part = self.context.policy.retention.drain_below * self.context.fleet.price_usd_per_h
            dear: Mask = self.rented & (usd_per_h < part)
            self._dearer[usd_per_h] = dear if usd_per_h > 0.0 and dear.any() else None
        return self._dearer[usd_per_h]

    def _needed_s(self, at: int) -> float:
        """Return how long machine ``at`` is expected to be in use by those that are on it."""
        if at not in self._needed:
            stopping, held = self.context.stopping, self.context.fleet.holdings[at]
            remains_s = [0.0 if job.id in stopping else self._remains_s(job) for job, _ in held]
            self._needed[at] = max(remains_s, default=0.0)
        return self._needed[at]

    def _remains_s(self, job: Job) -> float:
        """Return how much longer ``job`` is expected to run: where nothing is known as long again (Lindy), and past its
        time as long as it is past it."""
        suit, ran_s = self.context.suit, self.context.now - job.attempt.placed_at if job.attempt is not None else 0.0
        lasts_s = suit.expected_s(job.application, job.spec.nodes.count) if suit is not None else None
        return ran_s if lasts_s is None else abs(lasts_s - ran_s)


def open_half_empty_holdback(context: PlanContext, offer_market: OfferMarket) -> HalfEmptyHoldback:
    """Return which machines are closed in this plan."""
    fleet, rented = context.fleet, ~context.fleet.reserved
    is_paid: Mask = fleet.placeable & fleet.reserved
    paid = np.flatnonzero(is_paid)
    return HalfEmptyHoldback(
        context=context,
        offer_market=offer_market,
        rented=rented,
        some_rented=bool(rented.any()),
        expensive_room=ExpensiveRoomHoldback(context=context, offer_market=offer_market, paid=paid),
        noisy_room=NoisyJobHoldback(context=context, paid=paid, is_paid=is_paid),
    )
