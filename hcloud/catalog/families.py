"""Correction of a scraped EC2 price table from its own regularity.

AWS prices the sizes of a family in proportion to their normalization factor (EC2 User Guide, "Instance size
flexibility"). The table does not distinguish tenancies: cells are missing, and some contain the price of a dedicated
instance, which is 6 to 10 % higher. Both are replaced by the price that the family's other sizes in the region imply.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hcloud.catalog.prices import is_price

ON_LINE: Final = 1.005
"""Prices per unit of size that differ by less than this factor agree."""
DEDICATED: Final = (1.03, 1.12)
"""Range of the factor by which dedicated instances cost more."""
WITNESSES: Final = 2
"""Number of sizes that must agree on the lowest price per unit; with fewer, cells stay unchanged."""


class FamilyPrice(NamedTuple):
    """A price of the table."""

    usd_per_h: float
    corrected: bool
    """It was derived from the family's other sizes."""


def corrected_prices(
    table: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> Iterator[tuple[str, str, FamilyPrice]]:
    """Yield type, region and price of a table ``{type: {region: USD/h}}`` in which zero means unknown.

    ``factors`` are normalization factors by type. Types without one, and families without enough agreeing sizes, keep
    their own prices. Prices that remain unknown are left out.
    """
    for region, members in _families(table):
        unit_usd = _unit_price(
            [usd / factors[kind] for kind, usd in members.items() if is_price(usd) and kind in factors]
        )
        for kind, usd in members.items():
            cell = _cell(usd, unit_usd * factors[kind] if unit_usd is not None and kind in factors else None)
            if cell is not None:
                yield kind, region, cell


def _families(table: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield region and prices by type of every family."""
    families: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for kind, regions in table.items():
        family, _, size = kind.partition(".")
        if size:  # without one, it is a dedicated host
            for region, usd in regions.items():
                families[region, family][kind] = float(usd)
    for (region, _), members in sorted(families.items()):
        yield region, members


def _unit_price(units: list[float]) -> float | None:
    """Return the price per unit of size on which the cheapest sizes of a family agree, or None."""
    if not units:
        return None
    agreeing = [unit for unit in units if unit < min(units) * ON_LINE]
    return statistics.median(agreeing) if len(agreeing) >= WITNESSES else None


def _cell(usd: float, implied_usd: float | None) -> FamilyPrice | None:
    if not is_price(usd):
        return FamilyPrice(round(implied_usd, 6), True) if implied_usd is not None and is_price(implied_usd) else None
    if implied_usd is not None and DEDICATED[0] < usd / implied_usd < DEDICATED[1]:
        return FamilyPrice(round(implied_usd, 6), True)
    return FamilyPrice(usd, False)
