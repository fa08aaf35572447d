"""Control groups as limits of a slice: version 1 (one tree per controller) and version 2 (one tree for all).

This module keeps no state: a slice's groups are the paths in its record, so any process can kill and remove them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PERIOD_US = 100_000
_V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_V2_NEEDED = {"cpu", "memory", "pids"}
DELEGATED_LEAF = "daemon"
"""The subgroup in which systemd runs the daemon (``DelegateSubgroup=daemon``); its parent is delegated to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """Limits that a slice's groups enforce."""

    vcpus: float
    memory_mib: int
    """Memory of all processes, the worker included."""
    pids: int
    cpus: tuple[int, ...] = ()
    """CPUs to pin to; empty: not pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCgroup:
    """The groups of one slice."""

    version: int
    paths: Mapping[str, str]
    """Paths by controller; version 2 has one, ``unified``."""
    procs_files: tuple[str, ...]
    """Files to which a process writes its id to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupSetup:
    """Where this process may create groups."""

    version: int = 0
    """1 or 2; 0: nowhere."""
    parents: Mapping[str, Path] = field(default_factory=dict)
    """Parent group by controller; version 2 has one, ``unified``."""
    unavailable_reason: str = ""

    @property
    def controllers(self) -> tuple[str, ...]:
        """Names of the available controllers."""
        if self.version == 2:
            parent = self.parents["unified"].parent
            return tuple(name for name in _V2_CONTROLLERS if name in _words(parent / "cgroup.controllers"))
        return tuple(self.parents)

    def groups(self, name: str) -> SliceCgroup:
        """Return the groups of a slice by its name, whether they exist or not. Version 0 has none."""
        paths = {key: str(parent / name) for key, parent in self.parents.items()}
        # In version 2 a group with processes cannot delegate controllers, so the worker has its own leaf next to units.
        leaf = "/worker" if self.version == 2 else ""
        files = tuple(f"{path}{leaf}/cgroup.procs" for path in dict.fromkeys(paths.values()))
        return SliceCgroup(version=self.version, paths=paths, procs_files=files)

    def create(self, name: str, limits: SliceLimits) -> None:
        """Create or complete the groups of a slice. Raises OSError."""
        make = {0: lambda *_: None, 1: self._create_v1, 2: self._create_v2}[self.version]
        try:
            make(name, limits)
        except FileNotFoundError:
            # Another process removed the last slice and the common parent between our two mkdirs.
            make(name, limits)

    def _create_v1(self, name: str, limits: SliceLimits) -> None:
        for controller, parent in self.parents.items():
            group = parent / name
            group.mkdir(parents=True, exist_ok=True)
            if controller == "cpuset":
                _write_cpuset_v1(group, limits.cpus)
            for file, value in _v1_values(controller, limits):
                if (group / file).exists():
                    (group / file).write_text(value)

    def _create_v2(self, name: str, limits: SliceLimits) -> None:
        parent = self.parents["unified"]
        group = parent / name
        enabled = " ".join(f"+{each}" for each in self.controllers)
        (parent.parent / "cgroup.subtree_control").write_text(enabled)
        parent.mkdir(exist_ok=True)
        (parent / "cgroup.subtree_control").write_text(enabled)
        group.mkdir(exist_ok=True)
        for file, value in _v2_values(limits):
            if (group / file).exists():
                (group / file).write_text(value)
        (group / "cgroup.subtree_control").write_text(enabled)
        (group / "worker").mkdir(exist_ok=True)


def _v1_values(controller: str, limits: SliceLimits) -> Iterable[tuple[str, str]]:
    memory_bytes = str(limits.memory_mib * 2**20)
    if controller == "cpu":
        yield "cpu.cfs_period_us", str(_PERIOD_US)
        yield "cpu.cfs_quota_us", str(int(limits.vcpus * _PERIOD_US))
        yield "cpu.shares", str(max(2, int(limits.vcpus * 1024)))
    elif controller == "memory":
        yield "memory.limit_in_bytes", memory_bytes
        yield "memory.memsw.limit_in_bytes", memory_bytes  # memory plus swap: swap gives no extra memory
    elif controller == "pids":
        yield "pids.max", str(limits.pids)


