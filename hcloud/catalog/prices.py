"""The values of the catalog: sizes, prices and the catalog itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

CLOUDS: Final = ("ec2", "gce")
"""The clouds of the catalog, named as their provider types."""
USD_PER_H_MAX: Final = 1000.0
"""Upper limit of plausible prices; more is an error in a price list, or an upfront payment."""


class PricePlan(StrEnum):
    """How an hour is paid for. Commitments are hourly prices without upfront payment, for one or three years."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    COMMIT_1Y = "commit_1y"
    COMMIT_3Y = "commit_3y"


class Key(NamedTuple):
    """What a price applies to."""

    cloud: str
    region: str
    type: str
    plan: PricePlan


@dataclass(frozen=True, slots=True)
class Quote:
    """A price from a source at a time (Unix seconds)."""

    usd_per_h: float
    at: float
    source: str

    def __post_init__(self) -> None:
        if not is_price(self.usd_per_h):
            raise ValueError(f"a price must be more than 0 and at most {USD_PER_H_MAX:g} USD/h, not {self.usd_per_h}")


def is_price(usd_per_h: float) -> bool:
    """Return whether a number is a plausible price per hour; zero in a price list means unknown, never free."""
    return math.isfinite(usd_per_h) and 0.0 < usd_per_h <= USD_PER_H_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSize:
    """The size of an instance type."""

    vcpus: float
    memory_mib: int
    burstable: bool = False
    """Its vCPUs are guaranteed only for part of the time."""
    arch: str = "x86_64"
    """``x86_64`` or ``arm64``."""
    gpus: int = 0
    """Number of accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCatalogue:
    """Sizes and prices of instance types."""

    sizes: Mapping[tuple[str, str], TypeSize] = field(default_factory=dict)
    """By cloud and type."""
    quotes: Mapping[Key, Quote] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """The edition that was last read of each price list."""

    def price(self, cloud: str, region: str, kind: str, plan: PricePlan = PricePlan.ON_DEMAND) -> Quote | None:
        """Return a price, or None if it is unknown."""
        return self.quotes.get(Key(cloud, region, kind, plan))

    def places(self) -> Iterator[tuple[str, str, str]]:
        """Yield each cloud, region and type with a price, in order."""
        yield from sorted({(key.cloud, key.region, key.type) for key in self.quotes})

    def oldest_at(self) -> float | None:
        """Return the date of the oldest price, or None without prices."""
        return min((quote.at for quote in self.quotes.values()), default=None)


def overlay(below: PriceCatalogue, above: PriceCatalogue) -> PriceCatalogue:
    """Merge two catalogs: of two prices for one key the newer counts; of equal age, that of ``above``."""
    quotes = dict(below.quotes)
    for key, quote in above.quotes.items():
        known = quotes.get(key)
        if known is None or quote.at >= known.at:
            quotes[key] = quote
    return PriceCatalogue(
        sizes={**below.sizes, **above.sizes}, quotes=quotes, versions={**below.versions, **above.versions}
    )
