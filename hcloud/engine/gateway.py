"""``hcloud engine``: the gateway between the daemon and the agents that connected to it.

It keeps no state worth saving: agents report again when they connect again, so it may be restarted at any time. What an
agent sends is bounded in size and kept apart from what others send. Reports are passed on as the bytes that came,
without being parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hcloud import sd_notify
from hcloud.core.errors import ConfigError
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine.channel import (
    AWAIT,
    CALL,
    CONNECT,
    LISTENING,
    OBSERVE,
    role_of,
    server_credentials,
)
from hcloud.engine.wire import PROTOCOL

SILENT_AFTER_S = 10.0
"""Agents send something every 4 s at least (``link.HEARTBEAT_S``); a broken connection is noticed at once."""
WATCHDOG_S = 5.0
COMMANDS_MAX = 256
"""Commands that wait for an agent to read them; further ones wait for these, within their time."""
UNITS_MAX, REPORT_BYTES_MAX = 20_000, 32 << 20
"""The largest report an agent may build up; a stream with a larger one is ended."""
HELLO_WITHIN_S = 10.0
AWAIT_S_MAX = 60.0
_UNKNOWN_LOST = b'{"unknown": "the worker\'s connection was lost"}'
_UNKNOWN_ABSENT = b'{"unknown": "no worker is registered under this name"}'
_PING = b'{"op": "ping"}'
RESPONSIVE_S = 0.1
"""An agent that sent something so recently is taken to respond."""
ANSWER_BYTES_MAX = 4 << 20
"""Answers that came meanwhile are passed on together up to about this size."""


class Misbehaving(Exception):
    """An agent broke the protocol; the message says how."""


@dataclass(slots=True, eq=False)
class AgentStream:
    """One agent's connection."""

    instance_id: str
    seen_at: float
    commands: asyncio.Queue[Any] = field(default_factory=lambda: asyncio.Queue(COMMANDS_MAX))
    """Messages for it."""
    units: dict[str, bytes] = field(default_factory=dict)
    machine: bytes = b""
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    """By number, the commands that it has not answered."""
    change: int = 0
    """When its report changed last, as a number of the gateway; 0: no report is complete."""
    unresponsive_at: float = -math.inf
    """When it last failed to give a sign of life; it is silent until it sends something."""
    ping: asyncio.Future[bool] | None = None
    """The present question for a sign of life."""
    _bytes: int = 0
    _number: int = 0

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

    def __init__(self) -> None:
        self._epoch = uuid.uuid4().hex
        self._changes, self._numbers = itertools.count(1), itertools.count(1)
        self._until = self._urgent = 0
        self._awaiting: set[asyncio.Future[None]] = set()
        self._agents: dict[str, AgentStream] = {}

    # ------------------------------------------------------------------------------------------------- from the agents
    async def connect(self, incoming: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve one agent's stream until it ends."""
        await _require_role(context, "worker")
        try:
            agent = await self._greeted(incoming)
        except Misbehaving as fault:
            yield pb.ToAgent(refusal=pb.Refusal(why=str(fault)))
            return
        before = self._agents.get(agent.instance_id)
        if before is not None:  # a new connection of the same agent: the old one is dead or about to be
            before.end()
        self._agents[agent.instance_id] = agent
        reading = asyncio.create_task(self._read(agent, incoming))
        try:
            yield pb.ToAgent(welcome=pb.Welcome(protocol=PROTOCOL))
            while (message := await _next_or_end(agent.commands, reading)) is not None:
                yield message
        finally:
            reading.cancel()
            agent.end()
            if self._agents.get(agent.instance_id) is agent:
                del self._agents[agent.instance_id]
                self._note_urgent()

    async def _greeted(self, incoming: AsyncIterator[Any]) -> AgentStream:
        try:
            first = await asyncio.wait_for(anext(incoming), HELLO_WITHIN_S)
        except (TimeoutError, StopAsyncIteration) as error:
            raise Misbehaving("it sent nothing") from error
        hello = first.hello
        if first.WhichOneof("message") != "hello" or not hello.instance_id:
            raise Misbehaving("its first message names no instance")
        if hello.protocol != PROTOCOL:
            raise Misbehaving(
                f"this gateway speaks protocol {PROTOCOL}, and the agent of HCloud {hello.version} speaks "
                f"{hello.protocol}; drain its instance, and launch it anew"
            )
        return AgentStream(hello.instance_id, time.monotonic())

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
        except Misbehaving as fault:
            print(f"hcloud engine: the agent of {agent.instance_id} is cut off: {fault}", file=sys.stderr)

    def _note_urgent(self) -> None:
        self._urgent = next(self._changes)
        for future in self._awaiting:
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------------------------------------- from the daemon
    async def await_urgent(self, request: Any, context: Any) -> Any:
        """Return once an urgent change came after ``since`` in this epoch, or after ``timeout_s``."""
        await _require_role(context, "client")
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
        await _require_role(context, "client")
        now, since = time.monotonic(), request.since if request.epoch == self._epoch else 0
        reply = pb.ObserveReply(epoch=self._epoch, until=self._until)
        for name, agent in self._agents.items():
            if not agent.change:
                continue  # connected just now; its first report is on its way
            (reply.silent if agent.is_silent(now) else reply.connected).append(name)
            if agent.change > since:
                reply.reports[name] = agent.document()
        return reply

    async def call(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Pass each agent its requests; yield the answers as they come."""
        await _require_role(context, "client")
        answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        calls = [asyncio.create_task(self._call_agent(each, request, answers)) for each in request.agents]
        left = sum(len(each.requests) for each in request.agents)
        try:
            while left:
                reply, held_bytes = pb.CallReply(), 0
                while not reply.agents or (not answers.empty() and held_bytes < ANSWER_BYTES_MAX):
                    name, answer = await answers.get()
                    reply.agents.add(instance_id=name, answers=[answer])
                    left, held_bytes = left - 1, held_bytes + answer.ByteSize()
                yield reply
        finally:
            for each in calls:
                each.cancel()

    async def _call_agent(self, asked: Any, call: Any, answers: asyncio.Queue[tuple[str, Any]]) -> None:
        """Put an agent's answers into ``answers`` as they come."""
        agent = self._agents.get(asked.instance_id)

        async def answer(request: Any) -> None:
            found = await self._answer(agent, request, call.timeout_s, call.sign_of_life_s)
            found.number = request.number
            answers.put_nowait((asked.instance_id, found))

        await asyncio.gather(*map(answer, asked.requests))

    async def _answer(self, agent: AgentStream | None, request: Any, timeout_s: float, sign_of_life_s: float) -> Any:
        """Return an agent's answer. What needs a sign of life is passed on only once there is one, else never."""
        if agent is None:
            return pb.Body(document=_UNKNOWN_ABSENT, not_sent=True)
        if request.needs_sign_of_life and not await self._responds(agent, sign_of_life_s):
            words = f'{{"unknown": "its worker gave no sign of life within {sign_of_life_s:g} s"}}'
            return pb.Body(document=words.encode(), not_sent=True)
        return await self._command(agent, request, timeout_s)

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

    async def _command(self, agent: AgentStream, request: Any, timeout_s: float) -> Any:
        number = next(self._numbers)
        command = pb.Command(
            number=number,
            sent_at_s=time.monotonic(),
            timeout_s=timeout_s,
            document=request.document,
            content=request.content if request.HasField("content") else None,
        )
        answered = agent.waiting[number] = asyncio.get_running_loop().create_future()
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
        return pb.Body(document=answer.document, content=answer.content if answer.HasField("content") else None)


async def _next_or_end(commands: asyncio.Queue[Any], reading: asyncio.Task[None]) -> Any:
    """Return the next command, or None once the agent has ended its side."""
    taking = asyncio.ensure_future(commands.get())
    done, _ = await asyncio.wait({taking, reading}, return_when=asyncio.FIRST_COMPLETED)
    if taking in done:
        return taking.result()
    taking.cancel()
    return None


async def _require_role(context: Any, role: str) -> None:
    found = role_of(context.auth_context())
    if found != role:
        words = f"a {found or 'nameless'} certificate is no {role}'s"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, words)


def serve(listen: str, tls_dir: Path) -> int:
    """Run the gateway on ``host:port`` until SIGTERM; return the exit code.

    Raises:
        ConfigError: certificates are missing or expired, or the address cannot be listened on.
    """
    asyncio.run(_serve(listen, tls_dir))
    return 0


async def _serve(listen: str, tls_dir: Path) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    gateway, server = Gateway(), grpc.aio.server(options=LISTENING)
    server.add_generic_rpc_handlers((_handlers(gateway),))
    try:
        port = server.add_secure_port(listen, server_credentials(tls_dir))
    except RuntimeError as error:
        port, why = 0, str(error)
    else:
        why = "another process listens there"
    if not port:
        raise ConfigError(f"the engine cannot listen on {listen}: {why}", where="engine.listen")
    await server.start()
    print(f"hcloud engine: listening on tls://{listen}", file=sys.stderr)
    sd_notify.ready()
    while not ended.is_set():
        sd_notify.watchdog()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), WATCHDOG_S)
    sd_notify.stopping()
    os._exit(0)  # agents find their streams broken and come back


def _handlers(gateway: Gateway) -> grpc.GenericRpcHandler:
    made = {
        CONNECT: grpc.stream_stream_rpc_method_handler(
            gateway.connect, pb.FromAgent.FromString, pb.ToAgent.SerializeToString
        ),
        OBSERVE: grpc.unary_unary_rpc_method_handler(
            gateway.observe, pb.ObserveRequest.FromString, pb.ObserveReply.SerializeToString
        ),
        AWAIT: grpc.unary_unary_rpc_method_handler(
            gateway.await_urgent, pb.AwaitRequest.FromString, pb.AwaitReply.SerializeToString
        ),
        CALL: grpc.unary_stream_rpc_method_handler(
            gateway.call, pb.CallRequest.FromString, pb.CallReply.SerializeToString
        ),
    }
    service = CONNECT.split("/")[1]
    return grpc.method_handlers_generic_handler(service, {path.split("/")[2]: each for path, each in made.items()})
