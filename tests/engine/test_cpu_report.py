"""What a worker reads of its machine's CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hcloud.core.cpu_topology import topology_from
from hcloud.engine.cpu_report import affinity, read_topology, usable_cpus
from tests.waiting import wait_until


def system(tmp_path: Path, *, caches: bool = True) -> Path:
    """Return a copy of sysfs of two sockets with two cores of two threads each."""
    for number in range(8):
        cpu, core, socket = tmp_path / "cpu" / f"cpu{number}", number % 4, number % 4 // 2
        (cpu / "topology").mkdir(parents=True)
        (cpu / "topology" / "core_cpus_list").write_text(f"{core},{core + 4}\n")
        (cpu / "topology" / "physical_package_id").write_text(f"{socket}\n")
        for index, level, shared in ((0, 1, f"{core},{core + 4}"), (3, 3, "0-1,4-5" if socket == 0 else "2-3,6-7")):
            if caches:
                (cpu / "cache" / f"index{index}").mkdir(parents=True)
                (cpu / "cache" / f"index{index}" / "level").write_text(f"{level}\n")
                (cpu / "cache" / f"index{index}" / "shared_cpu_list").write_text(f"{shared}\n")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    return tmp_path


def test_sockets_caches_threads_and_nodes_are_read(tmp_path: Path) -> None:
    topology = topology_from(read_topology(range(8), system(tmp_path)))
    assert topology.words() == "2 sockets of 2 cores, 2 threads per core, 2 L3 caches, 2 NUMA nodes"
    assert topology.groups("core") == {0: (0, 4), 1: (1, 5), 2: (2, 6), 3: (3, 7)}
    assert topology.groups("node") == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


def test_a_machine_that_uses_a_part_of_its_host_reports_that_part(tmp_path: Path) -> None:
    topology = topology_from(read_topology((2, 6, 7), system(tmp_path)))
    assert topology.numbers == (2, 6, 7)
    assert len(topology.groups("core")) == 2


def test_without_a_last_level_cache_a_socket_counts_as_one(tmp_path: Path) -> None:
    assert len(topology_from(read_topology(range(8), system(tmp_path, caches=False))).groups("l3")) == 2


def test_a_kernel_that_says_nothing_reports_nothing(tmp_path: Path) -> None:
    assert read_topology((0, 1), tmp_path) == []


def test_this_machine_reports_something_that_is_believed() -> None:
    assert topology_from(read_topology(usable_cpus(None))).numbers == tuple(sorted(os.sched_getaffinity(0)))


def test_a_process_that_only_waits_does_not_show_where_a_unit_works() -> None:
    usable = usable_cpus(None)
    burn = f"import os; os.sched_setaffinity(0, {{{usable[0]}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as busy:
        with subprocess.Popen(["sleep", "60"]) as waits:
            assert busy.stdout is not None and busy.stdout.readline()
            both = [busy.pid, waits.pid]
            wait_until(lambda: affinity(both, (*usable, 4000)) == usable[:1], timeout_s=60)
            waits.kill()
        busy.kill()


def test_where_processes_may_run() -> None:
    usable = usable_cpus(None)
    assert affinity([os.getpid()], usable) == ()
    assert affinity([os.getpid()], (*usable, 4000)) == usable
    assert affinity([2**22 + 1], usable) == ()
