"""What one job's purchases leave for the next: room, money and zones."""

from dataclasses import replace

import pytest

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    CommittedCapacity,
    Constraints,
    Instance,
    InstanceState,
    Job,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Offer,
    Resources,
)
from hcloud.forecast.fleet_tracker import FleetStats, SpotLifetime
from hcloud.planner.plan import Enqueue, Finish, Launch, Plan, Terminate
from hcloud.planner.snapshot import OfferBackoff
from hcloud.spec.policy import Allow, Budgets, Caps, DisruptionPolicy, Policy, SpotPolicy
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

LARGE = offer("large", vcpus=4.0, usd_per_h=0.4)


def bought(plan: Plan) -> list[tuple[str, ...]]:
    """Return whom each launched instance is for."""
    return [launch.for_jobs for launch in of(plan, Launch)]


def planned(policy: Policy, *things: Job | Instance | Offer) -> Plan:
    return decide(scene(*things), policy)


def gang(count: int, vcpus: float, **demands: object) -> JobSpec:
    """Return a spec of nodes with these constraints."""
    constraints = Constraints(**demands) if demands else Constraints()  # type: ignore[arg-type]
    return spec(resources=need(vcpus), nodes=Nodes(count=count, minimum=count), placement=constraints)


def test_nodes_join_planned_instances_in_different_zones_only() -> None:
    in_a, in_b = replace(LARGE, zone="a", available=2), replace(LARGE, zone="b", price_usd_per_h=0.5)
    ahead = [job(n, asks=spec(resources=need(3.0))) for n in (1, 2)]  # two instances in zone a, each with room for one
    plan = planned(simple(), *ahead, job(3, asks=gang(2, 1.0, spread="zone")), in_a, in_b)
    zones = [launch.offer.zone for launch in of(plan, Launch) if "job-3" in launch.for_jobs]
    assert sorted(zones) == ["a", "b"]


def test_room_that_a_job_could_not_use_after_all_is_there_for_the_next() -> None:
    first = job(1, asks=spec(resources=need(3.0)))
    pair = job(2, asks=gang(2, 1.0, spread="host"))  # joins the first one's instance, and finds no second
    plan = planned(simple(caps=Caps(max_instances=1)), first, pair, job(3), LARGE)
    assert bought(plan) == [("job-1", "job-3")]
    assert told(plan, "job-2") == "cap_instances"


def test_money_that_a_job_could_not_use_after_all_is_there_for_the_next() -> None:
    three = job(1, asks=gang(3, 4.0))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), three, job(2, asks=spec(resources=need(4.0))), LARGE)
    assert bought(plan) == [("job-2",)]
    assert told(plan, "job-1") == "budget_per_hour"


def test_a_running_machine_that_a_job_could_not_use_after_all_is_there_for_the_next() -> None:
    here = machine(1)
    only_small = job(1, asks=replace(gang(2, 2.0), instance_types=("small",)))  # no second one is sold
    plan = planned(simple(), here, only_small, job(2, asks=gang(2, 2.0)), LARGE)
    assert bought(plan) == [("job-2",)]


def test_a_full_fleet_does_not_keep_a_job_from_a_machine_that_boots() -> None:
    full, booting = machine(1), machine(2, state=InstanceState.BOOTING, ready_at=None)
    busy = running(1, full, asks=spec(resources=need(2.0)))
    plan = planned(simple(caps=Caps(max_instances=2)), full, booting, busy, job(2), LARGE)
    assert told(plan, "job-2") == "booting"


def test_an_hourly_budget_counts_the_instance_to_be_launched() -> None:
    jobs = [job(n, asks=spec(resources=need(4.0))) for n in (1, 2, 3)]
    plan = planned(simple(budgets=Budgets(per_hour_usd=0.9)), *jobs, LARGE)
    assert len(bought(plan)) == 2
    assert told(plan, "job-3") == "budget_per_hour"


def test_no_later_job_launches_into_the_room_that_is_made_for_one() -> None:
    huge, small = offer("huge", vcpus=16.0, usd_per_h=0.9), offer("small", vcpus=2.0, usd_per_h=0.3)
    idle = machine(1, offer("odd", vcpus=1.0, usd_per_h=0.5), idle_since=0.0)
    first, second = job(1, asks=spec(resources=need(16.0))), job(2, asks=spec(resources=need(2.0)))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), idle, first, second, huge, small)
    assert [each.instance_id for each in of(plan, Terminate)] == ["inst-1"]
    assert told(plan, "job-1") == "making_room"
    assert bought(plan) == []  # the second would fit today, and take the first one's money when it comes


