"""One refresh: read every price list, judge it by what is known, keep what is believed, and say what happened."""

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
    """What a refresh did. ``troubles`` says, by source, why it could not be read; then nothing of it was changed."""

    at: float
    written: bool = False
    merges: dict[str, Merge] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def held(self) -> int:
        """How many prices moved too far to be believed."""
        return sum(merged.counts()["held"] for merged in self.merges.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """Which parts of a list were not believed at all, in words."""
        return tuple(sentence for merged in self.merges.values() for sentence in merged.refused)

    def sentences(self) -> list[str]:
        """Return what happened, one line per source, then what was left out."""
        lines = []
        for name, merged in self.merges.items():
            counts = merged.counts()
            lines.append(
                f"{name}: {counts['new']} new, {counts['changed']} changed, {merged.confirmed} confirmed, "
                f"{counts['held']} held back, {merged.silent} no longer told"
            )
        lines += [f"{name}: not read, its prices stay as they were: {why}" for name, why in self.troubles.items()]
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
    """Read ``sources`` and keep what is believed; a source that fails leaves its prices as they were.

    With ``accept``, nothing is held back; with ``dry_run``, nothing is written.

    Raises:
        Refused: another refresh is under way.
        ConfigError: the catalogue on disk is broken.
    """
    done = Refreshed(at=clock.now())
    with files.locked():
        stored = files.stored()
        readings: list[PriceReading] = []
        for source in sources:
            try:
                reading = source.read(stored.versions)
            except HCloudError as trouble:
                done.troubles[source.name] = str(trouble)
                continue
            merged = merge(overlay(shipped_catalogue(), stored), reading, limits, accept=accept)
            done.merges[source.name] = merged
            done.notes += reading.notes()
            stored = _with_believed(stored, reading, merged)
            readings.append(reading)
        if readings and not dry_run:
            files.store(stored)
            spot = [price for reading in readings for price in reading.spot_prices]
            files.record_spot(spot, done.at - history_days * DAY_S)
            done.written = True
    return done


def _with_believed(stored: PriceCatalogue, reading: PriceReading, merged: Merge) -> PriceCatalogue:
    """Add what of a reading is kept. An edition of which something was held or refused is read again next time.

    What was just read wins whatever its date: a clock that was wrong once must not keep old prices in force.
    """
    doubted = bool(merged.refused) or merged.counts()["held"] > 0
    return PriceCatalogue(
        sizes={**stored.sizes, **reading.sizes},
        quotes={**stored.quotes, **merged.taken},
        versions=stored.versions if doubted else {**stored.versions, **reading.versions},
    )
