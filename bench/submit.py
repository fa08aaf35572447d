"""Submission through the real socket into the real SQLite store: one job per request, thousands per request, and the
whole ``hcloud submit`` command as a person waits for it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.rows import Row
from hcloud.client.connection import Connection, Endpoint
from tests.api.deployment import Deployment

SINGLE = 600
BATCHES, BATCH = 5, 2000
COMMANDS = 7


def run() -> list[Row]:
    """Measure with the server in a process of its own."""
    with _server() as socket:
        client = Connection(Endpoint(socket=socket))
        client.post("/v1/jobs", [_job()])  # what is made on first use
        single = _rate(SINGLE, lambda: client.post("/v1/jobs", [_job()]))
        requests = [[_job() for _ in range(BATCH)] for _ in range(BATCHES)]
        pending = iter(requests)
        batched = _rate(BATCHES, lambda: client.post("/v1/jobs", next(pending))) * BATCH
        command_s = statistics.median(_command_s(socket) for _ in range(COMMANDS))
    return [
        Row(name="submit, one job per request", value=single, unit="jobs/s", target=200, better="higher"),
        Row(name=f"submit, {BATCH} jobs per request", value=batched, unit="jobs/s", target=2000, better="higher"),
        Row(name="hcloud submit -q, whole command", value=command_s * 1000, unit="ms", note="median"),
    ]


def _job() -> dict[str, Any]:
    job = {"name": "bench", "command": ["sort", "-u", "big.txt"], "target": {"batch": {"within": "10m"}},
           "resources": {"vcpus": 1, "memory": "1GiB"}, "tags": {"team": "search"}}  # fmt: skip
    return {"job": job, "token": str(uuid.uuid4())}


def _rate(count: int, act: Any) -> float:
    began = time.perf_counter()
    for _ in range(count):
        act()
    return count / (time.perf_counter() - began)


def _command_s(socket: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "hcloud.cli.main", "submit", "-q", "--", "true"]
    subprocess.run(command, env={**os.environ, "HCLOUD_SOCKET": str(socket)}, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


@contextmanager
def _server() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as home:
        server = subprocess.Popen(
            [sys.executable, "-m", "bench.submit", home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield Path(server.stdout.readline().strip())
        finally:
            server.stdin.close()  # its sign to end
            server.wait(60)


def _serve(home: Path) -> None:
    deployment = Deployment(home)
    with deployment.served() as server:
        print(server.socket_path, flush=True)
        sys.stdin.read()
    deployment.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
