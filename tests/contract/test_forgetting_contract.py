"""Pruning of old jobs and instances, on all kinds of store."""

from dataclasses import replace

import pytest

from hcloud.core.errors import NotFound
from hcloud.core.model import InstanceState, JobState, move_instance, move_job
from hcloud.store import Store, Submission
from tests.store.samples import NOW, SPEC, emit, launch, submit, walk


def _gone(store: Store, token: str, at: float) -> str:
    machine = launch(store, token)
    with store.transaction(at) as tx:
        tx.put_instance(move_instance(machine, InstanceState.TERMINATED, terminated_at=at))
    return machine.id


def test_old_jobs_and_machines_without_events_are_deleted(store: Store) -> None:
    old, logged, late, living = submit(store, count=4, now=10.0)
    for job, at in ((old, 20.0), (logged, 20.0), (late, 200.0)):
        walk(store, job, JobState.FAILED, finished_at=at)
    gone, kept = _gone(store, "a", 30.0), launch(store, "b").id
    emit(store, 1, at=300.0, job_id=logged.id)
    assert store.prune_rows(before=100.0) == 1  # the instance; the jobs still have their submission events
    store.prune_events(before=100.0, now=NOW)
    assert store.prune_rows(before=100.0) == 1
    assert [job.id for job in store.jobs()] == [living.id, late.id, logged.id]
    assert [row.id for row in store.instances(live_only=False)] == [kept]
    with pytest.raises(NotFound, match="job-1; it ended before the retention period; the newest is job-4"):
        store.job(old.id)
    with pytest.raises(NotFound):
        store.instance(gone)
    assert store.prune_rows(before=100.0) == 0


def test_numbers_of_the_forgotten_are_not_given_again_and_tokens_are_free(store: Store) -> None:
    (old,) = store.submit([Submission(spec=SPEC, actor="ann", token="k")], 10.0)
    walk(store, old, JobState.FAILED, finished_at=20.0)
    store.prune_events(before=100.0, now=NOW)
    assert store.prune_rows(before=100.0) == 1
    (again,) = store.submit([Submission(spec=SPEC, actor="ann", token="k")], 110.0)
    assert (again.id, store.job(again.id).spec) == ("job-2", SPEC)


def test_rows_that_live_jobs_refer_to_are_kept(store: Store) -> None:
    run, living = submit(store, count=2, now=10.0)
    walk(store, run, JobState.FAILED, finished_at=20.0)
    awaited = _gone(store, "a", 30.0)
    with store.transaction(40.0) as tx:
        named = replace(tx.job(living.id), profile_runs=(run.id,), awaiting=(awaited,))
        tx.put_job(move_job(named, JobState.QUEUED))
    store.prune_events(before=100.0, now=NOW)
    assert store.prune_rows(before=100.0) == 0
    assert store.job(run.id).id == run.id and store.instance(awaited).id == awaited


def test_more_than_a_piece_is_forgotten_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.store.store.BATCH", 2)
    monkeypatch.setattr("hcloud.store.forgetting.BATCH", 2)
    for job in submit(store, count=7, now=10.0):
        walk(store, job, JobState.FAILED, finished_at=20.0)
    store.prune_events(before=100.0, now=NOW)
    assert store.prune_rows(before=100.0) == 7
    assert store.jobs() == ()


def test_a_number_that_a_machine_of_a_lost_record_has_is_passed_over(store: Store) -> None:
    with store.transaction(10.0) as tx:
        tx.reserve_number("inst-7")
        tx.reserve_number("inst-3")
        tx.reserve_number("foreign-name")
    assert launch(store, "a").id == "inst-8"
