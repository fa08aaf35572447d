"""Paragon: no interference beyond tolerance, then the best instance type, then the tightest fit (Paragon §3.2).

The search itself is :mod:`hcloud.planner.fit.paragon`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hcloud.planner.fit.interference import Floats, PressureState, Sensitivity
from hcloud.planner.fit.paragon import Pools, Selection, select, select_relaxed
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragon:
    """The constraints on interference first; where none satisfies them and the job cannot wait, the least violated."""

    name: str
    needs: OrderNeeds
    pools: Pools
    """With queues by quality: whether machines of the lowest pool are preferred."""

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the undisturbed instance of ``fits`` with the best type, or the least disturbed one."""
        suit = context.suitability
        pools = self.pools if context.policy.admission.by_class else Pools.NO

        def search(
            pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
        ) -> Selection | None:
            if neighbours_too is None:
                margin = suit.wanted_margin
                return select(pressure, newcomer, among, preference, pools=pools, wanted_margin=margin)
            cells = suit.work_cells
            return select_relaxed(
                pressure, newcomer, among, preference, neighbours_too=neighbours_too, work_cells=cells
            )

        return suit.select(group.application, fits, search)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference was known and decided, or the type alone."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        return Preference("suits", "no interference beyond tolerance, best type and tightest fit")


ORDER: Final[PlacementOrder] = Paragon(
    name="paragon",
    needs=OrderNeeds(interference=True, types=True, tolerable_neighbours=True),
    pools=Pools.OF_BEST_TYPE,  # a worse type costs a job more than others gain
)
