"""How long the shortest job takes on a machine that is there: ``python -m bench warm``.

A daemon with the shipped configuration on slices of this host, sandbox and control groups on.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import httpx2

from bench.mission import Stage
from bench.rows import Row
from hcloud.core.clock import holds_within

ROUNDS, MANY = 30, 200
JOB = {"name": "warm", "command": ["true"], "resources": {"vcpus": 0.2, "memory": "64MiB", "disk": "100MiB"}}
PATIENCE_S = 300.0


def run() -> list[Row]:
    """Return the time from the API's answer to the recorded end, and the rate of many jobs at once."""
    home = Path(tempfile.mkdtemp(prefix="hcloud-warm-"))
    stage = Stage(home)
    try:
        stage.init()
        stage.start("daemon")
        stage.until_daemon_answers(90)
        transport = httpx2.HTTPTransport(uds=str(home / "run" / "hcloud.sock"))
        with httpx2.Client(transport=transport, base_url="http://hcloud", timeout=60) as client:
            _until_ended(client, _submitted(client, 1))
            took_s = [_until_ended(client, _submitted(client, 1)) for _ in range(ROUNDS)]
            many_s = _until_ended(client, _submitted(client, MANY), every_s=0.1)  # asking costs the daemon time
    finally:
        stage.take_down()
        shutil.rmtree(home, ignore_errors=True)
    median_s, worst_s = statistics.median(took_s), max(took_s)
    return [
        Row(name="warm `true`, API 201 to the recorded end (p50)", value=median_s, unit="s", target=0.25),
        Row(name="the slowest of them", value=worst_s, unit="s"),
        Row(name=f"{MANY} x `true` on local", value=MANY / many_s, unit="jobs/s", target=25.0, better="higher"),
    ]


def _submitted(client: httpx2.Client, count: int) -> float:
    """Submit ``count`` jobs; return when the API had taken them."""
    client.post("/v1/jobs", json=[{"job": JOB} for _ in range(count)]).raise_for_status()
    return time.perf_counter()


def _until_ended(client: httpx2.Client, began: float, every_s: float = 0.01) -> float:
    def ended() -> bool:
        jobs = client.get("/v1/status").raise_for_status().json()["jobs"]
        return not sum(count for state, count in jobs.items() if state not in ("succeeded", "failed", "cancelled"))

    if not holds_within(ended, PATIENCE_S, every_s=every_s):
        raise TimeoutError(f"not all jobs ended within {PATIENCE_S:g} s")
    return time.perf_counter() - began