def test_the_others_that_wait_make_a_larger_instance_worth_its_price() -> None:
    small, middle = offer("small", vcpus=2.0, usd_per_h=0.1), offer("middle", vcpus=4.0, usd_per_h=0.15)
    one, three = job(1), job(2, asks=spec(resources=need(3.0)))
    assert [(each.offer, each.for_jobs) for each in of(planned(simple(), one, three, small, middle), Launch)] == [
        (middle, ("job-1", "job-2"))
    ]
    assert [each.offer for each in of(planned(simple(), one, small, middle), Launch)] == [small]


def test_jobs_that_paid_capacity_will_take_make_no_rented_instance_larger() -> None:
    paid = offer("paid", vcpus=1.0, usd_per_h=0.06, market=Market.RESERVED, available=8)
    small, large = (
        offer("small", vcpus=2.0, usd_per_h=0.1, zone="b"),
        offer("large", vcpus=8.0, usd_per_h=0.2, zone="b"),
    )
    in_b = job(1, asks=spec(placement=Constraints(zones=("b",))))
    plan = planned(simple(), in_b, *(job(n) for n in range(2, 10)), paid, small, large)
    assert [each.offer for each in of(plan, Launch) if each.offer.market is not Market.RESERVED] == [small]
    assert len(of(plan, Launch)) == 1 + 8


@pytest.mark.parametrize(
    ("paid", "in_b"),
    [
        ([(1.0, 1)], "large"),  # seven others need a rented one
        ([(1.0, 8)], "small"),
        ([(1.0, 4), (1.0, 4)], "small"),
        ([(2.0, 4)], "small"),  # two jobs on each
        ([(2.0, 1), (1.0, 1)], "large"),
    ],
)
def test_as_many_jobs_as_all_paid_capacity_takes_make_no_rented_instance_larger(
    paid: list[tuple[float, int]], in_b: str
) -> None:
    reserved = [
        offer(f"paid{n}", vcpus=vcpus, usd_per_h=0.06, market=Market.RESERVED, available=available)
        for n, (vcpus, available) in enumerate(paid)
    ]
    rented = [offer("small", vcpus=2.0, usd_per_h=0.1, zone="b"), offer("large", vcpus=8.0, usd_per_h=0.2, zone="b")]
    first = job(1, asks=spec(placement=Constraints(zones=("b",))))
    plan = planned(simple(), first, *(job(n) for n in range(2, 10)), *reserved, *rented)
    [launch] = [each for each in of(plan, Launch) if "job-1" in each.for_jobs]
    assert launch.offer.instance_type.name == in_b


def test_jobs_alike_are_counted_once_each() -> None:
    """Two of them fill neither a large machine nor are they worth its price; three would be."""
    small, large = offer("small", vcpus=2.0, usd_per_h=0.1), offer("large", vcpus=6.0, usd_per_h=0.25)
    jobs = [job(n, asks=spec(resources=need(2.0))) for n in (1, 2, 3)]
    assert [each.offer for each in of(planned(simple(), *jobs[:2], small, large), Launch)] == [small, small]
    assert [each.offer for each in of(planned(simple(), *jobs, small, large), Launch)] == [large]


def test_best_effort_that_finds_no_room_makes_a_larger_instance_worth_its_price_too() -> None:
    small, middle = offer("small", vcpus=2.0, usd_per_h=0.1), offer("middle", vcpus=4.0, usd_per_h=0.15)
    filler = job(2, asks=spec(resources=need(3.0), target=BestEffortTarget()))
    [launch] = of(planned(simple(), job(1), filler, small, middle), Launch)
    assert (launch.offer, launch.reason.numbers["ranks_expected"]) == (middle, 2)


def test_jobs_that_share_with_none_get_an_instance_each() -> None:
    alone = [job(n, asks=spec(exclusive=True)) for n in (1, 2)]
    assert bought(planned(simple(), *alone, job(3), LARGE)) == [("job-1",), ("job-2",), ("job-3",)]


