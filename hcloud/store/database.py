"""One database: connections, its two kinds of transaction, and its errors.

A *reading* transaction sees a consistent snapshot. A *writing* one excludes all other writers: of this process by a
lock, as SQLite's own waiting is unfair; of other processes by SQLite's write lock or the lock on the row of ``head``.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Select, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hcloud.core.errors import ConfigError, StoreBusy, missing_library
from hcloud.store.faults import database_fault

SQLITE_SYNCHRONOUS = "FULL"
"""Commits survive power loss, at one fsync each. Tests turn that off: a process that is killed loses nothing by it."""
_POSTGRESQL_CONNECT = {
    "connect_timeout": 5,
    # A host that disappears with its connection open must not hold the lock on `head` for hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Database:
    """A SQLite or PostgreSQL database.

    ``crash_point`` is called with ``commit:before`` and ``commit:after`` around every commit (crash tests).
    With ``read_only`` nothing is created or changed, and connecting also fails after ``busy_timeout_s``.

    Raises:
        ConfigError: the URL is not one of a supported database, or its driver is not installed. Does not connect.
    """

    def __init__(self, url: str, busy_timeout_s: float, *, read_only: bool = False) -> None:
        self.url = parse_url(url)
        self.busy_timeout_s = busy_timeout_s
        self.read_only = read_only
        self.crash_point: Callable[[str], None] | None = None
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.path = Path(self.url.database or "") if self.is_sqlite else None
        self._texts: dict[Select[Any], tuple[str, Sequence[str] | None, Mapping[str, object]]] = {}
        self._writer_lock = threading.Lock()
        self._writer_thread: int | None = None
        self._file: tuple[int, int] | None = None
        self._engine = self._sqlite_engine() if self.is_sqlite else self._postgresql_engine()
        self._driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        self._writers = self._engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        self._readers = (
            self._engine
            if self.is_sqlite
            else self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=read_only)
        )

    @property
    def name(self) -> str:
        """Name for messages: the file, or the URL without the password."""
        return str(self.path) if self.path else without_password(self.url.render_as_string(hide_password=True))

    def close(self) -> None:
        """Close all connections. The next use opens new ones."""
        self._engine.dispose()

    # ---------------------------------------------------------------------------------------------------- transactions
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with the snapshot of its first query. Raises StoreBusy, StoreError."""
        with self._converted_faults():
            self._check_file()
            with self._readers.connect() as connection:
                yield connection

    def read_row(self, statement: Select[Any], values: Mapping[str, object] | None = None) -> tuple[Any, ...] | None:
        """Return the first row of one query of numbers and texts, or None; ``values`` are its bound parameters.

        For what every cycle asks several times: it takes a quarter of the time of a transaction. Raises StoreBusy,
        StoreError.
        """
        text, names, fixed = self._compiled(statement)
        named = fixed if values is None else {**fixed, **values}
        bound = named if names is None else [named[name] for name in names]
        with self._converted_faults():
            self._check_file()
            connection = self._engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(text, bound)
                row: tuple[Any, ...] | None = cursor.fetchone()
                cursor.close()
            except self._driver_error as error:
                connection.invalidate(error)  # the pool must not reuse it
                raise
            connection.close()
        return row

    def _compiled(self, statement: Select[Any]) -> tuple[str, Sequence[str] | None, Mapping[str, object]]:
        """Return a statement's text, the order of its parameters (None: passed by name), and their values."""
        known = self._texts.get(statement)
        if known is None:
            compiled = statement.compile(dialect=self._engine.dialect)
            known = self._texts[statement] = (str(compiled), compiled.positiontup, compiled.params)
        return known

    @contextmanager
    def writing(self, before_commit: Callable[[Connection], None] | None = None) -> Iterator[Connection]:
        """Yield a connection that may write: committed on exit, rolled back on any exception.

        ``before_commit`` runs after the body, inside the transaction. Transactions do not nest.

        Raises:
            StoreBusy: locked, full or unavailable; nothing was written. If PostgreSQL fails during the commit itself,
                everything may have been written: repeating the write then raises StaleWrite or changes nothing.
        """
        with self._exclusive_writer(), self._converted_faults():
            self._check_file()
            with self._writers.connect() as connection, _rolled_back_on_error(connection):
                connection.begin()
                yield connection
                if before_commit is not None:
                    before_commit(connection)
                self._commit(connection)

    def _commit(self, connection: Connection) -> None:
        if self.crash_point is not None:
            self.crash_point("commit:before")
        connection.commit()
        if self.crash_point is not None:
            self.crash_point("commit:after")

    @contextmanager
    def _exclusive_writer(self) -> Iterator[None]:
        me = threading.get_ident()
        if self._writer_thread == me:
            raise RuntimeError("a store transaction was started inside another one; it would deadlock")
        if not self._writer_lock.acquire(timeout=self.busy_timeout_s):
            raise StoreBusy(
                f"{self.name}: another thread has been writing for {self.busy_timeout_s:g} s; nothing was written"
            )
        self._writer_thread = me
        try:
            yield
        finally:
            self._writer_thread = None
            self._writer_lock.release()

    @contextmanager
    def _converted_faults(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise database_fault(error.orig or error, self.name, self.busy_timeout_s) from error
        except self._driver_error as error:
            raise database_fault(error, self.name, self.busy_timeout_s) from error
        except PoolTimeout as error:
            raise StoreBusy(f"{self.name}: all connections are in use; try again") from error

    # ---------------------------------------------------------------------------------------------------------- SQLite
    def _check_file(self) -> None:
        """Check that the path still names the open SQLite file; writes to a deleted file would be lost.

        Raises:
            StoreBusy: it does not. Moving the file back fixes this.
        """
        if self.path is None:
            return
        current = _identity(self.path)
        if current is None or current != self._file:
            what = "has been deleted or moved away" if current is None else "has been replaced by another file"
            raise StoreBusy(f"{self.path} {what} while in use; put it back, or restart the daemon; nothing was written")

    def prepare_file(self) -> None:
        """Create the SQLite file if it does not exist, readable by its owner only: it contains jobs' environments.

        Raises:
            ConfigError: the path cannot be used for a database.
        """
        if self.path is not None:
            self.check_directory()
            self._open_file(self.path, os.O_CREAT)

    def has_file(self) -> bool:
        """Return whether the SQLite file exists and is writable; always True for PostgreSQL. Changes nothing.

        Raises:
            ConfigError: the path cannot be used for a database.
        """
        if self.path is None:
            return True
        try:
            self._open_file(self.path, 0)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def _open_file(self, path: Path, flags: int) -> None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600))
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened for writing: {error.strerror}", where="database") from error
        self._file = _identity(path)

    def check_directory(self, state_dir: Path | None = None) -> None:
        """Check that the directory of a SQLite file exists or will: the daemon creates ``state_dir`` only.

        Directories that this user cannot see pass: the daemon may run as another user.

        Raises:
            ConfigError: it does not, reported at the key ``state_dir`` or ``database``.
        """
        if self.path is None:
            return
        parent = self.path.parent
        where = "state_dir" if parent == state_dir else "database"
        nearest, mode = _nearest_existing(parent)
        if mode is not None and not stat.S_ISDIR(mode):
            raise ConfigError(f"the directory {parent} cannot be created: {nearest} is not a directory", where=where)
        if mode is not None and nearest != parent and not (state_dir and state_dir.is_relative_to(parent)):
            raise ConfigError(f"the directory {parent} does not exist; create it or name another one", where=where)

    def check_directory_is_writable(self) -> None:
        """Check that the directory of a SQLite file is writable, for its log. Raises ConfigError."""
        if self.path is None:
            return
        directory, _ = _nearest_existing(self.path.resolve().parent)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"{self.path} cannot be used: {directory} is not writable", where="database")

    def use_write_ahead_log(self) -> None:
        """Switch SQLite to its write-ahead log: readers and writer do not block each other. Raises StoreBusy."""
        if self.is_sqlite:
            try:
                with closing(self._sqlite_connection()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.Error as error:
                raise database_fault(error, self.name, self.busy_timeout_s) from error

    def _sqlite_engine(self) -> Engine:
        engine = create_engine(self.url, creator=self._sqlite_connection, pool_size=8, max_overflow=16)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _sqlite_connection(self) -> sqlite3.Connection:
        # mode=rw does not create: a deleted database is noticed instead of being replaced by an empty one.
        mode = _reading_mode(Path(self.path or "").resolve()) if self.read_only else "mode=rw"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            timeout=self.busy_timeout_s,
            isolation_level=None,  # we begin transactions explicitly, also around DDL
            check_same_thread=False,  # the pool gives a connection to one thread at a time
        )
        with ExitStack() as undo:
            undo.callback(connection.close)  # a file that is not a database fails at the first statement
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA synchronous = {SQLITE_SYNCHRONOUS}")
            undo.pop_all()
        return connection

    # ------------------------------------------------------------------------------------------------------ PostgreSQL
    def _postgresql_engine(self) -> Engine:
        timeout_ms = int(self.busy_timeout_s * 1000)
        options = f"-c lock_timeout={timeout_ms} -c idle_in_transaction_session_timeout=30000"
        connect = _POSTGRESQL_CONNECT | {"options": options, "application_name": "hcloud"}
        if self.read_only:
            connect["connect_timeout"] = math.ceil(self.busy_timeout_s)  # whole seconds; libpq takes 1 as 2
        url = self.url.set(drivername="postgresql+psycopg")
        try:
            return create_engine(url, connect_args=connect, pool_pre_ping=True, pool_size=8, max_overflow=16)
        except ImportError as error:  # also if the package is installed but libpq is not
            raise ConfigError(
                missing_library("psycopg, the driver of PostgreSQL,", "postgres"), where="database"
            ) from error


