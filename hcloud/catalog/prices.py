"""The catalogue's vocabulary: what a size, a price and a catalogue are. Pure values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

CLOUDS: Final = ("ec2", "gce")
"""The clouds the catalogue knows, by the names of their providers' types."""
USD_PER_H_MAX: Final = 1000.0
"""No machine is sold for more; a larger number is a mistake in a price list, or an upfront payment."""


class PricePlan(StrEnum):
    """How an hour is paid for. The commitments are prices per hour without upfront payment, for one or three years."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    COMMIT_1Y = "commit_1y"
    COMMIT_3Y = "commit_3y"


class Key(NamedTuple):
    """What a price is the price of."""

    cloud: str
    region: str
    type: str
    plan: PricePlan


@dataclass(frozen=True, slots=True)
class Quote:
    """A price in USD per hour, as ``source`` told it at ``at`` (Unix seconds)."""

    usd_per_h: float
    at: float
    source: str

    def __post_init__(self) -> None:
        if not is_price(self.usd_per_h):
            raise ValueError(f"a price must be more than 0 and at most {USD_PER_H_MAX:g} USD/h, not {self.usd_per_h}")


def is_price(usd_per_h: float) -> bool:
    """Tell whether a number can be a price per hour: zero in a price list means "not known", never "free"."""
    return math.isfinite(usd_per_h) and 0.0 < usd_per_h <= USD_PER_H_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSize:
    """How large a type is. ``burstable``: its vCPUs are promised only for part of the time.

    ``arch`` is ``x86_64`` or ``arm64``; ``gpus`` how many accelerators it has.
    """

    vcpus: float
    memory_mib: int
    burstable: bool = False
    arch: str = "x86_64"
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCatalogue:
    """Sizes by cloud and type, prices by key. ``versions``: which edition of a price list was last read, by list."""

    sizes: Mapping[tuple[str, str], TypeSize] = field(default_factory=dict)
    quotes: Mapping[Key, Quote] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def price(self, cloud: str, region: str, kind: str, plan: PricePlan = PricePlan.ON_DEMAND) -> Quote | None:
        """Return a price, or None where it is not known."""
        return self.quotes.get(Key(cloud, region, kind, plan))

    def places(self) -> Iterator[tuple[str, str, str]]:
        """Yield each cloud, region and type that has a price, in order."""
        yield from sorted({(key.cloud, key.region, key.type) for key in self.quotes})

    def oldest_at(self) -> float | None:
        """Return the date of the oldest price, or None where there is none."""
        return min((quote.at for quote in self.quotes.values()), default=None)


def overlay(below: PriceCatalogue, above: PriceCatalogue) -> PriceCatalogue:
    """Return both catalogues as one; of two prices for the same the newer counts, of equal age that of ``above``."""
    quotes = dict(below.quotes)
    for key, quote in above.quotes.items():
        known = quotes.get(key)
        if known is None or quote.at >= known.at:
            quotes[key] = quote
    return PriceCatalogue(
        sizes={**below.sizes, **above.sizes}, quotes=quotes, versions={**below.versions, **above.versions}
    )
