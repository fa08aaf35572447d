"""Which jobs go where under the strategies of the paper: single decisions with their numbers."""

from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.model import BatchTarget, Instance, InstanceState, Job, Market, Offer, ServiceTarget
from hcloud.core.quality import Delivered, TypeQuality
from hcloud.forecast.fleet_tracker import FleetStats, Release
from hcloud.planner.context import open_context
from hcloud.planner.plan import Launch, Place, Plan
from hcloud.planner.provisioning.mapping import PLAIN, soft_limit
from hcloud.planner.snapshot import OfferBackoff
from hcloud.spec.policy import Caps, MappingPolicy, Policy, ProvisioningPolicy, Strategy
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple
from tests.strategies_provisioning import classification

RESERVED = offer("r16", vcpus=16.0, usd_per_h=0.3, market=Market.RESERVED, available=0)
SMALL, FULL = offer("small", vcpus=2.0, usd_per_h=0.1), offer("full", vcpus=16.0, usd_per_h=0.8)
KNOWN = {"calm": classification(0.1), "keen": classification(0.97)}


def under(strategy: Strategy, mapping: MappingPolicy = "p8", **changes: float) -> Policy:
    """Return a policy with this strategy."""
    limits = {"soft_limit": 0.65, "hard_limit": 0.9, "unmeasured_quality_small": 0.5}
    return simple(provisioning=ProvisioningPolicy(strategy=strategy, mapping=mapping, **limits | changes))


def reserved_in_use(vcpus: float, number: int = 1) -> tuple[Job, Instance]:
    """Return a reserved instance of 16 vCPUs with one unit of that size."""
    on = machine(number, RESERVED, idle_since=None)
    return running(90 + number, on, asks=spec(resources=need(vcpus))), on


def decided(*things: Job | Instance | Offer, policy: Policy, fleet_stats: FleetStats | None = None) -> Plan:
    """Return the plan with these estimates."""
    return decide(scene(*things, applications=KNOWN, fleet_stats=fleet_stats or FleetStats()), policy)


def launched(plan: Plan) -> list[str]:
    """Return the launched types."""
    return [a.offer.instance_type.name for a in of(plan, Launch)]


# -------------------------------------------------------------------------------------------------- what may be rented
@pytest.mark.parametrize(
    ("strategy", "types"),
    [("best_value", ["r16"]), ("sr", ["r16"]), ("odf", ["full"]), ("odm", ["small"]), ("hf", ["r16"]), ("hm", ["r16"])],
)
def test_strategies_differ_in_what_they_launch(strategy: Strategy, types: list[str]) -> None:
    assert launched(decided(job(1), replace(RESERVED, available=1), SMALL, FULL, policy=under(strategy))) == types


def test_under_sr_jobs_wait_for_reserved_machines_that_are_all_out() -> None:
    busy = reserved_in_use(16)
    plan = decided(job(1), *busy, RESERVED, SMALL, FULL, policy=under("sr"))
    assert not of(plan, Launch)
    assert told(plan, "job-1") == "sold_out"


def test_the_largest_of_a_provider_without_full_servers_counts_as_full() -> None:
    middle = offer("middle", vcpus=8.0, usd_per_h=0.4)
    assert launched(decided(job(1), SMALL, middle, policy=under("odf"))) == ["middle"]
    tiny = offer("tiny", vcpus=0.5, usd_per_h=0.03)
    assert launched(decided(job(1, asks=spec(resources=need(0.5))), tiny, policy=under("odf"))) == ["tiny"]


# -------------------------------------------------------------------------------------------------------- mapping by P8
def test_below_the_soft_limit_everybody_goes_to_reserved_machines() -> None:
    plan = decided(job(1, application="calm"), *reserved_in_use(8), SMALL, FULL, policy=under("hm"))
    (place,) = of(plan, Place)
    assert place.ranks[0].instance_id == "inst-1"
    assert "; mapped to reserved room: needs quality " in place.reason.text
    assert "; 56 % of the reserved vCPUs are in use" in place.reason.text
    assert place.reason.numbers["mapped_to"] == "reserved"