def test_at_equal_value_the_smaller_instance_is_bought_and_of_equal_ones_the_first_by_name() -> None:
    small, twice = offer("b", vcpus=2.0, usd_per_h=0.1), offer("a", vcpus=4.0, usd_per_h=0.2)
    two = [job(n, asks=spec(resources=need(2.0))) for n in (1, 2)]
    assert [each.offer for each in of(planned(simple(), *two, small, twice), Launch)] == [small, small]
    same = offer("a", vcpus=2.0, usd_per_h=0.1)
    assert [each.offer for each in of(planned(simple(), job(1), small, same), Launch)] == [same]
    # With one instance left to buy, the one that serves most.
    at_cap = simple(caps=Caps(max_instances=1))
    assert [each.offer for each in of(planned(at_cap, *two, small, twice), Launch)] == [twice]


def test_paid_instances_are_bought_first_and_no_more_than_there_are() -> None:
    paid = offer("paid", vcpus=2.0, usd_per_h=9.0, market=Market.RESERVED, available=1)
    jobs = [job(n, asks=spec(resources=need(2.0))) for n in (1, 2)]
    launches = of(planned(simple(), *jobs, paid, offer()), Launch)
    assert [each.offer.market for each in launches] == [Market.RESERVED, Market.ON_DEMAND]


def test_a_pool_that_offers_share_is_not_sold_twice() -> None:
    left = Resources(vcpus=6.0, memory_mib=6 * 4096, disk_gib=900.0)
    pooled = {"pool": "rack", "pool_free": left, "priced_at": NOW}
    small, large = offer("small", vcpus=2.0, usd_per_h=0.1, **pooled), replace(LARGE, **pooled)
    jobs = [job(n, asks=spec(resources=need(4.0 if n == 1 else 2.0))) for n in (1, 2, 3)]
    plan = planned(simple(), *jobs, small, large)
    assert sorted(bought(plan)) == [("job-1",), ("job-2",)]
    # What was requested since the offers were read is gone from the pool; what was before is not in it.
    for requested_at, count in ((NOW + 1.0, 0), (NOW - 1.0, 1)):
        full = machine(1, large, requested_at=requested_at)
        other = machine(2, offer("odd", vcpus=1.0))  # of no pool
        holds = running(9, full, asks=spec(resources=need(4.0)))
        assert len(bought(planned(simple(), full, other, holds, jobs[0], small, large))) == count


def test_offers_that_policy_or_market_exclude_are_not_bought_and_named() -> None:
    spot = offer(market=Market.SPOT)
    only_spot, no_spot = simple(allow=Allow(markets=(Market.SPOT,))), simple(spot=SpotPolicy(for_targets=()))
    for policy, only in ((only_spot, offer()), (no_spot, spot)):
        plan = planned(policy, job(1), only)
        [finish] = of(plan, Finish)
        assert bought(plan) == []
        assert (finish.reason.code, finish.reason.numbers["why"]) == ("impossible", "not_allowed")


def why_impossible(*things: Job | Offer, policy: Policy | None = None) -> tuple[object, object]:
    """Return the cause for which a job can never run, and the type that is named as nearest to it."""
    [finish] = of(planned(policy or simple(), *things), Finish)
    return finish.reason.numbers["why"], finish.reason.numbers["nearest"]


def test_an_offer_that_a_job_may_not_use_is_not_named_as_what_policy_keeps_from_it() -> None:
    small, huge = offer(), offer("huge", vcpus=32.0, usd_per_h=2.0)
    large = job(1, asks=spec(resources=need(16.0)))
    only_small = replace(large, spec=replace(large.spec, instance_types=("small",)))
    cheap = simple(caps=Caps(max_price_usd_per_h=1.0))
    assert why_impossible(large, small, huge, policy=cheap) == ("not_allowed", "huge")
    assert bought(planned(simple(caps=Caps(max_price_usd_per_h=2.0)), large, huge)) == [("job-1",)]
    assert why_impossible(only_small, small, huge, policy=cheap) == ("no_offer_fits", "small")


def test_the_nearest_offer_is_the_one_that_lacks_the_least_of_what_it_lacks_most() -> None:
    roomy = Resources(vcpus=2.0, memory_mib=999_999, disk_gib=900.0)
    fat = replace(offer("fat"), instance_type=replace(offer("fat").instance_type, capacity=roomy))
    assert why_impossible(job(1, asks=spec(resources=need(16.0))), offer("half", vcpus=8.0), fat) == (
        "no_offer_fits",
        "half",
    )


