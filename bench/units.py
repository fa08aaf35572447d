"""How many simulated units a daemon places, starts and ends a second on each database: ``python -m bench units``."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from bench.daemon import PATIENCE_S, _submit, _unfinished
from bench.rows import Row
from tests.daemon.home import Home
from tests.databases import BINARIES, PostgresqlServer
from tests.waiting import wait_until

COUNT, FIRST = 2000, 20
GOALS = {"SQLite": 500.0, "PostgreSQL": 350.0}


def run() -> list[Row]:
    """Return the rate on SQLite, and on PostgreSQL where it is installed."""
    rates = {"SQLite": _rate("")}
    if BINARIES is not None:
        server = PostgresqlServer()
        try:
            rates["PostgreSQL"] = _rate(server.empty_database())
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)
    return [
        Row(
            name=f"{COUNT:,} simulated units, daemon and {database}",
            value=rate,
            unit="units/s",
            target=GOALS[database],
            better="higher",
        )
        for database, rate in rates.items()
    ]


def _rate(database: str) -> float:
    with tempfile.TemporaryDirectory() as made:
        home = Home(Path(made) / "home")
        home.set_up()
        if database:
            config = home.path / "config.yaml"
            config.write_text(config.read_text().replace("database: null", f"database: {database}", 1))
        try:
            home.daemon()
            _until_ended(home, FIRST)
            return COUNT / _until_ended(home, COUNT)
        finally:
            home.end()


def _until_ended(home: Home, count: int) -> float:
    """Submit jobs; return after how many seconds all had ended."""
    began = time.perf_counter()
    _submit(home, count)
    wait_until(lambda: _unfinished(home) == 0, PATIENCE_S, interval_s=0.1)
    return time.perf_counter() - began
