"""What was learnt of run times, in a table of its own."""

import sqlalchemy as sa
from alembic import op

revision = "v0007"
down_revision = "v0006"


def upgrade() -> None:
    """Create the table. It has no row until the daemon has learnt from the recorded jobs."""
    op.create_table(
        "run_times",
        sa.Column("only_row", sa.Integer(), sa.CheckConstraint("only_row = 1", name="run_times_only_row"),
                  primary_key=True),
        sa.Column("state", sa.LargeBinary(), nullable=False),
    )  # fmt: skip


def downgrade() -> None:
    """Forget it; it is learnt again from the recorded jobs."""
    op.drop_table("run_times")
