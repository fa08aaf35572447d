"""Databases that are locked, full, gone, damaged or no databases: one clear sentence, nothing half-written, and all
works again once the fault is gone."""

import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from sqlalchemy import event

from hcloud.core.errors import ConfigError, StoreBusy, StoreError
from hcloud.core.model import EventKind, JobState, move_job
from hcloud.store import Store, database
from hcloud.store.faults import database_fault
from tests.databases import SHIPPED_SYNCHRONOUS, PostgresqlServer
from tests.machine import needs_postgresql
from tests.store.samples import NOW, launch, open_intent, submit, walk
from tests.store.test_processes import lines_of, other_process


@pytest.fixture
def path(tmp_path: Path, prepared_sqlite: Path) -> Path:
    """A SQLite file with the store's tables."""
    return Path(shutil.copyfile(prepared_sqlite, tmp_path / "hcloud.db"))


@pytest.fixture
def opened(path: Path) -> Iterator[Store]:
    """A store on that file with a short timeout."""
    store = Store.open(f"sqlite:///{path}", busy_timeout_s=0.05)
    yield store
    store.close()


def fails_without_a_trace(store: Store, message: str) -> None:
    """Check that every kind of write fails with `message` and changes nothing."""
    for write in (
        lambda: submit(store),
        lambda: launch(store),
        lambda: open_intent(store, "x"),
        lambda: store.set_meta("a", "b"),
        lambda: store.acquire_lease("a", NOW, 1.0),
        lambda: store.prune_events(NOW, NOW),
    ):
        with pytest.raises(StoreBusy, match=message):
            write()


# -------------------------------------------------------------------------------------------------------------- locked
def test_lock_of_another_process_is_named_and_over_when_released(opened: Store, path: Path) -> None:
    jobs = submit(opened, count=3)
    with other_process("lock", f"sqlite:///{path}") as process:
        assert next(lines_of(process)) == "locked\n"
        fails_without_a_trace(
            opened, f"database {path} is locked by another process .waited 0.05 s.; nothing was written"
        )
        assert opened.live().jobs == jobs, "readers do not wait for a writer"
        late = Store.open(f"sqlite:///{path}", busy_timeout_s=0.05)
        assert late.live().jobs == jobs
        late.close()
        process.communicate("")
    assert submit(opened)[0].id == "job-4"


def test_locked_database_cannot_be_created_into(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE t (a)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy, match=r"new\.db is locked by another process"):
            Store.open(f"sqlite:///{tmp_path}/new.db", busy_timeout_s=0.05)


def test_thread_that_writes_for_long_makes_others_fail_not_hang(opened: Store) -> None:
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            submit(opened)
        except StoreBusy as error:
            outcome.append(error)

    with opened.transaction(NOW):
        thread = Thread(target=write)
        thread.start()
        thread.join()
    assert "another thread has been writing for 0.05 s" in str(outcome[0])


