"""The mapping of HCloud's hybrid strategies (§8.3-8.4): which jobs go to reserved instances, and which to rented ones.

Each group of waiting jobs has a :class:`MappingNeed`, and :class:`Hybrid` decides which instances suit it (``suits``),
which are too full for it (``closed``), and what may be rented for it (``rentable``). With P8:

* reserved instances are open to all jobs below the soft limit; below the hard limit to jobs for which no rented
  instance is good enough; and to every job while they are empty, because they are paid for;
* rented instances are good enough where 90 % of their type deliver more than the job needs (``Q90 > Q_T``), and, for a
  job that would otherwise wait, if they are full servers;
* a full server is rented for a job that needs reserved room if the wait is expected to exceed, or has exceeded, the
  spin-up of the server.

``suits`` and ``rentable`` do not change while a plan is made and applied; ``closed`` follows the placements. So a plan
is a fixed point: it never closes room that it promised.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hcloud.core.model import Job, Market, Offer, Resources
from hcloud.planner.fleet import SLACK, Amounts, Fleet, Mask, Places
from hcloud.planner.provisioning.offer_rules import forbidden, is_full
from hcloud.planner.provisioning.strategies import ProvisioningStrategy
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy, ProvisioningPolicy

_NEEDS_ABOVE = {"p2": 0.8, "p3": 0.5, "p4": 0.2}
_FILLED_TO = {"p5": 0.5, "p6": 0.7, "p7": 0.9}


class MappingNeed(NamedTuple):
    """What the mapping of a hybrid strategy looks at in a job."""

    quality: float = 0.0
    """Quality needed (0..1)."""
    overdue: bool = False
    """The job has waited longer than a full server takes to start."""
    heads: bool = False
    """Outcome of the job's coin toss (P1)."""


PLAIN = MappingNeed()


def expected_quality(
    snapshot: Snapshot, policy: ProvisioningPolicy, full_from: Mapping[str, float], offer: Offer
) -> float:
    """Return ``Q90`` (0..1) of instances like ``offer``: measured, or by size if too little was measured."""
    full = full_from.get(offer.provider, policy.full_server_vcpus)
    part = min(1.0, offer.instance_type.capacity.vcpus / max(full, SLACK))
    small, whole = policy.unmeasured_quality_small, policy.unmeasured_quality_full
    return snapshot.fleet_stats.quality.q90(offer, unknown=small + (whole - small) * part)


def quality_needed(snapshot: Snapshot, policy: ProvisioningPolicy, job: Job) -> float:
    """Return ``Q_T`` (0..1): from the job's classification, else the policy's default for its kind."""
    if job.spec.target.kind == "best_effort":
        return 0.0
    known = snapshot.applications.get(job.application)
    if known is not None:
        return known.quality_target.value
    return policy.assumed_quality_service if job.spec.target.kind == "service" else policy.assumed_quality_batch


def soft_limit(snapshot: Snapshot, policy: ProvisioningPolicy) -> float:
    """Return the dynamic soft limit (0..1): it falls linearly as the queue grows, and rises while it is empty
    (§8.4.2)."""
    grown = snapshot.fleet_stats.queue_growth(snapshot.now, policy.queue_window_s)
    quiet_min = snapshot.fleet_stats.quiet_s(snapshot.now) / 60.0
    limit = policy.soft_limit - policy.soft_limit_fall_per_job * grown + policy.soft_limit_rise_per_min * quiet_min
    return min(max(limit, policy.soft_limit_minimum), policy.hard_limit)


class _OfferKinds(NamedTuple):
    """Properties of ``M`` offers, each of shape ``(M,)``."""

    offers: Sequence[Offer]
    reserved: Mask
    """Which are reserved."""
    quality: Amounts
    """Expected quality (0..1)."""
    full: Mask
    """Which are full servers."""


