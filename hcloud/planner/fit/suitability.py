"""Suitability of machines for jobs within one plan: pressure, type preferences, sizes, and how long a job may wait.

Built from the classifications of a snapshot if the policy's placement order uses them. Unknown jobs are placed as if it
did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from hcloud.core import quality
from hcloud.core.estimates import Classification
from hcloud.core.model import Job, JobId, Number, Offer
from hcloud.core.quality import QualityClasses
from hcloud.forecast.wait_times import BusyTimes
from hcloud.planner.fit.arq import WaitingValue, run_s, slack_s, waiting_value
from hcloud.planner.fit.interference import (
    FULL,
    Floats,
    PressureState,
    Sensitivities,
    Sensitivity,
    open_pressure,
    quality_classes,
    quality_needed,
    reach_of,
    sensitivities,
)
from hcloud.planner.fit.paragon import Selection, relaxed_margin, select_relaxed
from hcloud.planner.fit.sizing import (
    Platform,
    SizeCurve,
    SizeTarget,
    expected,
    least,
    loss_beside,
    losses_beside,
    ranks_of_types,
    size_curves,
    sizes,
    wanted_performance,
)
from hcloud.planner.fleet import SLACK, Amounts, Fleet, MachineKinds, Mask, Places
from hcloud.planner.occupancy import held_by
from hcloud.planner.placement.order import OrderNeeds
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

FEW = 8
"""Up to this many machines, sizes are computed one by one, which is faster."""
DOUBT = 40.0
"""Error in points that unmeasured pressures exceed in one of ten cases (Paragon's small cluster: 28 points, root mean
square)."""
NAMED = 8
"""Maximum number of relaxed constraints listed, worst first."""
Search = Callable[[PressureState, Sensitivity, Mask, Floats | None], Selection | None]
"""Returns the best machine of a mask for an application; the last argument is by machine how slow its type is for it
(shape ``(N,)``; None: all are equal)."""


@dataclass(slots=True, eq=False)
class Suitability:
    """Answers about machines and applications within one plan, cached by question."""

    snapshot: Snapshot
    policy: Policy
    needs: OrderNeeds
    """What the policy's placement order needs."""
    fleet: Fleet
    stopping: Set[JobId]
    """Jobs being stopped; their units count as gone."""
    state: PressureState | None = None
    ages: Amounts | None = None
    chosen: list[Selection] = field(default_factory=list)
    """Selections of the current search."""
    preferences: dict[str, Amounts] = field(default_factory=dict)
    aim: SizeTarget | None = None
    """Size target of the current search."""
    aims: dict[tuple[str, SizeTarget], Amounts] = field(default_factory=dict)
    sufficient: dict[tuple[str, SizeTarget], Mask] = field(default_factory=dict)
    prospects: dict[tuple[bytes, float], WaitingValue] = field(default_factory=dict)
    node_counts: dict[tuple[str, SizeTarget, int], int] = field(default_factory=dict)
    loss: float = 0.0
    """Expected loss of the current job to its neighbours."""
    run_times: dict[tuple[str, int], float | None] = field(default_factory=dict)
    short: dict[tuple[str, SizeTarget], Places] = field(default_factory=dict)
    steps: dict[tuple[str, SizeTarget], SizeCurve] = field(default_factory=dict)
    sizes: tuple[tuple[str, float], ...] | None = None
    places: dict[int, tuple[MachineKinds, Places]] = field(default_factory=dict)
    companies: dict[tuple[str, tuple[str, ...]], bool] = field(default_factory=dict)
    """Cache of :meth:`together`."""

    @property
    def pressure(self) -> PressureState | None:
        """The pressure on each machine, computed on first use; None if the order does not use it."""
        if self.state is None and self.needs.interference:
            known, placement = self.snapshot.applications, self.policy.placement
            settings = {"confidence": placement.neighbour_confidence, "tolerance": placement.neighbour_tolerance}
            plan_cache, made_of = self.snapshot.plan_cache, (known, self.policy)

            def table() -> Sensitivities:
                return sensitivities(known, before=plan_cache.latest("sensitivities"), **settings)

            ending = self._ending()
            self.state = open_pressure(
                known,
                self._staying(ending),
                ending,
                classes=self.classes,
                table=plan_cache.get("sensitivities", made_of, table),
                machines=[instance.id for instance in self.fleet.instances],
                before=plan_cache.latest("standing"),
                **settings,
            )
            plan_cache.keep("standing", self.state.standing)
        return self.state

    @property
    def classes(self) -> QualityClasses:
        """The classes of the known applications, which are also the pools of machines."""
        known, policy = self.snapshot.applications, self.policy
        tolerance, count = policy.placement.neighbour_tolerance, policy.admission.classes
        return self.snapshot.plan_cache.get(
            "quality classes", (known, policy), lambda: quality_classes(known, tolerance, count)
        )

    def _staying(self, ending: Sequence[bool]) -> list[tuple[str, ...]]:
        """Return by machine the applications of its units that were not asked to stop."""
        names = [each.applications() for each in self.fleet.residents]
        for at in [at for at, ends in enumerate(ending) if ends]:
            staying = [job for job, _ in self.fleet.holdings[at] if job.id not in self.stopping]
            names[at] = tuple([job.application for job in staying])
        return names

    def _ending(self) -> list[bool]:
        """Return by machine whether units on it were asked to stop."""
        rows, index, ending = (
            self.snapshot.plan_cache.occupancy.rows,
            self.fleet.index,
            [False] * len(self.fleet.instances),
        )
        for job in [rows[job_id] for job_id in self.stopping if job_id in rows]:
            for at in [index[held.instance_id] for held in held_by(job) if held.instance_id in index]:
                ending[at] = True
        return ending

    @property
    def ages_s(self) -> Amounts:
        """Age in seconds of the oldest unit on each machine, shape ``(N,)``; 0 without units."""
        if self.ages is None:
            now = self.snapshot.now
            oldest = np.array([each.since() for each in self.fleet.residents], dtype=np.float64)
            self.ages = np.where(np.isinf(oldest), 0.0, now - oldest)
        return self.ages

    @property
    def work_cells(self) -> int:
        """Maximum number of comparisons per search."""
        return self.policy.placement.work_cells

    def known(self, application: str) -> Classification | None:
        """Return the classification of an application; None if unknown."""
        return self.snapshot.applications.get(application)

    def application(self, job: Job) -> str:
        """Return the application of ``job`` if it is known, else ""."""
        return job.application if job.application in self.snapshot.applications else ""

    def sensitivity_of(self, application: str) -> Sensitivity | None:
        """Return the sensitivity of an application; None if unknown or not used by the policy."""
        pressure = self.pressure if self.state is None else self.state
        return pressure.known.get(application) if pressure is not None else None

    # -------------------------------------------------------------------------------------------------------- residents
    def arrive(self, at: int, application: str) -> None:
        """Count a unit as placed on machine ``at``, or promised capacity there."""
        if self.pressure is not None:
            self.pressure.add(at, self.pressure.of(application))

    def leave(self, at: int, application: str) -> None:
        """Undo :meth:`arrive`."""
        if self.pressure is not None:
            self.pressure.remove(at, self.pressure.of(application))

    def unsettle(self, at: int) -> None:
        """Record that a unit on machine ``at`` was asked to stop; until it is gone, suitability there is unknown."""
        if self.pressure is not None:
            self.pressure.quiet[at] = False

    @property
    def moment(self) -> int:
        """The current state, for :meth:`back_to`."""
        return len(self.pressure.journal) if self.pressure is not None else 0

    @property
    def changed(self) -> Sequence[int]:
        """Machines on which units arrived or left in this plan, in order; repeated for each change."""
        return self.pressure.changes if self.pressure is not None else ()

    def back_to(self, moment: int) -> None:
        """Undo all arrivals and departures since ``moment``."""
        if self.pressure is not None:
            self.pressure.back_to(moment)

    # -------------------------------------------------------------------------------------------------------- selecting
    def suited(self, application: str, among: Mask) -> Mask:
        """Return the machines of ``among`` where no job would be disturbed; all, if the order does not require that."""
        newcomer = self._constrained(application)
        return among if newcomer is None or self.pressure is None else self.pressure.suited_among(newcomer, among)

    def suits_without(self, at: int, application: str, gone: Sequence[str]) -> bool:
        """Return whether machine ``at`` would suit an application if units of the applications ``gone`` had left."""
        newcomer = self._constrained(application)
        if newcomer is None or self.pressure is None:
            return True
        return self.pressure.suits_without(at, newcomer, [self.pressure.of(name) for name in gone])

    def together(self, application: str, company: Sequence[str]) -> bool:
        """Return whether a unit of ``application`` and those of ``company`` suit each other on an empty machine."""
        key = (application, tuple(company))
        found = self.companies.get(key)
        if found is None:
            newcomer, pressure = self._constrained(application), self.pressure
            found = self.companies[key] = (
                newcomer is None
                or pressure is None
                or pressure.suits_company(newcomer, [pressure.of(each) for each in company])
            )
        return found

    def _constrained(self, application: str) -> Sensitivity | None:
        """Return the sensitivity of an application if it restricts the choice of machines."""
        return self.sensitivity_of(application) if self.needs.tolerable_neighbours else None

    def preference(self, application: str) -> Amounts | None:
        """Return by machine the logarithm of its type's slowness for an application; unknown types count as average."""
        known = self.known(application)
        if not self.needs.types or known is None or not known.by_type:
            return None
        if self.needs.sizes and self.aim is not None:
            return self._least_type(application, known, self.aim)
        found = self.preferences.get(application)
        if found is None:
            speeds = {column: -math.log(each.value) for column, each in known.by_type.items() if each.value > 0}
            average = float(np.median(list(speeds.values()))) if speeds else 0.0
            of_types = np.array([speeds.get(column, average) for column in self.fleet.type_columns])
            found = of_types[self.fleet.type_at] if of_types.size else np.zeros(0)
            self.preferences[application] = found
        return found

    @property
    def wanted_margin(self) -> float:
        """Desired distance from any disturbance, in points.

        0 if the policy's confidence is already in the bounds; all of ``DOUBT`` if expected values are compared.
        """
        return DOUBT * max(0.0, 1.0 - reach_of(self.policy.placement.neighbour_confidence))

    @property
    def loses_to_types(self) -> bool:
        """Whether types count by the performance lost on them, not by the size needed there (Quasar)."""
        return self.needs.types and not self.needs.sizes

    def type_losses(self, application: str, among: Mask) -> Amounts:
        """Return by machine the share of performance (0..1) lost to its type, relative to the best type ``among`` some.

        All zeros if types are unknown or count differently.
        """
        preference = self.preference(application) if self.loses_to_types and among.any() else None
        if preference is None:
            return np.zeros(len(among))
        losses: Amounts = -np.expm1(np.minimum(0.0, preference[among].min() - preference))
        return losses

    def aim_at(self, job: Job, aim: SizeTarget | None) -> None:
        """Begin a search for ``job``; ``aim``: the result of :meth:`aim_of`, if already known (Quasar)."""
        self.chosen.clear()
        self.loss, self.aim = 0.0, aim or self.aim_of(job)

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

    def rank_sizes(self, application: str, aim: SizeTarget) -> RankSizes:
        """Return :meth:`granted` on the machines of the fleet with their present residents."""
        beside = self.pressure.expected_now() if self.pressure is not None else None
        return RankSizes(suit=self, application=application, aim=aim, beside=beside)

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

    def shortfalls(self, application: str, aim: SizeTarget, kinds: MachineKinds) -> Places:
        """Return how far empty machines fall short of the target, as far as is known.

        See :meth:`hcloud.planner.fit.sizing.SizeCurve.shortfalls`.
        """
        return self._shortfalls(application, aim)[self._places(kinds)]

    def _shortfalls(self, application: str, aim: SizeTarget) -> Places:
        key = (application, aim)
        if key not in self.short:
            self.short[key] = self._steps(application, aim).shortfalls()
        return self.short[key]

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

    def _least_type(self, application: str, known: Classification, aim: SizeTarget) -> Amounts:
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

    def _platforms(self, nodes: int) -> tuple[Platform, ...]:
        """Return the types of the present machines, each at the lowest price of its machines."""

        def cheapest() -> tuple[Platform, ...]:
            found: dict[str, Platform] = {}
            for (column, vcpus), price in zip(self.fleet.sizes, self.fleet.price_usd_per_h.tolist(), strict=True):
                if column not in found or price < found[column].price_usd_per_h:
                    found[column] = Platform(column=column, vcpus=vcpus, price_usd_per_h=price, machines=nodes)
            return tuple(found[column] for column in sorted(found))

        return self.snapshot.plan_cache.get(f"platforms of {nodes}", (self.fleet.sizes,), cheapest)

    def select(self, application: str, fits: Mask, search: Search) -> int:
        """Return the machine of ``fits`` that ``search`` selects for a rank, or -1; on machines with units that stop,
        suitability is unknown.

        Where nothing is known about interference, the best type is selected.
        """
        newcomer, pressure = self.sensitivity_of(application), self.pressure
        if newcomer is None or pressure is None:
            return self.best_type(application, fits)
        now = fits & pressure.quiet
        if not np.count_nonzero(now):
            return -1
        found = search(pressure, newcomer, now, self.preference(application))
        if found is None:
            return -1
        self.chosen.append(found)
        if found.relaxed or not self.needs.tolerable_neighbours:
            self.loss = max(self.loss, loss_beside(newcomer, pressure.expected[:, found.at]))
        return found.at

    def best_type(self, application: str, fits: Mask) -> int:
        """Return the least loaded machine of the best type of ``fits``, which has at least one."""
        candidates, preference = np.flatnonzero(fits), self.preference(application)
        if preference is not None:
            ranks = preference[candidates]
            candidates = candidates[ranks <= ranks.min() + SLACK]
        return int(candidates[self.fleet.load[candidates].argmin()])

    # ------------------------------------------------------------------------------------------------------ holding out
    def slack_left_s(self, job: Job, queued_at: float) -> float:
        """Return for how long ``job`` may still wait for a machine that suits it, in seconds; 0 or less: no longer."""
        slack = slack_s(job, queued_at, self.expected_s(job.application, job.spec.nodes.count), self.policy.admission)
        return slack - (self.snapshot.now - queued_at)

    def expected_s(self, application: str, nodes: int) -> float | None:
        """Return the expected run time on that many nodes, in seconds; None if unknown."""
        key = (application, nodes)
        if key not in self.run_times:
            self.run_times[key] = run_s(self.known(application), nodes)
        return self.run_times[key]

    def quality_class(self, application: str) -> int:
        """Return the class of an application; an unknown one gets the middle class."""
        known = self.known(application)
        if known is None:
            return self.policy.admission.classes // 2
        return self.classes.level(quality_needed(known, self.policy.placement.neighbour_tolerance))

    def down_within_s(self, application: str, roomy: Mask, large: Mask, lost: Amounts, fresh_s: float) -> float:
        """Return how much slack may be left when a job goes down to a machine that does not suit it (ARQ eq. 6.2).

        In seconds. ``roomy``: machines with capacity now; ``large``: machines that could have it; ``lost``: the job's
        loss to the type of each (0..1); ``fresh_s``: boot time of a new one. A shortfall of n points on a resource
        reduces quality by n percent.
        """
        newcomer, pressure = self.sensitivity_of(application), self.pressure
        if newcomer is None or pressure is None:
            return math.inf
        below = self._quality_below(newcomer, roomy & pressure.quiet, lost)
        good = lost <= self.policy.placement.tolerance
        if below is None:
            return 0.0
        quality, disturbed = below
        # No machine is launched for a job that is undisturbed here, so none can become ready.
        prospect = self._prospect(large & good, fresh_s if disturbed else math.inf)
        return prospect.switch(quality).within_s

    def quality_going_down(self, application: str, roomy: Mask, lost: Amounts) -> float | None:
        """Return the quality (0..1) a job would get on a machine of ``roomy`` that does not suit it; None: unknown.

        ``lost``: as for ``down_within_s``.
        """
        newcomer = self.sensitivity_of(application)
        if newcomer is None or self.pressure is None:
            return None
        below = self._quality_below(newcomer, roomy & self.pressure.quiet, lost)
        return below[0] if below is not None else None

    def _quality_below(self, newcomer: Sensitivity, roomy: Mask, lost: Amounts) -> tuple[float, bool] | None:
        """Return the quality (0..1) a job gets by going down, and whether a job is disturbed; None without capacity."""
        assert self.pressure is not None
        if np.count_nonzero(lost):
            cells = self.work_cells
            found = select_relaxed(self.pressure, newcomer, roomy, lost, neighbours_too=True, work_cells=cells)
            margin, on_type = (found.margin, 1.0 - float(lost[found.at])) if found is not None else (None, 1.0)
        else:
            margin, on_type = relaxed_margin(self.pressure, newcomer, roomy, self.work_cells), 1.0
        return None if margin is None else (on_type * min(1.0, max(0.0, 1.0 + margin / FULL)), margin < 0.0)

    def _prospect(self, large: Mask, fresh_s: float) -> WaitingValue:
        """Return the value of waiting for one of the machines ``large``; cached for jobs waiting for the same ones."""
        key = (large.tobytes(), fresh_s)
        if key not in self.prospects:
            busy_s = self.snapshot.fleet_stats.busy_s
            busy = self.snapshot.plan_cache.get("busy times", (busy_s,), lambda: BusyTimes.of(busy_s))
            cap_s = self.policy.admission.patience_cap_s
            self.prospects[key] = waiting_value(busy, self.ages_s[large], own=1.0, slack=cap_s, fresh_s=fresh_s)
        return self.prospects[key]

    # ----------------------------------------------------------------------------------------------------------- sizing
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

    # ------------------------------------------------------------------------------------------------------ in numbers
    def numbers(self, application: str) -> dict[str, Number]:
        """Return the numbers that decided the selections of the last search.

        Class and pool, the least of D1 and D2, which constraints were relaxed and by how much; of several ranks the
        worst.
        """
        newcomer, pressure, chosen = self.sensitivity_of(application), self.pressure, self.chosen
        if newcomer is None or pressure is None or not chosen:
            return {}
        pool, level = chosen[0].pool, pressure.classes.level(newcomer.quality)
        numbers: dict[str, Number] = {
            "quality": round(newcomer.quality, 4),
            "quality_class": level,
            "pool": pool,
            "diverted": "no" if pool == level else "up" if pool > level else "down",
            "suited": min(selection.among for selection in chosen),
            "margin": round(min(selection.margin for selection in chosen), 2),
        }
        if self.loss > 0.0:
            numbers["expected_loss"] = round(self.loss, 4)
        numbers |= self._quality_met(newcomer, chosen[0].at)
        return {**numbers, **_relaxed(chosen)}

    def _quality_met(self, newcomer: Sensitivity, at: int) -> dict[str, Number]:
        """Return the quality (0..1) machine ``at`` offers next to its residents, and how well that matches."""
        residents = [(held.resources.vcpus, job) for job, held in self.fleet.holdings[at]]
        if not residents or self.pressure is None:
            return {}
        known, capacity = self.known(newcomer.name), float(self.fleet.capacity[0, at])
        pressures = [(vcpus, self.pressure.of(job.application).caused.tolist()) for vcpus, job in residents]
        own = max(0.0, capacity - sum(vcpus for vcpus, _ in pressures))
        offered = quality.offer_beside(pressures, vcpus=capacity, own_vcpus=own)
        needed = min(1.0, max(0.0, known.quality_target.value)) if known is not None else 0.0
        return {"quality_offered": round(offered, 4), "quality_match": round(quality.match(offered, needed), 4)}


