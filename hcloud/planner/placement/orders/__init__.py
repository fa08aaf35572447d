"""The placement orders. To add one, add a file here with an ``ORDER``, and its name to ``ORDERS`` in
``spec/policy.py``. An installed package offers one through the entry point group ``hcloud.placement_orders``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hcloud.planner.placement.order import PlacementOrder
from hcloud.spec.policy import ORDERS

_REGISTERED: dict[str, PlacementOrder] = {}


def register(order: PlacementOrder) -> None:
    """Make ``order`` known to policies and plans; registering it again changes nothing.

    Raises:
        ValueError: another order has the same name.
    """
    if _REGISTERED.setdefault(order.name, order) is not order:
        raise ValueError(f"there is another placement order {order.name!r}")
    ORDERS.add(order.name, uses_classifications=order.needs.classifications)


def order_named(name: str) -> PlacementOrder:
    """Return the order that a policy calls ``name``."""
    return _REGISTERED[name]


for _module in iter_modules(__path__):
    register(import_module(f"{__name__}.{_module.name}").ORDER)
