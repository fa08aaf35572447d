"""The database's history, one Alembic revision per file in `versions/`; `hcloud.store` runs them by package name."""
