"""EC2 spot prices: DescribeSpotPriceHistory by zone, and one price per region derived from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from hcloud.catalog.aws_client import aws_client, aws_errors
from hcloud.catalog.prices import Key, PricePlan, is_price
from hcloud.catalog.reading import PriceReading, SpotPrice
from hcloud.core.clock import Clock
from hcloud.core.paging import checked

SOURCE: Final = "EC2 spot price history"
LOOK_BACK_S: Final = 24 * 3600.0
"""Start of the history; AWS includes the current price of every pool even if it is older."""


class SpotSource:
    """The spot prices of some regions, by zone."""

    def __init__(self, regions: Iterable[str], endpoint: str | None, profile: str | None, clock: Clock) -> None:
        self.name = SOURCE
        self._regions, self._endpoint, self._profile, self._clock = tuple(regions), endpoint, profile, clock

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """Return the current spot prices and those of the last day, by zone.

        Raises:
            ProviderUnavailable: a region could not be read completely.
        """
        reading = PriceReading(source=SOURCE, at=self._clock.now())
        for region in self._regions:
            client = aws_client("ec2", region, self._endpoint, self._profile)
            since = datetime.fromtimestamp(reading.at - LOOK_BACK_S, tz=UTC)
            with aws_errors(f"{SOURCE} of {region}"):
                pages = client.get_paginator("describe_spot_price_history").paginate(
                    StartTime=since, ProductDescriptions=["Linux/UNIX"]
                )
                for page in checked(pages, f"{SOURCE} of {region}"):
                    read_history(page["SpotPriceHistory"], region, reading)
        region_prices(reading)
        return reading


def read_history(entries: Iterable[Mapping[str, Any]], region: str, reading: PriceReading) -> None:
    """Add the entries of one page; entries without a valid price are counted and left out."""
    for entry in entries:
        try:
            usd = float(entry["SpotPrice"])
        except ValueError:
            usd = 0.0
        if not is_price(usd):
            reading.left_out["no valid price (zero, negative or too high)"] += 1
            continue
        at = min(entry["Timestamp"].timestamp(), reading.at)
        price = SpotPrice(
            cloud="ec2", region=region, zone=entry["AvailabilityZone"], type=entry["InstanceType"], usd_per_h=usd, at=at
        )
        reading.spot_prices.append(price)


def region_prices(reading: PriceReading) -> None:
    """Add one spot price per region and type: the current price of the most expensive zone, as an upper bound."""
    latest: dict[tuple[str, str, str], SpotPrice] = {}
    for price in reading.spot_prices:
        pool = (price.region, price.zone, price.type)
        if pool not in latest or price.at >= latest[pool].at:
            latest[pool] = price
    highest: dict[Key, float] = {}
    for price in latest.values():
        key = Key("ec2", price.region, price.type, PricePlan.SPOT)
        highest[key] = max(price.usd_per_h, highest.get(key, 0.0))
    for key, usd in highest.items():
        reading.add(key, usd)
        reading.whole.add((key.cloud, key.region, key.plan))
