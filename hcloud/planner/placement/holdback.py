"""Hold instances back from jobs for which better ones can be launched.

An instance is held back from a group for one of these causes:

- it is half empty and expensive: small jobs that arrive one after the other would keep a large instance, which was
  right for a surge, alive at its full price (:class:`HalfEmptyHoldback`);
- it is reserved, and other jobs pay more for a vCPU elsewhere (:class:`ExpensiveRoomHoldback`);
- it is reserved, the job is noisy, and quiet jobs run on rented instances (:class:`NoisyJobHoldback`);
- most services that run there miss their latency (:func:`machines_failing_services`);
- it is too small: no size of a rank is likely to meet its target there.

A job that is expected to end before the present units of an instance costs nothing there, and is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from hcloud.core.model import Job, Market, ServiceTarget
from hcloud.forecast.boot_times import broken_by_a_boot
from hcloud.forecast.job_monitor import Sampled
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fit.interference import FULL
from hcloud.planner.fleet import SLACK, Amounts, Mask, Places
from hcloud.planner.late_boots import Urgency
from hcloud.planner.market import OfferMarket
from hcloud.planner.placement.open_instances import permitted


def open_half_empty_holdback(context: PlanContext, offer_market: OfferMarket) -> HalfEmptyHoldback:
    """Return the rules for one plan."""
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


@dataclass(slots=True, eq=False)
class HalfEmptyHoldback:
    """Holds half-empty instances back, and combines the answers of the other rules for one plan."""

    context: PlanContext
    offer_market: OfferMarket
    rented: Mask
    """Which instances are rented, shape ``(N,)``."""
    some_rented: bool
    """Whether any instance is rented."""
    expensive_room: ExpensiveRoomHoldback
    noisy_room: NoisyJobHoldback
    _needed: Amounts | None = None
    _expensive: dict[float, Mask | None] = field(default_factory=dict)

    def open(self, group: JobGroup, places: Places) -> Places:
        """Return which of the instances ``places`` are open to ``group``.

        Cheap rules come first; the others check only what is still open, which is mostly very little.
        """
        shut = self._kept_up(group, places) if places.size else None
        left = places if shut is None else places[~shut]
        if left.size and (paid := self.expensive_room.paid_kept_from(group)) is not None:
            left = left[~paid[left]]
        if left.size and (noisy := self.noisy_room.kept_from(group, left)) is not None:
            left = left[~noisy]
        if left.size and group.serves and not group.application:
            left = left[~machines_failing_services(self.context)[left]]
        small = self._too_small(group, left) if left.size else None
        return left if small is None else left[~small]

    def _too_small(self, group: JobGroup, places: Places) -> Mask | None:
        offer_market, suit = self.offer_market, self.context.suit
        if group.aim is None or suit is None:
            return None
        small: Mask = ~suit.enough(group.application, group.aim)[places]
        if (
            np.count_nonzero(small)
            and (offer_market.shortfalls(group)[offer_market.obtainable_places(group)] > 1).all()
        ):
            small[:] = False
        return small

    def _kept_up(self, group: JobGroup, places: Places) -> Mask | None:
        """Return which of ``places`` a member of ``group`` would keep alive, expensively or half empty, for longer than
        its present units need it; None: none."""
        shut, expensive = self._half_empty(group, places), self.expensive_room.expensive_for(group)
        if expensive is not None:
            shut = expensive[places] if shut is None else shut | expensive[places]
        if shut is None:
            return None
        suit, candidates = self.context.suit, places[shut]
        lasts_s = suit.expected_s(group.application, group.wanted) if suit is not None and candidates.size else None
        if lasts_s is not None:
            # Open again those that are needed for longer than the job runs.
            shut[shut] = self._needed_s(candidates) < lasts_s
        return shut

    def _half_empty(self, group: JobGroup, places: Places) -> Mask | None:
        """Return which of ``places`` would stay half empty with all waiting jobs of ``group``, and cost more than a new
        instance for one of them; None: none.

        Jobs that were moved are exempt: consolidation emptied an instance for less than what runs on.
        """
        below, fleet = self.context.policy.retention.drain_below, self.context.fleet
        if below <= 0.0 or group.moved or not self.some_rented:
            return None
        capacity = fleet.capacity[:2].take(places, axis=1)
        used, limit = capacity - fleet.room[:2].take(places, axis=1), below * capacity
        # Prices and sizes are computed only where an instance is half empty without them.
        empty: Mask = self.rented[places] & np.logical_and.reduce(used < limit, axis=0)
        expensive = self._above_price(self.offer_market.alone_usd_per_h(group)) if np.count_nonzero(empty) else None
        candidates = (empty & expensive[places]).nonzero()[0] if expensive is not None else places[:0]
        if not candidates.size:
            return None
        more = max(1, group.pending) * group.wanted * group.taken_on(fleet.capacity, places[candidates])[:2]
        empty[:] = False
        used, limit = used.take(candidates, axis=1) + more, limit.take(candidates, axis=1)
        empty[candidates] = np.logical_and.reduce(used < limit, axis=0)
        return empty

    def _above_price(self, usd_per_h: float) -> Mask | None:
        """Return the rented instances of which ``retention.drain_below`` costs more than ``usd_per_h``; None: none.
        Cached, because few prices are asked for by many jobs."""
        if usd_per_h not in self._expensive:
            part = self.context.policy.retention.drain_below * self.context.fleet.price_usd_per_h
            expensive: Mask = self.rented & (usd_per_h < part)
            self._expensive[usd_per_h] = expensive if usd_per_h > 0.0 and expensive.any() else None
        return self._expensive[usd_per_h]

    def _needed_s(self, places: Places) -> Amounts:
        """Return for how many seconds each of the instances is expected to be needed by its present units."""
        if self._needed is None:
            self._needed = np.full(len(self.context.fleet.instances), np.nan)
        for at in places[np.isnan(self._needed[places])].tolist():
            stopping, held = self.context.stopping, self.context.fleet.holdings[at]
            remains_s = [0.0 if job.id in stopping else self._remains_s(job) for job, _ in held]
            self._needed[at] = max(remains_s, default=0.0)
        return self._needed[places]

    def _remains_s(self, job: Job) -> float:
        """Return the expected remaining run time of ``job`` in seconds.

        If unknown, it equals the time run so far (Lindy); past the expected end, it equals the overrun.
        """
        suit, ran_s = self.context.suit, self.context.now - job.attempt.placed_at if job.attempt is not None else 0.0
        lasts_s = suit.expected_s(job.application, job.spec.nodes.count) if suit is not None else None
        return ran_s if lasts_s is None else abs(lasts_s - ran_s)


# ----------------------------------------------------------------------------------- reserved room, expensive elsewhere
@dataclass(slots=True, eq=False)
class ExpensiveRoomHoldback:
    """Holds instances back from jobs that could be served more cheaply elsewhere."""

    context: PlanContext
    offer_market: OfferMarket
    paid: npt.NDArray[np.intp]
    """Places of the reserved instances that may be used now."""
    _expensive_at: dict[int, Mask | None] = field(default_factory=dict)
    _elsewhere: list[tuple[float, float]] | None = None
    _rates: dict[int, float] = field(default_factory=dict)
    _left_s: dict[int, float] | None = None
    _prices: tuple[Amounts, Amounts] | None = None
    """``keep_for_dearer`` of the price of a vCPU of each instance, and what each unit would pay with one more."""

    def paid_kept_from(self, group: JobGroup) -> Mask | None:
        """Return the reserved instances held back from ``group``, shape ``(N,)``; None: none.

        With it, fewer reserved vCPUs would be free than jobs need that pay more for them elsewhere.
        """
        fleet, evictable = self.context.fleet, self.context.policy.disruption.evict_best_effort
        if not self.paid.size or (evictable and not group.promise) or not self._pays_little(group):
            return None
        paid = self.paid[~machines_failing_services(self.context)[self.paid]]
        free_vcpus = float(np.minimum(fleet.free[0, paid], fleet.room[0, paid]).clip(min=0.0).sum())
        wanted_vcpus = self._wanted_vcpus(self._rate(group)) if free_vcpus > 0.0 else 0.0
        if wanted_vcpus <= 0.0:
            return None
        held_back: Mask = np.zeros(len(fleet.instances), dtype=np.bool_)
        taken = np.broadcast_to(group.taken_everywhere(fleet.capacity)[0], held_back.shape)[paid]
        held_back[paid] = free_vcpus - taken < wanted_vcpus - SLACK
        return held_back

    def expensive_for(self, group: JobGroup) -> Mask | None:
        """Return the rented instances that cost ``group`` more than one of its own, shape ``(N,)``; None: none.

        A vCPU is expensive there, and each of its units, including the new one, is equally likely to be the last that
        keeps it alive.
        """
        if group.place not in self._expensive_at:
            self._expensive_at[group.place] = self._expensive_for(group)
        return self._expensive_at[group.place]

    def _expensive_for(self, group: JobGroup) -> Mask | None:
        fleet, limit = self.context.fleet, self.context.policy.provisioning.keep_for_dearer
        if group.moved or not self._pays_little(group):
            return None
        steady = fleet.placeable & fleet.steady & ~fleet.reserved
        if not steady.any():
            return None
        if group.promise and not (self._machines_to_spare() and self._bears_a_boot(group)):
            return None
        if self._prices is None:
            rate = fleet.price_usd_per_h / np.maximum(fleet.capacity[0], SLACK)
            units = np.array([len(held) for held in fleet.holdings], dtype=np.float64)
            self._prices = limit * rate, fleet.price_usd_per_h / (1.0 + units)
        part_of_rate, each_usd_per_h = self._prices
        expensive: Mask = steady & (self._rate(group) < part_of_rate)
        expensive &= self.offer_market.worth_usd_per_h(group) < each_usd_per_h
        return expensive if expensive.any() else None

    def _machines_to_spare(self) -> bool:
        waiting = sum(group.pending for group in self.context.groups.values() if group.stuck is None)
        alive, limit = self.context.ledger.instances, self.context.policy.caps.max_instances
        return alive + waiting <= limit

    def _bears_a_boot(self, group: JobGroup) -> bool:
        """Return whether no waiting member of ``group`` is likely to miss its deadline because of one boot."""
        offers, context = self.offer_market.offers, self.context
        rented = [at for at in self.offer_market.obtainable(group) if offers[at].market is not Market.RESERVED]
        usual_s = max((offers[at].instance_type.boot_delay_s for at in rented), default=0.0)
        runs_s = context.suit.expected_s(group.application, group.wanted) if context.suit is not None else None
        broken = broken_by_a_boot(usual_s, self._soonest_s().get(group.place, inf), runs_s)
        return broken <= 1.0 - context.policy.placement.confidence

    def _soonest_s(self) -> dict[int, float]:
        """Return in how many seconds the first deadline of each group is due, by place of the group."""
        if self._left_s is None:
            self._left_s = {}
            for segment in self.context.queue[True].segments:
                left_s, place = segment.deadline_at - self.context.now, segment.group.place
                self._left_s[place] = min(left_s, self._left_s.get(place, inf))
        return self._left_s

    def _pays_little(self, group: JobGroup) -> bool:
        """Return whether a cheap instance can be launched for ``group`` in time, and mapping and policy leave the
        choice."""
        return group.spot_ok and group.urgency is not Urgency.CANNOT_WAIT_LONGER and self._rate(group) > 0.0

    def _wanted_vcpus(self, rate_usd_per_h: float) -> float:
        """Return how many vCPUs jobs lack, or hold on rented instances, that pay this much more for one."""
        if self._elsewhere is None:
            self._elsewhere = list(self._served_elsewhere())
        waiting = ((self._rate(g), g.pending * g.needed * float(g.demand[0])) for g in self._waiting())
        limit = self.context.policy.provisioning.keep_for_dearer
        return sum(vcpus for rate, vcpus in (*self._elsewhere, *waiting) if rate_usd_per_h < limit * rate)

    def _waiting(self) -> Iterator[JobGroup]:
        for group in self.context.groups.values():
            if group.pending > 0 and group.stuck is None and not group.spot_ok and self._could_be_there(group):
                yield group

    def _served_elsewhere(self) -> Iterator[tuple[float, float]]:
        """Yield price and number of vCPUs for each job on rented instances that may not run on spot."""
        for job in self.context.running:
            vcpus = 0.0 if self._may_use_spot(job) or job.spec.profile is not None else self._rented_vcpus(job)
            if vcpus > 0.0 and self._could_be_there(group := self.context.group_of(job)):
                yield self._rate(group), vcpus

    def _may_use_spot(self, job: Job) -> bool:
        spot, spec = self.context.policy.spot, job.spec
        return spec.target.kind in spot.for_targets and (spec.interruptible or not spot.only_interruptible)

    def _rented_vcpus(self, job: Job) -> float:
        fleet, held = self.context.fleet, job.attempt.allocations if job.attempt is not None else ()
        places = [(fleet.index.get(each.instance_id), each) for each in held if not each.released]
        return sum(each.resources.vcpus for at, each in places if at is not None and not fleet.reserved[at])

    def _could_be_there(self, group: JobGroup) -> bool:
        allowed = permitted(self.context, group, self.context.fleet.large_enough(group.demand))
        return bool(allowed[self.paid].any()) and not self.offer_market.paid_ranks(group)

    def _rate(self, group: JobGroup) -> float:
        """Return the hourly price per vCPU of the cheapest instance that can be rented for ``group``; 0 if there is
        none."""
        rate = self._rates.get(group.place)
        if rate is None:
            offer_market = self.offer_market
            rented = [
                at for at in offer_market.obtainable(group) if offer_market.offers[at].market is not Market.RESERVED
            ]
            prices = [
                float(offer_market.price_usd_per_h[at] / max(offer_market.capacity[at, 0], SLACK)) for at in rented
            ]
            rate = self._rates[group.place] = min(prices, default=0.0)
        return rate


# ----------------------------------------------------------------------------------------------------------- noisy jobs
@dataclass(slots=True, eq=False)
class NoisyJobHoldback:
    """Holds reserved instances back from noisy jobs while quiet ones run on rented instances."""

    context: PlanContext
    paid: Places
    """Places of the reserved instances that may be used now."""
    is_paid: Mask
    """The same as a mask, shape ``(N,)``."""
    _wanted_vcpus: float | None = None

    def kept_from(self, group: JobGroup, places: Places) -> Mask | None:
        """Return which of ``places`` are held back from ``group``; None: none.

        With it, fewer reserved vCPUs would be free than quiet jobs hold on rented instances.
        """
        fleet, limit = self.context.fleet, self.context.policy.provisioning.keep_for_quiet
        if not self.paid.size or group.moved or not group.application:
            return None
        reserved: Mask = self.is_paid[places]
        candidates = places[reserved]
        if not candidates.size or self.wanted_vcpus <= 0.0:
            return None
        taken = group.taken_on(fleet.capacity, candidates)[0]
        noisy = self._loudest(group.application) > limit * FULL * taken / fleet.capacity[0, candidates]
        if not np.count_nonzero(noisy):
            return None
        free = np.minimum(fleet.free[0].take(self.paid), fleet.room[0].take(self.paid))
        free_vcpus = float(np.add.reduce(np.maximum(free, 0.0)))
        reserved[reserved] = noisy & (free_vcpus - taken < self.wanted_vcpus - SLACK)
        return reserved

    @property
    def wanted_vcpus(self) -> float:
        """vCPUs held on rented instances by jobs that would be quiet on a reserved instance too."""
        if self._wanted_vcpus is None:
            fleet, known = self.context.fleet, self.context.snapshot.applications
            limit = self.context.policy.provisioning.keep_for_quiet * FULL / float(fleet.capacity[0, self.paid].max())
            units = [
                (job.application, unit.resources.vcpus)
                for at in np.flatnonzero(~fleet.reserved).tolist()
                for job, unit in fleet.holdings[at]
                if job.spec.profile is None
            ]
            loudest = {name: self._loudest(name) for name in {name for name, _ in units} if name in known}
            quiet = (vcpus for name, vcpus in units if name in loudest and loudest[name] <= limit * vcpus)
            self._wanted_vcpus = sum(quiet, 0.0)
        return self._wanted_vcpus

    def _loudest(self, application: str) -> float:
        """Return the highest pressure (0..100) the application is estimated to cause on any shared resource."""
        standing = self.context.suit.sensitivity_of(application) if self.context.suit is not None else None
        return standing.loudest if standing is not None else 0.0


# ----------------------------------------------------------------------------------------------------- failing services
def machines_failing_services(context: PlanContext) -> Mask:
    """Return the instances on which most services miss their latency now, shape ``(N,)``."""
    if context.unkept is None:
        seen, missed = (np.zeros(len(context.fleet.instances)) for _ in range(2))
        for job in context.running:
            for at, misses in _judged_ranks(context, job):
                seen[at] += 1
                missed[at] += misses
        elsewhere_kept = 2 * (missed.sum() - missed) <= seen.sum() - seen
        context.unkept = (2 * missed > seen) & elsewhere_kept
    return context.unkept


def _judged_ranks(context: PlanContext, job: Job) -> Iterator[tuple[int, bool]]:
    """Yield the place of each rank of a service that was sampled often enough, and whether it misses its latency."""
    watched, target, attempt = context.snapshot.job_samples.get(job.id), job.spec.target, job.attempt
    if watched is None or attempt is None or watched.attempt != attempt.id or not isinstance(target, ServiceTarget):
        return
    for held in attempt.allocations:
        at = context.fleet.index.get(held.instance_id)
        samples = watched.ranks.get(held.rank, ())
        if at is not None and not held.released:
            measured, missed = _latencies(samples, target, context.policy.correction.readings)
            if measured >= context.policy.correction.readings:
                yield at, 2 * missed > measured


def _latencies(samples: tuple[Sampled, ...], target: ServiceTarget, enough: int) -> tuple[int, int]:
    """Return in how many of the last ``enough`` samples latency was measured, and in how many it was too high."""
    measured = missed = 0
    for sample in reversed(samples):
        percentiles = [percentile for percentile in sample.latency_ms if percentile >= target.percentile]
        if percentiles:
            stands_for = min(sample.looks, enough - measured)  # count no more of the older samples than are needed
            measured += stands_for
            missed += stands_for * (sample.latency_ms[min(percentiles)] > target.latency_ms)
        if measured >= enough:
            break
    return measured, missed
