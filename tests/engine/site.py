"""An engine with workers as real processes on this host, made to be broken by tests."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hcloud.core.clock import SystemClock
from hcloud.core.model import Resources
from hcloud.engine.gateway_process import GatewaySettings
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.tls import authority_pem, enrolment_secret, launch_key, make_ca
from hcloud.engine.unit import Unit, UnitDirectories
from hcloud.engine.worker import end_units
from hcloud.provider import AdmittedMachine, ExitRecord, UnitReport, UnitSpec, UnitState
from tests.waiting import wait_until

PATIENCE_S = 120.0
"""Whatever a test waits for happens on any machine within this time; none of them takes as long."""
SMALL = Resources(vcpus=0.5, memory_mib=128, disk_gib=0.1)
LEAD_S = 600.0


# Below the ports that clients are given: a client that looks for an engine that is away could be given its very port.
_PORTS_FROM, _PORTS, _PORTS_TRIED = 10_000, 20_000, 5
_port_numbers: dict[int, Iterator[int]] = {}
"""By process: forked workers of the tests begin at different ones."""


def free_port() -> int:
    """A port nobody listens on now, nor on the next one, and which this process was not given before."""
    for number in _port_numbers.setdefault(os.getpid(), itertools.count(os.getpid() * 2003)):
        port = _PORTS_FROM + 2 * number % _PORTS
        with socket.socket() as probe, socket.socket() as next_one, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            next_one.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("there is no end of numbers")


_units = itertools.count(1)


def new_unit_id() -> str:
    """An id for a unit that no other test has, also none that runs at the same time in another process.

    Control groups and processes of a unit are looked for on the whole host, by its id.
    """
    return f"job-{os.getpid()}{next(_units):04}.1.0"


def next_port(address: str) -> str:
    """The address with the next port."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"


class Machine:
    """One instance: its bootstrap file and the worker process on it."""

    def __init__(self, folder: Path, name: str, gateway: str, tls_dir: Path, **changes: object) -> None:
        self.name, self.state_dir = name, folder / name
        self.bootstrap_file = folder / f"{name}.json"
        self.notice_file = folder / f"{name}.notice"
        self.clock = SystemClock()
        self._bootstrap: dict[str, object] = {
            "instance_id": name,
            "token": f"token-{name}",
            "owner": "tests",
            "gateway_addresses": [gateway],
            "enrolment_addresses": [next_port(gateway)],
            "authority_pem": authority_pem(tls_dir),
            "enrolment_secret": enrolment_secret(launch_key(tls_dir), f"token-{name}"),
            "state_dir": str(self.state_dir),
            "capacity": {"vcpus": 2, "memory_mib": 1024, "disk_gib": 1},
            "cpus": None,
            "cgroup": None,
            "expires_at": self.clock.now() + 3600,
            "lease_s": 600,
            "isolation": "require",
            "unit_uid_base": 61000 + 64 * (free_port() % 32),
            "settings": {"preempt_file": str(self.notice_file)},
            **changes,
        }
        self.bootstrap_file.write_text(json.dumps(self._bootstrap))
        self.program: tuple[str, ...] = (sys.executable, "-m", "hcloud.agent")
        self.environment: Mapping[str, str] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its worker, as its machine would at boot."""
        command = [*self.program, "worker", "--bootstrap", str(self.bootstrap_file)]
        self.process = subprocess.Popen(command, env=self.environment)

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        """Its worker's first process."""
        assert self.process is not None
        return self.process

    def link(self) -> int:
        """Process id of its worker's link."""
        return wait_until(lambda: next(iter(self._links()), None), PATIENCE_S) or 0

    def _links(self) -> Iterator[int]:
        children = Path(f"/proc/{self.supervisor.pid}/task/{self.supervisor.pid}/children").read_text().split()
        for child in children:
            with suppress(OSError):  # it ended meanwhile
                if b"hcloud.engine.link" in Path(f"/proc/{child}/cmdline").read_bytes():
                    yield int(child)

    def unit(self, unit_id: str) -> Unit:
        """The directory of one of its units."""
        return Unit(self.state_dir / "units" / unit_id)

    def keeper(self, unit_id: str) -> int:
        """Process id of a unit's keeper."""
        return int(wait_until(lambda: self.unit(unit_id).keeper_pid, PATIENCE_S) or 0)

    def kill(self) -> None:
        """Lose the machine: everything on it ends at once."""
        if self.process is not None and self.process.poll() is None:
            links = list(self._links())
            self.process.kill()
            self.process.wait()
            for link in links:
                kill(link)
        if self.state_dir.exists():
            for unit in UnitDirectories(self.state_dir):
                unit.signal_keeper(signal.SIGKILL)

    def clean(self) -> None:
        """Kill it and give back its groups and firewall table."""
        self.kill()
        if self.state_dir.exists():
            end_units(self.bootstrap_file)


