"""An instance's worker: a supervisor that starts units, holds the machine to its expiry, and keeps a link alive.

It imports no gRPC: the link (``link``) is a child process that carries messages and may die at any time. The supervisor
itself may die too: its units' keepers go on, and the next supervisor finds everything in ``state_dir``:
``renewal.json`` (how long the machine is paid ahead, and when that was last said), ``off.json`` (it was switched off).
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hcloud import sd_notify
from hcloud.core.clock import Clock, SystemClock
from hcloud.core.cpu_topology import cpu_list
from hcloud.core.errors import UnitRefused
from hcloud.core.files import spread_directories
from hcloud.core.model import FailureCause
from hcloud.engine import keeper, profiling
from hcloud.engine.bootstrap import POWERED_OFF_EXIT, Bootstrap, load_bootstrap
from hcloud.engine.cpu_report import usable_cpus
from hcloud.engine.gang_tunnel import remove_tunnel
from hcloud.engine.idle_keepers import GivenUnit, IdleKeepers
from hcloud.engine.limits import group_for, kill_each, remove_instance_cgroup, warm_up
from hcloud.engine.prepared_roots import PreparedRoots
from hcloud.engine.profiling import Profile
from hcloud.engine.sandbox import UID_RANGE, Isolation, clear_firewall, detect, refuse_unsafe
from hcloud.engine.unit import STOP_SIGNAL, Unit, UnitDirectories, boot_id, read_json, write_json
from hcloud.engine.wire import unit_from_wire
from hcloud.provider import UnitSpec

TICK_S = 0.5
KILL_ROUNDS_MAX = 3
STARTS_PER_CPU, STARTING_S = 3, 1.0
"""So many units for each CPU begin at once, each for at most so long: few keepers, whose memory stays in the caches of
the CPUs, then start and end many short units. Others wait for their turn."""
WARM_S = 0.01
"""A start soon after another one finds the control groups warm."""
CLEAN_UP_EVERY_S = 3.0
"""Files of forgotten units are deleted at most so often, by a process for all of them."""
LINK_PAUSE_S, LINK_PAUSE_CAP_S, LINK_STEADY_S = 0.2, 5.0, 30.0
GRACE_MARGIN_S = 5.0
OPEN_FILES = 4096
ARCHIVE_CACHE_BYTES = 256 << 20
FENCE_KEPT_S, FENCES_LOOKED_AT_EVERY_S = 7 * 86_400.0, 3_600.0
"""So long a call of a daemon that stood still may be late, and so often names of forgotten units are looked through."""


def serve(bootstrap_file: Path, clock: Clock | None = None, *, profile: Profile | None = None) -> int:
    """Be the worker until SIGTERM (units go on) or until the machine is switched off; return the exit code.

    ``profile`` measures the units that ask for that; without it they are refused.

    Raises:
        ConfigError: the bootstrap file is not right.
    """
    bootstrap = load_bootstrap(bootstrap_file)
    bootstrap.state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    if (bootstrap.state_dir / "off.json").exists():
        return POWERED_OFF_EXIT
    held = os.open(bootstrap.state_dir / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"hcloud worker: another worker runs in {bootstrap.state_dir}; this one ends", file=sys.stderr)
        return 1
    return WorkerSupervisor(bootstrap, bootstrap_file, detect(bootstrap), clock or SystemClock(), profile).run()


def end_units(bootstrap_file: Path) -> None:
    """Kill every unit of the instance and give back its groups and firewall table."""
    bootstrap = load_bootstrap(bootstrap_file)
    isolation = detect(bootstrap)
    for unit in UnitDirectories(bootstrap.state_dir):
        kill_unit(unit, isolation)
    clear_firewall(bootstrap)
    if bootstrap.cgroup is None:
        remove_instance_cgroup(isolation.cgroup)


def kill_unit(unit: Unit, isolation: Isolation) -> None:
    """Kill a unit's keeper, which takes the sandbox along, and whatever is left in its group or carries its id."""
    unit.signal_keeper(signal.SIGKILL)
    if isolation.tunnel:
        remove_tunnel(unit.id)
    group = group_for(isolation.cgroup, unit.id)
    if group is not None:
        # A command that was only being started may come into the group when nothing was in it any more.
        for _ in range(KILL_ROUNDS_MAX):
            if not group.kill(lambda: None) or group.remove():
                break
    elif isolation.bwrap is None:
        kill_each(_marked(unit))


