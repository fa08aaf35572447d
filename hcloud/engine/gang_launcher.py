"""Runs inside each rank of a gang with a ``framework``: starts Dask, MPI or torchrun on all of its nodes.

A keeper passes this file's text to the unit's own ``python3``, so it uses the standard library only. Rank 0 listens;
the others connect to it over TLS, for which all ranks of an attempt, and nothing else, have a certificate (``gang_pem``
in ``hcloud.engine.gang_credential``). Over these connections rank 0 has programs started, and says when the gang ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MISSING_MARK = ".hcloud-missing"
"""This file in the unit's home says that the framework's program is not there."""
MISSING_EXIT, LOST_EXIT = 127, 1
PORTS = 32
"""So many ports from HCLOUD_GANG_PORT on are tried: others may use some of them."""
LINE_BYTES_MAX = 1 << 20
HANDSHAKE_S, CONNECT_EVERY_S = 5.0, 0.2
MEET_S = 3600.0
"""So long ranks wait for each other: the set-up of one may take its time."""
NOTE_S = 60.0
"""After so long a rank writes for what it waits."""
SCHEDULER_S = 120.0
LOOK_S = 0.5
MPI_SOCKET, OWN_DEVICE = "launcher", "gang0"
END_S = 5.0
"""What a framework's processes have to end by themselves, after the command has ended."""
QUIET = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
PROGRAMS = {"dask": "dask", "mpi": "mpirun", "torchrun": "torchrun"}


class Stopped(Exception):
    """The unit is asked to end, or another rank is gone."""


class Gang:
    """This rank of the gang, and its connections to others."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """``environment`` is this process's own, out of which the certificate's key is taken."""
        self.rank, self.nodes = int(environment["HCLOUD_RANK"]), int(environment["HCLOUD_NODES"])
        self.addresses = environment["HCLOUD_GANG_ADDRESSES"].split(",")
        self.slots = max(1, int(float(environment["HCLOUD_VCPUS"])))
        self.memory_mib = int(environment["HCLOUD_MEMORY_MIB"])
        self.pem = environment.pop("HCLOUD_GANG_PEM")
        first = int(environment["HCLOUD_GANG_PORT"])
        self._ports = range(first, first + PORTS)
        self.folder = Path(environment["TMPDIR"], ".hcloud-gang")  # on all nodes alike: MPI looks for files of rank 0
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.others: dict[int, Line] = {}
        """Connections to other ranks, on rank 0."""
        self.slots_of = {0: self.slots}
        """How many processes of MPI each rank takes, on rank 0."""
        self.stopping = threading.Event()

    @property
    def own_address(self) -> str:
        """Where other ranks reach this one."""
        return self.addresses[self.rank]

    def connect(self) -> Line:
        """Return the connection to rank 0, once there is one. Raises Stopped."""
        context, deadline = self._context(ssl.PROTOCOL_TLS_CLIENT), time.monotonic() + MEET_S
        note = Note(f"waits for rank 0 at {self.addresses[0]}")
        while time.monotonic() < deadline and not self.stopping.wait(CONNECT_EVERY_S):
            note.write_when_due()
            for port in self._ports:
                with suppress(OSError, ValueError):
                    plain = socket.create_connection((self.addresses[0], port), HANDSHAKE_S)
                    line = Line(context.wrap_socket(plain))
                    line.send(rank=self.rank, slots=self.slots)
                    if line.receive(HANDSHAKE_S).get("welcome"):
                        return line
        raise Stopped(f"rank 0 at {self.addresses[0]} cannot be reached")

    def accept(self) -> None:
        """Wait until all other ranks are connected. Raises Stopped."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        listener = self._listener()
        listener.settimeout(CONNECT_EVERY_S)
        deadline, note = time.monotonic() + MEET_S, Note("waits for other ranks")
        while len(self.others) < self.nodes - 1:
            note.write_when_due()
            if self.stopping.is_set() or time.monotonic() > deadline:
                missing = sorted(set(range(1, self.nodes)) - self.others.keys())
                raise Stopped(f"rank {missing[0]} never came")
            with suppress(TimeoutError):
                plain, _ = listener.accept()
                threading.Thread(target=self._greet, args=(context, plain), daemon=True).start()
        listener.close()

    def _greet(self, context: ssl.SSLContext, plain: socket.socket) -> None:
        plain.settimeout(HANDSHAKE_S)
        try:
            line = Line(context.wrap_socket(plain, server_side=True))
            hello = line.receive(HANDSHAKE_S)
            rank, slots = int(hello["rank"]), int(hello["slots"])
            if rank in range(1, self.nodes):
                line.send(welcome=True)
                self.slots_of[rank], self.others[rank] = slots, line
        except (OSError, ValueError, KeyError, Stopped):
            plain.close()

    def _listener(self) -> socket.socket:
        for port in self._ports:
            with suppress(OSError):
                return socket.create_server((self.own_address, port), family=_family(self.own_address), backlog=64)
        raise Stopped(f"none of the ports {self._ports[0]} to {self._ports[-1]} is free on {self.own_address}")

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # only ranks of this attempt have the key, whatever their addresses
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.pem[self.pem.index("-----BEGIN CERTIFICATE") :])
        handle = os.memfd_create("hcloud")
        try:
            os.write(handle, self.pem.encode())
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        return context


