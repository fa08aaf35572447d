"""Sources of interference: programs that each press on one shared resource at a chosen intensity (iBench, ch. 5).

The fifteen of iBench on ``stress-ng``, plus its variant of the sixth for the L2 cache. Intensity is relative to the
machine: at 100 % a source has one worker on each of its CPUs, or holds all that is free. It is set by the source's own
option if it has a suitable one, otherwise by the CPU quota of its control group, which is accurate to 1 %. Stopping and
continuing a process instead overshoots, so without control groups such a source is only off or full.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.errors import BadInput, NotFound, UnitRefused
from hcloud.core.processes import reap
from hcloud.profiler.host import ControlGroup, ProfilingHost

MIB = 1 << 20
NICE = 10
PIDS_MAX, PIDS_PER_WORKER = 256, 32
MEMORY_FULL_MIB = 512
STORAGE_FULL_MIB = 512
OVERHEAD_MIB, OVERHEAD_MIB_PER_WORKER = 1280, 64
"""stress-ng divides its large buffers among the workers of a source; only the rest is each worker's own."""
END_S = 1.0
FILL_S_MAX, FILL_MIB_PER_S, FILL_LOOK_S, FILLED = 10.0, 1024.0, 0.05, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceSource:
    """One source of interference."""

    number: str
    """Number in the paper."""
    name: str
    resource: str
    arguments: str
    """Arguments of stress-ng; ``{n}`` is the number of workers, ``{mib}`` is ``full_mib`` at intensity 100."""
    meter: str
    """Field of :class:`Used` that measures its pressure."""
    cross_core: bool
    """Whether it was measured to be felt from another core; otherwise it must share the core."""
    full_mib: int | None = None
    """Amount at full intensity; ``dataclasses.replace`` sets that of the machine."""

    @property
    def tuned_by(self) -> str:
        """What sets its intensity: "bytes" (its own option) or "cpu quota"."""
        return "bytes" if self.full_mib is not None else "cpu quota"

    @property
    def same_core(self) -> bool:
        """Whether it must run on the core of the program it is to disturb."""
        return not self.cross_core

    def workers(self, intensity: float, cpus: int) -> int:
        """Return how many workers it needs on so many CPUs: no more than the quota keeps busy."""
        if "{n}" not in self.arguments:
            return 1
        return cpus if self.full_mib is not None else max(1, math.ceil(intensity / 100 * cpus - 1e-9))

    def command(self, intensity: float, directory: Path, max_s: float, cpus: int = 1) -> list[str]:
        """Return the argument list at an intensity of 0..100 % of ``cpus``; it ends by itself after ``max_s``."""
        mib = max(1, round((self.full_mib or 0) * intensity / 100))
        own = self.arguments.format(mib=mib, n=self.workers(intensity, cpus)).split()
        program = stress_ng()
        return [program, "--quiet", *own, "--timeout", str(max(1, round(max_s))), "--temp-path", str(directory)]


def _source(number: str, name: str, resource: str, arguments: str, *, meter: str = "cpu_s", cross_core: bool = False,
            full_mib: int | None = None) -> InterferenceSource:  # fmt: skip
    return InterferenceSource(
        number=number, name=name, resource=resource, arguments=arguments, meter=meter, cross_core=cross_core,
        full_mib=full_mib,
    )  # fmt: skip


SOURCES: tuple[InterferenceSource, ...] = (
    _source("1", "memory-capacity", "memory capacity", "--vm {n} --vm-bytes {mib}M --vm-keep --vm-method write64",
            meter="memory_mib", cross_core=True, full_mib=MEMORY_FULL_MIB),
    _source("2", "memory-bandwidth", "memory bandwidth", "--stream {n} --stream-l3-size 64M", cross_core=True),
    _source("3", "storage-capacity", "storage capacity", "--fallocate 1 --fallocate-bytes {mib}M",
            meter="held_mib", cross_core=True, full_mib=STORAGE_FULL_MIB),
    _source("4", "storage-bandwidth", "storage bandwidth", "--hdd {n} --hdd-opts direct --hdd-bytes 64M "
            "--hdd-write-size 1M", meter="written_mib", cross_core=True),
    _source("5", "network-bandwidth", "network bandwidth", "--udp {n}", meter="network_mib", cross_core=True),
    _source("6", "llc-capacity", "last level cache, capacity", "--cache {n} --cache-level 3 --cache-no-affinity",
            cross_core=True),
    _source("6'", "l2", "L2 cache", "--cache {n} --cache-level 2 --cache-no-affinity"),
    _source("7", "llc-bandwidth", "last level cache, bandwidth", "--memthrash {n}", cross_core=True),
    _source("8", "l1i", "L1 instruction cache", "--icache {n}"),
    _source("9", "l1d", "L1 data cache", "--l1cache {n}"),
    _source("10", "tlb", "translation lookaside buffer", "--tlb-shootdown {n}"),
    _source("11", "integer", "integer units", "--cpu {n} --cpu-method int64"),
    _source("12", "floating-point", "floating point units", "--fp {n}"),
    _source("13", "prefetchers", "prefetchers", "--prefetch {n}"),
    _source("14", "interconnect", "interconnection network", "--lockbus {n}", cross_core=True),
    _source("15", "vector", "vector units", "--vecmath {n}"),
)  # fmt: skip


