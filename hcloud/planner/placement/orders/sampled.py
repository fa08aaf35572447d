"""The least expected loss among a few instances drawn at random (Tarcil, Dissertation ch. 7)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE
from hcloud.planner.placement.orders.least_loss import least_loss_choice

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

MISSED = 0.05
"""Probability with which the best instance drawn may be worse than the wanted quantile of all with room."""
MOST_DRAWN = 32
"""Instances drawn at most (Tarcil, Dissertation §7.3: more cost more time than they gain)."""


def sample_size(quantile: float) -> int:
    """Return how many instances to draw, 1 to ``MOST_DRAWN``, for the best to lie above ``quantile`` (0..1) of all.

    The best of R uniform draws lies below it with probability ``quantile ** R``.
    """
    return min(MOST_DRAWN, math.ceil(math.log(MISSED) / math.log(quantile)))


def drawn(rng: np.random.Generator, among: Mask, count: int) -> Mask:
    """Return ``count`` instances of ``among``, drawn uniformly without replacement; all of them if it has no more."""
    size = len(among)
    # Where many have room a few blind draws find enough of them; else those with room are listed first.
    blind = rng.integers(0, size, 4 * count) if size > 16 * count else np.zeros(0, dtype=np.int64)
    found = list(dict.fromkeys(blind[among[blind]].tolist()))[:count]
    if len(found) < count:
        places = among.nonzero()[0]
        if places.size <= count:
            return among
        found = rng.choice(places, count, replace=False, shuffle=False).tolist()
    mask = np.zeros_like(among)
    mask[found] = True
    return mask


class SampledOrder:
    """Like least_loss, but its cost grows with the sample, not with the fleet. Each rank of a gang draws anew."""

    name = "sampled"
    needs = OrderNeeds(interference=True, types=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the instance with the least expected total loss of those drawn from ``fits``."""
        count = sample_size(context.policy.placement.sampled_quantile)
        return context.suitability.select(group.application, drawn(context.rng, fits, count), least_loss_choice)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference was known and counted, or the type alone, and how many were drawn."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        count = sample_size(context.policy.placement.sampled_quantile)
        return Preference("sampled", f"least expected loss of up to {count} machines drawn at random")


ORDER: Final[PlacementOrder] = SampledOrder()
