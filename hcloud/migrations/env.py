"""Alembic's entry: run the migrations on the connection that `hcloud.store` hands over, inside its transaction."""

from alembic import context

_connection = context.config.attributes["connection"]
context.configure(
    connection=_connection,
    version_table=context.config.attributes["version_table"],
    # SQLite can roll DDL back as well, when the driver is kept from committing by itself (hcloud.store.database does).
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
