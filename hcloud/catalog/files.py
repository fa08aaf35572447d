"""The catalogue on disk: what was read of the clouds, over the shipped snapshot; written whole or not at all.

Below ``<state_dir>/catalog``: ``catalog.json`` (what was read), ``previous.json`` (the same before the last refresh),
``spot.csv`` (history of spot prices), and ``ec2.json``, ``gce.json``: prices as providers read them.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hcloud.catalog.prices import CLOUDS, Key, PriceCatalogue, PricePlan, Quote, TypeSize, overlay
from hcloud.catalog.reading import SpotPrice
from hcloud.catalog.snapshot import shipped_catalogue
from hcloud.catalog.spot_history import lines, read_history, with_news
from hcloud.core.errors import ConfigError, Refused

FORM: Final = "hcloud-catalogue-1"


class CatalogFiles:
    """The directory of one deployment's catalogue."""

    def __init__(self, directory: Path) -> None:
        """Nothing is read or written yet."""
        self.directory = directory

    @property
    def stored_path(self) -> Path:
        """Where what was read of the clouds is kept."""
        return self.directory / "catalog.json"

    @property
    def previous_path(self) -> Path:
        """Where the same is kept as it was before the last refresh."""
        return self.directory / "previous.json"

    @property
    def history_path(self) -> Path:
        """Where spot prices are recorded."""
        return self.directory / "spot.csv"

    def stored(self) -> PriceCatalogue:
        """Return what was read of the clouds; empty where nothing was read yet.

        Raises:
            ConfigError: the file cannot be read or is not whole.
        """
        return read_catalogue(self.stored_path) if self.stored_path.exists() else PriceCatalogue()

    def current(self) -> PriceCatalogue:
        """Return the catalogue in force: the snapshot, and over it what was read of the clouds.

        Raises:
            ConfigError: as ``stored``.
        """
        return overlay(shipped_catalogue(), self.stored())

    def refreshed_at(self) -> float:
        """Return when prices were last read of the clouds, in Unix seconds; 0 where they never were."""
        try:
            return self.stored_path.stat().st_mtime
        except OSError:  # not there, or not for us: then it is due
            return 0.0

    def previous(self) -> PriceCatalogue:
        """Return the catalogue as it was in force before the last refresh.

        Raises:
            ConfigError: as ``stored``.
        """
        stored = read_catalogue(self.previous_path) if self.previous_path.exists() else PriceCatalogue()
        return overlay(shipped_catalogue(), stored)

    def history(self) -> Iterator[SpotPrice]:
        """Yield recorded spot prices, oldest first.

        Raises:
            ConfigError: the file cannot be read or is broken.
        """
        return read_history(self.history_path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other refreshes out meanwhile.

        Raises:
            Refused: another refresh is under way.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"another refresh of the prices in {self.directory} is under way") from None
            yield

    def store(self, stored: PriceCatalogue) -> None:
        """Make ``stored`` what was read of the clouds, and write the files that providers read. Call while locked."""
        before = self.stored()
        _write(self.previous_path, _document(before))
        _write(self.stored_path, _document(stored))
        self.write_price_files()

    def write_price_files(self) -> None:
        """Write, for each cloud, the prices in force as providers read them."""
        current = self.current()
        for cloud in CLOUDS:
            # Providers take the file's own date for the date of its prices.
            dated_at = _newest_at(current, cloud)
            _write(price_file(self.directory, cloud), provider_prices(current, cloud), dated_at=dated_at)

    def price_files_are_current(self) -> bool:
        """Tell whether providers find files there that hold the newest prices known."""
        current = self.current()
        try:
            # To the second: file systems keep less of a date than we know.
            return all(
                price_file(self.directory, cloud).stat().st_mtime > _newest_at(current, cloud) - 1 for cloud in CLOUDS
            )
        except FileNotFoundError:
            return False

    def record_spot(self, news: Iterable[SpotPrice], since: float) -> None:
        """Add spot prices to the history, which keeps what was in force at ``since`` or later. Call while locked."""
        _write_text(self.history_path, lines(with_news(self.history(), news, since)))


