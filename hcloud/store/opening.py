"""Opening of a database: its tables are created or migrated, or the reason why it cannot be used is reported.

``check_database``, ``examine``, ``check_integrity`` and ``verify_audit_log`` only check: the first without connecting,
the others read-only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, ProgrammingError

from hcloud.core.errors import ConfigError, StoreBusy, StoreDamaged
from hcloud.core.model import EventKind
from hcloud.store.chain import AuditHead, VerifiedLog, verify_log
from hcloud.store.database import Database
from hcloud.store.documents import load_schedule
from hcloud.store.faults import connection_mistake, first_line
from hcloud.store.schema import SCHEMA_REVISION, VERSION_TABLE, event_log, head, job_secret, metadata, schedule

if TYPE_CHECKING:
    from alembic.config import Config

# An arbitrary constant: daemons that start at the same time migrate one after the other.
_MIGRATION_LOCK = 7_304_166_021
_EXAMINE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """State of a database that can be opened."""

    name: str
    """The file, or the URL without the password."""
    state: Literal["absent", "older", "present"]
    """absent: opening creates its tables; older: opening migrates it; present: it has the current schema."""
    schema: str
    """Its schema; empty if it has none."""
    needed: str = SCHEMA_REVISION
    """Its schema after opening."""


def check_database(url: str, *, state_dir: Path) -> None:
    """Check a database without connecting: its URL, the driver, the directory of a SQLite file.

    ``state_dir`` is the only directory that the daemon creates.

    Raises:
        ConfigError: one of them is wrong; it names the key, ``database`` or ``state_dir``.
    """
    with _only_reading(url) as database:
        database.check_directory(state_dir)


def examine(url: str, *, state_dir: Path) -> Examined:
    """Return the state of a database. Creates, migrates and locks nothing; takes a few seconds at most.

    Raises:
        ConfigError: as ``prepare``, or a permission that opening needs is missing.
        StoreBusy: the database is locked or does not answer.
        StoreError: the file is damaged or not readable.
    """
    with _only_reading(url) as database:
        database.check_directory(state_dir)
        exists = database.has_file()
        database.check_directory_is_writable()
        if not exists:
            return Examined(name=database.name, state="absent", schema="")
        with database.reading() as connection:
            return _examined(connection, database.name)


def check_integrity(url: str) -> bool:
    """Read all of an existing SQLite database; return False for PostgreSQL, which has checks of its own.

    Changes nothing; takes seconds for each gigabyte.

    Raises:
        StoreDamaged: pages, rows or indexes contradict each other.
        ConfigError, StoreBusy, StoreError: as ``examine``.
    """
    with _only_reading(url) as database:
        if not database.is_sqlite:
            return False
        if not database.has_file():
            return True
        with database.reading() as connection:
            found = connection.execute(text("PRAGMA integrity_check(1)")).scalar()
        if found != "ok":
            what = " ".join(str(found).split())
            raise StoreDamaged(f"database {database.name} is damaged ({what}); stop the daemon and restore a backup")
        return True


def count_sealed(url: str) -> Mapping[str, int]:
    """Return how many secrets of jobs each key has encrypted, by the key's id; changes nothing.

    Raises:
        ConfigError, StoreBusy, StoreError: as ``examine``.
    """
    with _only_reading(url) as database:
        if not database.has_file():
            return {}
        with database.reading() as connection:
            return count_secrets(connection) if _revision_of(connection) == SCHEMA_REVISION else {}


def count_secrets(connection: Connection) -> dict[str, int]:
    """Return how many secrets each key has encrypted, by the key's id."""
    key_id = job_secret.c.key_id
    rows = connection.execute(select(key_id, func.count().label("number")).group_by(key_id))
    counts = Counter({row.key_id: row.number for row in rows})
    for row in connection.execute(select(schedule.c.number, schedule.c.document)):
        counts.update(sealed.partition(".")[0] for sealed in load_schedule(row.number, row.document).secrets.values())
    return dict(counts)


