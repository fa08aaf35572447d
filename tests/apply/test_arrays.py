"""Arrays: one row, tasks made as they may run, recorded with their array when they have ended."""

from collections import Counter
from collections.abc import Sequence

import pytest

from hcloud.apply.ended_tasks import EndedTasks
from hcloud.apply.jobs import make_tasks
from hcloud.core.arrays import TaskList, TaskRecord
from hcloud.core.errors import Refused
from hcloud.core.model import EventKind, Intent, IntentKind, Job, JobSpec, JobState, Reason, Retries
from hcloud.fake_runner.runner import FakeRunner
from hcloud.planner import array_tasks
from hcloud.planner.array_tasks import WINDOW_LEAST, TaskGrouping
from hcloud.planner.plan import MakeTasks
from hcloud.store import Transaction
from hcloud.store.array_rows import EndedTask
from lab.soak.planted_defects import Planted
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment

ENDS_WITH_CODE = ("/bin/sh", "-c", "exit $code")


def tasks(count: int, at_most: int | None = None) -> TaskList:
    """Return the ids 0 to ``count`` - 1, of tasks that run in units of their own."""
    return TaskList(ranges=((0, count - 1, 1),), at_most=at_most, per_unit=1)


def of_codes(*codes: int) -> TaskList:
    """Return a task for each code, which it ends with."""
    return TaskList(ranges=((0, len(codes) - 1, 1),), matrix=(("code", tuple(map(str, codes))),))


def started(site: Deployment) -> list[str]:
    """Return the job of each unit that was started."""
    return [event.job_id or "" for event in site.events(EventKind.UNIT_STARTED)]


def live(site: Deployment) -> tuple[Job, ...]:
    """Return the tasks with rows that have not ended."""
    return site.scene.store.live().jobs


def test_each_task_runs_once_and_leaves_no_row(site: Deployment) -> None:
    (array,) = site.submit("sleep", "1", tasks=tasks(30))
    (after,) = site.submit("true")
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    assert after.id == "job-32"  # the numbers between are those of the tasks
    assert sorted(started(site)) == sorted(f"job-{number}" for number in range(2, 33))
    assert {job.id for job in site.scene.store.jobs()} == {array.id, after.id}
    assert site.scene.store.tasks(array.id) == ()
    assert site.job().outcome == "30 of 30 tasks succeeded"
    assert site.scene.store.counts()[JobState.SUCCEEDED] == 2


def test_no_more_tasks_are_live_than_the_array_allows(site: Deployment) -> None:
    site.submit("sleep", "3", tasks=tasks(12, at_most=4))
    most = 0
    while site.state() is not JobState.SUCCEEDED:
        site.cycle()
        most = max(most, len(live(site)))
    assert most == 4


def test_rows_are_made_for_a_window_of_tasks_only(site: Deployment) -> None:
    site.submit("sleep", "1000", tasks=tasks(10_000))
    site.cycle(30)
    waiting = [job for job in live(site) if job.state is JobState.QUEUED]
    running = [job for job in live(site) if job.state is JobState.RUNNING]
    assert len(waiting) == WINDOW_LEAST
    assert len(running) == 20  # all that ten machines of two vCPUs hold
    assert [job.task_position for job in live(site)] == list(range(len(live(site))))


def test_the_fleet_grows_to_the_size_of_the_array_although_most_of_it_has_no_rows(make: MakeDeployment) -> None:
    large = {"m.large": {"vcpus": 100, "memory_mib": 65536, "usd_per_h": 3}}
    site = make({"types": large}, {"caps": {"max_instances": 10, "max_vcpus": None}})
    site.submit("sleep", "1000", tasks=tasks(500))  # a machine's disk holds 50
    site.until(lambda: sum(job.state is JobState.RUNNING for job in live(site)) == 500, cycles=20)
    assert len(site.machines_up()) == 10


def test_failed_tasks_fail_the_array_and_are_named_by_their_record(site: Deployment) -> None:
    site.submit(
        *ENDS_WITH_CODE,
        tasks=of_codes(0, 0, 0, 0, 1, 0, 0, 0, 0, 3),
        retries=Retries(limits={"exit_code": 1}, backoff_s=1.0),
    )
    site.until(lambda: site.state() is JobState.FAILED)
    record = site.job().task_record
    assert record is not None and record.failed == ((4, 4), (9, 9))
    assert site.job().outcome == "8 of 10 tasks succeeded, 2 failed"
    assert Counter(started(site))["job-6"] == 2  # each task has retries of its own


