"""The plan ahead is made once while nothing changes that it follows from, and is that of an empty cache."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.model import BatchTarget, BestEffortTarget, Instance, Job, Market
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Place, Plan
from hcloud.planner.plan_ahead import stage
from hcloud.planner.plan_ahead.linear_program import ScheduleOfStarts, schedule
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from hcloud.spec.policy import Caps
from tests.planner.scenes import NOW, decide, machine, need, of, offer, running, scene
from tests.planner.test_planned_queue import PAID, RENT, SORT, due, known, policy
from tests.planner.test_run_times import after_runs

KNOWN = known()
BEGIN = 15.0 * math.ceil(NOW / 15.0)
"""The begin of a slot."""


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[ScheduleOfStarts]:
    """What was solved, in order."""
    found = list[ScheduleOfStarts]()

    def recording(*asked: object) -> ScheduleOfStarts:
        found.append(schedule(*asked))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(stage, "schedule", recording)
    return found


def busy(*waiting: Job, **changes: object) -> Snapshot:
    """Return a world where one paid machine is busy, others can be rented, and the slot begins now."""
    paid = machine(1, PAID)
    held = running(90, paid, asks=SORT, submitted_at=NOW - 150)
    return scene(paid, held, *waiting, PAID, RENT, run_times=KNOWN, **{"now": BEGIN, **changes})


def later(world: Snapshot, by_s: float, **changes: object) -> Snapshot:
    """Return the same world a while later, with all that was remembered."""
    return replace(world, now=world.now + by_s, **changes)


def test_while_nothing_changes_one_plan_serves_a_whole_slot(solved: list[ScheduleOfStarts]) -> None:
    world = busy(*(due(number, 2000.0 * number) for number in range(1, 4)))
    plans = [decide(later(world, by_s), policy()) for by_s in (0.0, 1.0, 7.0, 14.9)]
    assert len(solved) == 1 and len(plans[0].planned_starts) == 3
    assert all(each.planned_starts == plans[0].planned_starts for each in plans)
    decide(later(world, 15.0), policy())
    assert len(solved) == 2


CHANGES = {
    "a job more": lambda world: replace(world, jobs=(*world.jobs, due(7, 900.0))),
    "a job less": lambda world: replace(world, jobs=world.jobs[:-1]),
    "a deadline": lambda world: replace(world, jobs=(*world.jobs[:-1], due(3, 700.0))),
    "a run that ended": lambda world: replace(world, jobs=world.jobs[1:]),
    "more machines": lambda world: replace(world, instances=(*world.instances, machine(2, PAID))),
    "a price": lambda world: replace(world, offers=(offer("small", 2.0, 0.001), PAID)),
    "a back-off": lambda world: replace(
        world, backoffs=(OfferBackoff(provider="mock", until_at=world.now + 500.0, error="x", failures=1),)
    ),
    "run times": lambda world: replace(world, run_times=after_runs(900.0, 60, SORT)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_planned_anew_and_as_if_nothing_was_remembered(
    change: str, solved: list[ScheduleOfStarts]
) -> None:
    world = busy(*(due(number, 2000.0 * number) for number in range(1, 4)))
    decide(world, policy())
    changed = CHANGES[change](later(world, 1.0))
    count = len(solved)
    plan = decide(changed, policy())
    assert plan == decide(replace(changed, plan_cache=PlanCache()), policy())
    # With nothing to rent for a while the stage has nothing to choose.
    assert len(solved) == count + (0 if change == "a back-off" else 2)


def test_a_job_whose_delay_ends_within_a_slot_is_planned_then(solved: list[ScheduleOfStarts]) -> None:
    world = busy(due(1, 2000.0), replace(due(2, 2000.0), not_before_at=BEGIN + 5.0))
    assert set(decide(world, policy()).planned_starts) == {"job-1"}
    assert set(decide(later(world, 6.0), policy()).planned_starts) == {"job-1", "job-2"}
    assert len(solved) == 2


def test_a_lower_cap_is_planned_with_at_once() -> None:
    world = busy(*(due(number, 1500.0) for number in range(1, 8)))
    decide(world, policy())
    capped = replace(policy(), caps=Caps(max_instances=30, max_vcpus=5.0))
    assert decide(world, capped) == decide(replace(world, plan_cache=PlanCache()), capped)
    assert len(decide(world, capped).planned_starts) > len(decide(world, policy()).planned_starts)


def test_a_job_is_planned_for_the_moment_of_its_submission_not_for_the_begin_of_the_slot() -> None:
    world = busy()
    submitted = replace(due(1, 320.0), submitted_at=world.now + 10.0)
    plan = decide(replace(later(world, 10.0), jobs=(*world.jobs, submitted)), policy())
    assert plan == decide(replace(later(world, 12.0), jobs=(*world.jobs, submitted), now=world.now + 10.0), policy())


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_does_not_depend_on_what_was_remembered(seed: int) -> None:
    rng, cache = np.random.default_rng(seed), PlanCache()
    machines: list[Instance] = [machine(number, PAID) for number in range(1, 5)]
    jobs, now, number, rules = list[Job](), NOW, 100, policy(deadline_worth=float(rng.uniform(1.0, 30.0)))
    offers = (PAID, RENT, offer("large", 8.0, 0.3, market=Market.SPOT))
    seen = 0
    for _ in range(25):
        for _ in range(int(rng.integers(0, 4))):
            number += 1
            target = BestEffortTarget() if rng.random() < 0.3 else BatchTarget(finish_within_s=rng.uniform(900, 9000))
            asks = replace(SORT, target=target, priority=int(rng.integers(0, 2)), resources=need(2.0))
            jobs.append(replace(due(number, 1.0), spec=asks, submitted_at=now, queued_at=now))
        if jobs and rng.random() < 0.2:
            jobs.remove(jobs[int(rng.integers(len(jobs)))])
        held = [running(90 + at, each, asks=SORT, submitted_at=NOW - 500) for at, each in enumerate(machines)]
        world = scene(*machines, *held[: int(rng.integers(3, 5))], *jobs, *offers, run_times=KNOWN, now=now)
        plan: Plan = decide(replace(world, plan_cache=cache), rules)
        assert plan == decide(world, rules)
        seen += len(plan.planned_starts)
        placed = {each.job_id for each in of(plan, Place)}
        jobs = [replace(each, wait_code="planned") for each in jobs if each.id not in placed]
        now += float(rng.choice([0.0, 1.0, 4.0, 16.0, 40.0]))
    assert seen > 5
