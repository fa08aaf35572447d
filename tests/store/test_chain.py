"""The hash chain of the event log: what it finds, and that writers, prunings and kills leave it whole."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from hcloud.core.model import EventKind, JobState
from hcloud.store import AuditHead, Store, VerifiedLog, transaction, verify_audit_log
from hcloud.store.chain import link_events, verify_log
from tests.store.samples import NOW, emit, submit, walk
from tests.store.test_migrations import migrate

TRIGGERS = ("DROP TRIGGER event_keeps_lines", "DROP TRIGGER event_loses_no_lines")


def verified(url: str, kept: AuditHead | None = None) -> VerifiedLog:
    log = verify_audit_log(url, kept)
    assert log is not None
    return log


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = Store.open(url)
    yield store
    store.close()


def written(url: str) -> None:
    """Write a log of ten events, of which number 4 is a sample."""
    with opened(url) as store:
        emit(store, 3)
        emit(store, 1, kind=EventKind.SAMPLE)
        emit(store, 6, at=NOW + 10)


def tamper(url: str, *statements: str) -> None:
    """Change the database as somebody who may do everything there."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SET session_replication_role = replica"))  # no triggers
        else:
            for statement in TRIGGERS:
                connection.execute(sa.text(statement))
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


COPIED = "kind, job_number, instance_number, user_name, actor, fields"


TAMPERINGS = (
    ("UPDATE event SET actor = 'bob' WHERE seq = 3", "event 3 (1970-01-01T00:16:40Z, daemon by bob) was changed"),
    ("UPDATE event SET at = 999 WHERE seq = 6", "event 6 (1970-01-01T00:16:39Z, daemon by hcloud) was changed"),
    ("UPDATE event SET kind = 'sample' WHERE seq = 5", "event 5 (1970-01-01T00:16:50Z, sample by hcloud) was"),
    ("UPDATE event SET link = NULL WHERE seq = 5", "was inserted or changed: it has no link number, expected 4"),
    (
        "DELETE FROM event WHERE seq = 2",
        "1 event is missing between event 1 (1970-01-01T00:16:40Z, daemon by hcloud) and",
    ),
    ("DELETE FROM event WHERE seq BETWEEN 5 AND 7", "expected link 4 to 6, found 7"),
    ("DELETE FROM event WHERE seq < 3", "2 events are missing between the beginning and event 3"),
    (
        "DELETE FROM event WHERE seq > 8",
        "2 events are missing after event 8 (1970-01-01T00:16:50Z, daemon by hcloud): expect",
    ),
    (
        f"INSERT INTO event (seq, at, {COPIED}, link, digest) SELECT 11, at, {COPIED}, 10, digest FROM event "
        "WHERE seq = 10",
        "event 11 (1970-01-01T00:16:50Z, daemon by hcloud) was changed: expected digest ",
    ),
    (
        f"INSERT INTO event (seq, at, {COPIED}, link, digest) SELECT 0, at, {COPIED}, 1, digest FROM event "
        "WHERE seq = 1",
        "event 0 (1970-01-01T00:16:40Z, daemon by hcloud) was changed: expected digest ",
    ),
    ("UPDATE event SET seq = 20 WHERE seq = 3", "1 event is missing between event 2"),
    ("INSERT INTO event_anchor VALUES (1, 9, 'x')", "expected link 10, found 1"),
)
"""What is done to the log of `written`, and what is said of it."""


def test_what_was_done_to_the_log_is_named(store_url: str) -> None:
    written(store_url)
    tamper(store_url)
    engine = sa.create_engine(store_url)
    for statement, fault in TAMPERINGS:
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SET session_replication_role = replica"))
            assert verify_log(connection).fault == "", statement
            connection.execute(sa.text(statement))
            assert fault in verify_log(connection).fault, statement
            connection.rollback()
    engine.dispose()


def test_a_removal_disguised_as_pruning_does_not_fit_what_the_log_says(store_url: str) -> None:
    written(store_url)
    tamper(
        store_url,
        "INSERT INTO event_anchor SELECT link, link, digest FROM event WHERE seq = 2",
        "DELETE FROM event WHERE seq = 2",
    )
    assert "the runs of pruned links are not those of the last recorded pruning" in verified(store_url).fault


def test_a_tail_cut_with_the_head_and_a_new_chain_show_by_a_head_kept_elsewhere(store_url: str) -> None:
    """Not detectable without it: the log is then one that might have been."""
    written(store_url)
    with opened(store_url) as store:
        kept = store.audit_head()
    assert verified(store_url, kept).fault == ""
    tamper(
        store_url,
        "UPDATE head SET links = 8, digest = (SELECT digest FROM event WHERE seq = 9)",
        "DELETE FROM event WHERE seq = 10",
    )
    assert verified(store_url).fault == ""
    assert verified(store_url, kept).fault == f"1 event is missing at the end: link {kept} was there"
    with opened(store_url) as store:
        emit(store, 2)
    assert verified(store_url).fault == ""
    assert f"link 9 or one before it was replaced: expected {kept}" in verified(store_url, kept).fault