def test_above_it_a_job_that_can_do_without_is_served_on_demand_and_one_that_cannot_is_not() -> None:
    busy = reserved_in_use(12)
    calm = decided(job(1, application="calm"), *busy, SMALL, FULL, policy=under("hm"))
    assert (launched(calm), of(calm, Place)) == (["small"], [])
    keen = decided(job(1, application="keen"), *busy, SMALL, FULL, policy=under("hm"))
    assert (launched(keen), [a.ranks[0].instance_id for a in of(keen, Place)]) == ([], ["inst-1"])


def test_hf_rents_full_servers_only() -> None:
    plan = decided(job(1, application="calm"), *reserved_in_use(12), SMALL, FULL, policy=under("hf"))
    assert launched(plan) == ["full"]


def test_what_a_type_delivered_decides_who_can_do_with_it() -> None:
    seen = [
        Delivered(provider="mock", region="r", instance_type="small", market=Market.ON_DEMAND, quality=0.05)
        for _ in range(40)
    ]
    poor = FleetStats(quality=TypeQuality.of(seen))
    plan = decided(job(1, application="calm"), *reserved_in_use(12), SMALL, FULL, policy=under("hm"), fleet_stats=poor)
    assert launched(plan) == ["full"]


def test_idle_reserved_machine_is_used_whatever_the_limit() -> None:
    full, idle = reserved_in_use(16), machine(2, offer("r2", vcpus=2.0, market=Market.RESERVED))
    plan = decided(job(1, application="calm"), *full, idle, SMALL, FULL, policy=under("hm"))
    assert (launched(plan), [a.ranks[0].instance_id for a in of(plan, Place)]) == ([], ["inst-2"])


def test_above_the_hard_limit_a_demanding_job_waits_until_it_has_waited_longer_than_a_spin_up() -> None:
    busy, policy = reserved_in_use(15.5), under("hm")
    fresh = job(1, application="keen", submitted_at=NOW - 5)
    plan = decided(fresh, *busy, SMALL, FULL, policy=policy)
    assert (launched(plan), told(plan, "job-1")) == ([], "waits_for_reserved")
    assert plan.actions[-1].reason.numbers["spin_up_s"] == 30.0
    overdue = job(1, application="keen", submitted_at=NOW - 31)
    assert launched(decided(overdue, *busy, SMALL, FULL, policy=policy)) == ["full"]


def test_a_job_that_waits_for_reserved_room_takes_none_that_is_closed_to_it() -> None:
    keen = job(1, application="keen", submitted_at=NOW - 5)
    plan = decided(keen, *reserved_in_use(15.0), SMALL, FULL, policy=under("hm"))
    assert (of(plan, Place), told(plan, "job-1")) == ([], "waits_for_reserved")


@pytest.mark.parametrize(
    ("offers", "code"),
    [
        ((SMALL, FULL), "waits_for_reserved"),
        ((replace(SMALL, available=0), FULL), "waits_for_reserved"),
        ((replace(SMALL, available=0), replace(FULL, available=0)), "sold_out"),
        ((replace(SMALL, available=0), offer("tiny", vcpus=0.5)), "sold_out"),
        ((replace(SMALL, zone="b"),), "all_backed_off"),
    ],
)
def test_a_job_waits_for_reserved_room_only_where_something_else_could_be_rented(
    offers: tuple[Offer, ...], code: str
) -> None:
    keen = job(1, application="keen", submitted_at=NOW - 5)
    refused = OfferBackoff(provider="mock", zone="b", instance_type="small", until_at=NOW + 60, error="stockout")
    plan = decide(
        scene(keen, *reserved_in_use(15.5), *offers, applications=KNOWN, backoffs=(refused,)),
        under("hm"),
    )
    assert (launched(plan), told(plan, "job-1")) == ([], code)


def test_a_job_is_overdue_once_the_full_server_that_starts_soonest_would_be_up() -> None:
    slow = replace(FULL, instance_type=replace(offer("slow", 16.0).instance_type, boot_delay_s=300.0))
    for waited_s, bought in ((30.0, []), (31.0, ["full"])):
        waiting = job(1, application="keen", submitted_at=NOW - waited_s)
        assert launched(decided(waiting, *reserved_in_use(15.5), SMALL, FULL, slow, policy=under("hm"))) == bought


