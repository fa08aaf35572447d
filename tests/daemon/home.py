"""A daemon as users run it: real processes, a home of its own, the mock cloud kept in a file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.site import free_port
from tests.waiting import wait_until
from tests.warm import WARM, WarmProcess

HCLOUD = [sys.executable, "-m", "hcloud.cli.main"]
PATIENCE_S = 120.0
MOCK_SETTINGS = "{persist: true, boot: {p50_s: 0, p95_s: 0}, stop_s: 0, markets: [on_demand]}"


@dataclass(slots=True)
class Home:
    """One deployment's directory and the daemons started in it."""

    path: Path
    started: list[subprocess.Popen[bytes] | WarmProcess] = field(default_factory=list)
    program: list[str] | None = None
    """What daemons are started with, in processes that have imported nothing before; None: forks of one that has."""
    constants: dict[str, float] = field(default_factory=dict)
    """Waits of forks that are shorter than a user's, by the constants' full names."""

    def set_up(self) -> None:
        """Run ``hcloud init`` and make the mock cloud quick and lasting."""
        self.run("init", "--home", str(self.path), "--provider", "mock")
        config = self.path / "config.yaml"
        text = config.read_text()
        quick = text.replace("settings: {}", f"settings: {MOCK_SETTINGS}").replace("poll_s: 2.0", "poll_s: 0.1")
        assert quick != text
        config.write_text(quick.replace("cycle_interval_s: 1.0", "cycle_interval_s: 0.1"))

    def set_up_local(self) -> None:
        """Run ``hcloud init`` for real programs on slices of this host, on a port of its own, and make it quick."""
        self.run("init", "--home", str(self.path), "--provider", "local")
        config = self.path / "config.yaml"
        text = config.read_text().replace("127.0.0.1:8786", f"127.0.0.1:{free_port()}")
        for slow, quick in (("settings: {}", "settings: {cgroups: false}"), ("interval_s: 1.0", "interval_s: 0.1"),
                            ("poll_s: 2.0", "poll_s: 0.1")):  # fmt: skip
            assert slow in text
            text = text.replace(slow, quick)
        config.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HCLOUD_CONFIG": str(self.path / "config.yaml"), "HCLOUD_HOME": str(self.path)}

    @property
    def socket(self) -> Path:
        return self.path / "run" / "hcloud.sock"

    @property
    def log(self) -> str:
        return (self.path / "daemon.log").read_text()

    def daemon(self, *options: str, **environment: str) -> subprocess.Popen[bytes] | WarmProcess:
        """Start a daemon and wait until it answers or has ended."""
        process = self.start("daemon", *options, **environment)
        wait_until(lambda: process.poll() is not None or self.answers(), PATIENCE_S)
        return process

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes] | WarmProcess:
        """Start a command that goes on; its output goes to a log of its name."""
        known = {**self.environment, **environment}
        process: subprocess.Popen[bytes] | WarmProcess
        with (self.path / f"{command[0]}.log").open("ab") as log:
            if self.program is None:
                process = WARM.start(
                    command, cwd=Path.cwd(), environment=known, out=log, err=log, constants=self.constants
                )
            else:
                process = subprocess.Popen([*self.program, *command], env=known, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def answers(self) -> bool:
        """Return whether somebody listens on the socket."""
        with socket.socket(socket.AF_UNIX) as caller:
            return caller.connect_ex(str(self.socket)) == 0

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command and return its output; it must end with ``exit_code``."""
        done = WARM.run(
            arguments, cwd=Path.cwd(), environment=self.environment, timeout_s=PATIENCE_S, constants=self.constants
        )
        assert done.returncode == exit_code, f"{arguments}: {done.returncode} {done.stdout} {done.stderr} {self.path}"
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """Return ``hcloud status -o json``."""
        told: dict[str, Any] = json.loads(self.run("status", "-o", "json"))
        return told

    def job_state(self, job_id: str) -> str:
        """Return a job's state as the command line tells it."""
        [job] = json.loads(self.run("status", job_id, "-o", "json"))
        return str(job["state"])

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