def test_a_quota_is_named_only_where_it_is_the_cause_for_all_offers() -> None:
    def wait_code(*errors: str) -> str:
        offers = [offer(f"t{n}") for n, _ in enumerate(errors)]
        backoffs = [
            OfferBackoff(provider="mock", zone="a", instance_type=f"t{n}", until_at=NOW + 60.0, error=error)
            for n, error in enumerate(errors)
        ]
        return told(decide(scene(job(1), *offers, backoffs=tuple(backoffs))), "job-1")

    assert wait_code("vCPU quota exceeded", "Quota 'GPUS' reached") == "quota_exceeded"
    assert wait_code("vCPU quota exceeded", "no capacity") == "all_backed_off"


def test_an_offer_within_the_limits_is_bought_though_the_best_one_is_not() -> None:
    small, cheap = offer("small", vcpus=2.0, usd_per_h=0.3), offer("large", vcpus=4.0, usd_per_h=0.1)
    plan = planned(simple(caps=Caps(max_vcpus=2.0)), job(1), small, cheap)
    assert [each.offer for each in of(plan, Launch)] == [small]
    over = planned(simple(caps=Caps(max_vcpus=1.0)), job(1), small, cheap)
    assert bought(over) == []
    assert told(over, "job-1") == "cap_vcpus"


def test_nodes_that_must_not_share_an_instance_get_one_each() -> None:
    assert bought(planned(simple(), job(1, asks=gang(2, 1.0, spread="host")), LARGE)) == [("job-1",), ("job-1",)]
    assert bought(planned(simple(), job(1, asks=gang(2, 1.0)), LARGE)) == [("job-1", "job-1")]


@pytest.mark.parametrize(("huge_usd", "ended"), [(0.9, ["inst-1"]), (1.0, [])])
def test_room_is_made_only_if_what_this_plan_buys_leaves_enough(huge_usd: float, ended: list[str]) -> None:
    """$1.20/h less $0.30 for what is bought for the first."""
    huge, small = offer("huge", vcpus=16.0, usd_per_h=huge_usd), offer("small", vcpus=2.0, usd_per_h=0.3)
    idle = machine(1, offer("odd", vcpus=1.0, usd_per_h=0.5))
    jobs = [job(1, asks=spec(resources=need(2.0))), job(2, asks=spec(resources=need(16.0)))]
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.2)), idle, *jobs, huge, small)
    assert [each.instance_id for each in of(plan, Terminate)] == ended


@pytest.mark.parametrize(("most", "ended"), [(1, 0), (2, 2)])
def test_room_is_made_with_no_more_ends_than_a_cycle_may_have(most: int, ended: int) -> None:
    idle = [machine(n, offer("odd", vcpus=1.0, usd_per_h=0.4)) for n in (1, 2)]
    policy = simple(budgets=Budgets(per_hour_usd=1.0), disruption=DisruptionPolicy(max_terminations_per_cycle=most))
    plan = planned(policy, *idle, job(1, asks=spec(resources=need(16.0))), offer("huge", vcpus=16.0, usd_per_h=1.0))
    assert len(of(plan, Terminate)) == ended
    assert told(plan, "job-1") == ("making_room" if ended else "budget_per_hour")


def test_spot_with_a_notice_or_for_long_runs_is_dearer_than_it_looks() -> None:
    spot, steady = offer(usd_per_h=0.03, market=Market.SPOT), offer(usd_per_h=0.1)
    up = [machine(n, spot, launched_at=NOW - 60.0, preempt_at=NOW + 60.0) for n in range(1, 10)]
    for fleet, market in ((up, Market.ON_DEMAND), ([replace(each, preempt_at=None) for each in up], Market.SPOT)):
        busy = [replace(each, state=InstanceState.DRAINING) for each in fleet]
        launches = of(planned(simple(), *busy, job(1), spot, steady), Launch)
        assert [each.offer.market for each in launches] == [market]
    lost, kept = (SpotLifetime(NOW - 5.0, "mock", "r", "small", 60.0, preempted) for preempted in (True, False))
    lifetimes = (lost, kept)
    for busy_s, market in (((), Market.SPOT), ((3600.0,), Market.ON_DEMAND)):
        stats = FleetStats(spot_lifetimes=lifetimes, busy_s=busy_s)
        launches = of(decide(scene(job(1), spot, steady, fleet_stats=stats)), Launch)
        assert [each.offer.market for each in launches] == [market]


