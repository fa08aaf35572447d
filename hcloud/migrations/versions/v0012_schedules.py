"""Schedules: jobs that are submitted again and again."""

import sqlalchemy as sa
from alembic import op

revision = "v0012"
down_revision = "v0011"


def upgrade() -> None:
    """Add the table."""
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "schedule",
        sa.Column("number", count, primary_key=True, autoincrement=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("next_at", sa.Double),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("schedule_by_name", "schedule", ["user_name", "name"], unique=True)
    op.create_index("schedule_by_time", "schedule", ["next_at"])


def downgrade() -> None:
    """Remove it; the schedules are lost, the jobs that they submitted are not."""
    op.drop_table("schedule")
