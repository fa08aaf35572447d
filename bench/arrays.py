"""What an array of ten thousand short tasks costs: time, memory of the daemon, and bytes in the database."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.rows import Row
from hcloud.core.arrays import TaskList
from hcloud.core.model import JobState, Resources
from tests.apply.deployment import Deployment, deployment

TASKS = int(os.environ.get("BENCH_TASKS", "10000"))
CLOUD = {"types": {"m.large": {"vcpus": 64, "memory_mib": 262144, "usd_per_h": 3}}}
POLICY = {"caps": {"max_instances": 16, "max_vcpus": None}}
SMALL = Resources(vcpus=1.0, memory_mib=512, disk_gib=0.1)
TASKS_GOAL_PER_S, MEMORY_GOAL_MIB, DATABASE_GOAL_BYTES = 1_000.0, 10.0, 300.0


def run() -> Iterator[Row]:
    """Run one array on the mock cloud, cycle after cycle; its tasks take no time, so that only HCloud's is measured."""
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        site = deployment(Path(made), CLOUD, POLICY)
        run_array(site, 100)  # what is made once: schemas of documents, the market
        database = Path(made) / "hcloud.db"
        bytes_before, memory_before = used_bytes(database), resident_mib()
        cpu_before_s = time.process_time()
        took_s, memory_mib = run_array(site, TASKS)
        cpu_s = time.process_time() - cpu_before_s
        yield Row(
            name=f"{TASKS:,} tasks of one array, mock cloud",
            value=TASKS / took_s,
            unit="tasks/s",
            target=TASKS_GOAL_PER_S,
            better="higher",
        )
        yield Row(name="processor time", value=cpu_s / TASKS * 1e3, unit="ms/task")
        grown = memory_mib - memory_before
        yield Row(name="memory that the daemon takes more", value=grown, unit="MiB", target=MEMORY_GOAL_MIB)
        per_task = (used_bytes(database) - bytes_before) / TASKS
        yield Row(name="database, pages in use", value=per_task, unit="bytes/task", target=DATABASE_GOAL_BYTES)
        yield Row(name="database, its file", value=database.stat().st_size / TASKS, unit="bytes/task")
        started = time.perf_counter()
        events = sum(1 for _ in site.scene.store.iter_events())
        yield Row(name=f"reading its {events:,} events", value=time.perf_counter() - started, unit="s")
        site.scene.close()


def run_array(site: Deployment, count: int) -> tuple[float, float]:
    """Run an array to its end; return the seconds it took and the most memory it needed, in MiB."""
    (array,) = site.submit("true", tasks=TaskList(ranges=((0, count - 1, 1),)), resources=SMALL)
    started, most = time.perf_counter(), 0.0
    while site.scene.store.job(array.id).state is not JobState.SUCCEEDED:
        site.scene.controller.cycle()
        site.scene.clock.advance(1.0)
        most = max(most, resident_mib())
    return time.perf_counter() - started, most


def used_bytes(database: Path) -> int:
    """Return the size of the pages of a SQLite file that hold anything."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        total, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((total - free) * size)


def resident_mib() -> float:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