def test_a_task_without_a_row_is_restored_from_its_events(site: Deployment) -> None:
    site.submit(*ENDS_WITH_CODE, tasks=of_codes(0, 0, 0, 0, 1))
    first = site.scene.store.job("job-6")
    assert (first.state, first.wait_code, first.array, first.task_position) == (JobState.QUEUED, "array", "job-1", 4)
    site.until(lambda: site.state() is JobState.FAILED)
    task = site.scene.store.job("job-6")
    assert (task.state, task.attempts_made, task.outcome) == (
        JobState.FAILED,
        1,
        "failed with exit code 1; no retries configured",
    )
    assert task.attempt is not None and task.attempt.allocations[0].exit_code == 1
    assert task.finished_at is not None


def test_cancelled_tasks_end_at_once_if_they_have_not_begun(site: Deployment) -> None:
    store = site.scene.store
    site.submit("sleep", "1000", tasks=tasks(300, at_most=2))
    site.until(lambda: sum(job.state is JobState.RUNNING for job in live(site)) == 2)
    store.request_cancels([(store.job("job-1"), range(1, 299))], "ada", site.now)
    record = store.job("job-1").task_record
    assert record is not None and record.cancelled == ((2, 298),)
    site.until(lambda: store.job("job-3").state is JobState.CANCELLED)
    site.until(lambda: store.job("job-301").state is JobState.RUNNING)
    store.request_cancel("job-1", "ada", site.now)
    site.until(lambda: site.state() is JobState.CANCELLED)
    assert site.job().outcome == "0 of 300 tasks succeeded, 300 cancelled; cancelled by ada"
    assert sorted(set(started(site))) == ["job-2", "job-3", "job-301"]


def test_an_array_is_never_placed_itself(site: Deployment) -> None:
    site.submit("sleep", "1", tasks=tasks(3))
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    assert "job-1" not in started(site)
    assert not any(event.job_id == "job-1" for event in site.events(EventKind.ATTEMPT_PLACED))


def test_a_new_process_goes_on_where_the_last_one_was(make: MakeDeployment) -> None:
    site = make(cloud={"persist": True})
    site.submit("sleep", "2", tasks=tasks(40))
    while site.state() is not JobState.SUCCEEDED:
        site.cycle(2)
        site.restart()
    assert sorted(started(site)) == sorted(f"job-{number}" for number in range(2, 42))


