"""The daemon's side of the engine: a Runner that asks the gateway, over one Unix socket for everything."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import grpc

from hcloud.core.arrays import Interval
from hcloud.core.clock import Clock
from hcloud.core.errors import NotFound, UnitRefused, WorkerUnreachable
from hcloud.core.model import FailureCause, InstanceId, Resources, UnitId
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine.calls import CHUNK_BYTES, Answer, Calls, Command, EngineAway, Numbered, refused, unreadable
from hcloud.engine.channel import ADMIT, ARCHIVES, AWAIT, CALL, OBSERVE, daemon_options
from hcloud.engine.content import ask, content_socket
from hcloud.engine.gang_credential import gang_of, gang_pem, gang_port, gang_tunnel, tunnel_addresses
from hcloud.engine.gang_network import is_one_host
from hcloud.engine.gang_tunnel import TUNNEL
from hcloud.engine.tls import enrolment_secret
from hcloud.engine.wire import (
    command_result_from_wire,
    outputs_manifest_from_wire,
    printable_note,
    report_from_wire,
    unit_to_wire,
)
from hcloud.provider import (
    AdmittedMachine,
    CommandResult,
    LogChunk,
    LogPiece,
    OutputsManifest,
    OutputsPiece,
    PauseResult,
    ResizeResult,
    RunnerView,
    StartResult,
    UnitSpec,
    UnitStream,
    UploadState,
    WorkerReport,
)

_log = logging.getLogger("hcloud")
OBSERVE_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
ANSWER_WITHIN_S = 0.25
SIGN_OF_LIFE_S = 0.5
SLACK_S = 3.0
GATEWAY_SHARE = 0.4
"""The share of the time for answers that the gateway itself gets where it answers without asking agents."""
FACTS_KEPT_S = 5.0
"""For so long after an observation its facts are stated without another one."""
FORGET_EVERY_S = 0.5
"""Ended units are forgotten by machine at most so often: none of them matters any more."""
ADMIT_AGAIN_SHARE = 0.1
"""The same list of machines is stated again after this share of the time for which a daemon counts as leading."""
LEAD_S = 3.0
"""So long after its last cycle a daemon still counts as leading, so that its agents stay."""
REQUEST_BYTES_MAX = 4 << 20
REMEMBER_S = 3600.0
AGENTS_KEPT_S = 60.0
"""New archives of the agent are noticed within this time."""
NOT_SENT = "not_sent"
KEPT_NAMES = 1000
"""Of so many uploaded archives it is remembered by which name workers keep them."""


class GatewayRunner:
    """Runner on a gateway that listens on the Unix socket ``socket``. Safe in several threads.

    Between two calls of ``observe``, all other calls together wait at most ``answer_within_s`` for answers; what is
    unanswered then is ``pending``, and its answer is returned by a later call. ``settings`` may change that time, and
    ``call_timeout_s``: how long one worker may take before its outcome is ``unknown``; ``sign_of_life_s``: how long
    one that sent nothing lately may take to show that it responds, before it is sent a start; ``lead_s``, how long
    after its last cycle this daemon still counts as leading. ``launch_key``: the secret of which machines' enrolment
    secrets are made.
    """

    def __init__(
        self, socket: Path, launch_key: bytes, clock: Clock, settings: Mapping[str, object] | None = None
    ) -> None:
        self._socket, self._launch_key, self._clock = socket, launch_key, clock
        seconds = {"call_timeout_s": CALL_TIMEOUT_S, "answer_within_s": ANSWER_WITHIN_S, "lead_s": LEAD_S}
        seconds |= {"sign_of_life_s": SIGN_OF_LIFE_S} | {key: float(str(at)) for key, at in (settings or {}).items()}
        self._wire = _Wire(socket, seconds["sign_of_life_s"])
        self._stirred = threading.Event()
        self._call_timeout_s = seconds["call_timeout_s"]
        self._calls = Calls(self._wire, self._call_timeout_s, seconds["answer_within_s"], self._stirred.set)
        self._lead_s = seconds["lead_s"]
        self._admitted: Sequence[AdmittedMachine] | None = None
        self._admitted_at = 0.0
        self._forgetting: dict[UnitId, InstanceId] = {}
        self._forgot_at = -math.inf
        self._lock = threading.Lock()
        self._epoch, self._until = "", 0
        self._observing: _Reply | None = None
        self._view: RunnerView | None = None
        self._viewed_at = 0.0
        self._news = ("", 0)
        self._awaiting: _Reply | None = None
        self._reports: dict[InstanceId, WorkerReport] = {}
        self._heard: dict[InstanceId, float] = {}
        self._illegible: set[InstanceId] = set()
        self._last_error = ""
        self._refused: Mapping[str, int] = {}
        self._agents: Mapping[str, str] | None = None
        self._agents_until = -1.0

    # ------------------------------------------------------------------------------------------------------- admission
    def admit(self, machines: Sequence[AdmittedMachine]) -> None:
        """Let the workers of these instances connect, and no others; the list is sent where it is not known."""
        with self._lock:
            within_s, now = GATEWAY_SHARE * self._calls.within_s, time.monotonic()
            if machines == self._admitted and now < self._admitted_at + ADMIT_AGAIN_SHARE * self._lead_s:
                return
            self._admitted_at = now
            try:
                if (
                    machines == self._admitted
                    and not self._wire.admit(self._lead_s, None).result(within_s).needs_machines
                ):
                    return
                self._admitted = None
                self._wire.admit(self._lead_s, self._listed(machines)).result(within_s)
                self._admitted = machines
            except (EngineAway, TimeoutError):  # which ``observe`` reports
                self._admitted = None

    def _listed(self, machines: Sequence[AdmittedMachine]) -> Any:
        def secret_of(each: AdmittedMachine) -> bytes:
            return enrolment_secret(self._launch_key, each.launch_token).encode()

        return pb.Machines(
            machines=[
                pb.Machine(
                    instance_id=each.instance_id,
                    launch_token=each.launch_token,
                    secret_sha256=hashlib.sha256(secret_of(each)).digest(),
                    has_registered=each.has_registered,
                    addresses_known=each.addresses is not None,
                    addresses=each.addresses or (),
                )
                for each in machines
            ]
        )

    def agents(self) -> Mapping[str, str] | None:
        """Return the SHA-256 of the agent's archives that the gateway serves, by architecture and Python.

        None: not known yet, as the gateway has not answered.
        """
        now = time.monotonic()
        if now >= self._agents_until:
            try:
                reply = self._wire.archives().result(GATEWAY_SHARE * self._calls.within_s)
                self._agents, self._agents_until = dict(reply.sha256), now + AGENTS_KEPT_S
            except (EngineAway, TimeoutError) as away:
                _log.warning("the agent's archives are not known: %s", str(away) or "no answer yet")
        return self._agents

    # -------------------------------------------------------------------------------------------------------- reading
    def observe(self) -> RunnerView:
        """Return every worker's report; one call to the gateway, whatever the number of workers.

        While the gateway takes its time, the view before is returned, and after OBSERVE_TIMEOUT_S an unreachable one.
        """
        self._forget_due()
        with self._lock:
            self._calls.begin_round()
            # Looked up first: what is observed then is newer than these answers.
            answered = self._calls.answered("start", "resize", "pause")
            if self._observing is None:
                self._observing = self._wire.observe(self._epoch, self._until)
            began = time.monotonic()
            try:
                limit_s = self._calls.left_s if self._view is not None else OBSERVE_TIMEOUT_S + SLACK_S
                reply = self._observing.result(limit_s)
            except TimeoutError:
                self._view = self._view or RunnerView(workers=(), reachable=False)
            except EngineAway as away:
                self._observing, self._last_error = None, str(away)
                self._view = RunnerView(workers=(), reachable=False)
            else:
                self._observing, self._view = None, self._take(reply)
            self._viewed_at = time.monotonic()
            self._calls.spend(self._viewed_at - began)
            return replace(self._view, answered=answered) if answered else self._view

    def _take(self, reply: Any) -> RunnerView:
        now = time.monotonic()
        if reply.epoch != self._epoch:
            self._reports.clear()
            self._admitted = None  # another gateway, which may not know the machines
        self._epoch, illegible = reply.epoch, self._read(reply.reports)
        if not illegible:  # else they are told again
            self._until = reply.until
        connected, silent, self._refused = set(reply.connected), set(reply.silent), dict(reply.refused)
        silent |= illegible & connected - self._reports.keys()
        self._heard |= dict.fromkeys(connected | silent, now)
        self._heard = {name: at for name, at in self._heard.items() if now - at < REMEMBER_S}
        # One that was here before and is not now is silent, not unknown: nobody may conclude that it never registered.
        silent |= self._heard.keys() - connected
        self._reports = {name: report for name, report in self._reports.items() if name in connected | silent}
        workers = tuple(self._reports[name] for name in sorted(connected) if name in self._reports)
        return RunnerView(workers=workers, silent=frozenset(silent), refused=self._refused)

    def _read(self, reports: Mapping[str, bytes]) -> set[InstanceId]:
        """Take reports in; return those that make no sense: of these the previous report stays."""
        illegible = set[InstanceId]()
        for name, document in reports.items():
            try:
                self._reports[name] = report_from_wire(name, _report_of(document))
            except Exception as defect:  # noqa: BLE001 a worker of another version may tell anything; others are heard
                illegible.add(name)
                if name not in self._illegible:
                    _log.exception("the report of the worker on %s makes no sense: %s", name, defect)
        self._illegible = illegible
        return illegible

    def await_news(self, timeout_s: float) -> bool:
        """Wait until a unit began or ended, a worker came or went, an instance is to be preempted, or a late answer
        came, since the call before; False after ``timeout_s``. Raises WorkerUnreachable if the gateway does not
        answer. For one thread."""
        if self._awaiting is None:
            self._awaiting = self._wire.await_urgent(*self._news, timeout_s)
            self._awaiting.on_end(self._stirred.set)
        has_news = self._stirred.wait(timeout_s + SLACK_S) and not self._awaiting.has_ended
        self._stirred.clear()
        if self._awaiting.has_ended:
            awaited, self._awaiting = self._awaiting, None
            try:
                reply = awaited.result(0.0)
            except EngineAway as away:
                raise WorkerUnreachable(str(away)) from away
            before, self._news = self._news, (reply.epoch, reply.until)
            has_news = has_news or before != self._news
        return has_news

    def logs(self, unit: UnitId, instance_id: InstanceId, stream: UnitStream, offset: int, limit: int) -> LogChunk:
        """Read output from byte ``offset``, for as long as that takes."""
        piece = LogPiece(unit=unit, instance_id=instance_id, stream=stream, offset=offset, limit=limit)
        (answer,) = self._calls.ask_at_leisure([_log_command(piece)])
        if "absent" in answer:
            raise NotFound(f"{instance_id} knows no unit {unit}; it never started there, or its files are deleted")
        if "content" not in answer:
            raise WorkerUnreachable(f"{instance_id}: {_words(answer)}")
        return LogChunk(content=answer["content"], next_offset=answer["next_offset"], end=answer["end"])

    def read_logs(self, pieces: Sequence[LogPiece]) -> Mapping[LogPiece, LogChunk]:
        """Read pieces of output of many units at once; nothing is asked about ended units that wrote none."""
        silent = self._without_output(pieces)
        chunks = {each: LogChunk(content=b"", next_offset=each.offset, end=True) for each in silent}
        pieces = [each for each in pieces if each not in silent]
        for piece, answer in zip(pieces, self._calls.ask([_log_command(each) for each in pieces]), strict=True):
            if answer is not None and "absent" in answer:
                chunks[piece] = LogChunk(content=b"", next_offset=piece.offset, end=True)
            elif answer is not None and "content" in answer:
                content, after, end = answer["content"], answer["next_offset"], answer["end"]
                chunks[piece] = LogChunk(content=content, next_offset=after, end=end)
        return chunks

    def _without_output(self, pieces: Sequence[LogPiece]) -> frozenset[LogPiece]:
        """Return the pieces of streams of which machines have reported that they are empty and will be."""
        reports = {name: self._reports[name] for name in {each.instance_id for each in pieces} if name in self._reports}
        wrote = {
            (name, unit.id): unit.wrote
            for name, report in reports.items()
            for unit in report.units
            if unit.exit is not None and unit.wrote is not None
        }
        return frozenset(
            each for each in pieces if each.stream not in wrote.get((each.instance_id, each.unit), (each.stream,))
        )

    def read_outputs(self, unit: UnitId, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Read a part of a unit's outputs, for as long as that takes."""
        return self._read_archive({"op": "outputs", "unit": unit}, instance_id, offset, limit)

    def read_checkpoint(
        self, unit: UnitId, instance_id: InstanceId, number: int, offset: int, limit: int
    ) -> OutputsPiece:
        """Read a part of what a unit keeps for its next attempt, for as long as that takes."""
        return self._read_archive({"op": "checkpoint", "unit": unit, "number": number}, instance_id, offset, limit)

    def read_listing(self, unit: UnitId, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Read a part of the list of a unit's files that are to go to buckets, for as long as that takes."""
        return self._read_archive({"op": "listing", "unit": unit}, instance_id, offset, limit)

    def send_outputs(self, unit: UnitId, instance_id: InstanceId, listed: str) -> UploadState:
        """Have a unit's machine send what a list names, or ask how that goes. Raises WorkerUnreachable, OSError."""
        name = _archive_name(Path(listed))
        command = Command((), instance_id, {"op": "upload", "unit": unit, "list": name})
        (answer,) = self._calls.ask_at_leisure([command])
        if answer.get("need") == name:
            sent = self._calls.upload(instance_id, name, Path(listed))
            if "taken" not in sent:
                raise WorkerUnreachable(f"{instance_id}: {_words(sent)}")
            (answer,) = self._calls.ask_at_leisure([command])
        if "absent" in answer or "refused" in answer:
            return UploadState(sent=0, problem="its machine no longer has it")
        if "problem" not in answer:
            raise WorkerUnreachable(f"{instance_id}: {_words(answer)}")
        try:
            sent_files = None if answer["sent"] is None else int(answer["sent"])
        except (ValueError, TypeError):
            return UploadState(sent=0, problem="its machine sent something that makes no sense")
        return UploadState(sent=sent_files, problem=printable_note(str(answer["problem"])))

    def _read_archive(self, request: Answer, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Read a part of an archive, which comes while it is read."""
        command = Command((), instance_id, {**request, "offset": offset, "limit": limit, "streams": True})
        try:
            answer, frames = self._wire.read(command, self._call_timeout_s)
        except EngineAway as away:
            raise WorkerUnreachable(str(away)) from away
        return _outputs_piece(instance_id, answer, frames, limit)

    def facts(self) -> Mapping[str, str]:
        """Say where the engine is, whether it answers, and with what it was built."""
        from importlib.metadata import version

        view = self._view
        if view is None or time.monotonic() - self._viewed_at > FACTS_KEPT_S:
            view = self.observe()
        state = (
            f"answers, {len(view.workers)} workers, {len(view.silent)} silent" if view.reachable else "does not answer"
        )
        facts = {
            "engine": f"gRPC {version('grpcio')}",
            "gateway": str(self._socket),
            "state": state,
        }
        return facts if view.reachable else facts | {"last error": self._last_error}

    # -------------------------------------------------------------------------------------------------------- writing
    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        """Start units on their instances, all instances at once."""
        answers = self._calls.ask([_start_command(self._of_a_gang(unit)) for unit in units])
        return {unit.id: _start_result(unit, answer) for unit, answer in zip(units, answers, strict=True)}

    def execute(self, unit: UnitId, instance_id: InstanceId, command: Sequence[str], timeout_s: float) -> CommandResult:
        """Run a command inside a running unit, for as long as that takes."""
        request = {"op": "exec", "unit": unit, "command": list(command), "timeout_s": timeout_s}
        (answer,) = self._calls.ask_at_leisure([Command((), instance_id, request)], timeout_s + CALL_TIMEOUT_S)
        if "absent" in answer or "refused" in answer:
            raise UnitRefused(str(answer.get("refused") or f"{instance_id} knows no unit {unit}"))
        if "content" not in answer:
            raise WorkerUnreachable(f"{instance_id}: {_words(answer)}")
        return command_result_from_wire(answer)

    def _of_a_gang(self, unit: UnitSpec) -> UnitSpec:
        """Return a unit with what its ranks need to meet, if a framework runs it. No disk ever has the key."""
        if unit.framework is None:
            return unit
        attempt = gang_of(unit.id)
        meeting = {"HCLOUD_GANG_PEM": gang_pem(self._launch_key, attempt), "HCLOUD_GANG_PORT": str(gang_port(attempt))}
        addresses = unit.addresses
        if unit.network == "none" and not is_one_host(addresses):
            meeting[TUNNEL] = gang_tunnel(self._launch_key, attempt, unit.rank, addresses)
            addresses = tunnel_addresses(len(addresses))
        return replace(unit, env={**unit.env, **meeting, "HCLOUD_GANG_ADDRESSES": ",".join(addresses)})

    def stop(
        self,
        units: Mapping[UnitId, InstanceId],
        *,
        cause: FailureCause | None,
        tasks: Mapping[UnitId, tuple[Interval, ...]] | None = None,
    ) -> frozenset[UnitId]:
        """Ask units to end."""
        commands = []
        for unit, instance_id in units.items():
            request: Answer = {"op": "stop", "unit": unit, "cause": cause.value if cause else None}
            if tasks is not None and unit in tasks:
                request["tasks"] = tasks[unit]
            commands.append(Command(("stop", unit, request.get("tasks")), instance_id, request))
        answers = zip(units, self._calls.ask(commands), strict=True)
        return frozenset(unit for unit, answer in answers if answer is not None and "asked" in answer)

    def resize(
        self,
        units: Mapping[UnitId, tuple[InstanceId, Resources]],
        *,
        cpus: Mapping[UnitId, tuple[int, ...]] | None = None,
        epoch: int = 0,
    ) -> Mapping[UnitId, ResizeResult]:
        """Bound running units anew."""
        commands = []
        for unit, (instance_id, wanted) in units.items():
            bounds: Answer = {"vcpus": wanted.vcpus, "memory_mib": wanted.memory_mib, "epoch": epoch}
            if cpus is not None and unit in cpus:
                bounds["cpus"] = cpus[unit]
            key = ("resize", unit, *bounds.values())
            commands.append(Command(key, instance_id, {"op": "resize", "unit": unit, **bounds}, is_news=True))
        answers = zip(units, self._calls.ask(commands), strict=True)
        return {unit: _resize_result(answer) for unit, answer in answers}

    def pause(self, units: Mapping[UnitId, tuple[InstanceId, bool]], *, epoch: int = 0) -> Mapping[UnitId, PauseResult]:
        """Pause running units, or let them run again."""
        commands = []
        for unit, (instance_id, paused) in units.items():
            request: Answer = {"op": "pause", "unit": unit, "paused": paused, "epoch": epoch}
            commands.append(Command(("pause", unit, paused, epoch), instance_id, request, is_news=True))
        answers = zip(units, self._calls.ask(commands), strict=True)
        return {unit: _pause_result(answer) for unit, answer in answers}

    def renew(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Send machines their new expiry, which renews their lease."""
        commands = [
            Command(("renew", *each), each[0], {"op": "renew", "expires_at": each[1]}) for each in expiries.items()
        ]
        answers = zip(expiries, self._calls.ask(commands), strict=True)
        return frozenset(name for name, answer in answers if answer is not None and "renewed" in answer)

    def forget(self, units: Mapping[UnitId, InstanceId]) -> None:
        """Delete the directories of ended units, soon. Best effort."""
        with self._lock:
            self._forgetting.update(units)
        self._forget_due()

    def _forget_due(self) -> None:
        with self._lock:
            if not self._forgetting or time.monotonic() < self._forgot_at + FORGET_EVERY_S:
                return
            units, self._forgetting, self._forgot_at = self._forgetting, {}, time.monotonic()
        by_instance: dict[InstanceId, list[UnitId]] = {}
        for unit, instance_id in units.items():
            by_instance.setdefault(instance_id, []).append(unit)
        self._calls.send(
            [Command(("forget", name, *ids), name, {"op": "forget", "units": ids}) for name, ids in by_instance.items()]
        )

    def close(self) -> None:
        """Let go of the connection; running units go on."""
        self._wire.close()


def _report_of(document: bytes) -> Answer:
    plain = json.loads(document)
    return {"units": plain["units"], **plain["machine"]}


def _outputs_piece(instance_id: InstanceId, answer: Answer, frames: Iterator[bytes], limit: int) -> OutputsPiece:
    """Return an answer as a piece. Raises WorkerUnreachable if it is none."""
    if "absent" in answer:
        return OutputsPiece(content=(), manifest=OutputsManifest())
    if "refused" in answer:  # an agent of before
        return OutputsPiece(content=(), manifest=OutputsManifest(note=_words(answer)))
    if "manifest" not in answer:
        raise WorkerUnreachable(f"{instance_id}: {_words(answer)}")
    try:
        manifest, announced = outputs_manifest_from_wire(answer), int(answer.get("bytes", -1))
    except (ValueError, KeyError, TypeError, OverflowError):  # that machine is not what it was
        manifest = OutputsManifest(note="its machine sent something that is no outputs")
        return OutputsPiece(content=(), manifest=manifest)
    return OutputsPiece(content=_as_announced(instance_id, frames, announced, limit), manifest=manifest)


def _as_announced(instance_id: InstanceId, frames: Iterator[bytes], announced: int, limit: int) -> Iterator[bytes]:
    """Yield content of ``announced`` bytes; -1: in one message, of an agent of before. Raises WorkerUnreachable."""
    came = 0
    for frame in frames:
        came += len(frame)
        if came > limit or came > announced >= 0:
            raise WorkerUnreachable(f"{instance_id} sends more than it was asked for")
        yield frame
    if came < announced:
        raise WorkerUnreachable(f"{instance_id} sent {came} of {announced} bytes")


def _log_command(piece: LogPiece) -> Command:
    request = {"op": "logs", "unit": piece.unit, "stream": piece.stream, "offset": piece.offset, "limit": piece.limit}
    return Command(("logs", piece), piece.instance_id, request, is_news=True)


def _start_command(unit: UnitSpec) -> Command:
    """What the worker is asked: to start the unit, or never to, where what it needs cannot be sent."""
    request: Answer = {"op": "start", "spec": unit_to_wire(unit), "archive": None}
    archives = dict[str, Path]()
    command = Command(("start", unit.id), unit.instance_id, request, True, archives, is_news=True)
    if unit.refusal:
        return refused(command, unit.refusal, unit.refusal_cause.value)
    for kind, path in (("archive", unit.workdir), ("inputs", unit.inputs), ("restore", unit.restore)):
        if path is None:
            continue
        try:
            request[kind] = _archive_name(Path(path))
        except OSError as error:
            return refused(command, unreadable(Path(path), error))
        archives[request[kind]] = Path(path)
    return command


def _start_result(unit: UnitSpec, answer: Answer | None) -> StartResult:
    if answer is None:
        return StartResult(outcome="pending", detail="its worker has not answered yet")
    if "started" in answer:
        return StartResult(outcome="started")
    if "refused" in answer:
        cause = unit.refusal_cause if answer["refused"] == unit.refusal else FailureCause.START_REFUSED
        return StartResult(outcome="refused", detail=answer["refused"], cause=cause)
    return StartResult(outcome="not_sent" if answer.get(NOT_SENT) else "unknown", detail=_words(answer))


def _resize_result(answer: Answer | None) -> ResizeResult:
    if answer is None:
        return ResizeResult(outcome="unknown", detail="its worker has not answered yet")
    if "resized" in answer:
        return ResizeResult(outcome="resized")
    if "refused" in answer:
        return ResizeResult(outcome="refused", detail=answer["refused"])
    return ResizeResult(outcome="unknown", detail=_words(answer))


def _pause_result(answer: Answer | None) -> PauseResult:
    if answer is None:
        return PauseResult(outcome="unknown", detail="its worker has not answered yet")
    if "done" in answer:
        return PauseResult(outcome="done")
    outcome: Literal["refused", "unknown"] = "refused" if "refused" in answer else "unknown"
    return PauseResult(outcome=outcome, detail=_words(answer))


def _words(answer: Answer) -> str:
    return str(answer.get("unknown") or answer.get("refused") or f"an answer that makes no sense: {answer}")


def _archive_name(path: Path) -> str:
    """Return the name under which workers keep an archive: each gets a content only once. Raises OSError."""
    status = path.stat()
    return _name_of_content(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=KEPT_NAMES)
def _name_of_content(path: str, size: int, mtime_ns: int) -> str:
    """Read an archive once as long as it stays as it is: ``size`` and ``mtime_ns`` show whether it does."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while content := file.read(CHUNK_BYTES):
            digest.update(content)
    return f"{digest.hexdigest()}.tar.gz"


_LOST = (grpc.RpcError, grpc.FutureCancelledError, ValueError)
"""What calls raise if the gateway does not answer, or the connection was closed meanwhile."""


class _Reply:
    """A reply of the gateway that is on its way, or why there is none."""

    def __init__(self, future: Any, away: Callable[[Exception], EngineAway]) -> None:
        self._future, self._away = future, away

    def result(self, timeout_s: float) -> Any:
        """Return the reply. Raises TimeoutError while it is not there, EngineAway if it will not come."""
        if isinstance(self._future, EngineAway):
            raise self._future
        try:
            return self._future.result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise TimeoutError from error
        except _LOST as error:
            raise self._away(error) from error

    @property
    def has_ended(self) -> bool:
        """Whether ``result`` returns or raises at once."""
        return isinstance(self._future, EngineAway) or self._future.done()

    def on_end(self, do: Callable[[], object]) -> None:
        """Call ``do`` once there is a result."""
        if isinstance(self._future, EngineAway):
            do()
        else:
            self._future.add_done_callback(lambda _: do())


class _Wire:
    """The connection to the gateway, made at the first call."""

    def __init__(self, socket: Path, sign_of_life_s: float) -> None:
        self._socket, self._sign_of_life_s = socket, sign_of_life_s
        self._lock = threading.Lock()
        self._channel: Any = None
        self._closed = False

    def observe(self, epoch: str, since: int) -> _Reply:
        """Ask which agents are connected and which are silent, and for the reports that changed."""
        return self._ask(OBSERVE, pb.ObserveRequest(epoch=epoch, since=since), pb.ObserveReply, OBSERVE_TIMEOUT_S)

    def admit(self, lead_s: float, machines: Any) -> _Reply:
        """Say that this daemon leads, and which machines there are unless None; ask whether the gateway needs them."""
        request = pb.AdmitRequest(lead_s=lead_s, machines=machines)
        return self._ask(ADMIT, request, pb.AdmitReply, OBSERVE_TIMEOUT_S)

    def archives(self) -> _Reply:
        """Ask for the SHA-256 of the agent's archives by name."""
        return self._ask(ARCHIVES, pb.ArchivesRequest(), pb.ArchivesReply, OBSERVE_TIMEOUT_S)

    def await_urgent(self, epoch: str, since: int, timeout_s: float) -> _Reply:
        """Ask for the epoch and the last urgent change, once there is one after ``since``."""
        request = pb.AwaitRequest(epoch=epoch, since=since, timeout_s=timeout_s)
        return self._ask(AWAIT, request, pb.AwaitReply, timeout_s + SLACK_S)

    def _ask(self, path: str, request: Any, reply: Any, timeout_s: float) -> _Reply:
        try:
            method = self._connected().unary_unary(path, type(request).SerializeToString, reply.FromString)
            return _Reply(method.future(request, timeout=timeout_s), self._away)
        except _LOST as error:
            return _Reply(self._away(error), self._away)
        except EngineAway as away:
            return _Reply(away, self._away)

    def groups(self, commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
        """Yield groups of commands, none larger than the gateway takes: many units may start at once."""
        group, held_bytes = list[Command](), 0
        for command in commands:
            size_bytes = _body(command).ByteSize()
            if group and held_bytes + size_bytes > REQUEST_BYTES_MAX:
                yield group
                group, held_bytes = [], 0
            group.append(command)
            held_bytes += size_bytes
        yield group

    def call(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Sequence[Numbered]]:
        """Send commands; yield their answers as they come. Raises EngineAway."""
        by_instance: dict[InstanceId, list[Any]] = {}
        for number, command in enumerate(commands):
            by_instance.setdefault(command.instance_id, []).append(_body(command, number))
        agents = [pb.AgentRequests(instance_id=name, requests=bodies) for name, bodies in by_instance.items()]
        request = pb.CallRequest(timeout_s=timeout_s, sign_of_life_s=self._sign_of_life_s, agents=agents)
        ask = self._connected().unary_stream(CALL, pb.CallRequest.SerializeToString, pb.CallReply.FromString)
        try:
            for reply in ask(request, timeout=timeout_s + self._sign_of_life_s + SLACK_S):
                yield [(body.number, _answer_of(body)) for agent in reply.agents for body in agent.answers]
        except _LOST as error:
            raise self._away(error) from error

    def read(self, command: Command, timeout_s: float) -> tuple[Answer, Iterator[bytes]]:
        """Send a command that is answered with content; return the answer, and the content as it comes.

        ``timeout_s``: for the answer, and for each part. Raises EngineAway, and WorkerUnreachable in the iterator.
        """
        agent = pb.AgentRequests(instance_id=command.instance_id, requests=[_body(command)])
        request = pb.CallRequest(timeout_s=timeout_s, sign_of_life_s=self._sign_of_life_s, agents=[agent])
        within_s = timeout_s + self._sign_of_life_s + SLACK_S
        frames = ask(content_socket(self._socket), request.SerializeToString(), within_s)
        try:
            document = next(frames)
        except OSError as error:
            raise self._away(error) from error
        return _answer_of(pb.Body(document=document)), self._rest(frames)

    def _rest(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from frames
        except OSError as error:
            raise WorkerUnreachable(str(self._away(error))) from error

    def _away(self, error: Exception) -> EngineAway:
        words = error.details() if isinstance(error, grpc.Call) else str(error)
        return EngineAway(f"the gateway at {self._socket} does not answer: {words}")

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise EngineAway("this runner is closed")
            if self._channel is None:
                self._channel = grpc.insecure_channel(f"unix:{self._socket}", daemon_options())
            return self._channel

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()


def _body(command: Command, number: int = 0) -> Any:
    plain = {name: value for name, value in command.request.items() if name != "content"}
    return pb.Body(
        document=json.dumps(plain).encode(),
        content=command.request.get("content"),
        number=number,
        needs_sign_of_life=command.needs_sign_of_life,
    )


def _answer_of(body: Any) -> Answer:
    """Return an agent's answer; one that is no JSON object says nothing. ``not_sent`` comes from the gateway alone."""
    try:
        answer = json.loads(body.document)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return {"unknown": "the worker's answer makes no sense"}
    return answer | {NOT_SENT: body.not_sent} | ({"content": body.content} if body.HasField("content") else {})
