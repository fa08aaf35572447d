"""Virtual clouds made from offers."""

from pathlib import Path

import pytest

from hcloud.clock import ManualClock
from hcloud.errors import BadInput
from hcloud.model import Market
from hcloud.simulator.clouds import cloud_of_offers
from providers.mock import MockProvider

CLOUD: dict[str, object] = {
    "types": {
        "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.4, "disk_gib": 20},
        "m.two": {"vcpus": 8, "memory_mib": 16384, "usd_per_h": 1.5, "disk_gib": 40},
    },
    "zones": ["east-1a", "east-1b"],
    "reserved": {"m.two": 3},
    "reserved_default": 0,
    "reserved_price_factor": 0.5,
    "boot": {"p50_s": 20, "p95_s": 80},
    "region_price_factors": {},
}


def mock(settings: dict[str, object], folder: Path) -> MockProvider:
    return MockProvider("mock", settings, ManualClock(), "tests", str(folder))


def test_a_cloud_made_of_offers_offers_the_same(tmp_path: Path) -> None:
    offers = mock(CLOUD, tmp_path).offers()
    again = mock(cloud_of_offers(offers), tmp_path).offers()
    for market in (Market.ON_DEMAND, Market.RESERVED):
        before, after = ([o for o in each if o.market is market] for each in (offers, again))
        assert [(o.key, o.available) for o in before] == [(o.key, o.available) for o in after]
        assert [o.price_usd_per_h for o in before] == pytest.approx([o.price_usd_per_h for o in after])
    assert [o.instance_type for o in offers] == [o.instance_type for o in again]
    spot = [o.price_usd_per_h for o in again if o.market is Market.SPOT]
    assert all(0 < price < 1.5 for price in spot)


def test_without_offers_there_is_no_cloud() -> None:
    with pytest.raises(BadInput, match="no provider offers anything now"):
        cloud_of_offers([])