def test_pruned_links_leave_anchors_from_which_the_rest_is_verified(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcloud.store.store.BATCH", 3)
    monkeypatch.setattr("hcloud.store.forgetting.BATCH", 3)
    chance = random.Random(7)
    with opened(store_url) as store:
        jobs = submit(store, count=12, now=10.0)
        for round_at in range(20, 80, 10):
            for job in chance.sample(jobs, 6):
                emit(store, 1, at=float(round_at), job_id=job.id)
                emit(store, 1, kind=EventKind.SAMPLE, at=float(round_at), job_id=job.id)
        kept = store.audit_head()
        for done, job in enumerate(chance.sample(jobs, 12)):
            walk(store, job, JobState.FAILED, finished_at=30.0 + done)
            store.prune_events(31.0 + done, NOW)
            store.prune_samples(25.0 + done, NOW)
            log = verified(store_url, kept)
            assert (log.fault, log.records + log.pruned) == ("", log.head.link)
        assert log.pruned > 25
        store.prune_events(NOW + 1, NOW + 2)
        assert {event.fields.get("what") for event in store.events()} == {"pruned"}
    assert verified(store_url, kept).fault == ""
    tamper(store_url, "UPDATE event_anchor SET digest = 'x' WHERE first_link = 1")
    assert verified(store_url).fault


def test_a_write_that_fails_at_any_point_leaves_no_link(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(store_url) as store:
        emit(store, 2)
        before = store.audit_head()
        with suppress(KeyboardInterrupt), store.transaction(NOW) as tx:
            tx.emit(EventKind.DAEMON)
            fail()
        store.crash_point = lambda point: fail() if point == "commit:before" else None
        for write in (lambda: emit(store, 1), lambda: store.prune_events(NOW + 1, NOW)):
            with pytest.raises(KeyboardInterrupt):
                write()
        store.crash_point = None
        assert store.audit_head() == before == verified(store_url).head
        emit(store, 1)
    assert verified(store_url).fault == ""


def not_linked(events: Any, link: int, digest: str) -> tuple[int, str]:
    """Seeded fault: each transaction begins its own chain."""
    return link_events(events, link, "")


def rows_forgotten(_connection: object, _links: object) -> str:
    """Seeded fault: a pruning keeps no anchors."""
    return ""


@pytest.mark.parametrize(("name", "fault"), [("link_events", not_linked), ("keep_anchors", rows_forgotten)])
def test_a_store_that_breaks_the_chain_is_found(
    store_url: str, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(transaction, name, fault)
    with opened(store_url) as store:
        emit(store, 3, at=5.0)
        emit(store, 2)
        store.prune_events(10.0, NOW)
    assert verified(store_url).fault


def test_the_chain_of_an_older_database_begins_with_its_next_event(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/old.db", tmp_path / "old.db"
    migrate(url, "v0004")
    columns = "seq, at, kind, actor, fields"
    with closing(sqlite3.connect(path)) as raw:
        rows = [(seq, float(seq), "daemon", "hcloud", "{}") for seq in (1, 2, 3)]
        raw.executemany(f"INSERT INTO event ({columns}) VALUES (?, ?, ?, ?, ?)", rows)
        raw.execute("UPDATE head SET events = 3")
        raw.commit()
    assert verify_audit_log(url) is None  # the daemon migrates at its start
    with opened(url) as store:
        emit(store, 2)
        store.prune_events(2.0, NOW)
    log = verified(url)
    assert (log.fault, log.unlinked, log.records, log.pruned) == ("", 2, 2, 0)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"INSERT INTO event ({columns}) VALUES (9, 9.0, 'daemon', 'hcloud', '{{}}')")
        raw.commit()
    assert "event 9 (1970-01-01T00:00:09Z, daemon by hcloud) was inserted" in verified(url).fault


def test_values_are_hashed_as_they_are_read_back(store_url: str) -> None:
    with opened(store_url) as store:
        for at in (0.1 + 0.2, 1e22, 5e-324, 1.7976931348623157e308, -0.0, float(10**9) + 1e-7):
            emit(store, 1, at=at)
        emit(store, 1, at=7)  # type: ignore[arg-type]
        with store.transaction(NOW) as tx:
            tx.emit(
                EventKind.DAEMON, actor="Zoë\n\"'\\", user="\u2028\U0001f600", x=float("inf"), y="\x00\x7f", z=[1, {}]
            )
    log = verified(store_url)
    assert (log.fault, log.records) == ("", 8)
