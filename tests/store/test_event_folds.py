"""Folded events: read as if they had a row each, part of the chain, kept and pruned like all others."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.model import Event, EventKind, InstanceState, Job, JobState, move_job
from hcloud.store import Store, event_folds, transaction
from hcloud.store.chain import verify_log
from hcloud.store.event_folds import EventRow, compressed, decompressed
from tests.contract.test_arrays_contract import make, submit_array
from tests.store.samples import NOW, emit, launch, submit
from tests.store.test_chain import opened, verified

TASKS = 6
LATER = NOW + 100


def play(store: Store, ended: int = TASKS, seed: int = 1) -> Job:
    """Write an array of six tasks of which ``ended`` have ended: its events lie between those of another job, of
    machines and of the daemon."""
    chance, array = random.Random(seed), submit_array(store, count=TASKS)
    (other,) = submit(store)
    tasks = make(store, array, TASKS)
    steps = [(each, kind) for each in tasks for kind in (EventKind.UNIT_STARTED, EventKind.SAMPLE, EventKind.SAMPLE)]
    chance.shuffle(steps)
    for at, (task, kind) in enumerate(steps):
        about = {"job_id": task.id, "instance_id": f"inst-{1 + at % 2}"}
        emit(store, 1, kind=kind, at=NOW + at + chance.random(), **about)
        if at % 3 == 0:
            emit(store, 1, kind=EventKind.JOB_STATE, at=NOW + at, job_id=other.id, instance_id="inst-1")
            emit(store, 1, at=NOW + at)
    for at, task in enumerate(tasks[:ended]):
        end(store, task, NOW + 30 + at)
    return store.job(array.id)


def end(store: Store, task: Job, at: float) -> None:
    """End a task, without recording it."""
    with store.transaction(at) as tx:
        placed = tx.put_job(move_job(tx.job(task.id), JobState.PLACED))
        tx.put_job(move_job(placed, JobState.SUCCEEDED, finished_at=at))
        tx.emit(EventKind.JOB_FINISHED, job_id=task.id, user=task.spec.user, state="succeeded", text="zwölf\n", at=at)


def fold(store: Store, array: Job) -> None:
    """Record the ended tasks, which folds their events."""
    with store.transaction(NOW + 40) as tx:
        tx.fold_tasks(tx.job(array.id), store.ended_tasks(100))


def rows(url: str, table: str = "event") -> int:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        count: int = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()
    return count


def questions() -> list[Callable[[Store], tuple[Event, ...]]]:
    """All ways to ask for events, alone and together."""
    chance = random.Random(3)
    asked: list[dict[str, Any]] = [{}, {"job_id": "job-3"}, {"instance_id": "inst-2"}, {"kinds": [EventKind.DAEMON]}]
    for _ in range(60):
        given: dict[str, Any] = {
            "after_seq": chance.choice((0, 0, 20)),
            "before_seq": chance.choice((None, None, 40)),
            "since": chance.choice((None, None, NOW + 4)),
            "until": chance.choice((None, NOW + 20)),
            "job_id": chance.choice((None, None, None, "job-4", "job-8")),
            "instance_id": chance.choice((None, None, None, "inst-1")),
            "kinds": chance.choice((None, None, [EventKind.SAMPLE], [EventKind.JOB_FINISHED, EventKind.DAEMON])),
            "limit": chance.choice((1, 3, 10, 1000)),
            "newest": chance.choice((True, False)),
        }
        asked.append(given)
    by_row = [lambda store, given=given: store.events(**given) for given in asked]
    by_stream = [
        lambda store, since=since: tuple(store.iter_events(since=since)) for since in (None, NOW + 7, NOW + 999)
    ]
    return [*by_row, *by_stream]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are read few at a time, and folded two tasks at a time."""
    monkeypatch.setattr("hcloud.store.store._STREAM_CHUNK", 4)
    monkeypatch.setattr("hcloud.store.chain._CHUNK", 4)
    monkeypatch.setattr(event_folds, "FOLDED_MOST", 2)
    monkeypatch.setattr("hcloud.store.forgetting.FOLDS", 2)


@pytest.mark.usefixtures("small_chunks")
def test_every_question_is_answered_as_before_the_events_were_folded(store_url: str) -> None:
    with opened(store_url) as store:
        array, asked = play(store), questions()
        before = [each(store) for each in asked]
        assert sum(map(bool, before)) > 40
        fold(store, array)
        events = store.events()
        assert rows(store_url) == len([e for e in events if e.job_id in (None, "job-1", "job-8")]) < len(events) / 2
        assert rows(store_url, "event_fold") == 3
        for each, answer in zip(asked, before, strict=True):
            assert each(store) == answer
        assert store.job("job-4").finished_at == NOW + 32
    assert verified(store_url).fault == ""


def test_events_are_folded_when_many_tasks_or_all_have_ended(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "FOLDED_LEAST", 4)
    with opened(store_url) as store:
        array = play(store, ended=3)
        fold(store, array)
        assert rows(store_url, "event_fold") == 0
        for done, folds in ((4, 1), (5, 1), (6, 2)):
            end(store, store.job(f"job-{1 + done}"), NOW + 39)
            fold(store, array)
            assert rows(store_url, "event_fold") == folds
        assert verified(store_url).fault == ""


def test_a_reader_sees_each_event_once_although_they_are_folded_meanwhile(store_url: str, small_chunks: None) -> None:
    with opened(store_url) as store:
        array = play(store)
        before, reading = store.events(), store.iter_events()
        seen = [next(reading) for _ in range(6)]
        fold(store, array)
        assert (*seen, *reading) == before


