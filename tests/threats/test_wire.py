"""Attacks on the wire between agents, gateway and daemon: each is refused or cut off, and nobody else is affected."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import queue
import shutil
import signal
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from hcloud.core.clock import SystemClock
from hcloud.core.errors import WorkerUnreachable
from hcloud.core.model import Resources
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine.channel import (
    ADMIT,
    AWAIT,
    CALL,
    CONNECT,
    CONTENT,
    DAEMON_BYTES_MAX,
    FRAME_BYTES,
    MESSAGE_BYTES_MAX,
    OBSERVE,
    agent_options,
    host_and_port,
)
from hcloud.engine.content import content_socket
from hcloud.engine.credential import _GatewayConnection
from hcloud.engine.enrolment import CONNECTIONS_OF_ADDRESS_MAX
from hcloud.engine.gateway import COMMANDS_MAX, REPORT_BYTES_MAX
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.tls import (
    GATEWAY,
    Authority,
    enrolment_secret,
    issue,
    launch_key,
    machine_request,
    make_ca,
    new_machine_key,
)
from hcloud.engine.wire import PROTOCOL
from hcloud.provider import UnitSpec
from tests.engine.site import PATIENCE_S, Site, next_port
from tests.waiting import wait_until

HONEST, HOSTILE = "inst-1", "inst-66"
MIB = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway with one honest agent."""
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort")
    try:
        site.machine(HONEST)
        yield site
    finally:
        site.close()


@pytest.fixture
def runner(site: Site) -> GatewayRunner:
    """The daemon's side; the honest agent answers."""
    runner = site.runner({"call_timeout_s": 2.0})
    wait_until(lambda: connected(runner, HONEST), PATIENCE_S)
    return runner


@pytest.fixture
def channel(site: Site) -> Iterator[grpc.Channel]:
    """A connection of someone who holds a machine's key, and has no scruples about sizes."""
    site.admit(HOSTILE)
    with holding(site, HOSTILE) as channel:
        yield channel


def holding(site: Site, name: str, launch_token: str = "") -> grpc.Channel:
    """Return a connection with a key and certificate of that machine, as if stolen from it."""
    key = new_machine_key()
    signed = Authority(site.tls_dir).sign(machine_request(key), name, launch_token or f"token-{name}")
    return connection(site, site.tls_dir, key, signed)


def connection(site: Site, authority: Path, key: bytes, certificate: bytes) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials((authority / "ca.pem").read_bytes(), key, certificate)
    sizes = [each for each in agent_options() if "message_length" not in each[0]]
    return grpc.secure_channel(
        site.address, credentials, [*sizes, ("grpc.max_receive_message_length", DAEMON_BYTES_MAX)]
    )


def connected(runner: GatewayRunner, name: str) -> bool:
    return name in {each.instance_id for each in runner.observe().workers}


def honest_goes_on(runner: GatewayRunner) -> None:
    """The other agent still answers, at once."""
    assert connected(runner, HONEST)
    assert runner.renew({HONEST: SystemClock().now() + 3600.0}) == {HONEST}


class Agent:
    """A hand-made agent's stream: what is given is sent, however little sense it makes."""

    def __init__(self, channel: grpc.Channel, *messages: Any, raw: bool = False) -> None:
        write: Callable[[Any], bytes] = bytes if raw else pb.FromAgent.SerializeToString
        self._closed = threading.Event()
        connect = channel.stream_stream(CONNECT, write, pb.ToAgent.FromString)
        self.stream = connect(self._messages(messages), timeout=PATIENCE_S)

    def _messages(self, messages: tuple[Any, ...]) -> Iterator[Any]:
        yield from messages
        self._closed.wait()

    def end(self) -> str:
        """Return what the gateway gave as its reason when it ended the stream. Raises TimeoutError if it did not."""
        words = ""
        try:
            for message in self.stream:
                words += message.refusal.why
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # type: ignore[attr-defined]
                raise TimeoutError("the gateway did not end the stream") from error
            words += str(error.details())  # type: ignore[attr-defined]
        finally:
            self._closed.set()
        return words

    def close(self) -> None:
        self._closed.set()
        self.stream.cancel()


