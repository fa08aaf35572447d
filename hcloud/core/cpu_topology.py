"""The CPUs of a machine: which share a core (SMT), a last-level cache, a socket and a NUMA node.

What a machine reports of itself is checked here (:func:`topology_from`): it may claim anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

CPUS_MAX = 4096
"""More CPUs than this no machine is believed to have."""
NUMBER_MAX = 65_535
TWO_SOCKETS_FROM, TWO_THREADS_FROM = 16, 32
"""From so many logical CPUs on a typical machine has two sockets, and two threads per core."""
CORES_OF_CACHE = 8
"""Cores that share a last-level cache on a typical machine."""

Level = Literal["core", "l3", "node", "socket"]


class LogicalCpu(NamedTuple):
    """One CPU as the kernel counts them, and what it shares with others: those have the same number there."""

    number: int
    """The kernel's number."""
    core: int
    l3: int
    """Last-level cache."""
    socket: int
    node: int
    """NUMA node."""


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The CPUs that units of a machine may use, by number."""

    cpus: tuple[LogicalCpu, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The kernel's numbers of all CPUs, ascending."""
        return tuple(each.number for each in self.cpus)

    def groups(self, level: Level) -> Mapping[int, tuple[int, ...]]:
        """Return the numbers of the CPUs that share each core, cache, node or socket."""
        found: dict[int, list[int]] = {}
        for each in self.cpus:
            found.setdefault(getattr(each, level), []).append(each.number)
        return {key: tuple(numbers) for key, numbers in found.items()}

    def words(self) -> str:
        """Return it in words: ``2 sockets of 8 cores, 2 threads per core, 4 L3 caches, 2 NUMA nodes``."""
        sockets, cores, caches, nodes = (len(self.groups(level)) for level in ("socket", "core", "l3", "node"))
        per_socket = f" of {cores // sockets}" if sockets > 1 and cores % sockets == 0 else f", {cores}"
        text = f"{_counted(sockets, 'socket')}{per_socket} {'core' if per_socket.endswith(' 1') else 'cores'}"
        if (threads := len(self.cpus) / cores) > 1:
            text += f", {threads:g} threads per core"
        return text + f", {_counted(caches, 'L3 cache')}, {_counted(nodes, 'NUMA node')}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def topology_from(rows: object) -> CpuTopology:
    """Return the topology that a machine reported: a list of rows of :class:`LogicalCpu`.

    Raises:
        ValueError: it is none: too long, numbers out of range or order, or a core that lies in two caches.
    """
    if not isinstance(rows, list | tuple) or not 0 < len(rows) <= CPUS_MAX:
        raise ValueError(f"a topology is a list of 1 to {CPUS_MAX} CPUs")
    cpus = tuple(_cpu_from(row) for row in rows)
    numbers = [each.number for each in cpus]
    if any(after <= before for before, after in pairwise(numbers)):
        raise ValueError("the CPUs of a topology are not in order of their numbers")
    shared = {each.core: each[2:] for each in cpus}
    if any(shared[each.core] != each[2:] for each in cpus):
        raise ValueError("a core of a topology lies in two caches, sockets or nodes")
    sockets = {each.l3: each.socket for each in cpus}
    if any(sockets[each.l3] != each.socket for each in cpus):
        raise ValueError("a cache of a topology lies in two sockets")
    return CpuTopology(cpus)


def _cpu_from(row: object) -> LogicalCpu:
    if not isinstance(row, list | tuple) or len(row) != len(LogicalCpu._fields):
        raise ValueError(f"a CPU of a topology is a list of {len(LogicalCpu._fields)} numbers")
    if not all(type(each) is int and 0 <= each <= NUMBER_MAX for each in row):
        raise ValueError(f"a CPU of a topology has whole numbers of 0 to {NUMBER_MAX}")
    return LogicalCpu(*row)


def cpus_from(numbers: object) -> tuple[int, ...]:
    """Return a set of CPUs that a machine reported, ascending.

    Raises:
        ValueError: it is not a list of CPU numbers.
    """
    if not isinstance(numbers, list | tuple) or len(numbers) > CPUS_MAX:
        raise ValueError(f"a set of CPUs is a list of at most {CPUS_MAX} numbers")
    if not all(type(each) is int and 0 <= each <= NUMBER_MAX for each in numbers):
        raise ValueError(f"CPUs have whole numbers of 0 to {NUMBER_MAX}")
    return tuple(sorted(set(numbers)))


def cpu_list(numbers: Iterable[int]) -> str:
    """Return CPUs as the kernel writes them: ``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list as the kernel writes it. Raises ValueError if it is none."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high <= NUMBER_MAX:
            raise ValueError(f"{part!r} is no range of CPUs")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def regular_topology(*, sockets: int = 1, cores: int = 1, threads: int = 1, cores_of_cache: int = 0) -> CpuTopology:
    """Return a topology with so many sockets, cores in each, and threads per core, numbered as Linux does on most
    servers: first the first threads of all cores. ``cores_of_cache``: cores that share a cache; 0: all of a socket."""
    together = cores_of_cache or cores
    caches = -(-cores // together)
    cpus = [
        LogicalCpu(
            number=thread * sockets * cores + socket * cores + core,
            core=socket * cores + core,
            l3=socket * caches + core // together,
            socket=socket,
            node=socket,
        )
        for thread in range(threads)
        for socket in range(sockets)
        for core in range(cores)
    ]
    return CpuTopology(tuple(cpus))


def typical_topology(vcpus: int) -> CpuTopology:
    """Return what a machine with so many logical CPUs typically looks like."""
    sockets = 2 if vcpus >= TWO_SOCKETS_FROM and vcpus % 2 == 0 else 1
    threads = 2 if vcpus >= TWO_THREADS_FROM and vcpus % (2 * sockets) == 0 else 1
    cores = max(1, vcpus // (sockets * threads))
    return regular_topology(sockets=sockets, cores=cores, threads=threads, cores_of_cache=min(cores, CORES_OF_CACHE))


def dense(rows: Sequence[tuple[int, object, object, object, object]]) -> list[list[int]]:
    """Return rows of CPU number, core, cache, socket and node with whatever identified those replaced by numbers."""
    seen: list[dict[object, int]] = [{}, {}, {}, {}]
    return [
        [number, *(known.setdefault(key, len(known)) for known, key in zip(seen, keys, strict=True))]
        for number, *keys in sorted(rows, key=lambda row: row[0])
    ]
