"""The history of spot prices by zone: one line of CSV per change."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hcloud.catalog.prices import is_price
from hcloud.catalog.reading import SpotPrice
from hcloud.core.errors import ConfigError

COLUMNS: Final = ("at", "cloud", "region", "zone", "type", "usd_per_h")


def read_history(path: Path) -> Iterator[SpotPrice]:
    """Yield the recorded prices, oldest first; none if the file does not exist.

    Raises:
        ConfigError: the file has another format or cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = csv.reader(stream)
            if tuple(next(rows, COLUMNS)) != COLUMNS:
                raise ConfigError(
                    f"is not a spot price history; its first line must be {','.join(COLUMNS)}", where=f"{path}:1"
                )
            for number, row in enumerate(rows, 2):
                yield _price(row, f"{path}:{number}")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error


def _price(row: list[str], where: str) -> SpotPrice:
    try:
        at, cloud, region, zone, kind, usd = row
        price = SpotPrice(cloud=cloud, region=region, zone=zone, type=kind, usd_per_h=float(usd), at=float(at))
    except ValueError:
        raise ConfigError(f"is not a line of {','.join(COLUMNS)}", where=where) from None
    if not is_price(price.usd_per_h):
        raise ConfigError(f"contains {usd}, which is not a valid price", where=where)
    return price


def lines(prices: Iterable[SpotPrice]) -> Iterator[str]:
    """Yield the lines of a history file, header first."""
    yield ",".join(COLUMNS) + "\n"
    for each in prices:
        yield f"{each.at:.0f},{each.cloud},{each.region},{each.zone},{each.type},{each.usd_per_h:.10g}\n"


def merged_history(known: Iterable[SpotPrice], new: Iterable[SpotPrice], since: float) -> list[SpotPrice]:
    """Return both in order of time, with each pool's changes only, and without prices that ended before ``since``."""
    pools: dict[tuple[str, str, str, str], dict[int, SpotPrice]] = {}
    for each in (*known, *new):
        pool = (each.cloud, each.region, each.zone, each.type)
        pools.setdefault(pool, {})[round(each.at)] = each
    kept = [price for prices in pools.values() for price in _changes(sorted(prices.items()), since)]
    return sorted(kept, key=lambda price: (price.at, price.cloud, price.region, price.zone, price.type))


def _changes(prices: list[tuple[int, SpotPrice]], since: float) -> Iterator[SpotPrice]:
    last: SpotPrice | None = None
    for index, (_, price) in enumerate(prices):
        ended_before = index + 1 < len(prices) and prices[index + 1][1].at < since
        if ended_before or (last is not None and last.usd_per_h == price.usd_per_h):
            continue
        last = price
        yield price
