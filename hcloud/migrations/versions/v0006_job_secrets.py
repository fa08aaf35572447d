"""Encrypted secrets of jobs, beside their specs."""

import sqlalchemy as sa
from alembic import op

revision = "v0006"
down_revision = "v0005"


def upgrade() -> None:
    """Create the table of secrets, one row per job and variable."""
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "job_secret",
        sa.Column("number", count, sa.ForeignKey("job.number"), primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Remove the secrets."""
    op.drop_table("job_secret")
