"""What is offered, and at which price."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hcloud.core.errors import InsufficientCapacity, OutcomeUnknown, ProviderUnavailable
from hcloud.core.model import CommittedCapacity, Gpus, Market, Offer
from providers.ec2.prices import Price, sane_spot
from providers.ec2.region_info import _gpus
from tests.providers.ec2.ec2_bench import PRICES, Ec2Bench
from tests.providers.ec2.fake_ec2 import REGION, USD_PER_H

YEAR_S = 365 * 86_400


def offered(bench: Ec2Bench, **settings: object) -> dict[tuple[str, str, str], Offer]:
    """Offers by zone letter, type and market."""
    bench.provider = bench.build(settings)
    return {(zone[-1], name, market): each for each in bench.provider.offers() for _, zone, name, market in [each.key]}


def reserved(count: int, zone: str | None = None, **more: object) -> dict[str, object]:
    """Reserved Instances as EC2 tells them: half upfront, half by the hour."""
    scope = {"scope": "Availability Zone", "availabilityZone": zone} if zone else {"scope": "Region"}
    return {
        "reservedInstancesId": "ri-1",
        "instanceType": "m5.large",
        "instanceCount": count,
        "productDescription": "Linux/UNIX",
        "instanceTenancy": "default",
        "state": "active",
        "duration": YEAR_S,
        "fixedPrice": 0.03 * YEAR_S / 3600,
        "usagePrice": 0.0,
        "recurringCharges": [{"frequency": "Hourly", "amount": 0.03}],
        **scope,
        **more,
    }


def capacity_reservation(count: int) -> dict[str, object]:
    """A capacity reservation."""
    return {
        "capacityReservationId": "cr-0123456789abcdef0",
        "availabilityZone": f"{REGION}b",
        "instanceType": "m5.large",
        "instancePlatform": "Linux/UNIX",
        "tenancy": "default",
        "availableInstanceCount": count,
    }


def test_types_have_their_real_sizes_less_what_the_system_takes(bench: Ec2Bench) -> None:
    large = offered(bench)["a", "m5.large", "on_demand"].instance_type
    assert large.capacity.vcpus == 2
    assert 7 * 1024 < large.capacity.memory_mib < 8 * 1024
    assert large.capacity.disk_gib == 18
    assert large.labels["family"] == "m5"


def test_type_without_a_price_is_not_offered_and_zero_is_no_price(bench: Ec2Bench, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    rows = {"m5.large": {"on_demand": 0.1, "spot": 0.04}, "c5.large": {"on_demand": 0.0}, "m5.xlarge": {"spot": None}}
    file.write_text(json.dumps({REGION: rows}))
    found = offered(bench, prices={}, prices_file=str(file))
    assert {name for _, name, _ in found} == {"m5.large"}
    assert found["a", "m5.large", "on_demand"].price_usd_per_h == 0.1
    assert found["a", "m5.large", "on_demand"].priced_at == pytest.approx(file.stat().st_mtime)


def test_prices_file_is_read_again_when_it_changed_and_its_absence_is_told(bench: Ec2Bench, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({REGION: {"m5.large": {"on_demand": 0.1, "at": 1_234_567_890.0}}}))
    assert {each.priced_at for each in bench.build({"prices": {}, "prices_file": str(file)}).offers()} >= {
        1_234_567_890.0
    }
    offered(bench, prices={}, prices_file=str(file))
    file.write_text(json.dumps({REGION: {"m5.large": {"on_demand": 0.125}}}))
    os.utime(file, (2_000_000_000, 2_000_000_000))
    prices = {each.price_usd_per_h for each in bench.provider.offers() if each.market is Market.ON_DEMAND}
    assert prices == {0.125}
    file.unlink()
    with pytest.raises(ProviderUnavailable, match="hcloud catalog refresh"):
        bench.provider.offers()


def test_spot_prices_differ_by_zone_and_move(bench: Ec2Bench) -> None:
    found = offered(bench)
    assert found["a", "m5.large", "spot"].price_usd_per_h == pytest.approx(USD_PER_H["m5.large"] * 0.30)
    assert found["b", "m5.large", "spot"].price_usd_per_h == pytest.approx(USD_PER_H["m5.large"] * 0.31)
    bench.fake.spot_shares["m5.large"] = 0.5
    moved = {each.key[2:]: each.price_usd_per_h for each in bench.provider.offers()}
    assert moved["m5.large", "spot"] == pytest.approx(USD_PER_H["m5.large"] * 0.5)


def test_unbelievable_spot_price_is_not_offered(bench: Ec2Bench) -> None:
    bench.fake.spot_shares = {"m5.large": 0.0001, "c5.large": 40.0}
    assert {name for _, name, market in offered(bench) if market == "spot"} == {"m5.xlarge"}


@pytest.mark.parametrize(
    ("usd", "sane"), [(0.03, True), (0.0, False), (-1, False), (float("nan"), False), (float("inf"), False), (9, False)]
)
def test_sanity_of_spot_prices(usd: float, sane: bool) -> None:
    assert sane_spot(usd, Price(usd_per_h=0.1, priced_at=1)) is sane
    assert not sane_spot(usd, None)


def test_types_beyond_the_quota_are_not_offered(bench: Ec2Bench) -> None:
    bench.fake.quota_vcpus = 2
    assert {name for _, name, _ in offered(bench)} == {"m5.large", "c5.large"}


def test_only_chosen_zones_markets_and_types(bench: Ec2Bench) -> None:
    found = offered(bench, zones=[f"{REGION}b"], markets=["spot"], instance_types=["m5.*"], prices=PRICES)
    assert {(zone, market) for zone, _, market in found} == {("b", "spot")}
    assert {name for _, name, _ in found} == {"m5.large", "m5.xlarge"}


def test_reserved_instances_are_offered_at_their_amortised_price_until_used_up(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2, zone=f"{REGION}a")]
    found = offered(bench)
    offer = found["a", "m5.large", "reserved"]
    assert offer.price_usd_per_h == pytest.approx(0.06)
    assert offer.available == 2
    assert ("b", "m5.large", "reserved") not in found
    for _ in range(2):
        bench.provider.launch(bench.order(offer))
    with pytest.raises(InsufficientCapacity, match="in use"):
        bench.provider.launch(bench.order(offer))
    left = {each.key: each.available for each in bench.provider.offers() if each.market is Market.RESERVED}
    assert left == {offer.key: 0}
    assert len(bench.fake.machines()) == 2


def test_reserved_instances_of_the_region_count_in_every_zone_but_once(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(1)]
    found = offered(bench, spot_prices_every_s=300)
    a, b = found["a", "m5.large", "reserved"], found["b", "m5.large", "reserved"]
    assert (a.available, b.available) == (1, 1)
    bench.provider.launch(bench.order(a))
    with pytest.raises(InsufficientCapacity):
        bench.provider.launch(bench.order(b))


def test_launch_whose_reply_was_lost_is_not_refused_for_the_reservation_it_uses_itself(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(1)]
    request = bench.order(offered(bench)["a", "m5.large", "reserved"])
    bench.fake.list_lag_s = 45.0
    bench.fake.arm("RunInstances", "lose_reply")
    with pytest.raises(OutcomeUnknown):
        bench.provider.launch(request)
    bench.let_pass(1)
    assert bench.provider.launch(request).token == request.token
    assert len(bench.fake.machines()) == 1


def test_machines_of_others_use_up_reserved_instances_too(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2)]
    somebody = bench.for_owner("somebody-else")
    plain = {each.key: each for each in somebody.offers()}["ec2", f"{REGION}c", "m5.large", "on_demand"]
    somebody.launch(bench.order(plain, owner="somebody-else"))
    assert offered(bench)["a", "m5.large", "reserved"].available == 1


def test_reserved_instances_of_another_kind_do_not_count(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2, productDescription="Windows"), reserved(2, instanceTenancy="dedicated")]
    assert not [key for key in offered(bench) if key[2] == "reserved"]


def test_each_launch_targets_a_capacity_reservation_with_free_capacity(bench: Ec2Bench) -> None:
    free = [("cr-aaaa", 1), ("cr-bbbb", 2), ("cr-cccc", 0)]
    bench.fake.capacity = [{**capacity_reservation(count), "capacityReservationId": name} for name, count in free]
    offer = offered(bench, spot_prices_every_s=3600)["b", "m5.large", "reserved"]
    assert offer.available == 3
    for _ in range(3):
        bench.provider.launch(bench.order(offer))
        bench.let_lists_settle()  # a machine that is listed is in a reservation all the same
    with pytest.raises(InsufficientCapacity):
        bench.provider.launch(bench.order(offer))
    name = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    targets = [each.parameters[name] for each in bench.fake.calls if each.action == "RunInstances"]
    assert targets == ["cr-aaaa", "cr-bbbb", "cr-bbbb"]


def test_machines_in_capacity_reservations_use_regional_reserved_instances(bench: Ec2Bench) -> None:
    bench.fake.reserved, bench.fake.capacity = [reserved(2)], [capacity_reservation(3)]
    offer = offered(bench, spot_prices_every_s=3600)["b", "m5.large", "reserved"]
    seen = [(offer.available, offer.price_usd_per_h)]
    for _ in range(3):
        bench.provider.launch(bench.order(offer))
        bench.let_lists_settle()
        offer = {each.key: each for each in bench.provider.offers()}[offer.key]
        seen.append((offer.available, offer.price_usd_per_h))
    cheap, full = seen[0][1], USD_PER_H["m5.large"]
    assert cheap < full
    # Two are covered wherever they run; the third place is paid for at the full price, used or not.
    assert seen == [(2, cheap), (1, cheap), (1, full), (0, cheap)]


def test_capacity_reservation_is_targeted_by_its_id(bench: Ec2Bench) -> None:
    bench.fake.capacity = [capacity_reservation(1)]
    offer = offered(bench)["b", "m5.large", "reserved"]
    assert (offer.available, offer.price_usd_per_h) == (1, USD_PER_H["m5.large"])
    bench.provider.launch(bench.order(offer))
    [call] = [each for each in bench.fake.calls if each.action == "RunInstances"]
    name = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert call.parameters[name] == "cr-0123456789abcdef0"


def test_offers_say_when_each_commitment_ends_and_machines_cost_the_full_price_after_the_last(bench: Ec2Bench) -> None:
    ends_at = bench.manual.now() + 7200.0
    end = datetime.fromtimestamp(ends_at, tz=UTC).isoformat()
    bench.fake.reserved = [reserved(2, end=end), reserved(1)]
    offer = offered(bench)["a", "m5.large", "reserved"]
    assert offer.ends_at is None  # the one that ends last is used first
    kind = CommittedCapacity(ends_at=None, kind="Reserved Instances", usd_per_h=pytest.approx(0.06))
    assert offer.committed == (replace(kind, free=1), replace(kind, ends_at=ends_at, free=2))
    assert offer.price_after_usd_per_h == USD_PER_H["m5.large"]
    machine = bench.provider.launch(bench.order(offer))
    assert machine.price_usd_per_h == pytest.approx(offer.price_usd_per_h)
    bench.let_lists_settle()
    then = {each.key: each for each in bench.provider.offers()}[offer.key]
    assert (then.ends_at, then.available) == (ends_at, 2)
    assert then.committed == (replace(kind, used=1), replace(kind, ends_at=ends_at, free=2))
    bench.fake.reserved = []
    bench.provider.offers()
    [listed] = bench.provider.instances(bench.owner).instances
    assert listed.price_usd_per_h == USD_PER_H["m5.large"]


def test_where_commitments_of_two_kinds_cover_a_type_each_has_its_own_end_and_price(bench: Ec2Bench) -> None:
    ends_at = bench.manual.now() + 7200.0
    bench.fake.reserved = [reserved(1, end=datetime.fromtimestamp(ends_at + 9.0, tz=UTC).isoformat())]
    end = datetime.fromtimestamp(ends_at, tz=UTC).isoformat()
    bench.fake.capacity = [{**capacity_reservation(2), "endDate": end}]
    offer = offered(bench)["b", "m5.large", "reserved"]
    assert (offer.commitment, offer.ends_at, offer.available) == ("Reserved Instances", ends_at + 9.0, 1)
    assert {each.kind: (each.ends_at, each.free) for each in offer.committed} == {
        "Reserved Instances": (ends_at + 9.0, 1),
        "capacity reservations": (ends_at, 2),
    }
    bench.provider.launch(bench.order(offer))
    bench.let_lists_settle()
    then = {each.key: each for each in bench.provider.offers()}[offer.key]
    assert (then.commitment, then.ends_at, then.available) == ("capacity reservations", ends_at, 1)
    assert [each.usd_per_h for each in then.committed] == [pytest.approx(0.06), USD_PER_H["m5.large"]]


def test_reservations_that_cannot_be_read_are_told_and_cost_nothing_else(bench: Ec2Bench) -> None:
    bench.fake.arm("DescribeReservedInstances", "forbidden")
    found = offered(bench)
    assert ("a", "m5.large", "on_demand") in found
    assert "UnauthorizedOperation" in bench.provider.facts()["unread reservations"]


def test_image_for_another_processor_is_refused(bench: Ec2Bench) -> None:
    with pytest.raises(ProviderUnavailable, match="not arm64"):
        bench.build({"architecture": "arm64"}).offers()


def test_types_with_gpus_say_how_many_of_which_kind_and_size(bench: Ec2Bench, tmp_path: Path) -> None:
    names = ("g4dn.12xlarge", "m5.large")
    (tmp_path / "prices.json").write_text(json.dumps({REGION: {name: {"on_demand": 1.0} for name in names}}))
    found = offered(bench, prices={}, prices_file=str(tmp_path / "prices.json"), instance_types=list(names))
    kinds = {name: each.instance_type.capacity.gpus for (_, name, _), each in found.items()}
    assert kinds["g4dn.12xlarge"] == Gpus(count=4, kind="t4", memory_gib=16.0)
    assert kinds["m5.large"] is None
    of_amd = {"GpuInfo": {"Gpus": [{"Name": "Radeon Pro V520", "Manufacturer": "AMD", "Count": 1}]}}
    assert _gpus(of_amd) is None, "agents do not know them"
