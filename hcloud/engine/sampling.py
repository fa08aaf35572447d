"""Looks at a running unit again and again: writes its samples, and says when it outgrew what it was given."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hcloud.core.clock import Clock
from hcloud.core.cpu_window import CpuWindow
from hcloud.core.model import FailureCause
from hcloud.engine.cpu_report import affinity
from hcloud.engine.limits import Cgroup, CgroupUsage
from hcloud.engine.unit import Unit
from hcloud.engine.usage import CpuTimes, TreeUsage, cpu_times, descendants, disk_bytes, last_progress, tree_usage
from hcloud.provider import UnitSample, UnitSpec

if TYPE_CHECKING:
    from hcloud.engine.metrics import MetricsReader

MIB, GIB = 1 << 20, 1 << 30
FIRST_SAMPLE_S = 0.5
SAMPLE_S, LATE_SAMPLE_S = 2.0, 4.0
"""Time between two samples; the second of a service whose readings, which come more often, fail."""
DISK_USED_UP = 0.97
DISK_SHARE = 20.0
"""Counting a unit's files takes at most one part in so many of the time."""


@dataclass(slots=True)
class EndedProcesses:
    """What processes of one unit used that have ended and were collected."""

    cpu_s: float = 0.0
    memory_mib_max: float = 0.0
    read_mib: float = 0.0
    written_mib: float = 0.0

    def add(self, usage: resource.struct_rusage) -> None:
        """Count what the wait for a process returned, which includes what it had collected itself."""
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.memory_mib_max = max(self.memory_mib_max, usage.ru_maxrss / 1024)
        self.read_mib += usage.ru_inblock * 512 / MIB
        self.written_mib += usage.ru_oublock * 512 / MIB


@dataclass(frozen=True, slots=True)
class _Look:
    """What a unit and its machine had used at one time."""

    at: float
    unit: CgroupUsage
    tree: TreeUsage
    machine: CpuTimes
    instance_cpu_s: float | None