def hello(protocol: int = PROTOCOL) -> Any:
    return pb.FromAgent(hello=pb.Hello(protocol=protocol, version="0.0.1"))


def report(number: int = 1, *units: tuple[str, bytes], machine: bytes = b"{}") -> Any:
    states = [pb.UnitState(id=name, document=document) for name, document in units]
    return pb.FromAgent(report=pb.Report(number=number, units=states, machine=machine))


EMPTY = b'{"isolation": [], "preempt_at": null}'


def test_an_agents_certificate_asks_the_gateway_nothing(channel: grpc.Channel, runner: GatewayRunner) -> None:
    for method in (OBSERVE, CALL, ADMIT, AWAIT):  # these are served on a Unix socket only
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(b"", timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
    honest_goes_on(runner)


def test_the_daemons_sockets_are_closed_to_other_users(site: Site) -> None:
    for path in (site.socket, content_socket(site.socket)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


@pytest.mark.parametrize("name", [GATEWAY, "worker", "client"])
def test_certificates_that_are_no_machines_are_no_agents(
    site: Site, runner: GatewayRunner, tmp_path: Path, name: str
) -> None:
    for file in ("ca.pem", "ca.key"):  # also those that earlier versions gave to all machines
        shutil.copy(site.tls_dir / file, tmp_path)
    issue(tmp_path, name)
    key, certificate = ((tmp_path / f"{name}.{end}").read_bytes() for end in ("key", "pem"))
    with connection(site, tmp_path, key, certificate) as channel:
        assert "is no machine's" in Agent(channel, hello()).end()
    honest_goes_on(runner)


def test_a_stolen_certificate_is_that_machine_and_no_other(
    site: Site, channel: grpc.Channel, runner: GatewayRunner
) -> None:
    # Nothing in a message says which instance it is: this one claims a unit of the honest one, under its own name.
    agent = Agent(channel, hello(), report(1, machine=EMPTY))
    wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
    assert runner.stop({"job-9.1.0": HONEST}, cause=None) == {"job-9.1.0"}  # went to the honest one
    agent.close()
    honest_goes_on(runner)


def test_a_stolen_certificate_without_its_key_gets_no_other_key_certified(site: Site, runner: GatewayRunner) -> None:
    site.admit(HOSTILE)
    key, others = new_machine_key(), new_machine_key()
    signed = Authority(site.tls_dir).sign(machine_request(key), HOSTILE, f"token-{HOSTILE}")
    with connection(site, site.tls_dir, key, signed) as channel:
        for requests in ([b"nonsense"], [machine_request(others)], [machine_request(key), machine_request(key)]):
            renewals = [pb.FromAgent(renewal=pb.Renewal(request_pem=each)) for each in requests]
            assert Agent(channel, hello(), *renewals).end() == ""  # cut off; a second one would be work without end
    honest_goes_on(runner)


@pytest.mark.parametrize("launch_token", ["token-of-an-earlier-database", "token-inst-1"])
def test_an_instance_of_another_launch_is_refused(site: Site, runner: GatewayRunner, launch_token: str) -> None:
    name = HONEST if launch_token != "token-inst-1" else "inst-2"
    with holding(site, name, launch_token) as channel:
        assert "has ended, or was launched by another deployment" in Agent(channel, hello()).end()
    honest_goes_on(runner)


def test_an_ended_machine_is_cut_off_at_once_and_never_comes_back(site: Site, runner: GatewayRunner) -> None:
    site.admit("inst-5")
    with holding(site, "inst-5") as channel:
        agent = Agent(channel, hello(), report(1, machine=EMPTY))
        wait_until(lambda: connected(runner, "inst-5"), PATIENCE_S)
        site.end("inst-5")
        assert "inst-5 has ended" in agent.end()
        assert "inst-5 has ended" in Agent(channel, hello()).end()
    honest_goes_on(runner)


def test_a_stranger_without_a_certificate_gets_no_connection(site: Site, runner: GatewayRunner, tmp_path: Path) -> None:
    make_ca(tmp_path)
    key = new_machine_key()
    with connection(
        site, site.tls_dir, key, Authority(tmp_path).sign(machine_request(key), HONEST, "token-inst-1")
    ) as foreign:
        assert Agent(foreign, hello()).end()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        speak_without_certificate(site)
    honest_goes_on(runner)


def speak_without_certificate(site: Site) -> None:
    """Begin HTTP/2 as nobody in particular. Raises SSLError or ConnectionError once that is refused."""
    context = ssl.create_default_context(cafile=str(site.tls_dir / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    host, _, port = site.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=GATEWAY) as anonymous,
    ):
        anonymous.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        while anonymous.recv(1024):
            pass
    raise ConnectionError("it was closed")


# --------------------------------------------------------------------------------------------- the port for enrolment
def enrol(site: Site, name: str, secret: str, key: bytes) -> tuple[int, str]:
    body = json.dumps({"request": machine_request(key).decode(), "instance_id": name, "secret": secret}).encode()
    return post(site, body)


def post(site: Site, body: bytes, path: str = "/certificate", method: str = "POST") -> tuple[int, str]:
    connection = _GatewayConnection(*host_and_port(next_port(site.address)), (site.tls_dir / "ca.pem").read_text())
    with closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def secret_of(site: Site, name: str) -> str:
    return enrolment_secret(launch_key(site.tls_dir), f"token-{name}")


def test_a_replayed_secret_gets_no_second_certificate(site: Site, runner: GatewayRunner) -> None:
    site.admit("inst-3")
    secret = secret_of(site, "inst-3")
    status, certificate = enrol(site, "inst-3", secret, new_machine_key())
    assert status == 200 and certificate.startswith("-----BEGIN CERTIFICATE")
    status, words = enrol(site, "inst-3", secret, new_machine_key())
    assert (status, words) == (403, "the secret of inst-3's launch has been used\n")
    assert enrol(site, HONEST, secret_of(site, HONEST), new_machine_key())[0] == 403
    honest_goes_on(runner)


def test_a_machine_that_claims_to_be_a_booting_one_is_refused(site: Site, runner: GatewayRunner) -> None:
    site.admit("inst-4", addresses=("203.0.113.4",))
    status, words = enrol(site, "inst-4", secret_of(site, HOSTILE), new_machine_key())
    assert (status, words) == (403, "the secret is not that of inst-4's launch\n")
    status, words = enrol(site, "inst-4", secret_of(site, "inst-4"), new_machine_key())  # leaked user data
    assert (status, words) == (403, "127.0.0.1 is not an address of inst-4, which has 203.0.113.4\n")
    assert runner.observe().refused["certificate"] >= 2
    honest_goes_on(runner)


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/agent/../keys/ca.key", "GET"),
        ("/agent/" + "0" * 64 + ".tar.gz/../../ca.key", "GET"),
        ("/agent/" + "%2e" * 32 + ".tar.gz", "GET"),
        ("/ca.key", "GET"),
        ("/", "TRACE"),
    ],
)
def test_nothing_but_archives_and_certificates_is_served(site: Site, path: str, method: str) -> None:
    status, words = post(site, b"", path, method)
    assert status == 404 and "BEGIN" not in words


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x16\x03",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"POST /certificate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000,
        pickle.dumps({"request": "x"}),
    ],
    ids=["nothing", "half of TLS", "headers", "a large body", "pickle"],
)
def test_connections_that_go_wrong_are_closed(site: Site, runner: GatewayRunner, sent: bytes) -> None:
    address = host_and_port(next_port(site.address))
    plain = socket.create_connection(address, PATIENCE_S)
    context = ssl.create_default_context(cafile=str(site.tls_dir / "ca.pem"))
    if len(sent) > 2:
        plain = context.wrap_socket(plain, server_hostname=GATEWAY)
    with plain, suppress(OSError):
        plain.sendall(sent)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65536):
            pass
    honest_goes_on(runner)