class Note:
    """Says once, after ``NOTE_S``, why nothing happens."""

    def __init__(self, text: str) -> None:
        self._text, self._due = text, time.monotonic() + NOTE_S

    def write_when_due(self) -> None:
        """Write it to standard error, if it is time."""
        if time.monotonic() >= self._due:
            why = "their set-up is not over, or a firewall is between the machines"
            print(f"hcloud: {self._text}: {why}", file=sys.stderr, flush=True)
            self._due = time.monotonic() + MEET_S


class Line:
    """One connection between two ranks: JSON objects, a line each."""

    def __init__(self, stream: ssl.SSLSocket) -> None:
        self._stream, self._unread = stream, b""
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message."""
        with self._sending:
            self._stream.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message. Raises Stopped if the connection is lost, TimeoutError."""
        self._stream.settimeout(timeout_s)
        while b"\n" not in self._unread:
            try:
                content = self._stream.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                raise Stopped(f"the connection is lost: {error}") from error
            if not content or len(self._unread) > LINE_BYTES_MAX:
                raise Stopped("the connection is closed")
            self._unread += content
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("no message")
        return message


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# --------------------------------------------------------------------------------------------------------- the engines
def run_rank_0(gang: Gang, framework: str, command: Sequence[str]) -> int:
    """Meet the others, run the engine and the command, end the others; return the command's exit code."""
    gang.accept()
    try:
        return {"dask": _dask, "mpi": _mpi, "torchrun": _torchrun}[framework](gang, command)
    finally:
        for line in gang.others.values():
            with suppress(OSError):
                line.send(end=True)


def run_other_rank(gang: Gang, framework: str, command: Sequence[str]) -> int:
    """Do what rank 0 asks until it ends the gang; return the exit code."""
    line, running = gang.connect(), list[subprocess.Popen[bytes]]()
    try:
        while not gang.stopping.is_set():
            try:
                message = line.receive(LOOK_S)
            except TimeoutError:
                continue
            if message.get("end"):
                return 0
            if "port" in message:  # torchrun's own agents end by themselves, with its exit code
                started = _start_torchrun(gang, command, int(message["port"]))
                running.append(started)
                return _exit_code(started)
            if "scheduler" in message:
                running.append(_start_worker(gang, str(message["scheduler"])))
                line.send(started=True)
            elif "shell" in message:
                _mpi_agent(gang)  # which Open MPI's daemon looks for, though it starts none itself
                running.append(subprocess.Popen(["/bin/sh", "-c", str(message["shell"])], stdin=subprocess.DEVNULL))
                threading.Thread(target=_report_end, args=(line, message["id"], running[-1]), daemon=True).start()
        return LOST_EXIT
    except Stopped:
        if gang.stopping.is_set():
            return LOST_EXIT
        raise Stopped("rank 0 is gone") from None
    finally:
        for each in running:
            _end(each)


