"""A wide job does not starve behind a stream of small ones, and the small ones still meet their deadlines."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from math import inf

import pytest

from bench.waiting import (
    ORDERS,
    POLICIES,
    QUEUES,
    Waited,
    late_stream,
    measure,
    slurm_like,
    stream,
)
from hcloud import wiring
from hcloud.classifier.applications import identify
from hcloud.classifier.library import Library
from hcloud.config.files import load_policy
from hcloud.core.estimates import Application, Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, EventKind, Job, Nodes, ServiceTarget
from hcloud.planner.explain import job_timeline
from hcloud.planner.fit.job_run_times import DOUBT_OF_USUAL, log_normal
from hcloud.planner.placement import open_instances, place
from hcloud.planner.plan import Finish, Place, Plan, Terminate, Wait
from hcloud.planner.text import clock_time
from hcloud.spec.policy import (
    AdmissionPolicy,
    Budgets,
    PlacementPolicy,
    Policy,
    ScopeBudget,
    parse_policy,
    simple_policy,
)
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec

STREAM = stream(wide_at_s=40.0, until_s=120.0)
LARGE = offer("large", 8.0, available=0)
WIDE = spec(resources=need(8.0, 4096), priority=100, target=BatchTarget(finish_within_s=1800.0))


@pytest.fixture(scope="module", autouse=True)
def _empty_library() -> Iterator[None]:
    """Read no library of profiles, which would take longer than the simulations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "load_library", lambda _paths: Library())
        yield


@pytest.fixture(scope="module")
def slurm(_empty_library: None) -> Waited:
    return slurm_like(STREAM)


@pytest.mark.parametrize("name", POLICIES)
def test_wide_job_starts_about_as_early_as_with_slurm(name: str, slurm: Waited) -> None:
    policy = load_policy(POLICIES[name])
    # Where nothing can be rented, a plan ahead lets it wait for as long as its deadline allows.
    for queues, most in (("by_quality", 1.5), ("planned", inf)) if name == "sr" else ((policy.admission.queues, 1.5),):
        rules = replace(policy, admission=replace(policy.admission, queues=queues))
        ours = measure(STREAM, rules, reserved=name == "sr")
        assert ours.wide_s <= most * slurm.wide_s
        assert ours.met >= 0.99


@pytest.mark.parametrize(("order", "queues"), list(zip(ORDERS, cycle(QUEUES), strict=False)), ids=str)
def test_no_placement_order_or_queue_lets_a_wide_job_starve(order: str, queues: tuple[str, str], slurm: Waited) -> None:
    sections = {"placement": {"order": order}, "admission": {"queues": queues[0], "order": queues[1]}}
    ours = measure(STREAM, parse_policy(sections))
    assert ours.wide_s <= 1.5 * slurm.wide_s
    assert ours.met >= 0.99


def test_the_stream_starves_a_wide_job_if_reserved_room_is_open(monkeypatch: pytest.MonkeyPatch, slurm: Waited) -> None:
    monkeypatch.setattr(open_instances, "open_beside", lambda _context, _group, allowed: allowed)
    assert measure(STREAM, simple_policy()).wide_s > 1.5 * slurm.wide_s


def test_explain_names_the_expected_start() -> None:
    events = measure(STREAM, simple_policy()).events
    waits = [e for e in events if e.fields.get("code") == "reserves_room"]
    job_id, expected_at = waits[0].job_id, waits[0].fields["expected_start_at"]
    steps = job_timeline(job(int((job_id or "").removeprefix("job-"))), events, [])
    assert any(f"expected start at {clock_time(float(str(expected_at)))}" in step.text for step in steps)


