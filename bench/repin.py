"""``python -m bench.repin``: a service and a memory hog on one machine of ``local``, each bound to CPU 0 by itself.

Says how long after the hog's start the service is pinned to another CPU, and when it is back in its latency.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.rows import machine
from demo.stage import Stage
from hcloud.core.clock import SystemClock, holds_within

BOUND_MS, REQUESTS_PER_S, WORK_MS, WINDOW_S = 50.0, 100.0, 6.0, 0.5
LOOK_S = 4.0
"""Each look at the log is a program on the same two CPUs; what is read has its own times."""
SERVICE = f"""
import hashlib, json, os, time
os.sched_setaffinity(0, {{0}})
block, rounds = b"x" * 16384, 1
while True:
    began = time.thread_time()
    for _ in range(rounds):
        hashlib.sha256(block).digest()
    if time.thread_time() - began >= {WORK_MS / 1000}:
        break
    rounds += 1 + rounds // 8
due, window, served = time.monotonic(), time.monotonic(), []
while True:
    due += {1 / REQUESTS_PER_S}
    time.sleep(max(0.0, due - time.monotonic()))
    for _ in range(rounds):
        hashlib.sha256(block).digest()
    now = time.monotonic()
    served.append(1000 * (now - due))
    if now >= window + {WINDOW_S}:
        served.sort()
        p99 = served[min(len(served) - 1, int(0.99 * len(served)))]
        found = {{"requests_per_s": len(served) / (now - window), "latency_ms": {{"99": p99}}}}
        with open("stats.new", "w") as file:
            json.dump(found, file)
        os.rename("stats.new", "stats.json")
        print(f"{{time.time():.3f}} {{p99:.3f}} {{','.join(map(str, sorted(os.sched_getaffinity(0))))}}", flush=True)
        window, served = now, []
"""
HOG = """
import os
os.sched_setaffinity(0, {0})
held = bytearray(64 << 20)
while True:
    for at in range(0, len(held), 4096):
        held[at] += 1 if held[at] < 255 else -255
"""
POLICY: dict[str, Any] = {
    "name": "repin",
    "allow": {"instance_types": ["local.large"], "markets": ["on_demand"]},
    "placement": {"order": "least_loaded"},
    "admission": {"queues": "one"},
    "provisioning": {"strategy": "best_value"},
    "profiling": {"when": "never"},
}


def service(every_s: float) -> dict[str, Any]:
    """Return the service as a job file; its metrics are read every ``every_s`` seconds."""
    target = {"requests_per_s": REQUESTS_PER_S, "latency_ms": BOUND_MS, "percentile": 99}
    return {
        "name": "service",
        "command": ["python3", "-c", SERVICE],
        "target": {"service": target},
        "metrics": {"probe": ["cat", "stats.json"], "every": every_s},
        "resources": {"vcpus": 1, "memory": "128MiB", "disk": "50MiB"},
    }


def hog() -> dict[str, Any]:
    """Return the hog as a job file."""
    resources = {"vcpus": 1, "memory": "128MiB", "disk": "50MiB"}
    return {"name": "hog", "command": ["python3", "-c", HOG], "target": "best_effort", "resources": resources}


def readings(log: str) -> list[tuple[float, float, str]]:
    """Return what the service wrote: time, p99 in ms, and the CPUs on which it ran."""
    lines = (line.split() for line in log.splitlines())
    return [(float(at), float(p99), cpus) for at, p99, cpus in (each for each in lines if len(each) == 3)]


class RepinRun:
    """One deployment with the two jobs."""

    def __init__(self, folder: Path, every_s: float, weight: int = 0) -> None:
        self.folder, self.every_s, self.weight, self.stage = folder, every_s, weight, Stage(folder / "home")

    def begin(self) -> None:
        """Start the daemon and the service."""
        (self.folder / "policy.yaml").write_text(json.dumps(POLICY))
        self.stage.init(self.folder / "policy.yaml")
        self.stage.start("daemon")
        self.stage.until_daemon_answers(60.0)
        self.service = self.submit(service(self.every_s))
        for group in self.groups() if self.weight else ():
            for each in (group, group.parent):
                (each / "cpu.shares").write_text(str(self.weight))
        if not holds_within(lambda: len(self.readings()) > 4, 120.0, every_s=0.5):
            raise RuntimeError("the service does not run")

    def groups(self) -> list[Path]:
        """Return the machine's control groups (version 1), once it is there."""
        found: list[Path] = []

        def is_there() -> bool:
            names = [each.name for each in self.stage.home.glob("providers/local/instances/local-*")]
            found[:] = [each for name in names for each in Path("/sys/fs/cgroup").glob(f"cpu*/**/{name}")]
            return any((each / "cpu.shares").exists() for each in found)

        holds_within(is_there, 60.0, every_s=0.5)
        return [each for each in found if (each / "cpu.shares").exists()]

    def submit(self, job: dict[str, Any]) -> str:
        """Submit a job; return its id."""
        path = self.folder / f"{job['name']}.json"
        path.write_text(json.dumps(job))
        return self.stage.hcloud("submit", "-y", "-q", str(path)).split()[0]

    def readings(self) -> list[tuple[float, float, str]]:
        """Return the service's readings so far."""
        return readings(self.stage.hcloud("logs", self.service))

    def disturb(self, patience_s: float) -> float | None:
        """Start the hog; return when it started (Unix seconds) once the service has been pinned elsewhere, or None."""
        name = self.submit(hog())

        def is_over() -> bool:
            late = [each for each in self.readings() if each[2] != "0"]
            return len(late) > 12

        done = holds_within(is_over, patience_s, every_s=LOOK_S)
        (row,) = json.loads(self.stage.hcloud("status", name, "-o", "json"))
        started_at = row["attempt"]["allocations"][0]["started_at"] if row["attempt"] else None
        return float(started_at) if done and started_at is not None else None


