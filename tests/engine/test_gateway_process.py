"""The gateway as a child of the daemon, and agents that look for the gateway of the daemon that leads."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.core.clock import SystemClock
from hcloud.core.errors import ConfigError
from hcloud.engine.gateway_process import GatewayProcess, GatewaySettings
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.tls import launch_key, make_ca
from hcloud.provider import AdmittedMachine, UnitSpec
from tests.engine.site import PATIENCE_S, SMALL, Machine, Watch, free_port, new_unit_id, next_port
from tests.waiting import wait_until

NAME = "inst-1"
MACHINE = AdmittedMachine(instance_id=NAME, launch_token=f"token-{NAME}", has_registered=False, addresses=())


class Side:
    """One daemon's gateway and runner."""

    def __init__(self, folder: Path, keys: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.address, self.socket = f"127.0.0.1:{free_port()}", folder / "gateway.sock"
        self.settings = GatewaySettings(
            listen=self.address, enrolment_listen=next_port(self.address), socket=self.socket, keys=keys
        )
        self.process = GatewayProcess(self.settings)
        settings = {"call_timeout_s": PATIENCE_S, "lead_s": 1.0}
        self.runner = GatewayRunner(self.socket, launch_key(keys), SystemClock(), settings)

    def leads(self) -> None:
        self.runner.admit((MACHINE,))

    def has_agent(self) -> bool:
        return [each.instance_id for each in self.runner.observe().workers] == [NAME]

    def close(self) -> None:
        self.runner.close()
        self.process.stop()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_ca(tmp_path / "tls")
    return tmp_path / "tls"


@pytest.fixture
def side(tmp_path: Path, keys: Path) -> Iterator[Side]:
    side = Side(tmp_path / "one", keys)
    yield side
    side.close()


def _gateways(socket_path: Path) -> list[int]:
    """Process ids of the gateways that serve a socket."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if b"hcloud.engine.gateway\0" in words and str(socket_path).encode() in words:
            found.append(int(entry.parent.name))
    return found


def test_a_gateway_that_dies_is_started_again(side: Side) -> None:
    side.process.start()
    assert side.runner.observe().reachable
    [first] = _gateways(side.socket)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: _gateways(side.socket) not in ([], [first]), PATIENCE_S)
    wait_until(lambda: side.runner.observe().reachable, PATIENCE_S)


def test_a_gateway_ends_with_the_daemon_that_started_it(side: Side) -> None:
    program = (
        "import sys, time; from hcloud.engine.gateway_process import *; "
        "GatewayProcess(GatewaySettings.from_json(sys.argv[1])).start(); print('up', flush=True); time.sleep(600)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", program, side.settings.to_json()], stdout=subprocess.PIPE)
    assert daemon.stdout is not None and daemon.stdout.readline() == b"up\n"
    assert len(_gateways(side.socket)) == 1
    daemon.kill()
    daemon.wait()
    wait_until(lambda: not _gateways(side.socket), PATIENCE_S)


@pytest.mark.parametrize("which", ["listen", "enrolment_listen"])
def test_an_address_that_is_taken_is_named_with_its_key(side: Side, which: str) -> None:
    host, _, port = str(getattr(side.settings, which)).rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(ConfigError, match=rf"^engine\.{which}: the gateway cannot listen on {host}:{port}: "),
    ):
        side.process.start()
    assert _gateways(side.socket) == []


def test_missing_keys_are_named(side: Side, keys: Path) -> None:
    (keys / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key: no readable key here"):
        side.process.start()


def test_an_agent_follows_the_daemon_that_leads_and_its_units_go_on(side: Side, tmp_path: Path, keys: Path) -> None:
    other = Side(tmp_path / "two", keys)
    for each in (side, other):
        each.process.start()
    addresses = [side.address, other.address]
    machine = Machine(
        tmp_path, NAME, side.address, keys, isolation="best_effort",
        gateway_addresses=addresses, enrolment_addresses=[next_port(each) for each in addresses],
    )  # fmt: skip
    machine.start()
    try:
        wait_until(lambda: other.leads() or other.has_agent(), PATIENCE_S)
        unit = UnitSpec(
            id=new_unit_id(),
            instance_id=NAME,
            rank=0,
            command=("/bin/sh", "-c", "echo up; while [ ! -e end ]; do sleep 0.05; done"),
            resources=SMALL,
            stop_grace_s=0.0,
        )
        assert other.runner.start([unit])[unit.id].outcome == "started"
        wait_until(lambda: side.leads() or side.has_agent(), PATIENCE_S)  # the other one has stopped leading
        assert not other.has_agent()
        watch = Watch(side.runner)
        pid = machine.keeper(unit.id)
        watch.running(unit)
        assert machine.keeper(unit.id) == pid
        side.runner.stop({unit.id: NAME}, cause=None)
        wait_until(lambda: side.leads() or watch.report(unit) is None or machine.unit(unit.id).ended, PATIENCE_S)
    finally:
        machine.clean()
        other.close()


@pytest.mark.parametrize(("kills", "listens"), [(2, True), (3, False)])
def test_a_gateway_that_is_killed_while_it_starts_is_started_again_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, listens: bool
) -> None:
    make_ca(tmp_path / "tls")
    python = tmp_path / "python"
    count = f'echo >>"{tmp_path}/starts"; [ "$(wc -l <"{tmp_path}/starts")" -gt {kills} ] || kill -KILL $$'
    python.write_text(f'#!/bin/sh\n{count}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr("hcloud.engine.gateway_process.sys.executable", str(python))
    side = Side(tmp_path / "a", tmp_path / "tls")
    if listens:
        side.process.start()
        assert side.socket.exists()
    else:
        with pytest.raises(ConfigError, match="killed each time"):
            side.process.start()
    side.close()
