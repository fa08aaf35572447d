"""How many simulated units a daemon places, starts and ends a second on each database: ``python -m bench units``."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.daemon import PATIENCE_S, _submit, _unfinished
from bench.rows import Row
from bench.short_tasks import TICKS_PER_S
from tests.daemon.home import Home
from tests.databases import BINARIES, PostgresqlServer
from tests.waiting import wait_until

COUNT, FIRST = 2000, 20
GOALS = {"SQLite": 900.0, "PostgreSQL": 350.0}


def run() -> Iterator[Row]:
    """Yield the rate on SQLite, and on PostgreSQL where it is installed, each with the daemon's CPU time."""
    rates = {"SQLite": _rate("")}
    if BINARIES is not None:
        server = PostgresqlServer()
        try:
            rates["PostgreSQL"] = _rate(server.empty_database())
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)
    for database, (rate, cpu_ms) in rates.items():
        name = f"{COUNT:,} simulated units, daemon and {database}"
        yield Row(name=name, value=rate, unit="units/s", target=GOALS[database], better="higher")
        yield Row(name="  its CPU time", value=cpu_ms, unit="ms/unit", target=1e3 / GOALS[database])


def _rate(database: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as made:
        home = Home(Path(made) / "home")
        home.set_up()
        if database:
            config = home.path / "config.yaml"
            config.write_text(config.read_text().replace("database: null", f"database: {database}", 1))
        try:
            home.daemon()
            _until_ended(home, FIRST)
            cpu_before_s = cpu_s(home.started[-1].pid)
            took_s = _until_ended(home, COUNT)
            return COUNT / took_s, 1e3 * (cpu_s(home.started[-1].pid) - cpu_before_s) / COUNT
        finally:
            home.end()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS_PER_S


def _until_ended(home: Home, count: int) -> float:
    """Submit jobs; return after how many seconds all had ended."""
    began = time.perf_counter()
    _submit(home, count)
    wait_until(lambda: _unfinished(home) == 0, PATIENCE_S, interval_s=0.1)
    return time.perf_counter() - began
