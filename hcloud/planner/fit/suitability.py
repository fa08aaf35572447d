"""What a plan knows of how well machines suit jobs: pressure and types by machine, and how long a job may hold out.

Built from the classifications of a snapshot where the policy's order of placement uses them; jobs of which nothing is
known are placed as if it did not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from hcloud.core import quality
from hcloud.core.estimates import Classification
from hcloud.core.model import Job, JobId, Number, Offer
from hcloud.forecast.wait_times import BusyTimes
from hcloud.planner.fit.arq import WaitingValue, run_s, slack_s, waiting_value
from hcloud.planner.fit.interference import (
    FULL,
    PressureState,
    Sensitivities,
    Sensitivity,
    open_pressure,
    quality_needed,
    reach_of,
    sensitivities,
    sources_of,
)
from hcloud.planner.fit.paragon import Pools, Selection, least_loss_choice, relaxed_margin, select, select_relaxed
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
from hcloud.planner.placement.orders import BARS_NEIGHBOURS, KNOWS_PRESSURE, KNOWS_TYPES, LOSES_TO_TYPES
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

FEW = 8
"""Of so many machines sizes are worked out sooner one by one."""


@dataclass(slots=True, eq=False)
class RankSizes:
    """The vCPUs that a rank gets on each machine beside those who cause so much there (``beside``, shape ``(K, N)``);
    worked out when they are first asked for, as most who wait find no room that suits them whatever they would get.
    ``one``: of single machines."""

    suit: Suitability
    application: str
    aim: SizeTarget
    beside: Amounts | None
    found: Amounts | None = None
    one: dict[int, float] = field(default_factory=dict)

    def losses(self) -> Amounts:
        """Return what is lost on each machine beside its residents (0..1), shape ``(N,)``."""
        who, count = self.suit.who(self.application), len(self.suit.fleet.instances)
        return np.zeros(count) if who is None or self.beside is None or not count else losses_beside(who, self.beside)

    def vcpus(self) -> Amounts:
        """Return what a rank gets on each machine, shape ``(N,)``."""
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
        who = self.suit.who(self.application)
        loss = 0.0 if who is None or self.beside is None else loss_beside(who, self.beside[:, at])
        return self.suit.granted_on(self.application, self.aim, self.suit.fleet.kinds, at, loss)

    def vcpus_on(self, places: Places) -> Amounts:
        """Return :meth:`vcpus` of the machines ``places`` only."""
        if self.found is None and places.size <= FEW:
            return np.array([self.vcpus_at(at) for at in places.tolist()], dtype=np.float64)
        return self.vcpus()[places]


DOUBT = 40.0
"""By so many points pressures that were not measured themselves are off in one of ten cases (Paragon's small cluster:
28 points, root mean square)."""
NAMED = 8
"""So many relaxed constraints are named, the worst first."""


@dataclass(slots=True, eq=False)
class Suitability:
    """The state and its answers for one plan. ``chosen``: what the search under way has selected;
    ``loss``: what the job is expected to lose there beside its neighbours; ``aim``: what is asked of its sizes."""

    snapshot: Snapshot
    policy: Policy
    fleet: Fleet
    stopping: Set[JobId]
    sources: tuple[str, ...]
    state: PressureState | None = None
    ages: Amounts | None = None
    chosen: list[Selection] = field(default_factory=list)
    preferences: dict[str, Amounts] = field(default_factory=dict)
    aim: SizeTarget | None = None
    aims: dict[tuple[str, SizeTarget], Amounts] = field(default_factory=dict)
    sufficient: dict[tuple[str, SizeTarget], Mask] = field(default_factory=dict)
    prospects: dict[tuple[bytes, float], WaitingValue] = field(default_factory=dict)
    node_counts: dict[tuple[str, SizeTarget, int], int] = field(default_factory=dict)
    loss: float = 0.0
    run_times: dict[tuple[str, int], float | None] = field(default_factory=dict)
    short: dict[tuple[str, SizeTarget], Places] = field(default_factory=dict)
    steps: dict[tuple[str, SizeTarget], SizeCurve] = field(default_factory=dict)
    sizes: tuple[tuple[str, float], ...] | None = None
    places: dict[int, tuple[MachineKinds, Places]] = field(default_factory=dict)

    @property
    def pressure(self) -> PressureState | None:
        """The pressure on each machine, from when it is first asked for; None where the order does not use it."""
        if self.state is None and self.policy.placement.order in KNOWS_PRESSURE:
            known, wanted = self.snapshot.applications, self.policy.placement
            asked = {"confidence": wanted.neighbour_confidence, "tolerance": wanted.tolerance}
            classes, plan_cache, made_of = self.policy.admission.classes, self.snapshot.plan_cache, (known, self.policy)

            def told() -> Sensitivities:
                """From what earlier plans were told, as far as that is still believed."""
                return sensitivities(known, classes=classes, before=plan_cache.latest("sensitivities"), **asked)

            ending = self._ending()
            self.state = open_pressure(
                known,
                self._staying(ending),
                ending,
                classes=classes,
                told=plan_cache.of("sensitivities", made_of, told),
                machines=[instance.id for instance in self.fleet.instances],
                before=plan_cache.latest("standing"),
                **asked,
            )
            plan_cache.keep("standing", self.state.standing)
        return self.state

    def _staying(self, ending: Sequence[bool]) -> list[tuple[str, ...]]:
        """Return by machine the applications of its units that were not asked to end."""
        names = [each.applications() for each in self.fleet.residents]
        for at in [at for at, ends in enumerate(ending) if ends]:
            staying = [job for job, _ in self.fleet.holdings[at] if job.id not in self.stopping]
            names[at] = tuple([job.application for job in staying])
        return names

    def _ending(self) -> list[bool]:
        """Return by machine whether units of it were asked to end."""
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
        """For how long the oldest unit on each machine has been there, shape ``(N,)``; 0 where there is none."""
        if self.ages is None:
            now = self.snapshot.now
            oldest = np.array([each.since() for each in self.fleet.residents], dtype=np.float64)
            self.ages = np.where(np.isinf(oldest), 0.0, now - oldest)
        return self.ages

    @property
    def work_cells(self) -> int:
        """The comparisons one search may take."""
        return self.policy.placement.work_cells

    def known(self, application: str) -> Classification | None:
        """Return what is believed of an application; None: nothing is known."""
        return self.snapshot.applications.get(application)

    def application(self, job: Job) -> str:
        """Return what ``job`` is taken for, if anything is known of that; else nothing."""
        return job.application if job.application in self.snapshot.applications else ""

    def who(self, application: str) -> Sensitivity | None:
        """Return what an application causes and tolerates, where that is known and the policy wants it used."""
        pressure = self.pressure if self.state is None else self.state
        return pressure.known.get(application) if pressure is not None else None

    # -------------------------------------------------------------------------------------------------------- residents
    def arrive(self, at: int, application: str) -> None:
        """Count a unit as placed on, or promised room of, machine ``at``."""
        if self.pressure is not None:
            self.pressure.add(at, self.pressure.of(application))

    def leave(self, at: int, application: str) -> None:
        """Take :meth:`arrive` back."""
        if self.pressure is not None:
            self.pressure.remove(at, self.pressure.of(application))

    def unsettle(self, at: int) -> None:
        """Note that a unit on machine ``at`` was asked to end: until it is gone, who suits the place is not known."""
        if self.pressure is not None:
            self.pressure.quiet[at] = False

    @property
    def moment(self) -> int:
        """Now, for :meth:`back_to`."""
        return len(self.pressure.journal) if self.pressure is not None else 0

    @property
    def changed(self) -> Sequence[int]:
        """On which machines units arrived, or which they left, in this plan; in order, each time anew."""
        return self.pressure.changes if self.pressure is not None else ()

    def back_to(self, moment: int) -> None:
        """Undo all arrivals and leavings since ``moment``."""
        if self.pressure is not None:
            self.pressure.back_to(moment)

    # -------------------------------------------------------------------------------------------------------- selecting
    def suited(self, application: str, among: Mask) -> Mask:
        """Return the machines of ``among`` where nobody would be disturbed; all, where the order bars nobody."""
        who = self._choosy(application)
        return among if who is None or self.pressure is None else self.pressure.suited_among(who, among)

    def suits_without(self, at: int, application: str, gone: Sequence[str]) -> bool:
        """Return whether machine ``at`` would suit an application if units of the applications ``gone`` had left."""
        who = self._choosy(application)
        if who is None or self.pressure is None:
            return True
        return self.pressure.suits_without(at, who, [self.pressure.of(name) for name in gone])

    def together(self, application: str, company: Sequence[str]) -> bool:
        """Return whether a unit of ``application`` and those of ``company`` suit each other on an empty machine."""
        who, pressure = self._choosy(application), self.pressure
        return who is None or pressure is None or pressure.suits_company(who, [pressure.of(each) for each in company])

    def _choosy(self, application: str) -> Sensitivity | None:
        """Return what an application causes and tolerates, where that bars it from machines."""
        return self.who(application) if self.policy.placement.order in BARS_NEIGHBOURS else None

    def preference(self, application: str) -> Amounts | None:
        """Return by machine how slow its type is for an application, as a logarithm; a type not known of is average."""
        known, order = self.known(application), self.policy.placement.order
        if order not in KNOWS_TYPES or known is None or not known.by_type:
            return None
        if order == "quasar" and self.aim is not None:
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
    def pools(self) -> Pools:
        """Whether the lowest pool is preferred: with queues by quality, of the best type, as a worse one costs a job
        more than that gives others. Where types are taken by size (Quasar), sizes are such that any will do."""
        if self.policy.admission.queues != "by_quality":
            return Pools.NO
        return Pools.FIRST if self.policy.placement.order == "quasar" else Pools.OF_BEST_TYPE

    @property
    def wanted_margin(self) -> float:
        """How far from disturbing anybody a machine should be to be taken for a tight fit: nothing where the policy's
        confidence is in the bounds already, all of the doubt where estimates are compared as they are."""
        return DOUBT * max(0.0, 1.0 - reach_of(self.policy.placement.neighbour_confidence))

    @property
    def loses_to_types(self) -> bool:
        """Whether types count by what is lost there: not where they count by price (Quasar)."""
        return self.policy.placement.order in LOSES_TO_TYPES

    def type_losses(self, application: str, among: Mask) -> Amounts:
        """Return by machine which part of its performance (0..1) an application loses to its type.

        Beside the best type ``among`` some machines; nothing where types are not known, or count otherwise.
        """
        preference = self.preference(application) if self.loses_to_types and among.any() else None
        if preference is None:
            return np.zeros(len(among))
        losses: Amounts = -np.expm1(np.minimum(0.0, preference[among].min() - preference))
        return losses

    def aim_at(self, job: Job, aim: SizeTarget | None) -> None:
        """Begin a search for ``job``: forget the last one, and note what performance is wanted (Quasar): ``aim``, where
        :meth:`aim_of` was asked before."""
        self.chosen.clear()
        self.loss, self.aim = 0.0, aim or self.aim_of(job)

    def aim_of(self, job: Job) -> SizeTarget | None:
        """Return what is asked of the sizes of ``job`` (Quasar), or None where nothing is known of it.

        Where it may have fewer nodes than it asks for, as many as belong to its least size.
        """
        known = self.known(job.application)
        if self.policy.placement.order != "quasar" or known is None:
            return None
        target = wanted_performance(job, known, self.snapshot.now, self.policy.placement.tolerance)
        if target is None:
            return None
        asked, nodes = job.spec.resources.vcpus, job.spec.nodes
        low, high = job.spec.vcpus_within if known.by_step and job.spec.vcpus_within is not None else (asked, asked)
        aim = SizeTarget(target=float(f"{target:.3g}"), asked_vcpus=asked, low=low, high=high, nodes=nodes.count)
        if job.spec.vcpus_within is None or nodes.gang or nodes.minimum >= nodes.count:
            return aim
        return aim._replace(nodes=self._least_nodes(job.application, known, aim, nodes.minimum))

    def _least_nodes(self, application: str, known: Classification, aim: SizeTarget, minimum: int) -> int:
        """Return the node count of the least size, machines being what they are now."""
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
        """Return the vCPUs a rank gets on each of some machines: the least that meet the target there.

        ``losses``, shape ``(N,)``: what is lost on each beside neighbours. On types of which nothing is known: as many
        as asked for.
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
        """Return :meth:`granted` on machines of some kinds with nobody else there."""
        if self.known(application) is None or not kinds.sizes:
            return np.full(len(kinds.at), aim.asked_vcpus)
        alone: Amounts = self._steps(application, aim).alone()[self._places(kinds)]
        return alone

    def portions(self, application: str, aim: SizeTarget) -> RankSizes:
        """Return :meth:`granted` on the machines of the fleet beside who is there now."""
        beside = self.pressure.expected_now() if self.pressure is not None else None
        return RankSizes(suit=self, application=application, aim=aim, beside=beside)

    def sized(self, portions: RankSizes, at: int, vcpus: float) -> dict[str, Number]:
        """Return the numbers behind so many ``vcpus`` on machine ``at``: what was wanted, and how sure that is met."""
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
        """Return the steps of all kinds of machines that are there or on offer, beside the target."""
        key = (application, aim)
        if key not in self.steps:
            known, confidence = self.snapshot.applications[application], self.policy.placement.confidence
            self.steps[key] = size_curves(known, self._sizes(), aim, confidence).towards(aim.target)
        return self.steps[key]

    def _sizes(self) -> tuple[tuple[str, float], ...]:
        if self.sizes is None:
            offers, there = self.snapshot.offers, self.fleet.kinds.sizes

            def together() -> tuple[tuple[str, float], ...]:
                """All kinds that are there or on offer."""
                return tuple(sorted({*there, *((column_of(o), o.instance_type.capacity.vcpus) for o in offers)}))

            self.sizes = self.snapshot.plan_cache.of("sizes", (offers, there), together)
        return self.sizes

    def _places(self, kinds: MachineKinds) -> Places:
        """Return where the kind of each of some machines stands among all kinds."""
        known = self.places.get(id(kinds))
        if known is None:
            sizes = {size: place for place, size in enumerate(self._sizes())}
            found: Places = np.array([sizes[size] for size in kinds.sizes], dtype=np.intp)[kinds.at]
            known = self.places[id(kinds)] = (kinds, found)  # kept with it, so no other gets its identity
        return known[1]

    def shortfalls(self, application: str, aim: SizeTarget, kinds: MachineKinds) -> Places:
        """Return how far empty machines of some kinds fall short of the target, as far as is known: see
        :meth:`hcloud.planner.fit.sizing.SizeCurve.shortfalls`."""
        return self._shortfalls(application, aim)[self._places(kinds)]

    def _shortfalls(self, application: str, aim: SizeTarget) -> Places:
        key = (application, aim)
        if key not in self.short:
            self.short[key] = self._steps(application, aim).shortfalls()
        return self.short[key]

    def enough(self, application: str, aim: SizeTarget) -> Mask:
        """Return the machines of a kind that is more likely than not to meet the target; all, where no size does."""
        key = (application, aim)
        if key not in self.sufficient:
            good = self._steps(application, aim).likely()[self._places(self.fleet.kinds)]
            hopeful = np.count_nonzero(good) == len(good) or self._hopeful(application, aim)
            self.sufficient[key] = good if hopeful else np.ones_like(good)
        return self.sufficient[key]

    def _hopeful(self, application: str, aim: SizeTarget) -> bool:
        """Return whether any type that is known of is more likely than not to meet the target with all it may get."""
        known = self.snapshot.applications[application]
        types = tuple([(column, aim.high) for column in known.by_type])
        steps = size_curves(known, types, aim, self.policy.placement.confidence).towards(aim.target) if types else None
        return steps is not None and bool(steps.likely().any())

    def _least_type(self, application: str, known: Classification, aim: SizeTarget) -> Amounts:
        """Return by machine the rank of its type: the least resources that meet the target, then the rest.

        Types of which nothing is known come after those that meet it and before those that do not.
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
        """Return the types of the machines at hand, each at the lowest price one of them has."""

        def cheapest() -> tuple[Platform, ...]:
            """Of each type the cheapest machine, the first of several."""
            found: dict[str, Platform] = {}
            for (column, vcpus), price in zip(self.fleet.sizes, self.fleet.price_usd_per_h.tolist(), strict=True):
                if column not in found or price < found[column].price_usd_per_h:
                    found[column] = Platform(column=column, vcpus=vcpus, price_usd_per_h=price, machines=nodes)
            return tuple(found[column] for column in sorted(found))

        return self.snapshot.plan_cache.of(f"platforms of {nodes}", (self.fleet.sizes,), cheapest)

    def select(self, application: str, fits: Mask, *, neighbours_too: bool | None) -> int:
        """Return the best machine of ``fits`` for a rank, or -1.

        ``neighbours_too`` None: nobody may be disturbed; False: the job itself may be; True: residents as well.
        """
        who, pressure = self.who(application), self.pressure
        if who is None or pressure is None:
            return self._best_type(fits, self.preference(application))
        now = fits & pressure.quiet
        if not np.count_nonzero(now):
            return -1
        preference = self.preference(application)
        if self.policy.placement.order == "least_loss":
            found = least_loss_choice(pressure, who, now, preference)
        elif neighbours_too is None:
            margin = self.wanted_margin
            found = select(pressure, who, now, preference, pools=self.pools, wanted_margin=margin)
        else:
            found = select_relaxed(
                pressure, who, now, preference, neighbours_too=neighbours_too, work_cells=self.work_cells
            )
        if found is None:
            return -1
        self.chosen.append(found)
        if found.relaxed or self.policy.placement.order == "least_loss":
            self.loss = max(self.loss, loss_beside(who, pressure.expected[:, found.at]))
        return found.at

    def _best_type(self, fits: Mask, preference: Amounts | None) -> int:
        candidates = np.flatnonzero(fits)
        if not candidates.size:
            return -1
        if preference is not None:
            ranks = preference[candidates]
            candidates = candidates[ranks <= ranks.min() + SLACK]
        return int(candidates[self.fleet.load[candidates].argmin()])

    # ------------------------------------------------------------------------------------------------------ holding out
    def slack_left_s(self, job: Job, queued_at: float) -> float:
        """Return for how long ``job`` may still hold out for a machine that suits it; 0 or less: not any more."""
        slack = slack_s(job, queued_at, self.expected_s(job.application, job.spec.nodes.count), self.policy.admission)
        return slack - (self.snapshot.now - queued_at)

    def expected_s(self, application: str, nodes: int) -> float | None:
        """Return the expected run time on so many nodes, where it is known."""
        key = (application, nodes)
        if key not in self.run_times:
            self.run_times[key] = run_s(self.known(application), nodes)
        return self.run_times[key]

    def quality_class(self, application: str) -> int:
        """Return the class of an application; of one nothing is known of, the middle one."""
        known, classes = self.known(application), self.policy.admission.classes
        if known is None:
            return classes // 2
        return quality.quality_class(quality_needed(known, self.sources), classes)

    def down_within_s(self, application: str, roomy: Mask, large: Mask, lost: Amounts, fresh_s: float) -> float:
        """Return how much slack may be left when a job goes down to a machine that does not suit it (ARQ eq. 6.2).

        ``roomy``: where there is room for it now; ``large``: the machines that could have; ``lost``: what it loses to
        the type of each (0..1); ``fresh_s``: how long a new one takes. A machine that is short of what is needed by so
        many of 100 on one resource counts with that much less quality.
        """
        who, pressure = self.who(application), self.pressure
        if who is None or pressure is None:
            return math.inf
        below, good = self._quality_below(who, roomy & pressure.quiet, lost), lost <= self.policy.placement.tolerance
        if below is None:
            return 0.0
        quality, disturbed = below
        # Nothing is bought for a job that nobody disturbs there, so nothing new comes for it.
        prospect = self._prospect(large & good, fresh_s if disturbed else math.inf)
        return prospect.switch(quality).within_s

    def _quality_below(self, who: Sensitivity, roomy: Mask, lost: Amounts) -> tuple[float, bool] | None:
        """Return what quality (0..1) a job gets if it goes down, and whether anybody is disturbed; None: no room."""
        assert self.pressure is not None
        if np.count_nonzero(lost):
            found = select_relaxed(self.pressure, who, roomy, lost, neighbours_too=True, work_cells=self.work_cells)
            margin, on_type = (found.margin, 1.0 - float(lost[found.at])) if found is not None else (None, 1.0)
        else:
            margin, on_type = relaxed_margin(self.pressure, who, roomy, self.work_cells), 1.0
        return None if margin is None else (on_type * min(1.0, max(0.0, 1.0 + margin / FULL)), margin < 0.0)

    def _prospect(self, large: Mask, fresh_s: float) -> WaitingValue:
        """Return what waiting for one of the machines ``large`` is worth: the same for all who wait for these."""
        key = (large.tobytes(), fresh_s)
        if key not in self.prospects:
            busy_s = self.snapshot.fleet_stats.busy_s
            busy = self.snapshot.plan_cache.of("busy times", (busy_s,), lambda: BusyTimes.of(busy_s))
            cap_s = self.policy.admission.patience_cap_s
            self.prospects[key] = waiting_value(busy, self.ages_s[large], own=1.0, slack=cap_s, fresh_s=fresh_s)
        return self.prospects[key]

    # ----------------------------------------------------------------------------------------------------------- sizing
    def ranks_wanted(self, job: Job, needed: int, wanted: int) -> int:
        """Return the fewest ranks, from ``needed`` to ``wanted``, that meet the target of ``job`` (Quasar §4.3.3).

        All of them where too little is known, or where even they do not meet it.
        """
        known = self.known(job.application)
        if self.policy.placement.order != "quasar" or known is None or needed >= wanted:
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
        """Return the numbers that decided the selections of the search just made.

        Class and pool, the least of D1 and D2, what was relaxed and by how much; of several ranks the worst.
        """
        who, pressure, chosen = self.who(application), self.pressure, self.chosen
        if who is None or pressure is None or not chosen:
            return {}
        pool = chosen[0].pool
        numbers: dict[str, Number] = {
            "quality": round(who.quality, 4),
            "quality_class": who.level,
            "pool": pool,
            "diverted": "no" if pool == who.level else "up" if pool > who.level else "down",
            "suited": min(selection.among for selection in chosen),
            "margin": round(min(selection.margin for selection in chosen), 2),
        }
        if self.loss > 0.0:
            numbers["expected_loss"] = round(self.loss, 4)
        numbers |= self._quality_met(who, chosen[0].at)
        return {**numbers, **_relaxed(chosen)}

    def _quality_met(self, who: Sensitivity, at: int) -> dict[str, Number]:
        """Return what quality (0..1) machine ``at`` offers beside those who run there, and how well that suits."""
        there = [(held.resources.vcpus, job) for job, held in self.fleet.holdings[at]]
        if not there or self.pressure is None:
            return {}
        known, capacity = self.known(who.name), float(self.fleet.capacity[0, at])
        beside = [(vcpus, self.pressure.of(job.application).caused.tolist()) for vcpus, job in there]
        own = max(0.0, capacity - sum(vcpus for vcpus, _ in beside))
        offered = quality.offer_beside(beside, vcpus=capacity, own_vcpus=own)
        needed = min(1.0, max(0.0, known.quality_target.value)) if known is not None else 0.0
        return {"quality_offered": round(offered, 4), "quality_match": round(quality.match(offered, needed), 4)}


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


def open_suitability(snapshot: Snapshot, policy: Policy, fleet: Fleet, stopping: Set[JobId]) -> Suitability | None:
    """Return what ``snapshot`` knows of applications, as far as the policy's order uses it; None where it does not.

    Units of jobs ``stopping`` count as gone.
    """
    if not snapshot.applications or policy.placement.order not in KNOWS_PRESSURE | KNOWS_TYPES:
        return None
    known = snapshot.applications
    sources = snapshot.plan_cache.of("sources", (known,), lambda: sources_of(known))
    return Suitability(snapshot=snapshot, policy=policy, fleet=fleet, stopping=stopping, sources=sources)


def column_of(offer: Offer) -> str:
    """Return the type of an offer's machines as classifications name it."""
    return f"{offer.provider}/{offer.instance_type.name}"
