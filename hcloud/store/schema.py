"""The tables. `hcloud.migrations` creates the same ones step by step; a test compares the two on both databases.

A job has two rows, so that a change of state rewrites a few hundred bytes but not the spec. Only the fields used in
queries have columns; the rest of an object is one JSON document. It is TEXT, not JSONB, because it must be restored
exactly (infinite floats, order of keys) and is never searched.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
    text,
)

SCHEMA_REVISION = "v0013"
"""The migration that this code requires; a test compares it with the newest one in `hcloud.migrations`."""

VERSION_TABLE = "hcloud_schema"
"""Table in which Alembic records the migration of a database."""

metadata = MetaData()

# SQLite uses its fast 64-bit row number only for the type name INTEGER.
_Count = BigInteger().with_variant(Integer(), "sqlite")

head = Table(
    "head",
    metadata,
    # One row, which every writing transaction locks first. This gives commits, revisions and events the same order on
    # both databases.
    Column("only_row", Integer, CheckConstraint("only_row = 1", name="head_only_row"), primary_key=True),
    Column("revision", _Count, nullable=False),
    Column("jobs", _Count, nullable=False),
    Column("instances", _Count, nullable=False),
    Column("events", _Count, nullable=False),
    Column("intents_revision", _Count, nullable=False),
    Column("backoffs_revision", _Count, nullable=False),
    Column("lease_holder", Text),
    Column("lease_epoch", _Count, nullable=False),
    Column("lease_until", Double, nullable=False),
    # The newest link of the event log's chain, and the number of events of before the chain.
    Column("links", _Count, nullable=False, server_default="0"),
    Column("digest", Text, nullable=False, server_default=""),
    Column("unlinked", _Count, nullable=False, server_default="0"),
)

job = Table(
    "job",
    metadata,
    Column("number", _Count, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("token", Text),
    Column("finished_at", Double),
    Column("revision", _Count, nullable=False),
    Column("document", Text, nullable=False),
    # Of a task: its array, which has the spec of both. Of an array: the number of its last task.
    Column("array_number", _Count),
    Column("last_number", _Count),
    Index("job_by_state", "state", "number"),
    Index("job_by_user", "user_name", "number"),
    Index("job_by_name", "name", "number"),
    Index("job_by_token", "user_name", "token", unique=True),
    Index("job_by_revision", "revision"),
    Index(
        "job_by_array",
        "array_number",
        "state",
        "number",
        sqlite_where=text("array_number IS NOT NULL"),
        postgresql_where=text("array_number IS NOT NULL"),
    ),
    Index(
        "job_by_last_number",
        "last_number",
        "number",
        sqlite_where=text("last_number IS NOT NULL"),
        postgresql_where=text("last_number IS NOT NULL"),
    ),
)

job_spec = Table(
    "job_spec",
    metadata,
    Column("number", _Count, ForeignKey("job.number"), primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
)

job_tag = Table(
    "job_tag",
    metadata,
    Column("number", _Count, ForeignKey("job.number"), primary_key=True, autoincrement=False),
    Column("tag", Text, primary_key=True),
    Column("tag_value", Text, nullable=False),
    Index("job_tag_by_tag", "tag", "tag_value", "number"),
)

job_secret = Table(
    "job_secret",
    metadata,
    # Beside the specs, which never change: a new key encrypts these rows anew.
    Column("number", _Count, ForeignKey("job.number"), primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("sealed", Text, nullable=False),
)

job_dependency = Table(
    "job_dependency",
    metadata,
    # Which jobs wait for the end of which other one; deleted in the transaction that records the end. How it must end
    # stands in their rows.
    Column("upstream", _Count, primary_key=True, autoincrement=False),
    Column("number", _Count, primary_key=True, autoincrement=False),
    Index("job_dependency_by_number", "number"),
)

schedule = Table(
    "schedule",
    metadata,
    Column("number", _Count, primary_key=True, autoincrement=False),
    Column("user_name", Text, nullable=False),
    Column("name", Text, nullable=False),
    # When it fires next; null: it is paused.
    Column("next_at", Double),
    Column("document", Text, nullable=False),
    Index("schedule_by_name", "user_name", "name", unique=True),
    Index("schedule_by_time", "next_at"),
)

instance = Table(
    "instance",
    metadata,
    Column("number", _Count, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("terminated_at", Double),
    Column("revision", _Count, nullable=False),
    Column("document", Text, nullable=False),
    Index("instance_by_state", "state", "number"),
    Index("instance_by_token", "token", unique=True),
    Index("instance_by_revision", "revision"),
)

intent = Table(
    "intent",
    metadata,
    Column("token", Text, primary_key=True),
    Column("revision", _Count, nullable=False),
    Column("document", Text, nullable=False),
)

offer_backoff = Table(
    "offer_backoff",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("zone", Text, primary_key=True),
    Column("instance_type", Text, primary_key=True),
    Column("market", Text, primary_key=True),
    Column("until_at", Double, nullable=False),
    Column("document", Text, nullable=False),
)

refused_quota = Table(
    "refused_quota",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("region", Text, primary_key=True),
    Column("quota", Text, primary_key=True),
    Column("until_at", Double, nullable=False),
    Column("document", Text, nullable=False),
)

machine_order = Table(
    "machine_order",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("document", Text, nullable=False),
)

application = Table(
    "application",
    metadata,
    Column("name", Text, primary_key=True),
    Column("program", Text, nullable=False),
    Column("revision", _Count, nullable=False),
    Column("document", Text, nullable=False),
    Index("application_by_program", "program"),
    Index("application_by_revision", "revision"),
)

event_log = Table(
    "event",
    metadata,
    Column("seq", _Count, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("job_number", _Count),
    Column("instance_number", _Count),
    Column("user_name", Text),
    Column("actor", Text, nullable=False),
    Column("fields", Text, nullable=False),
    Column("link", _Count),
    Column("digest", Text),
    Index("event_by_at", "at"),
    Index("event_by_job", "job_number", "seq"),
    Index("event_by_instance", "instance_number", "seq"),
)

event_fold = Table(
    "event_fold",
    metadata,
    # The events of many ended tasks of an array, compressed; see `hcloud.store.event_folds`. Samples stand apart, as
    # their retention is shorter.
    Column("first_seq", _Count, primary_key=True, autoincrement=False),
    Column("last_seq", _Count, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("array_number", _Count, nullable=False),
    Column("first_job", _Count, nullable=False),
    Column("last_job", _Count, nullable=False),
    Column("kinds", Text, nullable=False),
    Column("instances", Text, nullable=False),
    Column("records", _Count, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("sample_count", _Count, nullable=False),
    Column("samples_last_at", Double),
    Column("samples", LargeBinary),
    Index("event_fold_by_last_seq", "last_seq"),
    Index("event_fold_by_last_job", "last_job"),
    Index("event_fold_by_array", "array_number"),
)

event_pruning = Table(
    "event_pruning",
    metadata,
    # Has a row only inside a transaction of `Store.prune_events`: up to where the triggers allow deletion.
    Column("before_at", Double, primary_key=True),
)

event_anchor = Table(
    "event_anchor",
    metadata,
    # A run of pruned links of the event log's chain, with the digest of its last one.
    Column("first_link", _Count, primary_key=True, autoincrement=False),
    Column("last_link", _Count, nullable=False),
    Column("digest", Text, nullable=False),
)

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

run_times = Table(
    "run_times",
    metadata,
    # One row: what was learnt from the events up to one of them, as `hcloud.forecast.run_time_tracker` writes it.
    Column("only_row", Integer, CheckConstraint("only_row = 1", name="run_times_only_row"), primary_key=True),
    Column("state", LargeBinary, nullable=False),
)

co_run = Table(
    "co_run",
    metadata,
    # How fast an application ran beside the same neighbours on one instance type; see `hcloud.core.co_runs`.
    Column("key", Text, primary_key=True),
    Column("revision", _Count, nullable=False),
    Column("observed_at", Double, nullable=False),
    Column("document", Text, nullable=False),
    Index("co_run_by_revision", "revision"),
    Index("co_run_by_time", "observed_at", "key"),
)

_SQLITE_TRIGGERS = (
    """CREATE TRIGGER event_keeps_lines BEFORE UPDATE ON event
       BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END""",
    """CREATE TRIGGER event_loses_no_lines BEFORE DELETE ON event
       WHEN NOT EXISTS (SELECT 1 FROM event_pruning WHERE OLD.at < before_at)
       BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END""",
)
_POSTGRESQL_TRIGGERS = (
    """CREATE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM event_pruning WHERE OLD.at < before_at) THEN
           RETURN OLD;
         END IF;
         RAISE EXCEPTION 'the event log is append-only';
       END $$""",
    """CREATE TRIGGER event_keeps_lines BEFORE UPDATE OR DELETE ON event
       FOR EACH ROW EXECUTE FUNCTION event_is_append_only()""",
    """CREATE TRIGGER event_keeps_all BEFORE TRUNCATE ON event
       FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()""",
)
for _dialect, _statements in (("sqlite", _SQLITE_TRIGGERS), ("postgresql", _POSTGRESQL_TRIGGERS)):
    for _statement in _statements:
        _ddl = DDL(_statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
        event.listen(event_pruning, "after_create", _ddl.execute_if(dialect=_dialect))