@dataclass(slots=True, eq=False)
class Hybrid:
    """The mapping of HF and HM: which jobs go to reserved instances."""

    policy: ProvisioningPolicy
    fleet: Fleet
    reserved: Mask
    quality: Amounts
    """Expected quality (0..1) of each instance, shape ``(N,)``."""
    full: Mask
    """Which instances are full servers, shape ``(N,)``."""
    paid_vcpus: float
    """vCPUs of all reserved capacity, launched or not."""
    soft: float
    """The soft limit (0..1)."""
    spin_up_s: float
    """Boot delay of the full server that starts soonest."""
    reserved_sizes: list[Resources]
    """Sizes of reserved instances that run or can be launched."""
    rented_sizes: list[Resources]
    """The same of rented instances."""
    snapshot: Snapshot
    full_from: Mapping[str, float]
    rented: list[Offer]
    """Offers that may be rented."""
    enough: float
    """Quality (0..1) of smaller instances that is good enough for every job: little less than the best that can be
    rented delivers. Needed quality is a code of pressures and may be above whatever machines deliver."""
    _suits: dict[tuple[MappingNeed, Resources], Mask] = field(default_factory=dict)
    _known: dict[tuple[str, str], tuple[MappingNeed, MappingNeed]] = field(default_factory=dict)
    _tolerant: dict[tuple[MappingNeed, Resources], bool] = field(default_factory=dict)
    _offered: _OfferKinds | None = None
    _paid_at: tuple[Places, Amounts] | None = None
    _utilised: tuple[int, float] = (-1, 1.0)
    _waits_s: dict[float, float | None] = field(default_factory=dict)

    # ---------------------------------------------------------------------------------------------------------- leaning
    @property
    def is_random(self) -> bool:
        """Whether the mapping is random for each job (P1)."""
        return self.policy.mapping == "p1"

    def mapping_need(self, job: Job) -> MappingNeed:
        """Return what the mapping policy looks at in ``job``."""
        name = self.policy.mapping
        if name == "p8":
            kind = (job.application, job.spec.target.kind)
            in_time, overdue = self._known.get(kind) or self._kinds(job, kind)
            since = job.eligible_at if job.eligible_at > job.not_before_at else job.not_before_at
            return overdue if self.snapshot.now - since > self.spin_up_s else in_time
        if name == "p1":
            return MappingNeed(heads=_heads(job))
        if name in _NEEDS_ABOVE:
            return MappingNeed(quality=float(quality_needed(self.snapshot, self.policy, job) > _NEEDS_ABOVE[name]))
        return PLAIN

    def _kinds(self, job: Job, kind: tuple[str, str]) -> tuple[MappingNeed, MappingNeed]:
        """Return the needs of jobs of this application and kind of target under P8: in time, and overdue."""
        needed = round(quality_needed(self.snapshot, self.policy, job), 2)
        known = self._known[kind] = MappingNeed(quality=needed), MappingNeed(quality=needed, overdue=True)
        return known

    def _side(self, mapping_need: MappingNeed, size: Resources) -> bool | None:
        """Return True for reserved only, False for rented only, None for both (P1-P4 if both could serve it)."""
        name = self.policy.mapping
        if name != "p1" and name not in _NEEDS_ABOVE:
            return None
        wants_reserved = mapping_need.heads if name == "p1" else mapping_need.quality > 0.5
        possible = self.reserved_sizes if wants_reserved else self.rented_sizes
        return wants_reserved if any(size.fits(each) for each in possible) else None

    # --------------------------------------------------------------------------------------------------------- machines
    def suits(self, mapping_need: MappingNeed, size: Resources) -> Mask:
        """Return the instances that are good enough for jobs with this need and size, shape ``(N,)``."""
        known = self._suits.get((mapping_need, size))
        if known is None:
            known = self._suits[mapping_need, size] = self._good_enough(mapping_need, size)
        return known

    def _good_enough(self, mapping_need: MappingNeed, size: Resources) -> Mask:
        side = self._side(mapping_need, size)
        if side is not None:
            return self.reserved if side else ~self.reserved
        if self.policy.mapping != "p8":
            return np.ones_like(self.reserved)
        return self.reserved | self.full | (self.quality > min(mapping_need.quality, self.enough))

    @property
    def utilisation(self) -> float:
        """Part (0..1) of the reserved vCPUs held by units; 1 if nothing is reserved."""
        if self.paid_vcpus <= 0:
            return 1.0
        if self._utilised[0] != self.fleet.uses:
            if self._paid_at is None:
                places = self.reserved.nonzero()[0]
                self._paid_at = places, self.fleet.capacity[0].take(places)
            places, vcpus = self._paid_at
            used_vcpus = float(np.add.reduce(vcpus - self.fleet.free[0].take(places)))
            self._utilised = self.fleet.uses, used_vcpus / self.paid_vcpus
        return self._utilised[1]

    def closed(self, mapping_need: MappingNeed, size: Resources) -> Mask | None:
        """Return the reserved instances closed to jobs with this need and size at present; None: none."""
        name = self.policy.mapping
        by_load = name == "p8" or name in _FILLED_TO
        if not by_load or self.utilisation < self.limit(mapping_need, size) - SLACK:
            return None
        # Empty reserved instances are used before anything is rented.
        return self.reserved & ~self.fleet.unshared(self.fleet.free) if name == "p8" else self.reserved

    def limit(self, mapping_need: MappingNeed, size: Resources) -> float:
        """Return the utilisation up to which reserved instances are open; lower for jobs that can do without them."""
        if self.policy.mapping in _FILLED_TO:
            return _FILLED_TO[self.policy.mapping]
        return self.soft if self.tolerant(mapping_need, size) else self.policy.hard_limit

    # ----------------------------------------------------------------------------------------------------------- offers
    def tolerant(self, mapping_need: MappingNeed, size: Resources) -> bool:
        """Return whether any rented offer is good enough for jobs with this need and size."""
        known = self._tolerant.get((mapping_need, size))
        if known is None:
            fitting = (offer for offer in self.rented if size.fits(offer.instance_type.capacity))
            known = self._tolerant[mapping_need, size] = any(self.tolerates(mapping_need, offer) for offer in fitting)
        return known

    def tolerates(self, mapping_need: MappingNeed, offer: Offer) -> bool:
        """Return whether rented instances like ``offer`` are good enough in the long run (``Q90 > Q_T``), by P8."""
        quality = expected_quality(self.snapshot, self.policy, self.full_from, offer)
        needed = mapping_need.quality if is_full(self.full_from, offer) else min(mapping_need.quality, self.enough)
        return quality > needed

    def rentable(self, mapping_need: MappingNeed, size: Resources, offers: Sequence[Offer]) -> Mask:
        """Return which of ``offers`` may be launched for jobs with this need and size, shape ``(M,)``."""
        side = self._side(mapping_need, size)
        if self._offered is None or self._offered.offers is not offers:
            self._offered = self._look_at(offers)
        kinds = self._offered
        if side is not None:
            return kinds.reserved if side else ~kinds.reserved
        if self.policy.mapping != "p8":
            return np.ones_like(kinds.reserved)
        needed = np.where(kinds.full, mapping_need.quality, min(mapping_need.quality, self.enough))
        good: Mask = kinds.reserved | (kinds.quality > needed)
        others: Mask = kinds.full & ~good  # mostly none; then the wait for reserved room does not matter
        return good | others if np.count_nonzero(others) and self.rents_sooner(mapping_need, size) else good

    def _look_at(self, offers: Sequence[Offer]) -> _OfferKinds:
        qualities = [expected_quality(self.snapshot, self.policy, self.full_from, o) for o in offers]
        return _OfferKinds(
            offers=offers,
            reserved=np.array([o.market is Market.RESERVED for o in offers], dtype=np.bool_),
            quality=np.array(qualities, dtype=np.float64),
            full=np.array([is_full(self.full_from, o) for o in offers], dtype=np.bool_),
        )

    def rents_sooner(self, mapping_need: MappingNeed, size: Resources) -> bool:
        """Return whether a full server is expected to be available sooner than reserved room (P8, rule 3)."""
        if mapping_need.overdue or not any(size.fits(each) for each in self.reserved_sizes):
            return True
        wait_s = self.expected_wait_s(size)
        return wait_s is not None and wait_s > self.spin_up_s

    def expected_wait_s(self, size: Resources) -> float | None:
        """Return the expected wait for reserved room of ``size`` in seconds; None: too little is known."""
        if size.vcpus not in self._waits_s:
            waits_s = self.snapshot.fleet_stats.release_interval_s(size.vcpus, self.policy.wait_quantile)
            self._waits_s[size.vcpus] = waits_s
        return self._waits_s[size.vcpus]


