"""The process that keeps one unit: starts it, holds its bounds, ends it, and writes down how it ended.

It is forked from the worker's supervisor (nothing is imported again, so a start takes milliseconds), leads a session
of its own and outlives everything else of HCloud on the machine. It holds the unit's lock; when it dies its unit dies
with it (the sandbox's first process follows its parent) and the supervisor writes the exit record instead.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import InputsFailed, UnitRefused, defect_text
from hcloud.core.image_names import IMAGE_LOGIN
from hcloud.core.model import FailureCause
from hcloud.core.resources import GpuDevice
from hcloud.core.task_runs import UnitTasks
from hcloud.engine import gang_launcher, launch, profiling
from hcloud.engine.archive import EXPANSION_MAX, unpack
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.cpu_report import pin_each, usable_cpus
from hcloud.engine.gang_network import GangNetwork, gang_network
from hcloud.engine.gang_tunnel import TUNNEL
from hcloud.engine.gpus import devices_of, driver_environment, driver_files, gpu_environment
from hcloud.engine.idle_keepers import GivenUnit, next_unit, say_begun
from hcloud.engine.images import image_environment, mount_image, unmount_image
from hcloud.engine.launch import Entrance, RunningCommand
from hcloud.engine.limits import Bounds, group_for, kill_each, limit_process
from hcloud.engine.pause import PauseControl
from hcloud.engine.prepared_roots import PreparedRoot
from hcloud.engine.profiling import Measurement, Profile
from hcloud.engine.sampling import Sampler
from hcloud.engine.sandbox import Cell, Isolation, prepare_cell
from hcloud.engine.task_sequence import TASK_LAUNCHER, TaskSequence, woken_by_signals
from hcloud.engine.task_workdir import TaskWorkdir, empty, open_folders
from hcloud.engine.unit import CHECKPOINT_ASKED, RESTORE, STOP_SIGNAL, WORKDIR, Unit
from hcloud.engine.usage import descendants, owner_of
from hcloud.engine.wire import INPUTS
from hcloud.provider import ExitRecord, UnitSpec

MIB, GIB = 1 << 20, 1 << 30
LOG = "keepers.log"
"""Standard streams of all keepers of a worker, in its state directory: faults of their own."""
WATCH_S = 0.5
KILL_S = 5.0
SANDBOX_ENDS_S = 0.1
BEGUN_LOOK_S = 0.1
"""Pause between two looks whether a unit that is not over yet has begun."""
FULL_DISK_BYTES = MIB
UNPACKING_BYTES = 512 * MIB
"""Memory that unpacking and fetching may take: a header of an archive may claim any size."""


class Keeper:
    """Keeps one unit; ``run`` returns when it is over and its exit record is on the disk."""

    def __init__(
        self,
        unit: Unit,
        spec: UnitSpec,
        uid: int,
        bootstrap: Bootstrap,
        isolation: Isolation,
        profile: Profile | None = None,
        clock: Clock | None = None,
        prepared: PreparedRoot | None = None,
        say_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """``say_begun`` is called, once, if the unit is not over soon: others may begin then."""
        self._unit, self._spec, self._uid, self._profile = unit, spec, uid, profile
        self._prepared, self._say_begun = prepared, say_begun
        self._begun_look_at: float | None = None
        """When to look next whether it has begun (monotonic seconds); None: that was said."""
        self._bootstrap, self._isolation, self._clock = bootstrap, isolation, clock or SystemClock()
        self._group = group_for(isolation.cgroup, unit.id)
        # The hooks of a unit that is measured are those of its copies.
        sampled = replace(spec, metrics=None, progress=None) if spec.profile is not None else spec
        is_sandboxed = isolation.bwrap is not None
        cpus = usable_cpus(bootstrap.cpus)
        self._sampler = Sampler(unit, sampled, self._group, self._clock, sandboxed=is_sandboxed, cpus=cpus)
        self._launch: RunningCommand | Measurement | None = None
        self._started_at = self._clock.now()
        self._deadline: float | None = None
        if spec.max_runtime_s is not None and spec.tasks is None:  # else it holds for each task
            self._deadline = time.monotonic() + spec.max_runtime_s
        self._kill_at: float | None = None
        self._cause: FailureCause | None = None  # why it failed, when that is known before its exit code is
        self._detail = ""
        self._stopping = False
        self._signalled = 0
        """Number of the checkpoint for which the command was sent its signal last."""
        self._is_clear = False
        """Whether nothing is left of what was started."""
        self._image_environment: dict[str, str] = {}
        self._network = GangNetwork()
        self._pause = PauseControl(unit, self._group, self._own_processes)

    # ------------------------------------------------------------------------------------------------------- the walk
    def run(self) -> None:
        """Set up, run, clean up, record."""
        exit_code: int | None = None
        if self._begins_slowly:
            self._say_begun()
        else:
            self._begun_look_at = time.monotonic() + BEGUN_LOOK_S
        try:
            exit_code = self._run_all(self._prepare())
        except InputsFailed as failed:
            self._decide(FailureCause.INPUTS, str(failed))
        except UnitRefused as refused:
            self._decide(FailureCause.START_REFUSED, str(refused))
        except OSError as error:
            full = self._disk_is_full()
            cause = FailureCause.OUT_OF_DISK if full else FailureCause.START_REFUSED
            self._decide(cause, f"the worker could not keep it: {error}")
        if not self._is_clear and not self._kill_everything():
            self._detail += "; some of its processes could not be killed"
        if self._spec.profile is not None:
            profiling.clear(self._unit)
        if self._spec.image:
            unmount_image(self._isolation, self._unit.id)
        if self._group is not None:
            self._group.remove()
        self._unit.end_at_last(self._exit_record(exit_code), every_s=WATCH_S)

    @property
    def left_nothing(self) -> bool:
        """Whether this process is as it was before, and may keep another unit."""
        spec = self._spec
        is_plain = spec.profile is None and spec.image is None and spec.metrics is None and spec.framework is None
        return self._is_clear and is_plain

    @property
    def _begins_slowly(self) -> bool:
        """Whether it may take long before its command starts, or runs many."""
        spec = self._spec
        slow = (spec.image, spec.inputs, spec.setup, spec.profile, spec.tasks)
        return any(each is not None for each in slow) or (self._unit.path / WORKDIR).exists()

    def _say_if_begun(self) -> None:
        if self._begun_look_at is None or time.monotonic() < self._begun_look_at:
            return
        # A process belongs to the unit's user once it is a program that was started with that user's rights.
        processes = self._group.processes() if self._group is not None else ()
        if self._group is None or any(owner_of(each) == self._uid for each in processes):
            self._begun_look_at = None
            self._say_begun()
        else:
            self._begun_look_at = time.monotonic() + BEGUN_LOOK_S

    def _prepare(self) -> Cell:
        root = self._unit.path / "root"
        prepared = self._prepared if self._isolation.bwrap and self._spec.image is None else None
        prepare_cell(root, self._uid, root_user=self._isolation.root, is_prepared=prepared is not None)
        if self._group is not None:
            self._group.make(self._bounds())
        spec = self._spec
        image_root = None
        if spec.image is not None:
            image_root = mount_image(self._isolation, spec.image, self._unit.id, spec.env.get(IMAGE_LOGIN, ""))
            self._image_environment = image_environment(self._isolation, spec.image)
        self._unpack(self._unit.path / WORKDIR, root / "job", self._workdir_bytes)
        if spec.inputs is not None:
            self._fetch_inputs(root / "job")
        if spec.checkpoint is not None:
            # Another machine packed it: it may replace what the job keeps, not what it runs.
            self._unpack(
                self._unit.path / RESTORE, root / "job", int(spec.resources.disk_gib * GIB), spec.checkpoint.path
            )
        return Cell(
            root=root,
            uid=self._uid,
            network=spec.network,
            isolation=self._isolation,
            readonly=self._bootstrap.readonly_paths,
            prepared=prepared,
            image_root=image_root,
            devices=devices_of(self._bootstrap.gpu_root, self._gpus),
            driver=driver_files(self._bootstrap.gpu_root) if image_root is not None and spec.gpus else (),
        )

    @property
    def _gpus(self) -> list[GpuDevice]:
        """The unit's GPUs, of which the supervisor has checked that they are there."""
        return [self._isolation.gpus[number] for number in self._spec.gpus]

    def _bounds(self) -> Bounds:
        resources, pids, profile = self._spec.resources, self._bootstrap.number("pids_max", 1024), self._spec.profile
        # While a unit that is measured in place is halted, its profiler may take its CPU time.
        halted_vcpus = profile.steps_vcpus[0] if profile is not None and profile.unit_id else 0.0
        return Bounds(
            vcpus=resources.vcpus + halted_vcpus,
            memory_mib=resources.memory_mib,
            pids=pids,
            cpus=self._spec.cpus or self._bootstrap.cpus,
            dies_whole=self._spec.tasks is None,
        )

    @property
    def _workdir_bytes(self) -> int:
        return self._bootstrap.number("max_workdir_mib", 64) * EXPANSION_MAX * MIB

    def _unpack(self, archive: Path, job: Path, limit_bytes: int, below: str = ".") -> None:
        """Unpack as the unit's own user, so that not even a flaw in unpacking can touch anything else."""
        if not archive.exists():
            return
        self._as_user(lambda: self._unpack_as_user(archive, job, limit_bytes, below=below))
        if self._spec.tasks is None:  # each of them finds it as it was
            archive.unlink()

    def _as_user(self, work: Callable[[], str]) -> None:
        """Do what ``work`` does in a process of its own; what it returns is why it failed. Raises UnitRefused."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, work().encode()[:4000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            message = pipe.read(4096)
        if os.waitpid(child, 0)[1] or message:
            raise UnitRefused(message or "the work directory could not be unpacked")

    def _unpack_as_user(
        self, archive: Path | None, job: Path, limit_bytes: int, *, below: str = ".", emptied: Path | None = None
    ) -> str:
        try:
            launch.die_with_parent()
            handle = os.open(archive, os.O_RDONLY) if archive is not None else -1
            folders = open_folders(emptied) if emptied is not None else []
            os.chdir(job)
            resource.setrlimit(resource.RLIMIT_DATA, (UNPACKING_BYTES, UNPACKING_BYTES))
            if self._isolation.root:
                launch.become_user(self._uid)
            empty(folders[::-1])  # the work directory last
            if archive is None:
                return ""
            unpack(handle, min(limit_bytes, int(self._spec.resources.disk_gib * GIB)), below)
        except UnitRefused as error:
            return str(error)
        except OSError as error:
            return f"the work directory cannot be unpacked: {error.strerror}"
        return ""

    def _fetch_inputs(self, job: Path) -> None:
        """Fetch as the unit's own user, with its view of the network, until the unit is stopped or out of time."""
        listed = self._unit.read(INPUTS)
        if listed is None:
            raise InputsFailed("its list of inputs is not here")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.write(writer, self._fetch_as_user(listed, job).encode()[:4000])
            os._exit(0)
        os.close(writer)
        message, is_over = b"", False
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while not is_over:
                if select.select([pipe], [], [], self._patience())[0]:
                    piece = pipe.read(4096)
                    message, is_over = message + piece, not piece
                elif self._stop_asked() or (self._deadline is not None and time.monotonic() >= self._deadline):
                    os.kill(child, signal.SIGKILL)
                    break
        status = os.waitpid(child, 0)[1]
        if self._spec.tasks is None:
            (self._unit.path / INPUTS).unlink(missing_ok=True)
        if message:
            raise InputsFailed(message.decode(errors="replace"))
        if self._stop_asked():
            return
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._decide(FailureCause.TIMEOUT, "max_runtime ended while its inputs were fetched")
            raise UnitRefused(self._detail)
        if status:
            raise InputsFailed(f"fetching its inputs ended with status {status}")

    def _fetch_as_user(self, listed: Mapping[str, Any], job: Path) -> str:
        try:
            from hcloud.engine.inputs import fetch_listed  # TLS takes memory, which most units need not

            launch.die_with_parent()
            os.chdir(job)
            resource.setrlimit(resource.RLIMIT_DATA, (UNPACKING_BYTES, UNPACKING_BYTES))
            if self._isolation.root:
                launch.become_user(self._uid)
                launch.die_with_parent()  # another user takes that back
            return fetch_listed(listed, int(self._spec.resources.disk_gib * GIB))
        except OSError as error:
            return f"its inputs cannot be written: {error.strerror}"
        except Exception as defect:  # noqa: BLE001 any defect is said, as this process is a copy of its keeper
            traceback.print_exc()
            return f"its inputs could not be fetched: {defect_text(defect)}"

    def _run_all(self, cell: Cell) -> int | None:
        """Run the setup, then the command; return the exit code of what ran last."""
        if self._spec.setup is not None and not self._stop_asked():
            code = self._run(cell, ("/bin/sh", "-c", self._spec.setup))
            if code != 0 or self._cause is not None or self._stopping:
                self._detail = self._detail or f"the setup ended with code {code}"
                return code
        if self._stop_asked():
            return None
        self._started_at = self._clock.now()
        self._unit.write("started.json", {"at": self._started_at})
        if self._spec.profile is not None:
            return self._measure(cell)
        if self._spec.tasks is not None:
            return self._run_tasks(cell, self._spec.tasks)
        with self._gang_network() as self._network:
            if self._stop_asked():
                return None
            code = self._run(replace(cell, network_path=self._network.path), self._command())
        if self._launch is not None and self._launch.missing:
            self._decide(FailureCause.START_REFUSED, f"there is no command {self._command()[0]!r} on this instance")
        framework = self._spec.framework
        if framework is not None and os.path.lexists(cell.root / "home" / gang_launcher.MISSING_MARK):
            program = gang_launcher.PROGRAMS[framework]
            text = f"framework {framework}: there is no program {program} on this instance"
            self._decide(FailureCause.START_REFUSED, text)
        return code

    def _gang_network(self) -> AbstractContextManager[GangNetwork]:
        """Give the network that the command enters, if not what other jobs have."""
        spec = self._spec
        is_own = spec.framework is not None and spec.network == "none"
        if not is_own:
            return nullcontext(GangNetwork())
        return gang_network(spec, self._stop_asked, self._isolation.tunnel)

    def _command(self) -> tuple[str, ...]:
        """Return what is started: the command, or what runs it in its framework."""
        framework = self._spec.framework
        if framework is None:
            return self._spec.command
        return ("python3", "-I", "-c", _gang_launcher(), framework, *self._spec.command)

    def _run(self, cell: Cell, command: tuple[str, ...]) -> int:
        self._launch = running = self._started(cell, command)
        self._watch(running)
        return self._exit_code(running)

    def _started(self, cell: Cell, command: tuple[str, ...], *, is_launcher: bool = False) -> RunningCommand:
        log_bytes = self._bootstrap.number("max_log_mib", 64) * MIB
        environment = cell.environment({**self._image_environment, **self._job_environment()})
        if cell.driver:
            environment |= driver_environment(environment)
        entrance, self._is_clear = None, False
        if self._group is not None and (self._group.can_pin or not self._bounds().cpus):
            entrance = Entrance(groups=self._group.entrances, file_mib=self._file_mib)
        log = self._unit.path / "log"
        return RunningCommand(
            cell, command, environment, self._take_bounds, log, log_bytes, entrance, is_launcher=is_launcher
        )

    def _run_tasks(self, cell: Cell, tasks: UnitTasks) -> int:
        """Run the tasks one after the other; the unit went well whatever became of them."""
        command = (*cell.shell, "-c", TASK_LAUNCHER, "hcloud", *self._spec.command)
        self._launch = running = self._started(cell, command, is_launcher=True)
        workdir = TaskWorkdir(cell.root, lambda: self._make_anew(cell.root))
        sequence = TaskSequence(
            self._unit, self._spec, tasks, running, self._group, self._sampler, self._clock, self._reap, workdir
        )
        try:
            sequence.run()
        finally:
            self._stopping = self._stop_asked()
            self._clear_up(running)
        self._detail = self._detail or sequence.trouble
        if sequence.is_missing:
            self._decide(FailureCause.START_REFUSED, f"there is no command {self._spec.command[0]!r} on this instance")
            return 127
        return 0 if sequence.is_ready else self._exit_code(running) or 126

    def _make_anew(self, root: Path) -> None:
        """Empty the unit's directories and unpack its work directory into them again, as its user."""
        archive, workdir_bytes = self._unit.path / WORKDIR, self._workdir_bytes
        has_one = archive.exists()
        self._as_user(
            lambda: self._unpack_as_user(archive if has_one else None, root / "job", workdir_bytes, emptied=root)
        )
        if self._spec.inputs is not None:
            self._fetch_inputs(root / "job")

    def _measure(self, cell: Cell) -> int:
        """Have the unit measured instead of run; that went well whatever its command did."""
        if self._profile is None:
            raise UnitRefused("this worker was started without a profiler")
        subject = profiling.subject_of(self._unit, self._spec, self._isolation, self._bootstrap.cpus)
        self._is_clear = False
        self._launch = Measurement(
            self._unit,
            replace(self._spec, env={**self._image_environment, **self._job_environment()}),
            self._profile,
            isolation=self._isolation,
            bounds=self._bounds(),
            readonly=cell.readonly,
            image_root=cell.image_root,
            running=subject,
        )
        try:
            self._watch(self._launch)
        finally:
            profiling.release_subject(self._unit, self._isolation)
        findings = profiling.findings_of(self._unit)
        if findings is not None:
            profiling.write_log(self._unit, findings, self._bootstrap.number("max_log_mib", 64) * MIB)
        return self._exit_code(self._launch)

    def _exit_code(self, ended: RunningCommand | Measurement) -> int:
        code = os.waitstatus_to_exitcode(ended.status or 0)
        return code if code >= 0 else 128 - code

    def _take_bounds(self) -> None:
        """In the child, before it turns into the sandbox."""
        bounds, bare = self._bounds(), self._group is None
        if self._group is not None:
            self._group.enter()
        if bounds.cpus and (self._group is None or not self._group.can_pin):
            os.sched_setaffinity(0, bounds.cpus)
        limit_process(
            file_mib=self._file_mib,
            pids=bounds.pids if bare else None,
            memory_mib=bounds.memory_mib if bare else None,
        )

    @property
    def _file_mib(self) -> int:
        return max(1, int(self._spec.resources.disk_gib * 1024))

    def _job_environment(self) -> dict[str, str]:
        resources = self._spec.resources
        ours = {
            "HCLOUD_UNIT_ID": self._spec.id,
            "HCLOUD_ATTEMPT": self._spec.id.rpartition(".")[0],
            "HCLOUD_RANK": str(self._spec.rank),
            "HCLOUD_NODES": str(len(self._spec.peers) or 1),
            "HCLOUD_PEERS": ",".join(self._spec.peers),
            "HCLOUD_VCPUS": f"{resources.vcpus:g}",
            "HCLOUD_MEMORY_MIB": str(resources.memory_mib),
        }
        gpus = gpu_environment(self._isolation.gpus, self._gpus, is_sandboxed=self._isolation.bwrap is not None)
        env = {name: value for name, value in self._spec.env.items() if name not in (IMAGE_LOGIN, TUNNEL)}
        return ours | env | {**gpus, "HCLOUD_UNIT_MARK": self._unit.mark}

    # ---------------------------------------------------------------------------------------------------------- watch
    def _watch(self, running: RunningCommand | Measurement) -> None:
        """Copy output and hold bounds until the command has ended, then end what it left behind."""
        with woken_by_signals() as reader:
            while running.status is None:
                ready, _, _ = select.select([*running.handles, reader], [], [], self._patience())
                if reader in ready:
                    os.read(reader, 4096)
                running.take(ready)
                self._reap()
                self._hold_bounds(running)
                self._say_if_begun()
            self._wait_for_sandbox(reader)
        self._clear_up(running)

    def _wait_for_sandbox(self, wake: int) -> None:
        """Wait until the rest of a sandbox, whose outermost process has ended, has ended too: to look at it and to kill
        it would cost more."""
        deadline = time.monotonic() + SANDBOX_ENDS_S
        while self._isolation.bwrap and _has_children() and (left_s := deadline - time.monotonic()) > 0:
            if select.select([wake], [], [], left_s)[0]:
                os.read(wake, 4096)
            self._reap()

    def _clear_up(self, running: RunningCommand | Measurement) -> None:
        self._sampler.finish()
        self._is_clear = self._kill_everything()
        running.drain()
        if running.lost_output:
            self._detail = self._detail or "output was lost because the disk was full"

    def _patience(self) -> float:
        now = time.monotonic()
        times = [each for each in (self._time_limit, self._kill_at, self._begun_look_at) if each is not None]
        return max(0.0, min([now + WATCH_S, *times]) - now)

    @property
    def _time_limit(self) -> float | None:
        """When its time is over, which does not count pauses (monotonic seconds); None: never, as it is now."""
        return None if self._deadline is None or self._pause.is_on else self._deadline + self._pause.total_s

    def _reap(self) -> None:
        """Collect dead children: the command, and orphans of its that were handed to us."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._sampler.ended.add(usage)
            if self._launch is not None and pid == self._launch.pid:
                self._launch.status = status
            elif pid == self._network.program and not self._stopping and self._is_running:
                self._decide(FailureCause.INSTANCE_LOST, "the program that keeps its gang's network ended")

    @property
    def _is_running(self) -> bool:
        return self._launch is not None and self._launch.status is None

    def _hold_bounds(self, running: RunningCommand | Measurement) -> None:
        now = time.monotonic()
        if (limit := self._time_limit) is not None and now >= limit and not self._stopping:
            self._decide(FailureCause.TIMEOUT, f"it ran longer than max_runtime_s {self._spec.max_runtime_s:g}")
            self._ask_to_end(running)
        if self._stop_asked() and not self._stopping:
            self._ask_to_end(running)
        if self._cause is FailureCause.INSTANCE_LOST and not self._stopping:
            self._ask_to_end(running)
        self._signal_checkpoint(running)
        self._hold_cpus()
        self._hold_pause()
        overrun = self._sampler.look(running.pid)
        if overrun is not None:
            self._decide(*overrun)
            self._kill_everything()
        if self._kill_at is not None and now >= self._kill_at:
            self._detail = self._detail or f"killed: it did not end within its grace of {self._spec.stop_grace_s:g} s"
            self._kill_everything()
            self._kill_at = None

    def _hold_cpus(self) -> None:
        """Pin each process to the CPUs that the daemon named since the start, where no control group does that."""
        if (self._group is None or not self._group.can_pin) and (cpus := self._unit.pinned_to):
            pin_each(self._group.processes() if self._group is not None else descendants(os.getpid()), cpus)

    def _hold_pause(self) -> None:
        """Pause or resume the unit as the daemon asked; one that is to end runs."""
        changed = not self._stopping and self._pause.hold()
        self._sampler.paused_s = self._pause.total_s
        if changed:
            self._sampler.sample_now()

    def _own_processes(self) -> set[int]:
        """Return what runs below this process, without the program of a gang's network."""
        return descendants(os.getpid()) - {self._network.program or 0}

    # ------------------------------------------------------------------------------------------------------------ end
    def _stop_asked(self) -> bool:
        return (self._unit.path / "stop.json").exists()

    def _ask_to_end(self, running: RunningCommand | Measurement) -> None:
        """Send TERM to the command and all its children, but not to the sandbox's own two processes."""
        self._stopping = True
        self._kill_at = time.monotonic() + self._spec.stop_grace_s
        self._pause.resume()
        if isinstance(running, Measurement):  # it ends what it started, and tells what it found by then
            _send(running.pid, signal.SIGTERM)
            return
        own = self._own_processes()
        if self._isolation.bwrap:
            own -= {running.pid} | descendants(running.pid, depth=1)
        for pid in own:
            _send(pid, signal.SIGTERM)

    def _signal_checkpoint(self, running: RunningCommand | Measurement) -> None:
        """Send the command, not its children, the signal for a checkpoint that was asked for."""
        wanted = self._spec.checkpoint
        if wanted is None or not wanted.signal or self._stopping or not (self._unit.path / "started.json").exists():
            return
        asked = (self._unit.read(CHECKPOINT_ASKED) or {}).get("number", 0)
        if asked <= self._signalled:
            return
        self._signalled = asked
        commands = {running.pid}
        if self._isolation.bwrap:
            commands = descendants(running.pid, depth=2) - descendants(running.pid, depth=1)
        for pid in commands:
            _send(pid, signal.Signals[f"SIG{wanted.signal}"])

    def _kill_everything(self) -> bool:
        """Kill the whole tree; return whether nothing is left of it."""
        self._pause.resume()
        gone = self._group.kill(self._reap) if self._group is not None else True
        deadline = time.monotonic() + KILL_S
        self._reap()
        # Orphans become children of this process, so without children nothing is left, and /proc need not be searched.
        while _has_children() and (left := descendants(os.getpid())):
            if time.monotonic() > deadline:
                return False
            for pid in left:
                _send(pid, signal.SIGSTOP)  # a stopped process cannot fork away from the KILL
            kill_each(descendants(os.getpid()))
            self._reap()
            time.sleep(0.002)
        return gone

    def _decide(self, cause: FailureCause, detail: str) -> None:
        if self._cause is None:
            self._cause, self._detail = cause, detail

    def _exit_record(self, exit_code: int | None) -> ExitRecord:
        stop, cause, detail = self._unit.read("stop.json"), self._cause, self._detail
        if cause is None and stop is not None and (self._stopping or exit_code is None):
            cause = FailureCause(stop["cause"]) if stop["cause"] else None
            detail = detail or "stopped on request"
        elif cause is None and exit_code not in (0, None):
            cause, detail = self._judge(exit_code or 0)
        elif cause is None and exit_code == 0 and self._sampler.oom_kills:
            memory_mib = self._spec.resources.memory_mib
            detail = f"though a process of it was killed when its {memory_mib} MiB of memory were used up"
        return ExitRecord(
            exit_code=exit_code,
            cause=cause,
            started_at=self._started_at,
            ended_at=self._clock.now(),
            detail=detail,
            cpu_s=self._sampler.cpu_s,
            memory_mib_max=self._sampler.memory_mib_max,
            findings=profiling.findings_of(self._unit) if self._spec.profile is not None else None,
        )

    def _judge(self, exit_code: int) -> tuple[FailureCause, str]:
        """Say why a command that ended by itself failed."""
        resources = self._spec.resources
        if self._sampler.oom_kills:
            return FailureCause.OUT_OF_MEMORY, f"it used more than its {resources.memory_mib} MiB of memory"
        if exit_code == 128 + signal.SIGXFSZ or self._sampler.disk_is_used_up() or self._disk_is_full():
            return FailureCause.OUT_OF_DISK, f"it used up its {resources.disk_gib:g} GiB of disk, or the machine's"
        if exit_code - 128 in set(signal.Signals):
            # A program may end with such a code of its own, and a shell does so for its child.
            name = signal.Signals(exit_code - 128).name
            return FailureCause.EXIT_CODE, self._detail or f"ended with code {exit_code}, as after {name}"
        return FailureCause.EXIT_CODE, self._detail or f"ended with code {exit_code}"

    def _disk_is_full(self) -> bool:
        room = os.statvfs(self._unit.path)
        return room.f_bavail * room.f_frsize < FULL_DISK_BYTES


