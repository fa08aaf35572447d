"""What every store keeps of arrays: numbers of tasks, their rows, and the record that replaces these."""

from dataclasses import replace

import pytest

from hcloud.core.arrays import TaskList
from hcloud.core.errors import NotFound, Refused
from hcloud.core.model import EventKind, Job, JobState, Reason, move_job
from hcloud.store import Store, Submission
from tests.store.samples import NOW, SPEC, submit

WHY = Reason(code="tasks_made", text="they may run soon")
DAY_S = 86_400.0


def submit_array(store: Store, count: int = 5, **changes: object) -> Job:
    """Submit an array with the ids 0 to ``count`` - 1, and admit it."""
    spec = replace(SPEC, tasks=TaskList(ranges=((0, count - 1, 1),)), **changes)  # type: ignore[arg-type]
    (job,) = store.submit([Submission(spec=spec, actor="ann", secrets={"T": "k.x"} if spec.secrets else {})], NOW)
    with store.transaction(NOW) as tx:
        return tx.put_job(move_job(job, JobState.QUEUED, queued_at=NOW, application="app"))


def make(store: Store, array: Job, count: int) -> tuple[Job, ...]:
    """Make the next tasks of an array."""
    with store.transaction(NOW) as tx:
        array, total = tx.job(array.id), len(array.spec.tasks or ())
        assert array.task_record is not None
        return tx.make_tasks(array, array.task_record.next_positions(count, total), WHY)


def end(store: Store, *tasks: Job, state: JobState = JobState.FAILED) -> None:
    """End tasks."""
    with store.transaction(NOW + 5) as tx:
        for each in tasks:
            placed = tx.put_job(move_job(tx.job(each.id), JobState.PLACED))
            tx.put_job(move_job(placed, state, finished_at=NOW + 5))
            fields = {"state": state.value, "outcome": f"it {state}", "attempts": 1}
            tx.emit(EventKind.JOB_FINISHED, job_id=each.id, user=each.spec.user, **fields)


def fold(store: Store) -> None:
    """Record all ended tasks of ``job-1``."""
    with store.transaction(NOW + 6) as tx:
        tx.fold_tasks(tx.job("job-1"), store.ended_tasks(100))


def test_the_tasks_of_an_array_have_the_numbers_that_follow_it(store: Store) -> None:
    submit_array(store)
    assert submit(store)[0].id == "job-7"
    assert store.newest_job_number() == 7
    assert [store.job(f"job-{n}").task_position for n in range(2, 7)] == [0, 1, 2, 3, 4]


def test_an_array_is_live_beside_the_jobs_once_it_is_admitted(store: Store) -> None:
    spec = replace(SPEC, tasks=TaskList(ranges=((0, 4, 1),)))
    (array,) = store.submit([Submission(spec=spec, actor="ann")], NOW)
    assert (store.live().jobs, store.live().arrays) == ((array,), ())
    with store.transaction(NOW) as tx:
        array = tx.put_job(move_job(array, JobState.QUEUED))
    assert (store.live().jobs, store.live().arrays) == ((), (array,))
    assert store.live().submitted == (array,)
    tasks = make(store, array, 2)
    assert store.live().jobs == tasks
    assert [each.id for each in store.live().submitted] == ["job-1"]
    assert all(each.spec is store.live().arrays[0].spec for each in store.live().jobs)
    with store.transaction(NOW) as tx:
        tx.put_job(move_job(tx.job("job-1"), JobState.CANCELLED, finished_at=NOW))
    assert store.live().arrays == ()


def test_made_tasks_are_queued_jobs_with_the_application_of_their_array(store: Store) -> None:
    array = submit_array(store)
    first, second = make(store, array, 2)
    assert (first.id, first.array, first.state, first.application) == ("job-2", "job-1", JobState.QUEUED, "app")
    assert (first.submitted_at, first.queued_at) == (NOW, NOW)
    assert store.job("job-3") == second
    submitted = store.events(job_id="job-3", kinds=[EventKind.JOB_SUBMITTED])[0].fields
    assert (submitted["array"], submitted["task"], submitted["name"]) == ("job-1", 1, "sort")
    assert store.job("job-1").state is JobState.RUNNING
    assert [each.id for each in store.tasks("job-1")] == ["job-2", "job-3"]
    assert store.task_counts(["job-1"]) == {"job-1": {JobState.QUEUED: 2}}


def test_a_task_is_made_once(store: Store) -> None:
    array = submit_array(store)
    make(store, array, 2)
    with store.transaction(NOW) as tx, pytest.raises(Refused, match="made before"):
        tx.make_tasks(tx.job("job-1"), [1], WHY)
    with store.transaction(NOW) as tx, pytest.raises(Refused, match="do not exist"):
        tx.make_tasks(tx.job("job-1"), [5], WHY)
    assert [each.id for each in make(store, array, 9)] == ["job-4", "job-5", "job-6"]


