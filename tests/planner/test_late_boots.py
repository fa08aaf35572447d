"""A job with a target does not wait for an instance that boots far later than usual."""

from dataclasses import replace

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Instance,
    InstanceState,
    Job,
    JobState,
    Market,
    ServiceTarget,
    Target,
)
from hcloud.forecast.fleet_tracker import FleetStats
from hcloud.planner.plan import Enqueue, Launch, Place, Terminate
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

SMALL = offer("small", vcpus=1.0, usd_per_h=0.05)
AGE_S = 150.0
"""Boots usually take 30 s."""


def starting(number: int, age_s: float = AGE_S) -> Instance:
    """Return an instance that has been booting for so long."""
    return machine(
        number, SMALL, state=InstanceState.BOOTING, requested_at=NOW - age_s, launched_at=NOW - age_s, ready_at=None
    )


def awaiting(number: int = 1, within_s: float = 400.0, *, target: Target | None = None, on: str = "inst-1") -> Job:
    """Return a job that awaits an instance, submitted 100 s ago."""
    asks = spec(target=target or BatchTarget(finish_within_s=within_s))
    return job(number, JobState.AWAITING_INSTANCE, asks=asks, awaiting=(on,))


def launched(snapshot: Snapshot, policy: Policy | None = None) -> int:
    return len(of(decide(snapshot, policy), Launch))


def test_job_with_a_near_deadline_leaves_a_late_instance_for_another() -> None:
    plan = decide(scene(awaiting(), starting(1), SMALL))
    assert [a.for_jobs for a in of(plan, Launch)] == [("job-1",)]
    assert [a.reason.code for a in of(plan, Enqueue)] == ["awaited_late"]
    assert not of(plan, Terminate)


def test_second_machine_is_bought_once_whatever_was_carried_out() -> None:
    before = scene(awaiting(), starting(1), SMALL)
    plan = decide(before)
    assert launched(apply_ideally(before, plan)) == 0
    only_left = replace(plan, actions=tuple(of(plan, Enqueue)))
    assert launched(apply_ideally(before, only_left)) == 1


def test_job_that_can_wait_does() -> None:
    for can_wait in (awaiting(within_s=90_000.0), awaiting(target=BestEffortTarget())):
        assert launched(scene(can_wait, starting(1), SMALL)) == 0


def test_service_does_not_wait() -> None:
    serves = awaiting(target=ServiceTarget(requests_per_s=10.0, latency_ms=20.0))
    assert launched(scene(serves, starting(1), SMALL)) == 1


def test_what_takes_as_long_as_boots_did_lately_is_not_late() -> None:
    usual = scene(awaiting(), starting(1), SMALL, fleet_stats=FleetStats(boots_s={"mock": (200.0,) * 20}))
    assert launched(usual) == 0
    assert launched(scene(awaiting(), starting(1, 60.0), SMALL)) == 0


def test_where_all_start_slowly_nothing_more_is_bought() -> None:
    slow = [starting(n) for n in range(1, 5)]
    waiting = [awaiting(n, on=f"inst-{n}") for n in range(1, 5)]
    assert launched(scene(*waiting, *slow, SMALL)) == 0


def test_no_instance_is_late_while_the_engine_does_not_answer() -> None:
    assert launched(scene(awaiting(), starting(1), SMALL, engine_reachable=False)) == 0


def test_held_back_room_is_open_to_jobs_that_leave_a_late_instance() -> None:
    paid = machine(5, replace(offer("big", vcpus=2.0, usd_per_h=0.05), market=Market.RESERVED, available=0))
    two = offer("two", vcpus=2.0, usd_per_h=0.1)
    rented = machine(6, two, idle_since=None)
    served = spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=9.0), resources=need(2.0), interruptible=False)
    spot = replace(SMALL, market=Market.SPOT, price_usd_per_h=0.018)
    there = (paid, rented, running(9, rented, asks=served), two, spot)
    assert [a.ranks[0].instance_id for a in of(decide(scene(*there, awaiting(), starting(1))), Place)] == ["inst-5"]
    fresh = starting(1, 20.0)
    assert not of(decide(scene(*there, awaiting(), fresh)), Place)


def test_limits_hold_and_the_late_machine_is_taken_when_it_comes() -> None:
    plain = simple()
    one = replace(plain, caps=replace(plain.caps, max_instances=1))
    before = scene(awaiting(), starting(1), SMALL)
    assert launched(before, one) == 0
    left = job(1, asks=spec(target=BatchTarget(finish_within_s=400.0)))
    assert of(decide(scene(left, machine(1, SMALL), SMALL), one), Place)
