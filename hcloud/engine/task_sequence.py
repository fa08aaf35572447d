"""Many tasks in one unit: a launcher inside its sandbox starts them one after the other, the keeper outside decides.

The launcher is a shell that knows nothing but the command. It is sent the variables of a task, starts it, and answers
with its exit code. The keeper writes to the unit's log (:mod:`hcloud.engine.task_log`) before and after, holds each
task to its limits, ends what it leaves behind, and tidies up.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from hcloud.core.arrays import with_positions
from hcloud.core.clock import Clock, holds_within
from hcloud.core.errors import UnitRefused
from hcloud.core.failures import FailureCause
from hcloud.core.task_runs import TaskEnds, TaskProgress, UnitTasks, joined
from hcloud.engine.launch import COMMANDS_FD, RESULTS_FD, RunningCommand
from hcloud.engine.limits import Cgroup, kill_each
from hcloud.engine.sampling import Sampler
from hcloud.engine.task_log import TaskLogWriter
from hcloud.engine.task_workdir import TaskWorkdir
from hcloud.engine.unit import PROGRESS, Unit, boot_id
from hcloud.engine.usage import descendants
from hcloud.engine.wire import progress_to_wire
from hcloud.provider import UnitSpec

PROGRESS_EVERY_S, HELD_EVERY_S, LEFT_BEHIND_S = 1.0, 0.2, 5.0
# `kill 0` in a task reaches its launcher, too, which goes on. Traps end in the subshell.
TASK_LAUNCHER: Final = (
    f'command -v -- "$1" >/dev/null 2>&1 || {{ echo missing >&{RESULTS_FD}; exit 127; }}; '
    f"exec 5<&- 8>&2 2>/dev/null; trap : HUP INT QUIT TERM USR1 USR2 ALRM; echo ready >&{RESULTS_FD}; "
    f'while IFS= read -r line <&{COMMANDS_FD}; do case $line in =*) export "${{line#=}}";; '
    f'*) (exec {COMMANDS_FD}<&- {RESULTS_FD}>&- 2>&8 8>&-; exec "$@") </dev/null; echo "$?" >&{RESULTS_FD};; '
    "esac; done"
)


@contextmanager
def woken_by_signals() -> Iterator[int]:
    """Enter with a descriptor that becomes readable at each signal that this process handles."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


@dataclass(slots=True)
class _RunningTask:
    position: int
    began_at: float
    """Unix seconds."""
    deadline: float | None
    """Monotonic seconds."""
    cause: FailureCause | None = None
    detail: str = ""
    kill_at: float | None = None

    def decide(self, cause: FailureCause, detail: str) -> None:
        """Note why it fails; the first reason counts."""
        if self.cause is None:
            self.cause, self.detail = cause, detail


