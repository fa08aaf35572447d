"""What bounds a unit: a control group of its own (cgroup v1 or v2), and plain process limits where there is none."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from hcloud.core.cpu_topology import cpu_list

MIB = 1 << 20
CPU_PERIOD_US = 100_000
V1_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids", "freezer", "cpuset")
KILL_DEADLINE_S = 10.0
REMOVE_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a unit may use."""

    vcpus: float
    memory_mib: int
    pids: int
    cpus: tuple[int, ...] | None = None
    dies_whole: bool = True
    """Whether all is killed together when its memory is used up, where the kernel can do that."""

    def within(self, outer: Bounds) -> Bounds:
        """Return these bounds, none of them wider than those of the group around it: the kernel refuses that."""
        return Bounds(
            vcpus=min(self.vcpus, outer.vcpus),
            memory_mib=min(self.memory_mib, outer.memory_mib),
            pids=min(self.pids, outer.pids),
            cpus=self.cpus or outer.cpus,
            dies_whole=self.dies_whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupUsage:
    """Totals since the group was made, None if the group does not account it; memory without reclaimable file cache."""

    cpu_s: float | None = None
    memory_mib: float | None = None
    read_mib: float | None = None
    written_mib: float | None = None
    throttled_s: float | None = None
    """Time for which its processes were kept from the CPUs by its own quota, summed over CPUs."""


class Cgroup(Protocol):
    """A unit's control group."""

    def enter(self) -> None:
        """Move the calling process into it."""

    def rebound(self, *, vcpus: float, memory_mib: int) -> None:
        """Set other limits on what runs in it. Raises OSError when the kernel refuses one."""

    @property
    def can_pin(self) -> bool:
        """Whether it can hold what runs in it to some of the machine's CPUs."""

    def pin(self, cpus: Iterable[int]) -> None:
        """Hold what runs in it to these CPUs. Raises OSError when the kernel refuses one."""

    def processes(self) -> set[int]:
        """Return the ids of all processes in it and in groups inside it."""

    def count(self) -> int | None:
        """Return how many processes and threads are in it; None: that is not accounted here."""

    def usage(self) -> CgroupUsage:
        """Return what its processes used so far."""

    def vcpus(self) -> float | None:
        """Return the CPU limit that it has now, in vCPUs; None: it has none."""

    def instance_cpu_s(self) -> float | None:
        """Return the CPU time in seconds of all units of its instance; None if that is not accounted."""

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed for memory."""

    def forks_refused(self) -> int:
        """Return how often the kernel refused its processes another one because of its limit."""

    def freeze(self, frozen: bool) -> None:
        """Halt or continue all its processes. Raises OSError where the kernel cannot."""

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill everything in it, calling ``reap`` to collect dead children; return whether it is empty now."""

    def remove(self) -> bool:
        """Remove the (empty) group; return whether it is gone."""


class CgroupV1:
    """One directory per controller. Controllers that are not there are simply not enforced."""

    version = 1

    def __init__(self, parents: Mapping[str, str], name: str) -> None:
        self._paths = {controller: f"{parent}/{name}" for controller, parent in parents.items()}

    def make(self, bounds: Bounds) -> None:
        """Create the group and set its limits. Raises OSError when the kernel refuses one."""
        for controller, path in self._paths.items():
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            if controller == "cpuset":
                _fill_cpuset(path, bounds.cpus)
        self._write("cpu", "cpu.cfs_period_us", CPU_PERIOD_US)
        self._write("cpu", "cpu.cfs_quota_us", _quota_us(bounds.vcpus))
        self._write("memory", "memory.limit_in_bytes", bounds.memory_mib * MIB)
        with contextlib.suppress(FileNotFoundError):
            self._write("memory", "memory.memsw.limit_in_bytes", bounds.memory_mib * MIB)
        self._write("pids", "pids.max", bounds.pids)

    def rebound(self, *, vcpus: float, memory_mib: int) -> None:
        """Set other limits on what runs in it. Raises OSError when the kernel refuses one."""
        self._write("cpu", "cpu.cfs_quota_us", _quota_us(vcpus))
        limit, both = memory_mib * MIB, "memory.memsw.limit_in_bytes"
        files = ["memory.limit_in_bytes"]
        if os.path.exists(f"{self._paths.get('memory', '/nowhere')}/{both}"):
            # Memory alone is never more than with swap: upwards the latter moves first.
            files.insert(0 if int(self._read("memory", both) or 0) < limit else 1, both)
        for file in files:
            self._write("memory", file, limit)

    @property
    def can_pin(self) -> bool:
        """Whether it can hold what runs in it to some of the machine's CPUs."""
        return "cpuset" in self._paths

    def pin(self, cpus: Iterable[int]) -> None:
        """Hold what runs in it to these CPUs. Raises OSError when the kernel refuses one."""
        self._write("cpuset", "cpuset.cpus", cpu_list(cpus))

    def _write(self, controller: str, file: str, value: object) -> None:
        if controller in self._paths:
            _put(f"{self._paths[controller]}/{file}", str(value))

    def _read(self, controller: str, file: str) -> str | None:
        return _text(f"{self._paths[controller]}/{file}") if controller in self._paths else None

    @property
    def entrances(self) -> list[str]:
        """Directories whose ``cgroup.procs`` takes processes into it."""
        return list(self._paths.values())

    def enter(self) -> None:
        """Move the calling process into it."""
        for path in self._paths.values():
            _put(f"{path}/cgroup.procs", "0")

    def processes(self) -> set[int]:
        """Return the ids of all processes in it and in groups inside it."""
        # Whatever enters them enters the first one first, and nothing in it can leave.
        return _processes(next(iter(self._paths.values())))

    def count(self) -> int | None:
        """Return how many processes and threads are in it; None: that is not accounted here."""
        return _whole(self._read("pids", "pids.current"))

    def usage(self) -> CgroupUsage:
        """Return what its processes used so far."""
        cpu_ns, used = self._read("cpuacct", "cpuacct.usage"), self._read("memory", "memory.usage_in_bytes")
        cache = _keyed(self._read("memory", "memory.stat")).get("total_inactive_file", 0)
        throttled_ns = _keyed(self._read("cpu", "cpu.stat")).get("throttled_time")
        return CgroupUsage(
            throttled_s=throttled_ns / 1e9 if throttled_ns is not None else None,
            cpu_s=int(cpu_ns) / 1e9 if cpu_ns else None,
            memory_mib=max(0, int(used) - cache) / MIB if used else None,
        )

    def vcpus(self) -> float | None:
        """Return the CPU limit that it has now, in vCPUs; None: it has none."""
        quota_us = self._read("cpu", "cpu.cfs_quota_us")
        return _vcpus(quota_us, CPU_PERIOD_US) if quota_us else None

    def instance_cpu_s(self) -> float | None:
        """Return the CPU time in seconds of all units of its instance; None if that is not accounted."""
        cpu_ns = _text(f"{os.path.dirname(self._paths['cpuacct'])}/cpuacct.usage") if "cpuacct" in self._paths else None
        return int(cpu_ns) / 1e9 if cpu_ns else None

    def oom_kills(self) -> int:
        """Return how many of its own processes the kernel killed for memory; those of groups inside count there."""
        return _keyed(self._read("memory", "memory.oom_control")).get("oom_kill", 0)

    def forks_refused(self) -> int:
        """Return how often the kernel refused its processes another one because of its limit."""
        return _keyed(self._read("pids", "pids.events")).get("max", 0)

    def freeze(self, frozen: bool) -> None:
        """Halt or continue all its processes. Raises OSError where the kernel cannot."""
        if "freezer" not in self._paths:
            raise OSError("this machine has no freezer for control groups")
        self._write("freezer", "freezer.state", "FROZEN" if frozen else "THAWED")

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill everything in it, calling ``reap`` to collect dead children; return whether it is empty now."""
        return _until_empty(self, self._kill_round, reap)

    def _kill_round(self, left: set[int], *, is_first: bool) -> None:
        # Frozen processes cannot fork, so one round of KILL reaches all; it takes effect when they are thawed. Mostly
        # there is only a sandbox that ends anyway, and to freeze costs the whole machine something.
        if is_first or "freezer" not in self._paths:
            kill_each(left)
            return
        self._write("freezer", "freezer.state", "FROZEN")
        kill_each(self.processes())
        self._write("freezer", "freezer.state", "THAWED")

    def remove(self) -> bool:
        """Remove the (empty) group and those inside it; return whether they are gone."""
        gone = [_remove_tree(path) for path in self._paths.values()]
        return all(gone)


class CgroupV2:
    """One directory with all controllers that the parent delegates."""

    version = 2

    def __init__(self, parent: Path, name: str) -> None:
        self._parent, self._path = parent, Path(f"{parent}/{name}")

    def make(self, bounds: Bounds) -> None:
        """Create the group and set its limits. Raises OSError when the kernel refuses one."""
        available = (_text(self._parent / "cgroup.controllers") or "").split()
        wanted = [name for name in ("cpu", "memory", "pids", "io", "cpuset") if name in available]
        (self._parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        self._path.mkdir(exist_ok=True)
        values: dict[str, object] = {
            "cpu.max": f"{_quota_us(bounds.vcpus)} {CPU_PERIOD_US}",
            "memory.max": bounds.memory_mib * MIB,
            "memory.swap.max": 0,
            "memory.oom.group": int(bounds.dies_whole),
            "pids.max": bounds.pids,
        }
        if bounds.cpus:
            values["cpuset.cpus"] = ",".join(map(str, bounds.cpus))
        for file, value in values.items():
            if file.partition(".")[0] in wanted and (file != "memory.swap.max" or (self._path / file).exists()):
                (self._path / file).write_text(str(value))

    def rebound(self, *, vcpus: float, memory_mib: int) -> None:
        """Set other limits on what runs in it. Raises OSError when the kernel refuses one."""
        (self._path / "cpu.max").write_text(f"{_quota_us(vcpus)} {CPU_PERIOD_US}")
        (self._path / "memory.max").write_text(str(memory_mib * MIB))

    @property
    def can_pin(self) -> bool:
        """Whether it can hold what runs in it to some of the machine's CPUs."""
        return (self._path / "cpuset.cpus").exists()

    def pin(self, cpus: Iterable[int]) -> None:
        """Hold what runs in it to these CPUs. Raises OSError when the kernel refuses one."""
        (self._path / "cpuset.cpus").write_text(cpu_list(cpus))

    @property
    def entrances(self) -> list[str]:
        """Directories whose ``cgroup.procs`` takes processes into it."""
        return [str(self._path)]

    def enter(self) -> None:
        """Move the calling process into it."""
        _put(f"{self._path}/cgroup.procs", "0")

    def processes(self) -> set[int]:
        """Return the ids of all processes in it and in groups inside it."""
        return _processes(str(self._path))

    def count(self) -> int | None:
        """Return how many processes and threads are in it; None: that is not accounted here."""
        return _whole(_text(self._path / "pids.current"))

    def usage(self) -> CgroupUsage:
        """Return what its processes used so far."""
        cpu = _keyed(_text(self._path / "cpu.stat"))
        cpu_us, throttled_us = cpu.get("usage_usec"), cpu.get("throttled_usec")
        used, stat = _text(self._path / "memory.current"), _keyed(_text(self._path / "memory.stat"))
        io = _io_totals(_text(self._path / "io.stat"))
        return CgroupUsage(
            throttled_s=throttled_us / 1e6 if throttled_us is not None else None,
            cpu_s=cpu_us / 1e6 if cpu_us is not None else None,
            memory_mib=max(0, int(used) - stat.get("inactive_file", 0)) / MIB if used else None,
            read_mib=io[0] / MIB if io else None,
            written_mib=io[1] / MIB if io else None,
        )

    def vcpus(self) -> float | None:
        """Return the CPU limit that it has now, in vCPUs; None: it has none."""
        quota_us, _, period_us = (_text(self._path / "cpu.max") or "").partition(" ")
        return _vcpus(quota_us, int(period_us)) if period_us else None

    def instance_cpu_s(self) -> float | None:
        """Return the CPU time in seconds of all units of its instance; None if that is not accounted."""
        cpu_us = _keyed(_text(self._parent / "cpu.stat")).get("usage_usec")
        return cpu_us / 1e6 if cpu_us is not None else None

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed for memory."""
        return _keyed(_text(self._path / "memory.events")).get("oom_kill", 0)

    def forks_refused(self) -> int:
        """Return how often the kernel refused its processes another one because of its limit."""
        return _keyed(_text(self._path / "pids.events")).get("max", 0)

    def freeze(self, frozen: bool) -> None:
        """Halt or continue all its processes. Raises OSError where the kernel cannot."""
        (self._path / "cgroup.freeze").write_text("1" if frozen else "0")

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill everything in it, calling ``reap`` to collect dead children; return whether it is empty now."""
        return _until_empty(self, self._kill_round, reap)

    def _kill_round(self, left: set[int], *, is_first: bool) -> None:
        try:
            (self._path / "cgroup.kill").write_text("1")
        except OSError:  # before Linux 5.14
            kill_each(left)

    def remove(self) -> bool:
        """Remove the (empty) group and those inside it; return whether they are gone."""
        return _remove_tree(str(self._path))


def _quota_us(vcpus: float) -> int:
    """Return the CPU time per period that so many vCPUs are."""
    return max(1000, int(vcpus * CPU_PERIOD_US))


def _vcpus(quota_us: str, period_us: int) -> float | None:
    return int(quota_us) / period_us if quota_us.strip().isdigit() else None


def group_for(cgroup: Mapping[str, Any] | None, name: str) -> CgroupV1 | CgroupV2 | None:
    """Return the handle of a unit's group below the instance's, or None where the instance has none."""
    if not cgroup:
        return None
    if cgroup["version"] == 2:
        return CgroupV2(Path(next(iter(cgroup["paths"].values()))), name)
    return CgroupV1(cgroup["paths"], name)


def groups_inside(cgroup: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return, in the form of an instance's, the groups ``name`` of that instance: others can be made inside them."""
    return {**cgroup, "paths": {controller: f"{path}/{name}" for controller, path in cgroup["paths"].items()}}


def find_instance_cgroup(name: str, cpus: tuple[int, ...] | None) -> dict[str, Any] | None:
    """Make groups ``hcloud.<name>`` for an instance without groups of its provider; None where this process may not."""
    mounts = _cgroup_mounts()
    controllers = {name: mounts[name] for name in V1_CONTROLLERS if name in mounts}
    try:
        if {"cpu", "memory", "pids"} <= controllers.keys():
            return {"version": 1, "paths": _make_v1(controllers, name, cpus)}
        if "" in mounts and {"cpu", "memory", "pids"} <= _delegated(mounts[""]):
            own = Path(f"{mounts['']}/hcloud.{name}")
            own.mkdir(exist_ok=True)
            return {"version": 2, "paths": {"": str(own)}}
    except OSError:
        return None
    return None


def _delegated(mount: str) -> set[str]:
    root = Path(mount)
    (root / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    return set((_text(root / "cgroup.subtree_control") or "").split())


def _make_v1(controllers: Mapping[str, str], name: str, cpus: tuple[int, ...] | None) -> dict[str, str]:
    made = {}
    for controller, mount in controllers.items():
        path = Path(mount) / f"hcloud.{name}"
        path.mkdir(exist_ok=True)
        made[controller] = str(path)
        if controller == "cpuset":
            _fill_cpuset(str(path), cpus)
    return made


def _cgroup_mounts() -> dict[str, str]:
    """Return where each v1 controller is mounted, and v2 under the name ""."""
    found: dict[str, str] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found[""] = path
        elif kind == "cgroup":
            found |= {name: path for name in options.split(",") if name in V1_CONTROLLERS}
    return found


def warm_up(cgroup: Mapping[str, Any] | None) -> None:
    """Move this process into the group in which it is.

    The first move of a process between groups waits for the whole kernel (an RCU grace period, 10-20 ms), those soon
    after it do not: so a unit's own move, a few steps later, costs nothing.
    """
    if cgroup is None:
        return
    with contextlib.suppress(OSError, KeyError):
        _put(_own_entrance("pids" if cgroup["version"] == 1 else ""), "0")


@cache
def _own_entrance(controller: str) -> str:
    """Return the file by which a process gets into the group of this one, which stays where it is."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next(path for _, names, path in lines if controller in names.split(","))
    return f"{_cgroup_mounts()[controller]}{own}/cgroup.procs"


def found_cgroups(prefix: str) -> set[str]:
    """Return the names, as given to ``find_instance_cgroup``, of all groups ``<prefix>-...`` there are now."""
    found: set[str] = set()
    for mount in set(_cgroup_mounts().values()):
        with contextlib.suppress(OSError):
            found |= {name for name in os.listdir(mount) if name.startswith(f"hcloud.{prefix}-")}
    return {name.removeprefix("hcloud.") for name in found}


def remove_found_cgroup(name: str) -> None:
    """Remove what ``find_instance_cgroup`` made under this name, units' empty groups included; what a process is still
    in stays, without waiting for it."""
    for mount in set(_cgroup_mounts().values()):
        _remove_tree(f"{mount}/hcloud.{name}", wait_s=0.0)


def remove_instance_cgroup(cgroup: Mapping[str, Any] | None) -> None:
    """Remove an instance's (empty) groups."""
    for path in (cgroup or {"paths": {}})["paths"].values():
        _remove_tree(path)


def limit_process(*, file_mib: int, pids: int | None, memory_mib: int | None) -> None:
    """Set plain limits on the calling process and what it starts; None leaves one alone.

    ``pids`` counts all processes of the user (of its user namespace where it has one); it does not bind root.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, file_mib * MIB)
    if pids is not None:
        _lower(resource.RLIMIT_NPROC, pids)
    if memory_mib is not None:
        _lower(resource.RLIMIT_DATA, memory_mib * MIB)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (bound, bound))


def kill_each(pids: Iterable[int]) -> None:
    """Send KILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


class _KillRound(Protocol):
    def __call__(self, left: set[int], *, is_first: bool) -> None: ...


def _until_empty(group: Cgroup, kill_round: _KillRound, reap: Callable[[], None]) -> bool:
    deadline, is_first = time.monotonic() + KILL_DEADLINE_S, True
    while left := group.processes():
        if time.monotonic() > deadline:
            return False
        kill_round(left, is_first=is_first)
        is_first = False
        reap()
        time.sleep(0.002)
    return True


def _fill_cpuset(path: str, cpus: tuple[int, ...] | None) -> None:
    """A v1 cpuset starts empty and takes no process until both files are filled."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        wanted = ",".join(map(str, cpus)) if cpus and file == "cpuset.cpus" else ""
        _put(f"{path}/{file}", wanted or (_text(f"{os.path.dirname(path)}/{file}") or "").strip())


def _text(path: Path | str) -> str | None:
    # Without file objects, which cost more than the calls themselves: this is read many times a unit.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts).decode()
    except OSError:
        return None
    finally:
        os.close(handle)


def _put(path: str, text: str) -> None:
    """Write to a file of the kernel. Raises OSError when it refuses that."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _whole(text: str | None) -> int | None:
    return int(text) if text else None


def _keyed(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _io_totals(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    pairs = [word.partition("=") for word in text.split() if "=" in word]
    read, written = (sum(int(value) for name, _, value in pairs if name == key) for key in ("rbytes", "wbytes"))
    return read, written


def _processes(path: str) -> set[int]:
    texts = [_text(f"{each}/cgroup.procs") or "" for each in (*_below(path), path)]
    return {int(pid) for text in texts for pid in text.split()}


def _below(path: str) -> list[str]:
    """The groups inside a group, innermost first; whatever vanishes meanwhile is not there."""
    try:
        if os.stat(path).st_nlink == 2:  # its own name and ".": nothing in it is a directory
            return []
        inner = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [each for folder in inner for each in (*_below(folder), folder)]


def _remove_tree(path: str, wait_s: float = REMOVE_DEADLINE_S) -> bool:
    with contextlib.suppress(OSError):  # mostly there is nothing inside
        os.rmdir(path)
        return True
    gone = [_remove_directory(each, wait_s) for each in (*_below(path), path)]
    return all(gone)


def _remove_directory(path: str, wait_s: float) -> bool:
    """Return False where a process is still in it; other errors are not ours to mend."""
    deadline = time.monotonic() + wait_s
    while True:
        over = time.monotonic() > deadline
        try:
            os.rmdir(path)
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or over:
                return error.errno != errno.EBUSY
            time.sleep(0.005)
