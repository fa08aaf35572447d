"""The schema made from scratch is the one made by migrations, on both databases, and the log cannot be rewritten."""

import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from hcloud.store import Store
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE, metadata
from tests.databases import BINARIES, PostgresqlServer
from tests.store.samples import emit

needs_postgresql = pytest.mark.skipif(BINARIES is None, reason="PostgreSQL is not installed (the summary says so)")


def sqlite_schema(path: Path) -> set[str]:
    """Every statement a SQLite database is made of, blanks evened out."""
    with closing(sqlite3.connect(path)) as raw:
        statements = [row[0] for row in raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    return {re.sub(r"\s+", " ", statement) for statement in statements if VERSION_TABLE not in statement}


def postgresql_schema(server: PostgresqlServer, url: str) -> set[str]:
    """Every statement a PostgreSQL database is made of, as its own dump program writes them."""
    assert BINARIES is not None
    command = [str(BINARIES / "pg_dump"), "--schema-only", f"--exclude-table={VERSION_TABLE}"]
    dump = subprocess.run([*command, url.replace("+psycopg", "")], capture_output=True, text=True, check=True).stdout
    without_comments = re.sub(r"^(--|\\).*$", "", dump, flags=re.MULTILINE)
    return {re.sub(r"\s+", " ", statement).strip() for statement in without_comments.split(";\n")}


def make_from_scratch(url: str, tables: sa.MetaData = metadata) -> None:
    """Create the tables of `hcloud.store.schema` directly."""
    engine = sa.create_engine(url)
    tables.create_all(engine)
    engine.dispose()


def with_one_more_column() -> sa.MetaData:
    """Seeded fault: tables that no migration makes."""
    changed = sa.MetaData()
    for table in metadata.tables.values():
        table.to_metadata(changed)
    changed.tables["job"].append_column(sa.Column("forgotten", sa.Text))
    return changed


def test_sqlite_from_scratch_equals_migrated(tmp_path: Path) -> None:
    make_from_scratch(f"sqlite:///{tmp_path}/scratch.db")
    make_from_scratch(f"sqlite:///{tmp_path}/changed.db", with_one_more_column())
    Store.open(f"sqlite:///{tmp_path}/migrated.db").close()
    migrated = sqlite_schema(tmp_path / "migrated.db")
    assert len(migrated) > 15
    assert sqlite_schema(tmp_path / "scratch.db") == migrated
    assert sqlite_schema(tmp_path / "changed.db") != migrated


@needs_postgresql
def test_postgresql_from_scratch_equals_migrated(postgresql: PostgresqlServer) -> None:
    scratch, changed, migrated = (postgresql.empty_database() for _ in range(3))
    make_from_scratch(scratch)
    make_from_scratch(changed, with_one_more_column())
    Store.open(migrated).close()
    statements = postgresql_schema(postgresql, migrated)
    assert len(statements) > 30
    assert postgresql_schema(postgresql, scratch) == statements
    assert postgresql_schema(postgresql, changed) != statements


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


def test_failed_migration_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.store.opening.SCHEMA_REVISION", "v0000")
    with pytest.raises(Exception, match="v0000"):
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
