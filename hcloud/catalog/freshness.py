"""How old the known prices are, per cloud and plan, and which plans have no known price."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hcloud.catalog.prices import PriceCatalogue, PricePlan, Quote
from hcloud.core.price_age import PRICES_OLD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The prices of one plan of a cloud, in some of its regions."""

    cloud: str
    plan: PricePlan
    prices: int
    """Number of known prices."""
    read_at: float
    """Date of the newest price in the region where that is oldest, in Unix seconds; 0 without prices."""
    source: str
    """Source of that price; empty without prices."""

    def is_old(self, now: float) -> bool:
        """Return whether the list of a region was read over 30 days ago."""
        return self.prices > 0 and now - self.read_at > PRICES_OLD_S


def freshness(known: PriceCatalogue, cloud: str, regions: Collection[str] = ()) -> Iterator[Freshness]:
    """Yield the freshness of every plan of a cloud, in ``regions`` (empty: in all)."""
    for plan in PricePlan:
        # Of each region the newest price counts: types that are no longer sold keep their old date for ever.
        newest: dict[str, Quote] = {}
        prices = 0
        for key, quote in known.quotes.items():
            if key.cloud == cloud and key.plan is plan and (not regions or key.region in regions):
                prices += 1
                if key.region not in newest or quote.at > newest[key.region].at:
                    newest[key.region] = quote
        oldest = min(newest.values(), key=lambda quote: quote.at, default=None)
        at, source = (oldest.at, oldest.source) if oldest is not None else (0.0, "")
        yield Freshness(cloud=cloud, plan=plan, prices=prices, read_at=at, source=source)
