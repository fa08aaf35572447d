"""The catalog on disk: prices read from the clouds, layered over the shipped snapshot. Files are replaced atomically.

In ``<state_dir>/catalog``: ``catalog.json`` (prices read), ``previous.json`` (the same before the last refresh),
``spot.csv`` (history of spot prices), and ``ec2.json`` and ``gce.json`` (prices for the providers).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hcloud.catalog.document import FORM, catalogue_of, document_of
from hcloud.catalog.prices import CLOUDS, PriceCatalogue, PricePlan, overlay
from hcloud.catalog.reading import SpotPrice
from hcloud.catalog.snapshot import shipped_catalogue, snapshot_digest
from hcloud.catalog.spot_history import lines, merged_history, read_history
from hcloud.core.errors import ConfigError, Refused


class CatalogFiles:
    """The catalog directory of one deployment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def stored_path(self) -> Path:
        """Prices read from the clouds."""
        return self.directory / "catalog.json"

    @property
    def previous_path(self) -> Path:
        """The same before the last refresh."""
        return self.directory / "previous.json"

    @property
    def history_path(self) -> Path:
        """History of spot prices."""
        return self.directory / "spot.csv"

    @property
    def _snapshot_path(self) -> Path:
        return self.directory / "snapshot.sha256"  # of the snapshot that the providers' files were made with

    def stored(self) -> PriceCatalogue:
        """Return the prices read from the clouds; empty if none were read yet.

        Raises:
            ConfigError: the file cannot be read or is damaged.
        """
        return read_catalogue(self.stored_path) if self.stored_path.exists() else PriceCatalogue()

    def current(self) -> PriceCatalogue:
        """Return the current catalog: the snapshot with the prices read from the clouds.

        Raises:
            ConfigError: as ``stored``.
        """
        return overlay(shipped_catalogue(), self.stored())

    def refreshed_at(self) -> float:
        """Return when prices were last read from the clouds, in Unix seconds; 0: never."""
        try:
            return self.stored_path.stat().st_mtime
        except OSError:  # missing or not readable: a refresh is due
            return 0.0

    def previous(self) -> PriceCatalogue:
        """Return the catalog before the last refresh.

        Raises:
            ConfigError: as ``stored``.
        """
        stored = read_catalogue(self.previous_path) if self.previous_path.exists() else PriceCatalogue()
        return overlay(shipped_catalogue(), stored)

    def history(self) -> Iterator[SpotPrice]:
        """Yield recorded spot prices, oldest first.

        Raises:
            ConfigError: the file cannot be read or is damaged.
        """
        return read_history(self.history_path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other refreshes.

        Raises:
            Refused: another refresh is running.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"another refresh of the prices in {self.directory} is running") from None
            yield

    def store(self, stored: PriceCatalogue) -> None:
        """Replace the prices read from the clouds and write the providers' files. Call while locked."""
        before = self.stored()
        _write(self.previous_path, document_of(before))
        _write(self.stored_path, document_of(stored))
        self.write_price_files()

    def write_price_files(self) -> None:
        """Write the current prices of each cloud for its provider."""
        current = self.current()
        for cloud in CLOUDS:
            # Providers use the date of the file as that of its prices.
            dated_at = _newest_at(current, cloud)
            _write(price_file(self.directory, cloud), provider_prices(current, cloud), dated_at=dated_at)
        _write_text(self._snapshot_path, iter((snapshot_digest(),)))

    def price_files_are_current(self) -> bool:
        """Return whether the providers' files contain the newest known prices, and those of this snapshot."""
        current = self.current()
        try:
            if self._snapshot_path.read_text(encoding="utf-8") != snapshot_digest():
                return False
            # To the second: file systems store dates less precisely.
            return all(
                price_file(self.directory, cloud).stat().st_mtime > _newest_at(current, cloud) - 1 for cloud in CLOUDS
            )
        except FileNotFoundError:
            return False

    def record_spot(self, news: Iterable[SpotPrice], since: float) -> None:
        """Add spot prices to the history and drop those that ended before ``since``. Call while locked."""
        _write_text(self.history_path, lines(merged_history(self.history(), news, since)))


def _newest_at(catalogue: PriceCatalogue, cloud: str) -> float:
    return max((quote.at for key, quote in catalogue.quotes.items() if key.cloud == cloud), default=0.0)


def price_file(directory: Path, cloud: str) -> Path:
    """Return the path of a cloud's prices for its provider (its setting ``prices_file``)."""
    return directory / f"{cloud}.json"


def provider_prices(catalogue: PriceCatalogue, cloud: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{region: {type: {"on_demand": USD/h, "spot": USD/h, ..., "at": Unix seconds}}}``, by plan.

    Unknown prices are absent. ``at`` is the date of the older of the on-demand and spot prices.
    """
    prices: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, quote in sorted(catalogue.quotes.items()):
        if key.cloud == cloud:
            cell = prices[key.region][key.type]
            cell[key.plan.value] = quote.usd_per_h
            if key.plan in (PricePlan.ON_DEMAND, PricePlan.SPOT):
                cell["at"] = min(quote.at, cell.get("at", quote.at))
    return prices


def read_catalogue(path: Path) -> PriceCatalogue:
    """Return a catalog written by :meth:`CatalogFiles.store`.

    Raises:
        ConfigError: it cannot be read, or has another format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["form"] != FORM:
            raise ConfigError(f"has the format {document['form']!r}; this version reads {FORM}", where=str(path))
        return catalogue_of(document)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        message = f"is not a price catalog ({type(error).__name__}); delete it and run `hcloud catalog refresh`"
        raise ConfigError(message, where=str(path)) from error


def _write(path: Path, document: object, dated_at: float | None = None) -> None:
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    _write_text(path, iter((text, "\n")), dated_at)


def _write_text(path: Path, pieces: Iterator[str], dated_at: float | None = None) -> None:
    """Replace a file atomically, also for readers and in case of power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with ExitStack() as undo:
        undo.callback(Path(name).unlink, missing_ok=True)  # also after a failure
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)  # prices are not secret
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        if dated_at is not None:
            os.utime(name, (dated_at, dated_at))
        os.replace(name, path)
        undo.pop_all()
