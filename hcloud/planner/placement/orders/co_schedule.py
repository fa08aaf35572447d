"""The instance on which a job and those beside it are done soonest, by run times and by what they cost each other
(ESP, algorithm 3).

As printed, the last of an instance's jobs decides. Here the sum over jobs does, which is what throughput is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hcloud.classifier.interference import EXCESS
from hcloud.planner.fit.interference import FULL, Floats, PressureState, Sensitivity
from hcloud.planner.fit.observed_slowdowns import or_else
from hcloud.planner.fit.paragon import SLACK, Places, Selection, margin
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE
from hcloud.planner.placement.orders.least_loss import LASTS, least_loss_choice
from hcloud.planner.placement.orders.least_loss import ORDER as LEAST_LOSS
from hcloud.planner.run_times import ran_for_s
from hcloud.planner.text import seconds

if TYPE_CHECKING:
    from hcloud.core.model import Job
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

MOST_COMPARED = 200
"""Of more instances, residents are looked at on those where the newcomer loses least to its type and to pressures."""


class RunningNeighbour(NamedTuple):
    """A resident of an instance."""

    sensitivity: Sensitivity
    left_s: float
    """How much longer it is expected to run; inf: it has no known end."""


Company = Callable[[int], Sequence[RunningNeighbour]]
"""Returns the residents of a machine."""


class CoSchedule:
    """Like least_loss, but a neighbour counts for as long as both are expected to be there."""

    name = "co_schedule"
    needs = OrderNeeds(interference=True, types=True, turns=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the instance of ``fits`` with the least predicted finish; by least loss if no run time is known."""
        run_s = _run_s(context)

        def search(
            pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
        ) -> Selection | None:
            if run_s is None:
                return least_loss_choice(pressure, newcomer, among, preference)

            def company(at: int) -> list[RunningNeighbour]:
                present = [job for job, _ in context.fleet.holdings[at]]
                return [RunningNeighbour(pressure.of(job.application), _left_s(context, job)) for job in present]

            return soonest_choice(pressure, newcomer, among, preference, run_s, company)

        return context.suitability.select(group.application, fits, search)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference and the run time were known and counted, or what was used instead."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        run_s = _run_s(context)
        if run_s is None:
            instead = LEAST_LOSS.explain(context, group)
            return instead._replace(text=f"{instead.text}, as its run time is not known")
        text = f"it and its neighbours are expected to be done soonest there; it runs for {seconds(run_s)} alone"
        return Preference("co_schedule", text)


def _run_s(context: PlanContext) -> float | None:
    job = context.suitability.sought
    return None if job is None else context.run_times.median_s(job)


def _left_s(context: PlanContext, job: Job) -> float:
    rest_s = context.run_times.rest_s(job, ran_for_s(job, context.now))
    return math.inf if rest_s is None else max(0.0, rest_s)


def soonest_choice(
    pressure: PressureState,
    newcomer: Sensitivity,
    among: Mask,
    preference: Floats | None,
    run_s: float,
    company: Company,
) -> Selection | None:
    """Return the machine of ``among`` with the least predicted finish of a newcomer that runs for ``run_s`` alone, plus
    what it delays residents, in seconds; None if ``among`` is empty.

    ``preference``: by machine, the logarithm of its type's slowness. Ties: the largest spare, then the lowest index.
    """
    places = among.nonzero()[0]
    if not places.size:
        return None
    slower = np.zeros(places.size) if preference is None else preference[places] - preference[places].min()
    if places.size > MOST_COMPARED:
        longer = _longer(newcomer.bears[:, None], pressure.expected[:, places], pressure.factors[places])
        own = slower + LASTS * np.log1p(longer)
        nearest = np.sort(np.argsort(own, kind="stable")[:MOST_COMPARED])
        places, slower = places[nearest], slower[nearest]
    cost_s = added_s(pressure, newcomer, places, run_s * np.exp(slower), company)
    least = places[cost_s <= cost_s.min() + SLACK]
    at = int(least[pressure.spare[least].argmax()])
    found = margin(pressure, newcomer, at)
    return Selection(at=at, pool=int(pressure.level[at]), among=int(places.size), margin=found)


def added_s(
    pressure: PressureState, newcomer: Sensitivity, places: Places, alone_s: Floats, company: Company
) -> Floats:
    """Return by machine of ``places`` the seconds until the newcomer is done plus those that it delays residents.

    ``alone_s``: its run time by machine without neighbours. Pressures on it count by the part of its run during which
    their causes are there; a resident is delayed while both are.
    """
    there = [(number, each) for number, at in enumerate(places.tolist()) for each in company(at)]
    if not there:
        return alone_s
    of = np.array([number for number, _ in there], dtype=np.intp)
    left_s = np.array([each.left_s for _, each in there])
    bears = np.array([each.sensitivity.bears for _, each in there]).T
    caused = np.array([each.sensitivity.expected for _, each in there]).T

    def by_machine(values: Floats) -> Floats:
        return np.bincount(of, weights=values, minlength=places.size).astype(np.float64)

    counts = np.maximum(1.0, by_machine(np.ones(len(of))))
    part = np.minimum(1.0, left_s / alone_s[of])
    weighed = np.array([by_machine(row) for row in caused * part]).reshape(len(caused), places.size)
    longer = _longer(newcomer.bears[:, None], weighed, pressure.factors[places])
    observed, residents = pressure.observed_of(newcomer), pressure.residents
    if observed is not None:
        own = np.expm1(observed.own(newcomer, residents, places.tolist()))
        longer = or_else(own * by_machine(part) / counts, longer)
    done_s = alone_s * (1.0 + longer)

    others, factors = pressure.expected[:, places[of]] - caused, pressure.factors[places[of]]
    before, after = _longer(bears, others, factors), _longer(bears, others + newcomer.expected[:, None], factors)
    shared_s = np.minimum(left_s * (1.0 + before), done_s[of])
    delays = by_machine(shared_s * (1.0 - (1.0 + before) / (1.0 + after)))
    if observed is not None:
        harm = observed.harm(newcomer, residents, places.tolist())
        delays = or_else(-np.expm1(-harm) * by_machine(shared_s) / counts, delays)
    return np.asarray(done_s + delays)


def _longer(bears: Floats, pressures: Floats, factors: Floats) -> Floats:
    """Return by how much ``pressures`` lengthen runs that lose 5 % at ``bears``, as a share; shapes ``(K, N)``, of
    ``factors`` ``(N,)``."""
    worst = (np.minimum(pressures, FULL) / np.maximum(bears, 1.0)).max(axis=0, initial=0.0)
    return np.asarray(EXCESS * factors * worst)


ORDER: Final[PlacementOrder] = CoSchedule()
