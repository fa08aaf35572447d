"""Events of ended tasks of arrays, compressed."""

import sqlalchemy as sa
from alembic import op

revision = "v0011"
down_revision = "v0010"

_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table. Events of tasks of before are folded with the next ones of their arrays."""
    op.create_table(
        "event_fold",
        sa.Column("first_seq", _COUNT, primary_key=True, autoincrement=False),
        sa.Column("last_seq", _COUNT, nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("array_number", _COUNT, nullable=False),
        sa.Column("first_job", _COUNT, nullable=False),
        sa.Column("last_job", _COUNT, nullable=False),
        sa.Column("kinds", sa.Text(), nullable=False),
        sa.Column("instances", sa.Text(), nullable=False),
        sa.Column("records", _COUNT, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("sample_count", _COUNT, nullable=False),
        sa.Column("samples_last_at", sa.Double()),
        sa.Column("samples", sa.LargeBinary()),
    )
    for name, column in (("last_seq", "last_seq"), ("last_job", "last_job"), ("array", "array_number")):
        op.create_index(f"event_fold_by_{name}", "event_fold", [column])


def downgrade() -> None:
    """Remove it. The folded events are lost, and a verification of the log says so."""
    op.drop_table("event_fold")
