"""A slice on disk: its files state what it is, whether it runs and how it ended. Also powers a slice off.

Each file is written once (or replaced atomically) and synced. In order of the slice's life: ``slice.json``, the
:class:`SliceRecord`; ``bootstrap.json``, the worker's bootstrap; ``supervisor.json``, the supervisor's process;
``alive``, touched while it runs; ``preempt``, an operator's request; ``notice.json``, the announced preemption;
``stop.json``, power-off has begun; ``ended.json``, no process is left. ``machine/`` belongs to the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcloud.core.clock import holds_within
from hcloud.core.errors import ProviderUnavailable
from hcloud.core.files import remove_tree
from providers.local.cgroups import cgroup_pids, kill_cgroup, remove_cgroup

SLICE_VARIABLE = "HCLOUD_SLICE"
"""Environment variable of every process of a slice; its value is the slice's directory."""
_KILL_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 20.0


def boot_id() -> str:
    """Return the id of the current boot; process ids of another boot are meaningless."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# ----------------------------------------------------------------------------------------------------------- processes
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, distinguished from a later one with the same pid by its start time and boot."""

    pid: int
    started_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of a live process, or None. A zombie is not alive."""
        stat = _stat(pid)
        return cls(pid=pid, started_ticks=int(stat[19]), boot_id=boot_id()) if stat and stat[0] not in "ZX" else None

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _stat(pid: int | str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on (field 3 is index 0); empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _processes() -> Iterable[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def descendants(pid: int) -> set[int]:
    """Return all live processes below ``pid``. If ``pid`` is a subreaper, these include orphans."""
    children: dict[int, set[int]] = {}
    for each in _processes():
        stat = _stat(each)
        if stat:
            children.setdefault(int(stat[1]), set()).add(each)
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = set().union(*(children.get(each, set()) for each in frontier)) - found
        found |= frontier
    return {each for each in found if (_stat(each) or ["Z"])[0] not in "ZX"}


def processes_of(directory: Path) -> set[int]:
    """Return live processes with the slice's directory in their environment, as far as it is readable."""
    mark = f"{SLICE_VARIABLE}={directory}".encode()
    found = set()
    for pid in _processes():
        with contextlib.suppress(OSError):  # ended meanwhile, or of another user
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _run_quietly(argv: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # cleanup is best effort
        if argv:
            null = subprocess.DEVNULL
            subprocess.run(argv, stdin=null, stdout=null, stderr=null, timeout=_END_TIMEOUT_S, check=False)


# --------------------------------------------------------------------------------------------------------------- files
def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file atomically and durably: a crash leaves the old version or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with open(temporary, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        json.dump(content, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_json_once(path: Path, content: Mapping[str, object]) -> None:
    """Like :func:`write_json`, but keep an existing file: the first record of an end is the true one."""
    temporary = path.with_name(f".once.{path.name}.{os.getpid()}.{threading.get_ident()}")
    write_json(temporary, content)
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    os.unlink(temporary)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames within ``path`` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file, or None if it does not exist.

    Raises ProviderUnavailable: it exists but cannot be read, so nothing may be concluded.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProviderUnavailable(f"cannot read {path}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord:
    """What was requested and assigned, fixed when the slice is created."""

    provider_id: str
    instance_id: str
    token: str
    owner: str
    type_name: str
    zone: str
    market: str
    price_usd_per_h: float
    vcpus: float
    memory_mib: int
    launched_at: float
    expires_at: float
    boot_id: str
    cpus: tuple[int, ...]
    memory_limit_mib: int
    """Limit of all its processes together, the worker included; without control groups, of each process."""
    pids_max: int
    place: int
    """Its index among the live slices, from 0; determines its range of user ids."""
    cgroup_paths: Mapping[str, str] = field(default_factory=dict)
    cgroup_procs_files: tuple[str, ...] = ()
    worker_argv: tuple[str, ...] = ()
    end_argv: tuple[str, ...] = ()
    """Command run after everything was killed; it removes the engine's setup on the host (its firewall table)."""
    tags: Mapping[str, str] = field(default_factory=dict)


class SliceDirectory:
    """The files of one slice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.machine = path / "machine"
        self.bootstrap_file = path / "bootstrap.json"
        self.notice_file = path / "notice.json"

    def record(self) -> SliceRecord | None:
        """Return the slice's record, or None if it was never created."""
        content = read_json(self.path / "slice.json")
        if content is None:
            return None
        for name in ("cpus", "cgroup_procs_files", "worker_argv", "end_argv"):
            content[name] = tuple(content[name])
        content.pop("worker_port", None)  # written before 0.2
        return SliceRecord(**content)

    def write_record(self, record: SliceRecord) -> None:
        """Write the description of the slice."""
        write_json(self.path / "slice.json", asdict(record))

    def ended(self) -> dict[str, Any] | None:
        """Return ``{at, reason}`` once no process of the slice is left, else None."""
        return read_json(self.path / "ended.json")

    def stopping(self) -> dict[str, Any] | None:
        """Return ``{at, reason}`` once power-off has begun, else None."""
        return read_json(self.path / "stop.json")

    def preempt_at(self) -> float | None:
        """Return the announced time of preemption, or None."""
        notice = read_json(self.notice_file)
        return None if notice is None else float(notice["preempt_at"])

    def expires_at(self, record: SliceRecord) -> float:
        """Return when the slice powers itself off: the expiry at launch, or the last renewal."""
        try:
            renewal = read_json(self.machine / "renewal.json")
        except ProviderUnavailable:
            renewal = None  # torn by a full disk: the expiry at launch still holds
        return record.expires_at if renewal is None else float(renewal["expires_at"])

    def supervisor(self) -> ProcessIdentity | None:
        """Return the supervisor's process, alive or not; None before it has started."""
        content = read_json(self.path / "supervisor.json")
        return None if content is None else ProcessIdentity(**content)

    def supervise(self) -> None:
        """Record the calling process as the supervisor."""
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None
        write_json(self.path / "supervisor.json", asdict(identity))

    def touch_alive(self) -> None:
        """Record that the slice is alive now."""
        (self.path / "alive").touch()

    def alive_at(self) -> float | None:
        """Return when the slice was last known to be alive, or None."""
        try:
            return (self.path / "alive").stat().st_mtime
        except FileNotFoundError:
            return None

    def power_off(self, *, reason: str, at: float) -> bool:
        """Kill every process of the slice except the caller, remove groups and files, and record the end. Repeatable.

        Returns whether that is complete. False: a process cannot be killed (blocked in the kernel), or the
        record cannot be written; call again.
        """
        record = self.record()
        if record is None:
            return True
        with contextlib.suppress(OSError):  # power off even if the disk is full
            write_json_once(self.path / "stop.json", {"at": at, "reason": reason})
        supervisor = self.supervisor()
        if supervisor is not None and supervisor.pid != os.getpid():
            # Stop it, do not kill it: it then restarts nothing, and remains the parent by which orphans are found.
            supervisor.signal(signal.SIGSTOP)
        if not self._kill_all(record, supervisor):
            return False
        if supervisor is not None and supervisor.pid != os.getpid():
            supervisor.signal(signal.SIGKILL)
            if not holds_within(lambda: not supervisor.alive(), _KILL_TIMEOUT_S, every_s=0.001):
                return False
        if self.machine.exists():
            _run_quietly(record.end_argv)
        remove_cgroup(record.cgroup_paths)
        remove_tree(self.machine)
        try:
            write_json_once(self.path / "ended.json", {"at": at, "reason": reason})
        except OSError:
            return False
        return True

    def _kill_all(self, record: SliceRecord, supervisor: ProcessIdentity | None) -> bool:
        def none_left() -> bool:
            # Returns True only if nothing was left to kill: processes killed now may have started others.
            pids = self._live_processes(record, supervisor)
            if pids:
                kill_cgroup(record.cgroup_paths)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        return holds_within(none_left, _KILL_TIMEOUT_S, every_s=0.01)

    def _live_processes(self, record: SliceRecord, supervisor: ProcessIdentity | None) -> set[int]:
        """Return every live process of the slice: by group, by descent and by mark, since each alone can miss some."""
        excluded = {os.getpid()}
        found = cgroup_pids(record.cgroup_paths.values()) | processes_of(self.path)
        if supervisor is not None and supervisor.alive():
            excluded.add(supervisor.pid)
            found |= descendants(supervisor.pid)
        return {pid for pid in found - excluded if (_stat(pid) or ["Z"])[0] not in "ZX"}