class WorkerSupervisor:
    """The loop. Single-threaded, so that it may fork keepers without care."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        bootstrap_file: Path,
        isolation: Isolation,
        clock: Clock,
        profile: Profile | None = None,
    ) -> None:
        self._bootstrap, self._file, self._isolation, self._clock = bootstrap, bootstrap_file, isolation, clock
        self._profile = profile
        self._units = UnitDirectories(bootstrap.state_dir)
        self._archives = bootstrap.state_dir / "archives"
        self._archives.mkdir(mode=0o700, exist_ok=True)
        self._roots = PreparedRoots(bootstrap.state_dir, bootstrap.readonly_paths)
        self._forgetting: set[str] = set()
        self._has_forgotten, self._cleaned_at = False, -math.inf
        self._fences_due_at = time.monotonic()
        self._live: dict[str, int | None] = {
            unit.id: (unit.read("spec.json") or {}).get("uid") for unit in self._units if not unit.ended
        }
        """Units that are not known to be over, each with its user id."""
        self._looked_at = -math.inf
        self._selector = selectors.DefaultSelector()
        self._idle_keepers = IdleKeepers(self._selector)
        self._new = dict[int, tuple[GivenUnit, Mapping[str, Any]]]()
        """Units whose fence may not be on the disk yet, by the number of their start, each with its spec as sent."""
        self._waiting = deque[tuple[GivenUnit, Mapping[str, Any]]]()
        """The same, once it is: the units that are to be kept next. This process holds their locks."""
        self._warm_until = -math.inf
        self._link: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self._link_started = 0.0
        self._link_pause_s = LINK_PAUSE_S
        self._ended = False
        self._expires_at, self._lease_until = self._remembered_renewal()
        self._boot_id = boot_id()
        self._cpus = usable_cpus(bootstrap.cpus)
        vcpus = min(bootstrap.capacity.get("vcpus", math.inf), len(self._cpus))
        self._starts_most = max(STARTS_PER_CPU, int(STARTS_PER_CPU * vcpus))
        self._operations: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "start": self._start,
            "refuse": self._start,
            "stop": self._stop,
            "renew": self._renew,
            "resize": self._resize,
            "pause": self._pause,
            "forget": self._forget,
        }

    def run(self) -> int:
        """Serve until SIGTERM, expiry or a lost lease."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self._selector.register(reader, selectors.EVENT_READ)
        spread_directories(self._units.path)
        self._units.sweep()
        if not self._live:
            self._roots.sweep()
        gc.freeze()  # keepers share this memory; a collection would copy it into each of them
        try:
            sd_notify.ready()
            while not self._ended:
                self._look_after()
                if (reason := self._why_off()) is not None:
                    return self._switch_off(reason)
                self._wait(reader)
                self._start_waiting(self._starts_most)
            self._start_waiting(math.inf)
            return 0
        finally:
            self._drop_link()
            sd_notify.stopping()

    def _remembered_renewal(self) -> tuple[float, float]:
        """Return the expiry, and the end of the lease on the monotonic clock (which cannot be stepped)."""
        path, now = self._bootstrap.state_dir / "renewal.json", self._clock.now()
        renewal = read_json(path)
        if renewal is None:
            renewal = {"expires_at": self._bootstrap.expires_at, "renewed_at": now}
            write_json(path, renewal, durable=True)
        left_s = self._bootstrap.lease_s - max(0.0, now - float(renewal["renewed_at"]))
        return float(renewal["expires_at"]), time.monotonic() + left_s

    def _end(self, *_: object) -> None:
        self._ended = True

    def _look_after(self) -> None:
        sd_notify.watchdog()
        if self._link is None and time.monotonic() >= self._link_started + self._link_pause_s:
            self._start_link()
        elif self._link is not None and self._link.poll() is not None:
            self._drop_link()
        self._idle_keepers.end_old()
        try:
            self._forget_ended()
            self._look_after_units()
        except OSError as error:  # a full disk: what runs goes on, the rest is tried again
            print(f"hcloud worker {self._bootstrap.instance_id}: {error}; tried again", file=sys.stderr)

    def _look_after_units(self) -> None:
        """Find units whose keeper is gone; not more often than needed, as each is asked on the disk."""
        if time.monotonic() < self._looked_at + TICK_S:
            return
        self._looked_at = time.monotonic()
        for unit_id in sorted(self._live):
            self._look_after_unit(Unit(self._units.path / unit_id))

    def _look_after_unit(self, unit: Unit) -> None:
        if unit.kept and not unit.ended:
            return
        if unit.path.exists() and not unit.ended:
            kill_unit(unit, self._isolation)
            profiling.release_subject(unit, self._isolation)
            profiling.clear(unit)
            self._units.bury(unit, self._clock.now(), profiling.findings_of(unit))
        self._live.pop(unit.id, None)

    def _wait(self, wake: int) -> None:
        for key, _ in self._selector.select(TICK_S):
            if key.fd == wake:
                os.read(wake, 4096)
                _reap_all_but(self._link)
                self._looked_at = -math.inf  # perhaps a keeper has ended
            elif key.data is self._idle_keepers:
                kept = self._idle_keepers.take(cast(socket.socket, key.fileobj))
                if kept is not None:
                    self._look_after_unit(kept)
            else:
                self._serve_link()

    # ------------------------------------------------------------------------------------------------------- the link
    def _start_link(self) -> None:
        self._link_started = time.monotonic()
        ours, theirs = socket.socketpair()
        without_site = ["-S"] if sys.flags.no_site else []
        command = [sys.executable, *without_site, "-m", "hcloud.engine.link", str(self._file), str(theirs.fileno())]
        found = self._isolation
        isolation = json.dumps({"names": found.names, "lacks": dict(found.lacks), "cgroup": found.cgroup})
        environment = {**os.environ, "HCLOUD_ISOLATION": isolation}
        self._link = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        self._socket = ours
        self._selector.register(ours, selectors.EVENT_READ)

    def _drop_link(self) -> None:
        if time.monotonic() - self._link_started > LINK_STEADY_S:
            self._link_pause_s = LINK_PAUSE_S
        else:
            self._link_pause_s = min(LINK_PAUSE_CAP_S, 2 * self._link_pause_s)
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
        if self._link is not None:
            self._link.kill()
            self._link.wait()
        self._link, self._socket, self._unread = None, None, b""

    def _serve_link(self) -> None:
        assert self._socket is not None
        try:
            content = self._socket.recv(1 << 20)
        except OSError:
            content = b""
        if not content:
            self._drop_link()
            return
        *lines, self._unread = (self._unread + content).split(b"\n")
        answers = dict[int, dict[str, Any]]()
        for request in map(json.loads, lines):
            answer = self._answer(request)
            answers[request["id"]] = {**answer, "id": request["id"]}
        answers |= self._make_fences_durable()
        try:
            self._socket.sendall(b"".join(json.dumps(answer).encode() + b"\n" for answer in answers.values()))
        except OSError:
            self._drop_link()

    def _make_fences_durable(self) -> dict[int, dict[str, Any]]:
        """Have all new fences on the disk, so that their units may begin and be spoken of; return other answers to what
        asked for those units, by number, where that failed."""
        new, self._new = self._new, {}
        if not new:
            return {}
        try:
            self._units.sync()
        except OSError as error:  # nothing keeps them: they end without having begun
            for given, _ in new.values():
                os.close(given.lock)
            return {number: {"unknown": f"start: {error}", "id": number} for number in new}
        self._waiting += new.values()
        return {}

    def _start_waiting(self, at_once: float) -> None:
        """Have units kept, in order, as long as no more than ``at_once`` are beginning."""
        while self._waiting and self._idle_keepers.starting(STARTING_S) < at_once:
            try:
                self._hand_over(*self._waiting.popleft())
            except OSError as error:  # it is not kept, and ends without having begun
                print(f"hcloud worker {self._bootstrap.instance_id}: {error}", file=sys.stderr)
            if time.monotonic() >= self._warm_until:
                warm_up(self._isolation.cgroup)  # while the keeper prepares
            self._warm_until = time.monotonic() + WARM_S

    def _hand_over(self, given: GivenUnit, spec: Mapping[str, Any]) -> None:
        """Have an idle keeper, or a new one, keep a unit. Raises OSError: the process table is full."""
        try:
            # Without a control group a keeper counts on what it has started before, so it keeps no second unit.
            may_wait = self._isolation.cgroup is not None and given.spec.profile is None
            if may_wait and self._idle_keepers.give(given, spec):
                return
            ours, theirs = socket.socketpair() if may_wait else (None, None)
            if os.fork() == 0:
                keeper.keep(given, self._bootstrap, self._isolation, self._profile, theirs)
            if ours is not None and theirs is not None:
                theirs.close()
                self._idle_keepers.add(ours, given.unit)
        finally:
            os.close(given.lock)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._operations[request["op"]](request)
        except UnitRefused as refused:
            return {"refused": str(refused)}
        except OSError as error:  # a full disk or process table: said, and the daemon asks again
            return {"unknown": f"{request['op']}: {error}"}

    # ------------------------------------------------------------------------------------------------------ operations
    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        spec = unit_from_wire(request["spec"])
        known = self._units.get(spec.id)
        if known is not None and (refusal := known.refusal) is not None:
            raise UnitRefused(refusal)
        if known is not None:
            return {"started": "before"}
        try:
            return self._begin(spec, request)
        except UnitRefused as refused:
            # Final for the unit: another daemon's call may come late, when the job is over and the reason gone.
            cause = FailureCause(request.get("cause", FailureCause.START_REFUSED.value))
            self._units.fence(spec.id, cause, self._clock.now(), str(refused))
            raise

    def _begin(self, spec: UnitSpec, request: dict[str, Any]) -> dict[str, Any]:
        """Take a new unit's fence, and start it behind that. Raises UnitRefused, also where the daemon asks for that:
        it cannot send what the unit needs."""
        if (why := request.get("why")) is not None:
            raise UnitRefused(why)
        refuse_unsafe(spec, self._isolation, self._bootstrap.isolation)
        self._cpus_asked(spec.cpus)
        self._refuse_absent_gpus(spec.gpus)
        if spec.profile is not None and self._profile is None:
            raise UnitRefused("this worker was started without a profiler")
        archives = dict[str, Path]()
        for kind in ("archive", "inputs", "restore"):
            if (name := request.get(kind)) is not None:
                archives[kind] = self._archives / name
                if not archives[kind].exists():
                    return {"need": name}
        uid = self._free_uid()
        if archives:
            self._trim_archives()
        prepared = self._roots.root(uid) if self._isolation.bwrap and spec.image is None else None
        # The environment, in which secrets may be, reaches the keeper by fork or socket: it is never on this disk.
        kept = {**request["spec"], "env": {}}
        created = self._units.create(spec.id, {"unit": kept, "uid": uid, "boot_id": self._boot_id}, **archives)
        if created is None:
            return {"started": "before"}
        unit, lock = created
        self._live[spec.id] = uid
        self._new[request["id"]] = GivenUnit(unit, lock, spec, uid, prepared), request["spec"]
        return {"started": "now"}

    def _refuse_absent_gpus(self, gpus: Sequence[int]) -> None:
        """Raise UnitRefused if the machine does not have these GPUs, or another unit runs on one of them."""
        if not gpus:
            return
        there = range(len(self._isolation.gpus))
        if absent := cpu_list(set(gpus).difference(there)):
            seen = f"its driver shows {len(there)}" if there else "its driver shows none; is it in the machine's image?"
            raise UnitRefused(f"there is no GPU {absent}: {seen}")
        running = [spec for unit, spec in self._live_specs() if not unit.ended]
        used = {number for spec in running for number in spec.get("unit", {}).get("gpus", ())}
        if in_use := cpu_list(used.intersection(gpus)):
            raise UnitRefused(f"another unit runs on GPU {in_use}")

    def _live_specs(self) -> Iterator[tuple[Unit, dict[str, Any]]]:
        for unit in (Unit(self._units.path / unit_id) for unit_id in self._live):
            yield unit, unit.read("spec.json") or {}

    def _free_uid(self) -> int:
        if not self._isolation.root:
            return os.getuid()
        base = self._bootstrap.unit_uid_base
        if (free := self._first_free(base)) is None:
            self._looked_at = -math.inf
            self._look_after_units()
            free = self._first_free(base)
        if free is None:
            raise UnitRefused(f"{UID_RANGE} units run on this instance already")
        return free

    def _first_free(self, base: int) -> int | None:
        taken = set(self._live.values())
        return next((uid for uid in range(base, base + UID_RANGE) if uid not in taken), None)

    def _trim_archives(self) -> None:
        """Keep the newest uploads; units hold links of their own to what they still need."""
        kept = 0
        by_age = sorted(self._archives.glob("*.tar.gz"), key=lambda path: -path.stat().st_mtime)
        for path in by_age:
            kept += path.stat().st_size
            if kept > ARCHIVE_CACHE_BYTES and path != by_age[0]:
                path.unlink(missing_ok=True)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        cause = FailureCause(request["cause"]) if request["cause"] else None
        now = self._clock.now()
        unit = self._units.get(request["unit"])
        if unit is None and self._units.fence(request["unit"], cause, now) is None:
            unit = self._units.get(request["unit"])
        if unit is not None and not unit.ended:
            unit.request_stop(cause, now, request.get("tasks"))
        return {"asked": True}

    def _resize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Bound a running unit anew, in its control group; without one only its start could."""
        unit = self._units.get(request["unit"])
        if unit is None or unit.ended:
            raise UnitRefused(f"{request['unit']} does not run on {self._bootstrap.instance_id}")
        group, cpus = group_for(self._isolation.cgroup, unit.id), self._cpus_asked(request.get("cpus"))
        if group is None and (cpus is None or _changes_size(unit, request)):
            raise UnitRefused(f"{self._bootstrap.instance_id} has no control groups, so bounds hold from the start on")
        if unit.read("started.json") is None:
            return {"unknown": f"{unit.id} is only being prepared"}  # its keeper would set the bounds of its start
        unit.take_bounds_of(int(request.get("epoch", 0)), cpus)
        if group is not None:
            group.rebound(vcpus=float(request["vcpus"]), memory_mib=int(request["memory_mib"]))
        if cpus is not None and group is not None and group.can_pin:
            group.pin(cpus)
        elif cpus is not None:
            unit.signal_keeper(STOP_SIGNAL)  # which sets them for each process
        return {"resized": True}

    def _pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the keeper of a running unit pause it or let it run."""
        unit = self._units.get(request["unit"])
        if unit is None or unit.ended:
            raise UnitRefused(f"{request['unit']} does not run on {self._bootstrap.instance_id}")
        spec = (unit.read("spec.json") or {}).get("unit") or {}
        if spec.get("tasks") is not None or spec.get("profile") is not None:
            raise UnitRefused(f"{unit.id} runs tasks or a measurement, which cannot be paused")
        if unit.read("started.json") is None:
            return {"unknown": f"{unit.id} is only being prepared"}
        unit.request_pause(bool(request["paused"]), int(request.get("epoch", 0)))
        return {"done": True}

    def _cpus_asked(self, numbers: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return the CPUs to pin a unit to, all of this machine where none is named. Raises UnitRefused."""
        if numbers is None:
            return None
        absent = sorted(set(numbers).difference(self._cpus))
        if absent:
            raise UnitRefused(f"{self._bootstrap.instance_id} has no CPUs {cpu_list(absent)}")
        return tuple(numbers) or self._cpus

    def _renew(self, request: dict[str, Any]) -> dict[str, Any]:
        now = self._clock.now()
        renewal = {"expires_at": request["expires_at"], "renewed_at": now}
        write_json(self._bootstrap.state_dir / "renewal.json", renewal, durable=True)
        self._expires_at = float(request["expires_at"])
        self._lease_until = time.monotonic() + self._bootstrap.lease_s
        return {"renewed": True}

    def _forget(self, request: dict[str, Any]) -> dict[str, Any]:
        self._forgetting.update(request["units"])
        self._forget_ended()
        return {"forgotten": True}

    def _forget_ended(self) -> None:
        done = self._units.forget(self._forgetting)
        self._forgetting -= done
        self._has_forgotten = self._has_forgotten or bool(done)
        if not self._has_forgotten or time.monotonic() < self._cleaned_at + CLEAN_UP_EVERY_S:
            return
        self._has_forgotten, self._cleaned_at = False, time.monotonic()
        # Deleting a large tree takes long; the loop must not wait for it.
        pid = os.fork()
        if pid == 0:
            try:
                os.closerange(3, OPEN_FILES)
                self._clean_up()
            finally:
                os._exit(0)
        if time.monotonic() >= self._fences_due_at:
            self._fences_due_at = time.monotonic() + FENCES_LOOKED_AT_EVERY_S

    def _clean_up(self) -> None:
        """Delete what forgotten units leave, in a process of its own."""
        self._units.sweep(".old-*")
        if time.monotonic() >= self._fences_due_at:
            self._units.drop_fences(self._clock.now() - FENCE_KEPT_S)

    # ------------------------------------------------------------------------------------------------------------- off
    def _why_off(self) -> str | None:
        if self._clock.now() >= self._expires_at:
            return "expired: its time was not paid further ahead"
        if time.monotonic() >= self._lease_until:
            return f"its lease was not renewed for {self._bootstrap.lease_s:g} s"
        return None

    def _switch_off(self, reason: str) -> int:
        """End all units, say so durably, and switch the machine off."""
        print(f"hcloud worker {self._bootstrap.instance_id}: switching off: {reason}", file=sys.stderr)
        self._end_all_units()
        write_json(self._bootstrap.state_dir / "off.json", {"reason": reason, "at": self._clock.now()}, durable=True)
        clear_firewall(self._bootstrap)
        if self._bootstrap.cgroup is None:
            remove_instance_cgroup(self._isolation.cgroup)
        if self._bootstrap.poweroff != "exit":
            subprocess.run(self._bootstrap.poweroff, check=False)
        return POWERED_OFF_EXIT

    def _end_all_units(self) -> None:
        """TERM, grace and KILL are the keepers' work; one that does not manage is killed itself."""
        while self._waiting:
            os.close(self._waiting.popleft()[0].lock)
        live = [Unit(self._units.path / unit_id) for unit_id in sorted(self._live)]
        grace_s = 0.0
        for unit in live:
            unit.request_stop(FailureCause.INSTANCE_LOST, self._clock.now())
            spec = (unit.read("spec.json") or {}).get("unit", {})
            grace_s = max(grace_s, float(spec.get("stop_grace_s", 0.0)))
        deadline = time.monotonic() + grace_s + GRACE_MARGIN_S
        while time.monotonic() < deadline and any(unit.kept for unit in live):
            time.sleep(0.05)
        for unit in live:
            self._look_after_unit(unit) if not unit.kept else kill_unit(unit, self._isolation)


def _changes_size(unit: Unit, request: Mapping[str, Any]) -> bool:
    """Return whether a unit would get other amounts than it was started with."""
    held = ((unit.read("spec.json") or {}).get("unit") or {}).get("resources", {})
    return any(request[name] != held.get(name) for name in ("vcpus", "memory_mib"))


def _reap_all_but(link: subprocess.Popen[bytes] | None) -> None:
    """Collect dead children (sweepers, orphans handed to us); the link's status belongs to its Popen."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or (link is not None and found.si_pid == link.pid):
            return
        os.waitpid(found.si_pid, 0)


def _marked(unit: Unit) -> set[int]:
    """Return processes with this very unit in their environment: the last resort where there is neither group nor
    sandbox. Its id alone does not do: another deployment on this host may have a unit of the same one."""
    mark, found = f"HCLOUD_UNIT_MARK={unit.mark}".encode(), set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.add(int(name))
    return found
