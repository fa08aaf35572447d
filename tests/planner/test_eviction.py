"""Which best-effort jobs and optional ranks make room for a job with a target, and which are left alone."""

from dataclasses import replace

import pytest

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Checkpoint,
    Constraints,
    Correction,
    FailureCause,
    Instance,
    InstanceState,
    Job,
    Nodes,
    Offer,
)
from hcloud.planner.correction.correct import NODES
from hcloud.planner.plan import Launch, StopAttempt, StopRank
from hcloud.spec.policy import Caps
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.planner.test_placement_orders import APPLICATIONS, SLOW, policy
from tests.policies import simple

FREE = spec(target=BestEffortTarget())
TWO, THREE = machine(1, offer(vcpus=2.0), idle_since=None), machine(1, offer(vcpus=3.0), idle_since=None)


def stopped(*things: Job | Instance | Offer) -> list[str]:
    """Return the jobs that are stopped, and the ranks, as ``job:rank``."""
    plan = decide(scene(*things))
    assert all(each.yields for each in of(plan, StopRank))
    return [each.job_id for each in of(plan, StopAttempt)] + [f"{e.job_id}:{e.rank}" for e in of(plan, StopRank)]


def wide(number: int, *on: Instance, target: BatchTarget | BestEffortTarget | None = None, **changes: object) -> Job:
    """Return a running job that may have four ranks and needs one."""
    asks = spec(target=target or BatchTarget(), nodes=Nodes(count=4, minimum=1, gang=False))
    return replace(running(number, *on, asks=asks), spec=asks, **changes)  # type: ignore[arg-type]


def since(given: Job, seconds: float, *failures: FailureCause) -> Job:
    """Return the job, running for so long after these failures."""
    assert given.attempt is not None
    return replace(given, attempt=replace(given.attempt, placed_at=NOW - seconds), failures=failures)


# ------------------------------------------------------------------------------------------------------ what goes first
def test_optional_ranks_of_best_effort_go_before_those_of_a_target() -> None:
    fleet = machine(1, offer(vcpus=4.0), idle_since=None)
    promised, free = wide(2, fleet, fleet), wide(1, fleet, fleet, target=BestEffortTarget())
    assert stopped(fleet, promised, free, job(10)) == ["job-1:1"]
    assert stopped(fleet, promised, free, job(10, asks=spec(resources=need(2.0)))) == ["job-1:1", "job-2:1"]


def test_of_jobs_submitted_together_the_one_with_the_highest_number_goes_first() -> None:
    pair = [running(n, TWO, asks=FREE, submitted_at=NOW - 50.0) for n in (1, 2)]
    assert stopped(TWO, *pair, job(10)) == ["job-2"]


def test_of_best_effort_jobs_the_one_with_the_lowest_priority_goes_first() -> None:
    pair = [running(n, TWO, asks=replace(FREE, priority=priority)) for n, priority in ((1, 3), (2, 5))]
    assert stopped(TWO, *pair, job(10)) == ["job-1"]


def test_a_job_that_keeps_checkpoints_loses_what_it_did_since_the_last_one() -> None:
    keeping = replace(FREE, checkpoint=Checkpoint(path="state", every_s=60.0))
    old, new = since(running(1, TWO, asks=keeping), 5000.0), since(running(2, TWO, asks=FREE), 500.0)
    assert stopped(TWO, old, new, job(10)) == ["job-1"]
    assert stopped(TWO, since(running(1, TWO, asks=FREE), 5000.0), new, job(10)) == ["job-2"]


def test_each_optional_rank_is_stopped_once_however_many_jobs_need_room() -> None:
    assert stopped(THREE, wide(1, THREE, THREE, THREE), job(10), job(11)) == ["job-1:2", "job-1:1"]


def test_after_a_job_that_could_not_start_all_the_same_the_last_in_the_queue_goes_first() -> None:
    other = machine(2, offer(vcpus=2.0), idle_since=None)
    promised = running(3, other, asks=spec(resources=need(2.0)))
    spread = spec(nodes=Nodes(count=2, minimum=2), placement=Constraints(spread="host"))
    three = replace(spread, nodes=Nodes(count=3, minimum=3))
    filled = [running(n, TWO, asks=FREE) for n in (1, 2)]
    for gang in (spread, three):
        assert stopped(TWO, other, *filled, promised, job(9, asks=gang), job(10)) == ["job-2"]


