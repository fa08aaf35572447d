"""Prices in USD per hour: on demand from settings or the price file, spot from EC2's price history.

A type without a plausible price is not offered: a missing price must never count as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hcloud.core.errors import ProviderUnavailable, error_text
from hcloud.core.paging import checked
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors
from providers.ec2.settings import Ec2Settings

SPOT_SHARE_MIN, SPOT_SHARE_MAX = 0.02, 1.5
"""A spot price outside these shares of the on-demand price is a data error."""
USD_PER_H_MAX = 10_000.0
TYPES_PER_CALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price, and how old it is."""

    usd_per_h: float
    priced_at: float
    """When the price was last known to hold (Unix seconds)."""


class PriceList:
    """Prices of one region: on demand, and spot where there is no history. Settings override the file."""

    def __init__(self, provider: str, settings: Ec2Settings, started_at: float) -> None:
        self._provider, self._settings, self._started_at = provider, settings, started_at
        self._stated = self._by_hand()
        self._file_read: tuple[tuple[int, int], dict[str, dict[str, Price]]] | None = None

    def on_demand(self) -> dict[str, Price]:
        """Return on-demand prices by type. Raises ProviderUnavailable: the price file cannot be read."""
        return self._prices("on_demand")

    def spot(self) -> dict[str, Price]:
        """Return fallback spot prices by type. Raises ProviderUnavailable: the price file cannot be read."""
        return self._prices("spot")

    def _prices(self, market: str) -> dict[str, Price]:
        return self._from_file().get(market, {})

    def _by_hand(self) -> dict[str, dict[str, Price]]:
        found: dict[str, dict[str, Price]] = {"on_demand": {}, "spot": {}}
        for name, each in self._settings.prices.items():
            for market, usd in (("on_demand", each.on_demand), ("spot", each.spot)):
                if usd is not None:
                    found[market][name] = Price(usd_per_h=usd, priced_at=self._started_at)
        return found

    def _from_file(self) -> dict[str, dict[str, Price]]:
        path = self._settings.prices_file
        if path is None:
            return self._stated
        try:
            stat = path.stat()
            key = (stat.st_mtime_ns, stat.st_size)
            if self._file_read is None or self._file_read[0] != key:
                regions = json.loads(path.read_text())
                found = _believable(regions[self._settings.region], stat.st_mtime)
                # Settings override the file.
                merged = {market: {**prices, **self._stated[market]} for market, prices in found.items()}
                self._file_read = (key, merged)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            detail = error_text(error, with_type=True)
            raise ProviderUnavailable(
                f"{self._provider}: no prices of {self._settings.region} in {path} ({detail}); "
                "`hcloud catalog refresh` writes them"
            ) from error
        return self._file_read[1]


def _believable(types: Mapping[str, Mapping[str, Any]], priced_at: float) -> dict[str, dict[str, Price]]:
    found: dict[str, dict[str, Price]] = {"on_demand": {}, "spot": {}}
    for name, markets in types.items():
        for market, prices in found.items():
            usd = markets.get(market)
            if isinstance(usd, int | float) and 0 < usd <= USD_PER_H_MAX:
                # Files of `hcloud catalog refresh` hold the age of each price; other files use their own.
                prices[name] = Price(usd_per_h=float(usd), priced_at=float(markets.get("at") or priced_at))
    return found


def read_spot_prices(
    clients: Clients, types: list[str], zones: list[str], on_demand: Mapping[str, Price], now: float
) -> dict[tuple[str, str], Price]:
    """Return current spot prices by zone and type, without implausible ones.

    Raises ProviderUnavailable, Throttled.
    """
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    with translating_errors(Call.READ, "reading spot prices"):
        paginator = clients.reading().get_paginator("describe_spot_price_history")
        for first in range(0, len(types), TYPES_PER_CALL):
            # With equal start and end, EC2 returns the price in force at that moment.
            moment = datetime.fromtimestamp(now, UTC)
            pages = paginator.paginate(
                InstanceTypes=types[first : first + TYPES_PER_CALL],
                ProductDescriptions=["Linux/UNIX"],
                Filters=[{"Name": "availability-zone", "Values": zones}],
                StartTime=moment,
                EndTime=moment,
            )
            for each in (row for page in checked(pages, "the list of spot prices") for row in page["SpotPriceHistory"]):
                key = (str(each["AvailabilityZone"]), str(each["InstanceType"]))
                if key not in newest or each["Timestamp"] > newest[key][0]:
                    newest[key] = (each["Timestamp"], _number(each["SpotPrice"]))
    return {
        key: Price(usd_per_h=usd, priced_at=now)
        for key, (_, usd) in newest.items()
        if sane_spot(usd, on_demand.get(key[1]))
    }


def sane_spot(usd_per_h: float, on_demand: Price | None) -> bool:
    """Return whether a spot price is plausible, given the on-demand price of the type."""
    if not (math.isfinite(usd_per_h) and 0 < usd_per_h <= USD_PER_H_MAX):
        return False
    if on_demand is None:
        return False
    return SPOT_SHARE_MIN <= usd_per_h / on_demand.usd_per_h <= SPOT_SHARE_MAX


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
