"""Sizes of jobs within one plan: how many nodes and vCPUs meet a job's target on which machines (Quasar).

What neighbours cost is given by the caller, see :class:`hcloud.planner.fit.suitability.Suitability`. On types of which
nothing is known, a job gets the vCPUs it requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.estimates import Classification
from hcloud.core.model import Job, Number, Offer
from hcloud.planner.fit.expected_performance import expected, loss_beside, losses_beside
from hcloud.planner.fit.interference import Sensitivity
from hcloud.planner.fit.observed_slowdowns import ObservedSlowdowns, or_else
from hcloud.planner.fit.size_curves import SizeCurve, size_curves
from hcloud.planner.fit.sizing import Platform, SizeTarget, least, ranks_of_types, sizes, wanted_performance
from hcloud.planner.fleet import Amounts, Fleet, MachineKinds, Mask, Places
from hcloud.planner.placement.order import OrderNeeds
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

FEW = 8
"""Up to this many machines, sizes are computed one by one, which is faster."""


@dataclass(slots=True, eq=False, kw_only=True)
class JobSizes:
    """Answers about the sizes of jobs on machines within one plan, cached by question."""

    snapshot: Snapshot
    policy: Policy
    needs: OrderNeeds
    """What the policy's placement order needs."""
    fleet: Fleet
    aims: dict[tuple[str, SizeTarget], Amounts] = field(default_factory=dict)
    sufficient: dict[tuple[str, SizeTarget], Mask] = field(default_factory=dict)
    node_counts: dict[tuple[str, SizeTarget, int], int] = field(default_factory=dict)
    short: dict[tuple[str, SizeTarget], Places] = field(default_factory=dict)
    steps: dict[tuple[str, SizeTarget], SizeCurve] = field(default_factory=dict)
    sizes: tuple[tuple[str, float], ...] | None = None
    places: dict[int, tuple[MachineKinds, Places]] = field(default_factory=dict)

    def known(self, application: str) -> Classification | None:
        """Return the classification of an application; None if unknown."""
        return self.snapshot.applications.get(application)

    def aim_of(self, job: Job) -> SizeTarget | None:
        """Return the size target of ``job`` (Quasar), or None if its application is unknown.

        If it may run on fewer nodes than requested, the node count of its least size is used.
        """
        known = self.known(job.application)
        if not self.needs.sizes or known is None:
            return None
        target = wanted_performance(job, known, self.snapshot.now, self.policy.placement.tolerance)
        if target is None:
            return None
        requested_vcpus, nodes = job.spec.resources.vcpus, job.spec.nodes
        low, high = (
            job.spec.vcpus_within
            if known.by_step and job.spec.vcpus_within is not None
            else (requested_vcpus, requested_vcpus)
        )
        aim = SizeTarget(
            target=float(f"{target:.3g}"), asked_vcpus=requested_vcpus, low=low, high=high, nodes=nodes.count
        )
        if job.spec.vcpus_within is None or nodes.gang or nodes.minimum >= nodes.count:
            return aim
        return aim._replace(nodes=self._least_nodes(job.application, known, aim, nodes.minimum))

    def ranks_wanted(self, job: Job, needed: int, wanted: int) -> int:
        """Return the fewest ranks, from ``needed`` to ``wanted``, that meet the target of ``job`` (Quasar §4.3.3).

        ``wanted`` if too little is known, or if even that many do not meet it.
        """
        known = self.known(job.application)
        if not self.needs.sizes or known is None or needed >= wanted:
            return wanted
        if job.spec.vcpus_within is not None and (aim := self.aim_of(job)) is not None:
            return max(needed, min(wanted, aim.nodes))
        tolerance, confidence = self.policy.placement.tolerance, self.policy.placement.confidence
        target = wanted_performance(job, known, self.snapshot.now, tolerance)
        column = max(known.by_type, key=lambda each: (known.by_type[each].value, each), default="")
        vcpus = job.spec.resources.vcpus
        for count in range(needed, wanted) if target is not None else ():
            would = expected(known, column, vcpus=vcpus, asked_vcpus=vcpus, nodes=count)
            if would is not None and target is not None and would.reaches(target) >= confidence:
                return count
        return wanted

    def _least_nodes(self, application: str, known: Classification, aim: SizeTarget, minimum: int) -> int:
        """Return the node count of the least size on the present machines."""
        key = (application, aim, minimum)
        if key not in self.node_counts:
            counts, platforms = list(range(minimum, aim.nodes + 1)), self._platforms(aim.nodes)
            options = sizes(
                known, platforms, aim.target, asked_vcpus=aim.asked_vcpus, steps=aim.steps(known), nodes=counts
            )
            chosen = least(options, self.policy.placement.confidence)
            self.node_counts[key] = chosen.nodes if chosen is not None else aim.nodes
        return self.node_counts[key]

    def granted(self, application: str, aim: SizeTarget, kinds: MachineKinds, losses: Amounts) -> Amounts:
        """Return the vCPUs a rank gets on each of some machines: the fewest that meet the target there.

        ``losses``, shape ``(N,)``: loss to neighbours on each. On unknown types: the vCPUs requested.
        """
        if self.known(application) is None or not kinds.sizes:
            return np.full(len(losses), aim.asked_vcpus)
        return self._steps(application, aim).least(self._places(kinds), losses)

    def granted_on(self, application: str, aim: SizeTarget, kinds: MachineKinds, at: int, loss: float) -> float:
        """Return :meth:`granted` on one machine of ``kinds``."""
        if self.known(application) is None:
            return aim.asked_vcpus
        return self._steps(application, aim).least_on(int(self._places(kinds)[at]), loss)

    def granted_alone(self, application: str, aim: SizeTarget, kinds: MachineKinds) -> Amounts:
        """Return :meth:`granted` on empty machines of some kinds."""
        if self.known(application) is None or not kinds.sizes:
            return np.full(len(kinds.at), aim.asked_vcpus)
        alone: Amounts = self._steps(application, aim).alone()[self._places(kinds)]
        return alone

    def enough(self, application: str, aim: SizeTarget) -> Mask:
        """Return the machines of kinds more likely than not to meet the target; all, if no size does."""
        key = (application, aim)
        if key not in self.sufficient:
            good = self._steps(application, aim).likely()[self._places(self.fleet.kinds)]
            hopeful = np.count_nonzero(good) == len(good) or self._hopeful(application, aim)
            self.sufficient[key] = good if hopeful else np.ones_like(good)
        return self.sufficient[key]

    def _hopeful(self, application: str, aim: SizeTarget) -> bool:
        """Return whether any known type is more likely than not to meet the target at its maximum size."""
        known = self.snapshot.applications[application]
        types = tuple([(column, aim.high) for column in known.by_type])
        steps = size_curves(known, types, aim, self.policy.placement.confidence).towards(aim.target) if types else None
        return steps is not None and bool(steps.likely().any())

    def type_ranks(self, application: str, known: Classification, aim: SizeTarget) -> Amounts:
        """Return by machine the rank of its type: types that meet the target by least resources, then the others.

        Unknown types come between those that meet it and those that do not.
        """
        found = self.aims.get((application, aim))
        if found is None:
            confidence = self.policy.placement.confidence
            ranks, enough = ranks_of_types(known, self._platforms(aim.nodes), aim, confidence)
            of_types = np.array([ranks.get(column, enough - 0.5) for column in self.fleet.type_columns])
            found = of_types[self.fleet.type_at] if of_types.size else np.zeros(0)
            self.aims[(application, aim)] = found
        return found

    def shortfalls(self, application: str, aim: SizeTarget, kinds: MachineKinds) -> Places:
        """Return how far empty machines fall short of the target, as far as is known.

        See :meth:`hcloud.planner.fit.size_curves.SizeCurve.shortfalls`.
        """
        return self._shortfalls(application, aim)[self._places(kinds)]

    def _shortfalls(self, application: str, aim: SizeTarget) -> Places:
        key = (application, aim)
        if key not in self.short:
            self.short[key] = self._steps(application, aim).shortfalls()
        return self.short[key]

    def size_numbers(self, portions: RankSizes, at: int, vcpus: float) -> dict[str, Number]:
        """Return the numbers that explain ``vcpus`` on machine ``at``: the target and the probability of meeting it."""
        application, aim = portions.application, portions.aim
        numbers: dict[str, Number] = {"vcpus": vcpus, "vcpus_within": f"{aim.low:g}..{aim.high:g}", "nodes": aim.nodes}
        known, column = self.known(application), self.fleet.type_columns[int(self.fleet.type_at[at])]
        loss = float(portions.losses()[at])
        would = known and expected(known, column, vcpus=vcpus, asked_vcpus=aim.asked_vcpus, nodes=aim.nodes, loss=loss)
        if would:
            numbers["probability"] = round(would.reaches(aim.target), 4)
            numbers |= {"expected": would.value, "expected_beside": round(loss, 4)}
        return {**numbers, "wanted": aim.target}

    def _steps(self, application: str, aim: SizeTarget) -> SizeCurve:
        """Return the size curve towards the target for all kinds of machines present or on offer."""
        key = (application, aim)
        if key not in self.steps:
            known, confidence = self.snapshot.applications[application], self.policy.placement.confidence
            self.steps[key] = size_curves(known, self._sizes(), aim, confidence).towards(aim.target)
        return self.steps[key]

    def _sizes(self) -> tuple[tuple[str, float], ...]:
        if self.sizes is None:
            offers, there = self.snapshot.offers, self.fleet.kinds.sizes

            def together() -> tuple[tuple[str, float], ...]:
                return tuple(sorted({*there, *((column_of(o), o.instance_type.capacity.vcpus) for o in offers)}))

            self.sizes = self.snapshot.plan_cache.get("sizes", (offers, there), together)
        return self.sizes

    def _places(self, kinds: MachineKinds) -> Places:
        """Return the index of each machine's kind among all kinds."""
        known = self.places.get(id(kinds))
        if known is None:
            sizes = {size: place for place, size in enumerate(self._sizes())}
            found: Places = np.array([sizes[size] for size in kinds.sizes], dtype=np.intp)[kinds.at]
            known = self.places[id(kinds)] = (kinds, found)  # keeps `kinds` alive, so that its id is not reused
        return known[1]

    def _platforms(self, nodes: int) -> tuple[Platform, ...]:
        """Return the types of the present machines, each at the lowest price of its machines."""

        def cheapest() -> tuple[Platform, ...]:
            found: dict[str, Platform] = {}
            for (column, vcpus), price in zip(self.fleet.sizes, self.fleet.price_usd_per_h.tolist(), strict=True):
                if column not in found or price < found[column].price_usd_per_h:
                    found[column] = Platform(column=column, vcpus=vcpus, price_usd_per_h=price, machines=nodes)
            return tuple(found[column] for column in sorted(found))

        return self.snapshot.plan_cache.get(f"platforms of {nodes}", (self.fleet.sizes,), cheapest)


