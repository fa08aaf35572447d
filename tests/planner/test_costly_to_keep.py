"""Jobs keep no rented instance up for longer than that is worth; it runs empty and is released."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, FailureCause, Job, JobState, Market, Nodes, ServiceTarget
from hcloud.forecast.fleet_tracker import FleetStats
from hcloud.planner.plan import Launch, Place, StopAttempt, Wait
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from hcloud.spec.policy import Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

SMALL, LARGE = offer("small", vcpus=1.0, usd_per_h=0.05), offer("large", vcpus=8.0, usd_per_h=0.4)
IDLE = machine(1, LARGE)


def outcome(snapshot: Snapshot, policy: Policy | None = None) -> tuple[list[str], list[str]]:
    """Return where jobs were placed, and what was launched."""
    plan = decide(snapshot, policy)
    return [a.ranks[0].instance_id for a in of(plan, Place)], [a.offer.instance_type.name for a in of(plan, Launch)]


def test_a_small_job_gets_an_instance_of_its_size_and_the_large_idle_one_is_released() -> None:
    assert outcome(scene(job(1), IDLE, SMALL, LARGE)) == ([], ["small"])


def test_launch_says_why_a_machine_with_room_was_not_taken() -> None:
    (launch,) = of(decide(scene(job(1), IDLE, SMALL, LARGE)), Launch)
    assert launch.reason.numbers["held_back_costly_to_keep"] == "inst-1"
    assert "keeping it up for longer costs more than a machine of its own (retention.drain)" in launch.reason.text
    (plain,) = of(decide(scene(job(1), SMALL, LARGE)), Launch)
    assert "with room" not in plain.reason.text


def test_a_job_kept_away_is_planned_for_once() -> None:
    before = scene(job(1), IDLE, SMALL, LARGE)
    assert not of(decide(apply_ideally(before, decide(before))), Launch)


def test_jobs_that_fill_it_together_take_it() -> None:
    eight = scene(*(job(n) for n in range(1, 9)), IDLE, SMALL, LARGE)
    assert outcome(eight) == (["inst-1"] * 8, [])
    assert outcome(replace(eight, jobs=eight.jobs[:7])) == ([], ["small"] * 7)


def test_memory_counts_as_well_as_vcpus() -> None:
    hungry = job(1, asks=spec(resources=need(1.0, 8 * 4096 - 512)))
    assert outcome(scene(hungry, IDLE, SMALL, offer("fat", vcpus=1.0, usd_per_h=0.06), LARGE)) == (["inst-1"], [])


def test_reserved_machines_and_policies_that_close_none_are_as_before() -> None:
    paid = machine(1, replace(LARGE, market=Market.RESERVED))
    assert outcome(scene(job(1), paid, SMALL, LARGE)) == (["inst-1"], [])
    plain = simple()
    never = replace(plain, retention=replace(plain.retention, drain=False))
    assert outcome(scene(job(1), IDLE, SMALL, LARGE), never) == (["inst-1"], [])


def test_where_nothing_smaller_can_be_had_the_machine_is_used() -> None:
    assert outcome(scene(job(1), IDLE, LARGE)) == (["inst-1"], [])
    out = OfferBackoff(
        provider="mock", zone="a", instance_type="small", market=Market.ON_DEMAND.value, until_at=NOW + 60, error="none"
    )
    assert outcome(scene(job(1), IDLE, SMALL, LARGE, backoffs=(out,))) == (["inst-1"], [])


def test_where_limits_have_no_room_for_another_machine_it_is_used() -> None:
    plain = simple()
    one = replace(plain, caps=replace(plain.caps, max_instances=1))
    assert outcome(scene(job(1), IDLE, SMALL, LARGE), one) == (["inst-1"], [])


def test_reserved_machines_change_nothing_for_rented_ones() -> None:
    paid = machine(2, replace(LARGE, market=Market.RESERVED), idle_since=None)
    full = running(9, paid, asks=spec(resources=need(8.0)))
    assert outcome(scene(job(1), IDLE, paid, full, SMALL, LARGE)) == ([], ["small"])


def test_a_job_that_nothing_can_be_rented_for_takes_its_turn_on_a_machine_held_back() -> None:
    first = job(1, asks=spec(resources=need(3.0), instance_types=("large",)))
    moved = job(2, asks=spec(resources=need(6.0)), failures=(FailureCause.EVICTED,))
    plan = decide(scene(first, moved, IDLE, SMALL, replace(LARGE, available=0)))
    assert [each.job_id for each in of(plan, Place)] == ["job-1"]


@pytest.mark.parametrize("limited", [False, True], ids=["free", "at the limit"])
@pytest.mark.parametrize("within_s", [240.0, 5000.0], ids=["at once", "in time"])
def test_nothing_is_evicted_beside_a_machine_held_back(within_s: float, limited: bool) -> None:
    full = machine(2, SMALL, idle_since=None)
    free = running(5, full, asks=spec(target=BestEffortTarget()))
    policy = simple()
    if limited:
        policy = replace(policy, caps=replace(policy.caps, max_instances=2))
    before = scene(job(1, asks=spec(target=BatchTarget(finish_within_s=within_s))), free, full, IDLE, SMALL, LARGE)
    assert not of(decide(before, policy), StopAttempt)
    assert outcome(before, policy) == (([], ["small"]) if within_s > 240.0 and not limited else (["inst-1"], []))


def test_only_machines_that_cost_more_than_a_new_one_are_closed() -> None:
    for usd_per_h, expected in ((0.05, (["inst-1"], [])), (0.06, ([], ["small"]))):
        cheap = machine(1, replace(LARGE, price_usd_per_h=usd_per_h))
        assert outcome(scene(job(1), cheap, machine(2, LARGE), SMALL, LARGE)) == expected


def test_job_that_was_moved_goes_to_machines_that_run() -> None:
    moved = job(1, JobState.QUEUED, failures=(FailureCause.EVICTED,))
    assert outcome(scene(moved, IDLE, SMALL, LARGE)) == (["inst-1"], [])


def lasting(seconds: float) -> Classification:
    """Return an application with that run time."""
    pace = Estimate(value=1 / seconds, low=1 / seconds, high=1 / seconds, observed=True)
    return Classification(
        by_type={"mock/large": pace, "mock/small": pace},
        measure=Measure.COMPLETION,
        quality_target=pace,
    )


KNOWING = replace(simple(), placement=replace(simple().placement, order="paragon"))
"""A policy whose order considers what is known of a job."""
USED = replace(IDLE, idle_since=None)


def beside(resident: Job, lasts_s: float, **changes: Any) -> tuple[list[str], list[str]]:
    """Return :func:`outcome` for a job that runs so long and could go beside ``resident``."""
    new, known = job(9, application="app"), {"app": lasting(lasts_s)}
    return outcome(scene(resident, new, USED, SMALL, LARGE, applications=known, **changes), KNOWING)


def test_a_job_may_keep_a_machine_up_for_as_long_as_that_is_cheaper_than_its_own() -> None:
    # A job of which nothing is known runs for 600 s; this one has run for 101 s.
    there = running(1, IDLE, asks=spec(resources=need(2.0)))
    for lasts_s, expected in ((90.0, (["inst-1"], [])), (500.0, (["inst-1"], [])), (600.0, ([], ["small"]))):
        assert beside(there, lasts_s) == expected


def test_run_times_of_units_that_ended_lately_count_for_jobs_of_which_nothing_is_known() -> None:
    there = running(1, IDLE, asks=spec(resources=need(2.0)))
    for busy_s, expected in (((150.0,), ([], ["small"])), ((4000.0,), (["inst-1"], []))):
        assert beside(there, 300.0, fleet_stats=FleetStats(busy_s=busy_s)) == expected


def test_a_job_that_outlasts_all_others_is_expected_to_run_for_as_long_again() -> None:
    there = running(1, IDLE, asks=spec(resources=need(2.0)))
    short = FleetStats(busy_s=(50.0,))
    for lasts_s, expected in ((101.0, (["inst-1"], [])), (150.0, ([], ["small"]))):
        assert beside(there, lasts_s, fleet_stats=short) == expected


def test_a_machine_is_needed_until_the_last_of_its_jobs_is_expected_to_end() -> None:
    old, young = (running(n, IDLE) for n in (1, 2))
    assert old.attempt is not None
    old = replace(old, attempt=replace(old.attempt, placed_at=NOW - 590.0))
    new, known = job(9, application="app"), {"app": lasting(300.0)}
    assert outcome(scene(old, young, new, USED, SMALL, LARGE, applications=known), KNOWING) == (["inst-1"], [])
    assert beside(old, 300.0) == ([], ["small"])


def test_all_nodes_of_a_job_share_the_price_of_a_machine() -> None:
    two = offer("two", vcpus=2.0, usd_per_h=0.1)
    for count, expected in ((4, (["inst-1"], [])), (3, ([], ["two"] * 3))):
        ranks = spec(resources=need(2.0), nodes=Nodes(count=count, minimum=count))
        assert outcome(scene(job(1, asks=ranks), IDLE, two, LARGE)) == expected


def test_a_machine_is_needed_no_longer_by_a_job_that_is_stopping() -> None:
    there = running(1, IDLE, asks=spec(resources=need(2.0)))
    assert there.attempt is not None
    attempt = replace(there.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    for resident, expected in ((there, (["inst-1"], [])), (replace(there, attempt=attempt), ([], ["small"]))):
        assert beside(resident, 90.0) == expected


def test_a_job_past_its_expected_end_is_expected_to_end_soon() -> None:
    # It was expected to take 95 s, and has run for 101 s.
    there = running(1, IDLE, asks=spec(resources=need(2.0)), application="app")
    assert beside(there, 95.0) == ([], ["small"])


def test_a_service_whose_size_is_to_be_found_gets_room_to_grow() -> None:
    serves = ServiceTarget(requests_per_s=10.0, latency_ms=20.0)
    for within, expected in ((None, ([], ["small"])), ((0.5, 8.0), (["inst-1"], []))):
        asks = spec(target=serves, vcpus_within=within)
        assert outcome(scene(job(1, asks=asks), IDLE, SMALL, LARGE)) == expected


def test_best_effort_leaves_a_machine_of_services_for_spot_unless_they_stay() -> None:
    spot = replace(offer("one", vcpus=1.0, usd_per_h=0.018), market=Market.SPOT)
    serves = ServiceTarget(requests_per_s=10.0, latency_ms=20.0)
    host = machine(2, offer("host", vcpus=4.0, usd_per_h=0.2), idle_since=None)
    there = running(20, host, asks=spec(target=serves, resources=need(3.0), interruptible=False))
    assert there.attempt is not None
    free = job(1, asks=spec(target=BestEffortTarget()))
    for ran_s, expected in ((101.0, ([], ["one"])), (1.0, (["inst-2"], []))):
        at = replace(there, attempt=replace(there.attempt, placed_at=NOW - ran_s))
        assert outcome(scene(host, at, free, host.offer, spot)) == expected


def test_job_that_came_too_early_in_a_plan_is_told_where_it_goes_in_the_next() -> None:
    """What a machine was held back from may go there once others of the same plan do."""
    first, second = job(1), job(2, asks=spec(resources=need(6.0)))  # the second needs a large one anyway
    before = scene(first, second, IDLE, SMALL, LARGE)
    plan = decide(before)
    assert [each.job_id for each in of(plan, Place)] == ["job-2"]
    [waits] = of(plan, Wait)
    assert (waits.job_id, waits.reason.text) == ("job-1", "waiting: the machine it goes to was held back until now")
    assert [each.job_id for each in of(decide(apply_ideally(before, plan)), Place)] == ["job-1"]
