"""Suitability of machines for jobs within one plan: pressure, type preferences, and how long a job may wait.

Built from the classifications of a snapshot if the policy's placement order uses them. Unknown jobs are placed as if it
did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from hcloud.core import quality
from hcloud.core.model import Job, JobId, Number
from hcloud.core.quality import QualityClasses
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.wait_times import BusyTimes
from hcloud.planner.fit.arq import WaitingValue, slack_s, waiting_value
from hcloud.planner.fit.expected_performance import loss_beside
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
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.fit.job_sizes import JobSizes, RankSizes
from hcloud.planner.fit.observed_slowdowns import ObservedSlowdowns
from hcloud.planner.fit.paragon import Selection, relaxed_margin, select_relaxed
from hcloud.planner.fit.sizing import SizeTarget
from hcloud.planner.fleet import SLACK, Amounts, Fleet, Mask, Places
from hcloud.planner.occupancy import held_by
from hcloud.planner.placement.order import OrderNeeds
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

DOUBT = 40.0
"""Error in points that unmeasured pressures exceed in one of ten cases (Paragon's small cluster: 28 points, root mean
square)."""
SINGLY = 64
"""Of so many machines a job may wait for, each is judged by what runs on it."""
NAMED = 8
"""Maximum number of relaxed constraints listed, worst first."""
Search = Callable[[PressureState, Sensitivity, Mask, Floats | None], Selection | None]
"""Returns the best machine of a mask for an application; the last argument is by machine how slow its type is for it
(shape ``(N,)``; None: all are equal)."""


@dataclass(slots=True, eq=False, kw_only=True)
class Suitability(JobSizes):
    """Answers about machines and applications within one plan, cached by question; those about sizes are inherited."""

    stopping: Set[JobId]
    """Jobs being stopped; their units count as gone."""
    run_times: JobRunTimes
    """How long jobs run."""
    state: PressureState | None = None
    ages: Amounts | None = None
    chosen: list[Selection] = field(default_factory=list)
    """Selections of the current search."""
    preferences: dict[str, Amounts] = field(default_factory=dict)
    aim: SizeTarget | None = None
    """Size target of the current search."""
    sought: Job | None = None
    """The job that the current search is for."""
    prospects: dict[tuple[bytes, float], WaitingValue] = field(default_factory=dict)
    waits_s: dict[tuple[bytes, float, float], float] = field(default_factory=dict)
    busy: BusyTimes | None = None
    """How long units run; None: not asked yet."""
    loss: float = 0.0
    """Expected loss of the current job to its neighbours."""
    observed_beside: bool = False
    """Whether that follows from what these programs were observed to cost each other."""
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
            slowdowns, columns = self.snapshot.slowdowns, self.fleet.type_columns
            if slowdowns.blend is not None:
                of_types = np.array([slowdowns.calibration.of(column).value for column in columns])
                self.state.factors = of_types[self.fleet.type_at] if columns else self.state.factors
                self.state.observed = ObservedSlowdowns(
                    forecasts=slowdowns,
                    type_columns=[columns[at] for at in self.fleet.type_at.tolist()],
                    known=plan_cache.get("observed slowdowns", (slowdowns, known, self.policy), dict),
                )
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
            return self.type_ranks(application, known, self.aim)
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
        self.loss, self.observed_beside, self.aim, self.sought = 0.0, False, aim or self.aim_of(job), job

    def rank_sizes(self, application: str, aim: SizeTarget) -> RankSizes:
        """Return the vCPUs a rank gets on the machines of the fleet with their present residents."""
        pressure, newcomer = self.pressure, self.sensitivity_of(application)
        observed = pressure.observed_of(newcomer) if pressure is not None and newcomer is not None else None
        return RankSizes(
            job_sizes=self,
            application=application,
            aim=aim,
            newcomer=newcomer,
            beside=None if pressure is None else pressure.expected_now(),
            factors=None if pressure is None else pressure.factors,
            observed=observed,
            residents=() if observed is None or pressure is None else tuple(pressure.residents),
        )

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
            observed = pressure.observed_of(newcomer)
            own = math.nan if observed is None else float(observed.own(newcomer, pressure.residents, [found.at])[0])
            expected = -math.expm1(-own)
            if math.isnan(own):
                expected = loss_beside(newcomer, pressure.expected[:, found.at], float(pressure.factors[found.at]))
            self.observed_beside = self.observed_beside or not math.isnan(own)
            self.loss = max(self.loss, expected)
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
        slack = slack_s(job, queued_at, self.run_times.limits(job), self.policy.admission)
        return slack - (self.snapshot.now - queued_at)

    def quality_class(self, application: str) -> int:
        """Return the class of an application; an unknown one gets the middle class."""
        known = self.known(application)
        if known is None:
            return self.policy.admission.classes // 2
        return self.classes.level(quality_needed(known))

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
            known, others = self._oldest_runs(np.flatnonzero(large))
            self.prospects[key] = waiting_value(
                self._busy_times(),
                self.ages_s[others],
                own=1.0,
                slack=self.policy.admission.patience_cap_s,
                fresh_s=fresh_s,
                known=known,
            )
        return self.prospects[key]

    def free_within_s(self, busy: Mask, probability: float, limit_s: float) -> float:
        """Return within how many seconds one of the machines ``busy`` is free with ``probability`` (0..1), by how long
        units usually run; at most ``limit_s``."""
        key = (busy.tobytes(), probability, limit_s)
        if key not in self.waits_s:
            self.waits_s[key] = self._busy_times().wait_s(self.ages_s[busy], probability, limit_s=limit_s)
        return self.waits_s[key]

    def _busy_times(self) -> BusyTimes:
        """Return how long units run, by those that ended lately and those that run now."""
        if self.busy is None:
            stats, now = self.snapshot.fleet_stats, self.snapshot.now
            placed = np.array([at for each in self.fleet.residents for at in each.placed_at()], dtype=np.float64)
            busy, ended_at = np.array(stats.busy_s), np.array(stats.busy_ended_at)
            # Clocks may be set back: a unit is no younger than nothing.
            self.busy = BusyTimes.of(
                busy,
                np.maximum(now - placed, 0.0),
                ended_from_s=np.maximum(stats.busy_since - (ended_at - busy), 0.0) if ended_at.size else (),
                running_from_s=np.maximum(stats.busy_since - placed, 0.0),
            )
        return self.busy

    def _oldest_runs(self, places: Places) -> tuple[list[tuple[RunTimes, float]], list[int]]:
        """Return run time and age of the oldest unit on each of some machines, and the machines of which it is unknown.

        Of more than ``SINGLY`` machines the rest counts by how long units usually run.
        """
        known, others = list[tuple[RunTimes, float]](), list[int]()
        for at in places.tolist():
            age_s, run_time = float(self.ages_s[at]), None
            if len(known) < SINGLY and age_s > 0.0:
                jobs = [job for job, _ in self.fleet.holdings[at] if job.attempt is not None]
                run_time = self.run_times.of(min(jobs, key=lambda job: job.attempt.placed_at))
            if run_time is None:
                others.append(at)
            else:
                known.append((run_time, age_s))
        return known, others

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
            if self.observed_beside:
                numbers["loss_observed"] = True
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
    snapshot: Snapshot,
    policy: Policy,
    needs: OrderNeeds,
    fleet: Fleet,
    stopping: Set[JobId],
    run_times: JobRunTimes,
) -> Suitability | None:
    """Return the suitability state for ``snapshot``; None if the policy's order ``needs`` no classifications.

    Units of jobs ``stopping`` count as gone.
    """
    if not snapshot.applications or not needs.classifications:
        return None
    return Suitability(
        snapshot=snapshot, policy=policy, needs=needs, fleet=fleet, stopping=stopping, run_times=run_times
    )