def test_half_open_connections_lock_nobody_out(site: Site, runner: GatewayRunner) -> None:
    address = host_and_port(next_port(site.address))
    with ExitStack() as held:
        for _ in range(2 * CONNECTIONS_OF_ADDRESS_MAX):  # more than one address may have; another's are not counted
            plain = held.enter_context(socket.create_connection(address, PATIENCE_S, ("127.0.0.2", 0)))
            with suppress(OSError):
                plain.sendall(b"\x16\x03\x01")
        site.admit("inst-6")
        assert enrol(site, "inst-6", secret_of(site, "inst-6"), new_machine_key())[0] == 200
    honest_goes_on(runner)


def test_half_open_connections_to_the_agents_port_lock_no_agent_out(site: Site, runner: GatewayRunner) -> None:
    with ExitStack() as held:
        for number in range(400):
            plain = held.enter_context(socket.create_connection(host_and_port(site.address), PATIENCE_S))
            with suppress(OSError):
                plain.sendall(b"\x16\x03\x01"[: number % 4])
        site.admit(HOSTILE)
        with holding(site, HOSTILE) as channel:
            agent = Agent(channel, hello(), report(1, machine=EMPTY))
            wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
            agent.close()
        honest_goes_on(runner)


class Bomb:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("junk", [b"\xff" * 100, b"{}", pickle.dumps(Bomb())], ids=["bytes", "JSON", "pickle"])
def test_malformed_frames_end_only_their_own_stream(channel: grpc.Channel, runner: GatewayRunner, junk: bytes) -> None:
    assert Agent(channel, junk, raw=True).end()
    honest_goes_on(runner)


