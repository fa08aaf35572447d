"""What profiling asks of the machine it runs on: groups, process trees, enclosed starts. The engine provides it.

The two rooms do not see each other; whoever uses both hands ``hcloud.engine.host.EngineHost`` to the profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from hcloud.core.model import MetricsHook


class Totals(Protocol):
    """What a group used since it was made; None if unknown."""

    @property
    def cpu_s(self) -> float | None:
        """CPU time."""

    @property
    def memory_mib(self) -> float | None:
        """Memory held now, without reclaimable file cache."""


class TreeTotals(Protocol):
    """What the processes of a tree used so far."""

    @property
    def cpu_s(self) -> float:
        """CPU time."""

    @property
    def waited_s(self) -> float:
        """How long its threads were ready to run and had no CPU, in sum."""

    @property
    def memory_mib(self) -> float:
        """Memory held now."""

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
        """Return what its processes used so far."""

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed for memory."""

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill everything in it; return whether it is empty now."""


class Started(Protocol):
    """An enclosed command that was started; its output is copied to files by calls of ``take``."""

    pid: int
    missing: bool

    @property
    def handles(self) -> list[int]:
        """Descriptors to wait on."""

    def take(self, ready: Iterable[int]) -> None:
        """Copy what the readable descriptors hold."""

    def drain(self) -> None:
        """Copy the rest once the last writer has closed it."""


class Enclosure(Protocol):
    """What keeps one command apart. ``lacks`` says in sentences what this machine cannot do for it."""

    @property
    def lacks(self) -> Sequence[str]:
        """What is not isolated here."""

    @property
    def workdir(self) -> Path:
        """Where the command's work directory has to be laid, seen from outside."""

    def start(self, command: Sequence[str], env: Mapping[str, str], before: Callable[[], None], log: Path) -> Started:
        """Start the command; ``before`` is called in the child, still outside, to take on bounds."""


class ServiceReader(Protocol):
    """Reads a service's metrics hook again and again, without ever blocking."""

    @property
    def latest(self) -> Mapping[str, Any]:
        """The last good reading: ``requests_per_s`` (or None) and ``latency_ms`` by percentile; empty: none yet."""

    @property
    def span(self) -> tuple[float, float]:
        """From when to when (monotonic seconds) the last good reading was made."""

    def step(self, first_process: int) -> None:
        """Begin a reading when one is due, or take in what the present one has answered."""

    def close(self) -> None:
        """End a reading in progress."""


class ProfilingHost(Protocol):
    """The machine, as the profiler uses it."""

    @property
    def directory(self) -> Path | None:
        """Where files of copies and loads go; None: the usual place for temporary files."""

    @property
    def vcpus(self) -> float:
        """How much CPU time all that is measured here may take together."""

    @property
    def memory_mib(self) -> float:
        """How much memory all that is measured here may hold together."""

    def stopping(self) -> bool:
        """Whether an early end was requested."""

    def last_progress(self, job: Path, name: str, total: float) -> float | None:
        """Return the progress (0..1) in the last line of a program's file; None: nothing to be read there."""

    def service_reader(self, hook: MetricsHook) -> ServiceReader:
        """Return what reads a service's hook inside the service's own namespaces."""

    def own_group(
        self, *, vcpus: float, memory_mib: int, pids: int, cpus: tuple[int, ...] | None
    ) -> AbstractContextManager[ControlGroup | None]:
        """Make a group for a block, emptied and removed at its end. None: this process may not."""

    def enclosure(self, root: Path, uid: int, *, network: bool) -> Enclosure:
        """Prepare what keeps a command of that user apart, with files of its own below ``root``."""

    def limit_process(self, *, file_mib: int, pids: int | None, memory_mib: int | None) -> None:
        """Set plain limits on the calling process and what it starts; None leaves one alone."""

    def die_with_parent(self) -> None:
        """Have the kernel kill the calling process when its parent dies."""

    def descendants(self, pid: int) -> set[int]:
        """Return the ids of all processes below one."""

    def tree_usage(self, pids: Iterable[int]) -> TreeTotals:
        """Sum what the processes used."""

    def kill_each(self, pids: Iterable[int]) -> None:
        """Send KILL to each process that still exists."""
