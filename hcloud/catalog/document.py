"""A price catalog as a JSON document: of the files on disk, and of the shipped snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from hcloud.catalog.prices import Key, PriceCatalogue, PricePlan, Quote, TypeSize

FORM: Final = "hcloud-catalogue-1"


def document_of(catalogue: PriceCatalogue) -> dict[str, Any]:
    """Return a catalog as JSON: each price is ``[USD/h, index of its origin]``, an origin ``[source, at]``."""
    origins: dict[tuple[str, float], int] = {}
    prices: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for key, quote in sorted(catalogue.quotes.items()):
        origin = origins.setdefault((quote.source, quote.at), len(origins))
        place = prices.setdefault(key.cloud, {}).setdefault(key.region, {})
        place.setdefault(key.type, {})[key.plan.value] = [quote.usd_per_h, origin]
    sizes: dict[str, dict[str, Any]] = {}
    for (cloud, name), size in sorted(catalogue.sizes.items()):
        sizes.setdefault(cloud, {})[name] = asdict(size)
    return {
        "form": FORM,
        "versions": dict(sorted(catalogue.versions.items())),
        "origins": [list(origin) for origin in origins],
        "sizes": sizes,
        "prices": prices,
    }


def catalogue_of(document: Mapping[str, Any]) -> PriceCatalogue:
    """Return the catalog of a JSON document.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError: it has another format.
    """
    origins = [(str(source), float(at)) for source, at in document["origins"]]
    quotes = {
        Key(cloud, region, kind, PricePlan(plan)): Quote(float(usd), origins[origin][1], origins[origin][0])
        for cloud, regions in document["prices"].items()
        for region, kinds in regions.items()
        for kind, plans in kinds.items()
        for plan, (usd, origin) in plans.items()
    }
    sizes = {
        (cloud, name): TypeSize(**size) for cloud, kinds in document["sizes"].items() for name, size in kinds.items()
    }
    return PriceCatalogue(sizes=sizes, quotes=quotes, versions=dict(document["versions"]))
