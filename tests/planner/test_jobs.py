"""What a plan does about jobs: admit, place, retry, stop, finish."""

from dataclasses import replace

import pytest

from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Constraints,
    FailureCause,
    Instance,
    Job,
    JobState,
    Market,
    Nodes,
    Retries,
)
from hcloud.planner.plan import Enqueue, Finish, Launch, Place, Preempted, StopAttempt, Wait
from hcloud.spec.policy import Caps
from tests.planner.scenes import NOW, decide, ended, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple


def test_submitted_job_starts_in_the_same_plan() -> None:
    plan = decide(scene(job(1, JobState.SUBMITTED), machine(1)))
    assert [type(a) for a in plan.actions] == [Enqueue, Place]
    assert of(plan, Place)[0].ranks[0].instance_id == "inst-1"


def test_least_loaded_machine_is_taken_and_what_is_paid_for_before_what_is_rented() -> None:
    one, two, three = machine(1), machine(2), machine(3, offer(market=Market.RESERVED))
    plan = decide(scene(running(1, one), job(2), one, two))
    assert of(plan, Place)[0].ranks[0].instance_id == "inst-2"
    plan = decide(scene(running(1, one), running(2, three), job(3), one, two, three))
    assert of(plan, Place)[0].ranks[0].instance_id == "inst-3"


def test_higher_priority_is_served_first_and_then_the_earlier_one() -> None:
    tight = machine(1, offer(vcpus=1.0))
    plan = decide(scene(job(1), job(2, asks=spec(priority=5)), tight))
    assert [a.job_id for a in of(plan, Place)] == ["job-2"]
    plan = decide(scene(job(1, submitted_at=NOW), job(2, submitted_at=NOW - 5), tight))
    assert [a.job_id for a in of(plan, Place)] == ["job-2"]


def test_job_too_large_now_lets_smaller_ones_pass() -> None:
    plan = decide(scene(job(1, asks=spec(resources=need(8))), job(2), machine(1)))
    assert [a.job_id for a in of(plan, Place)] == ["job-2"]


@pytest.mark.parametrize(("ready", "placed"), [(2, 0), (3, 3)])
def test_gang_starts_whole_or_not_at_all(ready: int, placed: int) -> None:
    gang = job(1, asks=spec(resources=need(2), nodes=Nodes(count=3)))
    plan = decide(scene(gang, *(machine(number) for number in range(1, ready + 1))))
    assert sum(len(a.ranks) for a in of(plan, Place)) == placed


def test_incremental_job_starts_with_its_minimum_and_grows_into_room() -> None:
    asks = spec(resources=need(2), nodes=Nodes(count=3, minimum=1, gang=False))
    first = machine(1)
    assert len(of(decide(scene(job(1, asks=asks), first)), Place)[0].ranks) == 1
    started = running(1, first, asks=asks)
    started = replace(started, spec=asks)
    grown = of(decide(scene(started, first, machine(2), machine(3))), Place)[0]
    assert [(rank.rank, rank.instance_id) for rank in grown.ranks] == [(1, "inst-2"), (2, "inst-3")]


def test_job_that_may_not_be_interrupted_never_runs_on_spot() -> None:
    spot = machine(1, offer(market=Market.SPOT))
    assert not of(decide(scene(job(1, asks=spec(interruptible=False)), spot)), Place)
    assert of(decide(scene(job(1), spot)), Place)


