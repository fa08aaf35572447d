"""Probes: start, query and stop the victims of ``victims``; which victim feels which source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hcloud.core.errors import UnitRefused
from hcloud.profiler import victims
from hcloud.profiler.host import ControlGroup, ProfilingHost
from hcloud.profiler.sources import become_neighbour

TARGETS = {
    "memory-bandwidth": "memory", "storage-bandwidth": "disk", "network-bandwidth": "network", "llc-capacity": "memory",
    "llc-bandwidth": "memory", "l2": "memory", "l1i": "cpu", "l1d": "cpu", "integer": "cpu", "floating-point": "cpu",
    "vector": "cpu", "tlb": "memory", "prefetchers": "memory", "interconnect": "memory",
}  # fmt: skip


def query(kind: str, process: subprocess.Popen[str], line: str) -> str:
    """Send a line to a victim and return its answer. Raises UnitRefused if it has exited."""
    send_line(process, line)
    return read_line(kind, process)


def send_line(process: subprocess.Popen[str], line: str) -> None:
    """Send a line to a victim. If it has exited, reading its answer fails."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()


def read_line(kind: str, process: subprocess.Popen[str]) -> str:
    """Wait for a victim's next line. Raises UnitRefused if it has exited."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        reason = process.stderr.read().strip().rpartition("\n")[2]
        raise UnitRefused(f"the {kind} victim does not run here: {reason or 'it was killed'}")
    return line


@contextmanager
def victim(
    host: ProfilingHost,
    kind: str,
    cpu: int,
    directory: Path,
    group: ControlGroup | None,
    enter: Callable[[], None] | None,
) -> Iterator[subprocess.Popen[str]]:
    """Start one victim and wait until it is ready; it is killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(victims.__file__), kind],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=become_neighbour(host, group, (cpu,), enter),
    ) as process:
        try:
            query(kind, process, "")
            yield process
        finally:
            process.kill()