def parse_url(url: str) -> URL:
    """Return the parsed URL of a supported database.

    Raises:
        ConfigError: it is not one; the message shows the form of one.
    """
    hint = "write sqlite:////path/to/hcloud.db or postgresql+psycopg://user@host/database"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):  # these quote the password, or a part of it
        raise ConfigError(f"{without_password(url)!r} is not a database URL; {hint}", where="database") from None
    if backend not in {"sqlite", "postgresql"}:
        raise ConfigError(
            f"HCloud keeps its state in SQLite or PostgreSQL, not in {backend!r}; {hint}", where="database"
        )
    if "@" in (parsed.host or ""):
        message = f"{without_password(url)!r} has an @ in its user or password; write it as %40"
        raise ConfigError(message, where="database")
    if backend == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise ConfigError(f"a database in memory would lose every job; {hint}", where="database")
    if backend == "sqlite" and parsed.query:
        raise ConfigError(f"a SQLite URL takes no options, here {dict(parsed.query)}; {hint}", where="database")
    return parsed


def without_password(url: str) -> str:
    """Return a database URL, valid or not, with its password hidden."""
    hidden = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|pasw|pwd)[^=&]*=)[^&]*", r"\1***", hidden)  # misspelt ones, too


def _reading_mode(path: Path) -> str:
    """Return the SQLite URI parameters that read a file without creating or changing its journal files."""
    journal, log, index = (Path(f"{path}{each}").exists() for each in ("-journal", "-wal", "-shm"))
    if journal:
        return "mode=ro"
    # If one is missing, the file is not open anywhere, and SQLite would create both for a reader and leave them.
    return "mode=ro&readonly_shm=1" if log and index else "mode=ro&immutable=1"


def _nearest_existing(directory: Path) -> tuple[Path, int | None]:
    """Return the directory or its nearest existing ancestor, with its mode; None if that is not visible."""
    for each in (directory, *directory.parents):
        try:
            return each, each.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return each, None
    return directory, None


def _begin_sqlite(connection: Connection) -> None:
    # By the driver's own connection: SQLAlchemy's way takes as long as a query.
    driver = connection.connection.driver_connection
    driver.execute(connection.get_execution_options().get("sqlite_begin", "BEGIN"))  # type: ignore[union-attr]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


@contextmanager
def _rolled_back_on_error(connection: Connection) -> Iterator[None]:
    with ExitStack() as undo:
        undo.callback(_roll_back, connection)  # also for exceptions that are not Exception
        yield
        undo.pop_all()


def _roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except DBAPIError:
        connection.invalidate()  # the pool must not reuse this connection