@dataclass(slots=True, eq=False)
class RankSizes:
    """The vCPUs a rank gets on each machine next to its residents.

    Computed on first use, because most waiting jobs find no machine that suits them at any size.
    """

    suit: Suitability
    application: str
    aim: SizeTarget
    beside: Amounts | None
    """Pressure caused by the residents, shape ``(K, N)``; None if the order ignores it."""
    found: Amounts | None = None
    """All sizes, once computed."""
    one: dict[int, float] = field(default_factory=dict)
    """Sizes of single machines, once computed."""

    def losses(self) -> Amounts:
        """Return the loss to residents on each machine (0..1), shape ``(N,)``."""
        newcomer, count = self.suit.sensitivity_of(self.application), len(self.suit.fleet.instances)
        if newcomer is None or self.beside is None or not count:
            return np.zeros(count)
        return losses_beside(newcomer, self.beside)

    def vcpus(self) -> Amounts:
        """Return the vCPUs a rank gets on each machine, shape ``(N,)``."""
        if self.found is None:
            self.found = self.suit.granted(self.application, self.aim, self.suit.fleet.kinds, self.losses())
        return self.found

    def vcpus_at(self, at: int) -> float:
        """Return :meth:`vcpus` of machine ``at``."""
        known = self.one.get(at)
        if known is None:
            known = self.one[at] = self._vcpus_at(at) if self.found is None else float(self.found[at])
        return known

    def _vcpus_at(self, at: int) -> float:
        newcomer = self.suit.sensitivity_of(self.application)
        loss = 0.0 if newcomer is None or self.beside is None else loss_beside(newcomer, self.beside[:, at])
        return self.suit.granted_on(self.application, self.aim, self.suit.fleet.kinds, at, loss)

    def vcpus_on(self, places: Places) -> Amounts:
        """Return :meth:`vcpus` of the machines ``places`` only."""
        if self.found is None and places.size <= FEW:
            return np.array([self.vcpus_at(at) for at in places.tolist()], dtype=np.float64)
        return self.vcpus()[places]


