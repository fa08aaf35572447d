"""A wide job does not starve behind a stream of small ones, and the small ones still meet their deadlines."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hcloud.config.files import load_policy
from hcloud.core.model import BatchTarget, Job, ServiceTarget
from hcloud.planner import make_plan
from hcloud.planner.placement import place
from hcloud.planner.plan import Place, Plan, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.simulator.peers import peer_named
from hcloud.spec.policy import Policy, parse_policy
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

TICK_S, RUN_S, SMALL_WITHIN_S = 5.0, 60.0, 600.0
WIDE_AT, TICKS = 20, 60
SHIPPED = sorted((Path(__file__).parents[2] / "policies").glob("*.yaml"))
ORDERS = (
    "least_loaded",
    "first_fit",
    "random",
    "paragon",
    "quasar",
    "heterogeneity_oblivious",
    "interference_oblivious",
    "least_loss",
)
QUEUES = [(queues, order) for queues in ("one", "by_quality") for order in ("priority", "shortest")]
LARGE = offer("large", 8.0, available=0)
SMALL = spec(target=BatchTarget(finish_within_s=SMALL_WITHIN_S))
WIDE = spec(resources=need(8.0, 4096), priority=100, target=BatchTarget(finish_within_s=1800.0))
Planner = Callable[[Snapshot, Policy, np.random.Generator], Plan]


def full(policy: Policy) -> Policy:
    """Return the policy with a limit of two instances, which the fleet has reached."""
    return replace(policy, caps=replace(policy.caps, max_instances=2))


def wait_and_met(policy: Policy, planner: Planner = make_plan) -> tuple[float, float]:
    """Return how many seconds a job of half the fleet waits, and which share of the small jobs meet their deadline."""
    machines = [machine(number, LARGE, expires_at=NOW + 90_000.0) for number in (1, 2)]
    world = scene(*machines, LARGE, *(job(number, asks=SMALL, submitted_at=NOW) for number in range(1, 13)))
    started_at, met, rng, number = dict[str, float](), list[bool](), np.random.default_rng(0), 100
    for tick in range(TICKS):
        fresh = list[Job]()
        for _ in range(2 if tick % 5 == 0 else 1):
            number += 1
            fresh.append(job(number, asks=SMALL, submitted_at=world.now, queued_at=world.now))
        if tick == WIDE_AT:
            fresh.append(job(1000, asks=WIDE, submitted_at=world.now, queued_at=world.now))
        world = replace(world, jobs=(*world.jobs, *fresh))
        world = apply_ideally(world, planner(world, policy, rng))
        for each in world.jobs:
            if each.attempt is not None and each.id not in started_at:
                started_at[each.id] = world.now
                met.append(world.now + RUN_S + TICK_S <= each.submitted_at + SMALL_WITHIN_S)
        world = pass_time(world, TICK_S, run_s=RUN_S)
    late = sum(each.attempt is None and world.now > each.submitted_at + SMALL_WITHIN_S for each in world.jobs)
    return started_at.get("job-1000", float("inf")) - (NOW + WIDE_AT * TICK_S), sum(met) / (len(met) + late)


@pytest.fixture(scope="module")
def slurm_wait_s() -> float:
    return wait_and_met(full(simple()), peer_named("slurm-like").plan)[0]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_wide_job_starts_about_as_early_as_with_slurm(path: Path, slurm_wait_s: float) -> None:
    waited_s, met = wait_and_met(full(load_policy(path)))
    assert waited_s <= 1.5 * slurm_wait_s
    assert met >= 0.99


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("queues", QUEUES, ids="-".join)
def test_no_placement_order_or_queue_lets_a_wide_job_starve(
    order: str, queues: tuple[str, str], slurm_wait_s: float
) -> None:
    sections = {"placement": {"order": order}, "admission": {"queues": queues[0], "order": queues[1]}}
    waited_s, met = wait_and_met(full(parse_policy(sections)))
    assert waited_s <= 1.5 * slurm_wait_s
    assert met >= 0.99


def test_the_stream_starves_a_wide_job_if_reserved_room_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "open_beside", lambda _context, _reservation, _group, allowed: allowed)
    assert wait_and_met(full(simple()))[0] == float("inf")


# ----------------------------------------------------------------------------------------------------- single decisions
def waiting_wide(**changes: object) -> Job:
    """Return the wide job after an earlier plan found neither room nor a machine for it."""
    return job(50, asks=replace(WIDE, **changes), wait_code="cap_instances")  # type: ignore[arg-type]


def placed(plan: Plan) -> set[str]:
    return {action.job_id for action in of(plan, Place)}


def test_wait_names_the_machine_and_the_expected_start() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    busy = spec(resources=need(4.0))
    old = [
        running(1, first, asks=busy),
        running(2, first, asks=busy),
        running(3, second, asks=spec(resources=need(6.0))),
    ]
    plan = decide(scene(first, second, LARGE, *old, waiting_wide(), job(60)), full(simple()))
    reason = next(action.reason for action in of(plan, Wait) if action.job_id == "job-50")
    assert reason.code == "reserves_room"
    assert reason.numbers["instances"] == "inst-2"  # the least is missing there
    assert reason.numbers["expected_start_at"] == NOW + 100.0  # its unit has run for 100 s
    assert "expected start in" in reason.text
    assert not placed(plan)


def test_only_units_that_end_before_the_latest_start_pass() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0), max_runtime_s=160.0))  # 60 s are left
    short, long = job(60, asks=spec(max_runtime_s=50.0)), job(61, asks=spec(max_runtime_s=70.0))
    plan = decide(scene(only, LARGE, held, waiting_wide(), short, long), full(simple()))
    assert placed(plan) == {"job-60"}


def test_without_limits_of_the_units_there_no_job_passes() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(resources=need(4.0)))
    plan = decide(scene(only, LARGE, held, waiting_wide(), job(60, asks=spec(max_runtime_s=1.0))), full(simple()))
    assert not placed(plan)


def test_room_that_no_reservation_needs_stays_open() -> None:
    first, second = machine(1, LARGE), machine(2, LARGE)
    old = [running(1, first, asks=spec(resources=need(1.0))), running(2, second, asks=spec(resources=need(5.0)))]
    plan = decide(scene(first, second, LARGE, *old, waiting_wide(), job(60)), full(simple()))
    assert {each.instance_id for action in of(plan, Place) for each in action.ranks} == {"inst-2"}


def test_services_hold_their_room_for_ever_and_are_not_waited_for() -> None:
    only = machine(1, LARGE)
    held = running(1, only, asks=spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=9.0)))
    plan = decide(scene(only, LARGE, held, waiting_wide(), job(60)), full(simple()))
    assert placed(plan) == {"job-60"}


def test_first_refusal_reserves_nothing_since_a_machine_may_be_launched() -> None:
    only, rented = machine(1, LARGE), offer("large", 8.0)
    held = running(1, only, asks=spec(resources=need(4.0)))
    plan = decide(scene(only, rented, held, job(50, asks=WIDE), job(60)), simple())
    assert placed(plan) == {"job-60"}