def _report_end(line: Line, number: object, process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        line.send(id=number, code=_exit_code(process))


def _dask(gang: Gang, command: Sequence[str]) -> int:
    """Scheduler and a worker here, workers on the others; the command as client."""
    os.environ.update(_dask_security(gang))
    described = gang.folder / "scheduler.json"
    at = ["--protocol", "tls", "--host", gang.own_address, "--port", "0", *QUIET]
    scheduler = subprocess.Popen(["dask", "scheduler", *at, "--scheduler-file", str(described)])
    running = [scheduler]
    try:
        address, deadline = "", time.monotonic() + SCHEDULER_S
        while not address:
            if scheduler.poll() is not None or time.monotonic() > deadline or gang.stopping.wait(0.05):
                raise Stopped("the scheduler of Dask did not start; its output says why")
            with suppress(OSError, ValueError):
                address = json.loads(described.read_text())["address"]
        running.append(_start_worker(gang, address))
        for line in gang.others.values():
            line.send(scheduler=address)
        for line in gang.others.values():
            line.receive(SCHEDULER_S)
        client = subprocess.Popen(command, env={**os.environ, "DASK_SCHEDULER_ADDRESS": address})
        return _exit_code(client)
    finally:
        for line in gang.others.values():  # before its scheduler goes, which a worker would report as an error
            with suppress(OSError):
                line.send(end=True)
        for each in reversed(running):
            _end(each)


def _start_worker(gang: Gang, scheduler: str) -> subprocess.Popen[bytes]:
    os.environ.update(_dask_security(gang))
    sized = ["--nworkers", "1", "--nthreads", str(gang.slots), "--memory-limit", f"{gang.memory_mib}MiB"]
    place = ["--host", gang.own_address, "--name", f"rank-{gang.rank}", "--local-directory", str(gang.folder)]
    # No process of its own between, which would take its share of the node's memory.
    return subprocess.Popen(["dask", "worker", scheduler, *sized, *place, "--no-nanny", *QUIET])


def _dask_security(gang: Gang) -> dict[str, str]:
    """Only processes with the gang's certificate may connect: what comes in is unpickled."""
    start = gang.pem.index("-----BEGIN CERTIFICATE")
    key, certificate = gang.pem[:start], gang.pem[start:]
    prefix = "DASK_DISTRIBUTED__COMM__"
    found = {f"{prefix}REQUIRE_ENCRYPTION": "True", f"{prefix}TLS__CA_FILE": certificate}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        found |= {f"{prefix}TLS__{role}__CERT": certificate, f"{prefix}TLS__{role}__KEY": key}
    return found


def _torchrun(gang: Gang, command: Sequence[str]) -> int:
    with socket.create_server((gang.own_address, 0), family=_family(gang.own_address)) as found:
        port = found.getsockname()[1]
    for line in gang.others.values():
        line.send(port=port)
    return _exit_code(_start_torchrun(gang, command, port))


def _start_torchrun(gang: Gang, command: Sequence[str], port: int) -> subprocess.Popen[bytes]:
    if any(name == OWN_DEVICE for _, name in socket.if_nameindex()):
        for library in ("GLOO", "NCCL", "TP"):  # which look for the address of the host's name
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", OWN_DEVICE)
    given = {"MASTER_ADDR": gang.addresses[0], "MASTER_PORT": str(port)}
    given |= {"NODE_RANK": str(gang.rank), "NNODES": str(gang.nodes)}
    return subprocess.Popen(torchrun_command(gang, command, port), env={**os.environ, **given})


def torchrun_command(gang: Gang, command: Sequence[str], port: int) -> list[str]:
    """Return the command line of one node; a script's name goes without ``--no_python``."""
    where = [f"--nnodes={gang.nodes}", f"--node_rank={gang.rank}"]
    where += [f"--master_addr={gang.addresses[0]}", f"--master_port={port}"]
    plain = [] if command[0].endswith(".py") else ["--no_python"]  # so PyTorch 1 spells it, and 2 as well
    return ["torchrun", *where, *plain, *command]


def _mpi(gang: Gang, command: Sequence[str]) -> int:
    """Open MPI: mpirun here, which starts its daemons on the others through ``ask_rank`` in place of ssh."""
    hosts = gang.folder / "hostfile"
    names = {rank: f"rank{rank}" if rank else "localhost" for rank in range(gang.nodes)}
    hosts.write_text("".join(f"{name} slots={gang.slots_of[rank]}\n" for rank, name in names.items()))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(gang.folder / MPI_SOCKET))
    listener.listen(gang.nodes)
    launcher = MpiLauncher(gang, listener)
    for target in (launcher.serve, *(launcher.reader(line) for line in gang.others.values())):
        threading.Thread(target=target, daemon=True).start()
    agent = _mpi_agent(gang)
    settings = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",  # so that its daemons end with this gang
        "hwloc_base_binding_policy": "none",  # a unit has shares of CPUs, not whole ones
        "rmaps_base_oversubscribe": "1",
        "orte_abort_on_non_zero_status": "1",
    }
    if gang.own_address.startswith("127."):
        settings |= {"oob_tcp_if_include": "lo", "btl_tcp_if_include": "lo"}
    given = {f"OMPI_MCA_{name}": value for name, value in settings.items()}
    given |= {"PRTE_MCA_plm_ssh_agent": str(agent), "PRTE_MCA_plm_ssh_no_tree_spawn": "1"}  # Open MPI 5
    environment = {**given, **os.environ, "HCLOUD_HOSTFILE": str(hosts), "RES_OPTIONS": "timeout:1 attempts:1"}
    total = str(sum(gang.slots_of.values()))
    return _exit_code(subprocess.Popen(["mpirun", "-np", total, "--hostfile", str(hosts), *command], env=environment))


