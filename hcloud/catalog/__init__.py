"""Instance types and prices: a shipped snapshot, refreshed from the clouds' own price lists.

A price is a :class:`Quote` with its date and source; an unknown price is absent, never zero. Providers read a plain
file per cloud (:func:`price_file`).
"""

from hcloud.catalog.candidates import CatalogMatch, CatalogQuery, candidates
from hcloud.catalog.changes import Change, Limits, Merge, compare, merge
from hcloud.catalog.files import CatalogFiles, price_file, read_catalogue
from hcloud.catalog.freshness import Freshness, freshness
from hcloud.catalog.prices import CLOUDS, Key, PriceCatalogue, PricePlan, Quote, TypeSize, overlay
from hcloud.catalog.reading import PriceReading, SpotPrice
from hcloud.catalog.refresh import Refreshed, refresh
from hcloud.catalog.snapshot import shipped_catalogue
from hcloud.catalog.sources import AwsPrices, GcpPrices, PriceSource, sources

__all__ = [
    "CLOUDS",
    "AwsPrices",
    "CatalogFiles",
    "CatalogMatch",
    "CatalogQuery",
    "Change",
    "Freshness",
    "GcpPrices",
    "Key",
    "Limits",
    "Merge",
    "PriceCatalogue",
    "PricePlan",
    "PriceReading",
    "PriceSource",
    "Quote",
    "Refreshed",
    "SpotPrice",
    "TypeSize",
    "candidates",
    "compare",
    "freshness",
    "merge",
    "overlay",
    "price_file",
    "read_catalogue",
    "refresh",
    "shipped_catalogue",
    "sources",
]
