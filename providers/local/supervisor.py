"""The machine under a slice's worker: starts it, restarts it when it dies, powers the slice off when its time is over.

Run as ``python -m providers.local.supervisor DIRECTORY``. The command returns once the supervisor stands on its own
feet (its own session, no terminal, no parent) and is recorded, or fails saying why. It needs no other process: daemon
and engine may come and go.

The worker's files in ``machine/`` carry two things: ``renewal.json`` (``{"expires_at": ...}``) that more was paid
ahead, and ``off.json`` (``{"reason": ...}``) that the worker switches the machine off. An operator writes seconds of
notice into the slice's file ``preempt`` to take a spot slice back.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import ProviderUnavailable
from providers.local.slices import SLICE_VARIABLE, SliceDirectory, SliceRecord, read_json, write_json

POLL_S = 0.5
ALREADY_SUPERVISED = 3
_RESTART_AFTER_S, _RESTART_CAP_S, _STEADY_S = 0.5, 10.0, 60.0
_HANDLED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PR_SET_CHILD_SUBREAPER = 36
_ENVIRONMENT_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV")


class SliceSupervisor:
    """The loop of one slice. Single-threaded, so that it may fork without care."""

    def __init__(self, directory: SliceDirectory, record: SliceRecord, clock: Clock) -> None:
        self._directory = directory
        self._record = record
        self._clock = clock
        self._worker_pid: int | None = None
        self._started_at = 0.0
        self._start_not_before = 0.0
        self._pause_s = _RESTART_AFTER_S

    def run(self) -> None:
        """Supervise until the slice is over, then power it off."""
        received: int | None = None
        while not (reason := self._why_over(received)):
            try:
                self._look_after()
            except OSError as error:  # a full disk or process table: what runs goes on, the rest is tried again
                _say(f"{error}; tried again")
            told = signal.sigtimedwait(_HANDLED, POLL_S)
            received = told.si_signo if told is not None else None
        ended_at = self._clock.now()
        while not self._directory.power_off(reason=reason, at=ended_at):
            self._reap()
            signal.sigtimedwait(_HANDLED, POLL_S)

    def _look_after(self) -> None:
        self._directory.touch_alive()
        self._announce_preemption()
        self._reap()
        if self._worker_pid is None and self._record.worker_argv and self._clock.now() >= self._start_not_before:
            self._start_worker()

    def _why_over(self, received: int | None) -> str:
        if received == signal.SIGTERM:
            return "the host asked it to end"
        try:
            return self._why_over_by_files(self._clock.now())
        except ProviderUnavailable as error:
            _say(f"{error}; read again")
            return ""

    def _why_over_by_files(self, now: float) -> str:
        stopping, preempt_at = self._directory.stopping(), self._directory.preempt_at()
        if stopping is not None:
            return str(stopping["reason"])
        if preempt_at is not None and now >= preempt_at:
            return "preempted"
        if now >= self._directory.expires_at(self._record):
            return "expired: its time was not paid further ahead"
        off = read_json(self._directory.machine / "off.json")
        return f"powered off by its worker: {off.get('reason', 'no reason given')}" if off is not None else ""

    def _announce_preemption(self) -> None:
        wish = self._directory.path / "preempt"
        if not wish.exists() or self._directory.preempt_at() is not None:
            return
        try:
            notice_s = float(wish.read_text() or 30)
        except ValueError:
            _say(f"{wish} must hold the seconds of notice, for example 30; ignored")
            wish.rename(wish.with_name("preempt.refused"))
            return
        if self._record.market != "spot":
            _say(f"only spot slices can be preempted; this one is {self._record.market}")
            wish.rename(wish.with_name("preempt.refused"))
            return
        write_json(self._directory.notice_file, {"preempt_at": self._clock.now() + notice_s})

    # ------------------------------------------------------------------------------------------------------- the worker
    def _reap(self) -> None:
        """Collect the worker, and orphans of units: as subreaper this process is everybody's last parent."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._worker_pid:
                self._note_death(os.waitstatus_to_exitcode(status))

    def _note_death(self, exit_code: int) -> None:
        now = self._clock.now()
        if now - self._started_at >= _STEADY_S:
            self._pause_s = _RESTART_AFTER_S
        _say(f"the worker ended with {exit_code}; started again in {self._pause_s:.1f} s")
        self._worker_pid = None
        self._start_not_before = now + self._pause_s
        self._pause_s = min(_RESTART_CAP_S, 2 * self._pause_s)

    def _start_worker(self) -> None:
        self._started_at = self._clock.now()
        pid = os.fork()
        if pid:
            self._worker_pid = pid
            return
        try:
            self._become_worker()
        finally:
            os._exit(127)

    def _become_worker(self) -> None:
        try:
            os.setsid()
            for file in self._record.cgroup_procs_files:
                Path(file).write_text("0")  # 0 means the writer itself
            if self._record.cpus:
                os.sched_setaffinity(0, self._record.cpus)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if not self._record.cgroup_paths:
                most = self._record.memory_limit_mib * 2**20
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))
            log = os.open(self._directory.path / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self._directory.machine)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            os.execve(self._record.worker_argv[0], self._record.worker_argv, worker_environment(self._directory.path))
        except OSError as error:
            _say(f"cannot start {self._record.worker_argv[0]}: {error}")


def worker_environment(directory: Path) -> dict[str, str]:
    """Return what a worker may see of our environment: no cloud keys, but enough to find Python and its packages."""
    kept = {
        name: value for name, value in os.environ.items() if name in _ENVIRONMENT_KEPT or name.startswith("HCLOUD_")
    }
    return {"PATH": os.defpath, **kept, SLICE_VARIABLE: str(directory)}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _hold(directory: SliceDirectory) -> bool:
    """Take the lock that only one supervisor of a slice can have, for life."""
    handle = os.open(directory.path / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stand_alone(directory: SliceDirectory) -> None:
    """Leave session, terminal, parent and working directory; orphans below come to us."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    os.chdir("/")
    os.umask(0o077)
    with contextlib.suppress(OSError):  # the host's out-of-memory killer should take units, not the machine under them
        Path("/proc/self/oom_score_adj").write_text("-500" if os.geteuid() == 0 else "0")
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(directory.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def main(path: str) -> int:
    """Fork the supervisor of the slice at ``path``; return in the parent once it is recorded (0) or cannot be."""
    directory = SliceDirectory(Path(path))
    record = directory.record()
    if record is None:
        _say(f"{path} holds no slice.json")
        return 1
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        answer = os.read(readable, 1)
        return int(answer or b"1")
    os.close(readable)
    if not _hold(directory):
        os.write(writable, b"%d" % ALREADY_SUPERVISED)
        return 0
    _stand_alone(directory)
    directory.supervise()
    directory.touch_alive()
    os.write(writable, b"0")
    os.close(writable)
    SliceSupervisor(directory, record, SystemClock()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
