"""Gangs across hosts: two agents in network namespaces of their own, joined by a bridge, and real WireGuard."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import UnitRefused
from hcloud.core.model import FailureCause
from hcloud.engine import gang_tunnel
from hcloud.engine.gang_credential import gang_of, tunnel_addresses
from hcloud.engine.gang_credential import gang_tunnel as tunnel_text
from hcloud.engine.gang_tunnel import TUNNEL, device_name, find_tunnel_kind
from hcloud.engine.sandbox import Isolation, refuse_unsafe
from hcloud.engine.tls import launch_key
from hcloud.provider import GANG_PORTS, UnitSpec
from tests.engine.gangs import DASK_CLIENT, MPI_PROGRAM, NODES, gang, needs_same_python, run, watched, work_directory
from tests.engine.site import PATIENCE_S, Site, Watch
from tests.machine import needs_bwrap, needs_mpirun, needs_wireguard
from tests.waiting import wait_until

NET = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
HOSTS = (f"{NET}.2", f"{NET}.3")
BRIDGE, SPACES = f"hcb{os.getpid()}", tuple(f"hc{os.getpid()}-{name}" for name in NODES)


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["/usr/sbin/ip", *words], check=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """Two network namespaces, which a bridge joins with this host's."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, space in enumerate(SPACES):
            end = f"{BRIDGE}-{number}"
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{HOSTS[number]}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for words in (*(("netns", "del", space) for space in SPACES), ("link", "del", BRIDGE)):
            with suppress(subprocess.CalledProcessError):
                ip(*words)


