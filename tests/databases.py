"""A store on each database: SQLite in a temporary file, PostgreSQL in a private server of the test session.

The server is Debian's package, in a temporary directory, on a Unix socket, as an ordinary user (it refuses root). Where
the package is not installed, the tests of PostgreSQL do not exist and the end of the test run says so.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import make_url

from hcloud.store import Store, database
from hcloud.store.schema import metadata
from tests.waiting import wait_until

# A Unix socket's path may have 107 characters, so the server does not live in pytest's long temporary paths.
_SOCKET_ROOT = "/tmp"
_names = count(1)
SHIPPED_SYNCHRONOUS, database.SQLITE_SYNCHRONOUS = database.SQLITE_SYNCHRONOUS, "OFF"


def postgresql_binaries() -> Path | None:
    """The directory that holds PostgreSQL's own programs, or None where it is not installed."""
    found = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)]
    on_path = shutil.which("initdb")
    return found[0] if found else Path(on_path).resolve().parent if on_path else None


BINARIES = postgresql_binaries()
BACKENDS = ["sqlite", "postgresql"] if BINARIES else ["sqlite"]


class PostgresqlServer:
    """A private server that can be stopped and started again."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hcloud-pg-", dir=_SOCKET_ROOT))
        self._user = self._server_user()
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._store_url = ""
        options = ["--no-locale", "--encoding=UTF8", "--no-sync", "--auth=trust", "--username=hcloud"]
        made = self._program("initdb", *options, "-D", str(self.directory / "data")).wait(120)
        assert made == 0, (self.directory / "log").read_text()
        self.start()

    def _server_user(self) -> pwd.struct_passwd | None:
        if os.getuid() != 0:
            return None
        names = {entry.pw_name for entry in pwd.getpwall()}
        return pwd.getpwnam("postgres" if "postgres" in names else "nobody")

    def _program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        assert BINARIES is not None
        other = (
            {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        )
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                [str(BINARIES / name), *arguments], stdout=log, stderr=log, cwd=self.directory, **other
            )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.directory}",
            "fsync=off",
            "max_connections=200",
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        self._process = self._program("postgres", "-D", str(self.directory / "data"), *options)
        try:
            wait_until(self.answers, timeout_s=60)
        except TimeoutError as error:
            raise RuntimeError(f"PostgreSQL does not start: {(self.directory / 'log').read_text()}") from error

    def answers(self) -> bool:
        """Whether a client can connect now."""
        return self.psql("SELECT 1", check=False).returncode == 0

    def psql(self, sql: str, database: str = "postgres", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run SQL as the server's owner."""
        assert BINARIES is not None
        where = ["-h", str(self.directory), "-U", "hcloud", "-d", database]
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]
        return subprocess.run(
            [str(BINARIES / "psql"), *where, *options], capture_output=True, text=True, check=check, timeout=60
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server, cutting off its clients; SIGQUIT: as if its machine had lost power."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql+psycopg://hcloud@/{database}?host={self.directory}"

    def empty_database(self) -> str:
        """Make a database without tables and return its URL."""
        name = f"test{next(_names)}"
        self.psql(f"CREATE DATABASE {name}")
        return self.url(name)

    def new_database(self) -> str:
        """Return the URL of a database as the store makes it. It is always the same one, emptied: 50 times quicker."""
        if not self._store_url:
            self._store_url = self.empty_database()
            Store.open(self._store_url).close()
        # As a replica the server fires no triggers: the one way to empty the append-only log.
        tables = ", ".join(name for name in metadata.tables if name != "head")
        blank = "digest = ''"
        zeros = ", ".join(f"{column.name} = 0" for column in metadata.tables["head"].columns if not column.primary_key)
        self.psql(
            f"SET session_replication_role = replica; TRUNCATE {tables};"
            f"UPDATE head SET {zeros.replace('lease_holder = 0', 'lease_holder = NULL').replace('digest = 0', blank)}",
            make_url(self._store_url).database or "",
        )
        return self._store_url

    def close(self) -> None:
        """Stop the server and delete its directory."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """The session's server, running."""
    server = PostgresqlServer()
    yield server
    server.close()


@cache
def _file_of_new_store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Store.open(f"sqlite:///{folder}/hcloud.db").close()
        return Path(folder, "hcloud.db").read_bytes()


def sqlite_url(path: Path) -> str:
    """Return the URL of a file for a store; a new file is copied from a prepared one, to save its making."""
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_file_of_new_store())
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the store's tables and nothing in them, to be copied."""
    path = tmp_path_factory.mktemp("prepared") / "hcloud.db"
    sqlite_url(path)
    return path


@pytest.fixture(params=BACKENDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """A function that makes a database without jobs and returns its URL, once per kind of database."""
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        return server.new_database
    numbers = count(1)
    return lambda: sqlite_url(tmp_path / f"hcloud{next(numbers)}.db")


@pytest.fixture
def store_url(new_url: Callable[[], str]) -> str:
    """URL of a database without jobs, once per kind of database."""
    return new_url()


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store without jobs, once per kind of database."""
    store = Store.open(store_url)
    yield store
    store.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested."""
    if BINARIES is None:
        terminalreporter.section("NOT TESTED: PostgreSQL", sep="!", red=True, bold=True)
        terminalreporter.line(
            "The store was tested on SQLite only. As root on Debian: apt-get install postgresql", red=True
        )
