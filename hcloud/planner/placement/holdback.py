"""Hold instances back from jobs for which better ones can be launched.

Each rule has a code and a sentence, which say why a job was not placed on an instance that had room:

- ``reserved_full``: reserved instances are in use beyond what the mapping of a hybrid strategy allows the job;
- ``costly_to_keep``: keeping a rented instance up for longer costs more than an instance of its own;
- ``kept_for_dearer``: the instance is reserved, and other jobs pay more for a vCPU elsewhere;
- ``kept_for_quiet``: the instance is reserved, the job is noisy, and quiet jobs run on rented instances;
- ``services_apart``: the job is a service, and a second such unit would have room there, so neighbours would come;
- ``failing_services``: most services that run there miss their latency;
- ``too_small``: no size of a rank is likely to meet its target there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from hcloud.core.model import Job, Market, ServiceTarget
from hcloud.forecast.boot_times import broken_by_a_boot
from hcloud.forecast.job_monitor import Sampled
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.interference import FULL
from hcloud.planner.fleet import SLACK, Amounts, Mask, Places
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.late_boots import Urgency
from hcloud.planner.market import OfferMarket
from hcloud.planner.placement.open_instances import permitted

RESERVED_FULL = "reserved_full"
SECOND_UNIT = 2.0
"""An instance with this many times the vCPUs of a unit has room for a second one."""
LIKELY = 1
"""Shortfall (:meth:`OfferMarket.shortfalls`) of an offer that probably meets the target, if not surely."""


class HoldbackRule(Protocol):
    """One cause to hold instances back, over one plan."""

    code: ClassVar[str]
    words: ClassVar[str]
    """Why, to follow "inst-3 with room:"."""

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """Return which of the instances ``places``, at least one, are held back from ``group``; None: none."""


@dataclass(frozen=True, slots=True, eq=False)
class Holdback:
    """The rules for one plan. The first that holds an instance back decides; cheap ones come first, since the others
    look only at what is still open, which is mostly very little."""

    context: PlanContext
    rules: tuple[HoldbackRule, ...]
    elsewhere: _PricesElsewhere
    costly: CostlyToKeep
    """One of the rules, unless nothing is rented."""

    def bears_a_boot(self, group: JobGroup) -> bool:
        """Return whether no waiting member of ``group`` is likely to miss its deadline because of one boot."""
        return self.elsewhere.bears_a_boot(group)

    def note_start(self, group: JobGroup, places: Sequence[int]) -> None:
        """Note that this plan starts a job of ``group`` on the instances ``places``."""
        self.costly.note_start(group, places)

    def closed(self, group: JobGroup, among: Mask) -> Mask:
        """Return the instances of ``among`` that are held back from ``group``, shape ``(N,)``."""
        if group.state.on_paid is not None:
            fleet = self.context.fleet
            return among & ~(fleet.reserved & np.isin(fleet.type_at, list(group.state.on_paid)))
        full = self._full(group)
        shut = np.zeros(len(among), dtype=np.bool_) if full is None else among & full
        if not group.state.lifted:
            asked = (among if full is None else among & ~full).nonzero()[0]
            left = self.left_open(group, asked)
            if left is not asked:  # mostly it is: nothing is held back
                shut[asked] = True
                shut[left] = False
        return shut

    def _full(self, group: JobGroup) -> Mask | None:
        """Return the reserved instances that are too full for ``group``, shape ``(N,)``; None: none are."""
        hybrid = self.context.strategy.hybrid
        return None if hybrid is None or group.state.lifted else hybrid.closed(group.mapping_need, group.resources)

    def left_open(self, group: JobGroup, places: Places) -> Places:
        """Return which of the instances ``places`` no rule holds back from ``group``."""
        for rule in self.rules:
            if not places.size:
                break
            shut = rule.held_back(group, places)
            if shut is not None:
                places = places[~shut]
        return places

    def kept_empty(self, group: JobGroup, places: Places) -> Places:
        """Return which of the instances ``places`` are held back from ``group`` only because launches are cheaper."""
        rest = places
        for rule in self.rules:
            if rule.code == CostlyToKeep.code and rest.size:
                shut = rule.held_back(group, rest)
                rest = rest if shut is None else rest[~shut]
        kept = np.setdiff1d(places, rest)
        for rule in self.rules:
            if rule.code != CostlyToKeep.code and kept.size:
                shut = rule.held_back(group, kept)
                kept = kept if shut is None else kept[~shut]
        return kept

    def causes(self, group: JobGroup, among: Mask) -> dict[str, tuple[str, Places]]:
        """Return by code of the rule why instances of ``among`` are held back from ``group``, and which."""
        found, full = dict[str, tuple[str, Places]](), self._full(group)
        if full is not None and (among & full).any():
            found[RESERVED_FULL] = "reserved, and too full for it (hybrid mapping)", (among & full).nonzero()[0]
            among = among & ~full
        places = among.nonzero()[0]
        for rule in self.rules if not group.state.lifted else ():
            shut = rule.held_back(group, places) if places.size else None
            if shut is not None and shut.any():
                found[rule.code] = rule.words, places[shut]
                places = places[~shut]
        return found


def open_holdback(context: PlanContext, offer_market: OfferMarket) -> Holdback:
    """Return the rules for one plan."""
    fleet, rented = context.fleet, ~context.fleet.reserved
    is_paid: Mask = fleet.placeable & fleet.reserved
    paid = np.flatnonzero(is_paid)
    elsewhere = _PricesElsewhere(context=context, offer_market=offer_market, paid=paid)
    rules: list[HoldbackRule] = []
    failing = FailingServices(context=context)
    costly = CostlyToKeep(context=context, offer_market=offer_market, elsewhere=elsewhere, rented=rented)
    if rented.any():
        rules.append(costly)
    if paid.size:
        rules.append(KeptForDearer(elsewhere=elsewhere, failing=failing))
        rules.append(KeptForQuiet(context=context, paid=paid, is_paid=is_paid))
    if _keeps_services_apart(context):
        rules.append(ServicesApart(context=context, offer_market=offer_market))
    rules += [failing, TooSmall(context=context, offer_market=offer_market)]
    return Holdback(context=context, rules=tuple(rules), elsewhere=elsewhere, costly=costly)


# ------------------------------------------------------------------------------------------------- what keeps one alive
@dataclass(slots=True, eq=False)
class CostlyToKeep:
    """Holds rented instances back that jobs of a group would keep up at a higher cost than that of their own.

    A job that ends after the present units of an instance keeps all of it up for the rest of its run. Waiting jobs of
    its group that have room beside it share that. Both run times are uncertain: the mean over the job's counts.
    """

    code: ClassVar[str] = "costly_to_keep"
    words: ClassVar[str] = "keeping it up for longer costs more than a machine of its own (retention.drain)"
    context: PlanContext
    offer_market: OfferMarket
    elsewhere: _PricesElsewhere
    rented: Mask
    """Which instances are rented, shape ``(N,)``."""
    _to_spare: bool | None = None
    """Whether every job that waits could get an instance of its own; None: not asked yet."""
    _needed: Amounts = field(init=False)
    """For how long present units need each instance, in seconds; not a number: not asked yet."""

    def __post_init__(self) -> None:
        self._needed = np.full(len(self.rented), np.nan)

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`. Jobs that were evicted are exempt, as they are to run again soon, those whose
        deadline a boot would endanger, and services that need room to grow, as their size is still to be found; and
        all while not every job that waits may have an instance of its own."""
        fleet = self.context.fleet
        if not self.context.policy.retention.drain or group.moved or not self._may_launch_for_all():
            return None
        if group.serves and is_size_open(group):
            return None
        own_usd_per_h = self.offer_market.alone_usd_per_h(group)
        price = fleet.price_usd_per_h[places]
        dear: Mask = self.rented[places] & (price > own_usd_per_h) & (own_usd_per_h > 0.0)
        if not np.count_nonzero(dear) or (group.promise and not self.elsewhere.bears_a_boot(group)):
            return None
        asked = places[dear]
        runs_s = np.array(self.context.run_times.likely_s(group.example))
        kept_s = np.maximum(0.0, runs_s[:, None] - self._needed_s(asked)).mean(axis=0)
        dear[dear] = price[dear] * kept_s > self._ranks(group, asked) * own_usd_per_h * runs_s.mean() * (1.0 + SLACK)
        return dear

    def note_start(self, group: JobGroup, places: Sequence[int]) -> None:
        """Note that this plan starts a job of ``group`` on the instances ``places``, which are needed for it now."""
        rented = np.array([at for at in places if self.rented[at]], dtype=np.intp)
        if rented.size:
            runs_s = self.context.run_times.likely_s(group.example)
            needed_s = np.maximum(self._needed_s(rented), runs_s[len(runs_s) // 2])
            self._needed[rented] = needed_s

    def _may_launch_for_all(self) -> bool:
        if self._to_spare is None:
            context = self.context
            waiting = sum(each.state.pending for each in context.waiting.groups.values() if each.state.stuck is None)
            self._to_spare = context.ledger.instances + waiting <= context.policy.caps.max_instances
        return self._to_spare

    def _ranks(self, group: JobGroup, places: Places) -> Amounts:
        """Return how many ranks that wait would start on each of the instances, at least one."""
        fleet = self.context.fleet
        size = np.maximum(group.taken_on(fleet.capacity, places)[:2], SLACK)
        have_room = np.floor(fleet.room[:2].take(places, axis=1) / size + SLACK).min(axis=0)
        ranks: Amounts = np.minimum(max(1, group.state.pending) * group.wanted, np.maximum(have_room, 1.0))
        return ranks

    def _needed_s(self, places: Places) -> Amounts:
        """Return for how many seconds each of the instances is expected to be needed by its present units."""
        for at in places[np.isnan(self._needed[places])].tolist():
            stopping, held = self.context.decisions.stopping, self.context.fleet.holdings[at]
            remains_s = [0.0 if job.id in stopping else self._remains_s(job) for job, _ in held]
            self._needed[at] = max(remains_s, default=0.0)
        return self._needed[places]

    def _remains_s(self, job: Job) -> float:
        """Return the median of what is left of the run of ``job``, in seconds. If its run time is unknown, those of
        other jobs count, and for one that ran longer than these the time run so far (Lindy)."""
        ran_s = 0.0
        if job.attempt is not None:
            paused_s = max((each.total_paused_s(self.context.now) for each in job.attempt.allocations), default=0.0)
            ran_s = max(0.0, self.context.now - job.attempt.placed_at - paused_s)
        rest_s = self.context.run_times.rest_s(job, ran_s)
        if rest_s is not None:
            return rest_s
        longer_s = [each for each in self.context.run_times.recent_runs_s if each > ran_s]
        return longer_s[len(longer_s) // 2] - ran_s if longer_s else ran_s


def is_size_open(group: JobGroup) -> bool:
    """Return whether the size of ``group`` is still to be found: HCloud may choose it, and its program is unknown."""
    return group.sizable and not group.application


# ------------------------------------------------------------------------------------------------- reserved instances
@dataclass(slots=True, eq=False)
class _PricesElsewhere:
    """What jobs pay for a vCPU elsewhere."""

    context: PlanContext
    offer_market: OfferMarket
    paid: npt.NDArray[np.intp]
    """Places of the reserved instances that may be used now."""
    _elsewhere: list[tuple[float, float]] | None = None
    _rates: dict[int, float] = field(default_factory=dict)
    _left_s: dict[int, float] | None = None

    def bears_a_boot(self, group: JobGroup) -> bool:
        """Return whether no waiting member of ``group`` is likely to miss its deadline because of one boot."""
        offers, context = self.offer_market.offers, self.context
        rented = [at for at in self.offer_market.obtainable(group) if offers[at].market is not Market.RESERVED]
        usual_s = max((offers[at].instance_type.boot_delay_s for at in rented), default=0.0)
        runs_s = context.run_times.equally_likely_s(group.example)
        broken = broken_by_a_boot(usual_s, self._soonest_s().get(group.place, inf), runs_s)
        return broken <= 1.0 - context.policy.placement.confidence

    def _soonest_s(self) -> dict[int, float]:
        """Return in how many seconds the first deadline of each group is due, by place of the group."""
        if self._left_s is None:
            self._left_s = {}
            for segment in self.context.waiting.queues[True].segments:
                left_s, place = segment.deadline_at - self.context.now, segment.group.place
                self._left_s[place] = min(left_s, self._left_s.get(place, inf))
        return self._left_s

    def pays_little(self, group: JobGroup) -> bool:
        """Return whether a cheap instance can be launched for ``group`` in time, and mapping and policy leave the
        choice."""
        return group.spot_ok and group.urgency is not Urgency.CANNOT_WAIT_LONGER and self.rate(group) > 0.0

    def wanted_vcpus(self, rate_usd_per_h: float) -> float:
        """Return how many vCPUs jobs lack, or hold on rented instances, that pay this much more for one."""
        if self._elsewhere is None:
            self._elsewhere = list(self._served_elsewhere())
        waiting = ((self.rate(g), g.state.pending * g.needed * float(g.demand[0])) for g in self._waiting())
        limit = self.context.policy.provisioning.keep_for_dearer
        return sum(vcpus for rate, vcpus in (*self._elsewhere, *waiting) if rate_usd_per_h < limit * rate)

    def _waiting(self) -> Iterator[JobGroup]:
        for group in self.context.waiting.groups.values():
            if (
                group.state.pending > 0
                and group.state.stuck is None
                and not group.spot_ok
                and self._could_be_there(group)
            ):
                yield group

    def _served_elsewhere(self) -> Iterator[tuple[float, float]]:
        """Yield price and number of vCPUs for each job on rented instances that may not run on spot."""
        for job in self.context.running:
            vcpus = 0.0 if self._may_use_spot(job) or job.spec.profile is not None else self._rented_vcpus(job)
            if vcpus > 0.0 and self._could_be_there(group := self.context.group_of(job)):
                yield self.rate(group), vcpus

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

    def rate(self, group: JobGroup) -> float:
        """Return the hourly price per vCPU of the cheapest instance that can be rented for ``group``; 0 if there is
        none."""
        rate = self._rates.get(group.place)
        if rate is None:
            offer_market = self.offer_market
            rented = [
                at for at in offer_market.obtainable(group) if offer_market.offers[at].market is not Market.RESERVED
            ]
            prices = [
                float(offer_market.price_for(group)[at] / max(offer_market.capacity[at, 0], SLACK)) for at in rented
            ]
            rate = self._rates[group.place] = min(prices, default=0.0)
        return rate


@dataclass(frozen=True, slots=True, eq=False)
class KeptForDearer:
    """Holds reserved instances back as long as fewer vCPUs would be free there than jobs need that pay more for them
    elsewhere."""

    code: ClassVar[str] = "kept_for_dearer"
    words: ClassVar[str] = "kept for jobs that pay more elsewhere (provisioning.keep_for_dearer)"
    elsewhere: _PricesElsewhere
    failing: FailingServices

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`."""
        context, elsewhere = self.elsewhere.context, self.elsewhere
        fleet, evictable = context.fleet, context.policy.disruption.evict_best_effort
        if (evictable and not group.promise) or not elsewhere.pays_little(group):
            return None
        paid = elsewhere.paid[~self.failing.instances()[elsewhere.paid]]
        free_vcpus = float(np.minimum(fleet.free[0, paid], fleet.room[0, paid]).clip(min=0.0).sum())
        wanted_vcpus = elsewhere.wanted_vcpus(elsewhere.rate(group)) if free_vcpus > 0.0 else 0.0
        if wanted_vcpus <= 0.0:
            return None
        held_back: Mask = np.zeros(len(fleet.instances), dtype=np.bool_)
        taken = np.broadcast_to(group.taken_everywhere(fleet.capacity)[0], held_back.shape)[paid]
        held_back[paid] = free_vcpus - taken < wanted_vcpus - SLACK
        return held_back[places]


@dataclass(slots=True, eq=False)
class KeptForQuiet:
    """Holds reserved instances back from noisy jobs as long as fewer vCPUs would be free there than quiet jobs hold on
    rented instances."""

    code: ClassVar[str] = "kept_for_quiet"
    words: ClassVar[str] = "kept for quieter jobs (provisioning.keep_for_quiet)"
    context: PlanContext
    paid: Places
    """Places of the reserved instances that may be used now."""
    is_paid: Mask
    """The same as a mask, shape ``(N,)``."""
    _wanted_vcpus: float | None = None

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`."""
        fleet, limit = self.context.fleet, self.context.policy.provisioning.keep_for_quiet
        if group.moved or not group.application:
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


# ------------------------------------------------------------------------------------------------------ for one target
@dataclass(frozen=True, slots=True, eq=False)
class ServicesApart:
    """Holds instances back from services on which a second such unit has room: neighbours would come, if not now then
    later. Not from a service whose size is still to be found, because it needs room to grow; nor from one for which no
    instance of its own size can be launched that probably meets its target."""

    code: ClassVar[str] = "services_apart"
    words: ClassVar[str] = "a service shares no machine (placement.services_apart)"
    context: PlanContext
    offer_market: OfferMarket

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`."""
        if not group.serves or is_size_open(group) or not self._has_own_size(group):
            return None
        capacity = self.context.fleet.capacity
        shut: Mask = capacity[0, places] >= SECOND_UNIT * group.taken_on(capacity, places)[0] - SLACK
        return shut

    def _has_own_size(self, group: JobGroup) -> bool:
        """Return whether an instance without room for a second unit can be launched that probably meets the target, or
        as probably as any other."""
        offer_market = self.offer_market
        offers = offer_market.obtainable_places(group)
        if not offers.size:
            return False
        short = offer_market.shortfalls(group)[offers]
        taken = offer_market.taken(group)[offers, 0]
        own = offer_market.capacity[offers, 0] < SECOND_UNIT * taken - SLACK
        return bool((own & (short <= max(LIKELY, int(short.min())))).any())


def _keeps_services_apart(context: PlanContext) -> bool:
    """Return whether the policy keeps services apart: by default if its order considers interference."""
    chosen = context.policy.placement.services_apart
    return context.order.needs.interference if chosen is None else chosen


@dataclass(slots=True, eq=False)
class FailingServices:
    """Holds instances back, on which most services miss their latency, from services of which nothing is known."""

    code: ClassVar[str] = "failing_services"
    words: ClassVar[str] = "most services there miss their latency"
    context: PlanContext
    _instances: Mask | None = None

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`."""
        if group.application or not group.serves:
            return None
        shut: Mask = self.instances()[places]
        return shut

    def instances(self) -> Mask:
        """Return the instances on which most services miss their latency now, shape ``(N,)``."""
        if self._instances is None:
            seen, missed = (np.zeros(len(self.context.fleet.instances)) for _ in range(2))
            for job in self.context.running:
                for at, misses in _judged_ranks(self.context, job):
                    seen[at] += 1
                    missed[at] += misses
            elsewhere_kept = 2 * (missed.sum() - missed) <= seen.sum() - seen
            self._instances = (2 * missed > seen) & elsewhere_kept
        return self._instances


@dataclass(frozen=True, slots=True, eq=False)
class TooSmall:
    """Holds instances back on which no size of a rank is likely to meet the target, unless that holds for all that can
    be launched."""

    code: ClassVar[str] = "too_small"
    words: ClassVar[str] = "no size there is likely to meet its target"
    context: PlanContext
    offer_market: OfferMarket

    def held_back(self, group: JobGroup, places: Places) -> Mask | None:
        """See :class:`HoldbackRule`."""
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