TAMPERINGS = (
    ("DELETE FROM event_fold WHERE first_seq = (SELECT min(first_seq) FROM event_fold)", "missing"),
    ("UPDATE event_fold SET content = (SELECT content FROM event_fold ORDER BY first_seq LIMIT 1)", "was changed"),
    ("UPDATE event_fold SET kinds = '[]'", "was changed: it is not of the events it names"),
    ("UPDATE event_fold SET first_job = last_job", "was changed: it is not of the events it names"),
    ("UPDATE event_fold SET content = samples", "was changed"),
)


@pytest.mark.usefixtures("small_chunks")
def test_what_was_done_to_a_fold_is_noticed(store_url: str) -> None:
    with opened(store_url) as store:
        fold(store, play(store))
    engine = sa.create_engine(store_url)
    for statement, fault in TAMPERINGS:
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
            assert fault in verify_log(connection).fault, statement
            connection.rollback()
    rewritten(engine)
    assert "or a folded one before it was changed: expected digest" in verified(store_url).fault
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE event_fold SET content = :content"), {"content": b"torn"})
    assert "cannot be read" in verified(store_url).fault
    engine.dispose()


def rewritten(engine: sa.Engine) -> None:
    """Change one folded event as somebody who knows the form of a fold."""
    with engine.begin() as connection:
        first, content = connection.execute(sa.text("SELECT first_seq, content FROM event_fold")).first() or (0, b"")
        events = decompressed(bytes(content))
        events[1] = events[1]._replace(actor="bob")
        changed = {"content": compressed(events), "first": first}
        connection.execute(sa.text("UPDATE event_fold SET content = :content WHERE first_seq = :first"), changed)


@pytest.mark.usefixtures("small_chunks")
def test_old_folds_are_pruned_with_their_array_and_leave_anchors(store_url: str) -> None:
    with opened(store_url) as store:
        array = play(store)
        fold(store, array)
        kept = store.audit_head()
        store.prune_events(LATER, LATER)  # the array is live
        assert [e.job_id for e in store.events(job_id="job-3")]
        with store.transaction(NOW + 50) as tx:
            tx.put_job(move_job(tx.job(array.id), JobState.SUCCEEDED, finished_at=NOW + 50))
        store.prune_rows(LATER)
        assert store.job(array.id).state is JobState.SUCCEEDED  # its tasks have events
        store.prune_events(LATER, LATER)
        assert rows(store_url, "event_fold") == 0
        log = verified(store_url, kept)
        assert (log.fault, log.records + log.pruned) == ("", log.head.link)
        assert log.pruned > 15
        assert {e.job_id for e in store.events()} <= {None, "job-8"}
        store.prune_rows(LATER)
        assert {each.id for each in store.jobs()} == {"job-8"}


@pytest.mark.usefixtures("small_chunks")
def test_a_machine_that_is_up_keeps_the_folds_with_its_events(store_url: str) -> None:
    with opened(store_url) as store:
        machine = launch(store)
        array = play(store)
        fold(store, array)
        with store.transaction(NOW + 50) as tx:
            tx.put_job(move_job(tx.job(array.id), JobState.SUCCEEDED, finished_at=NOW + 50))
        store.prune_events(LATER, LATER)
        assert store.events(job_id=array.id) == ()
        assert [each.kind for each in store.events(job_id="job-3")]
        store.prune_rows(LATER)
        assert store.job("job-3").finished_at == NOW + 31
        with store.transaction(NOW + 60) as tx:
            failed = replace(tx.instance(machine.id), state=InstanceState.TERMINATED, terminated_at=NOW + 60)
            tx.put_instance(failed)
        store.prune_events(LATER, LATER)
        assert rows(store_url, "event_fold") == 0
        log = verified(store_url)
        assert (log.fault, log.records + log.pruned) == ("", log.head.link)


def test_samples_of_folds_have_the_retention_of_samples(store_url: str) -> None:
    with opened(store_url) as store:
        array = play(store)
        count = len(store.events(kinds=[EventKind.SAMPLE]))
        fold(store, array)
        others = tuple(e for e in store.events() if e.kind is not EventKind.SAMPLE)
        assert store.prune_samples(NOW, LATER) == 0
        assert store.prune_samples(LATER, LATER) == count == 12
        assert store.events() == others
    assert verified(store_url).fault == ""


def test_a_fold_that_loses_events_is_found(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: what is folded is not all that is deleted."""
    monkeypatch.setattr(event_folds, "compressed", lambda rows: compressed(list(rows)[:-1]))
    with opened(store_url) as store:
        fold(store, play(store))
    assert verified(store_url).fault


def test_a_write_that_fails_at_any_point_leaves_events_in_one_place(store_url: str) -> None:
    def fail(point: str) -> None:
        raise KeyboardInterrupt

    with opened(store_url) as store:
        array = play(store)
        before = store.events()
        store.crash_point = fail
        with pytest.raises(KeyboardInterrupt):
            fold(store, array)
        store.crash_point = None
        assert store.events() == before
        assert rows(store_url, "event_fold") == 0
        fold(store, array)
        assert store.events() == before


_texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=5)
_rows = st.builds(
    EventRow,
    seq=st.integers(1, 2**62),
    at=st.floats(allow_nan=False),
    kind=st.sampled_from(["sample", "job_state", "unit_ended"]),
    job_number=st.integers(1, 2**62),
    instance_number=st.none() | st.integers(1, 9),
    user_name=st.none() | _texts,
    actor=_texts,
    fields=_texts,
    link=st.none() | st.integers(1, 2**62),
    digest=st.none(),
)


@settings(max_examples=15)
@given(st.lists(_rows, max_size=8, unique_by=lambda row: row.seq))
def test_a_fold_has_what_was_folded(given_rows: list[EventRow]) -> None:
    assert decompressed(compressed(given_rows)) == sorted(given_rows)
