"""What a machine reports of its CPUs, read from sysfs; and on which of them processes may run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hcloud.core.cpu_topology import CPUS_MAX, dense, parse_cpu_list
from hcloud.engine.usage import cpu_ticks

SYSTEM = Path("/sys/devices/system")
BUSY_SHARE = 0.1
"""Processes that used less than this share of what the busiest one used do not show where a unit works."""


def usable_cpus(cpus: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the CPUs that this machine's units may use: those of its bootstrap file, else all of this process."""
    own = os.sched_getaffinity(0)
    return tuple(sorted(own.intersection(cpus) if cpus else own))


def read_topology(cpus: Iterable[int], system: Path = SYSTEM) -> list[list[int]]:
    """Return rows of :class:`hcloud.core.cpu_topology.LogicalCpu` for these CPUs; empty: the kernel does not say it.

    A CPU without a last-level cache of its own counts with its socket's.
    """
    numbers = sorted(cpus)[:CPUS_MAX]
    nodes = _nodes(system)
    rows: list[tuple[int, object, object, object, object]] = []
    for number in numbers:
        topology = system / "cpu" / f"cpu{number}" / "topology"
        core = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        if core is None:
            return []
        socket = _text(topology / "physical_package_id") or "0"
        cache = _last_level_cache(system / "cpu" / f"cpu{number}" / "cache")
        rows.append((number, core, (socket, cache), socket, nodes.get(number, -1)))
    return dense(rows)


def affinity(pids: Iterable[int], among: Iterable[int]) -> tuple[int, ...]:
    """Return the CPUs on which those of these processes may run that do the work, together; empty: on all of ``among``,
    or there are none. A sandbox's own processes, which only wait, do not count."""
    worked = {pid: cpu_ticks(pid) for pid in pids}
    least, found = BUSY_SHARE * max(worked.values(), default=0), set[int]()
    for pid, ticks in worked.items():
        if ticks < least:
            continue
        try:
            found |= os.sched_getaffinity(pid)
        except OSError:  # it has ended
            continue
    return () if found.issuperset(among) else tuple(sorted(found))


def pin_each(pids: Iterable[int], cpus: Iterable[int]) -> None:
    """Let each thread of these processes run on these CPUs only; those that have ended, or may not be, are passed
    over."""
    wanted = set(cpus)
    for pid in pids:
        try:
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        except OSError:
            continue
        for thread in threads:
            with suppress(OSError):
                if os.sched_getaffinity(thread) != wanted:
                    os.sched_setaffinity(thread, wanted)


def _nodes(system: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for folder in sorted(system.glob("node/node[0-9]*")):
        try:
            members = parse_cpu_list(_text(folder / "cpulist") or "")
        except ValueError:
            continue
        found |= dict.fromkeys(members, int(folder.name.removeprefix("node")))
    return found


def _last_level_cache(folder: Path) -> str:
    """Return what identifies a CPU's cache of level 3; empty: it has none."""
    for index in sorted(folder.glob("index[0-9]*")):
        if _text(index / "level") == "3":
            return _text(index / "shared_cpu_list") or ""
    return ""


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")[:4096].strip() or None
    except OSError:
        return None
