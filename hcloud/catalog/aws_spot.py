"""EC2's spot prices: what DescribeSpotPriceHistory tells of every zone, and the one price per region made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from hcloud.catalog.aws_client import aws_client, aws_errors
from hcloud.catalog.prices import Key, PricePlan, is_price
from hcloud.catalog.reading import PriceReading, SpotPrice
from hcloud.core.clock import Clock

SOURCE: Final = "EC2 spot price history"
LOOK_BACK_S: Final = 24 * 3600.0
"""Every pool's present price is told even when it is older."""


class SpotSource:
    """The spot prices of some regions, by zone."""

    def __init__(self, regions: Iterable[str], endpoint: str | None, profile: str | None, clock: Clock) -> None:
        """Prepare; nothing is sent yet."""
        self.name = SOURCE
        self._regions, self._endpoint, self._profile, self._clock = tuple(regions), endpoint, profile, clock

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """Return the spot prices of the last day and those in force, by zone.

        Raises:
            ProviderUnavailable: a region could not be read whole.
        """
        reading = PriceReading(source=SOURCE, at=self._clock.now())
        for region in self._regions:
            client = aws_client("ec2", region, self._endpoint, self._profile)
            since = datetime.fromtimestamp(reading.at - LOOK_BACK_S, tz=UTC)
            with aws_errors(f"{SOURCE} of {region}"):
                pages = client.get_paginator("describe_spot_price_history").paginate(
                    StartTime=since, ProductDescriptions=["Linux/UNIX"]
                )
                for page in pages:
                    read_history(page["SpotPriceHistory"], region, reading)
        region_prices(reading)
        return reading


def read_history(entries: Iterable[Mapping[str, Any]], region: str, reading: PriceReading) -> None:
    """Take the entries of one page; what is no price is counted and left out."""
    for entry in entries:
        try:
            usd = float(entry["SpotPrice"])
        except ValueError:
            usd = 0.0
        if not is_price(usd):
            reading.left_out["no price (zero, negative or absurd)"] += 1
            continue
        at = min(entry["Timestamp"].timestamp(), reading.at)
        price = SpotPrice(
            cloud="ec2", region=region, zone=entry["AvailabilityZone"], type=entry["InstanceType"], usd_per_h=usd, at=at
        )
        reading.spot_prices.append(price)


def region_prices(reading: PriceReading) -> None:
    """Make one spot price per region and type: that of its dearest zone now, so that no plan is cheaper than life."""
    latest: dict[tuple[str, str, str], SpotPrice] = {}
    for price in reading.spot_prices:
        pool = (price.region, price.zone, price.type)
        if pool not in latest or price.at >= latest[pool].at:
            latest[pool] = price
    dearest: dict[Key, float] = {}
    for price in latest.values():
        key = Key("ec2", price.region, price.type, PricePlan.SPOT)
        dearest[key] = max(price.usd_per_h, dearest.get(key, 0.0))
    for key, usd in dearest.items():
        reading.take(key, usd)
        reading.whole.add((key.cloud, key.region, key.plan))