@pytest.mark.parametrize("seeded", [False, True])
def test_a_job_of_low_priority_starts_before_its_slack_is_gone(monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    if seeded:  # the fault that this test is to find
        monkeypatch.setattr(place, "urgent_jobs", lambda _context: [])
    ours = measure(late_stream(), simple_policy())
    met = {e.job_id: e.fields["target_met"] for e in ours.events if e.kind is EventKind.JOB_FINISHED}
    wide = next(e.job_id for e in ours.events if e.kind is EventKind.JOB_SUBMITTED and e.fields["name"] == "wide")
    assert met[wide] is not seeded
    assert ours.met >= 0.99


# ----------------------------------------------------------------------------------------------------- single decisions
PROGRAM = ("sort",)
BY_RUN = Estimate(value=0.1, low=0.1, high=0.1)
TEN_S = Classification(
    by_type={"mock/large": BY_RUN}, measure=Measure.COMPLETION, quality_target=Estimate(value=0.1, low=0.1, high=0.1)
)


def full(**sections: object) -> Policy:
    """Return the simple policy with a limit of two instances, which the fleet has reached."""
    policy = simple_policy(**sections)
    return replace(policy, caps=replace(policy.caps, max_instances=2))


def wide(
    number: int = 50,
    wait_code: str = "cap_instances",
    at: float = NOW,
    reserved: tuple[str, ...] = (),
    **changes: object,
) -> Job:
    """Return the wide job after an earlier plan found neither room nor a machine for it."""
    asks = replace(WIDE, **changes)  # type: ignore[arg-type]
    return job(number, asks=asks, wait_code=wait_code, submitted_at=at, reserved=reserved)


def placed(plan: Plan) -> set[str]:
    return {action.job_id for action in of(plan, Place)}


def reserved_for(plan: Plan) -> dict[str, str]:
    """Return the instances that new reservations name, by job."""
    waits = [each for each in of(plan, Wait) if each.reason.code == "reserves_room"]
    return {each.job_id: str(each.reason.numbers["instances"]) for each in waits}


def test_wait_names_the_machine_and_the_expected_start() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    busy = spec(resources=need(4.0))
    old = [
        running(1, first, asks=busy),
        running(2, first, asks=busy),
        running(3, second, asks=spec(resources=need(6.0))),
    ]
    plan = decide(scene(first, second, LARGE, *old, wide(), job(60)), full())
    reason = next(action.reason for action in of(plan, Wait) if action.job_id == "job-50")
    assert reason.code == "reserves_room"
    assert reason.numbers["instances"] == "inst-2"  # the least is missing there
    assert reason.numbers["expected_start_at"] == NOW + 100.0  # its unit has run for 100 s
    assert f"expected start at {clock_time(NOW + 100.0)}" in reason.text
    assert not placed(plan)


def test_the_reservation_stays_where_room_was_released_for_it() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    old = [running(1, first, asks=spec(resources=need(6.0))), running(2, second, asks=spec(resources=need(4.0)))]
    waits = wide(wait_code="reserves_room")
    fresh = decide(scene(first, second, LARGE, *old, waits), full())
    assert [each.reserved for each in of(fresh, Wait)] == [("inst-2",)]
    kept = decide(scene(first, second, LARGE, *old, replace(waits, reserved=("inst-1",))), full())
    assert not of(kept, Wait)


def test_a_long_unit_is_not_waited_for_where_another_machine_is_free_far_earlier() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    asks = spec(resources=need(2.0), command=PROGRAM)
    identity = identify(asks)
    ran = Application(name="sort", program=identity.program, inputs={identity.input: 1.0}, run_s=9000.0, ended_runs=3)
    old = [running(1, first, asks=asks), running(2, second, asks=spec(resources=need(6.0)))]
    world = replace(scene(first, second, LARGE, *old, wide(), job(60)), programs={identity.program: (ran,)})
    plan = decide(world, full())
    assert reserved_for(plan) == {"job-50": "inst-2"}


def test_expected_start_follows_from_how_long_the_program_ran_before() -> None:
    only, asks = machine(1, LARGE), spec(resources=need(4.0), command=PROGRAM)
    identity = identify(asks)
    ran = Application(name="sort", program=identity.program, inputs={identity.input: 1.0}, run_s=130.0, ended_runs=3)
    world = scene(only, LARGE, running(1, only, asks=asks), wide(), job(60))
    plan = decide(replace(world, programs={identity.program: (ran,)}), full())
    reason = next(action.reason for action in of(plan, Wait) if action.job_id == "job-50")
    # It has run for 100 s; of runs that usually take 130 s, those that last so long take longer than that.
    rest_s = log_normal(130.0, DOUBT_OF_USUAL).after(100.0).quantile(0.5) - 100.0
    assert reason.numbers["expected_start_in_s"] == pytest.approx(rest_s, abs=0.001)
    assert rest_s > 30.0


@pytest.mark.parametrize("confidence", [0.9, 0.5])
def test_units_pass_that_end_before_the_start_with_the_confidence_of_the_policy(confidence: float) -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0)))  # expected to run for 100 s more
    short = job(60, asks=spec(max_runtime_s=100.0 * (1.0 - confidence) - 1.0))
    long = job(61, asks=spec(max_runtime_s=100.0 * (1.0 - confidence) + 1.0))
    policy = full(placement=PlacementPolicy(order="least_loaded", confidence=confidence))
    assert placed(decide(scene(only, LARGE, held, wide(), short, long), policy)) == {"job-60"}


