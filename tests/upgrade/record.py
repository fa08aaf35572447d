"""Record the home of an earlier release as a fixture: ``python -m tests.upgrade.record CHECKOUT TARGET``.

``CHECKOUT`` is a work tree of that release. Its own ``hcloud init`` makes a home, its daemon runs jobs there on the
mock cloud and is killed. Paths, host name and keys are left out; ``tests.upgrade.restore`` puts them in again.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from hcloud.core.clock import SystemClock

HOME, HOST = "@HOME@", "@HOST@"
KILLED_AT = "killed_at"
ENTRY = "from hcloud.cli.main import main; main()"
QUICK = {
    "settings: {}": "settings: {persist: true, boot: {p50_s: 0, p95_s: 0}, stop_s: 0, markets: [on_demand]}",
    "poll_s: 2.0": "poll_s: 0.1",
    "cycle_interval_s: 1.0": "cycle_interval_s: 0.1",
}
JOBS = """
{name: succeeded, command: sleep 1}
---
{name: failed, command: exit 3}
---
{name: cancelled, command: sleep 1000}
---
{name: nightly, command: sleep 1000, target: {batch: {within: 2h}}, resources: {vcpus: 2}, tags: {team: search}}
---
{name: service, command: sleep 1000, target: {service: {requests_per_s: 10, latency_ms: 50}}}
---
{name: retried, command: exit 4, retries: {exit_code: 1, backoff: 60}}
---
{name: ends-soon, command: sleep 60}
"""
CANCELLED = "job-3"


def main(checkout: Path, target: Path) -> None:
    """Run the earlier release for a few seconds and write what it left behind to ``target``."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        environment = {**os.environ, "PYTHONPATH": str(checkout), "HCLOUD_HOME": str(home)}
        command = [sys.executable, "-c", ENTRY]

        def run(*arguments: str, text: str = "") -> None:
            """Run one command of the earlier release."""
            subprocess.run([*command, *arguments], cwd=checkout, env=environment, input=text, text=True, check=True)

        run("init", "--home", str(home), "--provider", "mock")
        config = (home / "config.yaml").read_text()
        for before, after in QUICK.items():
            assert before in config
            config = config.replace(before, after)
        (home / "config.yaml").write_text(config)
        with (Path(scratch) / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen([*command, "daemon"], cwd=checkout, env=environment, stdout=log, stderr=log)
        clock = SystemClock()
        try:
            clock.wait(threading.Event(), 4.0)
            run("submit", "-y", "-q", "-", text=JOBS)
            clock.wait(threading.Event(), 4.0)
            run("cancel", CANCELLED)
            clock.wait(threading.Event(), 4.0)
            run("status")
        finally:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        _write(home, target)
        (target / KILLED_AT).write_text(f"{SystemClock().now()}\n")


def _write(home: Path, target: Path) -> None:
    database = sqlite3.connect(home / "hcloud.db")
    dump = "\n".join(database.iterdump())
    database.close()
    # SQLite writes Unix seconds with an exponent; as plain numbers they can be read, and moved to another day.
    dump = re.sub(r"\b1\.[0-9]+e\+09\b", lambda match: repr(float(match[0])), dump)
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(path for path in home.rglob("*") if path.is_file()):
        relative = file.relative_to(home)
        if relative.parts[0] in ("tls", "run") or file.name.startswith("hcloud.db") or not file.stat().st_size:
            continue
        _write_file(target / relative, file.read_text(), home)
    _write_file(target / "hcloud.sql", dump, home)


def _write_file(path: Path, text: str, home: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = f"{socket.gethostname()}:{home}"
    path.write_text(text.replace(holder, f"{HOST}:{HOME}").replace(str(home), HOME))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
