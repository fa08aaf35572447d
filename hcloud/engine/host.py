"""The machine as the profiler uses it (its port ``hcloud.profiler.host``), made of what keeps units."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcloud.core.model import MetricsHook
from hcloud.engine import launch, limits, usage
from hcloud.engine.launch import RunningCommand
from hcloud.engine.limits import Bounds, Cgroup, find_instance_cgroup, group_for, remove_instance_cgroup
from hcloud.engine.sandbox import Cell, Isolation, prepare_cell, working_bwrap
from hcloud.engine.unit import Unit

if TYPE_CHECKING:
    from hcloud.engine.metrics import MetricsReader

PREFIX = "profile"
LOG_BYTES = 1 << 20
_NOT_OF_COPIES = ("images", "firewall", "sources", "tunnel")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnclosure:
    """A unit's cell for a single command."""

    cell: Cell

    @property
    def lacks(self) -> Sequence[str]:
        """What is not isolated here, in sentences."""
        return tuple(why for what, why in self.cell.isolation.lacks.items() if what not in _NOT_OF_COPIES)

    @property
    def workdir(self) -> Path:
        """Where the command's work directory has to be laid, seen from outside."""
        return self.cell.root / "job"

    def start(
        self, command: Sequence[str], env: Mapping[str, str], before: Callable[[], None], log: Path
    ) -> RunningCommand:
        """Start the command; ``before`` is called in the child, still outside, to take on bounds."""
        return RunningCommand(self.cell, command, self.cell.environment(env), before, log, LOG_BYTES)


@dataclass(frozen=True, slots=True)
class RunningUnit:
    """A unit of this machine, measured in place by another one."""

    unit: Unit
    group: Cgroup
    cpus: tuple[int, ...] | None

    @property
    def pid(self) -> int:
        """Its first process, in the host's numbering; 0: it has none."""
        keeper = self.unit.keeper_pid or 0
        return min(usage.descendants(keeper, depth=1) & self.processes(), default=0) if keeper else 0

    @property
    def job(self) -> Path:
        """Its work directory."""
        return self.unit.path / "root" / "job"

    @property
    def log(self) -> Path:
        """Its output, in segments."""
        return self.unit.path / "log"

    @property
    def ended(self) -> bool:
        """Whether it has ended, or nothing keeps it."""
        return self.unit.ended or not self.unit.kept

    def processes(self) -> set[int]:
        """Return the ids of its processes."""
        return self.group.processes()

    def usage(self) -> limits.CgroupUsage:
        """Return what its processes used so far."""
        return self.group.usage()

    def freeze(self, frozen: bool) -> None:
        """Halt or continue all its processes. Raises OSError where that is not possible."""
        self.group.freeze(frozen)


