"""``hcloud gateway``: the process between the daemon and the agents that connect to it.

It holds the authority's key and nothing else: no cloud's credentials, no database. It keeps no state worth saving:
agents report again when they connect again, so it may be restarted at any time. What an agent sends is bounded in size
and kept apart from what others send. Reports are passed on as the bytes that came, without being parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import ssl
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hcloud import sd_notify
from hcloud.core.clock import SystemClock
from hcloud.core.errors import ConfigError
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine.admission import Admission, ListedMachine, NotAdmitted, RefusalLog
from hcloud.engine.bundle import available, build
from hcloud.engine.channel import (
    ADMIT,
    ARCHIVES,
    AWAIT,
    CALL,
    CONNECT,
    CONTENT,
    LISTENING,
    OBSERVE,
    SERVING_DAEMON,
    host_and_port,
    server_credentials,
)
from hcloud.engine.content import ContentStream, content_socket
from hcloud.engine.content import serve as serve_content
from hcloud.engine.enrolment import EnrolmentServer
from hcloud.engine.gateway_process import GatewaySettings
from hcloud.engine.tls import GATEWAY, Authority, MachineIdentity, issue, server_files
from hcloud.engine.wire import PROTOCOL

SILENT_AFTER_S = 16.0
"""Agents send something every 8 s at least (``link.HEARTBEAT_S``); a broken connection is noticed at once."""
WATCHDOG_S, LOOK_OVER_EVERY_S = 1.0, 10.0
"""How often it is checked whether a daemon leads, and whether certificates have expired."""
COMMANDS_MAX = 256
"""Commands that wait for an agent to read them; further ones wait for these, within their time."""
UNITS_MAX, REPORT_BYTES_MAX = 20_000, 32 << 20
"""The largest report an agent may build up; a stream with a larger one is ended."""
HELLO_WITHIN_S = 10.0
AWAIT_S_MAX = 60.0
LEAD_S_MAX = 600.0
SOCKET_MODE = 0o660
_UNKNOWN_LOST = b'{"unknown": "the worker\'s connection was lost"}'
_UNKNOWN_ABSENT = b'{"unknown": "no worker is registered under this name"}'
_PING = b'{"op": "ping"}'
RESPONSIVE_S = 0.1
"""An agent that sent something so recently is taken to respond."""
ANSWER_BYTES_MAX = 4 << 20
"""Answers that came meanwhile are passed on together up to about this size."""


class Misbehaving(Exception):
    """An agent broke the protocol; the message says how."""


class NotHere(Exception):
    """An agent is sent away; the message says why. ``elsewhere``: another gateway may take it."""

    def __init__(self, why: str, kind: str, *, elsewhere: bool = False) -> None:
        super().__init__(why)
        self.kind, self.elsewhere = kind, elsewhere


@dataclass(slots=True, eq=False)
class AgentStream:
    """One agent's connection."""

    identity: MachineIdentity
    seen_at: float
    has_others: bool
    """Whether it knows other gateways."""
    commands: asyncio.Queue[Any] = field(default_factory=lambda: asyncio.Queue(COMMANDS_MAX))
    """Messages for it."""
    units: dict[str, bytes] = field(default_factory=dict)
    machine: bytes = b""
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    """By number, the commands that it has not answered."""
    streamed: dict[int, asyncio.Event] = field(default_factory=dict)
    """By number those that it may answer with a stream of content, and what is set once nothing more of that is wanted.
    """
    change: int = 0
    """When its report changed last, as a number of the gateway; 0: no report is complete."""
    unresponsive_at: float = -math.inf
    """When it last failed to give a sign of life; it is silent until it sends something."""
    ping: asyncio.Future[bool] | None = None
    """The present question for a sign of life."""
    has_ended: bool = False
    """Whether it has ended its side, or is cut off."""
    sent_away: NotHere | None = None
    """Why it is cut off, if it is."""
    has_renewed: bool = False
    """Whether it got a certificate in this stream."""
    _bytes: int = 0
    _number: int = 0

    @property
    def instance_id(self) -> str:
        """The instance that it is."""
        return self.identity.instance_id

    def send_away(self, why: NotHere) -> None:
        """End its stream, once."""
        self.sent_away = self.sent_away or why
        self.end_commands()

    def end_commands(self) -> None:
        """Let ``next_command`` return None from now on."""
        self.has_ended = True
        if self.commands.empty():  # else it returns soon anyway
            self.commands.put_nowait(None)

    async def next_command(self) -> Any:
        """Return the next message for it; None once it has ended its side, or is cut off."""
        # Each idle agent waits here, so that a task less for each is memory saved.
        message = None if self.has_ended else await self.commands.get()
        return None if self.has_ended else message

    def take(self, report: Any) -> bool:
        """Take a part of a report; return whether that was the last one. Raises Misbehaving."""
        if report.number != self._number + 1:
            raise Misbehaving(f"report {report.number} came after report {self._number}")
        self._number = report.number if not report.more else self._number
        for each in report.units:
            self._bytes += len(each.document) - len(self.units.get(each.id, b""))
            self.units[each.id] = each.document
        for unit_id in report.gone:
            self._bytes -= len(self.units.pop(unit_id, b""))
        if len(self.units) > UNITS_MAX or self._bytes > REPORT_BYTES_MAX:
            raise Misbehaving(f"its report grew to {len(self.units)} units of {self._bytes} bytes")
        self.machine = report.machine or self.machine
        return not report.more

    def is_silent(self, now: float) -> bool:
        """Return whether it has sent nothing for long, or since it failed to give a sign of life."""
        return now - self.seen_at > SILENT_AFTER_S or self.seen_at <= self.unresponsive_at

    def document(self) -> bytes:
        """Return its whole report as a document, of what it sent."""
        return b'{"units": [' + b", ".join(self.units.values()) + b'], "machine": ' + (self.machine or b"{}") + b"}"

    def end(self) -> None:
        """Fail the commands that await its answers."""
        for future in self.waiting.values():
            if not future.done():
                future.set_result(pb.Body(document=_UNKNOWN_LOST))


