"""Supervisor of a slice: starts its worker, restarts it when it dies, and powers the slice off at its end.

Run as ``python -m providers.local.supervisor DIRECTORY``. The command returns once the supervisor is detached (own
session, no terminal, no parent) and recorded, or fails with a message. The supervisor depends on no other process:
daemon and engine may restart.

The worker writes two files in ``machine/``: ``renewal.json`` (``{"expires_at": ...}``) renews the lease, and
``off.json`` (``{"reason": ...}``) powers the slice off. An operator preempts a spot slice by writing the seconds of
notice into the slice's file ``preempt``.
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
    """The loop of one slice. Single-threaded, so that it can fork safely."""

    def __init__(self, directory: SliceDirectory, record: SliceRecord, clock: Clock) -> None:
        self._directory = directory
        self._record = record
        self._clock = clock
        self._worker_pid: int | None = None
        self._started_at = 0.0
        self._start_not_before = 0.0
        self._pause_s = _RESTART_AFTER_S

    def run(self) -> None:
        """Supervise until the slice ends, then power it off."""
        received: int | None = None
        while not (reason := self._end_reason(received)):
            try:
                self._supervise_once()
            except OSError as error:  # a full disk or process table: running processes go on, the rest is retried
                _log(f"{error}; retrying")
            info = signal.sigtimedwait(_HANDLED, POLL_S)
            received = info.si_signo if info is not None else None
        ended_at = self._clock.now()
        while not self._directory.power_off(reason=reason, at=ended_at):
            self._reap()
            signal.sigtimedwait(_HANDLED, POLL_S)

    def _supervise_once(self) -> None:
        self._directory.touch_alive()
        self._announce_preemption()
        self._reap()
        if self._worker_pid is None and self._record.worker_argv and self._clock.now() >= self._start_not_before:
            self._start_worker()

    def _end_reason(self, received: int | None) -> str:
        if received == signal.SIGTERM:
            return "terminated by the host (SIGTERM)"
        try:
            return self._end_reason_in_files(self._clock.now())
        except ProviderUnavailable as error:
            _log(f"{error}; retrying")
            return ""

    def _end_reason_in_files(self, now: float) -> str:
        stopping, preempt_at = self._directory.stopping(), self._directory.preempt_at()
        if stopping is not None:
            return str(stopping["reason"])
        if preempt_at is not None and now >= preempt_at:
            return "preempted"
        if now >= self._directory.expires_at(self._record):
            return "expired: its expiry was not renewed"
        off = read_json(self._directory.machine / "off.json")
        return f"powered off by its worker: {off.get('reason', 'no reason given')}" if off is not None else ""

    def _announce_preemption(self) -> None:
        request = self._directory.path / "preempt"
        if not request.exists() or self._directory.preempt_at() is not None:
            return
        try:
            notice_s = float(request.read_text() or 30)
        except ValueError:
            _log(f"{request} must contain the seconds of notice, for example 30; ignored")
            request.rename(request.with_name("preempt.refused"))
            return
        if self._record.market != "spot":
            _log(f"only spot slices can be preempted; this one is {self._record.market}")
            request.rename(request.with_name("preempt.refused"))
            return
        write_json(self._directory.notice_file, {"preempt_at": self._clock.now() + notice_s})

    # ------------------------------------------------------------------------------------------------------- the worker
    def _reap(self) -> None:
        # As subreaper this process is also the parent of units' orphans.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._worker_pid:
                self._on_worker_exit(os.waitstatus_to_exitcode(status))

    def _on_worker_exit(self, exit_code: int) -> None:
        now = self._clock.now()
        if now - self._started_at >= _STEADY_S:
            self._pause_s = _RESTART_AFTER_S
        _log(f"the worker exited with code {exit_code}; restarting in {self._pause_s:.1f} s")
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
            self._exec_worker()
        finally:
            os._exit(127)

    def _exec_worker(self) -> None:
        try:
            os.setsid()
            for file in self._record.cgroup_procs_files:
                Path(file).write_text("0")  # 0 means the writer itself
            if self._record.cpus:
                os.sched_setaffinity(0, self._record.cpus)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if not self._record.cgroup_paths:
                limit = self._record.memory_limit_mib * 2**20
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            log = os.open(self._directory.path / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self._directory.machine)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            os.execve(self._record.worker_argv[0], self._record.worker_argv, worker_environment(self._directory.path))
        except OSError as error:
            _log(f"cannot start {self._record.worker_argv[0]}: {error}")


def worker_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a worker: no cloud keys, but enough to find Python and its packages."""
    kept = {
        name: value for name, value in os.environ.items() if name in _ENVIRONMENT_KEPT or name.startswith("HCLOUD_")
    }
    return {"PATH": os.defpath, **kept, SLICE_VARIABLE: str(directory)}


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _acquire_lock(directory: SliceDirectory) -> bool:
    # Held for life, so that a slice has one supervisor only.
    handle = os.open(directory.path / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _daemonize(directory: SliceDirectory) -> None:
    """Leave session, terminal and working directory, and become the parent of orphans below."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    os.chdir("/")
    os.umask(0o077)
    with contextlib.suppress(OSError):  # the out-of-memory killer should kill units, not their supervisor
        Path("/proc/self/oom_score_adj").write_text("-500" if os.geteuid() == 0 else "0")
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(directory.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def main(path: str) -> int:
    """Fork the supervisor of the slice at ``path``. The parent returns 0 once it is recorded, else an error code."""
    directory = SliceDirectory(Path(path))
    record = directory.record()
    if record is None:
        _log(f"{path} contains no slice.json")
        return 1
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        answer = os.read(readable, 1)
        return int(answer or b"1")
    os.close(readable)
    if not _acquire_lock(directory):
        os.write(writable, b"%d" % ALREADY_SUPERVISED)
        return 0
    _daemonize(directory)
    directory.supervise()
    directory.touch_alive()
    os.write(writable, b"0")
    os.close(writable)
    SliceSupervisor(directory, record, SystemClock()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
