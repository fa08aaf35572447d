"""Capacity of this host for slices, and which isolation it supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.model import Resources
from providers.local.cgroups import CgroupSetup
from providers.local.settings import LocalSettings
from providers.local.slices import SliceRecord

_MEMORY_SHARE = 0.8
JOB_DISK_GIB = Resources().disk_gib
"""Default disk request of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapacity:
    """What all slices together may use."""

    vcpus: float
    memory_mib: int
    disk_gib: float
    cpus: tuple[int, ...]

    def free(self, live: Iterable[SliceRecord]) -> tuple[float, int]:
        """Return vCPUs and MiB that the live slices leave free."""
        records = list(live)
        return self.vcpus - sum(each.vcpus for each in records), self.memory_mib - sum(
            each.memory_mib for each in records
        )

    def room_for(self, vcpus: float, memory_mib: int, live: Iterable[SliceRecord]) -> int:
        """Return how many more slices of this size fit."""
        free_vcpus, free_memory_mib = self.free(live)
        return max(0, min(int(free_vcpus / vcpus + 1e-9), free_memory_mib // memory_mib))

    def pick_cpus(self, vcpus: float, live: Iterable[SliceRecord]) -> tuple[int, ...]:
        """Return the least assigned CPUs, as many as ``vcpus`` needs."""
        assigned = dict.fromkeys(self.cpus, 0.0)
        for record in live:
            for cpu in record.cpus:
                if cpu in assigned:
                    assigned[cpu] += record.vcpus / len(record.cpus)
        count = min(len(self.cpus), max(1, -int(-vcpus // 1)))
        return tuple(sorted(sorted(self.cpus, key=lambda cpu: (assigned[cpu], cpu))[:count]))


def measure_host(settings: LocalSettings, state_dir: Path) -> HostCapacity:
    """Return CPUs, memory and disk of this host. Settings override measurements."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    memory_mib = settings.memory_mib or int(_available_mib() * _MEMORY_SHARE)
    return HostCapacity(
        vcpus=(settings.vcpus or float(len(cpus))) * settings.oversubscription,
        memory_mib=memory_mib,
        disk_gib=shutil.disk_usage(state_dir).total / 2**30,
        cpus=cpus,
    )


def has_disk_for(disk_gib: float, state_dir: Path) -> bool:
    """Return whether enough disk is free to start such a slice: its own size or a job's default, whichever is less.

    Disk is not reserved per slice, because most slices never use theirs.
    """
    return shutil.disk_usage(state_dir).free / 2**30 >= min(disk_gib, JOB_DISK_GIB)


def _available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20)


def isolation_facts(room: CgroupSetup, host: HostCapacity, *, pinning: bool) -> Mapping[str, str]:
    """Return which isolation is in force and what this host lacks."""
    limits = {
        0: f"none ({room.unavailable_reason}); memory is limited per process, CPU by binding only",
        1: f"version 1: {', '.join(room.controllers)}",
        2: f"version 2: {', '.join(room.controllers)}",
    }
    return {
        "user": "root" if os.geteuid() == 0 else f"ordinary user (uid {os.geteuid()})",
        "cgroups": limits[room.version],
        "pinning": f"slices are pinned to CPUs of {list(host.cpus)}" if pinning else "disabled by setting",
        "sandbox": _sandbox(),
        "missing": "; ".join(_missing(room)) or "nothing",
    }


def _sandbox() -> str:
    if shutil.which("bwrap") is None:
        return "none: bubblewrap (bwrap) is not installed"
    # Run it as units do: an installed bwrap may still not be allowed to use namespaces.
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return (
        "bubblewrap with own namespaces"
        if tried.returncode == 0
        else f"none: bwrap fails: {tried.stderr.strip()[:200]}"
    )


def _missing(room: CgroupSetup) -> Iterable[str]:
    if room.version != 2:
        yield "cgroup version 2 with cpu, memory and pids"
    if room.version == 0:
        yield f"limits on a slice's total CPU and memory ({room.unavailable_reason})"
    if not any(Path("/sys/bus/event_source/devices").glob("cpu*")):
        yield "hardware performance counters"
    if "resctrl" not in Path("/proc/filesystems").read_text():
        yield "cache and memory-bandwidth partitioning (resctrl)"
