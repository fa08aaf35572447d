"""Which jobs wait for room, evict others, get a machine or have idle ones terminated, and the reason if none of it."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    Instance,
    InstanceState,
    Job,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Offer,
    Reason,
)
from hcloud.planner.plan import Drain, Enqueue, Finish, Launch, Place, Plan, StopAttempt, Terminate, Wait
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets, Caps, DisruptionPolicy, Policy, ScopeBudget
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

LARGE = offer("large", vcpus=4.0, usd_per_h=0.4)
ODD = offer("odd", vcpus=1.0, usd_per_h=0.05)
"""Of instances that are too small for what waits."""
FREE = spec(target=BestEffortTarget())
WHOLE = spec(resources=need(2.0))
"""Fills a small instance."""
DAY = Spend(day_ends_at=NOW + 86_400.0, month_ends_at=NOW + 864_000.0)


def at_most(instances: int) -> Policy:
    return simple(caps=Caps(max_instances=instances))


def for_ann(usd: float) -> Policy:
    """Return a policy that lets ann spend so much a day."""
    return simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=usd)}))


def gang(count: int, vcpus: float = 2.0, **changes: Any) -> JobSpec:
    return spec(resources=need(vcpus), nodes=Nodes(count=count, minimum=count), **changes)


def booting(number: int, of: Offer | None = None, **changes: Any) -> Instance:
    return machine(number, of, **{"state": InstanceState.BOOTING, "ready_at": None, "idle_since": None} | changes)


def full(number: int, **changes: Any) -> tuple[Instance, Job]:
    """Return a small instance, and the job that fills it."""
    on = machine(number, idle_since=None)
    return on, running(90 + number, on, asks=replace(WHOLE, **changes))


def emptying(number: int) -> tuple[Instance, Job]:
    """Return a small instance, and the job on all of it, which was asked to stop."""
    on, filled = full(number)
    assert filled.attempt is not None
    return on, replace(filled, attempt=replace(filled.attempt, stop_requested_at=NOW - 1.0))


def planned(policy: Policy, *things: Job | Instance | Offer, **changes: Any) -> Plan:
    return decide(scene(*things, **changes), policy)


def bought(plan: Plan) -> list[tuple[str, ...]]:
    """Return which jobs each launched instance is for."""
    return [launch.for_jobs for launch in of(plan, Launch)]


def ended(plan: Plan) -> list[str]:
    return [action.instance_id for action in of(plan, Terminate)]


def evicted(plan: Plan) -> list[str]:
    return [action.job_id for action in of(plan, StopAttempt)]


def reason_of(plan: Plan, job_id: str) -> Reason:
    """Return the reason why a job waits."""
    [reason] = [action.reason for action in of(plan, Wait) if action.job_id == job_id]
    return reason


# --------------------------------------------------------------------------------------------------- the cap is reached
def test_at_the_cap_all_jobs_get_the_number_of_instances_as_the_reason() -> None:
    on = machine(1, LARGE, idle_since=None)
    barred = [job(1, asks=spec(placement=Constraints(zones=("b",)))), job(2, asks=spec(exclusive=True))]
    too_large = [job(n, asks=replace(asks, resources=need(4.0))) for n, asks in ((1, spec()), (2, FREE))]
    free = [job(n, asks=replace(FREE, resources=need(4.0))) for n in (1, 2)]
    for waiting, there in ((barred, spec()), (too_large, spec()), (free, FREE)):
        plan = planned(at_most(1), on, running(9, on, asks=there), *waiting, LARGE, replace(LARGE, zone="b"))
        for reason in (reason_of(plan, "job-1"), reason_of(plan, "job-2")):
            text = "caps.max_instances reached: 1 of 1 machines running or launching, 1 more needed"
            assert reason.text.endswith(text)
            assert reason.numbers.items() >= {"rule": "instances", "limit": 1, "present": 1, "wanted": 1}.items()


def test_at_the_cap_a_job_waits_for_the_only_instance_which_boots() -> None:
    assert told(planned(at_most(1), booting(1), job(1), offer()), "job-1") == "booting"


def test_a_job_that_no_offer_is_large_enough_for_fails_at_the_cap_too() -> None:
    on, filled = full(1)
    plan = planned(at_most(1), on, filled, job(1, asks=spec(resources=need(64.0))), offer())
    assert [(each.job_id, each.reason.code) for each in of(plan, Finish)] == [("job-1", "impossible")]


def test_a_job_that_can_never_run_fails_though_that_was_its_reason_to_wait() -> None:
    waiting = job(1, asks=spec(resources=need(64.0)), wait_code="impossible")
    assert [each.job_id for each in of(planned(simple(), waiting, offer()), Finish)] == ["job-1"]


def test_a_job_does_not_fail_while_no_provider_is_known_whose_offers_could_be_read() -> None:
    plan = planned(simple(), job(1, asks=spec(resources=need(64.0))), offer(), providers=frozenset())
    assert not of(plan, Finish)
    assert told(plan, "job-1") == "no_offer_fits"


def test_instances_drain_for_jobs_that_wait_at_the_cap_only_not_for_those_without_a_budget() -> None:
    on, filled = full(1)
    second, other = full(2)
    things = (on, filled, second, other, *(job(n, asks=WHOLE) for n in range(1, 9)), offer(), offer("huge", 8.0))
    assert of(planned(at_most(2), *things), Drain)
    tight = simple(caps=Caps(max_instances=9), budgets=Budgets(per_hour_usd=0.25))
    plan = planned(tight, *things)
    assert told(plan, "job-1") == "budget_per_hour"
    assert not of(plan, Drain)


def test_no_instance_drains_whose_replacement_the_first_waiting_job_could_not_pay_for() -> None:
    huge, filled = offer("huge", 8.0, usd_per_h=0.4), [thing for n in (1, 2) for thing in full(n, user="bob")]
    waiting = [job(n, asks=replace(WHOLE, user="bob" if n > 1 else "ann")) for n in range(1, 9)]
    both = replace(for_ann(0.3), caps=Caps(max_instances=2))
    assert not of(planned(both, *filled, *waiting, offer(), huge, spend=DAY), Drain)
    assert of(planned(both, *filled, *waiting[1:], offer(), huge, spend=DAY), Drain)


# --------------------------------------------------------------------------------------------------- jobs of one user
def test_the_next_user_is_served_after_one_who_has_the_most_jobs_permitted() -> None:
    on, filled = full(1)
    plan = planned(simple(caps=Caps(max_jobs_per_user=1)), on, filled, job(1), job(2, asks=spec(user="bob")), offer())
    assert told(plan, "job-1") == "cap_jobs_per_user"
    assert bought(plan) == [("job-2",)]


def test_a_job_that_gets_an_instance_counts_as_one_of_its_user() -> None:
    plan = planned(simple(caps=Caps(max_jobs_per_user=1)), job(1), job(2, asks=WHOLE), offer())
    assert bought(plan) == [("job-1",)]
    assert told(plan, "job-2") == "cap_jobs_per_user"


# -------------------------------------------------------------------------------------------------------- awaited room
def awaiting(number: int, *ids: str, asks: JobSpec | None = None) -> Job:
    return job(number, JobState.AWAITING_INSTANCE, asks=asks, awaiting=ids)


def test_a_job_that_lost_the_room_it_awaited_is_requeued_and_gets_one_instance_beside_what_it_holds() -> None:
    """The first job takes the booting instance that the second, of two nodes, relied on instead of one that is full."""
    on, filled = full(2)
    pair = awaiting(2, "inst-1", "inst-2", asks=gang(2))
    plan = planned(simple(), machine(1), on, filled, booting(3), job(1, asks=WHOLE), pair, offer())
    assert told(plan, "job-1") == "booting"
    assert [(each.job_id, each.reason.code) for each in of(plan, Enqueue)] == [("job-2", "awaited_full")]
    assert bought(plan) == [("job-2",)]


def test_a_job_keeps_what_it_awaits_while_other_room_serves_as_well() -> None:
    """Its second node finds an instance full, and goes to one that boots or to what an eviction leaves."""
    on, filled = full(2)
    pair = awaiting(3, "inst-1", "inst-2", asks=gang(2))
    plan = planned(simple(), machine(1), on, filled, booting(3), pair, offer())
    assert (of(plan, Enqueue), of(plan, Launch)) == ([], [])
    there = machine(4, LARGE, idle_since=None)
    evictable = running(94, there, asks=replace(FREE, resources=need(4.0)))
    first, second = (job(n, asks=replace(WHOLE, instance_types=(name,))) for n, name in ((1, "large"), (2, "small")))
    plan = planned(simple(), machine(1), on, filled, booting(3), there, evictable, first, second, pair, offer())
    assert [told(plan, f"job-{n}") for n in (1, 2, 3)] == ["making_room", "booting", ""]
    assert (of(plan, Enqueue), of(plan, Launch)) == ([], [])


def test_a_job_that_awaits_instances_holds_no_more_than_it_needs() -> None:
    on, filled = full(2)
    things = (machine(1), on, filled, *emptying(3), *emptying(4))
    pair = awaiting(1, "inst-1", "inst-2", asks=gang(2))
    plan = planned(at_most(4), *things, pair, job(2, asks=WHOLE), offer())
    assert not of(plan, Enqueue)
    assert reason_of(plan, "job-2").text == "waiting: evicted units are stopping"


def test_ranks_of_a_job_beyond_what_it_needs_claim_no_booting_instance() -> None:
    pair = job(1, asks=gang(2))
    plan = planned(simple(), *emptying(1), booting(2), booting(3), pair, job(2, asks=WHOLE), offer())
    assert (told(plan, "job-1"), told(plan, "job-2")) == ("booting", "booting")
    assert not of(plan, Launch)


@pytest.mark.parametrize(("since_s", "left_s"), [(10.0, 20.0), (30.0, 0.0), (29.5, 0.5), (60.0, 0.0)])
def test_the_reason_names_when_the_booting_instance_is_expected(since_s: float, left_s: float) -> None:
    requested = booting(1, state=InstanceState.REQUESTED, launched_at=None, requested_at=NOW - since_s, provider_id="")
    for coming in (requested, booting(1, launched_at=NOW - since_s)):
        numbers = reason_of(planned(simple(), coming, job(1, asks=FREE)), "job-1").numbers
        assert (numbers["instance"], numbers["expected_in_s"]) == ("inst-1", left_s)
        assert numbers["expected_at"] == NOW - since_s + 30.0


def test_an_idle_instance_whose_room_is_claimed_is_not_released() -> None:
    """One rank waits for the idle instance, the other for one that is launched, or that a job leaves."""
    idle = machine(1, idle_since=NOW - 5000.0)
    plan = planned(simple(), idle, job(1, asks=gang(2)), offer())
    assert (bought(plan), ended(plan)) == ([("job-1",)], [])
    plan = planned(simple(), idle, *emptying(2), job(1, asks=gang(2)), offer())
    assert (told(plan, "job-1"), bought(plan), ended(plan)) == ("making_room", [], [])


@pytest.mark.parametrize("fits", [True, False])
def test_what_a_job_could_not_use_after_all_is_claimed_by_the_next(fits: bool) -> None:
    """Its other node has no room; beside the one instance with room there are others without."""
    there = (machine(1),) if fits else (booting(1),)
    pair = replace(gang(2), instance_types=("small",))
    things = (*there, *full(2), job(1, asks=pair), job(2, asks=gang(2)), LARGE)
    assert bought(planned(simple(), *things)) == [("job-2",)]


def test_a_job_that_cannot_wait_leaves_a_late_instance_to_one_that_can() -> None:
    late = booting(1, requested_at=NOW - 150.0, launched_at=NOW - 150.0)
    hurried = job(1, asks=spec(target=BatchTarget(finish_within_s=400.0)))
    plan = planned(at_most(1), late, hurried, job(2), offer())
    assert (told(plan, "job-1"), told(plan, "job-2")) == ("cap_instances", "booting")


# ------------------------------------------------------------------------------------------------------------- eviction
def test_best_effort_is_evicted_for_a_target_only_whatever_else_waits() -> None:
    things = (*full(1, target=BestEffortTarget()), job(1, asks=replace(WHOLE, target=BestEffortTarget())), offer())
    assert evicted(planned(at_most(1), *things, job(2, asks=WHOLE))) == ["job-91"]
    too_large = job(2, asks=spec(resources=need(4.0)))
    plan = planned(at_most(1), *things, too_large, LARGE)
    assert (evicted(plan), told(plan, "job-1")) == ([], "cap_instances")


def test_no_more_is_evicted_than_the_nodes_need_that_have_no_room() -> None:
    filled = [thing for n in (2, 3) for thing in full(n, target=BestEffortTarget())]
    plan = planned(at_most(3), machine(1), *filled, job(1, asks=gang(2)), offer())
    assert len(evicted(plan)) == 1


def test_what_an_eviction_frees_beyond_the_needs_of_a_job_is_left_to_the_next() -> None:
    on = machine(1, LARGE, idle_since=None)
    there = running(91, on, asks=replace(FREE, resources=need(4.0)))
    waiting = (job(1, asks=gang(2, 1.0)), job(2), job(3))
    plan = planned(simple(), on, there, *waiting, replace(LARGE, available=0))
    assert evicted(plan) == ["job-91"]
    assert [told(plan, f"job-{n}") for n in (1, 2, 3)] == ["making_room"] * 3


def test_nodes_that_need_different_machines_evict_nothing_where_there_are_too_few() -> None:
    fleet = [machine(n, LARGE, idle_since=None) for n in (1, 2)]
    filled = [running(90 + n, on, asks=replace(FREE, resources=need(4.0))) for n, on in enumerate(fleet)]
    three = gang(3, 1.0, placement=Constraints(spread="host"))
    assert evicted(planned(at_most(2), *fleet, *filled, job(1, asks=three), LARGE)) == []


def test_room_that_was_to_be_freed_for_a_job_in_vain_is_freed_again_for_the_next() -> None:
    filled = full(1, target=BestEffortTarget())
    pair = gang(2, 1.0, placement=Constraints(spread="host"))
    plan = planned(at_most(1), *filled, job(1, asks=pair), job(2), offer())
    assert evicted(plan) == ["job-91"]


# ------------------------------------------------------------------------------------------------------- launched room
def test_jobs_join_an_instance_though_no_second_one_is_sold() -> None:
    plan = planned(simple(), job(1), job(2, asks=spec(resources=need(0.5))), offer(available=1))
    assert bought(plan) == [("job-1", "job-2")]


def test_room_that_a_job_gave_back_on_a_new_instance_is_whole_again() -> None:
    pair = gang(2, 1.0, placement=Constraints(spread="host"))
    things = (job(1), job(2, asks=pair), job(3, asks=spec(resources=need(3.0))), LARGE)
    assert bought(planned(at_most(1), *things)) == [("job-1", "job-3")]


def test_only_jobs_that_shun_each_other_get_instances_of_their_own() -> None:
    shy = replace(spec(name="a"), placement=Constraints(apart_from=("x*",)))
    for other, instances in (("b", 1), ("x1", 2)):
        for asks in (spec(name=other), replace(shy, name=other, placement=Constraints(apart_from=("y",)))):
            assert len(bought(planned(simple(), job(1, asks=shy), job(2, asks=asks), offer()))) == instances
    assert bought(planned(simple(), job(1, asks=spec(user="bob")), job(2, asks=shy), offer())) == [("job-1", "job-2")]


def test_a_job_does_not_join_an_instance_that_its_user_cannot_pay_a_share_of() -> None:
    others = job(1, asks=spec(user="bob"))
    for usd, jobs in ((0.06, [("job-1", "job-2")]), (0.01, [("job-1",)])):
        assert bought(planned(for_ann(usd), others, job(2), offer(), spend=DAY)) == jobs


PAID = offer("paid", usd_per_h=0.06, market=Market.RESERVED, available=4, zone="b")
IN_A = spec(placement=Constraints(zones=("a",)))
"""Of jobs that may run on the rented instances only."""


def test_jobs_share_a_reserved_instance_though_others_are_free_and_whatever_was_rented_before() -> None:
    assert bought(planned(simple(), job(1), job(2), PAID)) == [("job-1", "job-2")]
    plan = planned(simple(), job(1, asks=IN_A), job(2), job(3), PAID, offer())
    assert bought(plan) == [("job-1",), ("job-2", "job-3")]


def test_a_rented_instance_is_shared_where_no_reserved_one_is_large_enough() -> None:
    tiny = replace(PAID, instance_type=offer("tiny", vcpus=0.5).instance_type)
    assert bought(planned(simple(), job(1, asks=IN_A), job(2), tiny, offer())) == [("job-1", "job-2")]


def test_a_rented_instance_is_shared_by_the_node_that_no_reserved_one_is_left_for_in_another_zone() -> None:
    apart = gang(2, 1.0, placement=Constraints(spread="zone"))
    assert bought(planned(simple(), job(1, asks=IN_A), job(2, asks=apart), PAID, offer())) == [
        ("job-1", "job-2"),
        ("job-2",),
    ]


def test_a_rented_instance_is_shared_where_limits_allow_no_reserved_one() -> None:
    assert bought(planned(at_most(1), job(1, asks=IN_A), job(2), PAID, offer())) == [("job-1", "job-2")]


@pytest.mark.parametrize(
    ("due_in_s", "shared"),
    [(-1.0, False), (0.0, False), (1.0, True), (59.0, True), (60.0, False), (61.0, False)],
)
def test_a_rented_instance_is_shared_where_the_reserved_one_would_boot_beyond_the_deadline(
    due_in_s: float, shared: bool
) -> None:
    slow = replace(PAID, instance_type=replace(PAID.instance_type, boot_delay_s=60.0))
    hurried = job(2, asks=spec(target=BatchTarget(finish_within_s=due_in_s + 98.0)))
    assert hurried.deadline_at == NOW + due_in_s
    assert (bought(planned(simple(), job(1, asks=IN_A), hurried, slow, offer()))[0] == ("job-1", "job-2")) is shared


def test_a_launch_names_the_three_best_of_the_other_offers() -> None:
    offers = [offer(f"size-{n}", vcpus=2.0 + n, usd_per_h=0.1 * n) for n in range(1, 6)]
    [launch] = of(planned(simple(), job(1), *offers), Launch)
    assert str(launch.reason.numbers["alternatives"]).count(";") == 2


@pytest.mark.parametrize("usd_per_h", [0.3, 0.2])
def test_of_offers_that_a_budget_does_not_allow_the_first_of_the_cheapest_is_named(usd_per_h: float) -> None:
    offers = (offer("a", usd_per_h=usd_per_h), offer("b", usd_per_h=0.2), offer("c", usd_per_h=0.2))
    reason = reason_of(planned(simple(budgets=Budgets(per_hour_usd=0.1)), job(1), *offers), "job-1")
    assert str(reason.numbers["offer"]).split("/")[-2] == ("b" if usd_per_h > 0.2 else "a")
    assert "including" not in reason.text


def test_too_few_zones_are_no_failure_while_the_offers_of_a_provider_are_unknown() -> None:
    apart = job(1, asks=gang(2, placement=Constraints(spread="zone")))
    assert of(planned(simple(), apart, offer()), Finish)
    plan = planned(simple(), apart, offer(), providers=frozenset({"mock", "other"}))
    assert (of(plan, Finish), told(plan, "job-1")) == ([], "too_few_zones")


def test_a_job_whose_user_cannot_pay_for_the_room_it_would_claim_gets_no_instance_for_the_rest() -> None:
    costly = booting(1, offer("costly", usd_per_h=10.0))
    plan = planned(for_ann(0.5), costly, job(1, asks=gang(2)), offer(), spend=DAY)
    assert (bought(plan), told(plan, "job-1")) == ([], "budget_user_per_day")


# ---------------------------------------------------------------------------------------------------------- making room
def test_the_instance_that_is_idle_longest_is_terminated_to_make_room() -> None:
    idle = [machine(n, ODD, idle_since=NOW - since_s) for n, since_s in ((1, 10.0), (2, 30.0), (3, 20.0))]
    plan = planned(at_most(3), *idle, job(1, asks=WHOLE), offer())
    assert (ended(plan), told(plan, "job-1")) == (["inst-2"], "making_room")


def test_as_many_idle_instances_are_terminated_as_nodes_find_no_instance() -> None:
    idle = [machine(n, ODD) for n in (2, 3)]
    plan = planned(at_most(3), booting(1), *idle, job(1, asks=gang(2)), offer())
    assert (len(ended(plan)), told(plan, "job-1")) == (1, "making_room")


def test_a_job_waits_for_the_end_of_instances_that_are_being_terminated() -> None:
    ending = machine(1, state=InstanceState.TERMINATING, idle_since=None)
    plan = planned(at_most(1), ending, job(1), offer())
    assert (ended(plan), told(plan, "job-1")) == ([], "making_room")


def test_room_that_is_made_for_one_job_serves_the_next_as_well_where_it_suffices() -> None:
    in_b, wide = spec(placement=Constraints(zones=("b",))), machine(1, offer("wide", vcpus=16.0))
    things = (wide, job(1, asks=in_b), job(2, asks=replace(in_b, resources=need(2.0))), offer(zone="b"))
    plan = planned(simple(caps=Caps(max_vcpus=16.0)), *things)
    assert (ended(plan), bought(plan)) == (["inst-1"], [])
    assert (told(plan, "job-1"), told(plan, "job-2")) == ("making_room", "making_room")


def test_no_more_instances_are_terminated_to_make_room_than_the_policy_allows_in_one_plan() -> None:
    idle = [machine(n, ODD) for n in (1, 2)]
    policy = replace(at_most(2), disruption=DisruptionPolicy(max_terminations_per_cycle=1))
    plan = planned(policy, *idle, job(1, asks=WHOLE), job(2, asks=spec(resources=need(4.0))), offer(), LARGE)
    assert (len(ended(plan)), told(plan, "job-1"), told(plan, "job-2")) == (1, "making_room", "cap_instances")


def test_an_instance_that_another_job_awaits_or_uses_is_not_terminated_to_make_room() -> None:
    ready = machine(1, idle_since=NOW - 5000.0)
    pair = awaiting(2, "inst-1", "inst-2", asks=gang(2))
    too_large = job(1, asks=spec(resources=need(4.0)))
    assert ended(planned(at_most(2), ready, booting(2), too_large, pair, LARGE)) == []
    plan = planned(at_most(2), ready, job(1, asks=gang(2)), replace(too_large, id="job-2"), offer(), LARGE)
    assert (bought(plan), ended(plan)) == ([("job-1",)], [])
    three, two, one = job(1, asks=gang(3, 4.0)), job(2, asks=gang(2)), job(3, asks=too_large.spec)
    plan = planned(at_most(2), ready, *emptying(2), three, two, one, offer(), LARGE)
    assert [told(plan, f"job-{n}") for n in (1, 2, 3)] == ["cap_instances", "making_room", "cap_instances"]
    assert ended(plan) == []


def test_a_job_takes_no_room_in_a_budget_that_is_only_there_once_an_instance_has_ended() -> None:
    idle = machine(1, replace(ODD, price_usd_per_h=0.9))
    things = (idle, job(1, asks=spec(resources=need(3.0))), job(2, asks=WHOLE))
    offers = (offer(usd_per_h=0.3), offer("middle", vcpus=3.0, usd_per_h=0.3))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), *things, *offers)
    assert (ended(plan), bought(plan)) == (["inst-1"], [])


def test_what_is_launched_after_room_was_made_counts_beside_the_instance_to_come() -> None:
    """1.00 $/h are allowed: 0.50 go, 0.60 come, so of two instances of 0.25 each only one has room beside it."""
    idle, huge = machine(1, replace(ODD, price_usd_per_h=0.5)), offer("huge", vcpus=16.0, usd_per_h=0.6)
    waiting = (job(1, asks=spec(resources=need(16.0))), job(2, asks=WHOLE), job(3, asks=WHOLE))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), idle, *waiting, huge, offer(usd_per_h=0.25))
    assert (ended(plan), bought(plan)) == (["inst-1"], [("job-2",)])


def test_nothing_is_terminated_for_a_job_that_lacks_zones_though_a_limit_refused_an_offer() -> None:
    idle = machine(1, replace(ODD, price_usd_per_h=0.8))
    apart = job(1, asks=gang(2, placement=Constraints(spread="zone")))
    offers = (offer(), replace(LARGE, price_usd_per_h=0.6), offer(zone="b", available=0))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.3)), idle, apart, *offers)
    assert (ended(plan), told(plan, "job-1")) == ([], "too_few_zones")


# -------------------------------------------------------------------------------------------------------- reserved room
def reserving(**changes: Any) -> tuple[Instance, Job, Job, Job, Offer]:
    """Return a machine in use, a wide job that waits for all of it, a small one, and the machine's offer."""
    on = machine(1, LARGE, idle_since=None)
    asks = spec(resources=need(4.0), priority=100, target=BatchTarget(finish_within_s=1800.0))
    wide = job(50, asks=asks, **{"wait_code": "cap_instances", "submitted_at": NOW} | changes)
    return on, running(1, on, asks=spec(resources=need(3.0))), wide, job(60), LARGE