def test_a_job_that_no_reserved_machine_is_large_enough_for_is_rented_for_at_once() -> None:
    huge = offer("huge", vcpus=32.0, usd_per_h=1.6)
    fresh = job(1, application="keen", submitted_at=NOW - 5.0, asks=spec(resources=need(20.0)))
    assert launched(decided(fresh, *reserved_in_use(15.5), SMALL, huge, policy=under("hm"))) == ["huge"]


def test_expected_wait_longer_than_a_spin_up_rents_a_full_server_at_once() -> None:
    busy, fresh = reserved_in_use(15.5), job(1, application="keen", submitted_at=NOW - 5)
    often, seldom = (
        FleetStats(releases=tuple(Release(at=NOW - gap * n, vcpus=4.0) for n in range(9, 0, -1))) for gap in (2, 90)
    )
    assert not launched(decided(fresh, *busy, SMALL, FULL, policy=under("hm"), fleet_stats=often))
    assert launched(decided(fresh, *busy, SMALL, FULL, policy=under("hm"), fleet_stats=seldom)) == ["full"]


def test_hybrids_launch_reserved_machines_of_any_size() -> None:
    paid = offer("r2", vcpus=2.0, usd_per_h=9.0, market=Market.RESERVED, available=1)
    for strategy in ("hf", "hm"):
        assert launched(decided(job(1), paid, SMALL, FULL, policy=under(strategy))) == ["r2"]


def test_hf_counts_on_full_servers_only() -> None:
    busy = reserved_in_use(12)
    strategy = open_context(scene(*busy, SMALL, FULL), under("hf"), np.random.default_rng(0)).strategy
    assert strategy.hybrid is not None
    assert [each.instance_type.name for each in strategy.hybrid.rented] == ["full"]


def test_reserved_capacity_that_is_not_launched_yet_counts_for_mapping_and_use() -> None:
    """A demanding job is not sent to a small type, and 12 vCPUs of 32 are below the soft limit."""
    unlaunched = replace(RESERVED, available=1)
    keen = job(1, application="keen", asks=spec(instance_types=("small",)))
    assert told(decided(keen, unlaunched, SMALL, FULL, policy=under("hm")), "job-1") == "waits_for_reserved"
    calm = job(1, application="calm", asks=spec(instance_types=("r16", "small")))
    busy = reserved_in_use(12)
    plan = decided(
        calm, *busy, replace(unlaunched, instance_type=offer("r16b", 16.0).instance_type), SMALL, policy=under("hm")
    )
    assert [a.ranks[0].instance_id for a in of(plan, Place)] == ["inst-1"]
    assert launched(decided(calm, *busy, RESERVED, SMALL, policy=under("hm"))) == ["small"]


def test_all_that_a_counted_stock_has_left_is_reserved_capacity() -> None:
    """12 vCPUs of 16 are in use, or of 32 with four machines of four vCPUs."""
    calm = job(1, application="calm", asks=spec(instance_types=("r16", "small")))
    left = offer("r4", vcpus=4.0, usd_per_h=0.1, market=Market.RESERVED)
    for available, placed in ((4, True), (0, False), (None, False)):
        stock = replace(left, available=available)
        plan = decided(calm, *reserved_in_use(12), stock, SMALL, FULL, policy=under("hm"))
        assert bool(of(plan, Place)) is placed