class Gateway:
    """Knows every agent's last report, and passes calls to agents over the streams they opened."""

    def __init__(self, admission: Admission, archives: Path | None = None) -> None:
        """``admission`` decides which machines may connect. ``archives``: directory of the agent's archives."""
        self._admission, self._archives = admission, archives
        self._epoch = uuid.uuid4().hex
        self._changes, self._numbers = itertools.count(1), itertools.count(1)
        self._until = self._urgent = 0
        self._awaiting: set[asyncio.Future[None]] = set()
        self._agents: dict[str, AgentStream] = {}
        self._led_until, self._has_machines = -1.0, False
        self._sha256: dict[str, str] = {}
        self._archives_changed_at = -1
        self._was_led, self._looked_over_at = False, -math.inf
        self.refused: Counter[str] = Counter()
        self.log = RefusalLog(sys.stderr)

    # ------------------------------------------------------------------------------------------------- from the agents
    async def connect(self, incoming: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve one agent's stream until it ends."""
        try:
            agent = await self._greeted(incoming, context)
        except NotHere as why:
            yield self._refusal(str(context.peer()).rpartition(":")[0], why)
            return
        before = self._agents.get(agent.instance_id)
        if before is not None:  # a new connection of the same agent: the old one is dead or about to be
            before.end()
        self._agents[agent.instance_id] = agent
        reading = asyncio.create_task(self._read(agent, incoming))
        reading.add_done_callback(lambda _: agent.end_commands())
        try:
            yield pb.ToAgent(welcome=pb.Welcome(protocol=PROTOCOL))
            while (message := await agent.next_command()) is not None:
                yield message
            if agent.sent_away is not None:
                yield self._refusal(agent.instance_id, agent.sent_away)
        finally:
            reading.cancel()
            agent.end()
            if self._agents.get(agent.instance_id) is agent:
                del self._agents[agent.instance_id]
                self._note_urgent()

    async def content(self, incoming: AsyncIterator[bytes], context: Any) -> bytes:
        """Take an agent's answer to one command as a stream of content, for as long as it is read.

        Its first frame is the Answer. Whatever was not asked of that very machine ends the call.
        """
        try:
            identity = self._identity(context)
            first = pb.Answer.FromString(await asyncio.wait_for(anext(incoming), HELLO_WITHIN_S))
        except (NotHere, TimeoutError, StopAsyncIteration, DecodeError):
            self.refused["content"] += 1
            return b""
        agent = self._agents.get(identity.instance_id)
        if agent is None or agent.identity.launch_token != identity.launch_token:
            return b""
        ended, answered = agent.streamed.pop(first.number, None), agent.waiting.get(first.number)
        if ended is not None and answered is not None and not answered.done():
            agent.seen_at = time.monotonic()
            answered.set_result(ContentStream(first.document, incoming))
            await ended.wait()
        return b""  # perhaps of a command whose time was over

    def _identity(self, context: Any) -> MachineIdentity:
        """Return which machine this is, by the certificate of its connection. Raises NotHere."""
        certificates = context.auth_context().get("x509_pem_cert", ())
        try:
            return self._admission.identity(certificates[0] if certificates else b"")
        except NotAdmitted as refusal:
            raise NotHere(str(refusal), "identity") from refusal

    async def _greeted(self, incoming: AsyncIterator[Any], context: Any) -> AgentStream:
        """Return an agent with a valid certificate and a right Hello. Raises NotHere."""
        identity = self._identity(context)
        try:
            first = await asyncio.wait_for(anext(incoming), HELLO_WITHIN_S)
        except (TimeoutError, StopAsyncIteration) as error:
            raise NotHere("it sent nothing", "malformed") from error
        hello = first.hello
        if first.WhichOneof("message") != "hello":
            raise NotHere("its first message is no Hello", "malformed")
        if hello.protocol != PROTOCOL:
            text = (
                f"this gateway speaks protocol {PROTOCOL}, and the agent of HCloud {hello.version[:32]} speaks "
                f"{hello.protocol}; drain its instance, and launch it anew"
            )
            raise NotHere(text, "protocol")
        if hello.has_others and not self._is_led():
            raise NotHere("no daemon leads here", "not_leading", elsewhere=True)
        return AgentStream(identity, time.monotonic(), hello.has_others)

    def _refusal(self, name: str, why: NotHere) -> Any:
        self.refused[why.kind] += 1
        if not why.elsewhere:
            self.log.write(f"{name} is refused: {why}")
        return pb.ToAgent(refusal=pb.Refusal(why=str(why), elsewhere=why.elsewhere))

    def _is_led(self) -> bool:
        return time.monotonic() < self._led_until

    def look_over(self) -> None:
        """Cut off the agents that may not be here any more: at once where no daemon leads, else now and then."""
        now, is_led = time.monotonic(), self._is_led()
        if is_led != self._was_led or now >= self._looked_over_at + LOOK_OVER_EVERY_S:
            self._was_led, self._looked_over_at = is_led, now
            self.send_away()

    def send_away(self) -> None:
        """Cut off the agents that may not be here any more."""
        is_led = self._is_led()
        for agent in self._agents.values():
            if (why := self._admission.why_not(agent.identity)) is not None:
                agent.send_away(NotHere(why, "identity"))
            elif agent.has_others and not is_led:
                agent.send_away(NotHere("no daemon leads here", "not_leading", elsewhere=True))

    async def _read(self, agent: AgentStream, incoming: AsyncIterator[Any]) -> None:
        """Process what an agent sends until it ends or breaks the protocol."""
        try:
            async for message in incoming:
                agent.seen_at = time.monotonic()
                match message.WhichOneof("message"):
                    case "report":
                        if agent.take(message.report):
                            is_first = not agent.change
                            agent.change = self._until = next(self._changes)
                            if is_first or message.report.urgent:
                                self._note_urgent()
                    case "answer":
                        future = agent.waiting.pop(message.answer.number, None)
                        if future is not None and not future.done():
                            future.set_result(message.answer)
                    case "renewal":
                        await self._renew(agent, message.renewal.request_pem)
        except Misbehaving as fault:
            self.refused["misbehaving"] += 1
            self.log.write(f"the agent of {agent.instance_id} is cut off: {fault}")

    async def _renew(self, agent: AgentStream, request_pem: bytes) -> None:
        """Send an agent a new certificate. Raises Misbehaving: it must not have one, or got one in this stream."""
        if agent.has_renewed:
            raise Misbehaving("it asked for a second certificate")
        try:
            certificate = self._admission.renew(agent.identity, request_pem)
        except NotAdmitted as refusal:
            if refusal.again:
                return  # it asks again; its present certificate is valid for long
            raise Misbehaving(str(refusal)) from refusal
        agent.has_renewed = True
        await agent.commands.put(pb.ToAgent(certificate=pb.Certificate(pem=certificate)))

    def _note_urgent(self) -> None:
        self._urgent = next(self._changes)
        for future in self._awaiting:
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------------------------------------- from the daemon
    async def admit(self, request: Any, context: Any) -> Any:
        """Take the list of machines that may connect; its sender leads for ``lead_s`` from now on."""
        self._led_until = time.monotonic() + min(request.lead_s, LEAD_S_MAX)
        if request.HasField("machines"):
            self._admission.list(_listed(each) for each in request.machines.machines)
            self._has_machines = True
            self.send_away()
        return pb.AdmitReply(needs_machines=not self._has_machines)

    async def await_urgent(self, request: Any, context: Any) -> Any:
        """Return once an urgent change came after ``since`` in this epoch, or after ``timeout_s``."""
        if request.epoch == self._epoch and request.since >= self._urgent:
            future = asyncio.get_running_loop().create_future()
            self._awaiting.add(future)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(future, min(request.timeout_s, AWAIT_S_MAX))
            finally:
                self._awaiting.discard(future)
        return pb.AwaitReply(epoch=self._epoch, until=self._urgent)

    async def observe(self, request: Any, context: Any) -> Any:
        """Return which agents are connected, which are silent, and the reports that changed after ``since`` in this
        epoch."""
        now, since = time.monotonic(), request.since if request.epoch == self._epoch else 0
        reply = pb.ObserveReply(epoch=self._epoch, until=self._until)
        for name, agent in self._agents.items():
            if not agent.change:
                continue  # connected just now; its first report is on its way
            (reply.silent if agent.is_silent(now) else reply.connected).append(name)
            if agent.change > since:
                reply.reports[name] = agent.document()
        reply.refused.update(self.refused)
        return reply

    async def archives(self, request: Any, context: Any) -> Any:
        """Return which archives of the agent are served."""
        return pb.ArchivesReply(sha256=self._sha256)

    async def read_archives(self) -> None:
        """Take note of archives if any came or went: each is hashed, which takes too long for a call."""
        if self._archives is None or not self._archives.is_dir():
            return
        if (changed_at := self._archives.stat().st_mtime_ns) == self._archives_changed_at:
            return
        found = await asyncio.to_thread(available, self._archives)
        self._sha256, self._archives_changed_at = {each.name: each.sha256 for each in found}, changed_at

    async def call(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Pass each agent its requests; yield the answers as they come."""
        answers: asyncio.Queue[tuple[str, int, Any]] = asyncio.Queue()
        calls = [asyncio.create_task(self._call_agent(each, request, answers)) for each in request.agents]
        left = sum(len(each.requests) for each in request.agents)
        try:
            while left:
                reply, held_bytes = pb.CallReply(), 0
                while not reply.agents or (not answers.empty() and held_bytes < ANSWER_BYTES_MAX):
                    name, number, answer = await answers.get()
                    # Content may be megabytes: each copy of it counts, and a message that is given to another is one.
                    body = reply.agents.add(instance_id=name).answers.add(number=number, document=answer.document)
                    body.not_sent = isinstance(answer, pb.Body) and answer.not_sent
                    if answer.HasField("content"):
                        body.content = answer.content
                    left, held_bytes = left - 1, held_bytes + answer.ByteSize()
                yield reply
        finally:
            for each in calls:
                each.cancel()

    async def read(self, request_bytes: bytes) -> AsyncGenerator[bytes, None]:
        """Pass an agent the one request of a CallRequest; yield the document of its answer, then content by frames."""
        request = pb.CallRequest.FromString(request_bytes)
        asked = request.agents[0]
        agent, body = self._agents.get(asked.instance_id), asked.requests[0]
        ended = asyncio.Event()
        try:
            answer = await self._answer(agent, body, request.timeout_s, request.sign_of_life_s, ended)
            yield answer.document
            if isinstance(answer, ContentStream) and agent is not None:
                async for frame in answer.frames(request.timeout_s, lambda: not agent.has_ended):
                    agent.seen_at = time.monotonic()
                    yield frame
            elif answer.HasField("content"):
                yield answer.content
        finally:
            ended.set()

    async def _call_agent(self, asked: Any, call: Any, answers: asyncio.Queue[tuple[str, int, Any]]) -> None:
        """Put an agent's answers into ``answers`` as they come."""
        agent = self._agents.get(asked.instance_id)

        async def answer(request: Any) -> None:
            found = await self._answer(agent, request, call.timeout_s, call.sign_of_life_s)
            answers.put_nowait((asked.instance_id, request.number, found))

        await asyncio.gather(*map(answer, asked.requests))

    async def _answer(
        self,
        agent: AgentStream | None,
        request: Any,
        timeout_s: float,
        sign_of_life_s: float,
        ended: asyncio.Event | None = None,
    ) -> Any:
        """Return an agent's Answer, or a Body in its place; or a ContentStream, which is read until ``ended``.

        What needs a sign of life is passed on only once there is one, else never.
        """
        if agent is None:
            return pb.Body(document=_UNKNOWN_ABSENT, not_sent=True)
        if request.needs_sign_of_life and not await self._responds(agent, sign_of_life_s):
            words = f'{{"unknown": "its worker gave no sign of life within {sign_of_life_s:g} s"}}'
            return pb.Body(document=words.encode(), not_sent=True)
        return await self._command(agent, request, timeout_s, ended)

    async def _responds(self, agent: AgentStream, within_s: float) -> bool:
        """Return whether an agent lives: it sent something just now, or answers a ping, which all that ask share."""
        if not agent.is_silent(now := time.monotonic()) and now - agent.seen_at <= RESPONSIVE_S:
            return True
        if agent.ping is None or agent.ping.done():
            agent.ping = asyncio.ensure_future(self._ping(agent, within_s))
        return await asyncio.shield(agent.ping)

    async def _ping(self, agent: AgentStream, within_s: float) -> bool:
        answer = await self._command(agent, pb.Body(document=_PING), within_s)
        if b'"unknown"' not in answer.document:
            return True
        agent.unresponsive_at = time.monotonic()
        self._note_urgent()
        return False

    async def _command(
        self, agent: AgentStream, request: Any, timeout_s: float, ended: asyncio.Event | None = None
    ) -> Any:
        number = next(self._numbers)
        command = pb.Command(
            number=number,
            sent_at_s=time.monotonic(),
            timeout_s=timeout_s,
            document=request.document,
            content=request.content if request.HasField("content") else None,
        )
        answered = agent.waiting[number] = asyncio.get_running_loop().create_future()
        if ended is not None:
            agent.streamed[number] = ended
        queued = asyncio.ensure_future(agent.commands.put(pb.ToAgent(command=command)))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({queued, answered}, return_when=asyncio.FIRST_COMPLETED)
                answer = await answered
        except TimeoutError:
            words = f'{{"unknown": "the worker did not answer within {timeout_s:g} s"}}'
            return pb.Body(document=words.encode())
        finally:
            queued.cancel()
            agent.waiting.pop(number, None)
            agent.streamed.pop(number, None)
        return answer


def _listed(machine: Any) -> ListedMachine:
    return ListedMachine(
        instance_id=machine.instance_id,
        launch_token=machine.launch_token,
        secret_sha256=machine.secret_sha256,
        has_registered=machine.has_registered,
        addresses=tuple(machine.addresses) if machine.addresses_known else None,
    )


# --------------------------------------------------------------------------------------------------------- the process
def serve(settings: GatewaySettings, *, alive: int | None = None, ready: int | None = None) -> int:
    """Run the gateway until SIGTERM, or until the descriptor ``alive`` is at its end; return the exit code.

    ``ready``: a descriptor to which a line is written once it listens.

    Raises:
        ConfigError: certificates are missing or expired, or an address cannot be listened on.
    """
    asyncio.run(_serve(settings, alive, ready))
    return 0


async def _serve(settings: GatewaySettings, alive: int | None, ready: int | None) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if alive is not None:
        loop.add_reader(alive, ended.set)  # nothing is ever written to it: it is at its end
    issue(settings.keys, GATEWAY)
    admission = Admission(Authority(settings.keys), SystemClock().now, settings.translated)
    if settings.archives is not None:
        build(settings.archives)
    gateway = Gateway(admission, settings.archives)
    await gateway.read_archives()
    server, content = await _serve_daemon(gateway, settings.socket)
    servers = [await _serve_agents(gateway, settings), server]
    await _serve_enrolment(gateway, admission, settings)
    for server in servers:
        await server.start()
    for path in (settings.socket, content_socket(settings.socket)):
        path.chmod(SOCKET_MODE)
    print(f"hcloud gateway: listening on {settings.listen}; enrolment on {settings.enrolment_listen}", file=sys.stderr)
    sd_notify.ready()
    if ready is not None:
        os.write(ready, b"ready\n")
        os.close(ready)
    while not ended.is_set():
        sd_notify.watchdog()
        gateway.look_over()
        await gateway.read_archives()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), WATCHDOG_S)
    content.close()
    sd_notify.stopping()
    os._exit(0)  # agents find their streams broken and come back


