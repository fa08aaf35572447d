"""The placement orders. To add one, add a file here with an ``ORDER``, and its name to ``ORDERS`` in
``spec/policy.py``. An installed package offers one through the entry point group ``hcloud.placement_orders``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hcloud.planner.placement.order import PlacementOrder
from hcloud.planner.registry import Registry
from hcloud.spec.policy import ORDERS

_ORDERS = Registry[PlacementOrder](
    "placement order", ORDERS, lambda order: order.needs.classifications, lambda order: order.needs.turns
)
register, order_named = _ORDERS.register, _ORDERS.named

for _module in iter_modules(__path__):
    register(import_module(f"{__name__}.{_module.name}").ORDER)
