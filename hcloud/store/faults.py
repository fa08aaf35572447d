"""What went wrong in the database, in words: which error it calls for and one sentence for the user."""

from __future__ import annotations

import sqlite3

from hcloud.core.errors import ConfigError, HCloudError, StoreBusy, StoreDamaged, StoreError

# SQLite's error names, by beginning; the longer ones first.
_SQLITE_BUSY = {
    "SQLITE_BUSY": "is locked by another process (waited {timeout:g} s)",
    "SQLITE_LOCKED": "is locked by another process (waited {timeout:g} s)",
    "SQLITE_FULL": "cannot grow: the disk is full",
    "SQLITE_IOERR": "cannot be read or written (disk trouble: {detail})",
    "SQLITE_CANTOPEN": "cannot be opened (deleted, or its disk is gone)",
    "SQLITE_READONLY_ROLLBACK": "was left half-changed by a program that was killed; the daemon mends it at its start",
    "SQLITE_READONLY": "cannot be written (read-only file or disk)",
    "SQLITE_PROTOCOL": "is being locked by too many processes",
}
# PostgreSQL's SQLSTATE, by beginning; the longer ones first.
_POSTGRESQL_BUSY = {
    "53100": "cannot grow: its disk is full",
    "53": "has no resources left: {detail}",
    "55P03": "is locked by another process (waited {timeout:g} s)",
    "57": "is shutting down or starting: {detail}",
    "25P03": "ended a transaction that stood still too long",
    "25006": "is read-only (a standby server)",
    "08": "does not answer: {detail}",
    "40": "had a conflict with another process: {detail}",
    "58": "cannot read or write its files: {detail}",
}
_CONNECTION_ERRORS = {"OperationalError", "InterfaceError", "ConnectionTimeout"}
# What a refused first connection says; psycopg gives no SQLSTATE then.
_POSTGRESQL_MISTAKES = ("does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry",
                        "could not translate host name", "invalid connection option")  # fmt: skip


def sentence(raised: BaseException) -> str:
    """Return the first line of the driver's own message."""
    return (str(raised).strip() or repr(raised)).splitlines()[0]


def database_fault(raised: BaseException, name: str, timeout_s: float) -> HCloudError:
    """Return the error that what the driver ``raised`` calls for: StoreBusy for what may pass, ConfigError for what
    must be mended, StoreDamaged where it is, plain StoreError for a bug: a row or statement that it refuses."""
    text = _passing_fault(raised)
    if text is not None:
        return StoreBusy(
            f"database {name} {text.format(timeout=timeout_s, detail=sentence(raised))}; nothing was written"
        )
    code = getattr(raised, "sqlite_errorname", None)
    if code == "SQLITE_NOTADB":
        return ConfigError(f"{name} is not a SQLite database; name another file", where="database")
    if code is not None and code.startswith("SQLITE_CORRUPT"):
        return StoreDamaged(f"database {name} is damaged ({sentence(raised)}); stop the daemon and restore a copy")
    return StoreError(f"database {name}: {sentence(raised)}; nothing was written")


def _passing_fault(raised: BaseException) -> str | None:
    if isinstance(raised, sqlite3.Error):
        return _by_beginning(_SQLITE_BUSY, getattr(raised, "sqlite_errorname", ""))
    state = getattr(raised, "sqlstate", None)
    if state is not None:
        return _by_beginning(_POSTGRESQL_BUSY, state)
    # Without a state the server never spoke: the connection could not be made, or broke.
    return "does not answer: {detail}" if type(raised).__name__ in _CONNECTION_ERRORS else None


def _by_beginning(table: dict[str, str], code: str) -> str | None:
    return next((text for beginning, text in table.items() if code.startswith(beginning)), None)


def connection_mistake(fault: HCloudError, name: str) -> HCloudError:
    """Return a ConfigError where a database that does not answer never will, as the URL is wrong; else ``fault``."""
    said = str(getattr(fault.__cause__, "orig", "")).splitlines()
    for line in said:
        if any(mistake in line for mistake in _POSTGRESQL_MISTAKES):
            return ConfigError(f"{name} cannot be used: {line.strip()}", where="database")
    return fault