def test_booting_machines_are_reserved_capacity_only_if_their_stock_is_counted() -> None:
    calm = job(1, application="calm")
    for available, placed in ((0, True), (None, False)):
        stock = replace(RESERVED, available=available)
        boots = machine(2, stock, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
        plan = decided(calm, *reserved_in_use(12), boots, SMALL, FULL, policy=under("hm"))
        assert bool(of(plan, Place)) is placed


def test_ready_machines_of_a_stock_without_a_number_count_as_reserved_capacity() -> None:
    used, on = reserved_in_use(8)
    uncounted = replace(on, offer=replace(RESERVED, available=None))
    calm = job(1, application="calm")
    assert of(decided(calm, used, uncounted, SMALL, FULL, policy=under("hm")), Place)


def test_a_type_that_delivers_exactly_what_is_needed_is_not_good_enough_for_that_job_alone() -> None:
    """Full servers deliver one half; a job that needs one half counts as one that needs reserved room."""
    policy = under("hm", unmeasured_quality_small=0.5, unmeasured_quality_full=0.5)
    for needed, placed in ((0.5, True), (0.49, False)):
        known = {"even": classification(needed)}
        waiting = job(1, application="even")
        plan = decide(scene(waiting, *reserved_in_use(12), FULL, applications=known), policy)
        assert bool(of(plan, Place)) is placed
        fresh = replace(waiting, submitted_at=NOW - 5.0)  # above the hard limit, it is rented for or waits
        plan = decide(scene(fresh, *reserved_in_use(15.5), FULL, applications=known), policy)
        assert bool(of(plan, Launch)) is not placed


def test_the_wait_is_expected_from_releases_as_large_as_the_job_and_by_the_quantile_of_the_policy() -> None:
    fresh = job(1, application="keen", submitted_at=NOW - 5, asks=spec(resources=need(4)))
    policy = under("hm", wait_quantile=0.5)

    def waits(*gaps_s: float, vcpus: float = 4.0) -> bool:
        ends_at = [NOW - 500.0 + sum(gaps_s[:n]) for n in range(len(gaps_s) + 1)]
        stats = FleetStats(releases=tuple(Release(at=at, vcpus=vcpus) for at in ends_at))
        return not launched(decided(fresh, *reserved_in_use(15.5), SMALL, FULL, policy=policy, fleet_stats=stats))

    assert waits(2.0, 2.0, 2.0, 2.0, 90.0)
    assert not waits(2.0, 2.0, 90.0, 90.0, 90.0)
    assert waits(2.0, 2.0, 90.0, 90.0, 90.0, vcpus=2.0), "too little is known of releases as large as this one"


@pytest.mark.parametrize("vcpus", [1.0, 2.0])
def test_jobs_that_may_not_use_a_type_neither_share_it_nor_make_it_a_better_value(vcpus: float) -> None:
    middle = offer("middle", vcpus=4.0, usd_per_h=0.15)
    calm = job(1, application="calm", asks=spec(instance_types=("small", "middle")))
    keen = job(2, application="keen", asks=spec(resources=need(vcpus)))
    plan = decided(calm, keen, *reserved_in_use(15.5), SMALL, middle, FULL, policy=under("hm"))
    assert launched(plan) == ["small", "full"]


def test_if_nothing_can_be_rented_reserved_room_is_open_to_all() -> None:
    policy = replace(under("hm"), caps=Caps(max_instances=1))
    plan = decided(job(1, application="calm"), *reserved_in_use(12), SMALL, FULL, policy=policy)
    assert [a.ranks[0].instance_id for a in of(plan, Place)] == ["inst-1"]


@pytest.mark.parametrize("caps", [Caps(max_price_usd_per_h=0.5), Caps(max_instances_per_type={"full": 0})])
def test_a_machine_that_may_never_be_launched_is_not_counted_on(caps: Caps) -> None:
    policy = replace(under("hm"), caps=caps)
    strategy = open_context(scene(*reserved_in_use(12), SMALL, FULL), policy, np.random.default_rng(0)).strategy
    assert strategy.hybrid is not None
    assert [each.instance_type.name for each in strategy.hybrid.rented] == ["small"]
    assert not strategy.hybrid.tolerant(PLAIN, need(16.0)), "only the large one would have had room"


def test_nothing_reserved_means_the_best_value_of_what_is_rented_at_once() -> None:
    gone = replace(RESERVED, available=0)
    for offers in ((SMALL, FULL), (SMALL, FULL, gone)):
        assert launched(decided(job(1, application="keen"), *offers, policy=under("hm"))) == ["small"]
        assert launched(decided(job(1, application="keen"), *offers, policy=under("hf"))) == ["full"]


def test_no_job_is_kept_from_a_type_that_delivers_about_as_much_as_the_best() -> None:
    busy = reserved_in_use(16)
    worse, alike = under("hm", unmeasured_quality_small=0.85), under("hm", unmeasured_quality_small=0.92)
    assert launched(decided(job(1, application="keen"), *busy, SMALL, FULL, policy=alike)) == ["small"]
    assert launched(decided(job(1, application="keen"), *busy, SMALL, FULL, policy=worse)) != ["small"]


def test_kind_of_job_decides_where_nothing_is_known_of_it() -> None:
    service = spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=5.0))
    batch = spec(target=BatchTarget(finish_within_s=9e4))
    busy, policy = reserved_in_use(12), under("hm", assumed_quality_batch=0.1, assumed_quality_service=0.96)
    assert of(decided(job(1, asks=service), *busy, SMALL, FULL, policy=policy), Place)
    assert launched(decided(job(1, asks=batch), *busy, SMALL, FULL, policy=policy)) == ["small"]


