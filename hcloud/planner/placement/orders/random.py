"""Any instance, drawn at random: a baseline for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


class Random:
    """Every instance with room is equally likely."""

    name = "random"
    needs = OrderNeeds()

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return an instance of ``fits``, drawn from the plan's generator."""
        return int(context.rng.choice(fits.nonzero()[0]))

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return the same words for every job."""
        return Preference("random", "chosen at random")


ORDER: Final[PlacementOrder] = Random()
