"""Simulated clouds from offers and from the price catalogue."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hcloud.catalog import shipped_catalogue
from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind, InstanceType, Market, Offer, Resources
from hcloud.simulator.clouds import cloud_of_catalogue, clouds_of_offers, reserved_for
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.workload import read_csv
from providers.mock import MockProvider
from tests.policies import parse_simple
from tests.providers.clouds import request_for

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


def mock(settings: Mapping[str, object], folder: Path, name: str = "mock") -> MockProvider:
    return MockProvider(name, settings, ManualClock(), "tests", str(folder))


def offer(type_name: str, market: Market, usd: float, zone: str = "a", **more: object) -> Offer:
    kind = InstanceType(
        provider="cloud", name=type_name, capacity=Resources(vcpus=float(len(type_name)), memory_mib=4096)
    )
    made = Offer(
        provider="cloud", region="north", zone=f"north-1-{zone}", instance_type=kind, market=market,
        price_usd_per_h=usd, priced_at=1.0,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_cloud_made_of_offers_offers_the_same(tmp_path: Path) -> None:
    offers = mock(CLOUD, tmp_path, "amazon").offers()
    again = mock(clouds_of_offers(offers)["amazon"], tmp_path, "amazon").offers()
    for market in (Market.ON_DEMAND, Market.RESERVED):
        before, after = ([o for o in each if o.market is market] for each in (offers, again))
        assert [(o.key, o.region, o.available) for o in before] == [(o.key, o.region, o.available) for o in after]
        assert [o.price_usd_per_h for o in before] == pytest.approx([o.price_usd_per_h for o in after])
    assert [o.instance_type for o in offers] == [o.instance_type for o in again]
    spot = [o.price_usd_per_h for o in again if o.market is Market.SPOT]
    assert all(0 < price < 1.5 for price in spot)


def test_regions_have_their_names_and_prices_and_types_their_zones_and_markets(tmp_path: Path) -> None:
    dear = {"region": "south", "zone": "b"}
    offers = [
        offer("four", Market.ON_DEMAND, 0.4), offer("four", Market.SPOT, 0.1), offer("five5", Market.ON_DEMAND, 0.5),
        offer("four", Market.ON_DEMAND, 0.6, **dear),
    ]  # fmt: skip
    found = {o.key[1:]: o for o in mock(clouds_of_offers(offers)["cloud"], tmp_path).offers()}
    on_demand = {key: o for key, o in found.items() if o.market is Market.ON_DEMAND}
    assert {(*key[:2], o.region, round(o.price_usd_per_h, 6)) for key, o in on_demand.items()} == {
        ("north-1-a", "four", "north", 0.4), ("north-1-a", "five5", "north", 0.5), ("north-1-b", "four", "south", 0.6),
    }  # fmt: skip
    assert 0.05 < found["north-1-a", "four", "spot"].price_usd_per_h < 0.2
    assert ("north-1-a", "five5", "spot") not in found


def test_machines_in_use_are_reserved_too(tmp_path: Path) -> None:
    cloud = mock(CLOUD, tmp_path)
    free = next(o for o in cloud.offers() if o.key == ("mock", "east-1b", "m.two", "reserved"))
    cloud.launch(request_for(cloud, 1, ManualClock().now(), offer=free))
    (made,) = clouds_of_offers(cloud.offers(), [free]).values()
    assert made["reserved"] == {"east-1a/m.two": 3, "east-1b/m.two": 3}
    (forgotten,) = clouds_of_offers(cloud.offers()).values()
    assert forgotten["reserved"] == {"east-1a/m.two": 3, "east-1b/m.two": 2}


def test_shared_commitments_are_reserved_once() -> None:
    def shared(name: str, usd: float, zone: str, available: int) -> Offer:
        return offer(name, Market.RESERVED, usd, zone, available=available, pool="reserved m5")

    offers = [
        shared("four", 0.1, "a", 6), shared("four", 0.1, "b", 6), shared("eight888", 0.2, "a", 3),
        shared("sixteen-sixteen-", 0.4, "a", 1),
    ]  # fmt: skip
    used = [shared("four", 0.1, "b", 0)] * 2
    (made,) = clouds_of_offers(offers, used).values()
    assert made["reserved"] == {"north-1-a/eight888": 4}  # 8 of four in all, of which 2 are used


def test_shared_hosts_and_quotas_limit_simulated_capacity() -> None:
    left = Resources(vcpus=1.0, memory_mib=1024)
    host = [offer("four", market, 0.1, available=0, pool="host", pool_free=left) for market in Market]
    (made,) = clouds_of_offers(host, [offer("four", Market.SPOT, 0.1)] * 2).values()
    assert made["quotas"] == [{"region": "north", "vcpus": 9.0, "told": True}]
    told = [offer("four", Market.ON_DEMAND, 0.1, available=5), offer("eight888", Market.ON_DEMAND, 0.2, available=2)]
    (made,) = clouds_of_offers([*told, offer("four", Market.SPOT, 0.1)]).values()
    assert made["quotas"] == [{"region": "north", "market": "on_demand", "vcpus": 20.0, "told": True}]


def test_each_limit_of_the_account_becomes_a_quota_of_its_types() -> None:
    def of(name: str, quota: str, available: int, market: Market = Market.ON_DEMAND) -> Offer:
        return offer(name, market, 0.1, available=available, quota=quota)

    offers = [of("four", "CPUS", 5), of("four", "CPUS", 5, Market.SPOT), of("eight888", "N2_CPUS", 1)]
    (made,) = clouds_of_offers(offers, [of("four", "CPUS", 0, Market.SPOT), of("eight888", "N2_CPUS", 0)]).values()
    assert made["quotas"] == [
        {"region": "north", "vcpus": 24.0, "told": True, "types": ["four"]},
        {"region": "north", "vcpus": 16.0, "told": True, "types": ["eight888"], "market": "on_demand"},
    ]


def test_job_waiting_for_a_full_host_starts_when_there_is_room(tmp_path: Path) -> None:
    whole = Resources(vcpus=4.0, memory_mib=8192)
    host = [offer("four", Market.ON_DEMAND, 0.1, available=1, pool="host", pool_free=whole)]
    jobs = read_csv(["at_s,run_s,vcpus", *["0,60,4"] * 5], "jobs.csv")
    made = Setting(workload=jobs, policy=parse_simple({"name": "tried"}), clouds=clouds_of_offers(host))
    with simulated(made, tmp_path) as simulation:
        simulation.run()
        log = list(simulation.events())
    assert not [each for each in log if each.kind is EventKind.OFFER_BACKOFF]
    started = [each.at for each in log if each.kind is EventKind.UNIT_STARTED]
    assert max(b - a for a, b in pairwise(started)) < 130.0


def test_spot_prices_of_a_host_of_ones_own_stand_still(tmp_path: Path) -> None:
    whole = Resources(vcpus=8.0, memory_mib=16384)
    host = [offer("four", Market.ON_DEMAND, 0.1), offer("four", Market.SPOT, 0.03)]
    (made,) = clouds_of_offers([replace(o, pool="host", pool_free=whole) for o in host]).values()
    later = [MockProvider("mock", made, ManualClock(3600.0 * hour), "tests", str(tmp_path)) for hour in range(1, 9)]
    assert {o.price_usd_per_h for each in later for o in each.offers() if o.market is Market.SPOT} == {0.03}


def test_without_offers_there_is_no_cloud() -> None:
    with pytest.raises(BadInput, match="no provider has offers now"):
        clouds_of_offers([])


# ----------------------------------------------------------------------------------------------------------- catalogue
def test_a_region_of_the_catalogue_has_its_prices(tmp_path: Path) -> None:
    known = shipped_catalogue()
    for cloud, region, name in (("ec2", "us-east-1", "m5.large"), ("gce", "us-central1", "n1-standard-4")):
        offers = mock(cloud_of_catalogue(known, cloud, region), tmp_path, cloud).offers()
        price = known.price(cloud, region, name)
        assert price is not None
        on_demand = [o for o in offers if o.instance_type.name == name and o.market is Market.ON_DEMAND]
        assert [(o.region, o.price_usd_per_h) for o in on_demand] == [(region, pytest.approx(price.usd_per_h))]
        assert not any(o.instance_type.name.startswith(("t3.", "m6g.", "p3.")) for o in offers)
        sold_spot = any(o.market is Market.SPOT for o in offers)
        assert sold_spot is (cloud == "gce")  # a price that is not known is absent
    with pytest.raises(BadInput, match="--cloud ec2/us-eats-1: no price is known there; did you mean 'us-east-1'"):
        cloud_of_catalogue(known, "ec2", "us-eats-1")


def test_strategies_reserve_full_servers_and_of_these_the_cheapest() -> None:
    policy = parse_simple({"name": "all", "provisioning": {"strategy": "sr"}})
    sizes = {"huge": (96, 4.0), "dear": (16, 0.9), "full": (16, 0.7), "unsold": (16, 0.1), "small": (2, 0.1)}
    types = {name: {"vcpus": vcpus, "memory_mib": 1, "usd_per_h": usd} for name, (vcpus, usd) in sizes.items()}
    types["unsold"]["markets"] = ["spot"]  # type: ignore[assignment]
    work = make_scenario("static", share=0.1, hours=0.1)
    ((name, count),) = reserved_for(policy, work, {"types": types}).items()
    assert name == "full" and count * 16 >= 1.15 * max(work.cores()) > (count - 1) * 16


def test_strategies_reserve_nothing_where_no_commitment_has_a_price() -> None:
    policy = parse_simple({"name": "all", "provisioning": {"strategy": "sr"}})
    types = {"only": {"vcpus": 16, "memory_mib": 1, "usd_per_h": 1, "markets": ["on_demand", "spot"]}}
    work = make_scenario("static", share=0.1, hours=0.1)
    assert reserved_for(policy, work, {"types": types}) == {}
    assert reserved_for(policy, work, cloud_of_catalogue(shipped_catalogue(), "ec2", "us-east-1")) == {}


def test_machines_of_an_expired_commitment_are_not_reserved() -> None:
    taken = [offer("m.one", Market.RESERVED, 0.2), offer("m.two", Market.RESERVED, 0.3)]
    offers = [offer("m.one", Market.ON_DEMAND, 0.4), offer("m.two", Market.RESERVED, 0.3, available=0)]
    assert clouds_of_offers(offers, taken)["cloud"]["reserved"] == {"north-1-a/m.two": 1}
