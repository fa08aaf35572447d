"""The first tables: jobs, instances, intents, back-offs, events, and the head row that serialises writes."""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None

_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

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


def upgrade() -> None:
    """Create the tables, and triggers that make the event log append-only except for pruning."""
    _create_head()
    _create_jobs()
    _create_instances()
    _create_intents()
    _create_events()
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
    )
    triggers = _SQLITE_TRIGGERS if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL_TRIGGERS
    for statement in triggers:
        op.execute(statement)


def _create_head() -> None:
    op.create_table(
        "head",
        sa.Column("only_row", sa.Integer(), sa.CheckConstraint("only_row = 1", name="head_only_row"), primary_key=True),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("jobs", _COUNT, nullable=False),
        sa.Column("instances", _COUNT, nullable=False),
        sa.Column("events", _COUNT, nullable=False),
        sa.Column("intents_revision", _COUNT, nullable=False),
        sa.Column("backoffs_revision", _COUNT, nullable=False),
        sa.Column("lease_holder", sa.Text()),
        sa.Column("lease_epoch", _COUNT, nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
    )
    op.execute(
        "INSERT INTO head (only_row, revision, jobs, instances, events, intents_revision, backoffs_revision,"
        " lease_epoch, lease_until) VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0)"
    )


def _create_jobs() -> None:
    op.create_table(
        "job",
        sa.Column("number", _COUNT, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("job_by_state", "job", ["state", "number"])
    op.create_index("job_by_user", "job", ["user_name", "number"])
    op.create_index("job_by_name", "job", ["name", "number"])
    op.create_index("job_by_token", "job", ["user_name", "token"], unique=True)
    op.create_index("job_by_revision", "job", ["revision"])
    op.create_table(
        "job_spec",
        sa.Column("number", _COUNT, sa.ForeignKey("job.number"), primary_key=True, autoincrement=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_table(
        "job_tag",
        sa.Column("number", _COUNT, sa.ForeignKey("job.number"), primary_key=True, autoincrement=False),
        sa.Column("tag", sa.Text(), primary_key=True),
        sa.Column("tag_value", sa.Text(), nullable=False),
    )
    op.create_index("job_tag_by_tag", "job_tag", ["tag", "tag_value", "number"])


def _create_instances() -> None:
    op.create_table(
        "instance",
        sa.Column("number", _COUNT, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("terminated_at", sa.Double()),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("instance_by_state", "instance", ["state", "number"])
    op.create_index("instance_by_token", "instance", ["token"], unique=True)
    op.create_index("instance_by_revision", "instance", ["revision"])


def _create_intents() -> None:
    op.create_table(
        "intent",
        sa.Column("token", sa.Text(), primary_key=True),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_table(
        "offer_backoff",
        sa.Column("provider", sa.Text(), primary_key=True),
        sa.Column("zone", sa.Text(), primary_key=True),
        sa.Column("instance_type", sa.Text(), primary_key=True),
        sa.Column("market", sa.Text(), primary_key=True),
        sa.Column("until_at", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )


def _create_events() -> None:
    op.create_table(
        "event",
        sa.Column("seq", _COUNT, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("job_number", _COUNT),
        sa.Column("instance_number", _COUNT),
        sa.Column("user_name", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
    )
    op.create_index("event_by_at", "event", ["at"])
    op.create_index("event_by_job", "event", ["job_number", "seq"])
    op.create_index("event_by_instance", "event", ["instance_number", "seq"])
    op.create_table("event_pruning", sa.Column("before_at", sa.Double(), primary_key=True))


def downgrade() -> None:
    """Raise NotImplementedError: this is the first revision."""
    raise NotImplementedError("this is the first revision; delete the database to start afresh")