def test_job_that_ran_out_of_memory_gets_more_up_to_the_largest_machine_it_may_use() -> None:
    grows = Retries(limits={"out_of_memory": 9}, backoff_s=0.0, memory_factor=3.0)
    here, larger = machine(1, offer(vcpus=1.0)), offer("large", vcpus=2.0)  # 4 and 8 GiB
    asks = spec(resources=replace(need(1), memory_mib=2000), retries=grows)
    failed = ended(running(1, here, asks=asks), FailureCause.OUT_OF_MEMORY)
    plan = decide(scene(failed, here, larger))
    (queued,), (launch,) = of(plan, Enqueue), of(plan, Launch)
    assert (queued.memory_mib, queued.reason.numbers["memory_mib"]) == (6000, 6000)
    assert "with 6000 MiB" in queued.reason.text
    assert launch.offer.instance_type.name == "large"  # it no longer fits where it ran
    most = replace(failed, spec=replace(asks, resources=replace(need(1), memory_mib=3000)), memory_mib=3000)
    assert of(decide(scene(most, here, larger)), Enqueue)[0].memory_mib == 8192
    whole = replace(failed, spec=replace(asks, resources=replace(need(1), memory_mib=8192)), memory_mib=8192)
    (finish,) = of(decide(scene(whole, here, larger)), Finish)
    assert finish.state is JobState.FAILED
    assert "no machine that it may use has more than 8192 MiB for it" in finish.reason.text
    only_here = replace(failed, spec=replace(asks, instance_types=("small",)))
    assert of(decide(scene(only_here, here, larger)), Enqueue)[0].memory_mib == 4096


def test_a_successful_attempt_finishes_the_job_and_reports_a_missed_deadline() -> None:
    asks = spec(target=BatchTarget(finish_by_at=NOW - 10))
    finish = of(decide(scene(ended(running(1, machine(1), asks=asks)), machine(1))), Finish)[0]
    assert finish.state is JobState.SUCCEEDED
    assert finish.reason.numbers["deadline_missed"] is True
    assert finish.reason.numbers["late_s"] == pytest.approx(8.0)


def test_failure_is_retried_with_growing_delay_until_its_limit() -> None:
    retries = Retries(limits={"exit_code": 2}, backoff_s=10.0, backoff_cap_s=15.0)
    failed = ended(running(1, machine(1), asks=spec(retries=retries)), FailureCause.EXIT_CODE)
    first = of(decide(scene(failed, machine(1))), Enqueue)[0]
    assert (first.failure, first.not_before_at) == (FailureCause.EXIT_CODE, NOW + 10)
    second = of(decide(scene(replace(failed, failures=(FailureCause.EXIT_CODE,)), machine(1))), Enqueue)[0]
    assert second.not_before_at == NOW + 15
    last = of(decide(scene(replace(failed, failures=(FailureCause.EXIT_CODE,) * 2), machine(1))), Finish)[0]
    assert (last.state, last.reason.code, last.reason.numbers["exit_code"]) == (JobState.FAILED, "exit_code", 1)


def test_lost_machine_makes_a_job_preempted_and_it_comes_back_after_its_delay() -> None:
    lost = ended(running(1, machine(1)), FailureCause.INSTANCE_LOST)
    preempted = of(decide(scene(lost, machine(1))), Preempted)[0]
    assert preempted.not_before_at == NOW + 5
    waiting = job(1, JobState.PREEMPTED, not_before_at=NOW + 5)
    assert not decide(scene(waiting, machine(1))).actions
    assert of(decide(scene(replace(waiting, not_before_at=NOW), machine(1))), Place)


@pytest.mark.parametrize(
    ("cause", "delay_s"),
    [(FailureCause.PREEMPTED, 5.0), (FailureCause.INSTANCE_LOST, 40.0)],
    ids=lambda each: str(each),
)
def test_the_delay_grows_with_machines_that_failed_but_not_with_those_taken_back(
    cause: FailureCause, delay_s: float
) -> None:
    lost = replace(ended(running(1, machine(1)), cause), failures=(cause,) * 3)
    assert of(decide(scene(lost, machine(1))), Preempted)[0].not_before_at == NOW + delay_s


def test_failed_rank_stops_its_gang_for_the_same_cause() -> None:
    gang = ended(running(1, machine(1), machine(2)), FailureCause.OUT_OF_MEMORY, ranks=(1,))
    stop = of(decide(scene(gang, machine(1), machine(2))), StopAttempt)[0]
    assert stop.cause is FailureCause.OUT_OF_MEMORY