def test_lists_and_counts_have_arrays_and_not_their_tasks(store: Store) -> None:
    make(store, submit_array(store), 3)
    submit(store)
    assert [each.id for each in store.jobs()] == ["job-7", "job-1"]
    assert [each.id for each in store.jobs(tag="team=search")] == ["job-7", "job-1"]
    assert store.counts()[JobState.QUEUED] == 0
    assert store.counts()[JobState.RUNNING] == 1


def test_recorded_tasks_have_no_row_and_are_restored_from_their_events(store: Store) -> None:
    array = submit_array(store)
    failed, succeeded, _ = make(store, array, 3)
    end(store, failed)
    end(store, succeeded, state=JobState.SUCCEEDED)
    assert [each.number for each in store.ended_tasks(1)] == [2]
    fold(store)
    assert store.ended_tasks(9) == []
    assert [each.id for each in store.tasks("job-1")] == ["job-4"]
    record = store.job("job-1").task_record
    assert record is not None and (record.failed, record.succeeded, record.made) == (((0, 0),), ((1, 1),), ((0, 2),))
    restored = store.job("job-2")
    assert (restored.state, restored.outcome, restored.finished_at) == (JobState.FAILED, "it failed", NOW + 5)
    assert (restored.attempts_made, restored.array, restored.spec) == (1, "job-1", array.spec)
    assert [each.id for each in store.live().jobs] == ["job-4"]
    page = store.tasks_at(store.job("job-1"), [0, 2, 3])
    assert page == [store.job(each) for each in ("job-2", "job-4", "job-5")]
    assert [each.outcome for each in page] == ["it failed", "", ""]
    assert store.task_states("job-1") == {2: JobState.QUEUED}


def test_a_task_that_is_not_made_waits_for_its_turn(store: Store) -> None:
    submit_array(store)
    task = store.job("job-5")
    assert (task.state, task.wait_code, task.wait_text) == (
        JobState.QUEUED,
        "array",
        "waits for its turn: the tasks of job-1 start in order",
    )
    with pytest.raises(NotFound):
        store.job("job-7")


def test_an_array_is_cancelled_with_its_tasks(store: Store) -> None:
    make(store, submit_array(store), 2)
    array = store.request_cancel("job-1", "ann", NOW)
    assert array.cancelled_by == "ann"
    assert array.task_record is not None and array.task_record.cancelled == ((2, 4),)
    assert [each.cancelled_by for each in store.live().jobs] == ["ann", "ann"]
    assert store.job("job-6").state is JobState.CANCELLED
    assert store.request_cancel("job-1", "bob", NOW).cancelled_by == "ann"


def test_tasks_are_cancelled_alone(store: Store) -> None:
    make(store, submit_array(store), 2)
    store.request_cancels([(store.job("job-1"), [1, 3])], "ann", NOW)
    store.request_cancel("job-5", "ann", NOW)  # position 3 again: no effect
    array = store.job("job-1")
    assert array.cancelled_by is None
    assert array.task_record is not None and array.task_record.cancelled == ((3, 3),)
    assert [each.cancelled_by for each in store.live().jobs] == [None, "ann"]
    with store.transaction(NOW) as tx:
        assert array.task_record.next_positions(9, 5) == [2, 4]
        assert [each.id for each in tx.make_tasks(tx.job("job-1"), [2, 4], WHY)] == ["job-4", "job-6"]


def test_tasks_have_the_secrets_of_their_array(store: Store) -> None:
    (task,) = make(store, submit_array(store, secrets=("T",)), 1)
    assert store.job_secrets(task.id) == store.job_secrets("job-1") == {"T": "k.x"}


def test_events_of_recorded_tasks_are_kept_as_long_as_their_array(store: Store) -> None:
    array = submit_array(store, count=1)
    (task,) = make(store, array, 1)
    end(store, task)
    fold(store)
    kept = store.events(job_id=task.id)
    store.prune_events(NOW + DAY_S, NOW + DAY_S)
    assert kept and store.events(job_id=task.id) == kept
    with store.transaction(NOW + 9) as tx:
        tx.put_job(move_job(tx.job("job-1"), JobState.FAILED, finished_at=NOW + 9))
    store.prune_events(NOW + DAY_S, NOW + DAY_S)
    assert store.events(job_id=task.id) == ()
    assert store.job(task.id).state is JobState.FAILED  # by its record
    store.prune_rows(NOW + DAY_S)
    with pytest.raises(NotFound):
        store.job(task.id)


def test_another_process_sees_tasks_go_whose_rows_were_deleted(store_url: str) -> None:
    store, other = Store.open(store_url), Store.open(store_url)
    tasks = make(store, submit_array(store), 2)
    assert [each.id for each in other.live().jobs] == ["job-2", "job-3"]
    end(store, tasks[0])
    fold(store)
    assert [each.id for each in other.live().jobs] == [each.id for each in store.live().jobs] == ["job-3"]
    other.close()
    store.close()
