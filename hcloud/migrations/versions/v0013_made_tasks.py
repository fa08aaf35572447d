"""Which tasks of an array were made, as intervals of positions instead of the number of the first ones."""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0013"
down_revision = "v0012"

_job = sa.table("job", sa.column("number"), sa.column("last_number"), sa.column("document"))


def upgrade() -> None:
    """Rewrite the documents of arrays."""
    _rewrite(lambda made: [[0, made - 1]] if made else [])


def downgrade() -> None:
    """Rewrite them again: all tasks before the last one that was made count as made."""
    _rewrite(lambda made: made[-1][1] + 1 if made else 0)


def _rewrite(changed: Callable[[Any], Any]) -> None:
    connection = op.get_bind()
    arrays = sa.select(_job.c.number, _job.c.document).where(_job.c.last_number.is_not(None))
    for number, text in connection.execute(arrays).all():
        document = json.loads(text)
        document["task_record"]["made"] = changed(document["task_record"]["made"])
        row = sa.update(_job).where(_job.c.number == number).values(document=json.dumps(document))
        connection.execute(row)
