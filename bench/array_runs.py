"""Ten thousand times `true` as one array on this machine: a real daemon, real sandboxes, many tasks in a unit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.arrays import DATABASE_GOAL_BYTES, MEMORY_GOAL_MIB, TASKS, TASKS_GOAL_PER_S, used_bytes
from bench.rows import Row
from bench.short_tasks import CpuMeter, home_with_cgroups
from hcloud.core.model import EventKind, JobState
from hcloud.store import Store
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until


def run() -> Iterator[Row]:
    """Run one small array, so that machines are up and programs loaded, then the large one."""
    with home_with_cgroups() as home:
        daemon = home.daemon()
        with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
            _submit(home, store, 100)
            yield from _measured(home, store, daemon.pid)


def _measured(home: Home, store: Store, daemon: int) -> Iterator[Row]:
    database, memory_before = home.path / "hcloud.db", _resident_mib(daemon)
    meter = CpuMeter(home)
    bytes_before, cpu_before_s = used_bytes(database), meter.read_s()
    took_s = _submit(home, store, TASKS, meter)
    memory, cpu_s = _resident_mib(daemon) - memory_before, meter.read_s()
    name = f"{TASKS:,} `true` as one array, this machine"
    yield Row(name=name, value=TASKS / took_s, unit="tasks/s", target=TASKS_GOAL_PER_S, better="higher")
    yield Row(name="  memory that the daemon takes more", value=memory, unit="MiB", target=MEMORY_GOAL_MIB)
    per_task = (used_bytes(database) - bytes_before) / TASKS
    yield Row(name="  database, pages in use", value=per_task, unit="bytes/task", target=DATABASE_GOAL_BYTES)
    for part, spent_s in cpu_s.items():
        yield Row(name=f"  CPU time of {part}", value=(spent_s - cpu_before_s[part]) / TASKS * 1e3, unit="ms/task")
    units = sum(1 for _ in store.iter_events(kinds=[EventKind.UNIT_STARTED]))
    yield Row(name="  units, those of the small array included", value=units, unit="")


def _submit(home: Home, store: Store, count: int, meter: CpuMeter | None = None) -> float:
    """Run an array to its end; return the seconds it took."""
    began = time.perf_counter()
    options = ("--vcpus", "0.9", "--memory", "64MiB", "--disk", "50MiB", "--array", f"0-{count - 1}")
    array = home.run("submit", "-y", "-q", *options, "--", "true").split()[0]

    def is_over() -> bool:
        if meter is not None:
            meter.read_s()  # machines may end meanwhile
        return store.job(array).state is JobState.SUCCEEDED

    wait_until(is_over, PATIENCE_S * 5, interval_s=0.2)
    return time.perf_counter() - began


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
