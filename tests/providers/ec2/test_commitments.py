"""Reserved Instances by size and Savings Plans: used first, shared with everybody, and never counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.errors import InsufficientCapacity, QuotaExceeded
from hcloud.core.model import Market
from providers.ec2.account_usage import QUOTAS, quota_of
from providers.ec2.reservations import Coverage, Reservations, ReservedInstances, pool_of
from providers.ec2.savings_plans import PlanBalances, SavingsPlan
from tests.providers.ec2.ec2_bench import Ec2Bench
from tests.providers.ec2.fake_ec2 import REGION, USD_PER_H
from tests.providers.ec2.test_offers import capacity_reservation, offered, reserved


def plan(kind: str = "Compute", usd_per_h: float = 0.13, **more: object) -> dict[str, object]:
    """A savings plan as Amazon tells it."""
    return {
        "savingsPlanId": "sp-1",
        "savingsPlanType": kind,
        "state": "active",
        "commitment": f"{usd_per_h}",
        "currency": "USD",
        "paymentOption": "No Upfront",
        "productTypes": ["EC2"],
        **more,
    }


# ------------------------------------------------------------------------------------------------- Reserved Instances
@pytest.mark.parametrize(
    ("type_name", "pool", "factor"),
    [
        ("m5.large", "m5", 4.0),
        ("m5.xlarge", "m5", 8.0),
        ("m5.4xlarge", "m5", 32.0),
        ("t3.nano", "t3", 0.25),
        ("g5.xlarge", "g5.xlarge", 1.0),
        ("p4d.24xlarge", "p4d.24xlarge", 1.0),
        ("m5.metal", "m5.metal", 1.0),
    ],
)
def test_sizes_of_a_family_share_by_amazons_factors(type_name: str, pool: str, factor: float) -> None:
    assert pool_of(type_name) == (pool, factor)


def test_regional_reserved_instance_covers_other_sizes_of_its_family(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(3)]  # three large: one xlarge and one large
    found = offered(bench, spot_prices_every_s=300)
    large, xlarge = found["a", "m5.large", "reserved"], found["b", "m5.xlarge", "reserved"]
    assert (large.available, xlarge.available) == (3, 1)
    assert large.price_usd_per_h == pytest.approx(0.06)
    assert xlarge.price_usd_per_h == pytest.approx(0.12)
    assert large.pool == xlarge.pool != ""  # the same money, told twice
    assert ("a", "c5.large", "reserved") not in found
    bench.provider.launch(bench.order(xlarge))
    with pytest.raises(InsufficientCapacity):
        bench.provider.launch(bench.order(xlarge))
    bench.provider.launch(bench.order(large))


def test_zonal_reserved_instance_covers_its_own_size_in_its_zone_only(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2, zone=f"{REGION}a")]
    assert {key[:2] for key in offered(bench) if key[2] == "reserved"} == {("a", "m5.large")}


TYPES = ("m5.large", "m5.xlarge", "c5.large", "g5.xlarge")
RUNNING = st.dictionaries(st.tuples(st.sampled_from("ab"), st.sampled_from(TYPES)), st.integers(1, 4), max_size=4)
HELD = st.lists(
    st.builds(
        ReservedInstances,
        zone=st.sampled_from(["a", None]),
        type_name=st.sampled_from(TYPES),
        count=st.integers(1, 4),
        usd_per_h=st.just(0.05),
    ),
    max_size=3,
)


class ForgetsSizes(Coverage):
    """Seeded fault: every machine takes one of its pool, whatever its size."""

    def _cover(self, zone: str, name: str, plain: int, in_reservations: int) -> None:
        pool, _ = pool_of(name)
        self._pools[pool] = self._pools.get(pool, 0.0) - plain - in_reservations


def never_covers_more_than_is_reserved(
    kind: type[Coverage],
    held: Sequence[ReservedInstances],
    plain: Mapping[tuple[str, str], int],
    in_reservations: Mapping[tuple[str, str], int],
) -> None:
    """In units of size: what is covered and what is left make up what is reserved, pool by pool."""
    coverage = kind(Reservations(reserved=tuple(held)), plain, in_reservations)
    for pool in {pool_of(name)[0] for name in TYPES}:
        names = [name for name in TYPES if pool_of(name)[0] == pool]
        bought = sum(each.count * pool_of(each.type_name)[1] for each in held if each.type_name in names)
        running = {name: count_of(plain, name) + count_of(in_reservations, name) for name in names}
        used = sum((running[name] - coverage.uncovered.get(name, 0.0)) * pool_of(name)[1] for name in names)
        spare = coverage._pools.get(pool, 0.0) + sum(
            count * pool_of(name)[1] for (_, name), count in coverage._zonal.items() if name in names
        )
        assert used + spare == pytest.approx(bought) and spare >= -1e-9


def count_of(running: Mapping[tuple[str, str], int], name: str) -> int:
    return sum(count for (_, each), count in running.items() if each == name)


@settings(max_examples=60)
@given(HELD, RUNNING, RUNNING)
def test_what_is_covered_and_what_is_left_make_up_what_is_reserved(
    held: list[ReservedInstances], plain: dict[tuple[str, str], int], in_reservations: dict[tuple[str, str], int]
) -> None:
    never_covers_more_than_is_reserved(Coverage, held, plain, in_reservations)


def test_that_property_catches_who_forgets_sizes() -> None:
    @settings(max_examples=60)
    @given(HELD, RUNNING)
    def holds(held: list[ReservedInstances], running: dict[tuple[str, str], int]) -> None:
        never_covers_more_than_is_reserved(ForgetsSizes, held, running, {})

    with pytest.raises(AssertionError):
        holds()


# ------------------------------------------------------------------------------------------------------ Savings Plans
def test_savings_plan_is_offered_at_its_rate_until_it_is_used_up(bench: Ec2Bench) -> None:
    bench.fake.savings_plans = [plan()]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06, "m5.xlarge": 0.12, "c5.large": 0.05}}
    found = offered(bench)
    offer = found["a", "m5.large", "reserved"]
    assert (offer.price_usd_per_h, offer.available) == (0.06, 2)
    assert found["c", "m5.xlarge", "reserved"].available == 1
    machine = bench.provider.launch(bench.order(offer))
    assert machine.price_usd_per_h == 0.06
    left = {each.key[2]: each.available for each in bench.provider.offers() if each.market is Market.RESERVED}
    assert left == {"m5.large": 1, "c5.large": 1, "m5.xlarge": 0}
    bench.provider.launch(bench.order(offer))
    with pytest.raises(InsufficientCapacity, match="in use"):
        bench.provider.launch(bench.order(offer))


def test_a_reserved_machine_that_is_listed_before_commitments_are_read_keeps_its_price(bench: Ec2Bench) -> None:
    bench.fake.savings_plans = [plan()]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    bench.provider.launch(bench.order(offered(bench)["a", "m5.large", "reserved"]))
    [machine] = bench.restarted().instances(bench.owner).instances
    assert machine.price_usd_per_h == 0.06  # and not on demand


def test_a_reserved_machine_keeps_its_price_while_commitments_cannot_be_read(bench: Ec2Bench) -> None:
    bench.fake.savings_plans = [plan()]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    bench.provider.launch(bench.order(offered(bench)["a", "m5.large", "reserved"]))
    bench.fake.arm("DescribeSavingsPlans", "forbidden")
    bench.provider = bench.restarted()
    bench.provider.offers()
    [machine] = bench.provider.instances(bench.owner).instances
    assert machine.price_usd_per_h == 0.06


def test_a_reserved_machine_keeps_its_price_though_it_has_used_its_plan_up(bench: Ec2Bench) -> None:
    bench.fake.savings_plans = [plan(usd_per_h=0.06)]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    bench.provider.launch(bench.order(offered(bench)["a", "m5.large", "reserved"]))
    bench.let_lists_settle()
    bench.provider.offers()
    [machine] = bench.provider.instances(bench.owner).instances
    assert machine.price_usd_per_h == 0.06


def test_machines_of_others_use_savings_plans_too(bench: Ec2Bench) -> None:
    somebody = bench.for_owner("somebody-else")
    plain = {each.key: each for each in somebody.offers()}["ec2", f"{REGION}c", "m5.large", "on_demand"]
    somebody.launch(bench.order(plain, owner="somebody-else"))
    bench.fake.savings_plans = [plan()]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    assert offered(bench)["a", "m5.large", "reserved"].available == 1


def test_reserved_instances_go_before_savings_plans(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(1)]
    bench.fake.savings_plans = [plan(usd_per_h=0.2)]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.08}}
    first = offered(bench)["a", "m5.large", "reserved"]
    assert (first.price_usd_per_h, first.available) == (pytest.approx(0.06), 1)
    bench.provider.launch(bench.order(first))
    then = {each.key: each for each in bench.provider.offers()}[first.key]
    assert (then.price_usd_per_h, then.available) == (0.08, 2)


def test_launch_beyond_the_kind_of_commitment_that_was_offered_is_refused_before_anything_is_sent(
    bench: Ec2Bench,
) -> None:
    bench.fake.reserved = [reserved(1)]
    bench.fake.savings_plans = [plan(usd_per_h=0.2)]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.08}}
    found = offered(bench)
    bench.provider.launch(bench.order(found["a", "m5.large", "reserved"]))
    with pytest.raises(InsufficientCapacity):  # it would cost $0.08/h, not the $0.06/h that zone b was offered at
        bench.provider.launch(bench.order(found["b", "m5.large", "reserved"]))
    assert bench.fake.count("RunInstances") == 1
    [then] = [each for each in bench.provider.offers() if each.key == found["b", "m5.large", "reserved"].key]
    bench.provider.launch(bench.order(then))


def test_a_savings_plan_pays_for_machines_in_a_capacity_reservation(bench: Ec2Bench) -> None:
    bench.fake.capacity = [capacity_reservation(2)]
    bench.fake.savings_plans = [plan(usd_per_h=0.06)]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    offer = offered(bench)["b", "m5.large", "reserved"]
    assert (offer.commitment, offer.price_usd_per_h, offer.available) == ("savings plans", 0.06, 1)
    bench.provider.launch(bench.order(offer))
    [launch] = [call for call in bench.fake.calls if call.action == "RunInstances"]
    assert "cr-0123456789abcdef0" in launch.parameters.values()
    then = {each.key: each for each in bench.provider.offers()}[offer.key]
    assert (then.commitment, then.price_usd_per_h, then.available) == (
        "capacity reservations",
        USD_PER_H["m5.large"],
        1,
    )


def test_plans_of_elsewhere_and_of_other_things_do_not_count(bench: Ec2Bench) -> None:
    elsewhere = plan("EC2Instance", region="eu-west-1", ec2InstanceFamily="m5")
    bench.fake.savings_plans = [elsewhere, plan("SageMaker"), plan(state="retired"), plan(currency="CNY")]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    assert not [key for key in offered(bench) if key[2] == "reserved"]


def test_every_page_of_plans_and_rates_is_read(bench: Ec2Bench) -> None:
    bench.fake.savings_plans = [plan(savingsPlanId=f"sp-{n}", usd_per_h=0.06) for n in range(3)]
    bench.fake.savings_rates = {f"sp-{n}": {"c5.large": 0.05, "m5.xlarge": 0.12, "m5.large": 0.06} for n in range(3)}
    offered(bench)
    assert sorted(each for each in bench.provider.facts() if each.startswith("savings plan")) == [
        "savings plan sp-0",
        "savings plan sp-1",
        "savings plan sp-2",
    ]
    assert bench.fake.count("DescribeSavingsPlans") == 2
    assert bench.fake.count("DescribeSavingsPlanRates") == 6


def test_plans_on_pages_that_lead_in_circles_are_not_taken(bench: Ec2Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_circles(member: str, rows: Sequence[object], asked: Mapping[str, object]) -> dict[str, object]:
        return {member: rows, "nextToken": "b" if asked.get("nextToken") == "a" else "a"}

    monkeypatch.setattr("tests.providers.ec2.fake_savings._page", in_circles)
    bench.fake.savings_plans = [plan(savingsPlanId="sp-1", usd_per_h=0.06)]
    assert ("a", "m5.large", "on_demand") in offered(bench)
    assert "does not end: a page came twice" in bench.provider.facts()["unread savings plans"]
    assert bench.fake.count("DescribeSavingsPlans") == 3
    assert [each for each in bench.provider.facts() if each.startswith("savings plan")] == []


def test_plans_that_cannot_be_read_are_told_and_cost_nothing_else(bench: Ec2Bench) -> None:
    bench.fake.arm("DescribeSavingsPlans", "forbidden")
    assert ("a", "m5.large", "on_demand") in offered(bench)
    assert "savings plans" in bench.provider.facts()["unread savings plans"]


def test_narrow_plans_are_charged_before_wide_ones_and_where_they_save_most() -> None:
    narrow = SavingsPlan(id="n", usd_per_h=0.06, narrow=True, rates={"m5.large": 0.06})
    wide = SavingsPlan(id="w", usd_per_h=0.10, narrow=False, rates={"m5.large": 0.07, "c5.large": 0.04})
    running = Counter({"m5.large": 1, "c5.large": 1})
    left = PlanBalances([wide, narrow], running, {"m5.large": 0.1, "c5.large": 0.1})
    assert left.left == pytest.approx({"n": 0.0, "w": 0.06})
    covered = left.covers("c5.large")
    assert covered is not None and (covered.usd_per_h, covered.count) == (0.04, 1)
    used_up = left.covers("m5.large")
    assert used_up is not None and (used_up.usd_per_h, used_up.count) == (0.07, 0)


# ------------------------------------------------------------------------------------------------------------- quotas
@pytest.mark.parametrize(
    ("type_name", "market", "quota"),
    [
        ("m5.large", Market.ON_DEMAND, ("on_demand", "standard")),
        ("im4gn.large", Market.SPOT, ("spot", "standard")),
        ("inf2.xlarge", Market.SPOT, ("spot", "inf")),
        ("u-6tb1.metal", Market.RESERVED, ("on_demand", "u")),
        ("gr6.4xlarge", Market.SPOT, ("spot", "g")),
        ("p4d.24xlarge", Market.SPOT, ("spot", "p")),
        ("p5.48xlarge", Market.SPOT, ("spot", "p5")),
        ("p5.48xlarge", Market.ON_DEMAND, ("on_demand", "p")),
    ],
)
def test_each_type_counts_against_its_own_quota(type_name: str, market: Market, quota: tuple[str, str]) -> None:
    assert quota_of(type_name, market) == quota
    assert quota[1] in QUOTAS[quota[0]]


def test_what_the_quota_still_allows_is_counted_with_machines_of_others_and_by_market(bench: Ec2Bench) -> None:
    bench.fake.quota_vcpus = 6
    found = offered(bench, spot_prices_every_s=300)
    large = found["a", "m5.large", "on_demand"]
    assert (large.quota, found["a", "m5.large", "spot"].quota) == ("on_demand standard", "spot standard")
    assert (large.available, found["a", "m5.xlarge", "on_demand"].available) == (3, 1)
    somebody = bench.for_owner("somebody-else")
    somebody.launch(bench.order(large, owner="somebody-else"))
    found = offered(bench, spot_prices_every_s=300)
    assert (found["a", "m5.large", "on_demand"].available, found["a", "m5.large", "spot"].available) == (2, 3)


def test_launch_beyond_the_quota_is_refused_before_anything_is_sent_until_something_has_ended(bench: Ec2Bench) -> None:
    bench.fake.quota_vcpus = 2
    offer = offered(bench, spot_prices_every_s=300)["a", "m5.large", "on_demand"]
    machine = bench.provider.launch(bench.order(offer))
    with pytest.raises(QuotaExceeded, match="quota"):
        bench.provider.launch(bench.order(offer))
    assert bench.fake.count("RunInstances") == 1
    bench.let_lists_settle()
    bench.provider.terminate([machine.provider_id])
    bench.let_pass(10)
    assert {each.key: each.available for each in bench.provider.offers()}[offer.key] == 1
    bench.provider.launch(bench.order(offer))


# ------------------------------------------------------------------------------------------------ what is not used
def unused(bench: Ec2Bench) -> dict[str, tuple[float, float, float]]:
    """Count, unused part and price of one, of each commitment."""
    found = [each for kind in bench.provider.commitments().values() for each in kind]
    return {each.name: (each.count, each.unused, pytest.approx(each.usd_per_h)) for each in found}


def test_unused_commitments_of_every_kind_are_listed_at_what_they_cost(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2, zone=f"{REGION}a"), reserved(4, instanceType="c5.large")]
    bench.fake.capacity = [{**capacity_reservation(1), "totalInstanceCount": 3}]
    bench.fake.savings_plans = [plan()]
    bench.fake.savings_rates = {"sp-1": {"m5.xlarge": 0.12}}
    found = offered(bench)
    cr = "capacity reservation cr-0123456789abcdef0"
    assert unused(bench) == {
        f"{REGION}a/m5.large": (2, 2, 0.06),
        f"reserved c5 {REGION}": (4, 4, 0.06),
        cr: (3, 1, USD_PER_H["m5.large"]),
        "savings plan sp-1": (1, 1, 0.13),
    }
    bench.provider.launch(bench.order(found["a", "m5.large", "reserved"]))
    bench.provider.launch(bench.order(found["b", "m5.large", "reserved"]))
    after = unused(bench)
    assert (after[f"{REGION}a/m5.large"], after[cr]) == ((2, 1, 0.06), (3, 0, USD_PER_H["m5.large"]))


def test_reserved_instances_that_pay_for_an_unused_capacity_reservation_count_once(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(5)]
    bench.fake.capacity = [capacity_reservation(2)]
    offered(bench)
    found = unused(bench)
    assert found["capacity reservation cr-0123456789abcdef0"] == (2, 2, 0.0)
    assert found[f"reserved m5 {REGION}"] == (5, 5, 0.06)


def paid_usd_per_h(bench: Ec2Bench) -> float:
    """What all that no machine uses costs, as `report cost` adds it up."""
    return sum(each.unused * each.usd_per_h for kind in bench.provider.commitments().values() for each in kind)


def test_zonal_reserved_instances_do_not_pay_for_an_unused_capacity_reservation(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(2, zone=f"{REGION}b")]
    bench.fake.capacity = [capacity_reservation(2)]
    offered(bench)
    assert paid_usd_per_h(bench) == pytest.approx(2 * 0.06 + 2 * USD_PER_H["m5.large"])


def test_reserved_instances_pay_once_for_capacity_reservations_of_several_sizes(bench: Ec2Bench) -> None:
    bench.fake.reserved = [reserved(3)]
    large, xlarge = capacity_reservation(1), capacity_reservation(1)
    bench.fake.capacity = [{**xlarge, "instanceType": "m5.xlarge", "capacityReservationId": "cr-x"}, large]
    offered(bench)
    assert paid_usd_per_h(bench) == pytest.approx(3 * 0.06)  # a large and an xlarge are three of large
    bench.fake.reserved = [reserved(2)]
    offered(bench)
    assert paid_usd_per_h(bench) == pytest.approx(2 * 0.06 + USD_PER_H["m5.xlarge"] / 2)


def test_savings_plans_pay_once_for_an_unused_capacity_reservation(bench: Ec2Bench) -> None:
    bench.fake.capacity = [capacity_reservation(2)]
    bench.fake.savings_plans = [plan(usd_per_h=0.06)]
    bench.fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    offered(bench)
    assert unused(bench) == {
        "capacity reservation cr-0123456789abcdef0": (2, 2, USD_PER_H["m5.large"] / 2),
        "savings plan sp-1": (1, 1, 0.06),
    }


@pytest.mark.parametrize("kind", ["Reserved Instances", "savings plans"])
def test_what_is_committed_to_costs_the_same_however_much_of_it_machines_use(bench: Ec2Bench, kind: str) -> None:
    """Room for three machines, of which the other commitment pays for two, wherever they run."""
    bench.fake.capacity = [{**capacity_reservation(3), "totalInstanceCount": 3}]
    if kind == "savings plans":
        bench.fake.savings_plans, bench.fake.savings_rates = [plan(usd_per_h=0.12)], {"sp-1": {"m5.large": 0.06}}
    else:
        bench.fake.reserved = [reserved(2)]
    offer, machines_usd_per_h = offered(bench)["b", "m5.large", "reserved"], 0.0
    for used in range(4):
        assert machines_usd_per_h + paid_usd_per_h(bench) == pytest.approx(2 * 0.06 + USD_PER_H["m5.large"]), used
        if used < 3:
            machines_usd_per_h += bench.provider.launch(bench.order(offer)).price_usd_per_h
            bench.let_lists_settle()
            offer = {each.key: each for each in bench.provider.offers()}[offer.key]


def test_commitments_that_cannot_be_read_are_not_said_to_be_none(bench: Ec2Bench) -> None:
    bench.provider = bench.build({})
    assert bench.provider.commitments() == {}  # nothing was read yet
    bench.fake.arm("DescribeReservedInstances", "forbidden")
    bench.provider.offers()
    assert bench.provider.commitments() == {}
