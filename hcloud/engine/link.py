"""The worker's link to the gateway: it connects to it, and carries messages over that one stream.

It reports all units whenever something about them changes, carries out the gateway's commands (``gateway``), and passes
orders on to the supervisor that started it. It connects again when the gateway goes, and ends when the supervisor goes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hcloud import __version__
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine import metadata
from hcloud.engine.bootstrap import Bootstrap, load_bootstrap
from hcloud.engine.changes import DirectoryWatch
from hcloud.engine.channel import CONNECT, CONTENT, CONTENT_BYTES_MAX, agent_options
from hcloud.engine.content import FileRange, PipeRange, send
from hcloud.engine.cpu_report import read_topology, usable_cpus
from hcloud.engine.credential import Credential
from hcloud.engine.gpus import find_gpus
from hcloud.engine.output import read_output
from hcloud.engine.outputs import UnitOutputs
from hcloud.engine.unit import UnitDirectories, read_json
from hcloud.engine.unit_commands import UnitCommands
from hcloud.engine.uploads import UnitUploads
from hcloud.engine.wire import PROTOCOL, stream_name

REPORT_PAUSE_S, BUSY_PAUSE_S, HELD_S = 0.02, 0.1, 0.2
"""Pause before the units are looked at, in which more may change; the same soon after a look, so that many short units
are reported together; and how long a report may wait for a unit to end."""
POLL_S, HEARTBEAT_S = 1.0, 8.0
RETRY_S, RETRY_CAP_S, ELSEWHERE_CAP_S = 0.2, 5.0, 1.0
"""Pauses before the next try; shorter where another gateway may be the one."""
RENEWAL_LOOKED_AT_EVERY_S = 60.0
SUPERVISOR_TIMEOUT_S = 20.0
CHUNK_MAX = 4 << 20
OUTGOING_MAX, COMMANDS_MAX = 16, 64
"""Messages that wait to be sent, and commands that are being carried out."""
UNITS_PER_PART = 500

Answer = dict[str, Any]
Supervise = Callable[[Mapping[str, Any]], Awaitable[Answer]]


class LinkHost:
    """What the link knows of its instance: the units on disk, and the supervisor to give orders to."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        supervise: Supervise,
        isolation: tuple[str, ...],
        cgroup: Mapping[str, Any] | None = None,
    ) -> None:
        self._bootstrap, self._supervise, self._isolation = bootstrap, supervise, isolation
        self._units = UnitDirectories(bootstrap.state_dir)
        self._archives = bootstrap.state_dir / "archives"
        self._archives.mkdir(mode=0o700, exist_ok=True)
        self._outputs = UnitOutputs(bootstrap.number("max_outputs_mib", 4096) << 20, root=os.geteuid() == 0)
        self._uploads = UnitUploads(root=os.geteuid() == 0)
        self._known: dict[str, dict[str, Any]] = {}  # an ended unit never changes: read once
        self._commands = UnitCommands("bwrap" in isolation, "seccomp" in isolation, cgroup)
        self._cpu_topology = read_topology(usable_cpus(bootstrap.cpus))
        self._gpus = [[each.number, each.kind, each.memory_mib] for each in find_gpus(bootstrap.gpu_root)]

    def report(self, unchanged: Set[Path] = frozenset()) -> dict[str, Any]:
        """Return a WorkerReport on the wire, read from the disk; what is known of units in ``unchanged`` directories
        is not read again."""
        known = dict[str, dict[str, Any]]()
        for unit in self._units:
            before = self._known.get(unit.id)
            if before is None or not (before["state"] == "ended" or unit.path in unchanged):
                before = unit.report()
            known[unit.id] = before
        self._known = known
        return {
            "units": list(known.values()),
            "isolation": self._isolation,
            "preempt_at": self.preempt_at(),
            "cpu_topology": self._cpu_topology,
            "gpus": self._gpus,
        }

    def preempt_at(self) -> float | None:
        """Return when the machine will be preempted, if announced."""
        notice = read_json(self.notice_file) or {}
        announced_at = notice.get("preempt_at")
        return float(announced_at) if announced_at is not None else None

    def live_paths(self) -> list[Path]:
        """Return the directories in which something may still change."""
        return [
            unit.path for unit in self._units if self._known.get(unit.id, {"state": "starting"})["state"] != "ended"
        ]

    @property
    def notice_file(self) -> Path:
        """Return the file whose appearance announces a preemption."""
        return Path(self._bootstrap.settings.get("preempt_file", "/nowhere/preempt.json"))

    @property
    def units_path(self) -> Path:
        """Return the directory in which units appear."""
        return self._units.path

    async def call(self, request: Mapping[str, Any]) -> Answer:
        """Carry out one call."""
        try:
            match request["op"]:
                case "logs":
                    return self._logs(request)
                case "outputs":
                    return self._read_outputs(request)
                case "listing":
                    return self._read_listing(request)
                case "upload":
                    return self._upload(request)
                case "checkpoint":
                    return self._read_checkpoint(request)
                case "exec":
                    return await self._exec(request)
                case "put":
                    return self._put(request)
                case "ping":
                    return {"alive": True}
                case "forget":
                    self._outputs.forget(request["units"])
                    for unit_id in request["units"]:
                        self._uploads.forget(unit_id)
                    return await self._supervise(request)
                case "start" | "refuse" | "stop" | "renew" | "resize" | "pause":
                    return await self._supervise(request)
        except (OSError, ValueError) as error:
            return {"unknown": f"{request['op']}: {error}"}
        return {"refused": f"this worker knows no {request['op']!r}"}

    def _logs(self, request: Mapping[str, Any]) -> Answer:
        unit = self._units.get(request["unit"])
        if unit is None:
            return {"absent": request["unit"]}
        ended = unit.ended  # asked before reading: what is read after the end is all there is
        stream, limit = stream_name(request["stream"]), min(request["limit"], CHUNK_MAX)
        content, offset, last = read_output(unit.path / "log", stream, request["offset"], limit)
        return {"content": content, "next_offset": offset, "end": ended and last}

    def _read_outputs(self, request: Mapping[str, Any]) -> Answer:
        unit = self._units.get(request["unit"])
        if unit is None:
            return {"absent": request["unit"]}
        return self._outputs.read(unit, request["offset"], _limit(request))

    def _read_listing(self, request: Mapping[str, Any]) -> Answer:
        unit = self._units.get(request["unit"])
        if unit is None:
            return {"absent": request["unit"]}
        return self._outputs.read_listing(unit, request["offset"], _limit(request))

    def _upload(self, request: Mapping[str, Any]) -> Answer:
        unit, name = self._units.get(request["unit"]), os.path.basename(request["list"])
        if unit is None or not unit.ended:
            return {"absent": request["unit"]}
        if not (self._archives / name).exists():
            return {"need": name}
        return self._uploads.send(unit, name, self._archives / name)

    def _read_checkpoint(self, request: Mapping[str, Any]) -> Answer:
        unit = self._units.get(request["unit"])
        if unit is None:
            return {"absent": request["unit"]}
        return self._outputs.read_checkpoint(unit, int(request["number"]), request["offset"], _limit(request))

    async def _exec(self, request: Mapping[str, Any]) -> Answer:
        unit = self._units.get(request["unit"])
        if unit is None:
            return {"absent": request["unit"]}
        return await self._commands.run(unit, request["command"], float(request["timeout_s"]))

    def _put(self, request: Mapping[str, Any]) -> Answer:
        """Take a piece of an archive; the last one makes it visible under its name."""
        name = os.path.basename(request["name"])
        part = self._archives / f".{name}.{request['upload']}"
        with part.open("ab") as file:
            file.truncate(request["offset"])
            file.seek(request["offset"])
            file.write(request["content"])
        if request["last"]:
            part.rename(self._archives / name)
        return {"taken": True}