def source_named(name: str) -> InterferenceSource:
    """Return the source of that name. Raises NotFound, listing the known names."""
    for source in SOURCES:
        if source.name == name:
            return source
    raise NotFound(f"there is no source {name!r}; known sources are {', '.join(source.name for source in SOURCES)}")


def stress_ng() -> str:
    """Return the path of stress-ng. Raises UnitRefused if it is not installed."""
    path = shutil.which("stress-ng")
    if path is None:
        raise UnitRefused(
            "stress-ng is not installed, and sources of interference need it; install the package stress-ng"
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a running source has used so far, and holds now."""

    cpu_s: float
    memory_mib: float
    """Memory held now."""
    held_mib: float
    """Disk space held now."""
    written_mib: float
    network_mib: float


class RunningSource:
    """A running source."""

    def __init__(
        self,
        host: ProfilingHost,
        process: subprocess.Popen[bytes] | None,
        group: ControlGroup | None,
        holds_mib: float = 0.0,
    ) -> None:
        """Own the source's process (None: intensity 0) and its control group (None: not available).

        ``holds_mib``: memory or disk space it will hold. ``tunable``: whether intensities between 0 and 100 are
        available on this machine.
        """
        self._host, self._process, self._group, self.holds_mib = host, process, group, holds_mib
        self.tunable = group is not None

    @property
    def running(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.poll() is None

    def used(self) -> Used:
        """Return its meters; those of an ended process are 0."""
        if self._process is None:
            return Used(cpu_s=0.0, memory_mib=0.0, held_mib=0.0, written_mib=0.0, network_mib=0.0)
        pids = {self._process.pid} | self._host.descendants(self._process.pid)
        tree = self._host.tree_usage(pids)
        grouped = self._group.usage() if self._group is not None else None
        return Used(
            cpu_s=grouped.cpu_s if grouped is not None and grouped.cpu_s is not None else tree.cpu_s,
            memory_mib=grouped.memory_mib if grouped is not None and grouped.memory_mib is not None
            else tree.memory_mib,
            held_mib=_held_mib(pids),
            written_mib=tree.written_mib,
            network_mib=_sent_mib(self._process.pid),
        )  # fmt: skip

    @property
    def fill_s_max(self) -> float:
        """How long it may take until it holds what it is to hold, in seconds; more on large machines."""
        return FILL_S_MAX + self.holds_mib / FILL_MIB_PER_S

    def fill(self, wait: Callable[[float], object]) -> bool:
        """Let time pass by ``wait`` (seconds) until a source that occupies something holds it; return whether it does.

        Others press at once. Large memories take seconds to fill, and what is measured meanwhile is something else.
        """
        until = time.monotonic() + self.fill_s_max
        while self.holds_mib > 0 and self.running:
            used = self.used()
            if max(used.memory_mib, used.held_mib) >= FILLED * self.holds_mib:
                return True
            if time.monotonic() >= until:
                return False
            wait(FILL_LOOK_S)
        return True

    @contextmanager
    def at_rest(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Halt its processes while a block lasts; yield what lets them press while a block within it lasts.

        Nothing is started or ended in between, so it presses at once. What it holds it keeps.
        """

        @contextmanager
        def presses() -> Iterator[None]:
            self._signal(signal.SIGCONT)
            try:
                yield
            finally:
                self._signal(signal.SIGSTOP)

        self._signal(signal.SIGSTOP)
        try:
            yield presses
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        for pid in sorted({self._process.pid} | self._host.descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Stop it and all its children: SIGTERM first, so that it cleans up, then SIGKILL."""
        if self._process is None:
            return
        below = self._host.descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._group is not None:
            self._group.kill(lambda: None)
        self._host.kill_each(below & self._host.descendants(os.getpid()))
        reap(self._process)


@contextmanager
def start(
    source: InterferenceSource,
    intensity: float,
    cpus: tuple[int, ...],
    *,
    host: ProfilingHost,
    max_s: float = 60.0,
    directory: Path | None = None,
    enter: Callable[[], None] | None = None,
) -> Iterator[RunningSource]:
    """Press on a resource at ``intensity`` (0..100 %) from these CPUs until the block ends, at most ``max_s``.

    At 100 % all of these CPUs are busy, or ``full_mib`` is held. Files are created below ``directory`` (default: the
    system's temporary directory) and removed. ``enter`` is called in the child, to join namespaces. The source dies
    with the *thread* that started it. Raises BadInput for an bad intensity or CPU, UnitRefused without stress-ng.
    """
    _refuse_nonsense(intensity, cpus, max_s)
    stress_ng()
    quota = intensity / 100 * len(cpus) if source.full_mib is None else float(len(cpus))
    held_mib = (source.full_mib or 0) if source.meter == "memory_mib" else 0
    memory_mib = held_mib + OVERHEAD_MIB + OVERHEAD_MIB_PER_WORKER * len(cpus)
    pids = PIDS_MAX + PIDS_PER_WORKER * len(cpus)
    bounded = host.own_group(vcpus=quota, memory_mib=memory_mib, pids=pids, cpus=cpus)
    files = tempfile.TemporaryDirectory(prefix="hcloud-source-", dir=directory, ignore_cleanup_errors=True)
    with bounded as group, files as place:
        _refuse_untunable(source, intensity, group)
        load = (
            _begun(host, source, intensity, cpus, max_s, Path(place), group, enter)
            if intensity > 0
            else RunningSource(host, None, group)
        )
        try:
            yield load
        finally:
            load.stop()


def _refuse_nonsense(intensity: float, cpus: tuple[int, ...], max_s: float) -> None:
    if not 0 <= intensity <= 100:
        raise BadInput(f"intensity is {intensity:g} %; it must lie between 0 and 100")
    if not max_s > 0:
        raise BadInput(f"a source of interference cannot run for {max_s:g} s; it must be more than 0")
    allowed = os.sched_getaffinity(0)
    if not cpus or not set(cpus) <= allowed:
        raise BadInput(f"CPUs {cpus} cannot be used; this process may use {sorted(allowed)}")


def _refuse_untunable(source: InterferenceSource, intensity: float, group: ControlGroup | None) -> None:
    if group is None and source.full_mib is None and intensity not in (0, 100):
        raise BadInput(
            f"the intensity of {source.name} cannot be tuned here, without writable control groups; "
            "only 0 and 100 % are available"
        )


def become_neighbour(
    host: ProfilingHost, group: ControlGroup | None, cpus: tuple[int, ...], enter: Callable[[], None] | None
) -> Callable[[], None]:
    """Return a function that turns a forked child into a source or a victim before exec.

    The child dies with this process, joins ``group``, is pinned to ``cpus``, gets a lower priority, and calls ``enter``
    (to join namespaces).
    """
    parent = os.getpid()

    def become() -> None:
        # Exits at once if the parent died before the first line took effect.
        host.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        if group is not None:
            group.enter()
        os.sched_setaffinity(0, cpus)
        os.nice(NICE)
        if enter is not None:
            enter()
            host.die_with_parent()  # joining a user namespace has undone it

    return become


def _begun(
    host: ProfilingHost,
    source: InterferenceSource,
    intensity: float,
    cpus: tuple[int, ...],
    max_s: float,
    place: Path,
    group: ControlGroup | None,
    enter: Callable[[], None] | None,
) -> RunningSource:
    process = subprocess.Popen(
        source.command(intensity, place, max_s, len(cpus)),
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=become_neighbour(host, group, cpus, enter),
    )
    # stress-ng's file of a storage source is truncated and allocated again all the time, so only memory is waited for.
    holds_mib = (source.full_mib or 0) * intensity / 100 if source.meter == "memory_mib" else 0.0
    return RunningSource(host, process, group, holds_mib)


def _held_mib(pids: set[int]) -> float:
    """Return the disk space held by open files without a name, such as stress-ng's."""
    held: dict[tuple[int, int], int] = {}
    for pid in pids:
        for handle in _open_files(pid):
            try:
                about = os.stat(handle)
            except OSError:  # closed meanwhile, or another user's
                continue
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 0:
                held[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(held.values()) / MIB


def _open_files(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # ended meanwhile, or another user's
        return []


def _sent_mib(pid: int) -> float:
    """Return what all interfaces of a process's network namespace have sent so far."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    except OSError:
        return 0.0
    return sum(int(line.partition(":")[2].split()[8]) for line in lines) / MIB