def main() -> int:
    """Run it; 1: the service was not pinned, or not within the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between readings of the service's latency")
    parser.add_argument("--settle", type=float, default=40.0, help="seconds that the service runs before the hog")
    parser.add_argument("--goal", type=float, default=5.0, help="seconds within which it is to be pinned")
    parser.add_argument("--weight", type=int, default=0, help="CPU shares of the machine, against this host's programs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hcloud-repin-"))
    run = RepinRun(folder, options.every, options.weight)
    print(machine())
    try:
        run.begin()
        began_at = SystemClock().now()
        holds_within(lambda: SystemClock().now() >= began_at + options.settle, 2 * options.settle, every_s=0.5)
        quiet = [p99 for at, p99, _ in run.readings() if at >= began_at + options.settle / 2]
        started_at = run.disturb(120.0)
        told = run.readings()
        if started_at is None:
            print(f"never pinned elsewhere; last readings {told[-5:]}")
            return 1
        return report(options.goal, quiet, told, started_at, run)
    finally:
        run.stage.take_down()
        shutil.rmtree(folder, ignore_errors=True)


def report(
    goal_s: float, quiet: list[float], told: list[tuple[float, float, str]], started_at: float, run: RepinRun
) -> int:
    """Print what was measured; 1: later than the goal."""
    after = [each for each in told if each[0] > started_at]
    late_at = next((at for at, p99, _ in after if p99 > BOUND_MS), started_at)
    elsewhere_at = next(at for at, _, cpus in after if cpus != "0")
    back_at = next((at for at, p99, _ in after if at > elsewhere_at and p99 <= BOUND_MS), None)
    worst = max(p99 for _, p99, _ in after)
    events = json.loads(run.stage.hcloud("events", "--kind", "correction", "-o", "json"))
    made = next((each for each in events if each["fields"]["step"] == "repin"), None)
    median = sorted(quiet)[len(quiet) // 2]
    print(f"p99 before: {median:.1f} ms (median), bound {BOUND_MS:g} ms, worst after: {worst:.0f} ms")
    print(f"over its bound {late_at - started_at:.1f} s after the hog's start (in windows of {WINDOW_S:g} s)")
    if made is not None:
        print(f"decided {made['at'] - started_at:.1f} s after it: {made['fields']['text']}")
    print(f"runs elsewhere {elsewhere_at - started_at:.1f} s after it (goal {goal_s:g} s)")
    print(
        f"back in its bound {back_at - started_at:.1f} s after it" if back_at is not None else "not back in its bound"
    )
    return int(elsewhere_at - started_at > goal_s or back_at is None)


if __name__ == "__main__":
    sys.exit(main())
