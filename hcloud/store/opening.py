"""Bring a database to the schema this code needs, or say in one sentence why it cannot be used.

``check_database`` and ``examine`` only look: at what can be told without connecting, and at what opening would meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from hcloud.core.errors import ConfigError, StoreBusy
from hcloud.core.model import EventKind
from hcloud.store.database import Database
from hcloud.store.faults import connection_mistake, sentence
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE, event_log, head, metadata

if TYPE_CHECKING:
    from alembic.config import Config

# Any number will do so long as it stays the same: daemons that start together migrate one after the other.
_MIGRATION_LOCK = 7_304_166_021
_EXAMINE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What opening a database would meet, where it can be opened."""

    name: str
    """Its file, or its URL without the password."""
    state: Literal["absent", "older", "present"]
    """absent: without tables, which opening makes; older: opening migrates it; present: of the schema of this code."""
    schema: str
    """The schema it has, "" where it has none."""
    needed: str = SCHEMA_REVISION
    """The schema that it has once it has been opened."""


def check_database(url: str, *, state_dir: Path) -> None:
    """See what can be told of a database without connecting: its URL, the driver, the directory of a SQLite file.

    ``state_dir`` is the one directory that the daemon makes.

    Raises:
        ConfigError: one of them is wrong; it names the key, ``database`` or ``state_dir``.
    """
    with _only_reading(url) as database:
        database.check_directory(state_dir)


def examine(url: str, *, state_dir: Path) -> Examined:
    """Return what opening a database would meet; nothing is made, migrated or kept locked. Takes a few seconds at most.

    Raises:
        ConfigError: as ``prepare``; its user may not write or make what opening would.
        StoreBusy: it is locked or does not answer for now.
        StoreError: the file is damaged, or it refuses to be read.
    """
    with _only_reading(url) as database:
        database.check_directory(state_dir)
        there = database.has_file()
        database.check_directory_is_ours()
        if not there:
            return Examined(name=database.name, state="absent", schema="")
        with database.reading() as connection:
            return _examined(connection, database.name)


@contextmanager
def _only_reading(url: str) -> Iterator[Database]:
    database = Database(url, _EXAMINE_TIMEOUT_S, read_only=True)
    try:
        yield database
    except StoreBusy as error:
        raise connection_mistake(error, database.name) from error
    finally:
        database.close()


def _examined(connection: Connection, name: str) -> Examined:
    found = _revision_of(connection)
    if found is None:
        _refuse_foreign_tables(connection, name)
        _see_that_tables_may_be_made(connection, name)
        return Examined(name=name, state="absent", schema="")
    if found == SCHEMA_REVISION:
        return Examined(name=name, state="present", schema=found)
    _refuse_newer(connection, found, name)
    return Examined(name=name, state="older", schema=found)


def _see_that_tables_may_be_made(connection: Connection, name: str) -> None:
    # Since PostgreSQL 15 only a database's owner may by default, and `GRANT ... ON DATABASE` does not change that.
    if connection.dialect.name != "postgresql":
        return
    schema, user, may = connection.execute(
        text(
            "SELECT quote_ident(current_schema()), quote_ident(current_user),"
            " has_schema_privilege(current_schema(), 'CREATE')"
        )
    ).one()
    if not may:
        wanted = f"GRANT CREATE ON SCHEMA {schema or 'public'} TO {user}"
        raise ConfigError(f"{name} has no tables yet and its user may make none: {wanted}", where="database")


def prepare(database: Database) -> None:
    """Create or migrate the tables where needed; quick where nothing is to be done.

    Raises:
        ConfigError: wrong URL, unreadable or foreign file, schema of a newer HCloud.
        StoreBusy: the database is locked or does not answer for now.
    """
    database.prepare_file()
    try:
        with database.reading() as connection:
            found = _revision_of(connection)
        if found != SCHEMA_REVISION:
            _migrate(database)
        database.use_write_ahead_log()  # not earlier: a file of another program is left as it is
    except StoreBusy as error:
        raise connection_mistake(error, database.name) from error


def _revision_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _migrate(database: Database) -> None:
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        found = _revision_of(connection)  # again: another daemon may have been quicker
        if found is None:
            _refuse_foreign_tables(connection, database.name)
            _make(connection)
        elif found != SCHEMA_REVISION:
            _upgrade(connection, found, database.name)


def _refuse_foreign_tables(connection: Connection, name: str) -> None:
    ours = set(metadata.tables) & set(inspect(connection).get_table_names())
    foreign = set(inspect(connection).get_table_names()) if connection.dialect.name == "sqlite" else ours
    if foreign:
        raise ConfigError(
            f"{name} belongs to another program (it has the tables {', '.join(sorted(foreign)[:5])}); name another",
            where="database",
        )


def _make(connection: Connection) -> None:
    """Make a new database in one step; tests compare it with what the migrations make, step by step."""
    metadata.create_all(connection)
    counts = ("revision", "jobs", "instances", "events", "intents_revision", "backoffs_revision", "lease_epoch")
    connection.execute(insert(head), {"only_row": 1, "lease_until": 0.0, **dict.fromkeys(counts, 0)})
    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")  # as Alembic makes it
    versions = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False), key)
    versions.create(connection)
    connection.execute(insert(versions), {"version_num": SCHEMA_REVISION})


def _upgrade(connection: Connection, found: str, name: str) -> None:
    from alembic import command

    _refuse_newer(connection, found, name)
    config = _migrations()
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    try:
        command.upgrade(config, SCHEMA_REVISION)
    except ProgrammingError as error:
        raise ConfigError(f"{name} cannot be migrated: {sentence(error.orig or error)}", where="database") from error


def _refuse_newer(connection: Connection, found: str, name: str) -> None:
    from alembic.script import ScriptDirectory

    if found not in {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}:
        version = _last_version(connection)
        enough = f" to {version}, which used it last" if version else ""
        raise ConfigError(
            f"{name} has schema {found}, newer than this HCloud's {SCHEMA_REVISION}: upgrade HCloud{enough}",
            where="database",
        )


def _last_version(connection: Connection) -> str:
    """Return the version of the daemon that was started last; "" where a later schema hides it."""
    fields = event_log.c.fields
    started = select(fields).where(event_log.c.kind == EventKind.DAEMON.value, fields.contains('"version"'))
    with suppress(DBAPIError, ValueError, AttributeError):
        last = connection.execute(started.order_by(event_log.c.seq.desc()).limit(1)).scalar()
        return str(json.loads(last or "{}").get("version", ""))
    return ""


def _migrations() -> Config:
    # Alembic is imported where it is used: it costs 0.2 s and 15 MiB, which a start without migrations need not pay.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    return config
