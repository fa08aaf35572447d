"""``python -m bench.gang_tunnel``: how fast two nodes of a gang on two hosts reach each other through their network of
its own, beside the same without it. The hosts are network namespaces of this machine, joined by a pair of veth devices:
both ends of the encryption share its processors. Needs root, ``ip``, ``wg`` and ``nsenter``."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row, machine
from hcloud.engine import gang_tunnel
from hcloud.engine.gang_credential import gang_tunnel as tunnel_text
from hcloud.engine.gang_credential import tunnel_addresses

PIECE = bytes(1 << 20)
PORT = 20_000
HOSTS = ("10.199.0.1", "10.199.0.2")
SPACES = tuple(f"hcbench{os.getpid()}-{number}" for number in range(2))
RANK = """
import os, sys
from pathlib import Path
from hcloud.engine.gang_network import _made
from hcloud.engine.gang_tunnel import gang_tunnel
network = _made()
with gang_tunnel(sys.argv[1], sys.argv[2], sys.argv[3], network):
    print(os.getpid(), network, flush=True)
    sys.stdin.read()
"""
RECEIVE = f"""
import socket, sys
with socket.create_server((sys.argv[1], {PORT})) as listener:
    print(flush=True)
    taken, _ = listener.accept()
    with taken:
        while taken.recv({len(PIECE)}):
            pass
        taken.send(b"x")
"""
ECHO = f"""
import socket, sys
with socket.create_server((sys.argv[1], {PORT})) as listener:
    print(flush=True)
    taken, _ = listener.accept()
    with taken:
        while content := taken.recv(1):
            taken.send(content)
"""


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def two_hosts(mtu: int) -> Iterator[None]:
    """Make two network namespaces that reach each other. ``mtu``: their largest packet, in bytes."""
    try:
        for space in SPACES:
            ip("netns", "add", space)
        ip("-n", SPACES[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", SPACES[1])
        for space, address in zip(SPACES, HOSTS, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "mtu", str(mtu), "up")
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


@contextlib.contextmanager
def ranks(kind: str) -> Iterator[list[str]]:
    """Connect a rank on each host; yield the paths of their network namespaces."""
    programs, paths = list[subprocess.Popen[str]](), list[str]()
    try:
        for rank, space in enumerate(SPACES):
            text = tunnel_text(b"bench", "job-1.1", rank, HOSTS)
            command = ["nsenter", f"--net=/run/netns/{space}", "--", sys.executable, "-c", RANK]
            command += [f"job-1.1.{rank}", text, kind]
            program = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            programs.append(program)
            assert program.stdout is not None
            pid, number = program.stdout.readline().split()
            paths.append(f"/proc/{pid}/fd/{number}")
        yield paths
    finally:
        for program in programs:
            program.communicate("")


@contextlib.contextmanager
def within(path: str) -> Iterator[None]:
    """Have this thread's sockets in another network namespace."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(path, os.O_RDONLY)
    try:
        _setns(other)
        yield
    finally:
        _setns(own)
        os.close(own)
        os.close(other)


def _setns(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def connected(paths: list[str], address: str, script: str) -> Iterator[socket.socket]:
    """Yield a connection from the first namespace to a program in the second one."""
    command = ["nsenter", f"--net={paths[1]}", "--", sys.executable, "-c", script, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with within(paths[0]):
            connection = socket.create_connection((address, PORT))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            yield connection


def mib_per_s(paths: list[str], address: str, size_mib: int) -> float:
    """Return how fast a stream of TCP is, in MiB/s."""
    with connected(paths, address, RECEIVE) as connection:
        began = time.monotonic()
        for _ in range(size_mib):
            connection.sendall(PIECE)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return size_mib / (time.monotonic() - began)


def round_trip_us(paths: list[str], address: str, times: int = 2000) -> float:
    """Return the median time of a byte to the other end and back, in microseconds."""
    took = list[float]()
    with connected(paths, address, ECHO) as connection:
        for _ in range(times):
            began = time.perf_counter()
            connection.send(b"x")
            connection.recv(1)
            took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="how much is sent")
    parser.add_argument("--mtu", type=int, default=1500, help="largest packet between the hosts; 9001 as in EC2")
    options = parser.parse_args()
    kind, why = gang_tunnel.find_tunnel_kind()
    if not kind:
        print(f"no gang network can be made here: {why}")
        return 2
    print(machine())
    with two_hosts(options.mtu):
        plain = [str(Path("/run/netns") / space) for space in SPACES]
        rows = [
            Row(name="TCP from host to host", value=mib_per_s(plain, HOSTS[1], options.mib), unit="MiB/s"),
            Row(name="round trip from host to host", value=round_trip_us(plain, HOSTS[1]), unit="us"),
        ]
        with ranks(kind) as paths:
            address = tunnel_addresses(2)[1]
            rows += [
                Row(name=f"TCP from node to node ({kind})", value=mib_per_s(paths, address, options.mib), unit="MiB/s"),
                Row(name=f"round trip from node to node ({kind})", value=round_trip_us(paths, address), unit="us"),
            ]
    for row in rows:
        print(row.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
