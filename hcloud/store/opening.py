"""Bring a database to the schema this code needs, or say in one sentence why it cannot be used."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text
from sqlalchemy.exc import ProgrammingError

from hcloud.errors import ConfigError, StoreBusy
from hcloud.store.database import Database
from hcloud.store.faults import connection_mistake, sentence
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE, head, metadata

# Any number will do so long as it stays the same: daemons that start together migrate one after the other.
_MIGRATION_LOCK = 7_304_166_021


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
    # Imported here: Alembic costs 0.2 s and 15 MiB, which a start with nothing to migrate need not pay.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found not in known:
        raise ConfigError(
            f"{name} has schema {found}, newer than this HCloud's {SCHEMA_REVISION}: upgrade HCloud",
            where="database",
        )
    try:
        command.upgrade(config, SCHEMA_REVISION)
    except ProgrammingError as error:
        raise ConfigError(f"{name} cannot be migrated: {sentence(error.orig or error)}", where="database") from error