# ------------------------------------------------------------------------------------------------------- what is spared
@pytest.mark.parametrize(("ran_s", "goes"), [(300.0, "job-2"), (50.0, "job-1")])
def test_of_jobs_of_one_priority_the_one_that_loses_least_goes_first(ran_s: float, goes: str) -> None:
    pair = [since(running(1, TWO, asks=FREE), ran_s), running(2, TWO, asks=FREE)]  # the second ran for 100 s
    assert stopped(TWO, *pair, job(10)) == [goes]


@pytest.mark.parametrize(("ran_s", "launches"), [(60.0, 0), (36_000.0, 1)])
def test_a_machine_is_launched_where_that_costs_less_than_the_work_that_would_be_lost(
    ran_s: float, launches: int
) -> None:
    held = since(running(1, TWO, asks=replace(FREE, resources=need(2.0))), ran_s)
    plan = decide(scene(TWO, held, job(10), offer(vcpus=2.0)))
    assert (len(of(plan, Launch)), len(of(plan, StopAttempt))) == (launches, 1 - launches)


def test_a_near_deadline_evicts_whatever_is_lost() -> None:
    held = since(running(1, TWO, asks=replace(FREE, resources=need(2.0))), 36_000.0)
    due = replace(job(10, asks=spec(target=BatchTarget(finish_within_s=130.0))), submitted_at=NOW - 100.0)
    plan = decide(scene(TWO, held, due, offer(vcpus=2.0)))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-1"] and not of(plan, Launch)


def test_what_is_dear_to_lose_is_evicted_where_nothing_can_be_launched() -> None:
    held = since(running(1, TWO, asks=replace(FREE, resources=need(2.0))), 36_000.0)
    for full in (decide(scene(TWO, held, job(10))), decide(scene(TWO, held, job(10), offer(vcpus=2.0)),
                                                           simple(caps=Caps(max_instances=1)))):  # fmt: skip
        assert [each.job_id for each in of(full, StopAttempt)] == ["job-1"]


@pytest.mark.parametrize(("limits", "goes"), [({"evicted": 1}, []), ({"evicted": 2}, ["job-1"]), ({}, [])])
def test_a_job_is_not_evicted_once_its_retries_are_used_up(limits: dict[str, int], goes: list[str]) -> None:
    asks = replace(FREE, resources=need(2.0), retries=replace(FREE.retries, limits=limits))
    assert stopped(TWO, since(running(1, TWO, asks=asks), 900.0, FailureCause.EVICTED), job(10)) == goes
    assert stopped(TWO, running(1, TWO, asks=asks), job(10)) == (["job-1"] if limits else [])


def test_what_a_job_that_is_stopping_holds_is_not_counted_twice() -> None:
    first, last = (running(n, TWO, asks=FREE) for n in (1, 2))
    assert last.attempt is not None
    last = replace(last, attempt=replace(last.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED))
    assert stopped(TWO, first, last, job(10, asks=spec(resources=need(2.0)))) == ["job-1"]


