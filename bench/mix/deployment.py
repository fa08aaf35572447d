"""A deployment as a user would make it, in a temporary directory: daemon, two reserved slices."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hcloud.config import load_policy
from hcloud.core.clock import holds_within
from providers.local.slices import SliceDirectory

SERVERS = 2
SETTINGS = f"{{reserved: {{local.medium: {SERVERS}}}, boot_delay_s: 1}}"
POLICY = """\
name: mix
allow: {{markets: [reserved{profiling_market}]}}
placement: {{order: {order}}}
profiling:
  enabled: {profiling}
  max_concurrent: 1
  run_s: 4
  total_s: 60
  max_share_of_slack: 1
  skip_if_shorter_than_s: 1
retention: {{maximum_s: 5}}
timing: {{sample_every_s: 2}}
"""
PATIENCE_S = 900.0
ENDED = ("succeeded", "failed", "cancelled")


class Deployment:
    """Processes and files of one deployment in ``home``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HCLOUD_")}
        self._environment = {**kept, "HCLOUD_HOME": str(home), "HCLOUD_CONFIG": str(home / "config.yaml")}

    def hcloud(self, *words: str) -> str:
        """Run one command and return what it printed. Raises RuntimeError where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "hcloud.cli.main", *words],
            env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"hcloud {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def begin(self) -> None:
        """Make the files, then start the daemon."""
        self.hcloud("init", "--home", str(self.home))
        config = self.home / "config.yaml"
        text = config.read_text().replace("settings: {}", f"settings: {SETTINGS}", 1)
        text = re.sub(r"^policy: .*$", "policy: policies/mix.yaml", text, count=1, flags=re.MULTILINE)
        config.write_text(re.sub(r"^  listen: .*$", f"  listen: 127.0.0.1:{_free_port()}", text, flags=re.MULTILINE))
        self.follow("least_loaded", profiling=True)
        for name in ("daemon",):
            with (self.home / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "hcloud.cli.main", name]
                started = subprocess.Popen(command, env=self._environment, cwd=self.home, stdout=log, stderr=log)
                self._processes.append(started)
        self._until(lambda: self._answers(), 60)

    def _answers(self) -> bool:
        with suppress(RuntimeError):
            self.hcloud("status")
            return True
        return False

    def follow(self, order: str, *, profiling: bool) -> None:
        """Put another policy in force: an order of placement; only with ``profiling`` may anything be rented."""
        words = ("auto", "") if not profiling else ("always", ", on_demand")
        text = POLICY.format(order=order, profiling=words[0] if profiling else "never", profiling_market=words[1])
        context = self.home / "policies" / ".mix.yaml"
        context.write_text(text)
        self.hcloud("policy", "check", str(context))
        wanted = load_policy(context.replace(context.with_name("mix.yaml"))).digest
        self._until(lambda: not self._processes or self._digest() == wanted, 60)

    def _digest(self) -> str:
        """Return which policy is in force."""
        return str(json.loads(self.hcloud("status", "-o", "json"))["daemon"]["daemon"]["policy"]["digest"])

    def submit(self, file: Path) -> str:
        """Submit one job; return its id."""
        return self.hcloud("submit", "-y", "-q", str(file)).split()[0]

    def wait(self, jobs: Sequence[str]) -> Sequence[dict[str, Any]]:
        """Return the jobs once all of them have ended. Raises RuntimeError where one did not succeed."""
        found: list[dict[str, Any]] = []

        def over() -> bool:
            """Ask for all jobs; whether each has ended."""
            found[:] = json.loads(self.hcloud("status", *jobs, "-o", "json"))
            return all(job["state"] in ENDED for job in found)

        self._until(over, PATIENCE_S)
        bad = [job for job in found if job["state"] != "succeeded"]
        if bad:
            raise RuntimeError(f"{bad[0]['id']} {bad[0]['state']}: {self.hcloud('logs', bad[0]['id'])}")
        return found

    def took_s(self, job: str) -> float:
        """Return how long the job says that its work took."""
        told = re.findall(r"took ([0-9.]+)", self.hcloud("logs", job))
        return float(told[-1])

    def _until(self, holds: Any, timeout_s: float) -> None:
        if not holds_within(holds, timeout_s, every_s=0.5):
            raise RuntimeError(f"nothing came of it in {timeout_s:.0f} s: {self.hcloud('status')}")

    def end(self) -> None:
        """End every process."""
        for process in self._processes:
            process.kill()
            process.wait()
        for path in self.home.glob("providers/local/instances/local-*"):
            SliceDirectory(path).power_off(reason="the benchmark is over", at=0.0)


@contextmanager
def deployed() -> Iterator[Deployment]:
    """Yield a deployment at work; nothing of it is left."""
    with TemporaryDirectory(prefix="hcloud-mix-", ignore_cleanup_errors=True) as made:
        deployment = Deployment(Path(made) / "home")
        try:
            deployment.begin()
            yield deployment
        finally:
            deployment.end()


def _free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if not 9100 <= port <= 9999:
            return port