def test_a_row_that_an_open_intent_needs_is_kept(site: Deployment) -> None:
    store = site.scene.store
    site.submit("sleep", "1", tasks=tasks(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EndedTasks, "fold", lambda self, lease=None: 0)
        site.until(
            lambda: all(job.state is JobState.SUCCEEDED for job in store.tasks("job-1")) and store.tasks("job-1")
        )
    token = "stop:job-2.1"
    with store.transaction(site.now) as txn:
        txn.open_intent(Intent(token=token, kind=IntentKind.STOP, subject="job-2", created_at=site.now, retry_at=1e12))
    site.cycle(2)
    assert [job.id for job in store.tasks("job-1")] == ["job-2"]
    with store.transaction(site.now) as txn:
        txn.close_intent(token)
    site.until(lambda: site.state() is JobState.SUCCEEDED)


def test_an_array_whose_tasks_cannot_be_recorded_holds_up_no_other(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded defect: recording the tasks of the first array fails."""
    right = Transaction.fold_tasks

    def failing(txn: Transaction, array: Job, ended: Sequence[EndedTask]) -> Job:
        if array.id == "job-1":
            raise Planted("a defect")
        return right(txn, array, ended)

    site.submit("sleep", "1", tasks=tasks(2))
    site.submit("sleep", "1", tasks=tasks(2))
    monkeypatch.setattr(Transaction, "fold_tasks", failing)
    site.until(lambda: site.state(4) is JobState.SUCCEEDED)
    assert site.state(1) is JobState.RUNNING
    assert any("recording tasks of job-1" in each for each in site.scene.controller.quarantine.failing(site.now))
    monkeypatch.undo()
    site.until(lambda: site.state(1) is JobState.SUCCEEDED)


def test_an_array_that_planning_fails_on_is_left_out_alone(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded defect: planning fails on the first array."""
    right = array_tasks.group_tasks

    def failing(spec: JobSpec, record: TaskRecord, left: int) -> TaskGrouping:
        if len(spec.tasks or ()) == 3:
            raise Planted("a defect")
        return right(spec, record, left)

    monkeypatch.setattr(array_tasks, "group_tasks", failing)
    site.submit("sleep", "1", tasks=tasks(3))
    site.submit("sleep", "1", tasks=tasks(2))
    site.until(lambda: site.state(5) is JobState.SUCCEEDED)
    assert site.state(1) is JobState.QUEUED


def test_tasks_get_their_id_and_the_values_of_their_combination(site: Deployment) -> None:
    matrix = (("lr", ("0.1", "0.2")), ("seed", ("1", "2")))
    site.submit("sleep", "5", tasks=TaskList(ranges=((0, 3, 1),), matrix=matrix), env={"LEVEL": "high"})
    site.until(lambda: sum(job.state is JobState.RUNNING for job in live(site)) == 4)
    engine: FakeRunner = site.scene.engine
    env = {start.unit_id.partition(".")[0]: start for start in engine.starts("job-")}
    assert sorted(env) == ["job-2", "job-3", "job-4", "job-5"]
    task = site.job(4)
    assert task.attempt is not None
    unit = site.scene.controller.applier.units.unit_spec(task, task.attempt, task.attempt.allocations[0])
    wanted = {"LEVEL": "high", "lr": "0.2", "seed": "1", "HCLOUD_TASK_ID": "2", "HCLOUD_TASK_COUNT": "4"}
    wanted |= {"HCLOUD_TASK_MIN": "0", "HCLOUD_TASK_MAX": "3", "HCLOUD_ARRAY_ID": "job-1", "HCLOUD_JOB_ID": "job-4"}
    assert wanted.items() <= unit.env.items()


def test_an_array_is_profiled_once(make: MakeDeployment) -> None:
    profiling = {"when": "before", "types": 1, "run_s": 0.5, "total_s": 6, "for_targets": ["best_effort"],
                 "skip_if_shorter_than_s": 0, "max_usd_per_job": None, "max_share_of_budget": 1}  # fmt: skip
    site = make(policy={"profiling": profiling})
    site.submit("sleep", "2", tasks=tasks(20))
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    runs = [job for job in site.scene.store.jobs() if job.spec.profile is not None]
    assert len(runs) == 1
    assert runs[0].spec.env["HCLOUD_TASK_ID"] == "0"
    assert site.job().application != ""
    made = [event for event in site.events(EventKind.JOB_CLASSIFIED) if event.job_id != "job-1"]
    assert made == []  # the tasks have the application of their array


def test_a_plan_that_saw_fewer_tasks_made_makes_none_twice(site: Deployment) -> None:
    site.submit("sleep", "100", tasks=tasks(600))
    site.cycle(2)
    late = MakeTasks(job_id="job-1", made_before=(), count=5, reason=Reason(code="tasks_made", text=""))
    with (
        site.scene.store.transaction(site.now) as txn,
        pytest.raises(Refused, match="has made 256 of 600 tasks by now"),
    ):
        make_tasks(txn, late)


def test_the_history_of_run_times_is_one_for_all_tasks(site: Deployment) -> None:
    site.submit("sleep", "3", tasks=tasks(12))
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    site.submit("sleep", "3", tasks=tasks(2))
    site.cycle(2)
    forecasts = site.scene.controller.last_snapshot.run_times
    assert forecasts.history(site.scene.store.job("job-15")) == 12


@pytest.mark.parametrize("paused", [True, False])
def test_no_task_is_made_while_the_fleet_is_paused(site: Deployment, paused: bool) -> None:
    site.submit("sleep", "1", tasks=tasks(5))
    with site.scene.store.transaction(site.now) as txn:
        txn.put_meta("paused", "maintenance" if paused else "")
    site.cycle(5)
    assert bool(live(site)) is not paused
