"""The price lists that a deployment reads, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from hcloud.catalog import aws_list, gcp_skus
from hcloud.catalog.aws_client import aws_client, aws_errors
from hcloud.catalog.aws_spot import SpotSource
from hcloud.catalog.prices import PricePlan
from hcloud.catalog.reading import PriceReading, SpotPrice, join
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderUnavailable
from hcloud.core.paging import checked, pages_of

if TYPE_CHECKING:
    from hcloud.catalog.fetch import PriceServer

REGION_INDEX: Final = "/offers/v1.0/aws/AmazonEC2/current/region_index.json"
BULK_ENDPOINT: Final = "https://pricing.us-east-1.amazonaws.com"
PAGE_SIZE: Final = "5000"
_QUERY_REGION: Final = "us-east-1"
"""GetProducts is available in few regions only, with the prices of all."""


class PriceSource(Protocol):
    """One price list. ``read`` may take minutes and changes nothing."""

    name: str

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """Return the current prices of the list; ``versions`` are the editions that were read before.

        Raises:
            ProviderUnavailable: it could not be read completely; nothing can be concluded about prices.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPrices:
    """Which AWS prices are read; see :class:`hcloud.config.settings.AwsPriceSettings`."""

    regions: Sequence[str]
    price_list: Literal["bulk", "query"] = "bulk"
    endpoint: str | None = None
    spot: bool = True
    ec2_endpoint: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPrices:
    """Which Google prices are read; see :class:`hcloud.config.settings.GcpPriceSettings`."""

    regions: Sequence[str]
    endpoint: str = "https://cloudbilling.googleapis.com"
    api_key: str | None = None


def sources(aws: AwsPrices, gcp: GcpPrices, secret: Callable[[str], str], clock: Clock) -> tuple[PriceSource, ...]:
    """Return the price lists to read. ``secret`` resolves a reference; it is called only when the secret is needed."""
    chosen: list[PriceSource] = []
    if aws.regions:
        chosen.append(_BulkList(aws, clock) if aws.price_list == "bulk" else _QueriedList(aws, clock))
        if aws.spot:
            chosen.append(SpotSource(aws.regions, aws.ec2_endpoint, aws.profile, clock))
    if gcp.api_key is not None:
        chosen.append(_SkuList(gcp, secret, clock))
    return tuple(chosen)


class _BulkList:
    """AWS's bulk files, without credentials; a region's file is read only if its edition is new."""

    def __init__(self, settings: AwsPrices, clock: Clock) -> None:
        self.name = aws_list.SOURCE
        self._regions, self._clock = settings.regions, clock
        self._endpoint = settings.endpoint or BULK_ENDPOINT

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """See :class:`PriceSource`."""
        reading = PriceReading(source=self.name, at=self._clock.now())
        server = _server(self._endpoint, self._clock)
        index = server.json(REGION_INDEX).get("regions", {})
        for region in self._regions:
            path = _path_of(index, region)
            if versions.get(aws_list.version_key(region)) == _edition(path):
                reading.unchanged |= {("ec2", region, plan) for plan in aws_list.PLANS}
            else:
                join(reading, server.lines(path, lambda lines, region=region: self._region(lines, region)))  # type: ignore[misc]
        return reading

    def _region(self, lines: Iterator[str], region: str) -> PriceReading:
        reading = PriceReading(source=self.name, at=self._clock.now())
        aws_list.read_csv(lines, region, reading)
        return reading


def _path_of(index: Any, region: str) -> str:
    """Return the path of a region's CSV file, next to the JSON file in the index."""
    try:
        path = index[region]["currentVersionUrl"]
    except (KeyError, TypeError):
        known = ", ".join(sorted(index)[:12]) if isinstance(index, Mapping) else "nothing"
        raise ProviderUnavailable(f"AWS has no price list for region {region!r}; it has {known}, ...") from None
    if not isinstance(path, str) or not path.startswith("/") or not path.endswith(".json"):
        raise ProviderUnavailable(f"the index of the {aws_list.SOURCE} has an unknown format")
    return path.removesuffix(".json") + ".csv"


def _edition(path: str) -> str:
    """Return the edition in a file's path ``/offers/v1.0/aws/AmazonEC2/<edition>/<region>/index.csv``."""
    return path.split("/")[-3] if path.count("/") >= 3 else ""


class _QueriedList:
    """AWS's query API: a few megabytes per region; needs the permission ``pricing:GetProducts``."""

    def __init__(self, settings: AwsPrices, clock: Clock) -> None:
        self.name = aws_list.SOURCE
        self._settings, self._clock = settings, clock

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """See :class:`PriceSource`."""
        reading = PriceReading(source=self.name, at=self._clock.now())
        client = aws_client("pricing", _QUERY_REGION, self._settings.endpoint, self._settings.profile)
        for region in self._settings.regions:
            filters = [
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in (*aws_list.FILTERS, ("regionCode", region))
            ]
            with aws_errors(f"{self.name} of {region}"):
                pages = client.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
                listed = checked(pages, f"{self.name} of {region}")
                aws_list.read_products((each for page in listed for each in page["PriceList"]), region, reading)
        return reading


class _SkuList:
    """Google's Cloud Billing Catalog. The API key is sent in a header, as URLs end up in logs."""

    def __init__(self, settings: GcpPrices, secret: Callable[[str], str], clock: Clock) -> None:
        self.name = gcp_skus.SOURCE
        self._settings, self._secret, self._clock = settings, secret, clock

    def read(self, versions: Mapping[str, str]) -> PriceReading:
        """See :class:`PriceSource`."""
        reading = PriceReading(source=self.name, at=self._clock.now())
        headers = {"X-Goog-Api-Key": self._secret(self._settings.api_key or "")}
        server = _server(self._settings.endpoint, self._clock, headers)
        gcp_skus.read_skus(_pages(server), self._settings.regions, reading)
        for key, quote in reading.quotes.items():
            if key.plan is PricePlan.SPOT:  # one price for all zones of a region
                at = reading.at
                price = SpotPrice(
                    cloud="gce", region=key.region, zone="", type=key.type, usd_per_h=quote.usd_per_h, at=at
                )
                reading.spot_prices.append(price)
        return reading


def _server(endpoint: str, clock: Clock, headers: Mapping[str, str] | None = None) -> PriceServer:
    # Imported here: it loads urllib's client, and most commands read no price list.
    from hcloud.catalog.fetch import PriceServer

    return PriceServer(endpoint, clock, headers)


def _pages(server: PriceServer) -> Iterator[Mapping[str, Any]]:
    def read(token: str) -> tuple[Mapping[str, Any], str | None]:
        parameters = {"pageSize": PAGE_SIZE, "currencyCode": "USD", **({"pageToken": token} if token else {})}
        page = server.json(f"/v1/{gcp_skus.COMPUTE_ENGINE}/skus", parameters)
        return page, page.get("nextPageToken")

    for page in pages_of(read, f"the {gcp_skus.SOURCE}"):
        yield from page.get("skus", ())