def _v2_values(limits: SliceLimits) -> Iterable[tuple[str, str]]:
    yield "cpu.max", f"{int(limits.vcpus * _PERIOD_US)} {_PERIOD_US}"
    yield "cpu.weight", str(min(10_000, max(1, int(limits.vcpus * 100))))
    yield "memory.max", str(limits.memory_mib * 2**20)
    yield "memory.swap.max", "0"
    yield "pids.max", str(limits.pids)
    if limits.cpus:
        yield "cpuset.cpus", ",".join(map(str, limits.cpus))


def _write_cpuset_v1(group: Path, cpus: tuple[int, ...]) -> None:
    # Version 1 creates cpuset groups without CPUs and memory nodes: copy them down, the common parent first.
    for each in (group.parent, group):
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not (each / file).read_text().strip():
                (each / file).write_text((each.parent / file).read_text())
    if cpus:
        (group / "cpuset.cpus").write_text(",".join(map(str, cpus)))


def find_cgroups(
    parent_name: str, *, mounts_file: Path = Path("/proc/mounts"), own_file: Path = Path("/proc/self/cgroup")
) -> CgroupSetup:
    """Return where slices can be limited, found by trying: version 2 if it has the controllers, else 1, or nowhere."""
    mounts = [line.split() for line in mounts_file.read_text().splitlines() if line]
    v2 = [Path(words[1]) for words in mounts if words[2] == "cgroup2"]
    v1 = {name: Path(words[1]) for words in mounts if words[2] == "cgroup" for name in words[3].split(",")}
    reasons = []
    for room in (*_v2_rooms(v2, own_file, parent_name), *_v1_rooms(v1, parent_name)):
        unavailable_reason = _probe_error(room)
        if not unavailable_reason:
            return room
        reasons.append(f"version {room.version}: {unavailable_reason}")
    return CgroupSetup(unavailable_reason="; ".join(reasons) or "no control groups are mounted")


def _v2_rooms(mounts: Iterable[Path], own_file: Path, parent_name: str) -> Iterable[CgroupSetup]:
    own = next((line[3:] for line in own_file.read_text().splitlines() if line.startswith("0::")), "/")
    for mount in mounts:
        if Path(own).name == DELEGATED_LEAF:
            yield CgroupSetup(version=2, parents={"unified": (mount / own.lstrip("/")).parent / parent_name})
        yield CgroupSetup(version=2, parents={"unified": mount / parent_name})


def _v1_rooms(mounts: Mapping[str, Path], parent_name: str) -> Iterable[CgroupSetup]:
    usable = {
        name: mounts[name] / parent_name
        for name in _V1_CONTROLLERS
        if name in mounts and os.access(mounts[name], os.W_OK)
    }
    if usable:
        yield CgroupSetup(version=1, parents=usable)
    elif any(name in mounts for name in _V1_CONTROLLERS):
        yield CgroupSetup(version=1, parents={})


def _probe_error(room: CgroupSetup) -> str:
    """Create and remove a group; return why that failed, or "". Only trying is reliable."""
    if not room.parents:
        return "no writable controller"
    if room.version == 2 and not _V2_NEEDED.issubset(room.controllers):
        return f"{room.parents['unified'].parent} has only the controllers {list(room.controllers)}"
    name = f"probe-{os.getpid()}"
    try:
        room.create(name, SliceLimits(vcpus=1.0, memory_mib=64, pids=16))
    except OSError as error:
        return f"{error.strerror} ({error.filename})"
    finally:
        remove_cgroup(room.groups(name).paths)
    return ""


def cgroup_pids(paths: Iterable[str]) -> set[int]:
    """Return the processes in the groups and in all groups below them."""
    pids: set[int] = set()
    for top in set(paths):
        for directory, _, _ in os.walk(top):
            with contextlib.suppress(FileNotFoundError, OSError):  # the group was removed meanwhile
                pids.update(int(word) for word in _words(Path(directory, "cgroup.procs")))
    return pids


def kill_cgroup(paths: Mapping[str, str]) -> None:
    """Send KILL to every process of the groups once. Version 2 does so atomically, without a window for forks."""
    whole = Path(paths.get("unified", ""), "cgroup.kill")
    if "unified" in paths and whole.exists():
        with contextlib.suppress(OSError):
            whole.write_text("1")
    for pid in cgroup_pids(paths.values()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_cgroup(paths: Mapping[str, str]) -> bool:
    """Remove the (empty) groups with all below, and the common parent after the last. Return whether all are gone."""
    for top in set(paths.values()):
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        with contextlib.suppress(OSError):  # other slices use it, or we do not own it
            os.rmdir(os.path.dirname(top))
    return not any(os.path.isdir(top) for top in paths.values())


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []
