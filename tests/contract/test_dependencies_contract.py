"""What every store keeps of jobs that wait for others to end."""

from contextlib import suppress
from dataclasses import replace

import pytest

from hcloud.apply.transitions import transition_job
from hcloud.core.arrays import TaskList
from hcloud.core.dependencies import Dependency, Ending, Upstream
from hcloud.core.errors import NotFound, Refused
from hcloud.core.model import EventKind, Job, JobState, Reason
from hcloud.store import MemoryStore, Store, Submission
from tests.store.samples import NOW, SPEC, submit

WHY = Reason(code="test", text="a test says so")


def submit_chain(store: Store, *after: dict[Upstream, Ending], token: str = "t") -> tuple[Job, ...]:
    """Submit one job for each, which waits for what it says."""
    return store.submit(
        [
            Submission(spec=replace(SPEC, name=f"n{at}"), actor="ann", token=f"{token}{at}", after=each)
            for at, each in enumerate(after)
        ],
        NOW,
    )


def end(store: Store, job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
    """End a job."""
    with store.transaction(NOW + 5) as tx:
        job = tx.job(job_id)
        if job.state is JobState.SUBMITTED and state is JobState.SUCCEEDED:
            job = transition_job(tx, transition_job(tx, job, JobState.QUEUED, WHY), JobState.PLACED, WHY)
        transition_job(tx, job, state, WHY)


def ids(jobs: tuple[Job, ...]) -> list[str]:
    """Return the ids of jobs."""
    return [job.id for job in jobs]


def test_a_job_that_waits_for_another_is_held_apart_from_those_that_are_planned(store: Store) -> None:
    first, second = submit_chain(store, {}, {0: "succeeded"})
    assert second.waits_for == (Dependency(job_id="job-1", ending="succeeded", name="n0"),)
    assert second.wait_text == "waits for job-1 n0 to succeed"
    view = store.live()
    assert (view.jobs, view.held) == ((first,), (second,))
    assert set(ids(view.submitted)) == {"job-1", "job-2"}
    assert store.job("job-2") == second


def test_a_job_may_wait_for_one_that_follows_it_in_the_submission(store: Store) -> None:
    first, _ = submit_chain(store, {1: "finished"}, {})
    assert first.waits_for[0].job_id == "job-2"


def test_the_end_that_was_awaited_releases_the_job(store: Store) -> None:
    submit_chain(store, {}, {}, {0: "succeeded", 1: "finished"})
    end(store, "job-1")
    held = store.job("job-3")
    assert ids(store.live().held) == ["job-3"]
    assert held.wait_text == "waits for job-2 n1 to end" and held.released_at is None
    end(store, "job-2", JobState.FAILED)
    released = store.job("job-3")
    assert (store.live().held, ids(store.live().jobs)) == ((), ["job-3"])
    assert (released.waits_for, released.wait_code, released.eligible_at) == ((), "", NOW + 5)
    codes = [event.fields["code"] for event in store.events(job_id="job-3", kinds=[EventKind.JOB_STATE])]
    assert codes == ["dependency_ended", "released"]


@pytest.mark.parametrize(
    ("ending", "state", "is_released"),
    [
        ("succeeded", JobState.SUCCEEDED, True),
        ("succeeded", JobState.FAILED, False),
        ("succeeded", JobState.CANCELLED, False),
        ("failed", JobState.FAILED, True),
        ("failed", JobState.SUCCEEDED, False),
        ("failed", JobState.CANCELLED, False),
        ("finished", JobState.SUCCEEDED, True),
        ("finished", JobState.FAILED, True),
        ("finished", JobState.CANCELLED, True),
    ],
)
def test_each_ending_is_met_by_its_states_only(
    store: Store, ending: Ending, state: JobState, is_released: bool
) -> None:
    submit_chain(store, {}, {0: ending})
    end(store, "job-1", state)
    assert store.job("job-2").state is (JobState.SUBMITTED if is_released else JobState.CANCELLED)
    assert store.live().held == ()


def test_another_end_cancels_the_whole_chain_in_the_same_transaction(store: Store) -> None:
    # In memory deeper than Python recurses.
    length = 1200 if isinstance(store, MemoryStore) else 5
    submit_chain(store, {}, *({at: "succeeded"} for at in range(length)), {length: "finished"})
    end(store, "job-1", JobState.FAILED)
    ended = store.job("job-3")
    assert (ended.state, ended.finished_at) == (JobState.CANCELLED, NOW + 5)
    assert ended.outcome == "waited for job-2 n1 to succeed, which was cancelled"
    assert store.job(f"job-{length + 1}").state is JobState.CANCELLED
    assert ids(store.live().jobs) == [f"job-{length + 2}"]  # it waited for whatever end
    assert store.live().held == ()
    (finished,) = store.events(job_id="job-3", kinds=[EventKind.JOB_FINISHED])
    assert (finished.fields["state"], finished.fields["queue_s"]) == ("cancelled", 0.0)


def test_an_end_that_is_not_committed_releases_no_job(store: Store) -> None:
    submit_chain(store, {}, {0: "finished"})
    with suppress(RuntimeError), store.transaction(NOW) as tx:
        transition_job(tx, tx.job("job-1"), JobState.FAILED, WHY)
        raise RuntimeError
    assert ids(store.live().held) == ["job-2"]
    end(store, "job-1", JobState.FAILED)
    assert ids(store.live().jobs) == ["job-2"]


def test_what_has_ended_as_awaited_is_not_waited_for_and_any_other_end_is_refused(store: Store) -> None:
    submit(store)
    end(store, "job-1", JobState.FAILED)
    (free,) = submit_chain(store, {"job-1": "failed"})
    assert (free.waits_for, free.is_held) == ((), False)
    with pytest.raises(
        Refused, match="n0 could never start: it waits for succeeded, but job-1 sort has failed already"
    ):
        submit_chain(store, {"job-1": "succeeded"}, token="u")
    with pytest.raises(NotFound):
        submit_chain(store, {"job-9": "succeeded"}, token="v")
    assert store.newest_job_number() == 2


def test_a_repeated_submission_waits_for_the_jobs_of_the_first(store: Store) -> None:
    before = submit_chain(store, {}, {0: "succeeded"})
    assert submit_chain(store, {}, {0: "succeeded"}) == before
    end(store, "job-1", JobState.FAILED)
    assert [job.state for job in submit_chain(store, {}, {0: "succeeded"})] == [JobState.FAILED, JobState.CANCELLED]


def test_a_cancelled_job_is_planned_so_that_it_ends_at_once(store: Store) -> None:
    submit_chain(store, {}, {0: "succeeded"}, {1: "finished"})
    store.request_cancel("job-2", "ann", NOW)
    assert (ids(store.live().jobs), ids(store.live().held)) == (["job-1", "job-2"], ["job-3"])
    end(store, "job-2", JobState.CANCELLED)
    assert ids(store.live().jobs) == ["job-1", "job-3"]
    end(store, "job-1", JobState.FAILED)  # it no longer concerns job-2, which has ended
    assert store.job("job-2").outcome == WHY.text


def test_an_array_is_waited_for_as_a_whole_and_waits_as_a_whole(store: Store) -> None:
    tasks = TaskList(ranges=((0, 2, 1),))
    spec = replace(SPEC, tasks=tasks)
    store.submit([Submission(spec=spec, actor="ann"), Submission(spec=spec, actor="ann", after={0: "succeeded"})], NOW)
    assert (ids(store.live().jobs), ids(store.live().held)) == (["job-1"], ["job-5"])
    with store.transaction(NOW) as tx:
        transition_job(tx, tx.job("job-1"), JobState.QUEUED, WHY)
        (task,) = tx.make_tasks(tx.job("job-1"), [0], WHY)
        transition_job(tx, tx.job(task.id), JobState.FAILED, WHY)
    assert ids(store.live().held) == ["job-5"]
    end(store, "job-1", JobState.SUCCEEDED)
    with store.transaction(NOW + 9) as tx:
        released = transition_job(tx, tx.job("job-5"), JobState.QUEUED, WHY)
        (task,) = tx.make_tasks(released, [0], WHY)
    assert (task.eligible_at, task.submitted_at) == (NOW + 5, NOW)
    assert ids(store.live().arrays) == ["job-5"]


def test_pruned_jobs_leave_nothing_that_waits(store: Store) -> None:
    submit_chain(store, {}, {0: "succeeded"})
    store.request_cancel("job-2", "ann", NOW)
    end(store, "job-2", JobState.CANCELLED)
    store.prune_events(NOW + 100, NOW + 100)
    assert store.prune_rows(NOW + 100) == 1
    end(store, "job-1")
    with pytest.raises(NotFound):
        store.job("job-2")
