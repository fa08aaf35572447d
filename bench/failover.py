"""How soon a standby daemon takes over, and its agents follow: ``python -m bench failover``.

Two daemons with the shipped intervals, each with a gateway of its own, on one database (PostgreSQL where it is
installed) and slices of this host. A job runs all the time and must be neither lost nor started again.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from bench.mission import Stage
from bench.rows import Row
from hcloud.core.clock import holds_within
from tests.databases import BINARIES, PostgresqlServer
from tests.engine.site import free_port

PATIENCE_S = 120.0
JOB = {"name": "long", "command": ["sleep", "600"], "resources": {"vcpus": 0.2, "memory": "64MiB", "disk": "100MiB"}}


class Side:
    """One daemon of two: a configuration, a process, a client."""

    def __init__(self, home: Path, name: str, listen: str, addresses: list[str], database: str) -> None:
        self.run_dir, self.log = home / f"run-{name}", home / f"{name}.log"
        text = (home / "config.yaml").read_text()
        changes = {
            "run_dir: null": f"run_dir: {self.run_dir}",
            "database: null": f"database: {database}",
            "gateway_addresses: []": f"gateway_addresses: {json.dumps(addresses)}",
        }
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new, 1)
        lines = [f"  listen: {listen}" if line.startswith("  listen: ") else line for line in text.splitlines()]
        self.config = home / f"{name}.yaml"
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None
        transport = httpx2.HTTPTransport(uds=str(self.run_dir / "hcloud.sock"))
        self.client = httpx2.Client(transport=transport, base_url="http://hcloud", timeout=10)

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        command = [sys.executable, "-m", "hcloud.cli.main", "daemon", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.until(lambda daemon: True)

    def end(self, how: signal.Signals) -> None:
        """End the daemon."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def status(self) -> dict[str, Any]:
        """Return what it says of itself; empty while it does not answer."""
        try:
            found: dict[str, Any] = self.client.get("/v1/status").raise_for_status().json()["daemon"]
        except httpx2.HTTPError:
            return {}
        return found

    def until(self, condition: Any) -> float:
        """Return when its status met a condition."""
        if not holds_within(lambda: (status := self.status()) and condition(status), PATIENCE_S, every_s=0.02):
            raise TimeoutError(f"{self.config.name}: {self.status()}\n{self.log.read_text()[-2000:]}")
        return time.perf_counter()


def run() -> list[Row]:
    """Return how long a standby took to lead and to have its agents, after KILL and after TERM."""
    home = Path(tempfile.mkdtemp(prefix="hcloud-failover-"))
    stage = Stage(home)
    try:
        with _database(home) as database:
            stage.init()
            return list(_measured(home, database))
    finally:
        stage.take_down()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _database(home: Path) -> Iterator[str]:
    if BINARIES is None:
        yield f"sqlite:///{home}/shared.db"
        return
    server = PostgresqlServer()
    try:
        yield server.empty_database()
    finally:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


def _measured(home: Path, database: str) -> Iterator[Row]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    sides = [Side(home, name, listen, addresses, database) for name, listen in zip("ab", addresses, strict=True)]
    leader, standby = sides
    try:
        leader.start()
        leader.until(lambda daemon: daemon["leader"])
        leader.client.post("/v1/jobs", json=[{"job": JOB}]).raise_for_status()
        leader.until(lambda daemon: daemon["engine"].get("workers"))
        for how, target_s in ((signal.SIGKILL, 6.0), (signal.SIGTERM, 0.5)):
            standby.start()
            _until_running(leader)
            began = time.perf_counter()
            assert leader.process is not None
            leader.process.send_signal(how)  # its end is not waited for: it leads no more before that
            led_s = standby.until(lambda daemon: daemon["leader"]) - began
            heard_s = standby.until(lambda daemon: daemon["engine"].get("workers")) - began
            yield Row(
                name=f"fail-over after {how.name}, until the standby leads", value=led_s, unit="s", target=target_s
            )
            yield Row(name=f"fail-over after {how.name}, until its agents answer", value=heard_s, unit="s")
            leader.end(signal.SIGKILL)
            leader, standby = standby, leader
        events = leader.client.get("/v1/events", params={"kind": "unit_started", "limit": 100}).json()
        yield Row(name="starts of the job that ran all the time", value=len(events), unit="", target=1.0)
    finally:
        for side in sides:
            side.end(signal.SIGKILL)


def _until_running(side: Side) -> None:
    def running() -> bool:
        return bool(side.client.get("/v1/status").json()["jobs"].get("running"))

    if not holds_within(running, PATIENCE_S, every_s=0.05):
        raise TimeoutError(side.log.read_text()[-2000:])