@cache
def _gang_launcher() -> str:
    return Path(gang_launcher.__file__).read_text()


def keep(
    first: GivenUnit,
    bootstrap: Bootstrap,
    isolation: Isolation,
    profile: Profile | None = None,
    worker: socket.socket | None = None,
) -> None:
    """Be the keeper of a unit, whose fence is on the disk: called in a child of the supervisor, ends the process.

    ``worker``: over it come further units, one after the other, until the worker closes it.
    """
    code = 1
    try:
        os.setsid()
        gc.freeze()  # a collection would copy what is shared with the supervisor
        launch.close_inherited(first.lock, *([worker.fileno()] if worker is not None else []))
        _settle(first.unit.path.parent.parent / LOG)
        given: GivenUnit | None = first
        while given is not None:
            os.write(given.lock, b'{"pid":%d}' % os.getpid())
            begun = partial(say_begun, worker) if worker is not None else lambda: None
            keeper = Keeper(
                given.unit, given.spec, given.uid, bootstrap, isolation, profile,
                prepared=given.prepared, say_begun=begun,
            )  # fmt: skip
            keeper.run()
            os.close(given.lock)  # from now on it is not kept
            given = next_unit(worker) if worker is not None and keeper.left_nothing else None
        code = 0
    finally:
        os._exit(code)


def _settle(log: Path) -> None:
    """Let go of everything inherited: standard streams, signals, directory."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # it ends when its unit ends; who must end it sooner stops the unit
    for signum in (STOP_SIGNAL, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)  # only wakes the loop
    streams = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number, handle in ((0, os.open("/dev/null", os.O_RDONLY)), (1, streams), (2, streams)):
        os.dup2(handle, number)
    os.chdir("/")
    launch.become_subreaper()


def _has_children() -> bool:
    """Return whether any child of this process is left, also if it has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
