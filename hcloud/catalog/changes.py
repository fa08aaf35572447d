"""Comparison of new prices with known ones, and the plausibility limits by which some are held back. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from hcloud.catalog.prices import Key, PriceCatalogue, PricePlan, Quote
from hcloud.catalog.reading import PriceReading

LOST_SHARE_MAX: Final = 0.5
"""A price list that lost more than this fraction of a place's known prices is refused."""
KNOWN_MIN: Final = 10
"""Fewer known prices of a place are not enough for that judgement."""
Verdict = Literal["new", "changed", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Factors by which a price may change, up or down, before it is held back."""

    price_factor: float = 3.0
    spot_factor: float = 10.0

    def factor_for(self, plan: PricePlan) -> float:
        """Return the limit for one plan."""
        return self.spot_factor if plan is PricePlan.SPOT else self.price_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A price that is new, changed, or held back because it changed too much."""

    key: Key
    verdict: Verdict
    before_usd_per_h: float | None
    after_usd_per_h: float

    @property
    def factor(self) -> float | None:
        """The new price divided by the old one, or None without an old one."""
        return self.after_usd_per_h / self.before_usd_per_h if self.before_usd_per_h else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The accepted part of a reading."""

    taken: Mapping[Key, Quote]
    """Accepted quotes by key, including confirmed ones."""
    changes: tuple[Change, ...]
    confirmed: int
    """Number of unchanged prices."""
    silent: int
    """Number of known prices that a complete list no longer contains; they are kept with their old date."""
    refused: tuple[str, ...]
    """Sentences about the places that were not accepted at all."""

    def counts(self) -> Counter[str]:
        """Return the numbers of new, changed and held prices."""
        return Counter(change.verdict for change in self.changes)


def merge(known: PriceCatalogue, reading: PriceReading, limits: Limits, *, accept: bool = False) -> Merge:
    """Compare a reading with the known prices. With ``accept``, nothing is held back or refused."""
    refused = {} if accept else _broken(known, reading)
    taken: dict[Key, Quote] = {}
    changes: list[Change] = []
    for key, quote in sorted(reading.quotes.items()):
        if _place(key) in refused:
            continue
        before = known.quotes.get(key)
        change = _change(key, before, quote, limits, accept)
        if change is not None:
            changes.append(change)
        if change is None or change.verdict != "held":
            taken[key] = quote
    confirmed = len(taken) - sum(change.verdict != "held" for change in changes)
    unchanged = _confirmed(known, reading)
    return Merge(
        taken={**unchanged, **taken},
        changes=tuple(changes),
        confirmed=confirmed + len(unchanged),
        silent=sum(_place(key) in reading.whole and key not in reading.quotes for key in known.quotes),
        refused=tuple(refused.values()),
    )


def _place(key: Key) -> tuple[str, str, PricePlan]:
    return key.cloud, key.region, key.plan


def _change(key: Key, before: Quote | None, after: Quote, limits: Limits, accept: bool) -> Change | None:
    if before is None:
        return Change(key=key, verdict="new", before_usd_per_h=None, after_usd_per_h=after.usd_per_h)
    if abs(after.usd_per_h - before.usd_per_h) <= 1e-9:
        return None
    factor, limit = after.usd_per_h / before.usd_per_h, limits.factor_for(key.plan)
    held = not accept and not 1.0 / limit <= factor <= limit
    verdict: Verdict = "held" if held else "changed"
    return Change(key=key, verdict=verdict, before_usd_per_h=before.usd_per_h, after_usd_per_h=after.usd_per_h)


def _confirmed(known: PriceCatalogue, reading: PriceReading) -> dict[Key, Quote]:
    """Return the known prices of editions that are still current, with the date of the reading."""
    return {
        key: replace(quote, at=reading.at)
        for key, quote in known.quotes.items()
        if _place(key) in reading.unchanged and quote.source == reading.source
    }


def _broken(known: PriceCatalogue, reading: PriceReading) -> dict[tuple[str, str, PricePlan], str]:
    """Return the places of which the list lost most of its own earlier prices, each with a sentence."""
    before: dict[tuple[str, str, PricePlan], set[Key]] = defaultdict(set)
    for key, quote in known.quotes.items():
        if _place(key) in reading.whole and quote.source == reading.source:
            before[_place(key)].add(key)
    broken = {}
    for place, keys in sorted(before.items()):
        lost = sum(key not in reading.quotes for key in keys)
        if len(keys) >= KNOWN_MIN and lost > len(keys) * LOST_SHARE_MAX:
            kept = f"has only {len(keys) - lost} of its earlier {len(keys)} {place[2]} prices"
            broken[place] = f"{reading.source}: {place[0]} {place[1]} {kept}; none of them was accepted"
    return broken


def compare(before: PriceCatalogue, after: PriceCatalogue) -> tuple[tuple[Change, ...], tuple[Key, ...]]:
    """Return the new and changed prices of ``after``, and the keys that it no longer has."""
    limits = Limits(price_factor=float("inf"), spot_factor=float("inf"))
    changes = (
        _change(key, before.quotes.get(key), quote, limits, accept=True) for key, quote in sorted(after.quotes.items())
    )
    removed = tuple(sorted(key for key in before.quotes if key not in after.quotes))
    return tuple(change for change in changes if change is not None), removed