def test_room_is_reserved_for_the_first_job_that_finds_none_and_that_is_recorded() -> None:
    on, busy, wide, small, sold = reserving()
    larger = replace(small, spec=WHOLE)
    for things in ((wide, small), (replace(wide, wait_code=""), larger)):  # found by an earlier plan, and by this one
        plan = planned(at_most(1), on, busy, *things, sold)
        [wait] = [each for each in of(plan, Wait) if each.job_id == "job-50"]
        assert (wait.reason.code, wait.reserved) == ("reserves_room", ("inst-1",))
        assert not of(plan, Place)


def test_room_is_reserved_for_the_first_job_only() -> None:
    on, busy, wide, small, sold = reserving()
    second = replace(wide, id="job-51", submitted_at=NOW + 1.0)
    plan = planned(at_most(1), on, busy, wide, second, small, sold)
    assert (told(plan, "job-50"), told(plan, "job-51")) == ("reserves_room", "")


@pytest.mark.parametrize("urgent", [True, False])
def test_no_room_is_reserved_for_a_job_that_gets_a_machine_or_lacks_something_else(urgent: bool) -> None:
    things = reserving(wait_code="reserves_room", reserved=("inst-1",), submitted_at=NOW - (1000.0 if urgent else 0.0))
    plan = planned(simple(), *things)
    assert [launch.for_jobs[0] for launch in of(plan, Launch)] == ["job-50"]
    assert not [each for each in of(plan, Wait) if each.reserved]
    plan = planned(simple(), *things, engine_reachable=False)
    assert told(plan, "job-50") == "engine_unreachable"