def _heads(job: Job) -> bool:
    """Return a fair coin toss that is the same in every plan."""
    return zlib.crc32(f"{job.submitted_at!r}/{job.spec.name}/{job.spec.user}".encode()) % 2 == 0


class _MachineKinds(NamedTuple):
    """What follows from the offers of the instances alone."""

    kinds: list[Offer]
    """One offer of each kind; offers of a kind differ only by price."""
    at: Places
    """Index into ``kinds`` of each instance."""
    full: Mask
    """Which instances are full servers, shape ``(N,)``."""
    reserved_sizes: list[Resources]
    rented_sizes: list[Resources]


def _machines(offers: Sequence[Offer], full_from: Mapping[str, float]) -> _MachineKinds:
    places: dict[tuple[object, ...], int] = {}
    kinds, at = list[Offer](), list[int]()
    for offer in offers:
        size = offer.instance_type
        kind = (offer.provider, offer.region, offer.market, size.name, size.capacity.vcpus)
        if kind not in places:
            places[kind] = len(kinds)
            kinds.append(offer)
        at.append(places[kind])
    return _MachineKinds(
        kinds=kinds,
        at=np.array(at, dtype=np.intp),
        full=np.array([is_full(full_from, offer) for offer in kinds], dtype=np.bool_)[at],
        reserved_sizes=[each.instance_type.capacity for each in offers if each.market is Market.RESERVED],
        rented_sizes=[each.instance_type.capacity for each in offers if each.market is not Market.RESERVED],
    )


