"""Paragon without its knowledge of interference: the best instance type alone decides (Paragon §6.1, "NI")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

BEST_TYPE: Final = Preference("best_type", "best type for it, least loaded of that type")


class InterferenceOblivious:
    """Of several instances of the best type the least loaded."""

    name = "interference_oblivious"
    needs = OrderNeeds(types=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the least loaded instance of ``fits`` with the best type."""
        return context.suitability.best_type(group.application, fits)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return the same words for every job."""
        return BEST_TYPE


ORDER: Final[PlacementOrder] = InterferenceOblivious()
