"""The machine as seen by the profiler: control groups, process trees, isolated starts. The engine implements it.

The profiler must not import the engine; callers that use both pass ``hcloud.engine.host.EngineHost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from hcloud.core.model import MetricsHook


class Totals(Protocol):
    """Resource use of a group since its creation; None if it cannot be determined."""

    @property
    def cpu_s(self) -> float | None:
        """CPU time."""

    @property
    def throttled_s(self) -> float | None:
        """Time for which its own quota kept its processes from the CPUs."""

    @property
    def memory_mib(self) -> float | None:
        """Memory in use now, without reclaimable file cache."""


class MeasuredCpuTimes(Protocol):
    """What CPUs have done so far, summed over them."""

    @property
    def busy_s(self) -> float:
        """Time for which they ran something."""

    @property
    def stolen_s(self) -> float:
        """Time for which the hypervisor ran something else although they had work."""


class TreeTotals(Protocol):
    """Resource use of the processes of a tree so far."""

    @property
    def cpu_s(self) -> float:
        """CPU time."""

    @property
    def waited_s(self) -> float:
        """Sum of the time its threads were runnable without a CPU."""

    @property
    def memory_mib(self) -> float:
        """Memory in use now."""

    @property
    def read_mib(self) -> float:
        """Read from storage."""

    @property
    def written_mib(self) -> float:
        """Written to storage."""


class ControlGroup(Protocol):
    """A control group for one run."""

    def enter(self) -> None:
        """Move the calling process into it."""

    def usage(self) -> Totals:
        """Return what its processes have used so far."""

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has killed for memory."""

    def forks_refused(self) -> int:
        """Return how often the kernel refused its processes another one because of its limit."""

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill all its processes; return whether it is empty now."""


class MeasuredUnit(Protocol):
    """A unit that runs on this machine and is measured in place."""

    @property
    def pid(self) -> int:
        """Its first process, in the host's numbering."""

    @property
    def job(self) -> Path:
        """Its work directory."""

    @property
    def log(self) -> Path:
        """Its output, in segments."""

    @property
    def cpus(self) -> tuple[int, ...] | None:
        """The CPUs it may use; None: all."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    def processes(self) -> set[int]:
        """Return the ids of its processes."""

    def usage(self) -> Totals:
        """Return what its processes have used so far."""

    def freeze(self, frozen: bool) -> None:
        """Halt or continue all its processes. Raises OSError where that is not possible."""


class Started(Protocol):
    """An isolated command that was started. Its output is only copied to files by calls of ``take``."""

    pid: int
    missing: bool

    @property
    def handles(self) -> list[int]:
        """Descriptors to wait on."""

    def take(self, ready: Iterable[int]) -> None:
        """Copy what the readable descriptors hold."""

    def drain(self) -> None:
        """Copy the remaining output after all writers have ended."""


class Enclosure(Protocol):
    """The isolation of one command."""

    @property
    def lacks(self) -> Sequence[str]:
        """What cannot be isolated on this machine, in sentences."""

    @property
    def workdir(self) -> Path:
        """Where the command's work directory must be mounted, as seen from outside."""

    def start(self, command: Sequence[str], env: Mapping[str, str], before: Callable[[], None], log: Path) -> Started:
        """Start the command; ``before`` runs in the child before isolation, to apply limits."""


class ServiceReader(Protocol):
    """Reads a service's metrics hook repeatedly, without blocking."""

    @property
    def latest(self) -> Mapping[str, Any]:
        """The last valid reading: ``requests_per_s`` (or None) and ``latency_ms`` by percentile; empty at first."""

    @property
    def span(self) -> tuple[float, float]:
        """Start and end (monotonic seconds) of the last valid reading."""

    def step(self, first_process: int) -> None:
        """Start a reading when one is due, or collect the output of the current one."""

    def close(self) -> None:
        """Cancel the current reading."""


class ProfilingHost(Protocol):
    """The machine, as the profiler uses it."""

    @property
    def directory(self) -> Path | None:
        """Directory for the files of copies and sources; None: the default for temporary files."""

    @property
    def vcpus(self) -> float:
        """CPU limit for everything measured here together."""

    @property
    def memory_mib(self) -> float:
        """Memory limit for everything measured here together."""

    @property
    def free_mib(self) -> float:
        """Memory of the machine that is free now, including what its kernel would give back."""

    @property
    def running(self) -> MeasuredUnit | None:
        """The unit that is measured in place; None: copies are measured."""

    def stopping(self) -> bool:
        """Return whether an early end was requested."""

    def disk_mib(self, directory: Path, most_mib: int) -> float:
        """Return what the files below use on disk; counting ends beyond ``most_mib``."""

    def last_progress(self, job: Path, name: str, total: float) -> float | None:
        """Return the progress (0..1) in the last line of a program's file; None if it is not readable."""

    def service_reader(self, hook: MetricsHook) -> ServiceReader:
        """Return a reader of a service's hook, run inside the service's own namespaces."""

    def own_group(
        self, *, vcpus: float, memory_mib: int, pids: int, cpus: tuple[int, ...] | None
    ) -> AbstractContextManager[ControlGroup | None]:
        """Create a group for the block; it is emptied and removed at the end. None without permission."""

    def enclosure(self, root: Path, uid: int, *, joined_network: bool) -> Enclosure:
        """Prepare the isolation of a command of that user, with its own files below ``root``.

        ``joined_network``: it keeps the network namespace that it joins before; otherwise it gets one of its own.
        """

    def limit_process(self, *, file_mib: int, pids: int | None, memory_mib: int | None) -> None:
        """Set resource limits on the calling process and its children; None leaves a limit unchanged."""

    def die_with_parent(self) -> None:
        """Have the kernel kill the calling process when its parent dies."""

    def descendants(self, pid: int) -> set[int]:
        """Return the ids of all processes below one."""

    def cpu_times(self, cpus: Iterable[int]) -> MeasuredCpuTimes:
        """Return what these CPUs have done so far, together."""

    def tree_usage(self, pids: Iterable[int]) -> TreeTotals:
        """Return the summed resource use of the processes."""

    def kill_each(self, pids: Iterable[int]) -> None:
        """Send SIGKILL to each process that still exists."""
