"""Offers: real properties, real prices or none, and how many the quotas allow."""

import json
from datetime import datetime

import pytest

from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import CommittedCapacity, Gpus, Market, Offer
from hcloud.provider import Provider
from tests.providers.gce.answers import stamp
from tests.providers.gce.bench import PRICES, GceBench
from tests.providers.gce.compute import Fault


def found(provider: Provider, zone: str, name: str, market: Market = Market.ON_DEMAND) -> Offer | None:
    return {each.key: each for each in provider.offers()}.get(("gce", zone, name, market.value))


def test_type_without_a_price_is_not_offered_and_zero_is_no_price(bench: GceBench) -> None:
    assert found(bench.provider, "us-central1-a", "e2-medium") is not None
    assert found(bench.provider, "us-central1-a", "e2-medium", Market.SPOT) is None
    assert found(bench.provider, "us-central1-a", "n2-standard-2") is not None
    assert found(bench.provider, "us-central1-a", "n2-standard-2", Market.SPOT) is None


@pytest.mark.parametrize("price", [0, 0.0, -1, None, "0.1", True, float("nan"), float("inf")])
def test_price_that_is_none_is_never_free(bench: GceBench, price: object) -> None:
    bench.prices_file.write_text(json.dumps({"us-central1": {"e2-standard-2": {"on_demand": price, "spot": 0.02}}}))
    assert {(each.instance_type.name, each.market) for each in bench.provider.offers()} == {
        ("e2-standard-2", Market.SPOT)
    }


def test_prices_are_read_again_when_the_catalogue_has_written_them(bench: GceBench) -> None:
    bench.provider.offers()
    prices = json.loads(json.dumps(PRICES))
    prices["us-central1"]["e2-standard-2"]["on_demand"] = 0.5
    bench.prices_file.write_text(json.dumps(prices))
    offer = found(bench.provider, "us-central1-a", "e2-standard-2")
    assert offer is not None and offer.price_usd_per_h == 0.5


def test_price_is_as_old_as_the_catalogue_says(bench: GceBench) -> None:
    prices = {"us-central1": {"e2-medium": {"on_demand": 0.03, "at": 1_700_000_000.0}}}
    bench.prices_file.write_text(json.dumps(prices))
    assert {each.priced_at for each in bench.provider.offers()} == {1_700_000_000.0}


def test_unreadable_prices_are_trouble_and_not_an_empty_offer(bench: GceBench) -> None:
    bench.prices_file.write_text("{")
    with pytest.raises(ProviderUnavailable, match="cannot read the prices"):
        bench.provider.offers()


def test_capacity_is_what_is_left_for_jobs(bench: GceBench) -> None:
    offer = found(bench.provider, "us-central1-a", "e2-standard-4")
    assert offer is not None
    capacity = offer.instance_type.capacity
    assert (capacity.vcpus, capacity.memory_mib, capacity.disk_gib) == (4.0, 16384 - 512, 22.0)


def test_shared_core_type_is_offered_with_what_it_gives_for_good(bench: GceBench) -> None:
    offer = found(bench.provider, "us-central1-a", "e2-medium")
    assert offer is not None and offer.instance_type.capacity.vcpus == 1.0


def test_custom_type_is_offered_in_the_zones_that_have_it(bench: GceBench) -> None:
    provider = bench.plain(types=["n2-custom-2-4096"])
    assert [each.zone for each in provider.offers()] == ["us-central1-a", "us-central1-b"]
    machine = provider.launch(bench.request(offer=provider.offers()[0]))
    assert machine.price_usd_per_h == 0.09


def test_types_for_other_processors_are_left_out(bench: GceBench) -> None:
    prices = {"us-central1": {"t2a-standard-1": {"on_demand": 0.04}, "e2-medium": {"on_demand": 0.03}}}
    bench.prices_file.write_text(json.dumps(prices))
    assert {each.instance_type.name for each in bench.plain(types=["*"]).offers()} == {"e2-medium"}


def test_quota_says_how_many_more_can_be_had(bench: GceBench) -> None:
    bench.compute.quota_cpus = 7.0
    offer = found(bench.provider, "us-central1-a", "e2-standard-2")
    assert offer is not None and offer.available == 3
    bench.provider.launch(bench.request(offer=offer))
    after = found(bench.provider, "us-central1-b", "e2-standard-2")
    assert after is not None and after.available == 2


