"""What one agent that hangs costs the others: ``python -m bench stopped_agent``.

The same jobs run on one slice of this host alone, then on two of which one has its agent stopped (SIGSTOP). A daemon
with the shipped intervals, sandbox and control groups on.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from bench.mission import Stage
from bench.rows import Row
from hcloud.core.clock import holds_within

JOBS = 20
JOB = {"name": "short", "command": ["sleep", "1"]}
RESOURCES = {"vcpus": 0.5, "memory": "64MiB", "disk": "100MiB"}
SETTINGS = "{oversubscription: 4, types: {slice: {vcpus: 2, memory_mib: 768}}}"
POLICY = """
name: stopped
budgets: {per_hour_usd: 10.0, per_day_usd: 100.0}
retention: {minimum_s: 3600, maximum_s: 3600}
profiling: {when: never}
"""
STOPPED_FOR_S = 1.0
PATIENCE_S = 300.0


def run() -> list[Row]:
    """Return how long the jobs took beside a stopped agent, as a multiple of one agent alone, and the longest cycle."""
    alone_s, _ = measure(agents=1)
    beside_s, longest_s = measure(agents=2, stopped=1)
    note = f"{beside_s:.2f} s beside it, {alone_s:.2f} s alone"
    return [
        Row(
            name=f"{JOBS} jobs beside a stopped agent / alone",
            value=beside_s / alone_s,
            unit="x",
            target=1.2,
            note=note,
        ),
        Row(name="the longest cycle meanwhile", value=longest_s, unit="s", target=0.5),
    ]


def measure(agents: int, stopped: int = 0) -> tuple[float, float]:
    """Return how long the jobs took from the API's answer to the last recorded end, and the longest cycle then."""
    with deployment(agents) as site:
        processes = [pid for name in site.slices()[:stopped] for pid in agent_processes(name)]
        try:
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_FOR_S if processes else 0.0)
            with site.watched_cycles():
                began = time.perf_counter()
                site.submit(JOBS, RESOURCES, JOB["command"])
                site.until_ended()
                took_s = time.perf_counter() - began
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
    return took_s, max(site.cycles.values())


@dataclass
class Site:
    """A daemon on slices of this host."""

    home: Path
    client: httpx2.Client
    cycles: dict[float, float] = field(default_factory=dict)
    """How long each cycle that was seen took, by when it began."""

    def slices(self) -> list[Path]:
        """Return the directories of the slices that are up."""
        return sorted(self.home.glob("providers/local/instances/local-*"))

    def submit(self, count: int, resources: dict[str, Any], command: Any) -> None:
        """Submit jobs; return when the API has taken them."""
        job = {"name": "bench", "command": command, "resources": resources}
        self.client.post("/v1/jobs", json=[{"job": job} for _ in range(count)]).raise_for_status()

    def until_ended(self) -> None:
        """Wait until no job is left."""

        def ended() -> bool:
            jobs = self.client.get("/v1/status").raise_for_status().json()["jobs"]
            return not sum(count for state, count in jobs.items() if state not in ("succeeded", "failed", "cancelled"))

        if not holds_within(ended, PATIENCE_S, every_s=0.01):
            raise TimeoutError(f"not all jobs ended within {PATIENCE_S:g} s")

    @contextmanager
    def watched_cycles(self) -> Iterator[None]:
        """Note every cycle meanwhile: they are at least 50 ms apart."""
        done = threading.Event()

        def watch() -> None:
            transport = httpx2.HTTPTransport(uds=str(self.home / "run" / "hcloud.sock"))
            with httpx2.Client(transport=transport, base_url="http://hcloud", timeout=60) as client:
                while not done.wait(0.02):
                    cycle = client.get("/v1/status").raise_for_status().json()["daemon"]["cycle"]
                    self.cycles[cycle["at"]] = cycle["duration_s"]

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


@contextmanager
def deployment(agents: int) -> Iterator[Site]:
    """Run a daemon with so many idle slices."""
    home = Path(tempfile.mkdtemp(prefix="hcloud-stopped-"))
    stage = Stage(home)
    try:
        policy = home.with_suffix(".yaml")
        policy.write_text(f"{POLICY}caps: {{max_instances: {agents}}}\n")
        stage.init(policy)
        config = home / "config.yaml"
        config.write_text(config.read_text().replace("settings: {}", f"settings: {SETTINGS}"))
        stage.start("daemon")
        stage.until_daemon_answers(90)
        transport = httpx2.HTTPTransport(uds=str(home / "run" / "hcloud.sock"))
        with httpx2.Client(transport=transport, base_url="http://hcloud", timeout=60) as client:
            site = Site(home, client)
            site.submit(agents, {**RESOURCES, "vcpus": 2}, ["sleep", "2"])  # each fills a slice
            site.until_ended()
            assert len(site.slices()) == agents, site.slices()
            yield site
    finally:
        stage.take_down()
        home.with_suffix(".yaml").unlink(missing_ok=True)
        shutil.rmtree(home, ignore_errors=True)


def agent_processes(directory: Path) -> list[int]:
    """Return the link and the supervisor of a slice's agent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            bootstrap = str(directory / "bootstrap.json").encode()
            if bootstrap in words and (b"worker" in words or b"hcloud.engine.link" in words):
                found.append(int(entry.name))
    return found
