"""Paragon without its knowledge of instance types: interference alone decides (Paragon §6.1, "NH")."""

from __future__ import annotations

from typing import Final

from hcloud.planner.fit.paragon import Pools
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder
from hcloud.planner.placement.orders.paragon import Paragon

ORDER: Final[PlacementOrder] = Paragon(
    name="heterogeneity_oblivious",
    needs=OrderNeeds(interference=True, tolerable_neighbours=True),
    pools=Pools.OF_BEST_TYPE,
)
