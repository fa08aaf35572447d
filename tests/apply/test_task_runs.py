"""Runs: many short tasks of an array in one unit, by the decisions of planner and applier."""

from collections import Counter
from dataclasses import replace

import pytest

from hcloud.apply.task_runs import new_ends
from hcloud.core.arrays import TaskList
from hcloud.core.model import Checkpoint, EventKind, Job, JobState, Retries
from hcloud.core.task_runs import TaskEnds, TaskProgress, TaskRun, ends_of_text
from hcloud.planner.array_tasks import may_share_unit
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment
from tests.store.samples import SPEC


def tasks(count: int, per_unit: int | None = None, at_most: int | None = None) -> TaskList:
    """Return the ids 0 to ``count`` - 1."""
    return TaskList(ranges=((0, count - 1, 1),), at_most=at_most, per_unit=per_unit)


def units(site: Deployment) -> int:
    """Return how many units were started."""
    return len(site.events(EventKind.UNIT_STARTED))


def rows(site: Deployment) -> tuple[Job, ...]:
    """Return the tasks with rows that have not ended."""
    return site.scene.store.live().jobs


def test_once_run_times_are_known_many_tasks_share_a_unit(site: Deployment) -> None:
    site.submit("sleep", "0.5", tasks=tasks(1000))
    site.until(lambda: site.state() is JobState.SUCCEEDED, cycles=400)
    assert site.job().outcome == "1000 of 1000 tasks succeeded"
    assert units(site) < 120  # a few alone, the others some 60 at a time
    record = site.job().task_record
    assert record is not None and record.succeeded == ((0, 999),)
    assert record.mean_s == pytest.approx(0.5, abs=0.1)


def test_tasks_that_are_long_run_in_units_of_their_own(site: Deployment) -> None:
    site.submit("sleep", "20", tasks=tasks(60))
    site.until(lambda: site.state() is JobState.SUCCEEDED, cycles=400)
    assert units(site) == 60


def test_a_number_that_is_asked_for_holds_from_the_first_task_on(site: Deployment) -> None:
    site.submit("sleep", "1", tasks=tasks(40, per_unit=10))
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    assert units(site) == 4


def test_no_more_units_run_at_once_than_tasks_may(site: Deployment) -> None:
    site.submit("sleep", "2", tasks=tasks(40, per_unit=5, at_most=2))
    most = 0
    while site.state() is not JobState.SUCCEEDED:
        site.cycle()
        most = max(most, sum(job.state is JobState.RUNNING for job in rows(site)))
    assert most == 2


def test_a_task_that_fails_in_a_run_fails_alone_and_is_tried_again_alone(site: Deployment) -> None:
    codes = tuple("1" if at in (0, 4, 7) else "0" for at in range(10))
    listed = TaskList(ranges=((0, 9, 1),), matrix=(("code", codes),), per_unit=10)
    site.submit(
        "/bin/sh", "-c", "sleep 1; exit $code", tasks=listed, retries=Retries(limits={"exit_code": 1}, backoff_s=1.0)
    )
    site.until(lambda: site.state() is JobState.FAILED)
    record = site.job().task_record
    assert record is not None and record.failed == ((0, 0), (4, 4), (7, 7))
    assert record.succeeded == ((1, 3), (5, 6), (8, 9))
    started = Counter(event.job_id for event in site.events(EventKind.UNIT_STARTED))
    assert started == {"job-2": 2, "job-6": 1, "job-9": 1}  # the run, and each failed task once more
    task = site.scene.store.job("job-6")
    assert (task.attempts_made, task.outcome) == (2, "failed with exit code 1; 1 retry used up")
    fine = site.scene.store.job("job-5")
    assert fine.state is JobState.SUCCEEDED and fine.attempt is not None
    assert fine.attempt.allocations[0].started_at is not None
    assert site.scene.store.tasks_at(site.job(), [3, 4]) == [fine, task]


def test_a_lost_machine_loses_only_the_task_that_ran(site: Deployment) -> None:
    site.submit(
        "sleep", "10", tasks=tasks(30, per_unit=15), retries=Retries(limits={"instance_lost": 1}, backoff_s=1.0)
    )
    site.until(lambda: any(job.run is not None and job.run.own is not None for job in rows(site)))
    site.cycle(40)
    lead = site.scene.store.job("job-2")
    assert lead.attempt is not None and lead.run is not None
    done = site.job().task_record
    assert done is not None and 0 < done.ended < 30
    site.scene.engine.stop({lead.attempt.unit_id(0): lead.attempt.allocations[0].instance_id}, cause=None)
    site.scene.clock.advance(20)
    site.scene.engine.forget({lead.attempt.unit_id(0): lead.attempt.allocations[0].instance_id})
    site.until(lambda: site.state() is JobState.SUCCEEDED, cycles=900)
    lost = [event for event in site.events(EventKind.UNIT_ENDED) if event.fields["cause"]]
    assert [each.fields["cause"] for each in lost] == ["instance_lost"]  # of the task that ran


