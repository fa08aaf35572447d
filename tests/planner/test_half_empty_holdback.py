"""Half-empty instances get no new jobs while something smaller can be rented; they run empty and are released."""

from dataclasses import replace

import pytest

from bench.beside_ray import snapshot_of
from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, FailureCause, JobState, Market, Nodes
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
    assert launch.reason.numbers["held_back_half_empty"] == "inst-1"
    assert "inst-1 with room: would be kept alive half empty (retention.drain_below)" in launch.reason.text
    (plain,) = of(decide(scene(job(1), SMALL, LARGE)), Launch)
    assert "with room" not in plain.reason.text


def test_plan_for_what_half_empty_machines_are_closed_to_is_made_once() -> None:
    before = scene(job(1), IDLE, SMALL, LARGE)
    assert not of(decide(apply_ideally(before, decide(before))), Launch)


def test_jobs_that_fill_it_together_take_it() -> None:
    assert outcome(scene(*(job(n) for n in range(1, 5)), IDLE, SMALL, LARGE)) == (["inst-1"] * 4, [])


def test_machine_in_use_stays_open_from_the_part_on_that_the_policy_names() -> None:
    there = [running(n, IDLE) for n in range(1, 4)]
    before = scene(*there, job(9), replace(IDLE, idle_since=None), SMALL, LARGE)
    assert outcome(before) == (["inst-1"], [])
    plain = simple()
    strict = replace(plain, retention=replace(plain.retention, drain_below=0.75))
    assert outcome(before, strict) == ([], ["small"])


def test_memory_counts_as_well_as_vcpus() -> None:
    hungry = job(1, asks=spec(resources=need(1.0, 8 * 4096 - 512)))
    assert outcome(scene(hungry, IDLE, SMALL, offer("fat", vcpus=1.0, usd_per_h=0.06), LARGE)) == (["inst-1"], [])


def test_reserved_machines_and_policies_that_close_none_are_as_before() -> None:
    paid = machine(1, replace(LARGE, market=Market.RESERVED))
    assert outcome(scene(job(1), paid, SMALL, LARGE)) == (["inst-1"], [])
    plain = simple()
    never = replace(plain, retention=replace(plain.retention, drain_below=0.0))
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


def test_a_job_that_nothing_can_be_rented_for_takes_its_turn_on_a_half_empty_machine() -> None:
    first = job(1, asks=spec(resources=need(3.0), instance_types=("large",)))
    moved = job(2, asks=spec(resources=need(6.0)), failures=(FailureCause.EVICTED,))
    plan = decide(scene(first, moved, IDLE, SMALL, replace(LARGE, available=0)))
    assert [each.job_id for each in of(plan, Place)] == ["job-1"]


@pytest.mark.parametrize("limited", [False, True], ids=["free", "at the limit"])
@pytest.mark.parametrize("within_s", [240.0, 5000.0], ids=["at once", "in time"])
def test_nothing_is_evicted_beside_a_half_empty_machine(within_s: float, limited: bool) -> None:
    full = machine(2, SMALL, idle_since=None)
    free = running(5, full, asks=spec(target=BestEffortTarget()))
    policy = simple()
    if limited:
        policy = replace(policy, caps=replace(policy.caps, max_instances=2))
    before = scene(job(1, asks=spec(target=BatchTarget(finish_within_s=within_s))), free, full, IDLE, SMALL, LARGE)
    assert not of(decide(before, policy), StopAttempt)
    assert outcome(before, policy) == (([], ["small"]) if within_s > 240.0 and not limited else (["inst-1"], []))


def test_of_half_empty_machines_only_those_are_closed_that_cost_more_than_a_new_one() -> None:
    cheap = machine(1, replace(LARGE, price_usd_per_h=0.1))  # half of it costs what a small one does
    assert outcome(scene(job(1), cheap, machine(2, LARGE), SMALL, LARGE)) == (["inst-1"], [])
    dear = machine(1, replace(LARGE, price_usd_per_h=0.11))
    assert outcome(scene(job(1), dear, machine(2, LARGE), SMALL, LARGE)) == ([], ["small"])


def test_a_job_that_fills_half_of_a_machine_takes_it() -> None:
    four = offer("four", vcpus=4.0, usd_per_h=0.15)
    for vcpus, expected in ((4.0, (["inst-1"], [])), (3.9, ([], ["four"]))):
        assert outcome(scene(job(1, asks=spec(resources=need(vcpus))), IDLE, four, LARGE)) == expected


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