@needs_postgresql
def test_lock_held_in_postgresql_is_named_and_over_when_released(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    store = Store.open(url, busy_timeout_s=0.05)
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        fails_without_a_trace(store, "is locked by another process .waited 0.05 s.")
        other.rollback()
    assert submit(store)[0].id == "job-1"
    store.close()


# ---------------------------------------------------------------------------------------------------------------- full
def test_full_disk_is_named_and_over_when_there_is_room(opened: Store) -> None:
    submit(opened, count=10)
    view = opened.live()
    pages: list[int] = []

    def limit_pages(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")

    opened.close()
    event.listen(opened._database._engine, "checkout", limit_pages)
    pages.append(1)  # SQLite takes that as: not one page more than there are
    with pytest.raises(StoreBusy, match=r"cannot grow: the disk is full; nothing was written"):
        submit(opened, count=2000)
    assert opened.live() == view
    assert [e.seq for e in opened.events()] == list(range(1, 11))
    pages[0] = 10**6
    assert submit(opened)[0].id == "job-11"
    assert len(opened.live().jobs) == 11


def test_write_error_of_the_disk_is_named_and_over_when_it_works(opened: Store, path: Path) -> None:
    submit(opened)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = Path(f"{path}-wal").stat().st_size + 8192
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(StoreBusy, match="disk"):
            submit(opened, count=2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [job.id for job in opened.live().jobs] == ["job-1"]
    assert submit(opened)[0].id == "job-2"
    assert len(opened.live().jobs) == 2


# ---------------------------------------------------------------------------------------------------------------- gone
def test_deleted_file_is_noticed_not_replaced_and_works_when_put_back(opened: Store, path: Path) -> None:
    (job,) = submit(opened)
    path.rename(path.with_suffix(".away"))
    fails_without_a_trace(opened, "has been deleted or moved away while in use; put it back")
    with pytest.raises(StoreBusy, match="deleted or moved away"):
        opened.live()
    assert not path.exists()
    path.with_suffix(".away").rename(path)
    assert opened.live().jobs == (job,)
    assert submit(opened)[0].id == "job-2"


def test_replaced_file_is_refused(opened: Store, path: Path) -> None:
    submit(opened)
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)
    fails_without_a_trace(opened, "has been replaced by another file while in use")


@needs_postgresql
def test_postgresql_stopped_and_started_loses_nothing(postgresql: PostgresqlServer) -> None:
    store = Store.open(postgresql.new_database(), busy_timeout_s=1.0)
    jobs = submit(store, count=3)
    view = store.live()
    postgresql.stop()
    try:
        fails_without_a_trace(store, "does not answer")
        with pytest.raises(StoreBusy, match="does not answer"):
            store.live()
    finally:
        postgresql.start()
    assert store.live() == view
    moved = walk(store, jobs[0], JobState.QUEUED)
    assert store.live().jobs == (moved, *jobs[1:])
    store.close()


@needs_postgresql
def test_postgresql_gone_in_the_middle_of_a_transaction_leaves_nothing(postgresql: PostgresqlServer) -> None:
    store = Store.open(postgresql.new_database(), busy_timeout_s=1.0)
    (job,) = submit(store)

    def stopped_within() -> None:
        with store.transaction(NOW) as tx:
            tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
            tx.emit(EventKind.DAEMON)
            postgresql.stop()

    try:
        with pytest.raises(StoreBusy, match="nothing was written"):
            stopped_within()
    finally:
        postgresql.start()
    assert store.live().jobs == (job,)
    assert len(store.events()) == 1
    store.close()


@needs_postgresql
def test_connections_cut_by_the_server_are_made_again(postgresql: PostgresqlServer) -> None:
    store = Store.open(postgresql.new_database())
    submit(store)
    postgresql.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hcloud'")
    assert submit(store)[0].id == "job-2"
    store.close()


@needs_postgresql
def test_postgresql_that_is_down_or_does_not_know_us(postgresql: PostgresqlServer) -> None:
    with pytest.raises(ConfigError, match=r'database: postgresql.*database "nowhere" does not exist'):
        Store.open(postgresql.url("nowhere"))
    url = postgresql.url("postgres")
    with pytest.raises(ConfigError, match='role "eve" does not exist'):
        Store.open(url.replace("hcloud@", "eve@"))
    with pytest.raises(StoreBusy, match="does not answer"):
        Store.open(url.replace("host=", "host=/nowhere"))
    with pytest.raises(StoreBusy, match=r"does not answer") as caught:
        Store.open("postgresql://hcloud:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- damaged
def test_damaged_record_is_named_and_the_view_recovers_with_it(opened: Store, path: Path) -> None:
    first, second = submit(opened, count=2)
    view = opened.live()
    moved = walk(opened, first, JobState.QUEUED)
    with closing(sqlite3.connect(path)) as raw:
        (document,) = raw.execute("SELECT document FROM job WHERE number = 1").fetchone()
        raw.execute("UPDATE job SET document = 'rubbish' WHERE number = 1")
        raw.commit()
        assert opened.live().jobs == (moved, second)  # it wrote these itself
        with closing(Store.open(f"sqlite:///{path}")) as other:
            with pytest.raises(StoreError, match=r"a job in the database is damaged .*job-1"):
                other.live()
            raw.execute("UPDATE job SET document = ? WHERE number = 1", (document,))
            raw.commit()
            assert other.live().jobs == (moved, second)
    assert view.jobs == (first, second)


def test_overwritten_file_is_called_damaged(opened: Store, path: Path) -> None:
    submit(opened, count=200)
    opened.close()
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|not a SQLite database"):
        Store.open(f"sqlite:///{path}").live()


# ---------------------------------------------------------------------------------------------------- wrong from start
def not_a_database(path: Path) -> None:
    path.write_bytes(b"name: default\nbudgets: {}\n" * 1000)


def test_each_commit_is_on_disk_as_shipped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SQLITE_SYNCHRONOUS", SHIPPED_SYNCHRONOUS)
    with closing(Store.open(f"sqlite:///{path}")) as store, store._database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL


def a_directory(path: Path) -> None:
    path.mkdir()


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE bookmarks (url)")
        raw.commit()


def of_a_newer_hcloud(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE hcloud_schema SET version_num = 'v9999'")
        raw.commit()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (not_a_database, "is not a SQLite database; name another file"),
        (a_directory, "cannot be opened for writing: Is a directory"),
        (of_another_program, r"belongs to another program \(it has the tables bookmarks\); name another"),
        (of_a_newer_hcloud, r"has schema v9999, newer than this HCloud's v\d+: upgrade HCloud"),
    ],
)
def test_file_that_cannot_be_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "x.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ConfigError, match=f"^database: .*{message}"):
        Store.open(f"sqlite:///{path}")
    assert before == (path.read_bytes() if path.is_file() else b"")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hcloud.db", "'hcloud.db' is not a database URL; write sqlite:///"),
        ("", "is not a database URL"),
        ("sqlite://", "a database in memory would lose every job"),
        ("sqlite:///:memory:", "a database in memory would lose every job"),
        ("sqlite:///x.db?mode=ro", "takes no options"),
        ("mysql://root@localhost/x", "in SQLite or PostgreSQL, not in 'mysql'"),
        ("nonsense://x", "in SQLite or PostgreSQL, not in 'nonsense'"),
        ("postgresql://host:port/x", "is not a database URL"),
        ("sqlite:////nowhere/at/all/x.db", "the directory /nowhere/at/all does not exist"),
        ("sqlite:////proc/x.db", "cannot be opened for writing"),
        ("sqlite:////dev/null/x.db", "the directory /dev/null cannot be created: /dev/null is not a directory"),
    ],
)
def test_url_that_cannot_be_right_is_refused_in_one_sentence(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Store.open(url)
    assert str(caught.value).startswith("database: ") and "\n" not in str(caught.value)


def test_database_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/x.db")
    submit(store)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ["x.db", "x.db-wal", "x.db-shm"], 0o600
    )
    store.close()


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (psycopg.errors.DiskFull("no space left on device"), StoreBusy, "its disk is full"),
        (psycopg.errors.LockNotAvailable("timeout"), StoreBusy, "is locked by another process"),
        (psycopg.errors.AdminShutdown("terminating"), StoreBusy, "shutting down or starting: terminating"),
        (psycopg.errors.TooManyConnections("too many"), StoreBusy, "has no resources left"),
        (psycopg.errors.ReadOnlySqlTransaction("no"), StoreBusy, "is read-only"),
        (psycopg.errors.SerializationFailure("no"), StoreBusy, "conflict with another process"),
        (psycopg.OperationalError("server closed the connection"), StoreBusy, "does not answer: server closed"),
        (psycopg.errors.UndefinedTable('relation "job"\nLINE 1'), StoreError, 'relation "job"; nothing'),
        (sqlite3.OperationalError("no such table: job"), StoreError, "no such table"),
    ],
)
def test_fault_of_a_driver_is_read_for_what_it_calls_for(raised: Exception, kind: type[StoreError], words: str) -> None:
    fault = database_fault(raised, "db", 5.0)
    assert type(fault) is kind and words in str(fault) and "\n" not in str(fault)


def test_single_row_is_read_like_in_a_transaction(opened: Store, path: Path) -> None:
    """`read_row` takes its own way to the driver: the faults of the file and of its locks are told alike."""
    submit(opened)
    opened.set_meta("a'b", "c")
    assert (opened.get_meta("a'b"), opened.get_meta("other")) == ("c", None)
    away = path.rename(path.with_suffix(".away"))
    for read in (opened.newest_event_seq, opened.live, lambda: opened.get_meta("a'b")):
        with pytest.raises(StoreBusy, match="deleted or moved away"):
            read()
    away.rename(path)
    assert opened.get_meta("a'b") == "c"
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE meta")
    with pytest.raises(StoreError, match="no such table: meta"):
        opened.get_meta("a'b")
    assert opened.newest_event_seq() > 0  # the pool gives no broken connection
