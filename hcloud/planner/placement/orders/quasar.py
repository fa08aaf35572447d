"""Quasar: Paragon with the fewest vCPUs and nodes that meet a job's target (Quasar, Dissertation §4.3)."""

from __future__ import annotations

from typing import Final

from hcloud.planner.fit.paragon import Pools
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder
from hcloud.planner.placement.orders.paragon import Paragon

ORDER: Final[PlacementOrder] = Paragon(
    name="quasar",
    needs=OrderNeeds(interference=True, types=True, tolerable_neighbours=True, sizes=True),
    pools=Pools.FIRST,  # a larger size makes up for a worse type
)