def test_optional_ranks_of_a_job_that_is_stopping_are_not_counted_twice() -> None:
    both = wide(1, THREE, THREE)
    assert both.attempt is not None
    attempt = replace(both.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    filled = (replace(both, attempt=attempt), running(2, THREE, asks=FREE))
    assert stopped(THREE, *filled, job(10, asks=spec(resources=need(3.0)))) == ["job-2"]


def test_ranks_of_a_job_that_is_to_get_more_of_them_are_not_optional() -> None:
    asked = (Correction(step=NODES, at=NOW - 10.0, attempt="job-1.1"),)
    assert stopped(TWO, wide(1, TWO, TWO), job(10)) == ["job-1:1"]
    assert stopped(TWO, wide(1, TWO, TWO, corrections=asked), job(10)) == []


# ------------------------------------------------------------------------------------------------- enough, and for whom
def test_a_job_of_which_no_application_is_known_makes_no_room_only_where_there_is_room() -> None:
    filled = [running(n, TWO, asks=FREE) for n in (1, 2)]
    assert stopped(TWO, *filled, job(10, application="web")) == ["job-2"]


def test_both_units_of_a_job_on_one_machine_make_room() -> None:
    assert stopped(TWO, running(1, TWO, TWO, asks=FREE), job(10, asks=spec(resources=need(2.0)))) == ["job-1"]


def test_room_that_was_free_counts_for_the_first_job_and_not_again_for_the_second() -> None:
    filled = [running(n, THREE, asks=FREE) for n in (1, 2)]
    waiting = [job(10, asks=spec(resources=need(2.0))), job(11)]
    assert stopped(THREE, *filled, *waiting) == ["job-2", "job-1"]


def test_the_reason_counts_the_evictions_of_a_job() -> None:
    again = since(running(1, TWO, asks=replace(FREE, resources=need(2.0))), 900.0, FailureCause.EVICTED)
    [stop] = of(decide(scene(TWO, again, job(10))), StopAttempt)
    assert (stop.reason.numbers["evictions"], stop.reason.numbers["for_job"]) == (2, "job-10")


LOUD = replace(FREE, resources=need(2.0))
FRAGILE = job(10, asks=spec(target=BatchTarget()), application="fragile", queued_at=NOW)


def evicted_under_paragon(*things: Job | Instance | Offer) -> list[str]:
    """Return which jobs are stopped where jobs wait for neighbours that suit them."""
    snapshot = scene(*things, SLOW, applications=APPLICATIONS)
    return [each.job_id for each in of(decide(snapshot, policy("paragon", patience_s=600.0)), StopAttempt)]


def test_no_job_is_evicted_for_one_that_its_other_neighbours_would_still_disturb() -> None:
    quiet = running(1, TWO, asks=FREE, application="calm")
    loud = running(2, TWO, application="loud")
    assert evicted_under_paragon(TWO, quiet, loud, FRAGILE) == []
    assert evicted_under_paragon(TWO, quiet, replace(loud, application="calm"), FRAGILE) == ["job-1"]


def test_all_ranks_of_a_job_take_the_room_of_one_that_would_have_disturbed_them() -> None:
    pair = replace(FRAGILE, spec=replace(FRAGILE.spec, nodes=Nodes(count=2, minimum=2)))
    assert evicted_under_paragon(TWO, running(1, TWO, asks=LOUD, application="loud"), pair) == ["job-1"]


def test_a_job_of_which_nothing_is_known_suits_every_machine() -> None:
    assert evicted_under_paragon(TWO, running(1, TWO, asks=LOUD, application="loud"), job(10)) == ["job-1"]


def test_a_second_job_takes_what_the_first_left_of_a_machine() -> None:
    filled = [running(n, THREE, asks=FREE) for n in (1, 2, 3)]
    plan = decide(scene(THREE, *filled, job(10), job(11, asks=spec(resources=need(2.0)))))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-3", "job-2", "job-1"]


def many(count: int, *vcpus: float) -> list[Instance | Job]:
    """Return instances of two vCPUs, each with a job with a target of one vCPU and best effort of the other sizes."""
    fleet: list[Instance | Job] = []
    for n in range(1, count + 1):
        on = machine(n, idle_since=None)
        sizes = ((2.0 - sum(vcpus), spec()), *((each, FREE) for each in vcpus))
        jobs = [
            running(10 * n + at, on, asks=replace(asks, resources=need(size)))
            for at, (size, asks) in enumerate(sizes)
            if size
        ]
        fleet += [on, *jobs]
    return fleet


def test_many_machines_that_would_not_have_enough_room_do_not_hide_one_that_would() -> None:
    free = machine(99, idle_since=None)
    last = running(2000, free, asks=replace(FREE, resources=need(2.0)))
    for asks in (spec(exclusive=True), spec(resources=need(1.6))):
        assert stopped(*many(64, 1.5), free, last, job(5000, asks=asks)) == ["job-2000"]


def test_each_machine_makes_room_once_however_many_are_asked() -> None:
    waiting = [job(5000 + n) for n in range(65)]
    assert len(stopped(*many(65, 1.0), *waiting)) == 65


def test_a_rank_on_an_instance_that_is_gone_makes_room_nowhere() -> None:
    """The other rank makes room on its own machine, which is not the last."""
    first, last, gone = (machine(n, idle_since=None) for n in (1, 2, 9))
    pair = running(1, first, gone, asks=replace(FREE, resources=need(2.0)))
    promised = running(2, last, asks=spec(resources=need(2.0)))
    jobs = [job(n, asks=spec(resources=need(2.0))) for n in (10, 11)]
    plan = decide(scene(first, last, pair, promised, *jobs, offer()))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-1"]
    assert [each.for_jobs for each in of(plan, Launch)] == [("job-11",)]


def test_best_effort_on_a_machine_that_drains_makes_no_room() -> None:
    draining = replace(TWO, state=InstanceState.DRAINING)
    held = running(1, draining, asks=replace(FREE, resources=need(2.0)))
    plan = decide(scene(draining, held, job(10), offer()), simple(caps=Caps(max_instances=1)))
    assert of(plan, StopAttempt) == []
    assert told(plan, "job-10") == "cap_instances"
