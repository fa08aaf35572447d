"""``true`` a thousand times: xargs, GNU parallel and Slurm (where installed) beside jobs and an array of HCloud, which
give each a sandbox, limits, a log and a record on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.daemon import _client, _unfinished
from bench.rows import Row
from tests.daemon.home import HCLOUD, PATIENCE_S, Home
from tests.waiting import wait_until

COUNT = int(os.environ.get("BENCH_TASKS", "1000"))
HCLOUD_COUNT = max(20, COUNT // 5)
"""So many are enough to measure a rate of tens a second."""
AT_ONCE = os.cpu_count() or 1
CPU_GOAL_MS = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run() -> Iterator[Row]:
    """Run all in turn on this machine, as many at once as it has CPUs."""
    yield _timed("xargs", lambda: _shell(f"seq {COUNT} | xargs -n 1 -P {AT_ONCE} sh -c 'exec true'"))
    if shutil.which("parallel") is None:
        print("  GNU parallel is not installed")
    else:
        yield _timed("GNU parallel", lambda: _shell(f"seq {COUNT} | parallel -j {AT_ONCE} true {{}}"))
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0:
        print("  Slurm is not installed, or its controller does not answer")
    else:
        wait = f"sbatch --wait --quiet --output /dev/null --array 1-{COUNT} --wrap true"
        yield _timed("an array of Slurm", lambda: _shell(wait))
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        home = Home(Path(made) / "home", program=HCLOUD)
        home.set_up_local()
        config = home.path / "config.yaml"
        config.write_text(config.read_text().replace("cgroups: false", "cgroups: true"))
        try:
            home.daemon()
            _until_ended(home, "jobs", 4)  # machines are up
            for what in ("jobs", "an array"):
                yield from _hcloud(home, what)
        finally:
            home.end()


def _hcloud(home: Home, what: str) -> Iterator[Row]:
    before_s, began = _cpu_s(home), time.perf_counter()
    _until_ended(home, what, HCLOUD_COUNT)
    took_s, cpu_s = time.perf_counter() - began, _cpu_s(home) - before_s
    yield Row(name=f"{HCLOUD_COUNT} `true` as {what} of HCloud", value=HCLOUD_COUNT / took_s, unit="tasks/s")
    yield Row(name="  its CPU time", value=cpu_s / HCLOUD_COUNT * 1e3, unit="ms/task", target=CPU_GOAL_MS)


def _until_ended(home: Home, what: str, count: int) -> None:
    """Submit ``count`` tasks and wait until all have succeeded."""
    size = {"vcpus": 0.9, "memory": "64MiB", "disk": "50MiB"}
    job: dict[str, object] = {"name": "bench", "command": ["true"], "resources": size}
    batch = [{"job": {**job, "array": f"0-{count - 1}"}}] if what == "an array" else [{"job": job}] * count
    with _client(home) as client:
        ids = [each["id"] for each in client.post("/v1/jobs", json=batch).raise_for_status().json()]
        wait_until(lambda: _unfinished(home) == 0, PATIENCE_S * 5, interval_s=0.1)
        last = client.get(f"/v1/jobs/{ids[-1]}").raise_for_status().json()
    assert last["state"] == "succeeded", last


def _cpu_s(home: Home) -> float:
    """Return the CPU time so far of daemon, gateway and agents, and of all that they have collected."""
    total, mark = 0, str(home.path).encode()
    for name in os.listdir("/proc"):
        try:
            folder = Path("/proc") / name
            if name.isdigit() and mark in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                total += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return total / TICKS_PER_S


def _timed(name: str, work: Callable[[], None]) -> Row:
    began = time.perf_counter()
    work()
    return Row(name=f"{COUNT:,} `true` by {name}", value=COUNT / (time.perf_counter() - began), unit="tasks/s")


def _shell(command: str) -> None:
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