def _limit(request: Mapping[str, Any]) -> int:
    """Return how much content an answer may have: a message holds less than a stream of frames."""
    return min(int(request["limit"]), CONTENT_BYTES_MAX if request.get("streams") else CHUNK_MAX)


class AgentLink:
    """One connection to the gateway: reports changes, answers commands."""

    def __init__(self, channel: Any, host: LinkHost, credential: Credential, *, has_others: bool = False) -> None:
        """Carry messages over a channel. ``has_others``: this agent knows other gateways."""
        self._stream = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)()
        self._open_content = channel.stream_unary(CONTENT, None, None)
        self._host, self._credential, self._has_others = host, credential, has_others
        self._changes = DirectoryWatch(host.units_path)
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue(OUTGOING_MAX)
        self._sent: dict[str, tuple[dict[str, Any], bytes]] = {}
        """Reports of units that were sent last, each with its document."""
        self._read_all_at = self._looked_at = -math.inf
        self._states: dict[str, str] = {}
        self._machine = b""
        self._number = 0
        self._clock_distance_s = math.inf
        self._commands: set[asyncio.Task[None]] = set()
        self._spoke_at = -math.inf

    async def run(self) -> bool:
        """Carry messages until the connection is lost, or there is a new certificate.

        Return whether the gateway welcomed this agent.
        """
        hello = pb.Hello(protocol=PROTOCOL, version=__version__, has_others=self._has_others)
        parts: list[asyncio.Task[None]] = []
        welcomed = False
        try:
            await self._stream.write(pb.FromAgent(hello=hello))
            parts = [asyncio.create_task(each) for each in (self._report_changes(), self._renew(), self._write())]
            async for message in self._stream:
                match message.WhichOneof("message"):
                    case "welcome":
                        welcomed = True
                    case "refusal":
                        raise GatewayRefusal(message.refusal.why, elsewhere=message.refusal.elsewhere)
                    case "command":
                        await self._take(message.command)
                    case "certificate":
                        self._credential.accept(message.certificate.pem)
                        return True
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise OSError(f"the gateway is away: {details}") from error
        finally:
            for task in (*parts, *self._commands):
                task.cancel()
            await asyncio.gather(*parts, *self._commands, return_exceptions=True)
            self._changes.close()
        return welcomed

    async def _write(self) -> None:
        """Send what is to be sent, one message after the other: a slow connection slows its senders."""
        while True:
            await self._stream.write(await self._outgoing.get())
            self._spoke_at = time.monotonic()

    async def _report_changes(self) -> None:
        """Send a report now, and again whenever something changed; say that we live when nothing did for long."""
        while True:
            report = await self._next_report()
            for part in self._parts(report):
                await self._outgoing.put(pb.FromAgent(report=part))
            await self._next_change(report["preempt_at"])

    async def _next_report(self) -> dict[str, Any]:
        """Return a report of an end, or after HELD_S another one: units that end soon are reported once."""
        held_until = time.monotonic() + HELD_S
        while True:
            report = self._host.report(self._unchanged())
            left_s = held_until - time.monotonic()
            if left_s <= 0 or self._is_urgent(report, "ended") or not self._number:
                return report
            await self._changes.wait(self._host.live_paths(), left_s, [self._host.notice_file.parent])
            await self._pause()

    async def _pause(self) -> None:
        left_s = self._looked_at + BUSY_PAUSE_S - time.monotonic()
        await asyncio.sleep(max(REPORT_PAUSE_S, left_s))
        self._looked_at = time.monotonic()

    def _unchanged(self) -> Set[Path]:
        """Return in which directories nothing changed; none once in POLL_S, should the kernel have missed something."""
        unchanged = self._changes.take_unchanged()
        if time.monotonic() < self._read_all_at + POLL_S:
            return unchanged
        self._read_all_at = time.monotonic()
        return frozenset()

    def _is_urgent(self, report: Mapping[str, Any], *states: str) -> bool:
        """Return whether a unit got into one of ``states``, or something of the machine changed."""
        known = self._states
        return self._machine != self._machine_of(report) or any(
            each["state"] in states and known.get(each["id"]) != each["state"] for each in report["units"]
        )

    @staticmethod
    def _machine_of(report: Mapping[str, Any]) -> bytes:
        return _document({name: each for name, each in report.items() if name != "units"})

    async def _renew(self) -> None:
        """Ask for a new certificate when it is time; the present one stays valid for long."""
        while True:
            if self._credential.needs_renewal():
                await self._outgoing.put(pb.FromAgent(renewal=pb.Renewal(request_pem=self._credential.request())))
            await asyncio.sleep(RENEWAL_LOOKED_AT_EVERY_S)

    def _parts(self, report: dict[str, Any]) -> Iterator[Any]:
        """Yield what changed since the last report, in parts of bounded size; nothing if nothing did."""
        units = {each["id"]: self._with_document(each) for each in report["units"]}
        machine, nothing = self._machine_of(report), (None, b"")
        changed = [
            (name, document) for name, (_, document) in units.items() if self._sent.get(name, nothing)[1] != document
        ]
        gone = [name for name in self._sent if name not in units]
        if not changed and not gone and machine == self._machine:
            return
        urgent = self._is_urgent(report, "running", "ended")
        self._sent, self._machine, self._number = units, machine, self._number + 1
        self._states = {each["id"]: each["state"] for each in report["units"]}
        for first in range(0, max(1, len(changed)), UNITS_PER_PART):
            part, last = changed[first : first + UNITS_PER_PART], first + UNITS_PER_PART >= len(changed)
            yield pb.Report(
                number=self._number,
                units=[pb.UnitState(id=name, document=document) for name, document in part],
                gone=gone if last else [],
                machine=machine,
                more=not last,
                urgent=urgent,
            )

    def _with_document(self, report: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        sent = self._sent.get(report["id"])
        return sent if sent is not None and sent[0] is report else (report, _document(report))

    async def _next_change(self, preempt_at: float | None) -> None:
        live = self._host.live_paths()
        looking = True
        while looking:
            notices = [self._host.notice_file.parent]
            changed = await self._changes.wait(live, POLL_S if live else HEARTBEAT_S, notices)
            if time.monotonic() - self._spoke_at >= HEARTBEAT_S - POLL_S / 2 and self._outgoing.empty():
                await self._outgoing.put(pb.FromAgent(alive=pb.Alive()))
            looking = not (changed or live or self._host.preempt_at() != preempt_at)
        await self._pause()

    async def _take(self, command: Any) -> None:
        """Begin to carry out a command; with many at work, only once one of them is done."""
        if self._is_late(command.sent_at_s, command.timeout_s):
            # No call awaits the answer, but it shows the gateway that this agent responds again.
            late = pb.Answer(number=command.number, document=_document({"unknown": "the command came too late"}))
            await self._outgoing.put(pb.FromAgent(answer=late))
            return
        if len(self._commands) >= COMMANDS_MAX:
            await asyncio.wait(self._commands, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._carry_out(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    def _is_late(self, sent_at_s: float, timeout_s: float) -> bool:
        """Whether this command's answer is no longer awaited: it lay in a buffer while we hung.

        What was reported as unknown must not happen long after. The two clocks are not compared but their distance,
        which is smallest for the message that came fastest.
        """
        distance_s = time.monotonic() - sent_at_s
        self._clock_distance_s = min(distance_s, self._clock_distance_s)
        return distance_s - self._clock_distance_s > timeout_s

    async def _carry_out(self, command: Any) -> None:
        request = json.loads(command.document)
        if command.HasField("content"):
            request["content"] = command.content
        answer = await self._host.call(request)
        content = answer.pop("content", None)
        self._changes.wake_unwatched()
        message = pb.FromAgent()
        message.answer.number = command.number
        if isinstance(content, FileRange | PipeRange):
            if request.get("streams"):
                message.answer.document = _document({**answer, "bytes": content.size_bytes})
                await self._send(message.answer, content)
                return
            content = content.read()
        message.answer.document = _document(answer)
        if content is not None:
            message.answer.content = content
        await self._outgoing.put(message)

    async def _send(self, answer: Any, content: FileRange | PipeRange) -> None:
        """Send an answer with its content past the messages; what does not arrive is asked for again."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError):
            await send(self._open_content(), answer.SerializeToString(), content)


def _document(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


class SupervisorChannel:
    """Asks the supervisor over the inherited socket; answers come back by number."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def read(self) -> None:
        """Take in answers until the supervisor is gone."""
        reader, self._writer = await asyncio.open_connection(sock=self._channel, limit=16 << 20)
        while line := await reader.readline():
            answer = json.loads(line)
            future = self._waiting.pop(answer.pop("id"), None)
            if future is not None and not future.done():
                future.set_result(answer)

    async def ask(self, request: Mapping[str, Any]) -> Answer:
        """Send one order and wait for its answer."""
        if self._writer is None:
            return {"unknown": "the supervisor is not connected yet"}
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({**request, "id": number}).encode() + b"\n")
        try:
            return await asyncio.wait_for(self._waiting[number], SUPERVISOR_TIMEOUT_S)
        except TimeoutError:
            return {"unknown": "the worker's supervisor did not answer"}
        finally:
            self._waiting.pop(number, None)


class GatewayRefusal(Exception):
    """The gateway refuses this agent; ``elsewhere``: another one may not."""

    def __init__(self, why: str, *, elsewhere: bool = False) -> None:
        super().__init__(f"the gateway refuses this agent: {why}")
        self.elsewhere = elsewhere


async def keep_connected(bootstrap: Bootstrap, host: LinkHost, credential: Credential) -> None:
    """Be connected to the gateway of the daemon that leads; try one after the other, again and again."""
    addresses = list(zip(bootstrap.gateway_addresses, bootstrap.enrolment_addresses, strict=True))
    pause_s, cap_s = RETRY_S, RETRY_CAP_S if len(addresses) == 1 else ELSEWHERE_CAP_S
    printed, was_refused = "", False
    for number in itertools.count():
        gateway, enrolment = addresses[number % len(addresses)]
        try:
            # A refused certificate may have expired though this machine's clock, which is behind, says it has not.
            if credential.is_expired() or (was_refused and credential.needs_renewal()):
                await asyncio.to_thread(credential.renew, enrolment)
            if await _connected_once(gateway, host, credential, has_others=len(addresses) > 1):
                pause_s, printed, was_refused = RETRY_S, "", False
        except (OSError, ValueError, RuntimeError, GatewayRefusal) as error:
            was_refused = isinstance(error, GatewayRefusal)
            if str(error) != printed and not (isinstance(error, GatewayRefusal) and error.elsewhere):
                printed = str(error)
                print(f"hcloud link {bootstrap.instance_id}: {error}; tried again and again", file=sys.stderr)
        await asyncio.sleep(pause_s)
        pause_s = min(cap_s, 2 * pause_s)


async def _connected_once(gateway: str, host: LinkHost, credential: Credential, *, has_others: bool) -> bool:
    """Carry messages until the connection is lost, or there is a new certificate; return whether there was one."""
    authority, key, certificate = credential.files()
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    async with grpc.aio.secure_channel(gateway, credentials, agent_options()) as channel:
        return await AgentLink(channel, host, credential, has_others=has_others).run()


async def run(
    bootstrap: Bootstrap, channel: socket.socket, isolation: tuple[str, ...], cgroup: Mapping[str, Any] | None
) -> None:
    """Run the link until the supervisor is gone."""
    supervisor = SupervisorChannel(channel)
    metadata.watch(bootstrap)
    host = LinkHost(bootstrap, supervisor.ask, isolation, cgroup)
    connection = asyncio.create_task(keep_connected(bootstrap, host, Credential(bootstrap)))
    reading = asyncio.create_task(supervisor.read())
    await asyncio.wait({connection, reading}, return_when=asyncio.FIRST_COMPLETED)
    connection.cancel()


def main() -> None:
    """Entry point: ``python -m hcloud.engine.link BOOTSTRAP DESCRIPTOR``."""
    bootstrap = load_bootstrap(Path(sys.argv[1]))
    channel = socket.socket(fileno=int(sys.argv[2]))
    isolation = json.loads(os.environ.get("HCLOUD_ISOLATION", '{"names": []}'))
    asyncio.run(run(bootstrap, channel, tuple(isolation["names"]), isolation.get("cgroup")))
    os._exit(0)  # nothing here needs a tidy end


if __name__ == "__main__":
    main()
