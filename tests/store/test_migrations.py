"""New databases have the schema of the migrations, on both databases, and the event log is append-only."""

import re
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from hcloud.core.arrays import TaskList
from hcloud.core.errors import StoreError
from hcloud.core.model import JobState, Reason
from hcloud.store import Store, Submission
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE, metadata
from tests.databases import BINARIES, PostgresqlServer
from tests.machine import needs_postgresql
from tests.store.samples import SPEC, emit


def sqlite_schema(path: Path) -> set[str]:
    """Return the statements of a SQLite schema with normalised blanks."""
    with closing(sqlite3.connect(path)) as raw:
        statements = [row[0] for row in raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    return {re.sub(r"\s+", " ", statement) for statement in statements}


def postgresql_schema(server: PostgresqlServer, url: str) -> set[str]:
    """Return the statements of a PostgreSQL schema, from pg_dump."""
    assert BINARIES is not None
    dumping = [str(BINARIES / "pg_dump"), "--schema-only"]
    dump = subprocess.run([*dumping, url.replace("+psycopg", "")], capture_output=True, text=True, check=True).stdout
    without_comments = re.sub(r"^(--|\\).*$", "", dump, flags=re.MULTILINE)
    return {re.sub(r"\s+", " ", statement).strip() for statement in without_comments.split(";\n")}


def migrate(url: str, to: str = SCHEMA_REVISION) -> None:
    """Migrate an empty database to a revision step by step."""
    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        command.upgrade(config, to)
    engine.dispose()


def migrate_down(url: str, to: str) -> None:
    """Migrate a database back to a revision."""
    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        command.downgrade(config, to)
    engine.dispose()


def open_new(url: str, tables: sa.MetaData = metadata) -> None:
    """Create a new database with ``tables``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hcloud.store.opening.metadata", tables)
        Store.open(url).close()


def first_rows(url: str) -> list[sa.Row[Any]]:
    """Return the content of a new database: the head row and the revision."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        rows = [connection.execute(sa.text(f"SELECT * FROM {name}")).one() for name in ("head", VERSION_TABLE)]
    engine.dispose()
    return rows


def with_one_more_column() -> sa.MetaData:
    """Seeded fault: tables without a migration."""
    changed = sa.MetaData()
    for table in metadata.tables.values():
        table.to_metadata(changed)
    changed.tables["job"].append_column(sa.Column("forgotten", sa.Text))
    return changed


def test_a_new_sqlite_database_equals_a_migrated_one(tmp_path: Path) -> None:
    new, changed, migrated = (f"sqlite:///{tmp_path}/{name}.db" for name in ("new", "changed", "migrated"))
    open_new(new)
    open_new(changed, with_one_more_column())
    migrate(migrated)
    schema = sqlite_schema(tmp_path / "migrated.db")
    assert len(schema) > 15
    assert sqlite_schema(tmp_path / "new.db") == schema
    assert sqlite_schema(tmp_path / "changed.db") != schema
    assert first_rows(new) == first_rows(migrated)


@needs_postgresql
def test_a_new_postgresql_database_equals_a_migrated_one(postgresql: PostgresqlServer) -> None:
    new, changed, migrated = (postgresql.empty_database() for _ in range(3))
    open_new(new)
    open_new(changed, with_one_more_column())
    migrate(migrated)
    statements = postgresql_schema(postgresql, migrated)
    assert len(statements) > 30
    assert postgresql_schema(postgresql, new) == statements
    assert postgresql_schema(postgresql, changed) != statements
    assert first_rows(new) == first_rows(migrated)


def test_a_database_of_the_first_release_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    migrate(url, "v0001")
    with closing(sqlite3.connect(tmp_path / "old.db")) as raw:
        raw.execute("INSERT INTO meta (key, value) VALUES ('a', 'b')")
        raw.commit()
    store = Store.open(url)
    assert store.get_meta("a") == "b"
    emit(store, 1)
    store.close()
    migrate(f"sqlite:///{tmp_path}/migrated.db")
    assert sqlite_schema(tmp_path / "old.db") == sqlite_schema(tmp_path / "migrated.db")


def test_made_tasks_of_arrays_become_intervals(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    store = Store.open(url)
    spec = replace(SPEC, tasks=TaskList(ranges=((0, 9, 1),)))
    (array,) = store.submit([Submission(spec=spec, actor="ann")], 1_000.0)
    with store.transaction(1_000.0) as tx:
        tx.put_job(replace(tx.job(array.id), state=JobState.QUEUED))
        tx.make_tasks(tx.job(array.id), [0, 1, 2], Reason(code="tasks_made", text=""))
    store.close()
    migrate_down(url, "v0012")
    with closing(sqlite3.connect(tmp_path / "old.db")) as raw:
        assert '"made": 3' in raw.execute("SELECT document FROM job WHERE last_number IS NOT NULL").fetchone()[0]
    again = Store.open(url)
    record = again.job(array.id).task_record
    assert record is not None and record.made == ((0, 2),)
    again.close()


def test_code_knows_the_newest_migration_and_history_has_no_branches() -> None:
    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_REVISION]


def test_opening_again_changes_nothing(store_url: str) -> None:
    store = Store.open(store_url)
    emit(store, 3)
    store.close()
    again = Store.open(store_url)
    assert len(again.events()) == 3
    again.close()


def test_failed_migration_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    migrate(url, "v0001")
    before = sqlite_schema(tmp_path / "x.db")
    monkeypatch.setattr("hcloud.store.opening.SCHEMA_REVISION", "v0000")
    with pytest.raises(Exception, match="v0000"):
        Store.open(url)
    monkeypatch.undo()
    assert sqlite_schema(tmp_path / "x.db") == before
    Store.open(url).close()


def test_a_database_stays_empty_if_its_creation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.store.opening.SCHEMA_REVISION", object())  # its very last row is refused
    with pytest.raises(StoreError, match="type 'object'"):
        Store.open(f"sqlite:///{tmp_path}/x.db")
    monkeypatch.undo()
    assert sqlite_schema(tmp_path / "x.db") == set()
    Store.open(f"sqlite:///{tmp_path}/x.db").close()


def test_sqlite_refuses_to_rewrite_the_log(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/x.db")
    emit(store, 2)
    store.close()
    with closing(sqlite3.connect(tmp_path / "x.db")) as raw:
        for statement in ("UPDATE event SET at = 0", "DELETE FROM event WHERE seq = 1", "DELETE FROM event"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                raw.execute(statement)
        assert raw.execute("SELECT count(*) FROM event").fetchone() == (2,)


@needs_postgresql
def test_postgresql_refuses_to_rewrite_the_log(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    store = Store.open(url)
    emit(store, 2)
    store.close()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as raw:
        for statement in ("UPDATE event SET at = 0", "DELETE FROM event", "TRUNCATE event"):
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                raw.execute(statement)