def test_job_that_is_over_before_the_others_may_come() -> None:
    plain = simple()
    policy = replace(plain, placement=replace(plain.placement, order="paragon"))
    # A job without estimate that has run for 101 s is expected to run for as long again.
    there = running(1, IDLE, asks=spec(resources=need(2.0)))
    for lasts_s, expected in ((90.0, (["inst-1"], [])), (110.0, ([], ["small"]))):
        new = job(2, application="app")
        before = scene(there, new, replace(IDLE, idle_since=None), SMALL, LARGE, applications={"app": lasting(lasts_s)})
        assert outcome(before, policy) == expected


def test_a_machine_is_needed_until_the_last_of_its_jobs_is_expected_to_end() -> None:
    policy, new = replace(simple(), placement=replace(simple().placement, order="paragon")), job(9, application="app")
    old, young = (running(n, IDLE) for n in (1, 2))
    assert young.attempt is not None
    young = replace(young, attempt=replace(young.attempt, placed_at=NOW - 1.0))
    on, known = replace(IDLE, idle_since=None), {"app": lasting(90.0)}
    assert outcome(scene(old, young, new, on, SMALL, LARGE, applications=known), policy) == (["inst-1"], [])
    assert outcome(scene(young, new, on, SMALL, LARGE, applications=known), policy) == ([], ["small"])
    brief = {"app": lasting(0.5)}
    assert outcome(scene(new, IDLE, SMALL, LARGE, applications=brief), policy) == ([], ["small"])


def test_all_nodes_of_a_job_count_for_how_full_a_machine_gets() -> None:
    pair = spec(resources=need(2.0), nodes=Nodes(count=2, minimum=2))
    two = offer("two", vcpus=2.0, usd_per_h=0.1)
    assert outcome(scene(job(1, asks=pair), IDLE, two, LARGE)) == (["inst-1"], [])


def test_a_half_empty_machine_is_closed_beside_one_that_is_expensive_for_its_vcpus() -> None:
    host = machine(2, offer("host", vcpus=4.0, usd_per_h=0.8), idle_since=None)
    there = running(3, host, asks=spec(resources=need(3.0)))
    free = job(1, asks=spec(target=BestEffortTarget()))
    assert outcome(scene(free, IDLE, host, there, SMALL, LARGE)) == ([], ["small"])


def test_a_machine_is_needed_no_longer_by_a_job_that_is_stopping() -> None:
    policy = replace(simple(), placement=replace(simple().placement, order="paragon"))
    there, new = running(1, IDLE, asks=spec(resources=need(2.0))), job(2, application="app")
    assert there.attempt is not None
    attempt = replace(there.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    stopping, on = replace(there, attempt=attempt), replace(IDLE, idle_since=None)
    for resident, lasts_s, expected in (
        (there, 90.0, (["inst-1"], [])),
        (stopping, 90.0, ([], ["small"])),
        (stopping, 0.5, ([], ["small"])),
    ):
        known = {"app": lasting(lasts_s)}
        assert outcome(scene(resident, new, on, SMALL, LARGE, applications=known), policy) == expected


def test_a_job_past_its_expected_end_is_expected_to_end_soon() -> None:
    plain = simple()
    policy = replace(plain, placement=replace(plain.placement, order="paragon"))
    # It was expected to take 95 s, and has run for 101 s.
    there = running(1, IDLE, asks=spec(resources=need(2.0)), application="app")
    new = job(2, application="app")
    before = scene(there, new, replace(IDLE, idle_since=None), SMALL, LARGE, applications={"app": lasting(95.0)})
    assert outcome(before, policy) == ([], ["small"])


def test_job_that_came_too_early_in_a_plan_is_told_where_it_goes_in_the_next() -> None:
    """What a machine was closed to as half empty may go there once others of the same plan do."""
    before = snapshot_of(40, 40, known=False)
    plan = decide(before)
    assert {each.reason.text for each in of(plan, Wait)} == {"waiting: the machine it goes to was half empty until now"}
    waits = {each.job_id for each in of(plan, Wait)}
    assert {each.job_id for each in of(decide(apply_ideally(before, plan)), Place)} == waits