@pytest.mark.parametrize("where", ["unit", "machine"])
def test_a_report_of_pickled_or_senseless_documents_is_never_taken_for_one(
    channel: grpc.Channel, runner: GatewayRunner, where: str
) -> None:
    bad = pickle.dumps(Bomb())
    unit, machine = (bad, EMPTY) if where == "unit" else (b"{}", bad)
    agent = Agent(channel, hello(), report(1, ("job-1.1.0", unit), machine=machine))
    wait_until(lambda: HOSTILE in runner.observe().silent, PATIENCE_S)
    assert not connected(runner, HOSTILE)
    honest_goes_on(runner)
    agent.close()


def test_an_agent_of_another_protocol_is_refused_with_advice(channel: grpc.Channel, runner: GatewayRunner) -> None:
    said = Agent(channel, hello(protocol=PROTOCOL + 1)).end()
    assert f"speaks {PROTOCOL + 1}; drain its instance, and launch it anew" in said


@pytest.mark.parametrize(
    "first",
    [report(1, machine=EMPTY), pb.FromAgent(), pb.FromAgent(alive=pb.Alive())],
    ids=["report", "empty", "alive"],
)
def test_a_stream_that_does_not_begin_with_hello_is_refused(
    channel: grpc.Channel, runner: GatewayRunner, first: Any
) -> None:
    assert "is no Hello" in Agent(channel, first).end()


def test_reports_that_were_left_out_or_replayed_cut_the_stream_off(
    channel: grpc.Channel, runner: GatewayRunner
) -> None:
    for number in (1, 3):
        agent = Agent(channel, hello(), report(1, machine=EMPTY), report(number, machine=EMPTY))
        assert agent.end() == ""
        wait_until(lambda: not connected(runner, HOSTILE), PATIENCE_S)
    honest_goes_on(runner)


def test_oversized_messages_and_reports_cut_the_stream_off(channel: grpc.Channel, runner: GatewayRunner) -> None:
    large = report(1, ("job-1.1.0", b"x" * (MESSAGE_BYTES_MAX + 1)), machine=EMPTY)
    assert "larger than max" in Agent(channel, hello(), large).end()
    parts = REPORT_BYTES_MAX // (4 * MIB) + 1
    many = [report(n + 1, (f"job-{n}.1.0", b"x" * (4 * MIB)), machine=EMPTY) for n in range(parts)]
    assert Agent(channel, hello(), *many).end() == ""
    wait_until(lambda: not connected(runner, HOSTILE), PATIENCE_S)
    honest_goes_on(runner)