def _mpi_agent(gang: Gang) -> Path:
    agent = gang.folder / "agent"
    agent.write_text(f"#!{sys.executable}\n{ASK_RANK.format(socket=str(gang.folder / MPI_SOCKET))}")
    agent.chmod(0o700)
    return agent


class MpiLauncher:
    """Passes what mpirun wants to have run on another node to that rank, and the exit code back."""

    def __init__(self, gang: Gang, listener: socket.socket) -> None:
        self._gang, self._listener = gang, listener
        self._waiting: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Take requests of ``ASK_RANK`` for ever."""
        for number in range(sys.maxsize):
            asking, _ = self._listener.accept()
            with suppress(OSError, ValueError, KeyError):
                request = json.loads(asking.makefile().readline())
                self._waiting[number] = asking
                self._gang.others[int(request["host"].removeprefix("rank"))].send(id=number, shell=request["shell"])

    def reader(self, line: Line) -> Any:
        """Return a function that passes one rank's answers on."""

        def read() -> None:
            with suppress(Stopped, ValueError):
                while True:
                    message = line.receive()
                    asking = self._waiting.pop(int(message["id"]), None)
                    if asking is not None:
                        with suppress(OSError):
                            asking.sendall(b"%d\n" % int(message["code"]))
                        asking.close()

        return read


ASK_RANK = """
import json, socket, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    del words[0]
stream = socket.socket(socket.AF_UNIX)
stream.connect({socket!r})
stream.sendall(json.dumps(dict(host=words[0], shell=" ".join(words[1:]))).encode() + b"\\n")
sys.exit(int(stream.makefile().readline() or 1))
"""


# ------------------------------------------------------------------------------------------------------------- the end
def _exit_code(process: subprocess.Popen[bytes]) -> int:
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _stoppable(gang: Gang) -> Iterator[None]:
    """What this process starts gets SIGTERM from the keeper, too; it ends after that."""
    signal.signal(signal.SIGTERM, lambda *_: gang.stopping.set())
    try:
        yield
    finally:
        shutil.rmtree(gang.folder, ignore_errors=True)


def main(framework: str, command: Sequence[str]) -> int:
    """Be this rank's launcher; return the exit code of the unit."""
    program = PROGRAMS[framework]
    if shutil.which(program) is None:
        (Path.home() / MISSING_MARK).touch()
        print(f"hcloud: framework {framework}: there is no program {program} on this node", file=sys.stderr)
        return MISSING_EXIT
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
    if framework == "mpi":
        os.environ.setdefault("UCX_LOG_LEVEL", "fatal")  # which misses /sys in a sandbox, and does without
    gang = Gang(os.environ)
    with _stoppable(gang):
        try:
            run = run_rank_0 if gang.rank == 0 else run_other_rank
            return run(gang, framework, command)
        except (Stopped, OSError) as stopped:
            print(f"hcloud: framework {framework}: {stopped}", file=sys.stderr)
            return LOST_EXIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