def _hybrid_offers(
    snapshot: Snapshot, policy: Policy, strategy: ProvisioningStrategy, full_from: Mapping[str, float]
) -> tuple[list[Offer], list[Offer]]:
    """Return the permitted offers: rented ones, and reserved ones that are not launched yet."""
    own = policy.provisioning
    permitted = [offer for offer in snapshot.offers if forbidden(policy, offer) is None]
    allowed = [offer for offer in permitted if strategy.refusal(offer, full_from, own) is None]
    rented = [o for o in allowed if o.market is not Market.RESERVED]
    return rented, [o for o in allowed if o.market is Market.RESERVED and o.available != 0]


def _qualities(
    snapshot: Snapshot,
    policy: ProvisioningPolicy,
    full_from: Mapping[str, float],
    kinds: Sequence[Offer],
    rented: Sequence[Offer],
) -> tuple[Amounts, float]:
    """Return the expected quality of each of ``kinds``, and the best of those that can be rented; 1 if none can."""
    best = max((expected_quality(snapshot, policy, full_from, offer) for offer in rented), default=1.0)
    return np.array([expected_quality(snapshot, policy, full_from, each) for each in kinds], dtype=np.float64), best


def open_mapping(
    snapshot: Snapshot, policy: Policy, fleet: Fleet, strategy: ProvisioningStrategy, full_from: Mapping[str, float]
) -> Hybrid:
    """Return the policy's mapping over the instances of ``fleet`` and the offers that ``strategy`` allows."""
    own, reserved = policy.provisioning, fleet.reserved
    offers = [instance.offer for instance in fleet.instances]
    kinds = snapshot.plan_cache.get("hybrid machines", (full_from, *offers), lambda: _machines(offers, full_from))
    # Instances launched from an uncounted stock are paid capacity only once they are ready. Counting them before would
    # change the utilisation, and with it whether they were needed.
    staying, instances = np.zeros(len(fleet.instances), dtype=np.bool_), fleet.instances
    staying[
        [at for at in fleet.staying if instances[at].offer.available is not None or instances[at].ready_at is not None]
    ] = True
    made_of = (snapshot.offers, policy)
    rented, unlaunched = snapshot.plan_cache.get(
        "hybrid offers", made_of, lambda: _hybrid_offers(snapshot, policy, strategy, full_from)
    )
    unlaunched_vcpus = sum(o.instance_type.capacity.vcpus * (o.available or 0) for o in unlaunched)
    qualities, best = snapshot.plan_cache.get(
        "hybrid qualities",
        (snapshot.fleet_stats.quality, own, full_from, kinds, rented),
        lambda: _qualities(snapshot, own, full_from, kinds.kinds, rented),
    )
    return Hybrid(
        policy=own,
        snapshot=snapshot,
        fleet=fleet,
        full_from=full_from,
        reserved=reserved,
        quality=qualities[kinds.at],
        full=kinds.full,
        paid_vcpus=float(fleet.capacity[0, reserved & staying].sum()) + unlaunched_vcpus,
        soft=soft_limit(snapshot, own),
        spin_up_s=min((o.instance_type.boot_delay_s for o in rented if is_full(full_from, o)), default=float("inf")),
        reserved_sizes=kinds.reserved_sizes + [o.instance_type.capacity for o in unlaunched],
        rented_sizes=kinds.rented_sizes + [o.instance_type.capacity for o in rented],
        rented=rented,
        enough=(1.0 - policy.placement.tolerance) * best,
    )