def test_a_failed_gang_says_what_its_first_failed_rank_says() -> None:
    gang = ended(running(1, machine(1), machine(2)), FailureCause.START_REFUSED)
    assert gang.attempt is not None
    stopped, first = gang.attempt.allocations
    ranks = (
        replace(stopped, detail="stopped on request"),
        replace(first, ended_at=NOW - 3, detail="there is no mpirun"),
    )
    gang = replace(gang, attempt=replace(gang.attempt, allocations=ranks), failures=(FailureCause.START_REFUSED,) * 9)
    (finish,) = of(decide(scene(gang, machine(1), machine(2))), Finish)
    assert "there is no mpirun" in finish.reason.text and finish.reason.numbers["rank"] == 1


def test_cancelled_jobs_end_and_running_ones_are_stopped_first() -> None:
    here = machine(1)
    plan = decide(scene(job(1, cancelled_by="ann"), running(2, here, cancelled_by="ann"), here))
    assert [(a.job_id, a.state) for a in of(plan, Finish)] == [("job-1", JobState.CANCELLED)]
    assert [(a.job_id, a.cause) for a in of(plan, StopAttempt)] == [("job-2", None)]
    over = ended(running(2, here, cancelled_by="ann"), FailureCause.EXIT_CODE)
    assert of(decide(scene(over, here)), Finish)[0].state is JobState.CANCELLED


def test_job_beyond_its_own_budget_is_stopped_and_then_failed() -> None:
    here, asks = machine(1), spec(budget_usd=1.0)
    stop = of(decide(scene(running(1, here, asks=asks, spent_usd=1.2), here)), StopAttempt)[0]
    assert (stop.cause, stop.reason.code) == (FailureCause.EVICTED, "job_budget")
    over = ended(running(1, here, asks=asks, spent_usd=1.2), FailureCause.EVICTED)
    finish = of(decide(scene(over, here)), Finish)[0]
    assert (finish.state, finish.reason.code) == (JobState.FAILED, "job_budget")


def test_jobs_with_secrets_that_cannot_be_read_neither_start_nor_leave_a_machine() -> None:
    here, there, why = machine(1), machine(2), "secret TOKEN cannot be decrypted: its key is gone"
    waiting = [job(1), job(2, state=JobState.AWAITING_INSTANCE), job(3, state=JobState.SUBMITTED)]
    unreadable = {each.id: why for each in waiting} | {"job-4": why, "job-5": why}
    held = scene(*waiting, here, offer(), unreadable_secrets=unreadable)
    assert [(each.job_id, each.reason.text) for each in of(decide(held), Wait)] == [
        (each.id, f"waiting: {why}") for each in waiting
    ]
    assert not of(decide(held), Place) and not of(decide(held), Launch)
    assert not of(decide(scene(*(replace(each, wait_code="secrets_unreadable") for each in waiting), here, offer(),
                               unreadable_secrets=unreadable)), Wait)  # fmt: skip
    cancelled = replace(waiting[0], cancelled_by="ann")
    assert of(decide(scene(cancelled, unreadable_secrets=unreadable)), Finish)[0].state is JobState.CANCELLED
    ran = ended(running(4, there), None)
    assert of(decide(scene(ran, there, unreadable_secrets=unreadable)), Finish)[0].state is JobState.SUCCEEDED
    assert of(decide(scene(replace(waiting[0], wait_code="secrets_unreadable"), here)), Place)  # the key is back


def test_backing_off_and_paused_jobs_wait_with_one_record() -> None:
    later = job(1, not_before_at=NOW + 20)
    assert told(decide(scene(later, machine(1))), "job-1") == "backoff_until"
    assert not decide(scene(replace(later, wait_code="backoff_until"), machine(1))).actions
    assert [a.reason.code for a in of(decide(scene(job(1), machine(1), offer(), paused="upgrade")), Wait)] == ["paused"]


