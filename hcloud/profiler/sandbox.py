"""Run a profiling copy without leaving any traces: files, sockets, processes (Paragon §2, Quasar §4.3).

The copy sees its work directory through an overlay whose upper layer is discarded. The engine provides the rest of its
isolation: its own process, mount, IPC and network namespaces, another user, no access to keys. What this machine cannot
isolate is reported in ``CopyResult.lacks``, never silently ignored.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hcloud.core.errors import BadInput
from hcloud.profiler.host import ControlGroup, ProfilingHost, Started
from hcloud.profiler.namespaces import mount_overlay, works_in_child
from hcloud.profiler.scratch import scratch

NOBODY_UID = 65534
TICK_S = 0.1
LIMITS_LOOK_S = 0.5
DISK_SHARE = 0.9
"""Share of its disk limit that a copy may use: it ends before the run of which it is part does."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A program to run once without traces."""

    command: tuple[str, ...]
    workdir: Path
    """Never modified."""
    max_s: float
    """Hard limit on the run time."""
    vcpus: float = 1.0
    memory_mib: int = 512
    disk_mib: int = 1024
    pids: int = 256
    cpus: tuple[int, ...] | None = None
    enter: Callable[[], None] | None = None
    """Called in the child to join a network, with which no other machine can be reached; None: it gets its own."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """How a copy ended and what it used."""

    exit_code: int
    """128 + signal for a killed one."""
    timed_out: bool
    missing: bool
    """The command does not exist."""
    duration_s: float
    cpu_s: float
    memory_mib_max: float
    overrun: str
    """Which of its limits it exceeded, in a sentence; "" if none."""
    stdout: bytes
    stderr: bytes
    lacks: tuple[str, ...]
    """What could not be isolated or limited here, in whole sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyUse:
    """What a copy has used so far, and what it holds now."""

    cpu_s: float
    waited_s: float
    """Time its threads were runnable without a CPU."""
    memory_mib: float
    """Memory held now."""
    read_mib: float
    written_mib: float
    throttled_s: float = 0.0
    """Time for which its own CPU quota kept it from its CPUs."""
    cpus_busy_s: float = 0.0
    """CPU time of everything on its CPUs since the machine booted."""
    cpus_stolen_s: float = 0.0
    """Time its CPUs had work while the hypervisor ran something else."""


def run_copy(copy: Copy, host: ProfilingHost) -> CopyResult:
    """Run a copy to its end, or for at most ``max_s``; afterwards nothing of it is left.

    Raises BadInput if the command is empty, the work directory is not a directory, or a limit is not positive.
    """
    with live_copy(copy, host) as live:
        live.attend(copy.max_s)
        return live.end()


@contextmanager
def live_copy(copy: Copy, host: ProfilingHost) -> Iterator[LiveCopy]:
    """Run a copy while the block lasts; it is killed at the end of the block.

    Raises BadInput as ``run_copy`` does.
    """
    _refuse_nonsense(copy)
    uid = _user_for(copy.workdir)
    bounded = host.own_group(vcpus=copy.vcpus, memory_mib=copy.memory_mib, pids=copy.pids, cpus=copy.cpus)
    with bounded as group, scratch("copy", host.directory) as folder:
        enclosure = host.enclosure(folder / "root", uid, joined_network=copy.enter is not None)
        view, lack, job = _view(copy.workdir, enclosure.workdir, folder, uid)

        def before() -> None:
            # In the child: limits first, while it may still set them.
            _take_bounds(host, copy, group)
            if copy.enter is not None:
                copy.enter()
                host.die_with_parent()  # joining a user namespace has undone it
            view()

        (folder / "log").mkdir()
        started = enclosure.start(copy.command, copy.env, before, folder / "log")
        live = LiveCopy(
            host, started, group, job, folder / "log", (*enclosure.lacks, *_lacks(copy, group), *lack), copy
        )
        try:
            yield live
        finally:
            live.end()


def _refuse_nonsense(copy: Copy) -> None:
    if not copy.command:
        raise BadInput("a profiling copy needs a command")
    if not copy.workdir.is_dir():
        raise BadInput(f"{copy.workdir}: not a directory; a profiling copy needs a work directory")
    for name in ("max_s", "vcpus", "memory_mib", "disk_mib", "pids"):
        if not getattr(copy, name) > 0:
            raise BadInput(f"{name} of a profiling copy is {getattr(copy, name)}; it must be more than 0")


