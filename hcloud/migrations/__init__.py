"""Migrations of the database, one Alembic revision per file in `versions/`; run by `hcloud.store`."""
