"""Orders that look at a few machines: Paragon's statistical selection, and Tarcil's buckets with a bounded wait."""

from dataclasses import replace

import numpy as np
import pytest

from hcloud.forecast.fleet_tracker import FleetStats
from hcloud.planner.placement.orders.paragon_sampled import candidates_needed, colocation_quality
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Caps
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, told
from tests.planner.test_placement_orders import APPLICATIONS, FAST, FREE, SLOW, policy

SINGLE = offer("fast", vcpus=1.0)
"""A machine of the best type that one job fills."""
RECENT = FleetStats(busy_s=tuple(np.linspace(40.0, 160.0, 100).tolist()))
"""Mean and two deviations are 170 s."""


# ------------------------------------------------------------------------------------------------ statistical selection
@pytest.mark.parametrize(("quantile", "count"), [(0.5, 10), (0.9, 66), (0.97, 128), (0.99, 128)])
def test_as_many_are_drawn_as_the_wanted_quantile_needs_and_never_above_128(quantile: float, count: int) -> None:
    assert candidates_needed(quantile) == count


def test_quality_is_highest_where_all_that_is_tolerated_is_used_and_negative_where_anything_is_violated() -> None:
    left = np.array([[0.0, 50.0, 100.0, 90.0], [0.0, 50.0, 100.0, -5.0]])
    found = colocation_quality(left)
    assert found[:3].tolist() == [1.0, 0.5, 0.0]
    assert left[:, 3].sum() > 0.0 > found[3]  # the sign of the sum, as printed, would call it good


def crowded(seed: int) -> Snapshot:
    """Return a job that bears little, and sixty machines, most of them beside a program that it does not bear."""
    rng = np.random.default_rng(seed)
    machines = [machine(number, FAST) for number in range(1, 61)]
    beside = rng.choice(["loud", "calm"], 60, p=[0.8, 0.2])
    there = [running(100 + at, each, application=str(beside[at]), asks=FREE) for at, each in enumerate(machines)]
    asks = job(9, asks=FREE, application="fragile", queued_at=NOW)
    return scene(*machines, *there, asks, applications=APPLICATIONS, fleet_stats=RECENT)


def neighbour_of_the_placed(world: Snapshot, quantile: float) -> str:
    """Return the program beside which the job is placed."""
    rules = policy("paragon_sampled")
    plan = decide(world, replace(rules, placement=replace(rules.placement, sampled_quantile=quantile)))
    where = of(plan, Place)[0].ranks[0].instance_id
    held = {each.attempt.allocations[0].instance_id: each for each in world.jobs if each.attempt is not None}
    return held[where].application


def test_a_quiet_machine_is_taken_if_one_is_drawn() -> None:
    found = [neighbour_of_the_placed(crowded(seed), 0.9) for seed in range(10)]  # 66 are drawn: all of them
    assert set(found) == {"calm"}
    found = [neighbour_of_the_placed(crowded(seed), 0.5) for seed in range(40)]
    # Of ten drawn one is quiet with probability 1 - 0.8 ** 10, nearly.
    assert found.count("calm") / len(found) == pytest.approx(0.89, abs=0.1)


# -------------------------------------------------------------------------------------------------------------- buckets
def full(ran_s: float, waited_s: float, stats: FleetStats = RECENT) -> Snapshot:
    """Return a job that runs twice as fast on a machine that is full than on one with room, and no more may be had."""
    fast, slow = machine(1, SINGLE), machine(2, SLOW)
    there = running(1, fast, application="calm", asks=FREE)
    there = replace(there, attempt=replace(there.attempt, placed_at=NOW - ran_s))  # type: ignore[type-var]
    asks = job(9, asks=FREE, application="fragile", queued_at=NOW - waited_s)
    return scene(fast, slow, there, asks, applications=APPLICATIONS, fleet_stats=stats)


def taken(world: Snapshot) -> str | None:
    """Return where the job is placed."""
    rules = replace(policy("tarcil"), caps=Caps(max_instances=2, max_vcpus=None))
    return next((place.ranks[0].instance_id for place in of(decide(world, rules), Place)), None)


def test_a_job_waits_for_a_machine_that_matches_while_one_is_likely_to_be_free_soon() -> None:
    world = full(ran_s=100.0, waited_s=0.0)
    assert taken(world) is None
    plan = decide(world, policy("tarcil"))
    assert not of(plan, Launch) and told(plan, "job-9") == "holds_out"
    # A machine that just began to run another job is not expected to be free within mean + 2 deviations.
    assert taken(full(ran_s=0.0, waited_s=100.0)) == "inst-2"


def test_units_that_run_for_long_count_although_they_have_not_ended() -> None:
    """Else machines seem to be free sooner than they are: of 160 units of which 60 run on, not all end within 160 s."""
    world = full(ran_s=100.0, waited_s=0.0)
    lasting = [machine(number, offer("slow", vcpus=1.0)) for number in range(100, 160)]
    there = [running(1000 + each, where, application="calm", asks=FREE) for each, where in enumerate(lasting)]
    there = [replace(each, attempt=replace(each.attempt, placed_at=NOW - 1000.0)) for each in there]  # type: ignore[type-var]
    world = replace(world, instances=(*world.instances, *lasting), jobs=(*world.jobs, *there))
    assert taken(world) == "inst-2"


def test_of_alike_jobs_each_waits_as_long_as_it_may() -> None:
    world = full(ran_s=100.0, waited_s=0.0)
    late = job(8, asks=FREE, application="fragile", queued_at=NOW - 171.0)
    more = [job(number, asks=FREE, application="fragile", queued_at=NOW) for number in (7, 10)]
    plan = decide(replace(world, jobs=(*world.jobs, late, *more)), policy("tarcil"))
    assert [place.job_id for place in of(plan, Place)] == ["job-8"]
    assert {told(plan, f"job-{number}") for number in (7, 9, 10)} == {"holds_out"}


def test_no_job_waits_longer_than_the_mean_and_two_deviations() -> None:
    assert taken(full(ran_s=100.0, waited_s=171.0)) == "inst-2"


def test_no_job_waits_where_nothing_is_known_of_run_times() -> None:
    assert taken(full(ran_s=100.0, waited_s=0.0, stats=FleetStats())) == "inst-2"


def test_a_waiting_job_is_bound_to_whichever_matching_machine_is_free_first() -> None:
    for free in (1, 2):
        machines = [machine(number, SINGLE) for number in (1, 2)]
        held = running(1, machines[2 - free], application="calm", asks=FREE)
        asks = job(9, asks=FREE, application="fragile", queued_at=NOW - 60.0)
        world = scene(*machines, machine(3, SLOW), held, asks, applications=APPLICATIONS, fleet_stats=RECENT)
        assert taken(world) == f"inst-{free}"