@pytest.mark.parametrize(("age_s", "passes"), [(90.0, False), (200.0, True)])
def test_units_without_a_limit_pass_by_what_is_known_of_their_runs(age_s: float, passes: bool) -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0)))
    assert held.attempt is not None
    old = tuple(replace(each, started_at=NOW - age_s) for each in held.attempt.allocations)
    held = replace(held, attempt=replace(held.attempt, allocations=old))
    known = job(60, application="sort")  # runs for 10 s, and hardly ever for 20
    world = replace(scene(only, LARGE, held, wide(), known), applications={"sort": TEN_S})
    policy = full(placement=PlacementPolicy(order="paragon"), admission=AdmissionPolicy(queues="one"))
    assert placed(decide(world, policy)) == ({"job-60"} if passes else set())


def test_room_that_no_reservation_needs_stays_open() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    old = [running(1, first, asks=spec(resources=need(1.0))), running(2, second, asks=spec(resources=need(5.0)))]
    plan = decide(scene(first, second, LARGE, *old, wide(), job(60)), full())
    assert {each.instance_id for action in of(plan, Place) for each in action.ranks} == {"inst-2"}


def test_services_hold_their_room_for_ever_and_are_not_waited_for() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=9.0)))
    assert placed(decide(scene(only, LARGE, held, wide(), job(60)), full())) == {"job-60"}


def test_first_refusal_reserves_nothing_since_a_machine_may_be_launched() -> None:
    only, rented = machine(1, LARGE), offer("large", 8.0)
    held = running(1, only, asks=spec(resources=need(4.0)))
    assert placed(decide(scene(only, rented, held, wide(wait_code=""), job(60)), simple_policy())) == {"job-60"}


# Half of its time is over, so that it may wait no longer than it has waited.
URGENT_AT = NOW - 900.0


def test_an_urgent_job_has_room_reserved_beside_that_of_the_first_in_order() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    old = [running(1, first, asks=spec(resources=need(4.0))), running(2, second, asks=spec(resources=need(5.0)))]
    world = scene(first, second, LARGE, *old, wide(), wide(51, at=URGENT_AT, priority=0), job(60))
    assert reserved_for(decide(world, full())) == {"job-50": "inst-1", "job-51": "inst-2"}
    calm = scene(first, second, LARGE, *old, wide(), wide(51, at=URGENT_AT + 60.0, priority=0), job(60))
    assert reserved_for(decide(calm, full())) == {"job-50": "inst-1"}


