"""The daemon's side of the engine: a Runner that asks the switchboard, one connection for everything.

Dask is imported at the first call, in the background thread that owns the connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from hcloud.core.clock import Clock
from hcloud.core.errors import ConfigError, NotFound, WorkerUnreachable, error_text
from hcloud.core.model import FailureCause, InstanceId, Resources, UnitId
from hcloud.engine.tls import context_files
from hcloud.engine.wire import report_from_wire, unit_to_wire
from hcloud.provider import LogChunk, ResizeResult, RunnerView, StartResult, Stream, UnitSpec, WorkerReport

_log = logging.getLogger("hcloud")
T = TypeVar("T")
Answer = dict[str, Any]
OBSERVE_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 2.0
SLACK_S = 3.0
CHUNK_BYTES = 1 << 20
REMEMBER_S = 3600.0
KEPT_NAMES = 1000
"""Of so many uploaded archives it is remembered by which name workers keep them."""


class DaskRunner:
    """Runner on a Dask scheduler at ``address`` (``host:port``, with or without ``tls://``). Safe in several threads.

    ``settings``: ``call_timeout_s`` is how long one worker may take to answer before its outcome is ``unknown``.
    """

    def __init__(
        self, address: str, tls_dir: Path | str, clock: Clock, settings: Mapping[str, object] | None = None
    ) -> None:
        self._address = address if "://" in address else f"tls://{address}"
        self._tls_dir, self._clock = Path(tls_dir), clock
        self._call_timeout_s = float(str((settings or {}).get("call_timeout_s", CALL_TIMEOUT_S)))
        self._wire = _Wire(self._address, self._tls_dir)
        self._lock = threading.Lock()
        self._epoch, self._until = "", 0
        self._reports: dict[InstanceId, WorkerReport] = {}
        self._heard: dict[InstanceId, float] = {}
        self._illegible: set[InstanceId] = set()
        self._uploads = itertools.count(int(time.monotonic() * 1e6))
        self._last_error = ""

    # -------------------------------------------------------------------------------------------------------- reading
    def observe(self) -> RunnerView:
        """Return every worker's report; one call to the scheduler, whatever the number of workers."""
        with self._lock:
            try:
                answer = self._wire.ask("hcloud_observe", OBSERVE_TIMEOUT_S, epoch=self._epoch, since=self._until)
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
        connected, silent = set(answer["connected"]), set(answer["silent"])
        silent |= illegible & connected - self._reports.keys()
        self._heard |= dict.fromkeys(connected | silent, now)
        self._heard = {name: at for name, at in self._heard.items() if now - at < REMEMBER_S}
        # One that was here before and is not now is silent, not unknown: nobody may conclude that it never registered.
        silent |= self._heard.keys() - connected
        self._reports = {name: report for name, report in self._reports.items() if name in connected | silent}
        workers = tuple(self._reports[name] for name in sorted(connected) if name in self._reports)
        return RunnerView(workers=workers, silent=frozenset(silent))

    def _read(self, reports: Mapping[str, Answer]) -> set[InstanceId]:
        """Take reports in; return those that make no sense: of these the previous report stays."""
        illegible = set[InstanceId]()
        for name, plain in reports.items():
            try:
                self._reports[name] = report_from_wire(name, plain)
            except Exception as defect:  # noqa: BLE001 a worker of another version may tell anything; others are heard
                illegible.add(name)
                if name not in self._illegible:
                    _log.exception("the report of the worker on %s makes no sense: %s", name, defect)
        self._illegible = illegible
        return illegible

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
            "engine": f"Dask distributed {version('distributed')}, as transport only",
            "address": self._address,
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
            answer = self._wire.ask("hcloud_call", timeout_s + SLACK_S, calls=dict(calls), timeout_s=timeout_s)
        except EngineAway as away:
            self._last_error = str(away)
            return {name: [{"unknown": str(away)} for _ in requests] for name, requests in calls.items()}
        return {name: list(answers) for name, answers in answer.items()}


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
    """The switchboard did not answer; what was asked may or may not have been done."""


class _Wire:
    """Owns the event loop, its thread and the connections to the switchboard."""

    def __init__(self, address: str, tls_dir: Path) -> None:
        self._address, self._tls_dir = address, tls_dir
        self._start = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: Any = None
        self._closed = False

    def ask(self, operation: str, patience_s: float, **arguments: Any) -> Answer:
        """Ask the switchboard. Raises EngineAway."""
        return self._in_loop(self._ask(operation, patience_s, arguments), patience_s + SLACK_S)

    def _in_loop(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise EngineAway(f"the engine at {self._address} did not answer within {timeout_s:g} s") from error

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._start:
            if self._loop is None:
                if self._closed:
                    raise EngineAway("this runner is closed")
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="hcloud-engine", daemon=True)
                self._thread.start()
            return self._loop

    async def _ask(self, operation: str, timeout_s: float, arguments: Mapping[str, Any]) -> Answer:
        try:
            pool = await self._connected()
            call = getattr(pool(self._address), operation)
            answer: Answer = await asyncio.wait_for(call(**arguments), timeout_s)
            return answer
        except ConfigError as error:
            raise EngineAway(str(error)) from error
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise EngineAway(f"the engine at {self._address} does not answer: {error_text(error)}") from error

    async def _connected(self) -> Any:
        """Return the connection pool, after checking for a listener: Dask would try for long."""
        if self._pool is None:
            self._pool = await self._new_pool()
        if not self._pool.available.get(self._address):
            host, _, port = self._address.partition("://")[2].rpartition(":")
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT_TIMEOUT_S)
            writer.close()
        return self._pool

    async def _new_pool(self) -> Any:
        from distributed import Security
        from distributed.core import ConnectionPool

        from hcloud.engine import quiet

        quiet.reduce_noise()
        security = Security(require_encryption=True, **context_files(self._tls_dir, "client"))
        pool = ConnectionPool(
            limit=16, timeout=CONNECT_TIMEOUT_S, connection_args=security.get_connection_args("client")
        )
        await pool.start()
        return pool

    def close(self) -> None:
        """Close connections and end the thread."""
        with self._start:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = None
        if loop is None or thread is None:
            return
        if self._pool is not None:
            asyncio.run_coroutine_threadsafe(self._pool.close(), loop).result(SLACK_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SLACK_S)
        loop.close()
