"""A unit's directory on its instance: the fence, what was asked for, and what became of it.

Layout of ``<state_dir>/units/<unit id>/``::

    spec.json      what to run, the machine's boot id, the user id the unit runs under
    workdir.tar.gz the uploaded archive, until it is unpacked
    inputs.json    what its machine is to fetch, until it is here
    restore.tar    what the attempt before kept, until it is unpacked over it
    keeper.lock    locked (flock) by the keeper as long as it lives; the lock is taken before the directory appears. It
                   holds the keeper's process id
    started.json   when the command itself started
    findings.json  what the measurement of a unit that is profiled has found so far
    sample.json    the last sample
    tasks.json     what became of the tasks of a unit that runs many, as in their log
    stop.json      why the unit is to end; the first one counts
    bounds.json    in which epoch the daemon led that bounded it last, and the CPUs it pinned it to, if any did
    pause.json     whether it is to be paused, and in which epoch the daemon led that said so last
    exit.json      how it ended: written once, durably
    log/           output in segments (``output``), from the first one on; the log of tasks (``task_log``)
    root/          the unit's own files: ``job`` (work directory), ``home``, ``tmp``

A directory appears whole, by one rename, which fails when there is one already: that is the fence which lets a unit
start at most once. A forgotten unit leaves a name in ``<state_dir>/forgotten/``, so that it cannot start again either,
for as long as a call may be late.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from hcloud.core.clock import holds_within
from hcloud.core.errors import UnitRefused
from hcloud.core.estimates import Findings
from hcloud.core.files import remove_tree
from hcloud.core.model import FailureCause
from hcloud.engine.output import written_streams
from hcloud.engine.task_log import STREAM as TASK_STREAM
from hcloud.engine.task_log import read_task_log
from hcloud.engine.wire import INPUTS, exit_to_wire, progress_to_wire
from hcloud.provider import ExitRecord

LOCK = "keeper.lock"
OLD_KEEPER = "keeper.json"
"""Where keepers of version 0.1.0 wrote their process id."""
EXIT, BOUNDS, PAUSE = "exit.json", "bounds.json", "pause.json"
STOP_SIGNAL = signal.SIGUSR1
PROGRESS = "tasks.json"
WORKDIR, RESTORE, CHECKPOINT_ASKED = "workdir.tar.gz", "restore.tar", "checkpoint-asked.json"


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot: another one means that no process of before is left."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return what a file with this content holds."""
    return json.dumps(value, separators=(",", ":")).encode()


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace a file at once by ``value``; ``durable``: it is on the disk when this returns."""
    new = f"{path.parent}/.{path.name}.{os.getpid()}"
    content = json_bytes(value)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while content:
            content = content[os.write(handle, content) :]
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(new, path)
    if durable:
        sync_directory(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a file's content, or None where there is none (or a torn one, after a power cut)."""
    try:  # without a file object, which costs more than the calls themselves: links read four for each unit
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        content = b"".join(iter(lambda: os.read(handle, 1 << 16), b""))
        return cast(dict[str, Any], json.loads(content))
    except ValueError:
        return None
    finally:
        os.close(handle)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Unit:
    """One unit's directory. Cheap to make; every question reads the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def read(self, name: str) -> dict[str, Any] | None:
        """Return one of its JSON files, or None."""
        return read_json(self.path / name)

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = False) -> None:
        """Replace one of its JSON files."""
        write_json(self.path / name, value, durable=durable)

    @property
    def mark(self) -> str:
        """What processes of this very unit carry as HCLOUD_UNIT_MARK, however it was spelled: units of two deployments
        on one host may have one id, so where it lies is part of it."""
        place = os.stat(self.path)
        return f"{self.id}@{place.st_dev:x}.{place.st_ino:x}"

    @property
    def ended(self) -> bool:
        """Whether its exit record exists."""
        return (self.path / EXIT).exists()

    @property
    def refusal(self) -> str | None:
        """Why it was refused, if it never ran for that and never will; None otherwise."""
        exit_record = self.read(EXIT) if (self.read("spec.json") or {}).get("fenced") else None
        refused = exit_record is not None and exit_record["cause"] in (FailureCause.START_REFUSED, FailureCause.INPUTS)
        return str(exit_record["detail"]) if exit_record is not None and refused else None

    @property
    def kept(self) -> bool:
        """Whether its keeper lives."""
        try:
            handle = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def end(self, record: ExitRecord) -> None:
        """Write the exit record, once and durably; a later one is dropped."""
        if not self.ended:
            self.write(EXIT, exit_to_wire(record), durable=True)

    def end_at_last(self, record: ExitRecord, *, every_s: float) -> None:
        """Write the exit record, tried again every ``every_s`` seconds as long as the disk does not take it: what ended
        well must not be taken for lost, and run again. Where the directory was deleted nothing can be known."""

        def is_recorded() -> bool:
            """Return whether it is recorded, or no longer readable."""
            try:
                if self.path.exists():
                    self.end(record)
            except OSError:
                return False
            return True

        holds_within(is_recorded, math.inf, every_s)

    def request_stop(self, cause: FailureCause | None, at: float, tasks: Sequence[Sequence[int]] | None = None) -> None:
        """Note why it is to end (the first cause counts) and wake its keeper.

        ``tasks``: of many, the intervals of those to be stopped, after which others, or none, may be asked for.
        """
        before = self.read("stop.json")
        if before is None or ("tasks" in before and before["tasks"] != tasks):
            some = {} if tasks is None else {"tasks": tasks}
            self.write("stop.json", {"cause": cause.value if cause else None, "at": at, **some}, durable=True)
        self.signal_keeper(STOP_SIGNAL)

    def request_checkpoint(self, number: int) -> None:
        """Have its keeper send the command the signal upon which it writes its state, once for each number."""
        self.write(CHECKPOINT_ASKED, {"number": number})
        self.signal_keeper(STOP_SIGNAL)

    def take_bounds_of(self, epoch: int, cpus: tuple[int, ...] | None = None) -> None:
        """Note in which epoch the daemon led that bounds it now, and the CPUs it pins it to (None: as before); raises
        UnitRefused where a later one has already."""
        before = self.read(BOUNDS) or {}
        last = int(before.get("epoch", epoch))
        if epoch < last:
            raise UnitRefused(f"{self.id} was bounded since by the daemon that leads now (epoch {last}, not {epoch})")
        self.write(BOUNDS, {**before, "epoch": epoch} | ({} if cpus is None else {"cpus": cpus}))

    def request_pause(self, paused: bool, epoch: int) -> None:
        """Have its keeper pause it or let it run; raises UnitRefused where a later daemon said something since."""
        before = self.read(PAUSE) or {}
        last = int(before.get("epoch", epoch))
        if epoch < last:
            raise UnitRefused(
                f"{self.id} was paused or resumed since by the daemon that leads now (epoch {last}, not {epoch})"
            )
        if before != (now := {"paused": paused, "epoch": epoch}):
            self.write(PAUSE, now)
        self.signal_keeper(STOP_SIGNAL)

    @property
    def is_to_pause(self) -> bool:
        """Whether it is to be paused."""
        return bool((self.read(PAUSE) or {}).get("paused", False))

    @property
    def pinned_to(self) -> tuple[int, ...]:
        """The CPUs that a daemon has pinned it to since its start; empty: none has."""
        return tuple((self.read(BOUNDS) or {}).get("cpus", ()))

    @property
    def keeper_pid(self) -> int | None:
        """The process id of its keeper, which may have ended; None: none has taken it over yet."""
        found = self.read(LOCK) or self.read(OLD_KEEPER)
        return int(found["pid"]) if found is not None else None

    def signal_keeper(self, number: int) -> bool:
        """Send a signal to its keeper if that lives, and to no other process; return whether it was sent."""
        keeper = self.keeper_pid
        if keeper is None:
            return False
        try:
            handle = os.pidfd_open(keeper)
        except ProcessLookupError:
            return False
        try:
            # The lock is still held after the process was pinned: the pinned process is the keeper, not a successor.
            if not self.kept:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    def report(self) -> dict[str, Any]:
        """Return what is known of it, as a UnitReport on the wire."""
        exit_record, started = self.read(EXIT), self.read("started.json")
        state = "ended" if exit_record else "running" if started else "starting"
        wrote = written_streams(self.path / "log") if exit_record else None
        found = {
            "id": self.id,
            "state": state,
            "started_at": started["at"] if started else None,
            "sample": self.read("sample.json") if state != "starting" else None,
            "exit": exit_record,
            "wrote": wrote,
        }
        tasks = self._tasks(wrote) if state != "starting" else None
        return found if tasks is None else {**found, "tasks": tasks}

    def _tasks(self, wrote: Sequence[str] | None) -> dict[str, Any] | None:
        """Return what became of its tasks, if it runs any: by their log, which is written first, if it has ended and
        ``wrote`` these streams."""
        if wrote is None:
            return self.read(PROGRESS)
        log = read_task_log(self.path / "log", boot_id()) if TASK_STREAM in wrote else None
        return progress_to_wire(log.progress) if log is not None else None


class UnitDirectories:
    """All units of an instance."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "units"
        self.path.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._forgotten = state_dir / "forgotten"
        self._forgotten.mkdir(mode=0o700, exist_ok=True)

    def sweep(self, pattern: str = ".*") -> None:
        """Delete what was left half-made (``.new-*``) or is forgotten (``.old-*``)."""
        for left in self.path.glob(pattern):
            remove_tree(left)

    def drop_fences(self, before: float) -> None:
        """Delete the names of units that were forgotten before ``before`` (Unix seconds): each takes an inode, of which
        a machine that runs short jobs for a year would have none left."""
        for name in os.scandir(self._forgotten):
            if name.stat().st_mtime < before:
                os.unlink(name)

    def __iter__(self) -> Iterator[Unit]:
        """Go through all units in order of id."""
        names = sorted(name for name in os.listdir(self.path) if not name.startswith("."))
        return (Unit(self.path / name) for name in names)

    def get(self, unit_id: str) -> Unit | None:
        """Return the unit if its directory exists."""
        path = self.path / unit_id
        return Unit(path) if path.is_dir() else None

    def create(
        self,
        unit_id: str,
        spec: Mapping[str, Any],
        archive: Path | None = None,
        inputs: Path | None = None,
        restore: Path | None = None,
    ) -> tuple[Unit, int] | None:
        """Take the fence: make the unit's directory; return it with the held lock's file descriptor.

        None: there is one already, or was one: this unit was started, or fenced off, before. The fence must be on the
        disk (``sync``) before anything is done after it or reported of it.
        """
        if (self._forgotten / unit_id).exists():
            return None
        staged = self.path / f".new-{unit_id}-{os.urandom(6).hex()}"
        os.mkdir(staged, 0o711)
        os.chmod(staged, 0o711)  # whatever the umask is
        (staged / "spec.json").write_bytes(json_bytes(spec))
        if archive is not None:
            os.link(archive, staged / WORKDIR)
        if inputs is not None:
            os.link(inputs, staged / INPUTS)
        if restore is not None:
            os.link(restore, staged / RESTORE)
        lock = os.open(staged / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            staged.rename(self.path / unit_id)
        except OSError as error:
            os.close(lock)
            remove_tree(staged)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return None
            raise
        return Unit(self.path / unit_id), lock

    def sync(self) -> None:
        """Make the fences taken so far durable."""
        sync_directory(self.path)

    def fence(
        self, unit_id: str, cause: FailureCause | None, at: float, detail: str = "stopped before its start arrived"
    ) -> Unit | None:
        """Make a unit that never ran and never will; None when there is a directory of that id already."""
        record = ExitRecord(exit_code=None, cause=cause, started_at=at, ended_at=at, detail=detail)
        created = self.create(unit_id, {"fenced": True})
        if created is None:
            return None
        unit, lock = created
        unit.end(record)
        self.sync()
        os.close(lock)
        return unit

    def forget(self, unit_ids: Iterable[str]) -> set[str]:
        """Take ended units out of sight; ``sweep`` deletes their files. Those that have not ended are left alone.

        Returns the ids without those of units that have ended while their keepers are not quite done: ask again.
        """
        done, ended = set[str](), list[Unit]()
        for unit_id in unit_ids:
            unit = self.get(unit_id)
            if unit is None or not unit.ended:
                done.add(unit_id)
            elif not unit.kept:
                ended.append(unit)
        for unit in ended:
            fence = self._forgotten / unit.id
            try:  # a file that is there already: to make one, and to delete one, costs much on some file systems
                (unit.path / LOCK).rename(fence)
                os.truncate(fence, 0)
            except FileNotFoundError:  # its name was taken just before this worker's predecessor ended
                pass
            fence.touch()
        if ended:
            sync_directory(self._forgotten)
        for unit in ended:
            unit.path.rename(self.path / f".old-{unit.id}")
        return done.union(unit.id for unit in ended)

    def bury(self, unit: Unit, at: float, findings: Findings | None = None) -> None:
        """Write the exit record of a unit without a keeper and without one.

        After a reboot, when the keeper was killed while the command ran, and when no keeper ever took it, that is
        INSTANCE_LOST: the fault is this machine's, not the program's. A unit whose keeper never started its command is
        START_REFUSED, which may be tried again.
        """
        spec, started, stop = unit.read("spec.json") or {}, unit.read("started.json"), unit.read("stop.json")
        rebooted = spec.get("boot_id") != boot_id()
        cause: FailureCause | None = FailureCause.INSTANCE_LOST
        if rebooted:
            detail = "the machine was restarted"
        elif started:
            detail = "its keeper was killed"
        elif unit.keeper_pid is None:
            detail = "its worker ended before it began"
        else:
            cause, detail = FailureCause.START_REFUSED, "its keeper was killed before the command started"
        if stop is not None:
            cause = FailureCause(stop["cause"]) if stop["cause"] else None
        started_at = started["at"] if started else at
        record = ExitRecord(
            exit_code=None, cause=cause, started_at=started_at, ended_at=at, detail=detail, findings=findings
        )
        unit.end(record)