class EngineHost:
    """Groups, process trees and enclosed starts on this machine.

    ``isolation`` keeps copies apart; None: found out by trying. ``cgroup`` (as in a bootstrap file) is the group below
    which all others are made, so that its bounds hold for their sum; None: groups at the top of the tree, of whatever
    bounds they are asked for. ``bounds`` are those of that group. ``image_root`` holds the files of a container image,
    in which copies run without changing it. ``running`` is a unit to measure in place. ``stopping`` says
    whether to end early.
    """

    def __init__(
        self,
        *,
        isolation: Isolation | None = None,
        cgroup: Mapping[str, Any] | None = None,
        bounds: Bounds | None = None,
        directory: Path | None = None,
        readonly: tuple[str, ...] = (),
        image_root: Path | None = None,
        running: RunningUnit | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._isolation, self._cgroup, self._bounds, self._readonly = isolation, cgroup, bounds, readonly
        self.directory, self.stopping, self._image_root = directory, stopping, image_root
        self.running = running

    @property
    def vcpus(self) -> float:
        """How much CPU time all that is measured here may take together."""
        usable = float(len(os.sched_getaffinity(0)))
        return usable if self._bounds is None else min(usable, self._bounds.vcpus)

    @property
    def memory_mib(self) -> float:
        """How much memory all that is measured here may hold together."""
        machine_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / limits.MIB
        return machine_mib if self._bounds is None else min(machine_mib, self._bounds.memory_mib)

    @property
    def free_mib(self) -> float:
        """How much memory of the machine is free now, including what its kernel would give back."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / limits.MIB

    @contextmanager
    def own_group(
        self, *, vcpus: float, memory_mib: int, pids: int, cpus: tuple[int, ...] | None
    ) -> Iterator[Cgroup | None]:
        """Make a group for a block; at the end kill what is in it and remove it. None: this process may not."""
        name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        wanted = Bounds(vcpus=vcpus, memory_mib=memory_mib, pids=pids, cpus=cpus)
        with self._above(name, cpus) as parent:
            group = group_for(parent, name)
            if group is None:
                yield None
                return
            try:
                group.make(wanted if self._bounds is None else wanted.within(self._bounds))
                yield group
            finally:
                group.kill(lambda: None)
                group.remove()

    @contextmanager
    def _above(self, name: str, cpus: tuple[int, ...] | None) -> Iterator[Mapping[str, Any] | None]:
        if self._isolation is not None:
            yield self._cgroup
            return
        _sweep()
        made = find_instance_cgroup(name, cpus)
        try:
            yield made
        finally:
            remove_instance_cgroup(made)

    def enclosure(self, root: Path, uid: int, *, joined_network: bool) -> CellEnclosure:
        """Prepare a cell for a command of that user, with files of its own below ``root``.

        ``joined_network``: it keeps the network namespace that it joins before; otherwise it gets one of its own.
        """
        isolation = self._isolation or _isolation()
        prepare_cell(root, uid, root_user=isolation.root)
        network = "host" if joined_network else "none"
        cell = Cell(
            root=root,
            uid=uid,
            network=network,
            isolation=isolation,
            readonly=self._readonly,
            image_root=self._image_root,
            image_is_shared=True,
        )
        return CellEnclosure(cell=cell)

    def limit_process(self, *, file_mib: int, pids: int | None, memory_mib: int | None) -> None:
        """Set plain limits on the calling process and what it starts; None leaves one alone."""
        limits.limit_process(file_mib=file_mib, pids=pids, memory_mib=memory_mib)

    def die_with_parent(self) -> None:
        """Have the kernel kill the calling process when its parent dies."""
        launch.die_with_parent()

    def descendants(self, pid: int) -> set[int]:
        """Return the ids of all processes below one."""
        return usage.descendants(pid)

    def cpu_times(self, cpus: Iterable[int]) -> usage.CpuTimes:
        """Return what these CPUs have done so far, together."""
        return usage.cpu_times(cpus)

    def tree_usage(self, pids: Iterable[int]) -> usage.TreeUsage:
        """Sum what the processes used."""
        return usage.tree_usage(pids)

    def disk_mib(self, directory: Path, most_mib: int) -> float:
        """Return what the files below use on disk; counting ends beyond ``most_mib``."""
        return usage.disk_bytes(directory, most_mib * limits.MIB) / limits.MIB

    def last_progress(self, job: Path, name: str, total: float) -> float | None:
        """Return the progress (0..1) in the last line of a program's file; None: nothing to be read there."""
        return usage.last_progress(job, name, total)

    def service_reader(self, hook: MetricsHook) -> MetricsReader:
        """Return what reads a service's hook inside the service's own namespaces."""
        isolation = self._isolation or _isolation()
        from hcloud.engine.metrics import CollectingReader  # see ``sampling``

        return CollectingReader(hook, sandboxed=isolation.bwrap is not None)

    def kill_each(self, pids: Iterable[int]) -> None:
        """Send KILL to each process that still exists."""
        limits.kill_each(pids)


def _isolation() -> Isolation:
    root = os.geteuid() == 0
    bwrap = working_bwrap(root)
    lacks = {}
    if bwrap is None:
        lacks["sandbox"] = (
            "bubblewrap (bwrap) is not installed or may not make namespaces here: the copy sees this machine's files "
            "and processes, has its network, and a daemon it forks may outlive it"
        )
    if not root:
        lacks["uid"] = "not root: the copy runs under this process's own user id"
    return Isolation(root=root, bwrap=bwrap, firewall=False, cgroup=None, podman=None, pinned=False, lacks=lacks)


def _sweep() -> None:
    """Remove groups of killed processes. One that is still in use refuses, so this can do no harm."""
    for name in limits.found_cgroups(PREFIX):
        owner = name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            limits.remove_found_cgroup(name)