def test_an_urgent_job_takes_its_room_before_jobs_of_higher_priority() -> None:
    only = machine(1, LARGE)
    higher = [job(number, asks=spec(priority=500)) for number in (60, 61)]
    waits = wide(51, wait_code="reserves_room", reserved=("inst-1",), at=URGENT_AT, priority=0)
    assert placed(decide(scene(only, LARGE, waits, *higher), full())) == {"job-51"}
    calm = wide(51, wait_code="reserves_room", reserved=("inst-1",), at=URGENT_AT + 60.0, priority=0)
    assert placed(decide(scene(only, LARGE, calm, *higher), full())) == {"job-60", "job-61"}


def test_urgent_jobs_do_not_take_room_from_the_first_in_order() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0)))
    half = spec(resources=need(2.0), target=BatchTarget(finish_within_s=1800.0))
    urgent = job(51, asks=half, wait_code="reserves_room", submitted_at=URGENT_AT)
    assert placed(decide(scene(only, LARGE, held, wide(), urgent, job(60)), full())) == set()
    ready = wide(wait_code="reserves_room")
    assert placed(decide(scene(only, LARGE, ready, urgent, job(60)), full())) == {"job-50"}


def test_a_job_that_cannot_meet_its_deadline_is_not_urgent() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0)))
    first = wide()
    missed = wide(51, at=NOW - 1900.0, priority=0, resources=need(7.0, 4096))
    assert reserved_for(decide(scene(only, LARGE, held, first, missed, job(60)), full())) == {"job-50": "inst-1"}


def test_job_that_only_a_running_machine_can_take_is_not_given_up_while_its_room_is_reserved() -> None:
    only, huge = machine(1, LARGE), offer("huge", 64.0, usd_per_h=9.0)
    policy = replace(full(), caps=replace(full().caps, max_price_usd_per_h=1.0))
    held = running(1, only, asks=spec(resources=need(4.0)))
    waits = wide(wait_code="reserves_room", reserved=("inst-1",))
    plan = decide(scene(only, huge, held, waits, job(60)), policy)
    assert not of(plan, Finish)
    assert [each.reason.code for each in of(plan, Wait) if each.job_id == "job-60"] == ["instance_full"]
    # Without that machine it can never run.
    plan = decide(scene(huge, job(60)), policy)
    assert [each.reason.code for each in of(plan, Finish)] == ["impossible"]


@pytest.mark.parametrize(("left_usd", "starts"), [(0.05, True), (0.03, False)])
def test_no_machine_is_kept_for_nodes_that_their_user_cannot_pay_together(left_usd: float, starts: bool) -> None:
    idle = machine(1, LARGE, idle_since=NOW - 5000.0)
    asks = spec(resources=need(2.0), nodes=Nodes(count=2, minimum=2))  # each costs $0.021 until the lease ends
    policy = full(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=left_usd)}))
    plan = decide(scene(idle, LARGE, job(50, asks=asks, wait_code="reserves_room", reserved=("inst-1",))), policy)
    assert placed(plan) == ({"job-50"} if starts else set())
    assert [each.instance_id for each in of(plan, Terminate)] == ([] if starts else ["inst-1"])


@pytest.mark.parametrize(("ran_s", "keeps"), [(3000.0, True), (4000.0, False)])
def test_no_idle_machine_is_kept_for_a_start_expected_beyond_one_lease(ran_s: float, keeps: bool) -> None:
    idle, busy = machine(1, LARGE, idle_since=NOW - 5000.0), machine(2, LARGE)
    other = running(1, busy, asks=spec(resources=need(8.0)))
    (held,) = other.attempt.allocations if other.attempt else ()
    lasts = replace(held, started_at=NOW - ran_s)  # it is expected to run as long again
    other = replace(other, attempt=replace(other.attempt, allocations=(lasts,)) if other.attempt else None)
    asks = spec(resources=need(8.0), nodes=Nodes(count=2, minimum=2))
    waiting = job(50, asks=asks, wait_code="reserves_room", reserved=("inst-1", "inst-2"))
    plan = decide(scene(idle, busy, LARGE, other, waiting), full())
    assert placed(plan) == set()
    assert [each.instance_id for each in of(plan, Terminate)] == ([] if keeps else ["inst-1"])