@pytest.fixture(scope="module")
def site(hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine with a machine on each host."""
    site = Site(tmp_path_factory.mktemp("hosts"), host=f"{NET}.1", isolation="best_effort")
    try:
        for name, space in zip(NODES, SPACES, strict=True):
            site.machine(name, inside=("nsenter", f"--net=/run/netns/{space}", "--"))
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def watch(site: Site) -> Watch:
    """What the engine says."""
    return watched(site)


def across(framework: str, *command: str, workdir: str | None = None) -> list[UnitSpec]:
    """A gang of both hosts with a network of its own."""
    return [replace(each, network="none", addresses=HOSTS) for each in gang(framework, *command, workdir=workdir)]


def left_on_hosts() -> list[str]:
    """Devices and programs of tunnels on both hosts, and sockets of programs."""
    found = []
    for space in SPACES:
        shown = subprocess.run(["/usr/sbin/ip", "-n", space, "-o", "link"], capture_output=True, text=True, check=True)
        found += [line for line in shown.stdout.splitlines() if ": hc" in line or "gang0" in line]
        shown = subprocess.run(["/usr/sbin/ip", "netns", "pids", space], capture_output=True, text=True, check=True)
        names = [Path(f"/proc/{pid}/comm") for pid in shown.stdout.split()]
        found += [name for each in names if (name := read(each)) == "wireguard-go"]
    return found


def read(path: Path) -> str:
    """The text of a file of a process that may be gone."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""


@needs_wireguard
@needs_bwrap
@needs_same_python
def test_dask_runs_on_workers_of_two_hosts_and_leaves_nothing(watch: Watch, tmp_path: Path) -> None:
    dask = '#!/bin/sh\nexec python3 -m dask "$@"\n'
    archive = work_directory(tmp_path / "dask.tar.gz", ("distributed",), {"dask": dask})
    units = across("dask", "python3", "-c", DASK_CLIENT, workdir=archive)
    assert run(watch, units) == [7, 0], watch.output(units[0], "stderr")
    assert watch.output(units[0]) == "['rank-0', 'rank-1'] 4950 tls\n"
    assert not left_on_hosts()


@needs_wireguard
@needs_bwrap
@needs_same_python
@needs_mpirun
def test_mpi_runs_processes_on_two_hosts(watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "mpi.tar.gz", ("mpi4py",))
    units = across("mpi", "python3", "-c", MPI_PROGRAM, workdir=archive)
    assert run(watch, units) == [3, 0], watch.output(units[0], "stderr")
    lines = sorted(watch.output(units[0]).splitlines())
    assert lines == [f"{rank} of 4 on node {rank // 2} sum 10" for rank in range(4)]


LOOK_ROUND = """#!/usr/bin/python3
import os, socket
def reached(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port))
print([name for _, name in socket.if_nameindex()], [name for name in os.environ if "TUNNEL" in name],
      reached(os.environ["HOST"], int(os.environ["PORT"])), reached("127.0.0.1", int(os.environ["PORT"])),
      os.environ["HCLOUD_GANG_ADDRESSES"], flush=True)
"""


@needs_wireguard
@needs_bwrap
def test_a_rank_sees_its_gang_s_network_only_and_no_key(site: Site, watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "look.tar.gz", programs={"torchrun": LOOK_ROUND})
    host, port = site.address.split(":")
    units = across("torchrun", "look.py", workdir=archive)
    units = [replace(each, env={**each.env, "HOST": host, "PORT": port, TUNNEL: "{}"}) for each in units]
    assert run(watch, units) == [0, 0], watch.output(units[0], "stderr")
    seen = f"['lo', 'gang0'] [] {errno.ENETUNREACH} {errno.ECONNREFUSED} 10.77.0.1,10.77.0.2\n"
    assert [watch.output(unit) for unit in units] == [seen, seen]


WAITING = """#!/bin/sh
echo waits
exec sleep 600
"""


@pytest.fixture
def waiting(watch: Watch, tmp_path: Path) -> list[UnitSpec]:
    """A gang that runs on both hosts until it is ended."""
    units = across("torchrun", "x", workdir=work_directory(tmp_path / "wait.tar.gz", programs={"torchrun": WAITING}))
    watch.runner.start(units)
    for unit in units:
        watch.says(unit, "waits")
    assert left_on_hosts()
    return units


@needs_wireguard
@needs_bwrap
@pytest.mark.parametrize("victim", ["keeper", "worker", "program"])
def test_kill_9_leaves_no_device_and_no_program(site: Site, watch: Watch, waiting: list[UnitSpec], victim: str) -> None:
    machine, unit = site.machines[NODES[0]], waiting[0]
    keeper = machine.keeper(unit.id)
    if victim == "program" and find_tunnel_kind()[0] == "wireguard-go":  # the kernel's WireGuard has none
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        keeper = next(int(each) for each in children if read(Path(f"/proc/{each}/comm")) == "wireguard-go")
    if victim == "worker":
        machine.supervisor.kill()
        machine.supervisor.wait()
    os.kill(keeper, signal.SIGKILL)
    if victim == "worker":
        machine.start()
    assert watch.ended(unit).cause is FailureCause.INSTANCE_LOST
    watch.runner.stop({waiting[1].id: NODES[1]}, cause=FailureCause.EVICTED)
    watch.ended(waiting[1])
    wait_until(lambda: not left_on_hosts(), PATIENCE_S)
    assert not list(Path("/var/run/wireguard").glob(f"{device_name(unit.id)}*"))


@needs_wireguard
@needs_bwrap
def test_a_machine_writes_no_key_to_its_disk(site: Site, watch: Watch, waiting: list[UnitSpec]) -> None:
    text = tunnel_text(launch_key(site.tls_dir), gang_of(waiting[0].id), 0, HOSTS)
    key = json.loads(text)["key"]
    found = subprocess.run(["grep", "-rlF", key, str(site.folder)], capture_output=True, text=True, check=False)
    watch.runner.stop(dict(zip((each.id for each in waiting), NODES, strict=True)), cause=FailureCause.EVICTED)
    assert not found.stdout and found.returncode == 1
    assert {watch.ended(unit).cause for unit in waiting} == {FailureCause.EVICTED}


END = """
import json, os, socket, subprocess, sys
from hcloud.engine.gang_network import _made
from hcloud.engine.gang_tunnel import find_tunnel_kind, gang_tunnel
unit, text, program = sys.argv[1:]
network = _made()
with gang_tunnel(unit, text, find_tunnel_kind()[0], network):
    subprocess.run(["nsenter", f"--net=/proc/{os.getpid()}/fd/{network}", "--", sys.executable, "-c", program])
"""
SERVE = """
import socket, sys
with socket.create_server(("10.77.0.1", 9)) as server:
    print("serves", flush=True)
    sys.stdin.read()
"""
REACH = """
import socket
with socket.socket() as probe:
    probe.settimeout({wait_s})
    print(probe.connect_ex(("10.77.0.1", 9)), flush=True)
"""


def end_of(host: int, unit: str, text: str, program: str) -> subprocess.Popen[str]:
    """One end of a tunnel on a host, with a program in its namespace."""
    command = ["nsenter", f"--net=/run/netns/{SPACES[host]}", "--", sys.executable, "-c", END, unit, text, program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@needs_wireguard
def test_a_member_has_its_own_address_only_and_a_stranger_none(hosts: None) -> None:
    places = (HOSTS[0], HOSTS[1], HOSTS[1])
    first, second, third = (json.loads(tunnel_text(b"key", "job-1.1_a", rank, places)) for rank in range(3))
    stranger = {**second, "key": json.loads(tunnel_text(b"key", "job-1.2_a", 1, places))["key"]}
    thief = {**second, "address": third["address"]}
    # The port that the others look for is in use: this end begins instead.
    taken = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{SPACES[0]}", "--", sys.executable, "-c", TAKE, str(first["port"])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with taken, end_of(0, "server", json.dumps(first), SERVE) as server:
        assert taken.stdout is not None and taken.stdout.readline() == "taken\n"
        assert server.stdout is not None and server.stdout.readline() == "serves\n"
        reached = [
            end_of(1, name, json.dumps(text), REACH.format(wait_s=wait_s)).communicate()[0].strip()
            for name, text, wait_s in (("member", second, 60), ("thief", thief, 0.7), ("stranger", stranger, 0.7))
        ]
        server.communicate()
        taken.communicate()
    assert reached == ["0", str(errno.EAGAIN), str(errno.EAGAIN)]
    assert not left_on_hosts()


TAKE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.bind(("", int(sys.argv[1])))
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_each_attempt_and_rank_has_keys_and_ports_of_its_own() -> None:
    hosts = ("10.0.0.1", "10.0.0.1", "fd00::7")
    texts = [json.loads(tunnel_text(b"key", attempt, rank, hosts)) for attempt in ("a", "b") for rank in range(3)]
    assert tunnel_text(b"key", "a", 0, hosts) == json.dumps(texts[0])
    assert len({each["key"] for each in texts}) == len({each["port"] for each in texts}) == 6
    assert (
        [each["address"] for each in texts[:3]] == list(tunnel_addresses(3)) == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    )
    assert texts[0]["peers"][1]["endpoint"] == f"[fd00::7]:{texts[2]['port']}"
    private = {each["key"] for each in texts}
    assert all(not private & {peer["key"] for peer in each["peers"]} for each in texts)
    assert all(each["port"] in GANG_PORTS for each in texts)


@pytest.mark.parametrize(
    ("hosts", "device_mtu", "route_mtu", "expected"),
    [
        (("10.0.0.1", "10.0.0.2"), 9001, None, 8420),
        (("10.0.0.1", "10.0.0.2"), 1460, None, 1380),
        (("10.0.0.1", "10.0.0.2"), 9001, 1500, 1420),
        (("10.0.0.1", "54.72.0.1"), 9001, None, 1380),
        (("fd00::1", "fd00::2"), 1500, None, 1420),
        (("10.0.0.1", "10.0.0.2"), 600, None, 1280),
        (("10.0.0.1", "10.0.0.2"), 0, None, 1380),
    ],
)
def test_packets_are_as_large_as_the_network_between_hosts_carries(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hosts: tuple[str, str],
    device_mtu: int,
    route_mtu: int | None,
    expected: int,
) -> None:
    metrics = f', "metrics": [{{"mtu": {route_mtu}}}]' if route_mtu else ""
    link = f'[{{"mtu": {device_mtu}}}]' if device_mtu else "no such device"
    script = f"""#!/bin/sh
case "$*" in
"-j route get {hosts[1]}") echo '[{{"dev": "eth7"{metrics}}}]';;
"-j link show dev eth7") echo '{link}';;
*) exit 1;;
esac
"""
    (tmp_path / "ip").write_text(script)
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setattr(gang_tunnel, "_ADMIN_PATH", str(tmp_path))
    assert gang_tunnel.tunnel_mtu(json.loads(tunnel_text(b"key", "a", 0, hosts))) == expected


def test_what_a_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_tunnel_kind() == ("", "only root can make network devices")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(gang_tunnel, "_ADMIN_PATH", str(tmp_path))
    assert find_tunnel_kind() == ("", "ip and wg and nsenter and setpriv are not installed")
    for name in ("ip", "wg", "nsenter", "setpriv"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert find_tunnel_kind() == ("", "the kernel has no WireGuard, and wireguard-go or /dev/net/tun is missing")
    (tmp_path / "ip").write_text("#!/bin/sh\n")
    assert find_tunnel_kind() == ("wireguard", "")


def test_a_host_without_wireguard_and_nodes_without_address_are_refused_in_a_sentence() -> None:
    isolation = Isolation(
        root=True, bwrap=None, firewall=True, cgroup=None, podman=None, pinned=False, lacks={"tunnel": "no wg: none"}
    )
    unit = across("mpi", "x")[0]
    with pytest.raises(UnitRefused, match=r"^a gang with network 'none' is refused here: no wg: none$"):
        refuse_unsafe(unit, isolation, "best_effort")
    refuse_unsafe(replace(unit, network="host"), isolation, "best_effort")
    with pytest.raises(UnitRefused, match="some of which have no address"):
        refuse_unsafe(replace(unit, addresses=("127.0.0.1", "10.0.0.2")), isolation, "best_effort")