def _relaxed(chosen: Sequence[Selection]) -> dict[str, Number]:
    if not any(selection.relaxed or selection.cut_short for selection in chosen):
        return {}
    found = {strain for selection in chosen for strain in selection.relaxed}
    strains = sorted(found, key=lambda strain: (-strain.by, strain.source, strain.neighbours))
    numbers: dict[str, Number] = {}
    if strains:
        numbers["relaxed"] = "; ".join(str(strain) for strain in strains[:NAMED])
        numbers["relaxed_constraints"] = len(strains)
    if any(selection.cut_short for selection in chosen):
        numbers["search_cut_short"] = True
    return numbers


def open_suitability(
    snapshot: Snapshot, policy: Policy, needs: OrderNeeds, fleet: Fleet, stopping: Set[JobId]
) -> Suitability | None:
    """Return the suitability state for ``snapshot``; None if the policy's order ``needs`` no classifications.

    Units of jobs ``stopping`` count as gone.
    """
    if not snapshot.applications or not needs.classifications:
        return None
    return Suitability(snapshot=snapshot, policy=policy, needs=needs, fleet=fleet, stopping=stopping)


def column_of(offer: Offer) -> str:
    """Return the type of an offer's machines as named in classifications."""
    return f"{offer.provider}/{offer.instance_type.name}"