class Sampler:
    """What one unit used so far."""

    def __init__(
        self,
        unit: Unit,
        spec: UnitSpec,
        group: Cgroup | None,
        clock: Clock,
        *,
        sandboxed: bool,
        cpus: tuple[int, ...] = (),
    ) -> None:
        """``sandboxed``: the unit's command has namespaces of its own. ``cpus``: those of the machine."""
        self._unit, self._spec, self._group, self._clock = unit, spec, group, clock
        self._machine_cpus, self._cpus = cpus, tuple[int, ...]()
        self._metrics: MetricsReader | None = None
        if spec.metrics is not None:
            # Only then: what it needs to fetch URLs would make each keeper's start dearer.
            from hcloud.engine.metrics import MetricsReader

            self._metrics = MetricsReader(spec.metrics, sandboxed=sandboxed, group=group)
        self._is_read_often = spec.metrics is not None and spec.metrics.every_s <= SAMPLE_S
        self._read_at = 0.0
        self.paused_s = 0.0
        """How long the unit was paused so far."""
        self._first_sample = self._next_sample = time.monotonic() + FIRST_SAMPLE_S
        self._next_count = self._first_sample
        self.ended = EndedProcesses()
        self.oom_kills = 0
        self.cpu_s: float | None = None
        self.taken_s = 0.0
        self._before: _Look | None = None
        self.memory_mib_max: float | None = None

    def look(self, first_process: int) -> tuple[FailureCause, str] | None:
        """Take a sample when one is due; return why the unit must be ended now, if it must."""
        now, overrun = time.monotonic(), None
        if self._metrics is not None:
            self._metrics.step(first_process)
        if self._group is None:
            overrun = self._watch_memory()
        if now >= self._next_sample or self._has_new_reading():
            # One that is read often is sampled with each reading, so that none counts twice.
            self._next_sample = now + (LATE_SAMPLE_S if self._is_read_often else SAMPLE_S)
            self._write(self._measure())
        if now >= self._next_count:
            overrun = overrun or self._watch_disk(now)
        return overrun

    def _has_new_reading(self) -> bool:
        """Return whether a service that is read often was read since this was asked."""
        if self._metrics is None or not self._is_read_often or self._metrics.span[1] == self._read_at:
            return False
        self._read_at = self._metrics.span[1]
        return True

    def sample_now(self) -> None:
        """Take a sample that was not due yet: the unit is paused or resumed."""
        self._write(self._measure())

    def finish(self) -> None:
        """Take the last sample: the command has ended, its group still knows what it used.

        The exit record says what a unit used that ended before its first sample; it has none then, unless it has hooks.
        """
        if self._metrics is not None:
            self._metrics.close()
        if self._group is not None:
            self.oom_kills = self._group.oom_kills()
        used = self._measure()
        if time.monotonic() >= self._first_sample or self._spec.progress is not None or self._metrics is not None:
            self._write(used)

    def disk_is_used_up(self) -> bool:
        """Whether the unit's files take (almost) all they may: a program that failed then failed for that."""
        limit = int(self._spec.resources.disk_gib * GIB)
        return disk_bytes(self._unit.path / "root", stop_at=limit) >= DISK_USED_UP * limit

    def _measure(self) -> CgroupUsage:
        """Totals; what the group does not account is summed over its processes."""
        group = self._group.usage() if self._group is not None else CgroupUsage()
        members = self._group.processes() if self._group is not None else descendants(os.getpid())
        tree, ended = tree_usage(members), self.ended
        self._cpus = affinity(members, self._machine_cpus)
        cpu_s = tree.cpu_s + ended.cpu_s if group.cpu_s is None else group.cpu_s
        memory_mib = tree.memory_mib if group.memory_mib is None else group.memory_mib
        read_mib = tree.read_mib + ended.read_mib if group.read_mib is None else group.read_mib
        written_mib = tree.written_mib + ended.written_mib if group.written_mib is None else group.written_mib
        self.cpu_s = max(cpu_s, self.cpu_s or 0.0)
        self._note_taken(group, tree)
        largest = memory_mib if members else max(memory_mib, ended.memory_mib_max)
        self.memory_mib_max = max(largest, self.memory_mib_max or 0.0)
        return CgroupUsage(cpu_s=self.cpu_s, memory_mib=memory_mib, read_mib=read_mib, written_mib=written_mib)

    def _note_taken(self, group: CgroupUsage, tree: TreeUsage) -> None:
        """Add what the host took from the unit since the last look; nothing where the unit's share is not known."""
        if self._group is None or group.cpu_s is None or not self._machine_cpus:
            return
        before = self._before
        machine, instance_cpu_s = cpu_times(self._machine_cpus), self._group.instance_cpu_s()
        look = self._before = _Look(time.monotonic(), group, tree, machine, instance_cpu_s)
        if before is None or look.at <= before.at:
            return
        cpu_s = group.cpu_s - (before.unit.cpu_s or 0.0)
        window = CpuWindow(
            took_s=look.at - before.at,
            cpu_s=cpu_s,
            # Threads that have ended took their share of it along.
            waited_s=max(0.0, tree.waited_s - before.tree.waited_s),
            throttled_s=(group.throttled_s or 0.0) - (before.unit.throttled_s or 0.0),
            busy_s=look.machine.busy_s - before.machine.busy_s,
            stolen_s=look.machine.stolen_s - before.machine.stolen_s,
            own_s=max(0.0, (look.instance_cpu_s or 0.0) - (before.instance_cpu_s or 0.0) - cpu_s),
        )
        self.taken_s += window.lost_s(self._group.vcpus() or self._spec.resources.vcpus)

    def _write(self, usage: CgroupUsage) -> None:
        hook = self._spec.progress
        job = self._unit.path / "root" / "job"
        measured = self._metrics.latest if self._metrics is not None else {}
        sample = UnitSample(
            at=self._clock.now(),
            cpu_s=usage.cpu_s,
            taken_s=round(self.taken_s, 3) or None,
            memory_mib=usage.memory_mib,
            read_mib=usage.read_mib,
            written_mib=usage.written_mib,
            progress=last_progress(job, hook.file, hook.total) if hook is not None else None,
            requests_per_s=measured.get("requests_per_s"),
            latency_ms=measured.get("latency_ms", {}),
            cpus=self._cpus,
            paused_s=self.paused_s,
        )
        plain = asdict(sample)
        for name in ("paused_s", "taken_s"):  # daemons of before know neither
            if not plain[name]:
                del plain[name]
        try:
            self._unit.write("sample.json", plain)
        except OSError:  # a full disk costs samples, not the unit
            return

    def _watch_memory(self) -> tuple[FailureCause, str] | None:
        """Without a group the kernel does not stop the tree at its limit, so this does."""
        used_mib = tree_usage(descendants(os.getpid())).memory_mib
        self.memory_mib_max = max(used_mib, self.memory_mib_max or 0.0)
        if used_mib <= self._spec.resources.memory_mib:
            return None
        return (
            FailureCause.OUT_OF_MEMORY,
            f"it used {used_mib:.0f} MiB of its {self._spec.resources.memory_mib} MiB of memory",
        )

    def _watch_disk(self, now: float) -> tuple[FailureCause, str] | None:
        limit = int(self._spec.resources.disk_gib * GIB)
        used = disk_bytes(self._unit.path / "root", stop_at=limit)
        took = time.monotonic() - now
        self._next_count = now + max(FIRST_SAMPLE_S, took * DISK_SHARE)
        if used <= limit:
            return None
        return FailureCause.OUT_OF_DISK, f"its files took more than its {self._spec.resources.disk_gib:g} GiB of disk"
