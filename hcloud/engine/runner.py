"""The daemon's side of the engine: a Runner that asks the gateway, over one Unix socket for everything."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc

from hcloud.core.clock import Clock
from hcloud.core.errors import NotFound, WorkerUnreachable
from hcloud.core.model import FailureCause, InstanceId, Resources, UnitId
from hcloud.engine import gateway_pb2 as pb
from hcloud.engine.channel import ADMIT, ARCHIVES, AWAIT, CALL, OBSERVE, daemon_options
from hcloud.engine.tls import enrolment_secret
from hcloud.engine.wire import report_from_wire, unit_to_wire
from hcloud.provider import (
    AdmittedMachine,
    LogChunk,
    ResizeResult,
    RunnerView,
    StartResult,
    Stream,
    UnitSpec,
    WorkerReport,
)

_log = logging.getLogger("hcloud")
Answer = dict[str, Any]
OBSERVE_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
SLACK_S = 3.0
LEAD_S = 3.0
"""So long after its last cycle a daemon still counts as leading, so that its agents stay."""
CHUNK_BYTES = 1 << 20
REQUEST_BYTES_MAX = 4 << 20
REMEMBER_S = 3600.0
AGENTS_KEPT_S = 60.0
"""New archives of the agent are noticed within this time."""
KEPT_NAMES = 1000
"""Of so many uploaded archives it is remembered by which name workers keep them."""


class GatewayRunner:
    """Runner on a gateway that listens on the Unix socket ``socket``. Safe in several threads.

    ``launch_key``: the secret of which machines' enrolment secrets are made. ``settings``: ``call_timeout_s`` is how
    long one worker may take to answer before its outcome is ``unknown``; ``lead_s``, how long after its last cycle this
    daemon still counts as leading.
    """

    def __init__(
        self, socket: Path, launch_key: bytes, clock: Clock, settings: Mapping[str, object] | None = None
    ) -> None:
        settings = settings or {}
        self._socket, self._launch_key, self._clock = socket, launch_key, clock
        self._call_timeout_s = float(str(settings.get("call_timeout_s", CALL_TIMEOUT_S)))
        self._lead_s = float(str(settings.get("lead_s", LEAD_S)))
        self._wire = _Wire(socket)
        self._admitted: Sequence[AdmittedMachine] | None = None
        self._lock = threading.Lock()
        self._epoch, self._until = "", 0
        self._news = ("", 0)
        self._reports: dict[InstanceId, WorkerReport] = {}
        self._heard: dict[InstanceId, float] = {}
        self._illegible: set[InstanceId] = set()
        self._uploads = itertools.count(int(time.monotonic() * 1e6))
        self._last_error = ""
        self._refused: Mapping[str, int] = {}
        self._agents: Mapping[str, str] = {}
        self._agents_until = -1.0

    # ------------------------------------------------------------------------------------------------------- admission
    def admit(self, machines: Sequence[AdmittedMachine]) -> None:
        """Let the workers of these instances connect, and no others; the list is sent where it is not known."""
        with self._lock:
            try:
                if machines == self._admitted and not self._wire.admit(self._lead_s, None):
                    return
                self._wire.admit(self._lead_s, self._listed(machines))
                self._admitted = machines
            except EngineAway:  # which ``observe`` reports
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

    def agents(self) -> Mapping[str, str]:
        """Return the SHA-256 of the agent's archives that the gateway serves, by architecture and Python.

        None are known while the gateway does not answer.
        """
        now = time.monotonic()
        if now >= self._agents_until:
            try:
                self._agents, self._agents_until = self._wire.archives(), now + AGENTS_KEPT_S
            except EngineAway as away:
                _log.warning("the agent's archives are not known: %s", away)
        return self._agents

    # -------------------------------------------------------------------------------------------------------- reading
    def observe(self) -> RunnerView:
        """Return every worker's report; one call to the gateway, whatever the number of workers."""
        with self._lock:
            try:
                answer = self._wire.observe(self._epoch, self._until)
            except EngineAway as away:
                self._last_error = str(away)
                return RunnerView(workers=(), reachable=False)
            return self._take(answer)

    def _take(self, answer: Answer) -> RunnerView:
        now = time.monotonic()
        if answer["epoch"] != self._epoch:
            self._reports.clear()
        self._epoch, illegible = answer["epoch"], self._read(answer["reports"])
        if not illegible:  # else they are told again
            self._until = answer["until"]
        connected, silent, self._refused = set(answer["connected"]), set(answer["silent"]), answer["refused"]
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
        """Wait until a unit began or ended, a worker came or went, or an instance is to be preempted, since the call
        before; False after ``timeout_s``. Raises WorkerUnreachable if the gateway does not answer."""
        try:
            epoch, until = self._wire.await_urgent(*self._news, timeout_s)
        except EngineAway as away:
            raise WorkerUnreachable(str(away)) from away
        has_news, self._news = (epoch, until) != self._news, (epoch, until)
        return has_news

    def logs(self, unit: UnitId, instance_id: InstanceId, stream: Stream, offset: int, limit: int) -> LogChunk:
        """Read output from byte ``offset``."""
        request = {"op": "logs", "unit": unit, "stream": stream, "offset": offset, "limit": limit}
        answer = self._call_one(instance_id, request)
        if "absent" in answer:
            raise NotFound(f"{instance_id} knows no unit {unit}; it never started there, or its files are deleted")
        if "content" not in answer:
            raise WorkerUnreachable(f"{instance_id}: {_words(answer)}")
        return LogChunk(content=answer["content"], next_offset=answer["next_offset"], end=answer["end"])

    def facts(self) -> Mapping[str, str]:
        """Say where the engine is, whether it answers, and with what it was built."""
        from importlib.metadata import version

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
        results: dict[UnitId, StartResult] = {}
        calls: dict[InstanceId, list[Answer]] = {}
        for unit in units:
            calls.setdefault(unit.instance_id, []).append(_start_request(unit))
        answers = self._call(calls)
        self._upload_and_repeat(calls, answers, {unit.id: unit for unit in units})
        for instance_id, requests in calls.items():
            for request, answer in zip(requests, answers[instance_id], strict=True):
                results[request["spec"]["id"]] = _start_result(answer)
        return results

    def _upload_and_repeat(
        self,
        calls: Mapping[InstanceId, list[Answer]],
        answers: dict[InstanceId, list[Answer]],
        units: Mapping[UnitId, UnitSpec],
    ) -> None:
        """Send archives that workers do not have yet, then repeat those starts."""
        for instance_id, requests in calls.items():
            for index, request in enumerate(requests):
                if "need" not in answers[instance_id][index]:
                    continue
                path = units[request["spec"]["id"]].workdir
                sent = self._upload(instance_id, str(path), request["archive"])
                if "taken" in sent:
                    sent = self._answer_one(instance_id, request)
                elif "refused" in sent:
                    sent = self._answer_one(instance_id, _refuse_request(request["spec"], sent["refused"]))
                answers[instance_id][index] = sent

    def _upload(self, instance_id: InstanceId, path: str, name: str) -> Answer:
        upload, offset = next(self._uploads), 0
        try:
            with open(path, "rb") as file:
                content = file.read(CHUNK_BYTES)
                while True:
                    following = file.read(CHUNK_BYTES)
                    request = {"op": "put", "name": name, "upload": upload, "offset": offset, "content": content}
                    answer = self._answer_one(instance_id, {**request, "last": not following})
                    if "taken" not in answer or not following:
                        return answer
                    content, offset = following, offset + len(content)
        except OSError as error:
            return {"refused": _unreadable(path, error)}

    def stop(self, units: Mapping[UnitId, InstanceId], *, cause: FailureCause | None) -> frozenset[UnitId]:
        """Ask units to end."""
        calls: dict[InstanceId, list[Answer]] = {}
        for unit, instance_id in units.items():
            request = {"op": "stop", "unit": unit, "cause": cause.value if cause else None}
            calls.setdefault(instance_id, []).append(request)
        answers = self._call(calls)
        return frozenset(
            request["unit"]
            for instance_id, requests in calls.items()
            for request, answer in zip(requests, answers[instance_id], strict=True)
            if "asked" in answer
        )

    def resize(
        self, units: Mapping[UnitId, tuple[InstanceId, Resources]], *, epoch: int = 0
    ) -> Mapping[UnitId, ResizeResult]:
        """Bound running units anew."""
        calls: dict[InstanceId, list[Answer]] = {}
        for unit, (instance_id, wanted) in units.items():
            bounds = {"vcpus": wanted.vcpus, "memory_mib": wanted.memory_mib, "epoch": epoch}
            calls.setdefault(instance_id, []).append({"op": "resize", "unit": unit, **bounds})
        answers = self._call(calls)
        return {
            request["unit"]: _resize_result(answer)
            for instance_id, requests in calls.items()
            for request, answer in zip(requests, answers[instance_id], strict=True)
        }

    def renew(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Send machines their new expiry, which renews their lease."""
        answers = self._call({name: [{"op": "renew", "expires_at": at}] for name, at in expiries.items()})
        return frozenset(name for name, (answer,) in answers.items() if "renewed" in answer)

    def forget(self, units: Mapping[UnitId, InstanceId]) -> None:
        """Delete the directories of ended units. Best effort."""
        by_instance: dict[InstanceId, list[UnitId]] = {}
        for unit, instance_id in units.items():
            by_instance.setdefault(instance_id, []).append(unit)
        self._call({name: [{"op": "forget", "units": ids}] for name, ids in by_instance.items()})

    def close(self) -> None:
        """Let go of the connection; running units go on."""
        self._wire.close()

    # -------------------------------------------------------------------------------------------------------- calling
    def _call_one(self, instance_id: InstanceId, request: Answer) -> Answer:
        return self._answer_one(instance_id, request)

    def _answer_one(self, instance_id: InstanceId, request: Answer) -> Answer:
        return self._call({instance_id: [request]})[instance_id][0]

    def _call(self, calls: Mapping[InstanceId, list[Answer]]) -> dict[InstanceId, list[Answer]]:
        """Return each worker's answers; ``{"unknown": why}`` for those that did not come."""
        if not calls:
            return {}
        timeout_s = self._call_timeout_s
        try:
            answers = self._wire.call(calls, timeout_s)
        except EngineAway as away:
            self._last_error = str(away)
            return {name: [{"unknown": str(away)} for _ in requests] for name, requests in calls.items()}
        return {name: _complete(answers.get(name, []), len(requests)) for name, requests in calls.items()}


def _complete(answers: list[Answer], count: int) -> list[Answer]:
    return [*answers, *({"unknown": "the engine gave no answer"} for _ in range(count - len(answers)))][:count]


def _report_of(document: bytes) -> Answer:
    plain = json.loads(document)
    return {"units": plain["units"], **plain["machine"]}


def _start_request(unit: UnitSpec) -> Answer:
    """What the worker is asked: to start the unit, or never to, where what it needs cannot be sent."""
    plain = unit_to_wire(unit)
    try:
        name = _archive_name(unit.workdir) if unit.workdir is not None else None
    except OSError as error:
        return _refuse_request(plain, _unreadable(str(unit.workdir), error))
    return {"op": "start", "spec": plain, "archive": name}


def _refuse_request(spec: Answer, why: str) -> Answer:
    return {"op": "refuse", "spec": spec, "why": why}


def _unreadable(path: str, error: OSError) -> str:
    return f"the uploaded work directory {path} cannot be read: {error.strerror}"


def _start_result(answer: Answer) -> StartResult:
    if "started" in answer:
        return StartResult(outcome="started")
    if "refused" in answer:
        return StartResult(outcome="refused", detail=answer["refused"])
    return StartResult(outcome="unknown", detail=_words(answer))


def _resize_result(answer: Answer) -> ResizeResult:
    if "resized" in answer:
        return ResizeResult(outcome="resized")
    if "refused" in answer:
        return ResizeResult(outcome="refused", detail=answer["refused"])
    return ResizeResult(outcome="unknown", detail=_words(answer))


def _words(answer: Answer) -> str:
    return str(answer.get("unknown") or answer.get("refused") or f"an answer that makes no sense: {answer}")


def _archive_name(path: str) -> str:
    """Return the name under which workers keep an archive: each gets a content only once. Raises OSError."""
    status = Path(path).stat()
    return _name_of_content(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=KEPT_NAMES)
def _name_of_content(path: str, size: int, mtime_ns: int) -> str:
    """Read an archive once as long as it stays as it is: ``size`` and ``mtime_ns`` show whether it does."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while content := file.read(CHUNK_BYTES):
            digest.update(content)
    return f"{digest.hexdigest()}.tar.gz"


class EngineAway(Exception):
    """The gateway did not answer; what was asked may or may not have been done."""


_LOST = (grpc.RpcError, ValueError)
"""What calls raise if the gateway does not answer, or the connection was closed meanwhile."""


class _Wire:
    """The connection to the gateway, made at the first call."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._channel: Any = None
        self._closed = False

    def observe(self, epoch: str, since: int) -> Answer:
        """Return which agents are connected and which are silent, and the reports that changed. Raises EngineAway."""
        request = pb.ObserveRequest(epoch=epoch, since=since)
        try:
            reply = self._method(OBSERVE, pb.ObserveRequest, pb.ObserveReply)(request, timeout=OBSERVE_TIMEOUT_S)
        except _LOST as error:
            raise self._away(error) from error
        return {
            "epoch": reply.epoch,
            "until": reply.until,
            "connected": list(reply.connected),
            "silent": list(reply.silent),
            "reports": dict(reply.reports),
            "refused": dict(reply.refused),
        }

    def admit(self, lead_s: float, machines: Any) -> bool:
        """Say that this daemon leads, and which machines there are unless None; return whether the gateway needs them.

        Raises EngineAway.
        """
        request = pb.AdmitRequest(lead_s=lead_s, machines=machines)
        try:
            reply = self._method(ADMIT, pb.AdmitRequest, pb.AdmitReply)(request, timeout=OBSERVE_TIMEOUT_S)
        except _LOST as error:
            raise self._away(error) from error
        return bool(reply.needs_machines)

    def archives(self) -> dict[str, str]:
        """Return the SHA-256 of the agent's archives by name. Raises EngineAway."""
        try:
            asks = self._method(ARCHIVES, pb.ArchivesRequest, pb.ArchivesReply)
            return dict(asks(pb.ArchivesRequest(), timeout=OBSERVE_TIMEOUT_S).sha256)
        except _LOST as error:
            raise self._away(error) from error

    def await_urgent(self, epoch: str, since: int, timeout_s: float) -> tuple[str, int]:
        """Return the epoch and the last urgent change, once there is one after ``since``. Raises EngineAway."""
        request = pb.AwaitRequest(epoch=epoch, since=since, timeout_s=timeout_s)
        try:
            reply = self._method(AWAIT, pb.AwaitRequest, pb.AwaitReply)(request, timeout=timeout_s + SLACK_S)
        except _LOST as error:
            raise self._away(error) from error
        return reply.epoch, reply.until

    def call(self, calls: Mapping[InstanceId, Sequence[Answer]], timeout_s: float) -> dict[InstanceId, list[Answer]]:
        """Return each agent's answers to its requests, as far as they came in time. Raises EngineAway."""
        asks = self._method(CALL, pb.CallRequest, pb.CallReply)
        try:
            pending = [asks.future(each, timeout=timeout_s + SLACK_S) for each in _call_requests(calls, timeout_s)]
            replies = [each.result() for each in pending]
        except _LOST as error:
            raise self._away(error) from error
        answers: dict[InstanceId, list[Answer]] = {}
        for each in (agent for reply in replies for agent in reply.agents):
            answers.setdefault(each.instance_id, []).extend(_answer_of(body) for body in each.answers)
        return answers

    def _method(self, path: str, request: Any, reply: Any) -> Any:
        return self._connected().unary_unary(path, request.SerializeToString, reply.FromString)

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


def _call_requests(calls: Mapping[InstanceId, Sequence[Answer]], timeout_s: float) -> Iterator[Any]:
    """Yield the requests to send, in order, none larger than the gateway takes: many units may start at once."""
    request, held_bytes = pb.CallRequest(timeout_s=timeout_s), 0
    for name, requests in calls.items():
        for body in map(_body, requests):
            if held_bytes and held_bytes + body.ByteSize() > REQUEST_BYTES_MAX:
                yield request
                request, held_bytes = pb.CallRequest(timeout_s=timeout_s), 0
            if not request.agents or request.agents[-1].instance_id != name:
                request.agents.add(instance_id=name)
            request.agents[-1].requests.append(body)
            held_bytes += body.ByteSize()
    yield request


def _body(request: Mapping[str, Any]) -> Any:
    plain = {name: value for name, value in request.items() if name != "content"}
    return pb.Body(document=json.dumps(plain).encode(), content=request.get("content"))


def _answer_of(body: Any) -> Answer:
    """Return an agent's answer; one that is no JSON object says nothing."""
    try:
        answer = json.loads(body.document)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return {"unknown": "the worker's answer makes no sense"}
    return answer | {"content": body.content} if body.HasField("content") else answer