@dataclass(slots=True, eq=False)
class RankSizes:
    """The vCPUs a rank gets on each machine next to its residents.

    Computed on first use, because most waiting jobs find no machine that suits them at any size.
    """

    job_sizes: JobSizes
    application: str
    aim: SizeTarget
    newcomer: Sensitivity | None
    """Sensitivity of the application; None if unknown or if the order ignores it."""
    beside: Amounts | None
    """Pressure caused by the residents, shape ``(K, N)``; None if the order ignores it."""
    factors: Amounts | None = None
    """How much of the loss that pressures predict really comes, shape ``(N,)``; None: all of it."""
    observed: ObservedSlowdowns | None = None
    """What was observed of the application among others; None: nothing was."""
    residents: Sequence[tuple[Sensitivity, ...]] = ()
    """Of each machine, if something was observed."""
    found: Amounts | None = None
    """All sizes, once computed."""
    one: dict[int, float] = field(default_factory=dict)
    """Sizes of single machines, once computed."""

    def losses(self) -> Amounts:
        """Return the loss to residents on each machine (0..1), shape ``(N,)``."""
        newcomer, count = self.newcomer, len(self.job_sizes.fleet.instances)
        if newcomer is None or self.beside is None or not count:
            return np.zeros(count)
        losses = losses_beside(newcomer, self.beside, 1.0 if self.factors is None else self.factors)
        if self.observed is None:
            return losses
        return or_else(-np.expm1(-self.observed.own(newcomer, self.residents, range(count))), losses)

    def vcpus(self) -> Amounts:
        """Return the vCPUs a rank gets on each machine, shape ``(N,)``."""
        if self.found is None:
            self.found = self.job_sizes.granted(self.application, self.aim, self.job_sizes.fleet.kinds, self.losses())
        return self.found

    def vcpus_at(self, at: int) -> float:
        """Return :meth:`vcpus` of machine ``at``."""
        known = self.one.get(at)
        if known is None:
            known = self.one[at] = self._vcpus_at(at) if self.found is None else float(self.found[at])
        return known

    def _vcpus_at(self, at: int) -> float:
        newcomer, loss = self.newcomer, 0.0
        if newcomer is not None and self.beside is not None:
            own = math.nan if self.observed is None else float(self.observed.own(newcomer, self.residents, [at])[0])
            factor = 1.0 if self.factors is None else float(self.factors[at])
            loss = loss_beside(newcomer, self.beside[:, at], factor) if math.isnan(own) else -math.expm1(-own)
        return self.job_sizes.granted_on(self.application, self.aim, self.job_sizes.fleet.kinds, at, loss)

    def vcpus_on(self, places: Places) -> Amounts:
        """Return :meth:`vcpus` of the machines ``places`` only."""
        if self.found is None and places.size <= FEW:
            return np.array([self.vcpus_at(at) for at in places.tolist()], dtype=np.float64)
        return self.vcpus()[places]


def column_of(offer: Offer) -> str:
    """Return the type of an offer's machines as named in classifications."""
    return f"{offer.provider}/{offer.instance_type.name}"