# ------------------------------------------------------------------------------------------- mappings to compare with
@pytest.mark.parametrize(
    ("mapping", "in_use", "application", "placed"),
    [
        ("p2", 1.0, "keen", True),
        ("p2", 1.0, "calm", False),
        ("p4", 1.0, "calm", False),
        ("p5", 7.0, "calm", True),
        ("p5", 8.0, "calm", False),
        ("p5", 9.0, "keen", False),
        ("p7", 9.0, "calm", True),
    ],
)
def test_mappings_send_jobs_where_the_paper_says(
    mapping: MappingPolicy, in_use: float, application: str, placed: bool
) -> None:
    waiting = job(1, application=application)
    plan = decided(waiting, *reserved_in_use(in_use), SMALL, FULL, policy=under("hm", mapping))
    assert bool(of(plan, Place)) is placed
    assert bool(of(plan, Launch)) is not placed


def test_a_full_reserved_fleet_is_closed_by_its_limit_though_a_machine_of_it_is_idle() -> None:
    idle = machine(2, offer("r2", vcpus=2.0, market=Market.RESERVED))
    plan = decided(job(1), *reserved_in_use(16), idle, SMALL, FULL, policy=under("hm", "p5"))
    assert (launched(plan), of(plan, Place)) == (["small"], [])


def test_a_job_that_is_mapped_to_reserved_machines_waits_for_them() -> None:
    keen = job(1, application="keen")
    plan = decided(keen, *reserved_in_use(16), SMALL, FULL, policy=under("hm", "p2"))
    assert (launched(plan), of(plan, Place), told(plan, "job-1")) == ([], [], "waits_for_reserved")


def test_a_side_with_no_machine_that_is_large_enough_leaves_the_other() -> None:
    huge = offer("huge", vcpus=32.0, usd_per_h=1.6)
    wide = job(1, application="keen", asks=spec(resources=need(20.0)))
    assert launched(decided(wide, *reserved_in_use(1), SMALL, huge, policy=under("hm", "p2"))) == ["huge"]
    calm = job(1, application="calm", asks=spec(resources=need(12.0)))
    assert of(decided(calm, *reserved_in_use(1), SMALL, policy=under("hm", "p2")), Place)


def test_fair_coin_falls_on_both_sides_and_on_the_same_one_again() -> None:
    busy, policy = reserved_in_use(1), under("hm", "p1")
    plans = [decided(job(1, submitted_at=NOW - n), *busy, SMALL, FULL, policy=policy) for n in range(40)]
    assert 18 <= sum(bool(of(plan, Place)) for plan in plans) <= 22
    assert plans == [decided(job(1, submitted_at=NOW - n), *busy, SMALL, FULL, policy=policy) for n in range(40)]


# ---------------------------------------------------------------------------------------------------------- soft limit
def test_soft_limit_falls_with_a_growing_queue_and_rises_while_nothing_queues() -> None:
    own = ProvisioningPolicy(soft_limit=0.65, hard_limit=0.9)

    def limit(*queue: tuple[float, int]) -> float:
        return soft_limit(scene(fleet_stats=FleetStats(queue=queue)), own)

    assert limit() == 0.65
    assert limit((NOW - 400, 2), (NOW - 10, 12)) == pytest.approx(0.55)
    assert limit((NOW - 10, 500)) == 0.3
    assert limit((NOW - 900, 3), (NOW - 600, 0)) == pytest.approx(0.75)
    assert limit((NOW - 90_000, 0)) == 0.9
