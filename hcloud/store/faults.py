"""Conversion of database drivers' exceptions to HCloud's errors, with one sentence for the user."""

from __future__ import annotations

import sqlite3

from hcloud.core.errors import ConfigError, HCloudError, StoreBusy, StoreDamaged, StoreError

# SQLite's error names by prefix; longer prefixes first.
_SQLITE_BUSY = {
    "SQLITE_BUSY": "is locked by another process (waited {timeout:g} s)",
    "SQLITE_LOCKED": "is locked by another process (waited {timeout:g} s)",
    "SQLITE_FULL": "cannot grow: the disk is full",
    "SQLITE_IOERR": "cannot be read or written (disk error: {detail})",
    "SQLITE_CANTOPEN": "cannot be opened (deleted, or its disk is gone)",
    "SQLITE_READONLY_ROLLBACK": "was left half-changed by a killed program; starting the daemon recovers it",
    "SQLITE_READONLY": "cannot be written (read-only file or disk)",
    "SQLITE_PROTOCOL": "is in use by too many processes",
}
# PostgreSQL's SQLSTATE by prefix; longer prefixes first.
_POSTGRESQL_BUSY = {
    "53100": "cannot grow: its disk is full",
    "53": "has no resources left: {detail}",
    "55P03": "is locked by another process (waited {timeout:g} s)",
    "57": "is shutting down or starting: {detail}",
    "25P03": "ended a transaction that was idle for too long",
    "25006": "is read-only (a standby server)",
    "08": "does not answer: {detail}",
    "40": "had a conflict with another process: {detail}",
    "58": "cannot read or write its files: {detail}",
}
_CONNECTION_ERRORS = {"OperationalError", "InterfaceError", "ConnectionTimeout"}
# Messages of refused connections, for which psycopg has no SQLSTATE.
_POSTGRESQL_MISTAKES = ("does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry",
                        "could not translate host name", "invalid connection option")  # fmt: skip


def first_line(raised: BaseException) -> str:
    """Return the first line of the driver's own message."""
    return (str(raised).strip() or repr(raised)).splitlines()[0]


def database_fault(raised: BaseException, name: str, timeout_s: float) -> HCloudError:
    """Return the error for an exception of the driver.

    StoreBusy: transient. ConfigError: the user must act. StoreDamaged: the file is corrupt. StoreError: a bug.
    """
    text = _transient_fault(raised)
    if text is not None:
        return StoreBusy(
            f"database {name} {text.format(timeout=timeout_s, detail=first_line(raised))}; nothing was written"
        )
    code = getattr(raised, "sqlite_errorname", None)
    if code == "SQLITE_NOTADB":
        return ConfigError(f"{name} is not a SQLite database; name another file", where="database")
    if code is not None and code.startswith("SQLITE_CORRUPT"):
        return StoreDamaged(f"database {name} is damaged ({first_line(raised)}); stop the daemon and restore a backup")
    return StoreError(f"database {name}: {first_line(raised)}; nothing was written")


def _transient_fault(raised: BaseException) -> str | None:
    if isinstance(raised, sqlite3.Error):
        return _by_prefix(_SQLITE_BUSY, getattr(raised, "sqlite_errorname", ""))
    state = getattr(raised, "sqlstate", None)
    if state is not None:
        return _by_prefix(_POSTGRESQL_BUSY, state)
    # Without a SQLSTATE, the connection failed.
    return "does not answer: {detail}" if type(raised).__name__ in _CONNECTION_ERRORS else None


def _by_prefix(table: dict[str, str], code: str) -> str | None:
    return next((text for prefix, text in table.items() if code.startswith(prefix)), None)


def connection_mistake(fault: HCloudError, name: str) -> HCloudError:
    """Return a ConfigError if the connection failed because the URL is wrong, else ``fault``."""
    for line in str(getattr(fault.__cause__, "orig", "")).splitlines():
        if any(mistake in line for mistake in _POSTGRESQL_MISTAKES):
            return ConfigError(f"{name} cannot be used: {line.strip()}", where="database")
    return fault
