"""How fast applications ran beside which neighbours."""

import sqlalchemy as sa
from alembic import op

revision = "v0008"
down_revision = "v0007"

_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table. It has no row until applications ran together that were expected to reach a speed."""
    op.create_table(
        "co_run",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("observed_at", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("co_run_by_revision", "co_run", ["revision"])
    op.create_index("co_run_by_time", "co_run", ["observed_at", "key"])


def downgrade() -> None:
    """Forget what was observed."""
    op.drop_table("co_run")
