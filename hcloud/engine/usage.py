"""What a unit's processes used: from its control group where it has one, else summed over its process tree."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
_PATH_CHARS = 900
_NESTED_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUsage:
    """Totals over living processes and those they have already collected."""

    cpu_s: float = 0.0
    waited_s: float = 0.0
    """How long its living threads were ready to run and had no CPU, in sum; 0 where the kernel does not tell."""
    memory_mib: float = 0.0
    read_mib: float = 0.0
    written_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """What CPUs have done since the machine booted, summed over them; 0 where the kernel does not report it."""

    busy_s: float = 0.0
    stolen_s: float = 0.0
    """Time for which the hypervisor ran something else although they had work."""


def cpu_times(cpus: Iterable[int], stat: str = "/proc/stat") -> CpuTimes:
    """Return the times of these CPUs together."""
    wanted, busy, stolen = {f"cpu{cpu}" for cpu in cpus}, 0, 0
    for line in (_read(stat) or "").splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, softirq, steal = (int(field) for field in (*fields, *["0"] * 8)[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
    return CpuTimes(busy_s=busy / TICKS_PER_S, stolen_s=stolen / TICKS_PER_S)


def descendants(root: int, depth: int = 1 << 30) -> set[int]:
    """Return the ids of all processes below ``root``, at most ``depth`` generations down."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            parents.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    generation = {root}
    while generation and depth > 0:
        generation = {child for parent in generation for child in parents.get(parent, [])} - found
        found |= generation
        depth -= 1
    return found


def owner_of(pid: int) -> int | None:
    """Return the user id of a process, 0 where it may not be looked into; None: it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def tree_usage(pids: Iterable[int]) -> TreeUsage:
    """Sum what the processes used; those that end meanwhile count as nothing."""
    cpu_ticks = memory_pages = read = written = 0
    waited_s = 0.0
    for pid in pids:
        fields = _stat(pid)
        if fields is None:
            continue
        cpu_ticks += sum(int(value) for value in fields[11:15])  # own and collected children's user and system time
        waited_s += _waited_s(pid)
        memory_pages += int(fields[21])
        io = dict(line.split(": ") for line in (_read(f"/proc/{pid}/io") or "").splitlines())
        read += int(io.get("read_bytes", 0))
        written += int(io.get("write_bytes", 0))
    return TreeUsage(
        cpu_s=cpu_ticks / TICKS_PER_S,
        waited_s=waited_s,
        memory_mib=memory_pages * PAGE_BYTES / MIB,
        read_mib=read / MIB,
        written_mib=written / MIB,
    )


def cpu_ticks(pid: int) -> int:
    """Return the CPU time that a process has used itself, in ticks; 0 if it has ended."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields is not None else 0


def disk_bytes(directory: Path, stop_at: int, nested: int = _NESTED_MAX) -> int:
    """Return what the files below use on disk. Links are not followed.

    Gives up counting beyond ``stop_at``, or where directories are nested deeper than ``nested`` times the longest path.
    """
    total = 0
    waiting = [str(directory)]
    while waiting and total <= stop_at:
        path = waiting.pop()
        if len(path) > _PATH_CHARS:  # the kernel takes no path of more than 4096 bytes
            total += _nested_bytes(path, stop_at - total, nested - 1)
            continue
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    with suppress(FileNotFoundError):  # removed meanwhile; the others are still there
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:  # removed meanwhile, or closed to us
            continue
    return total


def _nested_bytes(path: str, stop_at: int, nested: int) -> int:
    if not nested:
        return stop_at + 1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return disk_bytes(Path(f"/proc/self/fd/{handle}"), stop_at, nested)
    finally:
        os.close(handle)


def last_progress(job: Path, name: str, total: float) -> float | None:
    """Return the progress (0..1) in the last line of a job's file: a number of ``total``, or ``done/total``.

    The file is the job's own, so no link on the way to it is followed, and only its end is read. None: no
    progress to be read there.
    """
    handle = _open_inside(job, name)
    if handle is None:
        return None
    try:
        content = os.pread(handle, 4096, max(0, os.fstat(handle).st_size - 4096))
    except OSError:  # a pipe, a directory
        return None
    finally:
        os.close(handle)
    lines = content.decode(errors="replace").split("\n")
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    done, _, of = text.partition("/")
    try:
        return min(1.0, max(0.0, float(done) / (float(of) if of else total)))
    except (ValueError, ZeroDivisionError):
        return None


def _open_inside(folder: Path, name: str) -> int | None:
    """Open a file below a directory that others may change meanwhile; None: it is not there, or a link is."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    *folders, last = [part for part in name.split("/") if part not in ("", ".")] or [""]
    handle = None
    try:
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in folders:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
        return None if ".." in (*folders, last) else os.open(last, flags, dir_fd=handle)
    except OSError:
        return None
    finally:
        if handle is not None:
            os.close(handle)


def _waited_s(pid: int) -> float:
    """Second number of each thread's schedstat: nanoseconds spent on a run queue."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    statistics = [(_read(f"/proc/{pid}/task/{thread}/schedstat") or "").split() for thread in threads]
    return sum(int(fields[1]) for fields in statistics if len(fields) > 1) / 1e9


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat behind the command's name: index 0 is the state, 1 the parent."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() if text else None


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None