def test_spot_counts_against_a_quota_of_its_own_where_there_is_one_also_when_it_is_used_up(bench: GceBench) -> None:
    def spot() -> tuple[str, int | None]:
        offer = found(bench.provider, "us-central1-a", "e2-standard-2", Market.SPOT)
        assert offer is not None
        return offer.quota, offer.available

    assert spot() == ("CPUS", 120)
    bench.compute.quota_spot_cpus = 2.0
    assert spot() == ("PREEMPTIBLE_CPUS", 1)
    bench.provider.launch(bench.request(offer=found(bench.provider, "us-central1-a", "e2-standard-2", Market.SPOT)))
    assert spot() == ("PREEMPTIBLE_CPUS", 0)
    rented = found(bench.provider, "us-central1-a", "e2-standard-2")
    assert rented is not None and (rented.quota, rented.available) == ("CPUS", 120)


def test_zone_that_does_not_tell_its_types_does_not_hide_the_others(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("types_unavailable", "machineTypes.list", "us-central1-b", times=None))
    provider = bench.plain()
    assert {each.zone for each in provider.offers()} == {"us-central1-a", "europe-west1-d"}
    assert "Backend Error" in provider.facts()["zone us-central1-b"]
    bench.compute.faults.clear()
    assert {each.zone for each in provider.offers()} == {"us-central1-a", "us-central1-b", "europe-west1-d"}
    assert "zone us-central1-b" not in provider.facts()


def test_no_zone_that_answers_is_trouble_and_not_an_empty_offer(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("types_unavailable", "machineTypes.list", times=None))
    with pytest.raises(ProviderUnavailable, match="no zone returned"):
        bench.provider.offers()
    bench.compute.faults.clear()


def test_reserved_machines_are_available_as_long_as_one_is_free(bench: GceBench) -> None:
    bench.compute.reserve("full", "us-central1-a", "e2-standard-2", count=2, in_use=2)
    bench.compute.reserve("open", "us-central1-b", "e2-standard-2", count=5, in_use=1)
    provider = bench.plain(markets=["reserved", "on_demand"])
    full = found(provider, "us-central1-a", "e2-standard-2", Market.RESERVED)
    assert full is not None and full.available == 0
    offer = found(provider, "us-central1-b", "e2-standard-2", Market.RESERVED)
    assert offer is not None and offer.available == 4


def test_commitments_are_told(bench: GceBench) -> None:
    bench.compute.commitments.append(
        {
            "name": "three-years",
            "region": "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1",
            "status": "ACTIVE",
            "type": "GENERAL_PURPOSE_N2",
            "endTimestamp": "2039-01-01T00:00:00.000-08:00",
            "resources": [{"type": "VCPU", "amount": "16"}, {"type": "MEMORY", "amount": "65536"}],
        }
    )
    provider = bench.plain(markets=["on_demand", "reserved"])
    provider.offers()
    assert provider.facts()["commitments"] == (
        "three-years in us-central1: 16 VCPU, 65536 MEMORY of GENERAL_PURPOSE_N2 until 2039-01-01"
    )


def test_types_are_read_once_in_a_while_and_quotas_each_time(bench: GceBench) -> None:
    bench.provider.offers()
    bench.compute.seen.clear()
    bench.provider.offers()
    assert [seen.method for seen in bench.compute.seen] == ["regions.get", "regions.get"]
    bench.let_pass(7 * 3600)
    bench.provider.offers()
    assert "machineTypes.list" in {seen.method for seen in bench.compute.seen}


def commit(bench: GceBench, vcpus: int, memory_mb: int, kind: str = "GENERAL_PURPOSE_E2", **more: object) -> None:
    """Buy committed use for a year."""
    bench.compute.commitments.append(
        {
            "name": "one-year",
            "region": "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1",
            "status": "ACTIVE",
            "plan": "TWELVE_MONTH",
            "type": kind,
            "endTimestamp": "2039-01-01T00:00:00.000-08:00",
            "resources": [{"type": "VCPU", "amount": str(vcpus)}, {"type": "MEMORY", "amount": str(memory_mb)}],
            **more,
        }
    )


