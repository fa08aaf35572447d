"""Known applications: measurements of each program."""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"

_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table of applications, with indexes by program and by revision."""
    op.create_table(
        "application",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("revision", _COUNT, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("application_by_program", "application", ["program"])
    op.create_index("application_by_revision", "application", ["revision"])


def downgrade() -> None:
    """Forget what is known; it is measured again."""
    op.drop_table("application")
