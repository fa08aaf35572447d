"""The placement orders: what each rule that ranks instances for a job takes into account.

To add an order: name it in ``PlacementPolicy.order`` (``spec/policy.py``) and here. An order with a choice of its own
also gets a branch in ``Suitability.select`` (``planner/fit/suitability.py``), or, if it needs no knowledge of
applications, in ``planner/placement/place.py``.
"""

from __future__ import annotations

from typing import Final

BARS_NEIGHBOURS: Final = frozenset({"paragon", "quasar", "heterogeneity_oblivious"})
"""Keep jobs apart that would exceed what the other tolerates (Paragon §3.2)."""
KNOWS_PRESSURE: Final = BARS_NEIGHBOURS | {"least_loss"}
"""Take interference between applications into account."""
KNOWS_TYPES: Final = frozenset({"paragon", "quasar", "interference_oblivious", "least_loss"})
"""Take the speed of applications on instance types into account."""
LOSES_TO_TYPES: Final = KNOWS_TYPES - {"quasar"}
"""Count a slower type as a loss; quasar chooses a larger size instead (Quasar, Dissertation §4.3.4)."""
