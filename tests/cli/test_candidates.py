"""What could run a job, of what a daemon is offered: by size, type, place, market, stock, and for all its nodes."""

from typing import Any

import pytest

from hcloud.cli.candidates import OfferQuery, chosen, live
from hcloud.core.model import Constraints, Resources


def offer(name: str = "m.two", market: str = "on_demand", usd_per_h: float = 1.0, **changes: Any) -> dict[str, Any]:
    kind = {"name": name, "capacity": {"vcpus": 2.0, "memory_mib": 4096, "disk_gib": 10.0}, "labels": {"disk": "ssd"}}
    plain = {
        "provider": "mock", "region": "east-1", "zone": "east-1a", "instance_type": kind, "market": market,
        "available": None, "price_usd_per_h": usd_per_h, "billing_minimum_s": 60.0, "priced_at": 5.0,
    }  # fmt: skip
    return {**plain, **changes}


def asked(vcpus: float = 2.0, **changes: Any) -> OfferQuery:
    return OfferQuery(need=Resources(vcpus=vcpus, memory_mib=1024, disk_gib=1.0), **changes)


@pytest.mark.parametrize(
    ("want", "fits"),
    [
        (asked(), True),
        (asked(vcpus=2.1), False),
        (asked(types=("m.*",)), True),
        (asked(types=("c.*", "m.one")), False),
        (asked(placement=Constraints(zones=("east-1?",))), True),
        (asked(placement=Constraints(zones=("west-*",))), False),
        (asked(placement=Constraints(labels=(("disk", "ssd"),))), True),
        (asked(placement=Constraints(labels=(("disk", "tape"),))), False),
        (asked(placement=Constraints(labels=(("market", "on_demand"), ("type", "m.two")))), True),
    ],
)
def test_offer_must_meet_all_requirements(want: OfferQuery, fits: bool) -> None:
    assert bool(list(live([offer()], want))) == fits


def test_spot_offers_are_for_interruptible_jobs() -> None:
    assert list(live([offer(market="spot")], asked(spot=False))) == []
    assert len(list(live([offer(market="spot")], asked(spot=True)))) == 1


def test_costs_are_for_all_nodes() -> None:
    (found,) = live([offer(usd_per_h=2.0, available=2)], asked(nodes=3, max_runtime_s=1800.0))
    assert (found.usd_per_h, found.minimum_usd, found.at_most_usd) == (6.0, pytest.approx(0.1), pytest.approx(3.0))
    assert found.note == "only 2 available"
    (enough,) = live([offer(available=3)], asked(nodes=3))
    assert (enough.note, enough.at_most_usd) == ("", None)


def test_filtered_offers_are_sorted_by_price() -> None:
    offers = [
        offer("a", usd_per_h=3.0), offer("b", "spot", 1.0), offer("c", "spot", 2.0, region="west-1"),
        offer("d", usd_per_h=0.5, provider="other"),
    ]  # fmt: skip

    def names(provider: str | None = None, market: str | None = None, regions: tuple[str, ...] = ()) -> str:
        return "".join(each.type for each in chosen(live(offers, asked()), provider, market, regions))

    assert names() == "dbca"
    assert names(provider="mock") == "bca"
    assert names(market="spot") == "bc"
    assert names(regions=("west-*", "north")) == "c"
