"""The daemon's targets: from submission to the result, from start to ready with a long history, and its memory."""

from __future__ import annotations

import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from bench.rows import Row
from tests.daemon.home import HCLOUD, Home
from tests.waiting import wait_until

ROUNDS = 30
HISTORY = 10_000
PATIENCE_S = 120.0


def run() -> list[Row]:
    """Measure a daemon on the mock cloud without delays, then one with a long history."""
    with _home() as home:
        home.daemon(**_as_installed(home))
        seconds = [_submit_to_result(home) for _ in range(ROUNDS)]
        memory_mib = _memory_mib(home)
        _submit(home, HISTORY)
        wait_until(lambda: _unfinished(home) == 0, 1200.0, interval_s=1.0)
        live = len(_get(home, "/v1/instances"))
        after_mib = _memory_mib(home)
        starts = [_start_to_ready(home) for _ in range(5)]
    note = f"{HISTORY + ROUNDS} jobs of history"
    return [
        Row(name="submit to result, zero cloud delay (median)", value=statistics.median(seconds), unit="s", target=1.0),
        Row(name="start to ready (median)", value=statistics.median(starts), unit="s", target=2.0, note=note),
        Row(name="memory of a small daemon", value=memory_mib, unit="MiB", target=150.0),
        Row(
            name="memory after 10,000 jobs", value=after_mib, unit="MiB", target=150.0 + live, note=f"{live} instances"
        ),
    ]


@contextmanager
def _home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory() as made:
        home = Home(Path(made) / "home")
        home.set_up()
        try:
            yield home
        finally:
            home.end()


def _as_installed(home: Home) -> dict[str, str]:
    """Let Python keep what it compiled, as it does where HCloud is installed, but beside this bench's other files."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(home.path / "compiled")}


def _client(home: Home) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(home.socket)), base_url="http://hcloud", timeout=60)


def _get(home: Home, path: str) -> list[object]:
    with _client(home) as client:
        found: list[object] = client.get(path).raise_for_status().json()
        return found


def _submit(home: Home, count: int) -> None:
    job = {"name": "bench", "command": ["true"], "resources": {"vcpus": 0.2, "memory": "64MiB", "disk": "100MiB"}}
    with _client(home) as client:
        for first in range(0, count, 1000):
            batch = [{"job": job} for _ in range(min(1000, count - first))]
            client.post("/v1/jobs", json=batch).raise_for_status()


def _unfinished(home: Home) -> int:
    with _client(home) as client:
        jobs = client.get("/v1/status").raise_for_status().json()["jobs"]
    return sum(number for state, number in jobs.items() if state not in ("succeeded", "failed", "cancelled"))


def _submit_to_result(home: Home) -> float:
    """Submit one job over the socket; return how long it took until the API tells its success."""
    began = time.perf_counter()
    _submit(home, 1)
    wait_until(lambda: _unfinished(home) == 0, PATIENCE_S, interval_s=0.01)
    return time.perf_counter() - began


def _memory_mib(home: Home) -> float:
    status = Path(f"/proc/{home.started[-1].pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _start_to_ready(home: Home) -> float:
    """Kill the daemon and start another; return how long until it answers on its socket."""
    home.started[-1].send_signal(signal.SIGKILL)
    home.started[-1].wait()
    environment = {**home.environment, **_as_installed(home)}
    began = time.perf_counter()
    with (home.path / "daemon.log").open("ab") as log:
        home.started.append(subprocess.Popen([*HCLOUD, "daemon"], env=environment, stdout=log, stderr=log))
    wait_until(home.answers, PATIENCE_S, interval_s=0.01)
    return time.perf_counter() - began