class TaskSequence:
    """The tasks of one unit, from the first to the last that may begin."""

    def __init__(
        self,
        unit: Unit,
        spec: UnitSpec,
        tasks: UnitTasks,
        running: RunningCommand,
        group: Cgroup | None,
        sampler: Sampler,
        clock: Clock,
        reap: Callable[[], None],
        workdir: TaskWorkdir,
    ) -> None:
        """``running``: the launcher. ``reap`` collects ended processes of this one."""
        self._unit, self._spec, self._tasks, self._running, self._group = unit, spec, tasks, running, group
        self._sampler, self._clock, self._reap, self._workdir = sampler, clock, reap, workdir
        self._log = TaskLogWriter(unit.path / "log", boot_id(), tasks.positions)
        self._ended = list[TaskEnds]()
        self._task: _RunningTask | None = None
        self._own: frozenset[int] = frozenset()
        """The sandbox's own processes, and the launcher."""
        self._own_count: int | None = None
        self._oom_kills = 0
        self._held_at = self._written_at = 0.0
        self._is_stopping = False
        self._wake = -1
        self.is_ready = False
        """Whether its launcher came up."""
        self.is_missing = False
        """Whether there is no such command."""
        self.trouble = ""
        """Why it ended before its last task although nothing asked for that; empty: it did not."""

    def run(self) -> None:
        """Run the tasks. Raises OSError: the disk takes no more of their log."""
        with woken_by_signals() as self._wake:
            try:
                self._run_all()
            finally:
                self._running.end_commands()
                self._workdir.close()
                self._log.close()
                self._write_progress()
            self._wait_for_launcher()

    def _run_all(self) -> None:
        ready = self._answer()
        self.is_missing = ready == b"missing\n"
        self.is_ready = ready == b"ready\n"
        if not self.is_ready:
            return
        self._own = frozenset(self._processes())
        self._own_count = self._group.count() if self._group is not None else None
        self._workdir.watch()
        began = time.monotonic()
        within_s = self._tasks.begin_within_s
        for position, environment in self._tasks.environments():
            if self._stop_asked() or (within_s is not None and time.monotonic() - began > within_s):
                return
            if not self._run_one(position, environment):
                return
            self.trouble = self._clear_up()
            if self.trouble:
                return

    def _clear_up(self) -> str:
        """End and delete what a task left; return why that failed: then no other may begin."""
        if not self._end_left_behind():
            return "processes that a task left behind could not be killed"
        try:
            self._workdir.tidy()
        except UnitRefused as error:
            return str(error)
        return ""

    def _run_one(self, position: int, environment: dict[str, str]) -> bool:
        """Run one task; return whether its launcher is there for another one."""
        limit_s, began_at = self._spec.max_runtime_s, self._clock.now()
        self._log.begin(position, began_at)
        deadline = time.monotonic() + limit_s if limit_s is not None else None
        self._task = _RunningTask(position, began_at, deadline)
        self._running.command("".join(f"={name}={value}\n" for name, value in environment.items()) + ".\n")
        answer = self._answer()
        self._running.take_rest()
        ended = self._judged(self._task, answer)
        self._task = None
        self._log.end(ended, self._running.written)
        self._ended.append(ended)
        if time.monotonic() - self._written_at > PROGRESS_EVERY_S:
            self._write_progress()
        return answer is not None

    def _answer(self) -> bytes | None:
        """Return what the launcher says, a line; None: it is gone. Copies output and holds limits meanwhile."""
        running, said = self._running, b""
        while running.status is None:
            ready, _, _ = select.select([*running.handles, running.results, self._wake], [], [], self._patience_s())
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            running.take(ready)
            if running.results in ready:
                part = os.read(running.results, 64)
                said += part
                if said.endswith(b"\n"):
                    return said
                if not part:
                    break
            if not ready or self._wake in ready or time.monotonic() > self._held_at + HELD_EVERY_S:
                self._hold_limits()
        return None

    def _patience_s(self) -> float:
        now, task = time.monotonic(), self._task
        times = [each for each in (task.deadline, task.kill_at) if each is not None] if task is not None else []
        return max(0.0, min([now + HELD_EVERY_S, *times]) - now)

    def _hold_limits(self) -> None:
        now, task = time.monotonic(), self._task
        self._held_at = now
        overrun = self._sampler.look(self._running.pid)
        if task is None:
            return
        if overrun is not None and task.cause is None:
            task.decide(*overrun)
            kill_each(self._of_task())
        if task.deadline is not None and now >= task.deadline and task.cause is None:
            task.decide(FailureCause.TIMEOUT, f"it ran longer than max_runtime_s {self._spec.max_runtime_s:g}")
            self._ask_to_end(task)
        if not self._is_stopping and self._has_to_stop(task.position):
            self._is_stopping = True
            self._ask_to_end(task)
        if task.kill_at is not None and now >= task.kill_at:
            task.detail = task.detail or f"killed: it did not end within its grace of {self._spec.stop_grace_s:g} s"
            task.kill_at = None
            kill_each(self._of_task())
        if now - self._written_at > PROGRESS_EVERY_S:
            self._write_progress()

    def _ask_to_end(self, task: _RunningTask) -> None:
        task.deadline, task.kill_at = None, time.monotonic() + self._spec.stop_grace_s
        for pid in self._of_task():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _has_to_stop(self, position: int) -> bool:
        """Return whether the task that runs is to be stopped; it may end if only others were cancelled."""
        stop = self._unit.read("stop.json")
        tasks = stop.get("tasks") if stop is not None else None
        return stop is not None and (tasks is None or any(first <= position <= last for first, last in tasks))

    def _stop_asked(self) -> bool:
        return os.path.exists(self._unit.path / "stop.json")

    # ----------------------------------------------------------------------------------------------------- after a task
    def _judged(self, task: _RunningTask, answer: bytes | None) -> TaskEnds:
        """Return how a task ended. ``answer``: its exit code as text; None: its launcher is gone."""
        code = int(answer) if answer is not None and answer.strip().isdigit() else 128 + signal.SIGKILL
        if self._group is not None:
            before, self._oom_kills = self._oom_kills, self._group.oom_kills()
            if self._oom_kills > before and code != 0:
                memory_mib = self._spec.resources.memory_mib
                task.decide(FailureCause.OUT_OF_MEMORY, f"it used more than its {memory_mib} MiB of memory")
        if self._is_stopping and code != 0:
            stop = self._unit.read("stop.json") or {}
            task.decide(
                FailureCause(stop["cause"]) if stop.get("cause") else FailureCause.EVICTED, "stopped on request"
            )
        if code == 128 + signal.SIGXFSZ:
            task.decide(FailureCause.OUT_OF_DISK, f"it used up its {self._spec.resources.disk_gib:g} GiB of disk")
        if code != 0:
            what = "its sandbox was ended" if answer is None else f"ended with code {code}"
            task.decide(FailureCause.EXIT_CODE, what)
        return TaskEnds(
            first=task.position,
            last=task.position,
            started_at=task.began_at,
            ended_at=max(task.began_at, self._clock.now()),
            exit_code=code,
            cause=task.cause,
            detail=task.detail,
        )

    def _processes(self) -> set[int]:
        return self._group.processes() if self._group is not None else descendants(os.getpid())

    def _of_task(self) -> set[int]:
        return self._processes() - self._own

    def _end_left_behind(self) -> bool:
        """Kill what a task left running; return whether nothing is left of it."""
        if self._group is not None and self._own_count is not None and self._group.count() == self._own_count:
            return True

        def is_gone() -> bool:
            """Kill what is left; return whether there was nothing."""
            left = self._of_task()
            kill_each(left)
            self._reap()
            return not left

        gone = holds_within(is_gone, LEFT_BEHIND_S, 0.002)
        self._running.take_rest()
        return gone

    def _write_progress(self) -> None:
        self._written_at = time.monotonic()
        self._ended = list(joined(self._ended))
        begun = with_positions((), [self._task.position] if self._task is not None else [])
        with suppress(OSError):  # its log has the same
            self._unit.write(PROGRESS, progress_to_wire(TaskProgress(ended=tuple(self._ended), begun=begun)))

    def _wait_for_launcher(self) -> None:
        """Wait until the launcher, which gets no more commands, has ended; what does not end is killed later."""
        deadline = time.monotonic() + LEFT_BEHIND_S
        while self._running.status is None and time.monotonic() < deadline:
            select.select([self._wake], [], [], 0.05)
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            self._reap()
