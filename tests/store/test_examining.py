"""Examining a database reports what opening it would, and changes nothing."""

import os
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hcloud.core.errors import ConfigError, StoreBusy, StoreDamaged, StoreError
from hcloud.core.model import EventKind
from hcloud.store import Store, check_database, check_integrity, examine, opening, without_password
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE
from tests.databases import PostgresqlServer
from tests.machine import needs_postgresql
from tests.other_user import as_ordinary_user
from tests.store.samples import NOW
from tests.store.test_migrations import migrate
from tests.store.test_processes import lines_of, other_process
from tests.waiting import wait_until

SECRET = "s3cret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that contains only the database."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def path(folder: Path, prepared_sqlite: Path) -> Path:
    """A SQLite file with the store's tables."""
    return Path(shutil.copyfile(prepared_sqlite, folder / "hcloud.db"))


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of a directory with their modification times."""
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in folder.iterdir() if each.is_file()}


def found(path: Path) -> str:
    """Return the state or the error of a SQLite file, after checking that nothing was changed."""
    before = files(path.parent)
    try:
        said = examine(f"sqlite:///{path}", state_dir=path.parent).state
    except (ConfigError, StoreError) as error:
        said = f"{type(error).__name__}: {error}"
    assert files(path.parent) == before
    held = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    assert not [each for each in held if each.startswith(str(path))]
    return said


def set_schema(path: Path, schema: str) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (schema,))
        raw.commit()


# -------------------------------------------------------------------------------------------------------------- SQLite
def test_a_missing_or_empty_file_is_reported_and_not_created(folder: Path) -> None:
    assert found(folder / "new.db") == "absent"
    (folder / "empty.db").touch()
    assert found(folder / "empty.db") == "absent"


def test_a_file_with_the_current_schema_is_reported_without_new_files(path: Path) -> None:
    assert found(path) == "present"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    link = path.parent / "link.db"
    link.symlink_to(path)
    assert found(link) == "present"


def test_a_file_with_an_older_schema_is_reported_and_not_migrated(folder: Path) -> None:
    migrate(f"sqlite:///{folder}/old.db", "v0001")
    assert found(folder / "old.db") == "older"
    judged = examine(f"sqlite:///{folder}/old.db", state_dir=folder)
    assert (judged.schema, judged.needed) == ("v0001", SCHEMA_REVISION)


def test_a_file_of_a_newer_hcloud_is_refused_with_the_version_that_used_it_last(path: Path) -> None:
    set_schema(path, "v9999")
    newer = (
        f"ConfigError: database: {path} has schema v9999, newer than this HCloud's {SCHEMA_REVISION}: upgrade HCloud"
    )
    assert found(path) == newer
    set_schema(path, SCHEMA_REVISION)
    with closing(Store.open(f"sqlite:///{path}")) as store, store.transaction(NOW) as txn:
        txn.emit(EventKind.DAEMON, what="started", version="7.1", holder="a")
        txn.emit(EventKind.DAEMON, what="leader", holder="a")
    set_schema(path, "v9999")
    assert found(path) == f"{newer} to 7.1, which used it last"


def test_what_is_written_but_still_in_the_log_of_another_program_counts(path: Path) -> None:
    with other_process("schema", f"sqlite:///{path}", "v9999") as process:
        assert next(lines_of(process)) == "noted\n"
        assert sorted(files(path.parent)) == ["hcloud.db", "hcloud.db-shm", "hcloud.db-wal"]
        assert "has schema v9999" in found(path)


def test_a_writer_that_is_at_work_is_not_waited_for(path: Path) -> None:
    with other_process("lock", f"sqlite:///{path}") as process:
        assert next(lines_of(process)) == "locked\n"
        assert found(path) == "present"


def test_what_a_killed_program_left_counts_and_stays(tmp_path: Path, path: Path) -> None:
    with closing(sqlite3.connect(path)) as killed:
        killed.execute("PRAGMA journal_mode = WAL")
        killed.execute(f"UPDATE {VERSION_TABLE} SET version_num = 'v0002'")
        killed.commit()
        left = Path(shutil.copytree(path.parent, tmp_path / "left"))
    assert sorted(files(left)) == ["hcloud.db", "hcloud.db-shm", "hcloud.db-wal"]
    assert found(left / path.name) == "older"
    (left / "hcloud.db-shm").unlink()  # as in a copy of the file and its log
    assert found(left / path.name) == "present", "as the file itself says"


def test_a_file_left_half_changed_is_reported_and_not_recovered(tmp_path: Path, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as killed:
        for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA cache_size = 1", "BEGIN", "CREATE TABLE t (a)"):
            killed.execute(statement)
        killed.executemany("INSERT INTO t VALUES (?)", [(os.urandom(4000),) for _ in range(50)])
        left = Path(shutil.copytree(path.parent, tmp_path / "left"))
    assert "was left half-changed by a killed program" in found(left / path.name)
    Store.open(f"sqlite:///{left / path.name}").close()
    assert found(left / path.name) == "present"


def damage_an_index(path: Path, *, readable: bool) -> None:
    """Let an index of a table lack its row, or (not readable) make it no index, where ordinary reads do not look."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE noted (what TEXT UNIQUE)")
        (page,) = raw.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'noted' AND type = 'index'"
        ).fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        with path.open("rb") as file:
            file.seek((page - 1) * size)
            empty = file.read(size)
        raw.execute("INSERT INTO noted VALUES ('a row')")
        raw.commit()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(empty if readable else bytes(size))