def test_an_answer_to_another_agents_command_is_none(site: Site, channel: grpc.Channel, runner: GatewayRunner) -> None:
    link = site.machines[HONEST].link()
    os.kill(link, signal.SIGSTOP)
    sent = threading.Event()

    def forged() -> Iterator[Any]:
        yield hello()
        yield report(1, machine=EMPTY)
        while not sent.is_set():  # all while the honest agent's answer is awaited
            for number in range(1, 3000):
                yield pb.FromAgent(answer=pb.Answer(number=number, document=b'{"renewed": true}'))

    stream = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)(forged())
    try:
        wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
        assert runner.renew({HONEST: SystemClock().now() + 3600.0}) == frozenset()
    finally:
        sent.set()
        stream.cancel()
        os.kill(link, signal.SIGCONT)
    wait_until(lambda: connected(runner, HONEST), PATIENCE_S)


def test_a_peer_that_answers_nothing_delays_no_other(channel: grpc.Channel, runner: GatewayRunner) -> None:
    agent = Agent(channel, hello(), report(1, machine=EMPTY))
    wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
    units = {f"job-{n}.1.0": HOSTILE for n in range(2 * COMMANDS_MAX)}
    assert runner.stop({**units, "job-1.1.0_honest": HONEST}, cause=None) == {"job-1.1.0_honest"}
    honest_goes_on(runner)
    agent.close()
    wait_until(lambda: not connected(runner, HOSTILE), PATIENCE_S)


def test_more_commands_than_fit_wait_for_each_other(site: Site, runner: GatewayRunner) -> None:
    units = {f"job-{n}.1.0_many": HONEST for n in range(3 * COMMANDS_MAX)}
    assert site.runner().stop(units, cause=None) == units.keys()


def test_an_answer_that_makes_no_sense_is_unknown(channel: grpc.Channel, runner: GatewayRunner) -> None:
    streams = queue.SimpleQueue[Any]()

    def messages() -> Iterator[Any]:
        yield hello()
        yield report(1, machine=EMPTY)
        for message in streams.get():  # it is sent from before it is known here
            if message.WhichOneof("message") == "command":
                yield pb.FromAgent(answer=pb.Answer(number=message.command.number, document=pickle.dumps(Bomb())))

    stream = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)(messages())
    streams.put(stream)
    wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
    assert runner.renew({HOSTILE: 1.0}) == frozenset()
    stream.cancel()
    honest_goes_on(runner)


# --------------------------------------------------------------------------------------- content past the messages
@contextmanager
def answering(channel: grpc.Channel, answer: Callable[[grpc.Channel, Any], Any]) -> Iterator[None]:
    """Be connected as an agent that answers each command with what ``answer`` returns; None: nothing."""
    streams = queue.SimpleQueue[Any]()

    def messages() -> Iterator[Any]:
        yield hello()
        yield report(1, machine=EMPTY)
        with suppress(grpc.RpcError):
            for message in streams.get():  # it is sent from before it is known here
                said = answer(channel, message.command) if message.WhichOneof("message") == "command" else None
                if said is not None:
                    yield pb.FromAgent(answer=said)

    stream = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)(messages())
    streams.put(stream)
    try:
        yield
    finally:
        stream.cancel()


ONE_BYTE = {"files": 1, "bytes": 1, "sha256": "0" * 64, "note": ""}


def sent_past_messages(channel: grpc.Channel, number: int, announced: int, frames: Iterable[bytes]) -> None:
    document = json.dumps({"manifest": ONE_BYTE, "bytes": announced}).encode()
    first = pb.Answer(number=number, document=document).SerializeToString()
    with suppress(grpc.RpcError):
        channel.stream_unary(CONTENT)(itertools.chain([first], frames), timeout=PATIENCE_S)


