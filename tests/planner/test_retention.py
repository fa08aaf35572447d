"""Instances on which no unit starts are released, slow ones are not."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.model import Constraints, Event, EventKind, InstanceState, JobState, Market, Nodes, Resources
from hcloud.core.schedules import ScheduledRun
from hcloud.forecast.fleet_tracker import FleetStats, FleetTracker
from hcloud.forecast.reuse_times import ReuseTimes
from hcloud.planner.plan import Drain, Launch, Place, Plan, Renew, Terminate
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets, RetentionPolicy, ScopeBudget
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.policies import simple

BROKEN = FleetStats(broken=frozenset({"inst-1"}))


# ------------------------------------------------------------------------------------------------------- what plans do
def test_broken_machine_is_ended_when_it_is_idle_and_gets_no_more_jobs() -> None:
    plan = decide(scene(job(1), machine(1), offer(), fleet_stats=BROKEN))
    assert [(a.instance_id, a.reason.code) for a in of(plan, Terminate)] == [("inst-1", "misbehaved")]
    assert not of(plan, Place)
    assert of(plan, Launch)


def test_broken_machine_with_jobs_is_drained_and_ended_after_them() -> None:
    busy = machine(1, idle_since=None)
    before = scene(running(1, busy), busy, fleet_stats=BROKEN)
    plan = decide(before)
    assert [(type(a), a.reason.code) for a in plan.actions] == [(Drain, "misbehaved")]
    assert not decide(apply_ideally(before, plan)).actions
    drained = machine(1, state=InstanceState.DRAINING)
    assert [a.reason.code for a in of(decide(scene(drained, fleet_stats=BROKEN)), Terminate)] == ["drained"]


def test_drained_machine_that_is_broken_is_not_taken_back_when_it_is_renewed() -> None:
    near = machine(1, state=InstanceState.DRAINING, expires_at=NOW + 800, idle_since=None)
    assert not of(decide(scene(running(1, near), near, fleet_stats=BROKEN)), Drain)


def test_reserved_machine_stays_although_it_is_broken() -> None:
    assert not decide(scene(machine(1, offer(market=Market.RESERVED)), fleet_stats=BROKEN)).actions


def test_plan_says_when_an_idle_machine_goes_if_nothing_comes_for_it() -> None:
    ten_seconds = simple(retention=RetentionPolicy(maximum_s=10))
    known = scene(machine(1, idle_since=NOW - 4), machine(2, idle_since=NOW - 9))
    assert decide(known, ten_seconds).due_at == NOW + 1
    later = decide(replace(known, now=NOW + 1), ten_seconds)
    assert [each.instance_id for each in of(later, Terminate)] == ["inst-2"]
    assert later.due_at == NOW + 6


def test_an_idle_instance_is_released_although_a_placement_there_was_undone() -> None:
    """0.2 + 0.2 + 0.2 - 0.2 - 0.2 - 0.2 exceeds 0, so taking and releasing three fifths leaves a rounding error."""
    of_four = replace(
        offer(),
        instance_type=replace(offer().instance_type, capacity=Resources(vcpus=4.0, memory_mib=16_384, disk_gib=50.0)),
    )
    asks = spec(resources=Resources(vcpus=0.8, memory_mib=900, disk_gib=1.0), nodes=Nodes(count=3))
    poor = simple(
        budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.01)}), retention=RetentionPolicy(maximum_s=10)
    )
    waits = replace(job(1, asks=asks), state=JobState.QUEUED)
    plan = decide(scene(waits, machine(1, of_four, idle_since=NOW - 60), spend=Spend(day_ends_at=NOW + 40_000)), poor)
    assert [a.reason.code for a in of(plan, Terminate)] == ["idle"]


def test_plan_says_when_a_back_off_is_over_and_nothing_of_what_is_paid_anyway() -> None:
    reserved = machine(1, offer(market=Market.RESERVED), idle_since=NOW)
    assert decide(scene(reserved)).due_at == inf
    tired = replace(job(1), state=JobState.QUEUED, not_before_at=NOW + 30)
    assert decide(scene(tired, reserved)).due_at == NOW + 30


# ------------------------------------------------------------------------------------ as long as pays, by what was seen
LEARNS = simple(retention=RetentionPolicy(spin_up_multiple=2.0))


def _seen(*reused_s: float) -> FleetStats:
    kind = (offer().provider, offer().instance_type.name)
    return FleetStats(reuse=ReuseTimes(by_kind={kind: reused_s}))


def test_a_machine_whose_like_were_not_needed_again_is_let_go_at_once() -> None:
    idle, boot_s = machine(1, idle_since=NOW - 1), offer().instance_type.boot_delay_s
    assert decide(scene(idle), LEARNS).due_at == NOW - 1 + 2 * boot_s
    assert released(decide(scene(idle, fleet_stats=_seen(*[inf] * 20)), LEARNS)) == ["inst-1"]
    fixed = simple(retention=RetentionPolicy(spin_up_multiple=2.0, learn=False))
    assert not released(decide(scene(idle, fleet_stats=_seen(*[inf] * 20)), fixed))


def test_a_machine_is_kept_for_as_long_as_its_like_were_needed_again_within_the_policys_limits() -> None:
    often = _seen(*[5.0] * 30, *[inf] * 30)
    assert decide(scene(machine(1, idle_since=NOW), fleet_stats=often), LEARNS).due_at == NOW + 5
    brief = simple(retention=RetentionPolicy(spin_up_multiple=2.0, maximum_s=3))
    assert decide(scene(machine(1, idle_since=NOW), fleet_stats=often), brief).due_at == NOW + 3
    longer = simple(retention=RetentionPolicy(spin_up_multiple=2.0, minimum_s=60))
    assert decide(scene(machine(1, idle_since=NOW), fleet_stats=often), longer).due_at == NOW + 60


# ------------------------------------------------------------------------------------------------- schedules' next runs
KEEPS_A_MINUTE = simple(retention=RetentionPolicy(spin_up_multiple=0.0, minimum_s=60, maximum_s=60))


def run_of(due_in_s: float, **changes: Any) -> ScheduledRun:
    return ScheduledRun(schedule="sched-1", due_at=NOW + due_in_s, spec=spec(**changes))


def released(plan: Plan) -> list[str]:
    return [each.instance_id for each in of(plan, Terminate)]


def test_an_idle_machine_is_kept_for_a_scheduled_run_that_is_due_soon() -> None:
    idle = machine(1, idle_since=NOW - 90)
    plan = decide(scene(idle, scheduled=(run_of(50),)), KEEPS_A_MINUTE)
    assert not plan.actions and plan.due_at == NOW + 50
    near = replace(idle, expires_at=NOW + 300)  # and its lease is renewed
    assert [type(each) for each in decide(scene(near, scheduled=(run_of(50),)), KEEPS_A_MINUTE).actions] == [Renew]


@pytest.mark.parametrize(
    ("run", "market"),
    [
        (run_of(70), Market.ON_DEMAND),
        (run_of(-1), Market.ON_DEMAND),
        (run_of(50, resources=Resources(vcpus=64.0)), Market.ON_DEMAND),
        (run_of(50, instance_types=("other",)), Market.ON_DEMAND),
        (run_of(50, placement=Constraints(zones=("mars",))), Market.ON_DEMAND),
        (run_of(50, interruptible=False), Market.SPOT),
    ],
)
def test_a_scheduled_run_that_cannot_use_it_in_time_keeps_no_machine(run: ScheduledRun, market: Market) -> None:
    idle = machine(1, offer(market=market), idle_since=NOW - 90)
    assert released(decide(scene(idle, scheduled=(run,)), KEEPS_A_MINUTE)) == ["inst-1"]


def test_as_many_machines_are_kept_as_scheduled_runs_need_and_reserved_ones_serve_first() -> None:
    whole = {"resources": offer().instance_type.capacity, "nodes": Nodes(count=2)}
    idle = [machine(number, idle_since=NOW - 100 + number) for number in (1, 2, 3)]
    assert released(decide(scene(*idle, scheduled=(run_of(50, **whole),)), KEEPS_A_MINUTE)) == ["inst-1"]
    paid = machine(4, offer(market=Market.RESERVED), idle_since=NOW - 200)
    plan = decide(scene(*idle, paid, scheduled=(run_of(50, **whole),)), KEEPS_A_MINUTE)
    assert released(plan) == ["inst-1", "inst-2"]


# --------------------------------------------------------------------------------------------------- what the log tells
def told(kind: EventKind, at: float, number: int = 1, job_number: int = 1, **fields: object) -> Event:
    """Return an event of an instance."""
    return Event(at=at, kind=kind, instance_id=f"inst-{number}", job_id=f"job-{job_number}", fields=fields)


def requested(number: int, market: str = "on_demand") -> Event:
    """Return the request of an instance of the only type."""
    where: dict[str, Any] = {"provider": "mock", "region": "r", "zone": "a", "type": "small", "market": market}
    return told(EventKind.INSTANCE_REQUESTED, 0.0, number, **where)


def measured(number: int, ratio: float) -> Event:
    """Return events of a job that achieved this part of its prediction."""
    return told(EventKind.PREDICTION, 5.0, number, predicted=10.0, measured=10.0 * ratio)


def book(*events: Event) -> FleetStats:
    """Return what the fleet tracker derives from these events."""
    kept = FleetTracker()
    kept.follow(events)
    return kept.recent(100.0)


def test_machine_on_which_nothing_ever_starts_is_broken() -> None:
    refused = [
        told(EventKind.UNIT_ENDED, 1.0, 1, n, attempt=f"job-{n}.1", rank=0, cause="start_refused") for n in (1, 2)
    ]
    assert book(requested(1), *refused).broken == {"inst-1"}
    started = told(EventKind.UNIT_STARTED, 2.0, 1, 3, attempt="job-3.1", rank=0, vcpus=1.0)
    assert book(requested(1), *refused, started).broken == set()
    assert book(requested(1), *refused[:1]).broken == set()


@given(st.lists(st.floats(0.0, 2.0), min_size=3, max_size=9))
def test_slow_machine_is_not_broken(factors: list[float]) -> None:
    assert not book(requested(1), *(measured(1, factor) for factor in factors)).broken


def test_queue_is_followed_and_who_passes_through_at_one_moment_has_not_waited() -> None:
    def state(at: float, number: int, to: str) -> Event:
        return Event(at=at, kind=EventKind.JOB_STATE, job_id=f"job-{number}", fields={"to": to})

    queued, placed = JobState.QUEUED.value, JobState.PLACED.value
    seen = book(
        state(10, 1, queued), state(10, 1, placed), state(20, 2, queued), state(20, 3, queued), state(50, 2, placed)
    )
    assert list(seen.queue) == [(10, 0), (20, 2), (50, 1)]
    assert (seen.queue_growth(60, 45), seen.queue_growth(60, 5), seen.quiet_s(60)) == (1, 0, 0.0)
    assert replace(seen, queue=((10, 2), (40, 0))).quiet_s(100) == 60.0


def test_who_has_a_machine_on_the_way_does_not_queue() -> None:
    def state(at: float, number: int, to: str, code: str = "") -> Event:
        return Event(at=at, kind=EventKind.JOB_STATE, job_id=f"job-{number}", fields={"to": to, "code": code})

    queued, awaiting = JobState.QUEUED.value, JobState.AWAITING_INSTANCE.value
    came = state(10, 1, queued), state(20, 2, queued)
    assert list(book(*came, state(30, 1, awaiting)).queue) == [(10, 1), (20, 2), (30, 1)]
    assert list(book(*came, state(30, 1, queued, "booting")).queue) == [(10, 1), (20, 2), (30, 1)]
    assert list(book(*came, state(30, 1, queued, "backoff_until")).queue) == [(10, 1), (20, 2), (30, 1)]
    assert list(book(*came, state(30, 1, queued, "waits_for_reserved")).queue) == [(10, 1), (20, 2)]


def test_who_only_passes_through_the_queue_does_not_end_the_quiet() -> None:
    passed, waited = ((0, 0), (50, 1), (55, 0)), ((0, 0), (50, 1), (55, 2), (65, 0))
    assert FleetStats(queue=passed).quiet_s(100) == 100.0
    assert FleetStats(queue=waited).quiet_s(100) == 35.0
    assert (
        FleetStats(queue=((0, 1),)).quiet_s(5),
        FleetStats(queue=((0, 1),)).quiet_s(50),
        FleetStats().quiet_s(50),
    ) == (5, 0, 0)


def test_expected_wait_is_a_quantile_of_the_times_between_releases() -> None:
    events = [requested(1, "reserved")]
    for n in range(8):
        where = {"attempt": f"job-{n}.1", "rank": 0}
        events.append(told(EventKind.UNIT_STARTED, 1.0, 1, n, vcpus=2.0 if n < 7 else 0.5, **where))
        events.append(told(EventKind.UNIT_ENDED, 10.0 * n * n, 1, n, **where))
    seen = FleetTracker()
    seen.follow(events)
    recent = seen.recent(500.0)
    assert recent.release_interval_s(1.0, 0.5) == 70.0
    assert recent.release_interval_s(1.0, 0.99) == 110.0
    assert recent.release_interval_s(4.0, 0.5) is None
