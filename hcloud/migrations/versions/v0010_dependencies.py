"""Dependencies: which jobs wait for the end of which other one."""

import sqlalchemy as sa
from alembic import op

revision = "v0010"
down_revision = "v0009"


def upgrade() -> None:
    """Add the table; jobs of before wait for no other."""
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "job_dependency",
        sa.Column("upstream", count, primary_key=True, autoincrement=False),
        sa.Column("number", count, primary_key=True, autoincrement=False),
    )
    op.create_index("job_dependency_by_number", "job_dependency", ["number"])


def downgrade() -> None:
    """Remove it. Jobs that wait for others then wait for ever."""
    op.drop_table("job_dependency")
