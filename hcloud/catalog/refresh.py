"""A refresh: every price list is read and compared with the known prices; plausible prices are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hcloud.catalog.changes import Limits, Merge, merge
from hcloud.catalog.files import CatalogFiles
from hcloud.catalog.prices import PriceCatalogue, overlay
from hcloud.catalog.reading import PriceReading
from hcloud.catalog.snapshot import shipped_catalogue
from hcloud.catalog.sources import PriceSource
from hcloud.core.clock import Clock
from hcloud.core.errors import HCloudError

DAY_S = 86_400.0


@dataclass(slots=True, kw_only=True)
class Refreshed:
    """The result of a refresh."""

    at: float
    written: bool = False
    merges: dict[str, Merge] = field(default_factory=dict)
    """By source, for those that were read."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors by source, for those that could not be read; their prices are unchanged."""
    notes: list[str] = field(default_factory=list)
    """Sentences about entries that were left out."""

    @property
    def held(self) -> int:
        """Number of prices held back because they changed too much."""
        return sum(merged.counts()["held"] for merged in self.merges.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """Sentences about the parts of lists that were not accepted at all."""
        return tuple(sentence for merged in self.merges.values() for sentence in merged.refused)

    def sentences(self) -> list[str]:
        """Return the result in sentences: one per source, then those about left-out entries."""
        lines = []
        for name, merged in self.merges.items():
            counts = merged.counts()
            lines.append(
                f"{name}: {counts['new']} new, {counts['changed']} changed, {merged.confirmed} confirmed, "
                f"{counts['held']} held back, {merged.silent} no longer listed"
            )
        lines += [f"{name}: not read, its prices are unchanged: {why}" for name, why in self.errors.items()]
        return [*lines, *self.refused, *self.notes]


def refresh(
    files: CatalogFiles,
    sources: Sequence[PriceSource],
    clock: Clock,
    *,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    history_days: float = 90.0,
    accept: bool = False,
    dry_run: bool = False,
) -> Refreshed:
    """Read ``sources`` and store plausible prices; the prices of a source that fails are unchanged.

    With ``accept``, nothing is held back; with ``dry_run``, nothing is written.

    Raises:
        Refused: another refresh is running.
        ConfigError: the catalog on disk is damaged.
    """
    done = Refreshed(at=clock.now())
    with files.locked():
        stored = files.stored()
        readings: list[PriceReading] = []
        for source in sources:
            try:
                reading = source.read(stored.versions)
            except HCloudError as error:
                done.errors[source.name] = str(error)
                continue
            merged = merge(overlay(shipped_catalogue(), stored), reading, limits, accept=accept)
            done.merges[source.name] = merged
            done.notes += reading.notes()
            stored = _with_accepted(stored, reading, merged)
            readings.append(reading)
        if readings and not dry_run:
            files.store(stored)
            spot = [price for reading in readings for price in reading.spot_prices]
            files.record_spot(spot, done.at - history_days * DAY_S)
            done.written = True
    return done


def _with_accepted(stored: PriceCatalogue, reading: PriceReading, merged: Merge) -> PriceCatalogue:
    """Return the stored prices with the accepted ones of a reading."""
    # An edition with held or refused prices is read again next time. New prices replace stored ones whatever their
    # dates: a clock that was wrong once must not keep old prices.
    doubtful = bool(merged.refused) or merged.counts()["held"] > 0
    return PriceCatalogue(
        sizes={**stored.sizes, **reading.sizes},
        quotes={**stored.quotes, **merged.taken},
        versions=stored.versions if doubtful else {**stored.versions, **reading.versions},
    )
