"""Paragon's selection for very large fleets: of a few instances drawn at random, the one that fits tightest (Paragon
§3.3.3, its "statistical framework").

The print draws by hashing scores, here the plan's generator does. Its formula gives an instance the sign of the *sum*
over resources of what it tolerates beyond what the job causes, though its text says that any violated resource makes
the quality negative. Here any does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from hcloud.planner.fit.interference import FULL, Floats, PressureState, Sensitivity
from hcloud.planner.fit.paragon import SLACK, Selection, margin, select_relaxed
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE
from hcloud.planner.placement.orders.sampled import drawn

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

MISSED = 1e-3
"""Probability with which all instances drawn may be worse than the wanted quantile (§3.3.3)."""
MOST_DRAWN = 128
"""Of more, in a fleet of 1,000, the best is not distributed as that of independent draws (§3.3.3)."""


def candidates_needed(quantile: float) -> int:
    """Return how many instances to draw, 1 to ``MOST_DRAWN``, for the best to lie above ``quantile`` (0..1)."""
    return min(MOST_DRAWN, math.ceil(math.log(MISSED) / math.log(quantile)))


def colocation_quality(left: Floats) -> Floats:
    """Return the quality of instances for a job (§3.3.3), from -1 to 1, shape ``(n,)``.

    ``left``: what each tolerates beyond what the job causes, by resource, 0..100, shape ``(K, n)``. 1: all of it is
    used, nothing is violated. Below 0: a resource is violated.
    """
    tightness = 1.0 - np.abs(left).sum(axis=0) / (FULL * max(1, len(left)))
    found: Floats = np.where((left >= -SLACK).all(axis=0), tightness, -np.abs(tightness))
    return found


class ParagonSampled:
    """Paragon among a few instances: nothing violated, then the best type, then the highest colocation quality.

    No job waits for others to be drawn: the sample promises its quality once.
    """

    name = "paragon_sampled"
    needs = OrderNeeds(interference=True, types=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the best of the instances drawn from ``fits`` where nothing is violated, else the least disturbed one.

        Best effort gets none where residents would be disturbed.
        """
        suit = context.suitability
        count = candidates_needed(context.policy.placement.sampled_quantile)

        def search(
            pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
        ) -> Selection | None:
            sample = drawn(context.rng, among, count)
            return tightest(pressure, newcomer, sample, preference) or select_relaxed(
                pressure, newcomer, sample, preference, neighbours_too=group.promise, work_cells=suit.work_cells
            )

        return suit.select(group.application, fits, search)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference was known and decided, or the type alone, and how many were drawn."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        count = candidates_needed(context.policy.placement.sampled_quantile)
        text = f"no interference beyond tolerance, best type and tightest fit of up to {count} machines drawn at random"
        return Preference("suits", text)


def tightest(
    pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
) -> Selection | None:
    """Return the machine of ``among`` with the highest colocation quality of those of the best type where nothing is
    violated; None: something is on each. Ties: the lowest index."""
    places = pressure.suited_among(newcomer, among).nonzero()[0]
    if not places.size:
        return None
    if preference is not None:
        places = places[preference[places] <= preference[places].min() + SLACK]
    quality = colocation_quality(pressure.headroom[:, places] - newcomer.caused[:, None])
    at = int(places[quality.argmax()])
    return Selection(at=at, pool=int(pressure.level[at]), among=int(places.size), margin=margin(pressure, newcomer, at))


ORDER: Final[PlacementOrder] = ParagonSampled()
