"""Search of the catalog: all types and regions that are large enough, cheapest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hcloud.catalog.prices import PriceCatalogue, PricePlan, Quote, TypeSize


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogMatch:
    """One type, region and plan that is large enough."""

    cloud: str
    region: str
    type: str
    plan: PricePlan
    size: TypeSize
    quote: Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogQuery:
    """Search criteria. Empty collections: any. ``types`` are patterns (``*`` and ``?``)."""

    vcpus: float
    memory_mib: int
    clouds: Collection[str] = ()
    regions: Collection[str] = ()
    types: Sequence[str] = ()
    plans: Collection[PricePlan] = (PricePlan.ON_DEMAND, PricePlan.SPOT)
    burstable: bool = False
    arm: bool = False

    def fits(self, name: str, size: TypeSize) -> bool:
        """Return whether a type matches. Burstable and ARM types do only if requested, or matched by ``types``."""
        if size.vcpus + 1e-9 < self.vcpus or size.memory_mib < self.memory_mib:
            return False
        if self.types:
            return any(fnmatchcase(name, pattern) for pattern in self.types)
        return (self.burstable or not size.burstable) and (self.arm or size.arch == "x86_64")


def candidates(catalogue: PriceCatalogue, query: CatalogQuery) -> list[CatalogMatch]:
    """Return the matches of a query, cheapest first, without types of unknown size."""
    fitting = {at: size for at, size in catalogue.sizes.items() if query.fits(at[1], size)}
    matches = [
        CatalogMatch(cloud=key.cloud, region=key.region, type=key.type, plan=key.plan, size=size, quote=quote)
        for key, quote in catalogue.quotes.items()
        if (size := fitting.get((key.cloud, key.type))) is not None
        and key.plan in query.plans
        and (not query.clouds or key.cloud in query.clouds)
        and (not query.regions or key.region in query.regions)
    ]
    return sorted(matches, key=lambda each: (each.quote.usd_per_h, each.cloud, each.region, each.type, each.plan))
