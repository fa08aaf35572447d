"""The hash chain of the event log: it begins with the next event."""

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"


def upgrade() -> None:
    """Add the links of events, the newest link, and what pruned links leave."""
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("event", sa.Column("link", count))
    op.add_column("event", sa.Column("digest", sa.Text()))
    op.add_column("head", sa.Column("links", count, nullable=False, server_default="0"))
    op.add_column("head", sa.Column("digest", sa.Text(), nullable=False, server_default=""))
    op.add_column("head", sa.Column("unlinked", count, nullable=False, server_default="0"))
    op.execute("UPDATE head SET unlinked = events")
    op.create_table(
        "event_anchor",
        sa.Column("first_link", count, primary_key=True, autoincrement=False),
        sa.Column("last_link", count, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Remove the chain."""
    op.drop_table("event_anchor")
    for column in ("unlinked", "digest", "links"):
        op.drop_column("head", column)
    for column in ("digest", "link"):
        op.drop_column("event", column)