@pytest.mark.parametrize("readable", [True, False])
def test_damage_that_opening_does_not_notice_is_found(path: Path, readable: bool) -> None:
    url = f"sqlite:///{path}"
    assert check_integrity(url)
    assert check_integrity(f"{url}.new")
    damage_an_index(path, readable=readable)
    assert found(path) == "present"
    before = files(path.parent)
    with pytest.raises(StoreDamaged, match="missing from index" if readable else "error code 11"):
        check_integrity(url)
    assert files(path.parent) == before


def test_a_locked_file_is_reported_after_a_short_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_EXAMINE_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for statement in ("PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE", "CREATE TABLE t (a)"):
            other.execute(statement)
        with pytest.raises(StoreBusy, match=r"is locked by another process .waited 0.05 s."):
            examine(f"sqlite:///{path}", state_dir=path.parent)
        other.execute("ROLLBACK")
        assert examine(f"sqlite:///{path}", state_dir=path.parent).state == "present"
        other.execute("BEGIN EXCLUSIVE")  # nothing of ours is in its way


def test_files_that_cannot_be_ours_are_refused_and_left(folder: Path) -> None:
    (folder / "policy.yaml").write_bytes(b"name: default\nbudgets: {}\n" * 1000)
    with closing(sqlite3.connect(folder / "bookmarks.db")) as raw:
        raw.execute("CREATE TABLE bookmarks (url)")
        raw.commit()
    (folder / "directory" / "x.db").mkdir(parents=True)
    assert "policy.yaml is not a SQLite database; name another file" in found(folder / "policy.yaml")
    assert "belongs to another program (it has the tables bookmarks)" in found(folder / "bookmarks.db")
    assert "cannot be opened for writing: Is a directory" in found(folder / "directory" / "x.db")


