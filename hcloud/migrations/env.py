"""Alembic's entry point: runs the migrations on the connection of `hcloud.store`, inside its transaction."""

from alembic import context

_connection = context.config.attributes["connection"]
context.configure(
    connection=_connection,
    version_table=context.config.attributes["version_table"],
    # SQLite can also roll back DDL, as hcloud.store.database keeps the driver from committing by itself.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
