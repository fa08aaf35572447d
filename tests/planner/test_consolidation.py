"""Instances are emptied if that saves more than it costs, and jobs do not move back and forth."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    FailureCause,
    Instance,
    InstanceState,
    Job,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Offer,
    ProfileRequest,
    ServiceTarget,
)
from hcloud.planner.plan import Drain, Enqueue, Launch, Place, Plan, StopAttempt, Terminate
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from hcloud.spec.policy import DisruptionPolicy, Policy, RetentionPolicy
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.properties import Planner, honest
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

GATHERS = simple(disruption=DisruptionPolicy(consolidate=True), retention=RetentionPolicy(spin_up_multiple=1.0))
SERVICE = spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=9.0))


def long_ago(given_job: Job, placed_s: float = 700.0) -> Job:
    """Return the job, running for that long."""
    assert given_job.attempt is not None
    return replace(given_job, attempt=replace(given_job.attempt, placed_at=NOW - placed_s))


def two_machines(asks: JobSpec = SERVICE, placed_s: float = 700.0) -> Snapshot:
    """Return two instances of two vCPUs with one job of one vCPU each."""
    first, second = machine(1, idle_since=None), machine(2, idle_since=None)
    jobs = [long_ago(running(n, on, asks=asks), placed_s) for n, on in ((1, first), (2, second))]
    return scene(*jobs, first, second, offer())


# ----------------------------------------------------------------------------------------------------- single decisions
def test_one_of_two_half_empty_machines_is_emptied_and_says_what_it_saves() -> None:
    before = two_machines()
    plan = decide(before, GATHERS)
    assert [(type(a), a.reason.code) for a in plan.actions] == [(Drain, "consolidated"), (StopAttempt, "consolidated")]
    numbers = plan.actions[0].reason.numbers
    assert numbers["saved_usd"] == pytest.approx(0.1)
    assert float(numbers["cost_usd"] or 0) == pytest.approx(0.1 * 0.5 * 30 / 3600, abs=1e-6)
    assert not decide(apply_ideally(before, plan), GATHERS).actions
    assert not decide(before).actions, "only where the policy says so"


def test_moved_job_runs_elsewhere_and_the_machine_ends() -> None:
    at, ended, launched = two_machines(), 0, 0
    for _ in range(10):
        plan = decide(at, GATHERS)
        ended, launched = ended + len(of(plan, Terminate)), launched + len(of(plan, Launch))
        at = pass_time(apply_ideally(at, plan), 20.0, run_s=1e9)
    assert (len(at.instances), ended, launched) == (1, 1, 0)
    assert [job.state for job in at.jobs] == [JobState.RUNNING] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"interruptible": False},
        {"stateful": True},
        {"resources": need(1.5)},
        {"target": BatchTarget(finish_within_s=1200.0)},
    ],
)
def test_jobs_that_must_not_or_cannot_move_keep_their_machine(changes: dict[str, object]) -> None:
    assert not decide(two_machines(replace(SERVICE, **changes)), GATHERS).actions  # type: ignore[arg-type]


def test_work_that_would_be_lost_is_weighed_against_the_saving() -> None:
    batch = spec(target=BatchTarget(finish_within_s=1e7))
    assert of(decide(two_machines(batch, placed_s=1000.0), GATHERS), Drain)
    assert not decide(two_machines(batch, placed_s=20_000.0), GATHERS).actions


def test_nothing_is_moved_while_somebody_waits_or_something_starts() -> None:
    before = two_machines()
    coming = machine(3, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
    assert not of(decide(replace(before, instances=(*before.instances, coming)), GATHERS), Drain)
    assert not of(decide(two_machines(placed_s=100.0), GATHERS), Drain)


def test_jobs_move_to_an_idle_reserved_machine_but_not_to_an_idle_rented_one() -> None:
    busy = machine(1, idle_since=None)
    alone = long_ago(running(1, busy, asks=SERVICE))
    reserved = machine(2, offer("r", market=Market.RESERVED))
    assert of(decide(scene(alone, busy, reserved), GATHERS), Drain)
    assert not of(decide(scene(alone, busy, machine(2)), GATHERS), Drain)


def fleet_of(*changes: dict[str, Any], of_two: Offer | None = None, asks: JobSpec = SERVICE) -> Snapshot:
    """Return instances changed like this, each with one job of one vCPU that has run for 700 s."""
    fleet = [machine(n, of_two, **{"idle_since": None, **each}) for n, each in enumerate(changes, start=1)]
    return scene(*(long_ago(running(n, each, asks=asks)) for n, each in enumerate(fleet, start=1)), *fleet, offer())


def drained(snapshot: Snapshot) -> list[str]:
    return [each.instance_id for each in of(decide(snapshot, GATHERS), Drain)]


def test_the_machine_that_saves_most_is_emptied_and_of_equal_ones_the_first() -> None:
    assert drained(fleet_of({}, {}, {})) == ["inst-1"]
    dear = offer(usd_per_h=0.2)
    first, second = machine(1, idle_since=None), machine(2, dear, idle_since=None)
    jobs = [long_ago(running(n, on, asks=SERVICE)) for n, on in ((1, first), (2, second))]
    assert drained(scene(*jobs, first, second, offer())) == ["inst-2"]


@pytest.mark.parametrize(("left_s", "emptied"), [(1190.0, []), (1200.0, []), (1210.0, ["inst-1"])])
def test_a_machine_whose_lease_is_about_to_be_renewed_is_left_alone(left_s: float, emptied: list[str]) -> None:
    near, far = {"expires_at": NOW + left_s}, {"expires_at": NOW + 3000.0}
    assert drained(fleet_of(near, {**far, "offer": offer(market=Market.RESERVED)})) == emptied


def test_nothing_is_emptied_while_any_machine_is_drained_already() -> None:
    assert drained(fleet_of({}, {}, {"state": InstanceState.DRAINING})) == []


def test_nothing_is_emptied_while_no_job_could_start_elsewhere() -> None:
    assert drained(replace(fleet_of({}, {}), engine_reachable=False)) == []
    assert drained(replace(fleet_of({}, {}), paused=True)) == []


def test_what_a_billing_minimum_has_paid_for_is_not_saved() -> None:
    for minimum_s, saved_usd in ((500.0 + 1800.0, 0.05), (0.0, 0.1), (100.0, 0.1)):
        paid = replace(offer(), billing_minimum_s=minimum_s)
        [drain] = of(decide(fleet_of({}, {}, of_two=paid), GATHERS), Drain)
        assert drain.reason.numbers["saved_usd"] == pytest.approx(saved_usd)
    assert drained(fleet_of({}, {}, of_two=replace(offer(), billing_minimum_s=9000.0))) == []
    unlaunched = [{"launched_at": None}] * 2  # not confirmed yet: billed from now at the latest
    [drain] = of(decide(fleet_of(*unlaunched, of_two=replace(offer(), billing_minimum_s=1800.0)), GATHERS), Drain)
    assert drain.reason.numbers["saved_usd"] == pytest.approx(0.05)


def test_a_job_that_could_not_finish_in_time_elsewhere_stays() -> None:
    """Run for 700 s, it is expected to take 1,400 s anew, after a gap of 30 s."""
    for deadline_s, emptied in ((1430.0, ["inst-1"]), (1429.0, [])):
        asks = spec(target=BatchTarget(finish_within_s=100.0 - 1.0 + deadline_s))
        first, second = (machine(n, idle_since=None) for n in (1, 2))
        jobs = [long_ago(running(1, on, asks=asks)) for on in (first,)]
        jobs += [long_ago(running(2, second, asks=replace(SERVICE, interruptible=False)))]
        assert jobs[0].deadline_at == NOW + deadline_s
        assert drained(scene(*jobs, first, second, offer())) == emptied


def test_nodes_of_one_job_stay_where_they_are() -> None:
    fleet = [machine(n, idle_since=None) for n in (1, 2, 3)]
    pair = long_ago(running(1, *fleet[:2], asks=SERVICE))
    assert drained(scene(pair, long_ago(running(2, fleet[2], asks=SERVICE)), *fleet, offer())) == ["inst-3"]


def test_nothing_is_emptied_while_a_job_waits_or_stops_or_a_machine_is_ended() -> None:
    assert drained(fleet_of({}, {})) == ["inst-1"]
    out = OfferBackoff(provider="mock", until_at=NOW + 60.0, error="none")
    before = fleet_of({}, {})
    waits = job(9, asks=spec(resources=need(2.0)))
    assert drained(replace(before, jobs=(*before.jobs, waits), backoffs=(out,))) == []
    three = fleet_of({}, {}, {})
    last = three.jobs[-1]
    assert last.attempt is not None
    stopping = replace(
        last, attempt=replace(last.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    )
    assert drained(replace(three, jobs=(*three.jobs[:-1], stopping))) == []
    over = replace(before, instances=(*before.instances, machine(3, expires_at=NOW + 1.0)))
    assert [each.instance_id for each in of(decide(over, GATHERS), Terminate)] == ["inst-3"]
    assert drained(over) == []


def test_a_machine_that_does_not_answer_is_neither_emptied_nor_moved_to() -> None:
    assert drained(replace(fleet_of({}, {}), reachable=frozenset({"inst-2"}))) == []


def test_jobs_that_could_not_start_again_or_are_measured_stay() -> None:
    unreadable = {"job-1": "no key", "job-2": "no key"}
    assert drained(replace(fleet_of({}, {}), unreadable_secrets=unreadable)) == []
    request = ProfileRequest(job_id="job-7", type_column="mock/small", steps_vcpus=(1.0,))
    assert drained(fleet_of({}, {}, asks=replace(SERVICE, profile=request))) == []


@pytest.mark.parametrize(("placed_s", "emptied"), [(599.0, 0), (600.0, 1)])
def test_a_job_rests_after_it_was_placed(placed_s: float, emptied: int) -> None:
    assert len(of(decide(two_machines(placed_s=placed_s), GATHERS), Drain)) == emptied


@pytest.mark.parametrize(("ran_s", "emptied"), [(3569.0, 1), (3570.0, 1), (3571.0, 0)])
def test_the_saving_must_be_twice_the_cost_of_repeated_work_and_gap(ran_s: float, emptied: int) -> None:
    """An hour of $0.10 is saved; half of an instance is taken for the time run so far and a gap of 30 s."""
    batch = spec(target=BatchTarget(finish_within_s=1e7))
    assert len(of(decide(two_machines(batch, placed_s=ran_s), GATHERS), Drain)) == emptied


STAYS = replace(SERVICE, interruptible=False)


def crowd(*residents: tuple[Instance, tuple[JobSpec, ...]]) -> Snapshot:
    """Return these instances with jobs that have run for 700 s; earlier numbers were submitted later."""
    numbers, jobs = iter(range(90, 10, -1)), []
    for on, specs in residents:
        jobs += [long_ago(running(next(numbers), on, asks=asks)) for asks in specs]
    return scene(*jobs, *(on for on, _ in residents), offer())


FIRST, SECOND, THIRD = (machine(n, idle_since=None) for n in (1, 2, 3))


def test_jobs_of_one_machine_move_to_several_in_queue_order_if_there_is_room_for_all() -> None:
    free = replace(SERVICE, target=BestEffortTarget())
    moving = (free, SERVICE)
    plan = decide(crowd((FIRST, moving), (SECOND, (STAYS,)), (THIRD, (STAYS,))), GATHERS)
    [drain] = of(plan, Drain)
    assert (drain.instance_id, drain.reason.numbers["targets"]) == ("inst-1", "inst-2, inst-3")
    assert drain.reason.numbers["jobs"] == 2
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-89", "job-90"]  # best effort last
    in_order = decide(crowd((FIRST, (SERVICE, SERVICE)), (SECOND, (STAYS,)), (THIRD, (STAYS,))), GATHERS)
    assert [each.job_id for each in of(in_order, StopAttempt)] == ["job-89", "job-90"]  # submitted earlier
    assert drained(crowd((FIRST, moving), (SECOND, (STAYS,)))) == []


def test_a_machine_that_a_rank_is_just_placed_on_is_not_emptied() -> None:
    tiny = machine(3, offer("tiny", vcpus=1.0), idle_since=None)
    before = crowd((FIRST, (SERVICE,)), (SECOND, (STAYS,)))
    asks = spec(target=BatchTarget(), nodes=Nodes(count=2, minimum=1, gang=False))
    growing = replace(running(1, tiny, asks=asks), spec=asks)
    assert drained(replace(before, reachable=frozenset({"inst-1", "inst-2"}))) == ["inst-1"]
    grows = replace(
        before,
        jobs=(growing, *before.jobs),
        instances=(*before.instances, tiny),
        reachable=frozenset({"inst-1", "inst-2", "inst-3"}),
    )
    plan = decide(grows, GATHERS)
    assert [rank.instance_id for each in of(plan, Place) for rank in each.ranks] == ["inst-1"]
    assert of(plan, Drain) == []


def test_of_machines_that_save_as_much_the_one_whose_jobs_lose_less_is_emptied() -> None:
    batch = spec(target=BatchTarget(finish_within_s=1e7))
    assert drained(crowd((FIRST, (batch,)), (SECOND, (SERVICE,)))) == ["inst-2"]


def test_room_that_one_machine_could_not_use_is_there_for_the_next() -> None:
    """Two jobs of the first find room for one of them only, which the job of the third then takes."""
    tiny = machine(3, offer("tiny", vcpus=1.0, usd_per_h=0.05), idle_since=None)
    assert drained(crowd((FIRST, (SERVICE, SERVICE)), (SECOND, (STAYS,)), (tiny, (SERVICE,)))) == ["inst-3"]


# ----------------------------------------------------------------------------------------------------------- hysteresis
@st.composite
def spread_out(draw: st.DrawFn) -> Snapshot:
    """Draw instances with a few small services each, placed at different times."""
    fleet: list[Instance] = []
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(3, 5)) + 1):
        on = machine(number, offer("eight", vcpus=8.0, usd_per_h=0.4), idle_since=None, expires_at=NOW + 1e6)
        fleet.append(on)
        for _ in range(draw(st.integers(1, 3))):
            asks = replace(SERVICE, resources=need(draw(st.sampled_from([1.0, 2.0]))))
            placed_s = draw(st.sampled_from([100.0, 700.0]))
            jobs.append(long_ago(running(len(jobs) + 1, on, asks=asks), placed_s))
    return scene(*jobs, *fleet, offer())


def jobs_do_not_wander(planner: Planner, at: Snapshot) -> None:
    """No job is moved twice within the rest period, nothing is launched for it, and moving ends."""
    moved: dict[str, list[float]] = defaultdict(list)
    late = 0
    for cycle in range(120):
        plan = planner(at, GATHERS)
        assert not of(plan, Launch), "a machine is launched in place of one that was emptied"
        for stop in of(plan, StopAttempt):
            moved[stop.job_id].append(at.now)
        late += cycle >= 100 and len(of(plan, Drain))
        assert len(of(plan, Drain)) <= 1
        at = pass_time(apply_ideally(at, plan), 30.0, run_s=1e9)
    for times in moved.values():
        rests = [later - earlier for earlier, later in pairwise(times)]
        assert all(rest >= GATHERS.disruption.consolidate_rest_s for rest in rests), times
    assert late == 0, "still moving after an hour without any change"


@settings(max_examples=40, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(spread_out())
def test_jobs_do_not_wander(at: Snapshot) -> None:
    jobs_do_not_wander(honest, at)


def takes_no_rest(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores the rest period."""
    return honest(replace(snapshot, jobs=tuple(long_ago(j) if j.attempt else j for j in snapshot.jobs)), policy)


def test_that_property_catches_a_planner_that_takes_no_rest() -> None:
    @settings(max_examples=200, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(spread_out())
    def holds(at: Snapshot) -> None:
        jobs_do_not_wander(takes_no_rest, at)

    with pytest.raises(AssertionError):
        holds()


def test_evicted_jobs_count_their_moves_and_stop_being_moved_when_they_are_used_up() -> None:
    limit = replace(SERVICE, retries=replace(SERVICE.retries, limits={"evicted": 1}))
    before = two_machines(limit)
    once = tuple(replace(job, failures=(FailureCause.EVICTED,)) for job in before.jobs)
    assert not of(decide(replace(before, jobs=once), GATHERS), Drain)
    assert not of(decide(before, GATHERS), Enqueue)
