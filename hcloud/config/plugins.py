"""Rules of the planner from installed packages: entry points of the group ``hcloud.placement_orders``.

They are read when a policy is loaded and when a daemon or simulation is assembled. The planner itself reads none.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from hcloud.core.errors import ConfigError

if TYPE_CHECKING:
    from hcloud.planner.placement.order import PlacementOrder

ORDER_GROUP = "hcloud.placement_orders"


@cache
def load_plugins() -> None:
    """Register the rules that installed packages offer; once per process.

    Raises:
        ConfigError: one cannot be loaded, is not such a rule, or has a name that is in use.
    """
    for point in entry_points(group=ORDER_GROUP):
        from hcloud.planner.placement.orders import register  # a third of a second, which plain policies save

        order: PlacementOrder = _load(point)
        try:
            if order.name != point.name:
                raise ValueError(f"its name is {order.name!r}")
            register(order)
        except (AttributeError, ValueError) as error:
            raise _refused(point, str(error)) from error


def _load(point: EntryPoint) -> PlacementOrder:
    try:
        order: PlacementOrder = point.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise _refused(point, f"{type(error).__name__}: {error}") from error
    return order


def _refused(point: EntryPoint, why: str) -> ConfigError:
    package = f" of package {point.dist.name}" if point.dist is not None else ""
    return ConfigError(f"{point.value!r}{package} cannot be used: {why}", where=f"{point.group}: {point.name}")
