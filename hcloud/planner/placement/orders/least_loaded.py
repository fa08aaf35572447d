"""The instance with the smallest share of its vCPUs in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


class LeastLoaded:
    """Of equally loaded instances a reserved one, then the lowest number."""

    name = "least_loaded"
    needs = OrderNeeds()

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the least loaded instance of ``fits``."""
        return context.fleet.least_loaded_of(fits)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return the same words for every job."""
        return Preference("least_loaded", "least loaded")


ORDER: Final[PlacementOrder] = LeastLoaded()