def committed(bench: GceBench) -> dict[tuple[str, str], Offer]:
    """Offers of what is committed, by zone and type, on a file that knows the price of a year's commitment."""
    prices = json.loads(bench.prices_file.read_text())
    prices["us-central1"]["e2-standard-2"]["commit_1y"] = 0.042
    bench.prices_file.write_text(json.dumps(prices))
    bench.provider = bench.plain(markets=["on_demand", "reserved", "spot"], types=["e2-standard-*"])
    return {(o.zone, o.instance_type.name): o for o in bench.provider.offers() if o.market is Market.RESERVED}


def test_committed_use_is_offered_at_its_price_until_it_is_used_up(bench: GceBench) -> None:
    commit(bench, 4, 16384)
    found = committed(bench)
    offer = found["us-central1-a", "e2-standard-2"]
    assert (offer.price_usd_per_h, offer.available) == (0.042, 2)
    rented = next(
        each for each in bench.provider.offers() if each.key[1:] == ("us-central1-a", "e2-standard-2", "on_demand")
    )
    assert offer.ends_at == datetime.fromisoformat("2039-01-01T00:00:00.000-08:00").timestamp()
    assert (offer.price_after_usd_per_h, rented.price_after_usd_per_h) == (rented.price_usd_per_h, None)
    assert found["us-central1-b", "e2-standard-4"].available == 1
    assert not [zone for zone, _ in found if zone.startswith("europe")]
    machine = bench.provider.launch(bench.request(offer=offer))
    assert machine.price_usd_per_h == 0.042
    left = {o.instance_type.name: o.available for o in bench.provider.offers() if o.market is Market.RESERVED}
    assert left == {"e2-standard-2": 1, "e2-standard-4": 0}


def test_a_reserved_machine_listed_before_all_commitments_are_read_keeps_its_price(bench: GceBench) -> None:
    commit(bench, 4, 16384)
    bench.provider.launch(bench.request(offer=committed(bench)["us-central1-a", "e2-standard-2"]))
    bench.let_lists_settle()
    [machine] = bench.plain(markets=["on_demand", "reserved"]).instances(bench.owner).instances
    assert machine.price_usd_per_h == 0.0  # the last known price is kept
    [machine] = bench.provider.instances(bench.owner).instances
    assert machine.price_usd_per_h == 0.042


def test_offers_say_when_each_commitment_ends_and_those_that_end_last_are_used_first(bench: GceBench) -> None:
    soon = bench.clock.now() + 7200.0
    commit(bench, 3, 3 * 4096, endTimestamp=stamp(soon))
    commit(bench, 3, 3 * 4096)
    later = datetime.fromisoformat("2039-01-01T00:00:00.000-08:00").timestamp()
    key = ("us-central1-a", "e2-standard-2")
    offer = committed(bench)[key]
    # The second of three machines would use a vCPU of each.
    assert offer.committed == (
        CommittedCapacity(ends_at=later, free=1, kind="commitments", usd_per_h=0.042),
        CommittedCapacity(ends_at=soon, free=2, kind="commitments", usd_per_h=0.042),
    )
    assert offer.ends_at == later
    bench.provider.launch(bench.request(offer=offer))
    then = committed(bench)[key]
    assert (then.ends_at, then.available) == (soon, 2)


def test_reservation_that_is_deleted_at_a_time_ends_then(bench: GceBench) -> None:
    ends_at = bench.clock.now() + 7200.0
    bench.compute.reserve("kept", "us-central1-a", "e2-standard-2", 2, in_use=1, deleteAtTime=stamp(ends_at))
    provider = bench.plain(markets=["on_demand", "reserved"])
    offer = found(provider, "us-central1-a", "e2-standard-2", Market.RESERVED)
    assert offer is not None and (offer.ends_at, offer.price_after_usd_per_h) == (ends_at, 0.067)
    part = CommittedCapacity(ends_at=ends_at, free=1, used=1, kind="reservations", usd_per_h=0.067)
    assert offer.committed == (part,)
    [use] = provider.commitments()["reservations"]
    assert use.ends_at == ends_at


