"""Fixtures: a server of price lists, a manual clock, a catalog directory, and no access to real clouds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hcloud.catalog import AwsPrices, CatalogFiles, GcpPrices, PriceSource, sources
from hcloud.core.clock import ManualClock
from tests.catalog.server import PriceLists, serving

NOW = 1_795_000_000.0
KEY = "the-key-itself"


@pytest.fixture
def lists() -> Iterator[PriceLists]:
    """Price lists on a local server."""
    with serving() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only during waits."""
    return ManualClock(NOW)


@pytest.fixture
def files(tmp_path: Path) -> CatalogFiles:
    """An empty catalog directory."""
    return CatalogFiles(tmp_path / "catalog")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Invalid credentials, so that no test can use a real account."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "invalid")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy",
                 "https_proxy", "ALL_PROXY", "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


Sources = Callable[..., tuple[PriceSource, ...]]


@pytest.fixture
def aws(lists: PriceLists, clock: ManualClock) -> Sources:
    """Sources of AWS prices on the local server."""

    def build(*regions: str, spot: bool = False, query: bool = False) -> tuple[PriceSource, ...]:
        settings = AwsPrices(
            regions=regions,
            spot=spot,
            price_list="query" if query else "bulk",
            endpoint=lists.address,
            ec2_endpoint=lists.address,
        )
        return sources(settings, GcpPrices(regions=()), str, clock)

    return build


@pytest.fixture
def gcp(lists: PriceLists, clock: ManualClock) -> Sources:
    """Sources of Google's prices on the local server."""

    def build(*regions: str) -> tuple[PriceSource, ...]:
        settings = GcpPrices(regions=regions, endpoint=lists.address, api_key="env:SOME_KEY")
        return sources(AwsPrices(regions=()), settings, lambda reference: KEY, clock)

    return build
