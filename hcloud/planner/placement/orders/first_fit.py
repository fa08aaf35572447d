"""The instance with the lowest number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


class FirstFit:
    """The oldest instance with room."""

    name = "first_fit"
    needs = OrderNeeds()

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the first instance of ``fits``."""
        return int(fits.argmax())

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return the same words for every job."""
        return Preference("first_fit", "first that fits")


ORDER: Final[PlacementOrder] = FirstFit()