def test_a_damaged_file_is_called_so(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    assert found(path).startswith("StoreDamaged: ")
    assert issubclass(StoreDamaged, StoreError)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can read but not write."""
    with tempfile.TemporaryDirectory(prefix="hcloud-db-") as made:
        Path(made).chmod(0o555)
        yield Path(made)


def said_to_a_user(path: Path) -> str:
    """Return the error that an ordinary user gets for a file."""

    def message() -> str:
        try:
            return examine(f"sqlite:///{path}", state_dir=path.parent).state
        except ConfigError as error:
            return str(error)

    return str(as_ordinary_user(message))


def test_what_its_user_may_not_write_is_refused(public: Path, prepared_sqlite: Path) -> None:
    path = public / "hcloud.db"
    not_ours = f"database: {path} cannot be used: {public} is not writable"
    assert said_to_a_user(path) == not_ours
    public.chmod(0o755)
    shutil.copyfile(prepared_sqlite, path)
    public.chmod(0o555)
    path.chmod(0o444)
    assert said_to_a_user(path) == f"database: {path} cannot be opened for writing: Permission denied"
    path.chmod(0o666)
    assert said_to_a_user(path) == not_ours
    public.chmod(0o777)
    assert said_to_a_user(path) == "present"
    public.chmod(0o700)
    assert said_to_a_user(path) == f"database: {path} cannot be opened for writing: Permission denied"


# -------------------------------------------------------------------------------------------------- without connecting
def test_a_directory_must_be_there_or_be_made_by_the_daemon(tmp_path: Path) -> None:
    def message(path: Path, state_dir: Path) -> str:
        try:
            check_database(f"sqlite:///{path}", state_dir=state_dir)
        except ConfigError as error:
            return str(error)
        return ""

    (tmp_path / "file").touch()
    here, away, below = tmp_path, tmp_path / "away", tmp_path / "file" / "a"
    assert message(here / "x.db", away) == ""
    assert message(away / "x.db", away) == message(away / "x.db", away / "state") == ""
    assert (
        message(away / "x.db", here) == f"database: the directory {away} does not exist; create it or name another one"
    )
    assert (
        message(below / "x.db", here)
        == f"database: the directory {below} cannot be created: {below.parent} is not a directory"
    )
    assert message(below / "x.db", below).startswith("state_dir: the directory")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_directory_that_may_not_be_seen_is_not_judged(public: Path) -> None:
    public.chmod(0o700)
    where = public / "unseen" / "x.db"
    as_ordinary_user(lambda: check_database(f"sqlite:///{where}", state_dir=Path("/")))
    with pytest.raises(ConfigError, match="does not exist"):
        check_database(f"sqlite:///{where}", state_dir=Path("/nowhere"))


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql+psycopg://me:{SECRET}@db/hcloud"
    check_database(url, state_dir=Path("/"))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"psycopg, the driver of PostgreSQL, is not installed"):
        check_database(url, state_dir=Path("/"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://me:s3cret@db/x", "postgresql+psycopg://me:***@db/x"),
        ("postgresql+psycopg://me:a@s3cret@db/x", "postgresql+psycopg://me:***@db/x"),
        ("postgresql+psycopg://me@db/x?a=b&password=s3cret&c=d", "postgresql+psycopg://me@db/x?a=b&password=***&c=d"),
        ("postgresql+psycopg://me@db/x?sslpassword=s3cret", "postgresql+psycopg://me@db/x?sslpassword=***"),
        ("postgresql+psycopg://me@db:5432/x", "postgresql+psycopg://me@db:5432/x"),
        ("sqlite:////srv/a:b@c.db", "sqlite:////srv/a:b@c.db"),
    ],
)
def test_a_password_is_hidden_wherever_it_stands(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg://me:s3cret@127.0.0.1:1/x", "does not answer"),
        ("postgresql+psycopg://me:s3cret@127.0.0.1:port/x", r"me:\*\*\*@127.0.0.1:port/x' is not a database URL"),
        ("postgresql+psycopg://me:a@s3cret@127.0.0.1:1/x", "has an @ in its user or password; write it as %40"),
        ("postgresql+psycopg://me@127.0.0.1:1/x?password=s3cret", "does not answer"),
        ("postgresql+psycopg://me@127.0.0.1:1/x?pasword=s3cret", "invalid connection option"),
    ],
)
def test_no_sentence_holds_a_password(url: str, message: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=message) as caught:
        examine(url, state_dir=Path("/"))
    error: BaseException | None = caught.value
    assert error is not None
    assert SECRET not in str(error)
    assert "\n" not in str(error)


# ---------------------------------------------------------------------------------------------------------- PostgreSQL
def test_a_server_that_takes_connections_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me@127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(StoreBusy, match="does not answer"):
            examine(url, state_dir=Path("/"))


def tables(server: PostgresqlServer, url: str) -> str:
    """Return the names of a database's tables, and the number of other connections."""
    name = url.rpartition("@/")[2].partition("?")[0]
    connections = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
    names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    return server.psql(names, name).stdout + server.psql(connections, name).stdout


@needs_postgresql
@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda url: None, "absent"),
        (lambda url: migrate(url, "v0001"), "older"),
        (lambda url: Store.open(url).close(), "present"),
    ],
    ids=["empty", "old", "new"],
)
def test_a_server_s_database_is_judged_and_left_as_it_is(
    postgresql: PostgresqlServer, make: Callable[[str], None], wanted: str
) -> None:
    url = postgresql.empty_database()
    make(url)
    wait_until(lambda: tables(postgresql, url).endswith("\n0\n") or tables(postgresql, url) == "0\n", 10)
    before = tables(postgresql, url)
    assert examine(url, state_dir=Path("/")).state == wanted
    wait_until(lambda: tables(postgresql, url) == before, 10)