async def _serve_agents(gateway: Gateway, settings: GatewaySettings) -> Any:
    server = grpc.aio.server(options=LISTENING)
    method = grpc.stream_stream_rpc_method_handler(
        gateway.connect, pb.FromAgent.FromString, pb.ToAgent.SerializeToString
    )
    content = grpc.stream_unary_rpc_method_handler(gateway.content, None, None)
    server.add_generic_rpc_handlers((_service({CONNECT: method, CONTENT: content}),))
    with _listening_on(settings.listen, "engine.listen"):
        if not server.add_secure_port(settings.listen, server_credentials(settings.keys)):
            raise RuntimeError("another process listens there")
    return server


async def _serve_daemon(gateway: Gateway, path: Path) -> tuple[Any, asyncio.Server]:
    """Listen on two Unix sockets, closed to all until they have their mode: a process that opens one commands agents.

    Return the server of messages, and that of content.
    """
    server = grpc.aio.server(options=SERVING_DAEMON)
    calls: dict[str, tuple[Any, Any, Any]] = {
        OBSERVE: (gateway.observe, pb.ObserveRequest, pb.ObserveReply),
        AWAIT: (gateway.await_urgent, pb.AwaitRequest, pb.AwaitReply),
        ADMIT: (gateway.admit, pb.AdmitRequest, pb.AdmitReply),
        ARCHIVES: (gateway.archives, pb.ArchivesRequest, pb.ArchivesReply),
    }
    methods = {
        path: grpc.unary_unary_rpc_method_handler(call, request.FromString, reply.SerializeToString)
        for path, (call, request, reply) in calls.items()
    }
    methods[CALL] = grpc.unary_stream_rpc_method_handler(
        gateway.call, pb.CallRequest.FromString, pb.CallReply.SerializeToString
    )
    server.add_generic_rpc_handlers((_service(methods),))
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        content_socket(path).unlink(missing_ok=True)
        with _listening_on(str(path), "run_dir"):
            if not server.add_insecure_port(f"unix:{path}"):
                raise RuntimeError("no such socket can be made")
            content = await serve_content(content_socket(path), gateway.read)
    except OSError as error:
        raise ConfigError(f"the gateway's socket {path} cannot be made: {error.strerror}", where="run_dir") from error
    finally:
        os.umask(before)
    return server, content


