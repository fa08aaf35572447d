"""``true`` a thousand times: xargs, GNU parallel and Slurm beside jobs and an array of HCloud: with a sandbox, limits,
a log and a record on disk for each. Slurm and HCloud have as many slots as the other, and are asked once for all.

Debian's packages: ``parallel``, ``slurmctld``, ``slurmd``, ``slurm-client``, ``munge``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.daemon import _client, _unfinished
from bench.rows import Row
from bench.slurm import missing_programs, slurm
from tests.daemon.home import HCLOUD, PATIENCE_S, Home
from tests.waiting import wait_until

COUNT = int(os.environ.get("BENCH_TASKS", "1000"))
AT_ONCE = os.cpu_count() or 1
SLOTS = 64
"""As many run at once in Slurm and HCloud: with one for each CPU, both wait most of the time."""
CPU_GOAL_MS = 20.0
PARTS = {
    "gateway": b"hcloud.engine.gateway",
    "agents' links": b"hcloud.engine.link",
    "workers and units": b"\0worker\0",
}
"""What command lines hold; the rest is the daemon."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run() -> Iterator[Row]:
    """Run all in turn on this machine: shells with as many at once as it has CPUs, the others with ``SLOTS``."""
    yield _timed("xargs", lambda: _shell(f"seq {COUNT} | xargs -n 1 -P {AT_ONCE} sh -c 'exec true'"))
    if shutil.which("parallel") is None:
        print("  GNU parallel is not installed")
    else:
        yield _timed("GNU parallel", lambda: _shell(f"seq {COUNT} | parallel -j {AT_ONCE} true {{}}"))
    beside = None
    if missing := missing_programs():
        print(f"  Slurm is not measured: there is no {', '.join(missing)}")
    else:
        with slurm(SLOTS) as environment:
            wait = f"sbatch --wait --quiet --output /dev/null --array 1-{COUNT} --wrap true"
            row = _timed("Slurm, an array", lambda: _shell(wait, environment))
        beside = row.value
        yield row
    with home_with_cgroups() as home:
        home.daemon()
        _until_ended(home, "jobs", SLOTS)  # machines are up, as that of Slurm is
        for what in ("jobs", "an array"):
            yield from _hcloud(home, what, beside)


@contextmanager
def home_with_cgroups() -> Iterator[Home]:
    """A home whose machines have sandbox and control groups; all that runs there ends with it."""
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        home = Home(Path(made) / "home", program=HCLOUD)
        home.set_up_local()
        config = home.path / "config.yaml"
        config.write_text(config.read_text().replace("cgroups: false", "cgroups: true"))
        try:
            yield home
        finally:
            _end(home)


def _hcloud(home: Home, what: str, beside: float | None) -> Iterator[Row]:
    """Yield the rate, also as a multiple of ``beside`` (tasks a second), and the CPU time of each task."""
    meter = CpuMeter(home)
    before_s, began = meter.read_s(), time.perf_counter()
    _until_ended(home, what, COUNT, meter)
    took_s, after_s = time.perf_counter() - began, meter.read_s()
    spent_ms = {part: (after_s[part] - before_s[part]) / COUNT * 1e3 for part in after_s}
    yield Row(name=f"{COUNT:,} `true` as {what} of HCloud", value=COUNT / took_s, unit="tasks/s")
    if beside is not None:
        yield Row(name="  beside Slurm", value=COUNT / took_s / beside, unit="x", target=1.0, better="higher")
    yield Row(name="  its CPU time", value=sum(spent_ms.values()), unit="ms/task", target=CPU_GOAL_MS)
    for part, milliseconds in spent_ms.items():
        yield Row(name=f"    of it {part}", value=milliseconds, unit="ms/task")


def _until_ended(home: Home, what: str, count: int, meter: CpuMeter | None = None) -> None:
    """Submit ``count`` tasks and wait until all have succeeded; read ``meter`` meanwhile, as machines may end."""
    size = {"vcpus": AT_ONCE / SLOTS, "memory": "16MiB", "disk": "50MiB"}
    job: dict[str, object] = {"name": "bench", "command": ["true"], "resources": size}
    batch = [{"job": {**job, "array": f"0-{count - 1}"}}] if what == "an array" else [{"job": job}] * count
    with _client(home) as client:
        ids = [each["id"] for each in client.post("/v1/jobs", json=batch).raise_for_status().json()]

        def is_over() -> bool:
            if meter is not None:
                meter.read_s()
            return _unfinished(home) == 0

        wait_until(is_over, PATIENCE_S * 5, interval_s=0.5)  # looks cost the daemon time, too
        last = client.get(f"/v1/jobs/{ids[-1]}").raise_for_status().json()
    assert last["state"] == "succeeded", last


class CpuMeter:
    """CPU time by part of a home, with that of processes that have ended since it was read before."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen: dict[tuple[int, str], tuple[str, float]] = {}
        """By process id and start, its part and CPU time when it was read last."""
        self._parents: dict[int, int] = {}
        self._ended_s = dict.fromkeys([*PARTS, "daemon"], 0.0)

    def read_s(self) -> dict[str, float]:
        """Return the CPU time so far by part, each process with all children that it has collected."""
        seen: dict[tuple[int, str], tuple[str, float]] = {}
        parents: dict[int, int] = {}
        for pid, command in _processes(self._home):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                part = next((part for part, mark in PARTS.items() if mark in command), "daemon")
                seen[pid, fields[19]] = part, sum(map(int, fields[11:15])) / TICKS_PER_S
                parents[pid] = int(fields[1])
        for key, (part, cpu_s) in self._seen.items():
            if key not in seen and not self._is_collected(key[0], parents):
                self._ended_s[part] += cpu_s
        self._seen, self._parents = seen, parents
        total = dict(self._ended_s)
        for part, cpu_s in seen.values():
            total[part] += cpu_s
        return total

    def _is_collected(self, pid: int, alive: Mapping[int, int]) -> bool:
        """Return whether the CPU time of a process that has ended counts with one that lives."""
        parent = self._parents.get(pid)
        while parent is not None and parent not in alive:
            parent = self._parents.get(parent)
        return parent is not None


def _processes(home: Home) -> Iterator[tuple[int, bytes]]:
    """Yield id and command line of every process of this home."""
    mark = str(home.path).encode()
    for name in os.listdir("/proc"):
        with suppress(OSError):
            folder = Path("/proc") / name
            if name.isdigit() and mark in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                yield int(name), (folder / "cmdline").read_bytes()


def _end(home: Home) -> None:
    """End the daemon, and its machines, which would outlive it until their lease ends."""
    left = list(_processes(home))
    home.end()
    for pid, _ in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _timed(name: str, work: Callable[[], None]) -> Row:
    began = time.perf_counter()
    work()
    return Row(name=f"{COUNT:,} `true` by {name}", value=COUNT / (time.perf_counter() - began), unit="tasks/s")


def _shell(command: str, environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL, env=environment)