def test_tasks_of_a_run_are_cancelled_and_the_others_begin_anew_but_the_one_that_runs(site: Deployment) -> None:
    store = site.scene.store
    site.submit("sleep", "10", tasks=tasks(10, per_unit=10))
    site.until(lambda: any(job.state is JobState.RUNNING for job in rows(site)))
    store.request_cancels([(store.job("job-1"), [5, 6])], "ada", site.now)
    site.until(lambda: site.state() is JobState.CANCELLED, cycles=400)
    record = site.job().task_record
    assert record is not None and record.cancelled == ((5, 6),) and record.count("succeeded") == 8
    assert store.job("job-7").state is JobState.CANCELLED
    ended = [ends_of_text(text) for event in site.events(EventKind.TASKS_ENDED) for text in event.fields["ended"]]
    assert {each.cause for each in ended} == {None}


def test_the_task_that_runs_is_stopped_if_it_is_cancelled_or_all_are(site: Deployment) -> None:
    site.submit("sleep", "1000", tasks=tasks(4, per_unit=4))
    site.until(lambda: any(job.state is JobState.RUNNING for job in rows(site)))
    site.scene.store.request_cancels([(site.scene.store.job("job-1"), [2])], "ada", site.now)
    site.cycle(2)
    site.scene.store.request_cancel("job-1", "ada", site.now)
    site.until(lambda: site.state() is JobState.CANCELLED, cycles=40)


def test_an_array_is_cancelled_with_its_runs(site: Deployment) -> None:
    site.submit("sleep", "10", tasks=tasks(100, per_unit=10))
    site.until(lambda: any(job.state is JobState.RUNNING for job in rows(site)))
    site.scene.store.request_cancel("job-1", "ada", site.now)
    site.until(lambda: site.state() is JobState.CANCELLED)
    record = site.job().task_record
    assert record is not None and record.ended == 100 and record.failed == ()


def test_a_new_process_goes_on_where_the_last_one_was(make: MakeDeployment) -> None:
    site = make(cloud={"persist": True})
    site.submit("sleep", "1", tasks=tasks(200, per_unit=20))
    while site.state() is not JobState.SUCCEEDED:
        site.cycle(2)
        site.restart()
    assert units(site) == 10


def test_a_task_in_a_run_has_a_state_of_its_own(site: Deployment) -> None:
    site.submit("sleep", "10", tasks=tasks(10, per_unit=10))
    site.until(lambda: any(job.state is JobState.RUNNING for job in rows(site)))
    task = site.scene.store.job("job-8")
    assert (task.state, task.wait_code) == (JobState.QUEUED, "in_a_run")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outputs": ("x",)}, "outputs"),
        ({"checkpoint": Checkpoint(path="x", every_s=5.0)}, "checkpoint"),
        ({"setup": "true"}, "setup"),
    ],
)
def test_what_a_run_cannot_serve_runs_one_task_in_a_unit_and_says_so(
    site: Deployment, changes: dict[str, object], why: str
) -> None:
    (array,) = site.submit("sleep", "1", tasks=tasks(20, per_unit=10), **changes)
    assert may_share_unit(array.spec) == why
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    assert units(site) == 20
    said = [str(event.fields["text"]) for event in site.events(EventKind.JOB_STATE) if event.job_id == "job-1"]
    assert any(f"one in a unit as they have {why}" in each for each in said)


def lead(*others: tuple[int, int]) -> Job:
    """Return a row at position 2 that leads a run with others."""
    spec = replace(SPEC, tasks=tasks(20))
    run = TaskRun(others=others)
    return Job(id="job-4", array="job-1", spec=spec, state=JobState.RUNNING, submitted_at=0.0, run=run)


def ends(*spans: tuple[int, int]) -> TaskProgress:
    """Return a report of tasks that succeeded, one second each."""
    return TaskProgress(ended=tuple(TaskEnds(first=a, last=b, started_at=float(a), ended_at=b + 1.0) for a, b in spans))


@pytest.mark.parametrize(
    ("reported", "counted"),
    [
        (ends((2, 5)), [(2, 2), (3, 5)]),
        (ends((0, 19)), [(2, 2), (3, 5), (9, 9)]),  # tasks of other units
        (ends((3, 4), (4, 5), (3, 3)), [(3, 4), (5, 5)]),  # twice
        (ends((6, 8), (100, 200)), []),
    ],
)
def test_a_machine_can_end_only_the_tasks_of_its_unit_and_each_once(
    reported: TaskProgress, counted: list[tuple[int, int]]
) -> None:
    found = new_ends(lead((3, 5), (9, 9)), reported)
    assert sorted(at for each in found for at in range(each.first, each.last + 1)) == sorted(
        at for first, last in counted for at in range(first, last + 1)
    )


def test_a_task_begins_after_the_one_before_it() -> None:
    job = lead((3, 5))
    assert job.run is not None
    later = replace(job, run=replace(job.run, others=((5, 5),), own=ends((2, 2)).ended[0], recorded_until=5.0))
    (found,) = new_ends(later, ends((2, 5)))
    assert (found.first, found.started_at, found.ended_at) == (5, 5.0, 6.0)
