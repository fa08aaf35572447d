"""The content of one price list, in the same form for every cloud, before it is compared with known prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hcloud.catalog.prices import Key, PricePlan, Quote, TypeSize, is_price


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPrice:
    """A spot price in one zone from ``at`` (Unix seconds) on."""

    cloud: str
    region: str
    zone: str
    type: str
    usd_per_h: float
    at: float


@dataclass(slots=True, kw_only=True)
class PriceReading:
    """The prices read from one source."""

    source: str
    """Name of the price list."""
    at: float
    """When it was read (Unix seconds)."""
    quotes: dict[Key, Quote] = field(default_factory=dict)
    sizes: dict[tuple[str, str], TypeSize] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    whole: set[tuple[str, str, PricePlan]] = field(default_factory=set)
    """Cloud, region and plan of which the source lists every price."""
    unchanged: set[tuple[str, str, PricePlan]] = field(default_factory=set)
    """Of these, the edition that was read before is still current, so that known prices are confirmed."""
    spot_prices: list[SpotPrice] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of unusable entries by reason."""

    def add(self, key: Key, usd_per_h: float) -> None:
        """Add a price; of several for one key the highest counts, so that budgets are not exceeded by mistake."""
        if not is_price(usd_per_h):
            self.left_out["no valid price (zero, negative or too high)"] += 1
            return
        known = self.quotes.get(key)
        if known is not None and known.usd_per_h != usd_per_h:
            self.left_out["listed twice with different prices; the higher one was used"] += 1
        if known is None or usd_per_h > known.usd_per_h:
            self.quotes[key] = Quote(usd_per_h, self.at, self.source)

    def notes(self) -> list[str]:
        """Return one sentence per reason for which entries were left out."""
        return [f"{self.source}: {count} entries: {why}" for why, count in sorted(self.left_out.items())]


def join(target: PriceReading, other: PriceReading) -> None:
    """Add the content of ``other`` to ``target``."""
    target.quotes.update(other.quotes)
    target.sizes.update(other.sizes)
    target.versions.update(other.versions)
    target.whole |= other.whole
    target.unchanged |= other.unchanged
    target.spot_prices += other.spot_prices
    target.left_out.update(other.left_out)


def text_of(document: Mapping[str, object], key: str) -> str:
    """Return a text field of a JSON object, or an empty string if it is absent or not text."""
    value = document.get(key)
    return value if isinstance(value, str) else ""
