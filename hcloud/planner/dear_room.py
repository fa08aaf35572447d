"""Who is kept from room that is dear: jobs that may run on spot machines pay little there, others many times as much.

Reserved room is paid for in any case, and worth what it saves: most to those who would pay most elsewhere. So while
jobs have to be rented for that may not run on spot machines (services, jobs that nobody may interrupt), as much
reserved room is kept for those that come after them: their like goes on coming. It stands idle until one comes, so that
only those are kept from it who pay a small part elsewhere (``provisioning.keep_for_dearer``).

For the same reason they do not join others on dear rented machines, unless they are expected to be over before these:
who is the last on a machine pays for all of it. A promise is not put off for money: one with a deadline is kept away
only where it bears the wait for a machine of its own, and while the policy allows one for each that waits. In an hour
of a twentieth of low variability under the default policy (ten seeds) that costs 8.4 +-5.4 % less than to keep off only
while half of the machines are to be had, and keeps as many promises. To keep off whatever is allowed costs 14.5 +-5.6 %
less, but breaks 0.3 +-0.3 % of the promises, and 1.4 +-0.8 % at a fourteenth of high variability (six seeds).

Where the hybrid strategies say who goes where, nothing is kept from anybody here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from hcloud.forecast.boots import broken_by_a_boot
from hcloud.model import Job, Market
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.lateness import Urgency
from hcloud.planner.offers import OfferMarket
from hcloud.planner.placement import permitted
from hcloud.planner.unkept import machines_failing_services


@dataclass(slots=True, eq=False)
class ExpensiveRoomHoldback:
    """The answers for one plan. ``paid``: places of reserved machines that may be used now."""

    context: PlanContext
    offer_market: OfferMarket
    paid: npt.NDArray[np.intp]
    _dearly: dict[int, Mask | None] = field(default_factory=dict)
    _elsewhere: list[tuple[float, float]] | None = None
    _rates: dict[int, float] = field(default_factory=dict)
    _left_s: dict[int, float] | None = None

    def paid_kept_from(self, group: JobGroup) -> Mask | None:
        """Return the reserved machines that ``group`` is kept from: with it, less would be free of all of them
        together than those lack who pay more."""
        fleet, evictable = self.context.fleet, self.context.policy.disruption.evict_best_effort
        if not self.paid.size or (evictable and not group.promise) or not self._pays_little(group):
            return None
        paid = self.paid[~machines_failing_services(self.context)[self.paid]]
        free_vcpus = float(np.minimum(fleet.free[0, paid], fleet.room[0, paid]).clip(min=0.0).sum())
        wanted_vcpus = self._wanted_vcpus(self._rate(group)) if free_vcpus > 0.0 else 0.0
        if wanted_vcpus <= 0.0:
            return None
        kept: Mask = np.zeros(len(fleet.instances), dtype=np.bool_)
        taken = np.broadcast_to(group.taken_everywhere(fleet.capacity)[0], kept.shape)[paid]
        kept[paid] = free_vcpus - taken < wanted_vcpus - SLACK
        return kept

    def kept_up_dearly(self, group: JobGroup) -> Mask | None:
        """Return the rented machines that cost a member of ``group`` more than one of its own: a vCPU is dear there,
        and of those on a machine, itself included, each is as likely as any other to be the last."""
        if group.place not in self._dearly:
            self._dearly[group.place] = self._kept_up_dearly(group)
        return self._dearly[group.place]

    def _kept_up_dearly(self, group: JobGroup) -> Mask | None:
        fleet, limit = self.context.fleet, self.context.policy.provisioning.keep_for_dearer
        if group.moved or not self._pays_little(group):
            return None
        steady = fleet.placeable & fleet.steady & ~fleet.reserved
        if not steady.any():
            return None
        if group.promise and not (self._machines_to_spare() and self._bears_a_boot(group)):
            return None
        rate = fleet.price_usd_per_h / np.maximum(fleet.capacity[0], SLACK)
        units = np.array([len(held) for held in fleet.holdings], dtype=np.float64)
        alone_usd_per_h = self.offer_market.worth_usd_per_h(group)
        kept: Mask = steady & (self._rate(group) < limit * rate)
        kept &= alone_usd_per_h < fleet.price_usd_per_h / (1.0 + units)
        return kept if kept.any() else None

    def _machines_to_spare(self) -> bool:
        waiting = sum(group.pending for group in self.context.groups.values())
        alive, limit = self.context.ledger.instances, self.context.policy.caps.max_instances
        return alive + waiting <= limit

    def _bears_a_boot(self, group: JobGroup) -> bool:
        """Whether no member of ``group`` that waits is likely to miss its deadline by the start of a machine."""
        offers, context = self.offer_market.offers, self.context
        rented = [at for at in self.offer_market.obtainable(group) if offers[at].market is not Market.RESERVED]
        usual_s = max((offers[at].instance_type.boot_delay_s for at in rented), default=0.0)
        runs_s = context.suit.expected_s(group.application, group.wanted) if context.suit is not None else None
        broken = broken_by_a_boot(usual_s, self._soonest_s().get(group.place, inf), runs_s)
        return broken <= 1.0 - context.policy.placement.confidence

    def _soonest_s(self) -> dict[int, float]:
        """Return in how long the first deadline is of those that wait, by the place of their group."""
        if self._left_s is None:
            self._left_s = {}
            for job, group in self.context.queue[True]:
                left_s = inf if job.deadline_at is None else job.deadline_at - self.context.now
                self._left_s[group.place] = min(left_s, self._left_s.get(group.place, inf))
        return self._left_s

    def _pays_little(self, group: JobGroup) -> bool:
        """Whether something cheap can be rented for ``group``, in time, and mapping and policy leave it to us."""
        context = self.context
        asked = group.spot_ok and context.strategy.hybrid is None and context.policy.provisioning.keep_for_dearer > 0.0
        asked = asked and group.urgency is not Urgency.LEAVES
        return asked and self._rate(group) > 0.0

    def _wanted_vcpus(self, rate_usd_per_h: float) -> float:
        """Return how much those lack, or hold on rented machines, who pay so much more than this for a vCPU."""
        if self._elsewhere is None:
            self._elsewhere = list(self._served_elsewhere())
        waiting = ((self._rate(g), g.pending * g.needed * float(g.demand[0])) for g in self._waiting())
        limit = self.context.policy.provisioning.keep_for_dearer
        return sum(vcpus for rate, vcpus in (*self._elsewhere, *waiting) if rate_usd_per_h < limit * rate)

    def _waiting(self) -> Iterator[JobGroup]:
        for group in self.context.groups.values():
            if group.pending > 0 and not group.spot_ok and self._could_be_there(group):
                yield group

    def _served_elsewhere(self) -> Iterator[tuple[float, float]]:
        """Yield what a vCPU costs, and how many, for each job on rented machines that may not run on spot ones."""
        for job in self.context.running:
            vcpus = 0.0 if self._may_use_spot(job) or job.spec.profile is not None else self._rented_vcpus(job)
            if vcpus > 0.0 and self._could_be_there(group := self.context.group_of(job)):
                yield self._rate(group), vcpus

    def _may_use_spot(self, job: Job) -> bool:
        spot, spec = self.context.policy.spot, job.spec
        return spec.target.kind in spot.for_targets and (spec.interruptible or not spot.only_interruptible)

    def _rented_vcpus(self, job: Job) -> float:
        fleet, held = self.context.fleet, job.attempt.allocations if job.attempt is not None else ()
        there = [(fleet.index.get(each.instance_id), each) for each in held if not each.released]
        return sum(each.resources.vcpus for at, each in there if at is not None and not fleet.reserved[at])

    def _could_be_there(self, group: JobGroup) -> bool:
        allowed = permitted(self.context, group, self.context.fleet.large_enough(group.demand))
        return bool(allowed[self.paid].any()) and not (
            self.offer_market.sells_reserved and self.offer_market.paid_ranks(group)
        )

    def _rate(self, group: JobGroup) -> float:
        """Return the price per vCPU and hour of the cheapest machine to be rented for ``group``; 0: none can."""
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