async def _serve_enrolment(gateway: Gateway, admission: Admission, settings: GatewaySettings) -> None:
    _, certificate, key = server_files(settings.keys)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(certificate, key)

    def on_refusal(kind: str) -> None:
        gateway.refused[kind] += 1

    enrolment = EnrolmentServer(admission, settings.archives, tls, on_refusal, gateway.log)
    with _listening_on(settings.enrolment_listen, "engine.enrolment_listen"):
        await enrolment.listen(*host_and_port(settings.enrolment_listen))


@contextlib.contextmanager
def _listening_on(address: str, key: str) -> Any:
    try:
        yield
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is in use, or no address of this host"
        raise ConfigError(f"the gateway cannot listen on {address}: {why}", where=key) from error


def _service(methods: dict[str, Any]) -> grpc.GenericRpcHandler:
    service = CONNECT.split("/")[1]
    return grpc.method_handlers_generic_handler(service, {path.split("/")[2]: each for path, each in methods.items()})


def main() -> None:
    """Entry point of the daemon's child: ``python -m hcloud.engine.gateway SETTINGS``."""
    try:
        raise SystemExit(serve(GatewaySettings.from_json(sys.argv[1]), alive=0, ready=1))
    except ConfigError as error:
        fault = {"why": str(error).removeprefix(f"{error.where}: "), "where": error.where}
        os.write(1, json.dumps(fault).encode() + b"\n")
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