def _newest_at(catalogue: PriceCatalogue, cloud: str) -> float:
    return max((quote.at for key, quote in catalogue.quotes.items() if key.cloud == cloud), default=0.0)


def price_file(directory: Path, cloud: str) -> Path:
    """Return where the prices of a cloud are, as its provider reads them (its setting ``prices_file``)."""
    return directory / f"{cloud}.json"


def provider_prices(catalogue: PriceCatalogue, cloud: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{region: {type: {"on_demand": USD/h, "spot": USD/h, ..., "at": Unix seconds}}}``, by plan.

    A price that is not known is absent. ``at`` is the age of the older of on demand and spot.
    """
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, quote in sorted(catalogue.quotes.items()):
        if key.cloud == cloud:
            cell = found[key.region][key.type]
            cell[key.plan.value] = quote.usd_per_h
            if key.plan in (PricePlan.ON_DEMAND, PricePlan.SPOT):
                cell["at"] = min(quote.at, cell.get("at", quote.at))
    return found


def read_catalogue(path: Path) -> PriceCatalogue:
    """Return a catalogue written by :meth:`CatalogFiles.store`.

    Raises:
        ConfigError: it cannot be read, or is not of that form.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["form"] != FORM:
            raise ConfigError(f"has the form {document['form']!r}; this version reads {FORM}", where=str(path))
        return _catalogue(document)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        message = (
            f"is no catalogue of prices ({type(error).__name__}); delete it, and `hcloud catalog refresh` makes one"
        )
        raise ConfigError(message, where=str(path)) from error


def _document(catalogue: PriceCatalogue) -> dict[str, Any]:
    """Return a catalogue as JSON: each price is ``[USD/h, number of its origin]``, an origin ``[source, at]``."""
    origins: dict[tuple[str, float], int] = {}
    prices: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for key, quote in sorted(catalogue.quotes.items()):
        origin = origins.setdefault((quote.source, quote.at), len(origins))
        place = prices.setdefault(key.cloud, {}).setdefault(key.region, {})
        place.setdefault(key.type, {})[key.plan.value] = [quote.usd_per_h, origin]
    sizes: dict[str, dict[str, Any]] = {}
    for (cloud, name), size in sorted(catalogue.sizes.items()):
        sizes.setdefault(cloud, {})[name] = asdict(size)
    return {
        "form": FORM,
        "versions": dict(sorted(catalogue.versions.items())),
        "origins": [list(origin) for origin in origins],
        "sizes": sizes,
        "prices": prices,
    }


def _catalogue(document: Mapping[str, Any]) -> PriceCatalogue:
    origins = [(str(source), float(at)) for source, at in document["origins"]]
    quotes = {
        Key(cloud, region, kind, PricePlan(plan)): Quote(float(usd), origins[origin][1], origins[origin][0])
        for cloud, regions in document["prices"].items()
        for region, kinds in regions.items()
        for kind, plans in kinds.items()
        for plan, (usd, origin) in plans.items()
    }
    sizes = {
        (cloud, name): TypeSize(**size) for cloud, kinds in document["sizes"].items() for name, size in kinds.items()
    }
    return PriceCatalogue(sizes=sizes, quotes=quotes, versions=dict(document["versions"]))


def _write(path: Path, document: object, dated_at: float | None = None) -> None:
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    _write_text(path, iter((text, "\n")), dated_at)


def _write_text(path: Path, pieces: Iterator[str], dated_at: float | None = None) -> None:
    """Replace a file whole: a reader, and a machine that loses power, sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with ExitStack() as undo:
        undo.callback(Path(name).unlink, missing_ok=True)  # whatever ends this early leaves no half file behind
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)  # prices are no secret
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        if dated_at is not None:
            os.utime(name, (dated_at, dated_at))
        os.replace(name, path)
        undo.pop_all()