@needs_postgresql
def test_a_server_s_database_of_a_newer_hcloud_is_refused_with_its_version(postgresql: PostgresqlServer) -> None:
    url = postgresql.empty_database()
    name = url.rpartition("@/")[2].partition("?")[0]
    with closing(Store.open(url)) as store, store.transaction(NOW) as txn:
        txn.emit(EventKind.DAEMON, what="started", version="7.1", holder="a")
    postgresql.psql(f"UPDATE {VERSION_TABLE} SET version_num = 'v9999'", name)
    with pytest.raises(ConfigError, match=r"has schema v9999, newer .*: upgrade HCloud to 7.1, which used it last"):
        examine(url, state_dir=Path("/"))
    postgresql.psql("ALTER TABLE event RENAME TO happened", name)
    with pytest.raises(ConfigError, match=r"has schema v9999, newer .*: upgrade HCloud$"):
        examine(url, state_dir=Path("/"))


@needs_postgresql
def test_a_user_who_may_not_create_tables_gets_the_grant(postgresql: PostgresqlServer) -> None:
    url = postgresql.empty_database()
    name = url.rpartition("@/")[2].partition("?")[0]
    postgresql.psql("CREATE ROLE newcomer LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC", name)
    newcomer = url.replace("hcloud@", "newcomer@")
    with pytest.raises(ConfigError, match="its user may not create any: GRANT CREATE ON SCHEMA public TO newcomer"):
        examine(newcomer, state_dir=Path("/"))
    postgresql.psql("GRANT CREATE ON SCHEMA public TO newcomer", name)
    assert examine(newcomer, state_dir=Path("/")).state == "absent"


@needs_postgresql
def test_a_wrong_password_or_name_is_reported_and_not_shown(postgresql: PostgresqlServer) -> None:
    url = postgresql.empty_database()
    postgresql.psql("CREATE ROLE guarded LOGIN PASSWORD 'the right one'")
    rules = postgresql.directory / "data" / "pg_hba.conf"
    rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
    postgresql.psql("SELECT pg_reload_conf()")

    def message(user: str) -> str:
        try:
            return examine(url.replace("hcloud@", f"{user}@"), state_dir=Path("/")).state
        except ConfigError as error:
            return str(error)

    wait_until(lambda: "no password supplied" in message("guarded"), 10)
    wrong = message(f"guarded:{SECRET}")
    assert 'password authentication failed for user "guarded"' in wrong
    assert SECRET not in wrong
    assert 'role "eve" does not exist' in message("eve")
    with pytest.raises(ConfigError, match='database "nowhere" does not exist'):
        examine(postgresql.url("nowhere"), state_dir=Path("/"))
    assert (
        "may not create any" in message("guarded:the%20right%20one") or message("guarded:the%20right%20one") == "absent"
    )