class Site:
    """A certificate authority, an engine process, and machines."""

    def __init__(
        self, folder: Path, *, archives: Path | None = None, host: str = "127.0.0.1", **changes: object
    ) -> None:
        self.folder, self.tls_dir, self.archives = folder, folder / "tls", archives
        make_ca(self.tls_dir)
        self.address = ""
        self.socket = folder / "gateway.sock"
        self._changes = changes
        self.engine: subprocess.Popen[bytes] | None = None
        self.machines: dict[str, Machine] = {}
        self._runners: list[GatewayRunner] = []
        self._admitted: dict[str, AdmittedMachine] = {}
        self._admitting = self.runner()
        for _ in range(_PORTS_TRIED):
            self.address = f"{host}:{free_port()}"
            if self._starts():
                return
        raise AssertionError(f"no gateway started on any of {_PORTS_TRIED} free ports")

    def start_engine(self) -> None:
        """Start the gateway's process on the site's address."""
        assert self._starts()

    def _starts(self) -> bool:
        """Start the gateway's process, and return whether it is ready: another process may have taken the port."""
        settings = GatewaySettings(
            listen=self.address,
            enrolment_listen=next_port(self.address),
            socket=self.socket,
            keys=self.tls_dir,
            archives=self.archives,
        )
        self.engine = subprocess.Popen(
            [sys.executable, "-m", "hcloud.engine.gateway", settings.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.engine.stdout is not None
        if self.engine.stdout.readline() != b"ready\n":
            self.engine.wait()
            return False
        self._admitting.admit(tuple(self._admitted.values()))
        return True

    def kill_engine(self) -> None:
        """Kill the gateway's process."""
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()

    def machine(self, name: str, *, admitted: bool = True, inside: Sequence[str] = (), **changes: object) -> Machine:
        """Add a machine and start its worker. Where it is not ``admitted``, something else does that. ``inside``: what
        the worker's command line is appended to."""
        changes = {**self._changes, **changes}
        machine = Machine(self.folder, name, self.address, self.tls_dir, **changes)
        machine.program = (*inside, *machine.program)
        self.machines[name] = machine
        if admitted:
            self.admit(name)
        machine.start()
        return machine

    def admit(self, name: str, **changes: object) -> None:
        """Let an instance connect, or change what is known of it."""
        known: dict[str, object] = {"launch_token": f"token-{name}", "has_registered": False, "addresses": ()}
        self._admitted[name] = AdmittedMachine(instance_id=name, **{**known, **changes})  # type: ignore[arg-type]
        self._admitting.admit(tuple(self._admitted.values()))

    def admit_many(self, names: Iterable[str]) -> None:
        """Let instances connect."""
        for name in names:
            self._admitted[name] = AdmittedMachine(
                instance_id=name, launch_token=f"token-{name}", has_registered=False, addresses=()
            )
        self._admitting.admit(tuple(self._admitted.values()))

    def end(self, name: str) -> None:
        """Let an instance be over."""
        del self._admitted[name]
        self._admitting.admit(tuple(self._admitted.values()))

    def runner(self, settings: Mapping[str, object] | None = None) -> GatewayRunner:
        """A daemon's side of the engine, patient unless ``settings`` say otherwise."""
        patient = dict.fromkeys(("call_timeout_s", "answer_within_s", "sign_of_life_s"), PATIENCE_S)
        settings = {**patient, "lead_s": LEAD_S, **(settings or {})}
        runner = GatewayRunner(self.socket, launch_key(self.tls_dir), SystemClock(), settings)
        self._runners.append(runner)
        return runner

    def close(self) -> None:
        """End everything."""
        for runner in self._runners:
            runner.close()
        for machine in self.machines.values():
            machine.clean()
        self.kill_engine()


def kill(pid: int) -> None:
    """Kill a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Watch:
    """What a test wants to know of units, waiting as long as needed."""

    def __init__(self, runner: GatewayRunner) -> None:
        self.runner = runner

    def registered(self, *names: str) -> None:
        """Wait until these instances' workers answer."""
        wait_until(lambda: {each.instance_id for each in self.runner.observe().workers} >= set(names), PATIENCE_S)

    def report(self, unit: UnitSpec) -> UnitReport | None:
        """The unit's report now."""
        workers = {each.instance_id: each for each in self.runner.observe().workers}
        units = workers[unit.instance_id].units if unit.instance_id in workers else ()
        return next((each for each in units if each.id == unit.id), None)

    def running(self, unit: UnitSpec) -> UnitReport:
        """Wait until it runs."""
        report = wait_until(lambda: self._in_state(unit, UnitState.RUNNING), PATIENCE_S)
        assert report is not None
        return report

    def ended(self, unit: UnitSpec) -> ExitRecord:
        """Wait until it has ended."""
        report = wait_until(lambda: self._in_state(unit, UnitState.ENDED), PATIENCE_S)
        assert report is not None and report.exit is not None
        return report.exit

    def _in_state(self, unit: UnitSpec, state: UnitState) -> UnitReport | None:
        report = self.report(unit)
        return report if report is not None and report.state is state else None

    def output(self, unit: UnitSpec, stream: str = "stdout") -> str:
        """All its output so far."""
        content, offset = b"", 0
        while True:
            chunk = self.runner.logs(unit.id, unit.instance_id, stream, offset, 1 << 20)  # type: ignore[arg-type]
            content += chunk.content
            if chunk.end or not chunk.content:
                return content.decode(errors="replace")
            offset = chunk.next_offset

    def says(self, unit: UnitSpec, text: str) -> str:
        """Wait until it has written the text."""
        return wait_until(lambda: output if text in (output := self.output(unit)) else "", PATIENCE_S)

    def run(self, unit: UnitSpec) -> tuple[ExitRecord, str]:
        """Start it, wait for its end; return how it ended and what it wrote."""
        result = self.runner.start([unit])[unit.id]
        assert result.outcome == "started", result
        record = self.ended(unit)
        return record, self.output(unit) + self.output(unit, "stderr")