def _lacks(copy: Copy, group: ControlGroup | None) -> Iterator[str]:
    if group is None:
        yield "no writable control groups: memory is limited per process, CPU only by pinning"


def _user_for(workdir: Path) -> int:
    """Return the owner of the work directory; for root's own, ``NOBODY_UID``, since a copy never runs as root."""
    if os.geteuid() != 0:
        return os.getuid()
    return workdir.stat().st_uid or NOBODY_UID


def _view(workdir: Path, target: Path, folder: Path, uid: int) -> tuple[Callable[[], None], tuple[str, ...], Path]:
    """Return what the child does to see the work directory, what could not be isolated, and where its writes appear."""
    upper, work = folder / "upper", folder / "work"
    for each in (upper, work):
        each.mkdir(mode=0o700)
        os.chown(each, uid, -1)

    def overlay() -> None:
        mount_overlay(workdir.resolve(), upper, work, target)

    owned = workdir.stat().st_uid == uid
    if owned and works_in_child(overlay):
        return overlay, (), upper
    _copy_tree(workdir, target, uid)
    why = "this kernel or file system refuses an overlay" if owned else "it belongs to another user than the copy"
    return lambda: None, (f"the work directory was copied in full, not viewed copy-on-write: {why}",), target


def _copy_tree(source: Path, target: Path, uid: int) -> None:
    """Copy plain files, directories and links; sockets and devices are skipped."""

    def plain_only(directory: str, names: list[str]) -> set[str]:
        paths = {name: Path(directory, name) for name in names}
        return {name for name, path in paths.items() if not (path.is_symlink() or path.is_file() or path.is_dir())}

    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=plain_only)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(target):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, uid, uid, follow_symlinks=False)


def _take_bounds(host: ProfilingHost, copy: Copy, group: ControlGroup | None) -> None:
    """Apply limits, in the child before its isolation."""
    if group is not None:
        group.enter()
    if copy.cpus:
        os.sched_setaffinity(0, copy.cpus)
    host.limit_process(
        file_mib=copy.disk_mib,
        pids=None if group is not None else copy.pids,
        memory_mib=None if group is not None else copy.memory_mib,
    )


