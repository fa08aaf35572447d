"""Account limits on vCPUs that refusals showed, in a table of their own."""

import json

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"

_KEY = ("provider", "zone", "instance_type", "market")


def upgrade() -> None:
    """Create the table, and delete the back-offs that stood for quotas.

    They cannot be translated, as they do not say which limit it was; the next refusal shows it again.
    """
    op.create_table(
        "refused_quota",
        sa.Column("provider", sa.Text(), primary_key=True),
        sa.Column("region", sa.Text(), primary_key=True),
        sa.Column("quota", sa.Text(), primary_key=True),
        sa.Column("until_at", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    backoffs = sa.table("offer_backoff", *(sa.column(name) for name in (*_KEY, "document")))
    for row in op.get_bind().execute(sa.select(backoffs)).all():
        closes_a_market = row.zone and not row.instance_type
        if closes_a_market or json.loads(row.document).get("refused_vcpus"):
            op.execute(sa.delete(backoffs).where(*(backoffs.c[name] == getattr(row, name) for name in _KEY)))


def downgrade() -> None:
    """Forget the limits; the next refusal shows them again."""
    op.drop_table("refused_quota")