def test_user_with_enough_jobs_on_machines_waits() -> None:
    here = machine(1, offer(vcpus=4.0))
    plan = decide(scene(running(1, here), job(2), job(3), here), simple(caps=Caps(max_jobs_per_user=2)))
    assert [a.job_id for a in of(plan, Place)] == ["job-2"]
    assert told(plan, "job-3") == "cap_jobs_per_user"


def test_best_effort_makes_room_for_a_promise() -> None:
    here = machine(1, offer(vcpus=1.0))
    filler = running(1, here, asks=spec(target=BestEffortTarget()))
    plan = decide(scene(filler, job(2), here, offer()))
    assert [(a.job_id, a.cause) for a in of(plan, StopAttempt)] == [("job-1", FailureCause.EVICTED)]
    assert told(plan, "job-2") == "making_room"
    assert not of(plan, Launch)


def test_evicted_job_does_not_take_its_room_back() -> None:
    here = machine(1, offer(vcpus=1.0))
    back = job(1, asks=spec(target=BestEffortTarget()), failures=(FailureCause.EVICTED,))
    assert [a.job_id for a in of(decide(scene(back, job(2), here)), Place)] == ["job-2"]


# ------------------------------------------------------------------------------------------------------- who makes room
FILLS = spec(target=BestEffortTarget())


def evicted(*things: Job | Instance) -> list[str]:
    return [each.job_id for each in of(decide(scene(*things)), StopAttempt)]


def two_full() -> list[Instance | Job]:
    """Return two instances of two vCPUs, the first with best-effort jobs 1 and 2, the second with 3 and 4."""
    fleet = [machine(n, idle_since=None) for n in (1, 2)]
    return [*fleet, *(running(n, fleet[(n - 1) // 2], asks=FILLS) for n in (1, 2, 3, 4))]


def test_the_fewest_and_latest_best_effort_jobs_make_room_and_each_once() -> None:
    assert evicted(*two_full(), job(10)) == ["job-2"]
    assert evicted(*two_full(), job(10), job(11)) == ["job-2", "job-1"]
    assert evicted(*two_full(), *(job(n) for n in range(10, 20))) == ["job-2", "job-1", "job-4", "job-3"]
    assert evicted(*two_full(), job(10, asks=spec(resources=need(2.0)))) == ["job-2", "job-1"]
    free_half = [each for each in two_full() if getattr(each, "id", "") != "job-4"]
    assert evicted(*free_half, job(10, asks=spec(resources=need(2.0)))) == ["job-3"]


def test_no_job_makes_room_for_a_gang_that_could_not_start_and_all_may_for_the_next() -> None:
    pair = spec(resources=need(2.0), nodes=Nodes(count=2, minimum=2), placement=Constraints(spread="host"))
    fleet = [machine(n, idle_since=None) for n in (1, 2)]
    first = [running(n, fleet[0], asks=FILLS) for n in (1, 2)]
    promised = running(3, fleet[1], asks=spec(resources=need(2.0)))
    assert evicted(*fleet, *first, promised, job(10, asks=pair)) == []
    three = replace(pair, nodes=Nodes(count=3, minimum=3))
    assert evicted(*two_full(), job(10, asks=three), job(11), job(12)) == ["job-2", "job-1"]
    assert evicted(*two_full(), job(10, asks=pair)) == ["job-2", "job-1", "job-4", "job-3"]


def test_a_best_effort_job_of_several_nodes_makes_room_on_each_of_its_machines() -> None:
    fleet = [machine(n, idle_since=None) for n in (1, 2)]
    wide = running(1, *fleet, asks=replace(FILLS, resources=need(2.0)))
    assert evicted(*fleet, wide, *(job(n) for n in range(10, 14))) == ["job-1"]
