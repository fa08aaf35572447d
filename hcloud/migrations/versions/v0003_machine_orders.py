"""Operators' directives about instances: drain, destroy."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"


def upgrade() -> None:
    """Create the table of directives, one per scope and name."""
    op.create_table(
        "machine_order",
        sa.Column("scope", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("document", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Forget the orders: what was drained may be used again."""
    op.drop_table("machine_order")
