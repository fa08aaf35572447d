"""Arrays: which rows are tasks of which array, and which numbers an array has given to its tasks."""

import sqlalchemy as sa
from alembic import op

revision = "v0009"
down_revision = "v0008"


def upgrade() -> None:
    """Add the two columns and their indexes; jobs of before are neither arrays nor tasks."""
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("job", sa.Column("array_number", count))
    op.add_column("job", sa.Column("last_number", count))
    for name, columns in (
        ("job_by_array", ["array_number", "state", "number"]),
        ("job_by_last_number", ["last_number", "number"]),
    ):
        where = sa.text(f"{columns[0]} IS NOT NULL")
        op.create_index(name, "job", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Remove them. Arrays that have not ended, and their tasks, are lost."""
    for name in ("job_by_array", "job_by_last_number"):
        op.drop_index(name, "job")
    for name in ("array_number", "last_number"):
        op.drop_column("job", name)