def test_a_commitment_pays_for_machines_in_reservations_until_its_own_end_and_no_more_than_it_has(
    bench: GceBench,
) -> None:
    soon, later = bench.clock.now() + 7200.0, bench.clock.now() + 9000.0
    commit(bench, 4, 16384, endTimestamp=stamp(later))
    bench.compute.reserve("kept", "us-central1-a", "e2-standard-2", 3, deleteAtTime=stamp(soon))
    key = ("us-central1-a", "e2-standard-2")
    offer = committed(bench)[key]
    assert (offer.commitment, offer.available, offer.price_usd_per_h) == ("commitments", 2, 0.042)
    assert offer.ends_at == later
    assert {each.kind: (each.ends_at, each.free) for each in offer.committed} == {
        "commitments": (later, 2),
        "reservations": (soon, 1),
    }
    # Three reserved machines that nobody uses: two at the committed price, one on demand.
    held = bench.provider.commitments()["reservations"][0]
    assert (held.unused, held.usd_per_h) == (3, pytest.approx((2 * 0.042 + 0.067) / 3))
    for _ in range(2):
        bench.provider.launch(bench.request(offer=offer))
    bench.let_lists_settle()
    then = next(each for each in bench.provider.offers() if each.key == offer.key)
    assert (then.commitment, then.available, then.price_usd_per_h) == ("reservations", 1, 0.067)
    assert then.ends_at == soon
    assert {each.price_usd_per_h for each in bench.provider.instances(bench.owner).instances} == {0.0}  # kept


def test_memory_of_a_commitment_counts_too_and_other_series_do_not(bench: GceBench) -> None:
    commit(bench, 100, 8192)
    commit(bench, 100, 819200, kind="GENERAL_PURPOSE_N2")
    commit(bench, 100, 819200, status="EXPIRED")
    found = committed(bench)
    assert {(zone[-1], name): each.available for (zone, name), each in found.items()} == {
        ("a", "e2-standard-2"): 1,
        ("b", "e2-standard-2"): 1,
    }


def test_machines_of_others_and_reservations_use_commitments_up_and_spot_machines_do_not(bench: GceBench) -> None:
    commit(bench, 8, 32768)
    somebody = bench.for_owner("somebody-else")
    for market in (Market.ON_DEMAND, Market.SPOT):
        offer = next(o for o in somebody.offers() if o.key[1:] == ("us-central1-b", "e2-standard-2", market.value))
        somebody.launch(bench.request(owner="somebody-else", offer=offer))
    bench.let_pass(10)
    bench.compute.reserve("held", "us-central1-a", "e2-standard-2", 2, in_use=1)
    found = committed(bench)
    assert found["us-central1-b", "e2-standard-2"].available == 2
    assert found["us-central1-a", "e2-standard-2"].available == 3


def test_unused_reservations_and_commitments_are_listed_at_what_they_cost(bench: GceBench) -> None:
    assert bench.plain(markets=["on_demand", "reserved"]).commitments() == {}  # nothing was read yet
    commit(bench, 8, 32768)
    bench.compute.reserve("held", "us-central1-a", "e2-standard-2", 2, in_use=1)
    committed(bench)
    found = {each.name: each for kind in bench.provider.commitments().values() for each in kind}
    pool = found["commitments e2 us-central1"]
    assert (pool.count, pool.usd_per_h) == (1.0, pytest.approx(8 * 0.021))
    assert pool.unused == pytest.approx(6 / 8)  # the unused reservation uses the commitment
    held = found["reservation us-central1-a/held"]
    assert (held.count, held.unused, held.usd_per_h) == (2, 1, 0.042)
    assert pool.ends_at == datetime.fromisoformat("2039-01-01T00:00:00.000-08:00").timestamp()


def test_types_with_gpus_of_a_known_kind_are_offered_and_launched(bench: GceBench) -> None:
    names = ("e2-standard-2", "g2-standard-4", "a2-highgpu-2g", "ct5lp-hightpu-1t")
    bench.prices_file.write_text(json.dumps({"us-central1": {name: {"on_demand": 0.7} for name in names}}))
    provider = bench.plain(types=["*"])
    kinds = {each.instance_type.name: each.instance_type.capacity.gpus for each in provider.offers()}
    l4, a100 = Gpus(count=1, kind="l4", memory_gib=24.0), Gpus(count=2, kind="a100", memory_gib=40.0)
    assert kinds == {"e2-standard-2": None, "g2-standard-4": l4, "a2-highgpu-2g": a100}
    offer = found(provider, "us-central1-a", "g2-standard-4")
    assert provider.launch(bench.request(offer=offer)).price_usd_per_h == 0.7
