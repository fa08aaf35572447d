"""What was read of one price list: the same for every cloud, so that it can be judged before it is believed."""

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
    """Prices of one source. ``whole`` are the cloud, region and plan of which it claims to tell every price.

    ``unchanged``: of these the edition read before is still the current one, so what is known of them is confirmed.
    ``left_out`` counts, by reason, what the source told that is no usable price.
    """

    source: str
    at: float
    quotes: dict[Key, Quote] = field(default_factory=dict)
    sizes: dict[tuple[str, str], TypeSize] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    whole: set[tuple[str, str, PricePlan]] = field(default_factory=set)
    unchanged: set[tuple[str, str, PricePlan]] = field(default_factory=set)
    spot_prices: list[SpotPrice] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def take(self, key: Key, usd_per_h: float) -> None:
        """Note one price; of several for the same the highest counts, so that no budget rests on a mistake."""
        if not is_price(usd_per_h):
            self.left_out["no price (zero, negative or absurd)"] += 1
            return
        known = self.quotes.get(key)
        if known is not None and known.usd_per_h != usd_per_h:
            self.left_out["told twice with different prices; the higher one was taken"] += 1
        if known is None or usd_per_h > known.usd_per_h:
            self.quotes[key] = Quote(usd_per_h, self.at, self.source)

    def notes(self) -> list[str]:
        """Return what was left out, in words."""
        return [f"{self.source}: {count} entries: {why}" for why, count in sorted(self.left_out.items())]


def join(target: PriceReading, other: PriceReading) -> None:
    """Add what ``other`` read to ``target``."""
    target.quotes.update(other.quotes)
    target.sizes.update(other.sizes)
    target.versions.update(other.versions)
    target.whole |= other.whole
    target.unchanged |= other.unchanged
    target.spot_prices += other.spot_prices
    target.left_out.update(other.left_out)


def text_of(document: Mapping[str, object], key: str) -> str:
    """Return a text field of a JSON object, or "" where it is absent or something else."""
    value = document.get(key)
    return value if isinstance(value, str) else ""