def verify_audit_log(url: str, kept: AuditHead | None = None) -> VerifiedLog | None:
    """Verify the event log's chain, and that it contains ``kept``; None: there are no tables yet, or earlier ones.

    Changes nothing.

    Raises:
        ConfigError, StoreBusy, StoreError: as ``examine``.
    """
    with _only_reading(url) as database:
        if not database.has_file():
            return None
        with database.reading() as connection:
            return verify_log(connection, kept) if _revision_of(connection) == SCHEMA_REVISION else None


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
    revision = _revision_of(connection)
    if revision is None:
        _refuse_foreign_tables(connection, name)
        _check_may_create_tables(connection, name)
        return Examined(name=name, state="absent", schema="")
    if revision == SCHEMA_REVISION:
        return Examined(name=name, state="present", schema=revision)
    _refuse_newer(connection, revision, name)
    return Examined(name=name, state="older", schema=revision)


def _check_may_create_tables(connection: Connection, name: str) -> None:
    # Since PostgreSQL 15 only the owner of a database may, and `GRANT ... ON DATABASE` does not change that.
    if connection.dialect.name != "postgresql":
        return
    schema, user, may = connection.execute(
        text(
            "SELECT quote_ident(current_schema()), quote_ident(current_user),"
            " has_schema_privilege(current_schema(), 'CREATE')"
        )
    ).one()
    if not may:
        grant = f"GRANT CREATE ON SCHEMA {schema or 'public'} TO {user}"
        raise ConfigError(f"{name} has no tables yet, and its user may not create any: {grant}", where="database")


def prepare(database: Database) -> None:
    """Create or migrate the tables if necessary.

    Raises:
        ConfigError: the URL is wrong, the file is not readable or not ours, or its schema is newer.
        StoreBusy: the database is locked or does not answer.
    """
    database.prepare_file()
    try:
        with database.reading() as connection:
            revision = _revision_of(connection)
        if revision != SCHEMA_REVISION:
            _migrate(database)
        database.use_write_ahead_log()  # not earlier: a file of another program must stay unchanged
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
        revision = _revision_of(connection)  # again: another daemon may have migrated meanwhile
        if revision is None:
            _refuse_foreign_tables(connection, database.name)
            _create(connection)
        elif revision != SCHEMA_REVISION:
            _upgrade(connection, revision, database.name)


def _refuse_foreign_tables(connection: Connection, name: str) -> None:
    ours = set(metadata.tables) & set(inspect(connection).get_table_names())
    foreign = set(inspect(connection).get_table_names()) if connection.dialect.name == "sqlite" else ours
    if foreign:
        raise ConfigError(
            f"{name} belongs to another program (it has the tables {', '.join(sorted(foreign)[:5])}); name another one",
            where="database",
        )


def _create(connection: Connection) -> None:
    """Create all tables in one step; a test compares the result with that of the migrations."""
    metadata.create_all(connection)
    counts = ("revision", "jobs", "instances", "events", "intents_revision", "backoffs_revision", "lease_epoch")
    connection.execute(insert(head), {"only_row": 1, "lease_until": 0.0, **dict.fromkeys(counts, 0)})
    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")  # as Alembic creates it
    versions = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False), key)
    versions.create(connection)
    connection.execute(insert(versions), {"version_num": SCHEMA_REVISION})


def _upgrade(connection: Connection, revision: str, name: str) -> None:
    from alembic import command

    _refuse_newer(connection, revision, name)
    config = _migrations()
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    try:
        command.upgrade(config, SCHEMA_REVISION)
    except ProgrammingError as error:
        raise ConfigError(f"{name} cannot be migrated: {first_line(error.orig or error)}", where="database") from error


def _refuse_newer(connection: Connection, revision: str, name: str) -> None:
    from alembic.script import ScriptDirectory

    if revision not in {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}:
        version = _last_version(connection)
        target = f" to {version}, which used it last" if version else ""
        raise ConfigError(
            f"{name} has schema {revision}, newer than this HCloud's {SCHEMA_REVISION}: upgrade HCloud{target}",
            where="database",
        )


def _last_version(connection: Connection) -> str:
    """Return the version of the daemon that was started last, or an empty string if the schema hides it."""
    fields = event_log.c.fields
    started = select(fields).where(event_log.c.kind == EventKind.DAEMON.value, fields.contains('"version"'))
    with suppress(DBAPIError, ValueError, AttributeError):
        last = connection.execute(started.order_by(event_log.c.seq.desc()).limit(1)).scalar()
        return str(json.loads(last or "{}").get("version", ""))
    return ""


def _migrations() -> Config:
    # Imported here: Alembic costs 0.2 s and 15 MiB, which most starts do not need.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "hcloud:migrations")
    return config