FULL = bytes(FRAME_BYTES)
CONTENTS = {
    "as announced": (FRAME_BYTES + 1, [FULL, b"x"], FRAME_BYTES + 1),
    "too little": (2 * FRAME_BYTES, [FULL, b"x"], WorkerUnreachable),
    "too much": (FRAME_BYTES, [FULL, FULL], WorkerUnreachable),
    "more than was asked for": (1 << 50, [FULL] * 5, WorkerUnreachable),
    "a frame larger than any": (1 << 50, [bytes(MESSAGE_BYTES_MAX + 1)], WorkerUnreachable),
    "frames of nothing, for ever": (9, itertools.repeat(b""), WorkerUnreachable),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_is_what_was_asked_for_and_announced_or_none(
    channel: grpc.Channel, runner: GatewayRunner, name: str
) -> None:
    announced, frames, expected = CONTENTS[name]

    def answer(channel: grpc.Channel, command: Any) -> None:
        sent_past_messages(channel, command.number, announced, frames)

    with answering(channel, answer):
        wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
        piece = runner.read_outputs("job-1.1.0", HOSTILE, 0, 4 * FRAME_BYTES)
        if expected is WorkerUnreachable:
            with pytest.raises(WorkerUnreachable):
                list(piece.content)
        else:
            assert sum(map(len, piece.content)) == expected
    honest_goes_on(runner)


def test_an_agent_of_before_answers_with_content_in_its_message(channel: grpc.Channel, runner: GatewayRunner) -> None:
    document = json.dumps({"manifest": ONE_BYTE, "next_offset": 1, "end": True}).encode()
    with answering(channel, lambda _, command: pb.Answer(number=command.number, document=document, content=b"x")):
        wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
        assert list(runner.read_outputs("job-1.1.0", HOSTILE, 0, MIB).content) == [b"x"]


def test_content_for_another_agents_command_or_for_none_is_not_taken(
    site: Site, channel: grpc.Channel, runner: GatewayRunner
) -> None:
    link = site.machines[HONEST].link()
    os.kill(link, signal.SIGSTOP)
    over = threading.Event()

    def forge() -> None:
        while not over.is_set():  # all while the honest agent's answer is awaited
            for number in range(1, 100):
                sent_past_messages(channel, number, 1, [b"x"])

    with answering(channel, lambda *_: None):
        forging = threading.Thread(target=forge)
        forging.start()
        try:
            with pytest.raises(WorkerUnreachable, match="did not answer within 2 s"):
                runner.read_outputs("job-1.1.0", HONEST, 0, MIB)
        finally:
            over.set()
            os.kill(link, signal.SIGCONT)
            forging.join()
    wait_until(lambda: connected(runner, HONEST), PATIENCE_S)


def test_nothing_listens_on_a_machine(site: Site, runner: GatewayRunner) -> None:
    pids = {str(site.machines[HONEST].supervisor.pid), str(site.machines[HONEST].link())}
    sockets = {
        entry.resolve().name if entry.is_symlink() else ""
        for pid in pids
        for entry in Path("/proc", pid, "fd").iterdir()
    }
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in sockets if name.startswith("socket:[")}
    listening = [
        line.split()
        for table in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]
    assert listening == []


def test_an_agent_that_says_of_a_start_that_it_never_came_is_not_believed(
    channel: grpc.Channel, runner: GatewayRunner
) -> None:
    stream: Any = None

    def claims() -> Iterator[Any]:
        yield hello()
        yield report(1, machine=EMPTY)
        for message in stream:
            if message.WhichOneof("message") == "command":
                yield pb.FromAgent(answer=pb.Answer(number=message.command.number, document=b'{"not_sent": "never"}'))

    stream = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)(claims())
    wait_until(lambda: connected(runner, HOSTILE), PATIENCE_S)
    unit = UnitSpec(id="job-1.1.0", instance_id=HOSTILE, rank=0, command=("true",), resources=Resources())
    outcomes = list[str]()

    def settled() -> bool:
        outcomes.append(runner.start([unit])[unit.id].outcome)
        return outcomes[-1] != "pending"  # on a busy machine the answer comes later

    wait_until(settled, PATIENCE_S)
    assert outcomes[-1] == "unknown"
    stream.cancel()
