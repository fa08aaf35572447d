"""What a reading changes, and what of it is not believed: the sanity limits. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from hcloud.catalog.prices import Key, PriceCatalogue, PricePlan, Quote
from hcloud.catalog.reading import PriceReading

LOST_SHARE_MAX: Final = 0.5
"""A list that no longer tells so large a part of the prices known of a place is taken for a broken list."""
KNOWN_MIN: Final = 10
"""Of fewer known prices, a lost part says nothing."""
Verdict = Literal["new", "changed", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """By which factor a price may move, up or down, before it is held back."""

    price_factor: float = 3.0
    spot_factor: float = 10.0

    def of(self, plan: PricePlan) -> float:
        """Return the factor for one plan."""
        return self.spot_factor if plan is PricePlan.SPOT else self.price_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One price that is new, has changed, or would have changed so much that it was held back."""

    key: Key
    verdict: Verdict
    before_usd_per_h: float | None
    after_usd_per_h: float

    @property
    def factor(self) -> float | None:
        """How many times the old price the new one is; None where there was none."""
        return self.after_usd_per_h / self.before_usd_per_h if self.before_usd_per_h else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What becomes of a reading. ``taken`` are the quotes to be kept, confirmed ones included, by key.

    ``silent`` counts known prices of places told whole that the list no longer tells; they stay, and grow old.
    ``refused`` says in words which places were not believed at all.
    """

    taken: Mapping[Key, Quote]
    changes: tuple[Change, ...]
    confirmed: int
    silent: int
    refused: tuple[str, ...]

    def counts(self) -> Counter[str]:
        """Return how many prices are new, changed and held."""
        return Counter(change.verdict for change in self.changes)


def merge(known: PriceCatalogue, reading: PriceReading, limits: Limits, *, accept: bool = False) -> Merge:
    """Judge a reading by what is known. With ``accept`` nothing is held back or refused."""
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
    factor, limit = after.usd_per_h / before.usd_per_h, limits.of(key.plan)
    held = not accept and not 1.0 / limit <= factor <= limit
    verdict: Verdict = "held" if held else "changed"
    return Change(key=key, verdict=verdict, before_usd_per_h=before.usd_per_h, after_usd_per_h=after.usd_per_h)


def _confirmed(known: PriceCatalogue, reading: PriceReading) -> dict[Key, Quote]:
    """Return the prices of an edition that is still the current one, as of now."""
    return {
        key: replace(quote, at=reading.at)
        for key, quote in known.quotes.items()
        if _place(key) in reading.unchanged and quote.source == reading.source
    }


def _broken(known: PriceCatalogue, reading: PriceReading) -> dict[tuple[str, str, PricePlan], str]:
    """Return the places of which the list lost most of what it told itself before, with a sentence about each."""
    before: dict[tuple[str, str, PricePlan], set[Key]] = defaultdict(set)
    for key, quote in known.quotes.items():
        if _place(key) in reading.whole and quote.source == reading.source:
            before[_place(key)].add(key)
    found = {}
    for place, keys in sorted(before.items()):
        lost = sum(key not in reading.quotes for key in keys)
        if len(keys) >= KNOWN_MIN and lost > len(keys) * LOST_SHARE_MAX:
            told = f"tells {len(keys) - lost} of the {len(keys)} {place[2]} prices it told before"
            found[place] = f"{reading.source}: {place[0]} {place[1]} {told}; none of them was taken"
    return found


def compare(before: PriceCatalogue, after: PriceCatalogue) -> tuple[tuple[Change, ...], tuple[Key, ...]]:
    """Return how ``after`` differs from ``before``: new and changed prices, and the keys that are gone."""
    limits = Limits(price_factor=float("inf"), spot_factor=float("inf"))
    found = (
        _change(key, before.quotes.get(key), quote, limits, accept=True) for key, quote in sorted(after.quotes.items())
    )
    gone = tuple(sorted(key for key in before.quotes if key not in after.quotes))
    return tuple(change for change in found if change is not None), gone