class LiveCopy:
    """A running copy. Call ``attend`` regularly: output that is not collected eventually blocks the program.

    ``job``: directory in which its writes to the work directory appear; ``lacks``: as in :class:`CopyResult`.
    """

    def __init__(
        self,
        host: ProfilingHost,
        launch: Started,
        group: ControlGroup | None,
        job: Path,
        log: Path,
        lacks: tuple[str, ...],
        copy: Copy,
    ) -> None:
        """Own a launched process; ``lacks``: what this machine could not isolate, in sentences."""
        self._copy, self._folder = copy, log.parent
        self._limits_due_at = 0.0
        # A work directory that could not be viewed was copied in full.
        self._given_mib = host.disk_mib(self._folder, 1 << 40)
        self.overrun = ""
        self._host, self._launch, self._group, self._log = host, launch, group, log
        self._handle = os.pidfd_open(launch.pid)
        self._began = time.monotonic()
        self._memory_mib = 0.0
        self._outcome: CopyResult | None = None
        self.pid, self.job, self.lacks = launch.pid, job, lacks
        self.ended = False

    @property
    def bounded(self) -> bool:
        """Whether it has its own control group."""
        return self._group is not None

    def attend(self, seconds: float, *also: int) -> list[int]:
        """Collect its output for ``seconds``, until it ends, or until any of ``also`` are readable: return those."""
        deadline = time.monotonic() + seconds
        while not self.ended and not self._host.stopping() and (left_s := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([*self._launch.handles, self._handle, *also], [], [], min(TICK_S, left_s))
            self._launch.take(ready)
            if self._group is not None:
                self._memory_mib = max(self._memory_mib, self._group.usage().memory_mib or 0.0)
            self.ended = self._handle in ready
            if not self.ended and time.monotonic() >= self._limits_due_at:
                self._hold_limits()
            if asked := [each for each in also if each in ready]:
                return asked
        return []

    def _hold_limits(self) -> None:
        """Kill it if it exceeds a limit that the kernel does not end it for: the sum of its files, its processes."""
        self.overrun = self.overrun or self._exceeded()
        self._limits_due_at = time.monotonic() + LIMITS_LOOK_S
        if self.overrun:
            self._kill()

    def _exceeded(self) -> str:
        copy, group = self._copy, self._group
        if group is not None and group.forks_refused():
            return f"it started more than {copy.pids} processes at once, the limit of a profiling copy"
        most_mib = DISK_SHARE * copy.disk_mib
        if self._host.disk_mib(self._folder, int(self._given_mib + copy.disk_mib)) - self._given_mib > most_mib:
            return f"it wrote more than {most_mib:.0f} MiB of files, the limit of a profiling copy"
        return ""

    def use(self) -> CopyUse:
        """Return what it has used so far: from its group if available, otherwise from its living processes."""
        grouped = self._group.usage() if self._group is not None else None
        tree, cpus = self._host.tree_usage(self.processes()), self._host.cpu_times(self._copy.cpus or ())
        return CopyUse(
            throttled_s=(grouped.throttled_s or 0.0) if grouped is not None else 0.0,
            cpus_busy_s=cpus.busy_s,
            cpus_stolen_s=cpus.stolen_s,
            cpu_s=grouped.cpu_s if grouped is not None and grouped.cpu_s is not None else tree.cpu_s,
            waited_s=tree.waited_s,
            memory_mib=grouped.memory_mib if grouped is not None and grouped.memory_mib is not None
            else tree.memory_mib,
            read_mib=tree.read_mib,
            written_mib=tree.written_mib,
        )  # fmt: skip

    def cpu_s(self) -> float:
        """Return the CPU time it has used so far."""
        grouped = self._group.usage().cpu_s if self._group is not None else None
        return grouped if grouped is not None else self._host.tree_usage(self.processes()).cpu_s

    def output_mib(self) -> float:
        """Return how much output it has produced so far: its streams, and files in its work directory."""
        return output_mib(self._log, self.job)

    def pause(self) -> None:
        """Stop all its processes; they keep their memory."""
        for _ in range(2):  # catches a process forked during the first round
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue all its processes."""
        self._signal(signal.SIGCONT)

    def end(self) -> CopyResult:
        """Kill it if it is still running and remove all of it; return the same result on every call."""
        if self._outcome is None:
            os.close(self._handle)
            self._kill()
            _, status, spent = os.wait4(self._launch.pid, 0)
            self._outcome = self._judge(status, spent)
        return self._outcome

    def _judge(self, status: int, spent: resource.struct_rusage) -> CopyResult:
        duration_s = time.monotonic() - self._began
        self._launch.drain()
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        used = self._group.usage() if self._group is not None else None
        cpu_s = used.cpu_s if used is not None else None
        return CopyResult(
            exit_code=code,
            timed_out=not self.ended,
            missing=self._launch.missing,
            duration_s=duration_s,
            cpu_s=cpu_s if cpu_s is not None else spent.ru_utime + spent.ru_stime,
            memory_mib_max=max(self._memory_mib, spent.ru_maxrss / 1024),
            overrun=self._overrun_of(code),
            stdout=_written(self._log, "stdout"),
            stderr=_written(self._log, "stderr"),
            lacks=self.lacks,
        )

    def _overrun_of(self, exit_code: int) -> str:
        if self.overrun:
            return self.overrun
        if self._group is not None and self._group.oom_kills():
            return f"it used more than its {self._copy.memory_mib} MiB of memory"
        if exit_code == 128 + signal.SIGXFSZ:
            return f"it wrote a file of more than its {self._copy.disk_mib} MiB of disk"
        return self._exceeded() if exit_code != 0 else ""

    def processes(self) -> set[int]:
        """Return the ids of the copy's processes, in the host's numbering."""
        return {self.pid} | self._host.descendants(self.pid)

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _kill(self) -> None:
        """Kill the whole tree. The first process has not been reaped yet, so its pid cannot have been reused."""
        own = self.processes()
        if self._group is not None:
            self._group.kill(lambda: None)
        self._host.kill_each(own)


def output_mib(log: Path, job: Path) -> float:
    """Return how much output a program has produced so far: its streams, and files in its work directory."""
    total = sum(_end_of_stream(log, stream) for stream in ("stdout", "stderr"))
    for folder, _, names in os.walk(job):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # removed meanwhile
                continue
    return total / MIB


def _end_of_stream(log: Path, stream: str) -> int:
    """Return the bytes written to a stream, including dropped ones: segments are named by their start offset."""
    last = max(log.glob(f"{stream}.*"), default=None)
    return int(last.name.rpartition(".")[2]) + last.stat().st_size if last is not None else 0


def _written(log: Path, stream: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.glob(f"{stream}.*")))