def test_a_job_that_needs_nothing_of_a_resource_fits_on_what_has_room_for_the_others() -> None:
    asks = spec(resources=Resources(vcpus=3.0, memory_mib=512, disk_gib=0.0))
    plan = planned(simple(), *(job(n, asks=asks) for n in (1, 2)), LARGE)
    assert bought(plan) == [("job-1",), ("job-2",)]
    assert [each.reason.numbers["ranks_expected"] for each in of(plan, Launch)] == [1, 1]


def test_what_a_gang_could_not_use_is_in_stock_again_once() -> None:
    pair, others = job(1, asks=gang(2, 4.0)), [job(n, asks=spec(resources=need(4.0))) for n in (2, 3)]
    assert bought(planned(simple(), pair, *others, replace(LARGE, available=1))) == [("job-2",)]


def test_jobs_behind_one_that_awaits_its_instance_are_served() -> None:
    booting = machine(1, LARGE, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
    first = job(1, JobState.AWAITING_INSTANCE, asks=spec(resources=need(4.0)), awaiting=("inst-1",))
    assert bought(planned(simple(), booting, first, job(2), job(3, asks=gang(2, 4.0)), LARGE)) == [
        ("job-2",),
        ("job-3",),
        ("job-3",),
    ]


def test_a_job_waits_for_an_instance_that_boots_and_says_for_how_long() -> None:
    booting = machine(1, LARGE, state=InstanceState.BOOTING, ready_at=None, idle_since=None, launched_at=NOW - 10.0)
    plan = planned(simple(), booting, job(1), LARGE)
    assert bought(plan) == []
    [waits] = [each for each in plan.actions if getattr(each, "job_id", "") == "job-1"]
    assert waits.reason.numbers["expected_in_s"] == 20.0
    assert waits.reason.numbers["expected_at"] == NOW + 20.0


def test_a_rented_instance_is_not_shared_while_a_paid_one_can_be_launched_in_time() -> None:
    paid = offer("paid", vcpus=1.0, usd_per_h=0.2, market=Market.RESERVED, available=1)
    first = job(1, asks=spec(resources=need(3.0)))
    for deadline_s, launched in ((None, 2), (9000.0, 2), (20.0, 1)):  # a paid one would boot for 30 s
        asks = spec(target=BestEffortTarget() if deadline_s is None else BatchTarget(finish_within_s=deadline_s + 98.0))
        second = job(2, asks=asks)
        plan = planned(simple(), first, second, paid, LARGE)
        assert len(of(plan, Launch)) == launched


def test_an_instance_is_worth_only_the_jobs_that_fit_on_it_together() -> None:
    exact, large = offer("exact", vcpus=3.0, usd_per_h=0.1), offer("large", vcpus=4.0, usd_per_h=0.15)
    jobs = [job(1, asks=spec(resources=need(3.0))), job(2, asks=spec(resources=need(2.5)))]
    assert [each.offer for each in of(planned(simple(), *jobs, exact, large), Launch)] == [exact, exact]


def test_jobs_that_fill_an_instance_leave_no_room_there_for_others() -> None:
    small, large = offer("small", vcpus=2.0, usd_per_h=0.1), offer("large", vcpus=4.0, usd_per_h=0.25)
    jobs = [job(n, asks=spec(resources=need(2.0, 1024 if n == 3 else 512))) for n in (1, 2, 3)]
    assert [each.offer for each in of(planned(simple(), *jobs, small, large), Launch)] == [small] * 3


def test_jobs_that_may_not_use_a_type_do_not_make_it_worth_its_price() -> None:
    small, large = offer("small", vcpus=2.0, usd_per_h=0.1), offer("large", vcpus=4.0, usd_per_h=0.15)
    other = offer("other", vcpus=2.0, usd_per_h=0.5)
    jobs = [
        job(1, asks=spec(resources=need(2.0), instance_types=("small", "large"))),
        job(2, asks=spec(resources=need(2.0), instance_types=("other",))),
    ]
    assert [each.offer for each in of(planned(simple(), *jobs, small, large, other), Launch)] == [small, other]


def test_a_job_that_finds_no_offer_does_not_keep_another_from_its_own() -> None:
    assert bought(planned(simple(), job(1), job(2, asks=spec(instance_types=("other",))), LARGE)) == [("job-1",)]


def test_launches_use_commitments_that_end_last_first_and_none_that_ends_within_a_lease() -> None:
    ends = [(None, 1), (NOW + 9000.0, 2), (NOW + 3599.0, 5)]
    committed = tuple(CommittedCapacity(ends_at=at, free=free, used=1) for at, free in ends)
    paid = offer("paid", market=Market.RESERVED, available=8, ends_at=None, committed=committed)
    launched = [each.offer for each in of(planned(simple(), *(job(n) for n in range(1, 12)), paid, LARGE), Launch)]
    reserved = [each for each in launched if each.market is Market.RESERVED]
    assert [each.ends_at for each in reserved] == [None, NOW + 9000.0, NOW + 9000.0]
    assert [each.committed for each in reserved] == [(), (), ()]
    assert len(launched) > len(reserved)


def test_launches_of_fewer_than_are_committed_use_those_that_end_last() -> None:
    committed = tuple(CommittedCapacity(ends_at=at, free=4) for at in (NOW + 9000.0, NOW + 5000.0))
    paid = offer("paid", market=Market.RESERVED, available=1, committed=committed)
    [launch] = of(planned(simple(), job(1), paid), Launch)
    assert launch.offer.ends_at == NOW + 9000.0


def test_launches_have_the_end_of_the_kind_of_commitment_that_they_use() -> None:
    parts = [("instances", NOW + 5000.0, 1), ("plans", NOW + 9000.0, 3)]
    committed = tuple(CommittedCapacity(kind=kind, ends_at=at, free=free) for kind, at, free in parts)
    paid = offer("paid", market=Market.RESERVED, available=1, committed=committed, commitment="instances")
    launched = [each.offer for each in of(planned(simple(), *(job(n) for n in range(1, 5)), paid, LARGE), Launch)]
    [reserved] = [each for each in launched if each.market is Market.RESERVED]
    assert (reserved.ends_at, reserved.commitment) == (NOW + 5000.0, "instances")


@pytest.mark.parametrize(("left_s", "market"), [(3599.0, Market.ON_DEMAND), (3600.0, Market.RESERVED)])
def test_a_commitment_that_ends_within_a_lease_is_not_begun(left_s: float, market: Market) -> None:
    paid = offer("paid", market=Market.RESERVED, available=1, ends_at=NOW + left_s)
    assert [each.offer.market for each in of(planned(simple(), job(1), paid, LARGE), Launch)] == [market]


def test_a_gang_that_awaits_a_machine_and_lost_room_on_another_is_queued_again_and_buys() -> None:
    coming, full = machine(1, state=InstanceState.BOOTING, ready_at=None), machine(2)
    awaiting = replace(job(1, asks=gang(2, 2.0)), state=JobState.AWAITING_INSTANCE, awaiting=("inst-1",))
    busy = running(2, full, asks=spec(resources=need(2.0)))
    plan = planned(simple(), coming, full, awaiting, busy, offer(available=4))
    assert [each.job_id for each in of(plan, Enqueue)] == ["job-1"]
    assert bought(plan) == [("job-1",)]


def test_a_gang_keeps_no_machine_that_boots_when_the_others_are_not_to_be_had() -> None:
    coming = machine(1, state=InstanceState.BOOTING, ready_at=None)
    plan = planned(
        simple(caps=Caps(max_instances=2)), coming, job(1, asks=gang(3, 2.0)), job(2, asks=gang(2, 2.0)), offer()
    )
    assert told(plan, "job-1") == "cap_instances"
    assert bought(plan) == [("job-2",)]


def test_launch_says_what_is_too_little_where_vcpus_are_free() -> None:
    full = running(2, machine(1, LARGE), asks=spec(resources=need(1.0, 4 * 4096)))
    [launch] = of(planned(simple(), machine(1, LARGE, idle_since=None), full, job(1), LARGE), Launch)
    assert "too little memory on 1 machine with vCPUs free" in launch.reason.text
    [plain] = of(planned(simple(), job(1), LARGE), Launch)
    assert "too little" not in plain.reason.text
