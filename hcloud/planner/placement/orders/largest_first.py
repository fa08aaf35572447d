"""The largest instance with room: the greedy scheduler that Mage compares itself with (§6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


class LargestFirst:
    """Of equally large instances the least loaded."""

    name = "largest_first"
    needs = OrderNeeds()

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the instance of ``fits`` with the most vCPUs."""
        vcpus = np.where(fits, context.fleet.capacity[0], 0.0)
        return context.fleet.least_loaded_of(vcpus >= vcpus.max())

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return the same words for every job."""
        return Preference("largest_first", "largest")


ORDER: Final[PlacementOrder] = LargestFirst()
