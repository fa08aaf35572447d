"""Rules of the planner from installed packages: placement orders and provisioning strategies.

Their entry points are read when a policy is loaded and when a daemon or simulation is assembled. The planner itself
reads none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hcloud.core.errors import ConfigError

GROUPS = {
    "hcloud.placement_orders": "hcloud.planner.placement.orders",
    "hcloud.provisioning_strategies": "hcloud.planner.provisioning.strategies",
}
"""By group of entry points, the module that registers what they name; imported only if there are any."""


@cache
def load_plugins() -> None:
    """Register the rules that installed packages offer; once per process.

    Raises:
        ConfigError: one cannot be loaded, is not such a rule, or has a name that is in use.
    """
    for group, module in GROUPS.items():
        for point in entry_points(group=group):
            _load(point, import_module(module).register)


def _load(point: EntryPoint, register: Callable[[Any], None]) -> None:
    package = f" of package {point.dist.name}" if point.dist is not None else ""
    try:
        rule = point.load()
        if rule.name != point.name:
            raise ValueError(f"its name is {rule.name!r}")
        register(rule)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        why = f"{point.value!r}{package} cannot be used: {error}"
        raise ConfigError(why, where=f"{point.group}: {point.name}") from error
