"""The worker's link to the engine: a Dask worker that carries messages over the connection it dialled, no more.

It reports all units whenever something about them changes, answers calls of the switchboard (``scheduler``), and passes
orders on to the supervisor that started it. When the scheduler goes, a Dask worker must end: this process then makes a
new one. When the supervisor goes, it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import dask
from distributed import Security, Worker

from hcloud.core.errors import ConfigError
from hcloud.engine import metadata, quiet
from hcloud.engine.bootstrap import Bootstrap, load_bootstrap
from hcloud.engine.changes import DirectoryWatch
from hcloud.engine.output import read_output
from hcloud.engine.tls import context_files
from hcloud.engine.unit import UnitDirectories, read_json
from hcloud.engine.wire import stream_name

REPORT_PAUSE_S = 0.02
POLL_S, HEARTBEAT_S = 1.0, 4.0
# Dask's own chores that tell a page about tasks, or a look for their data, that are not there.
CHORES = ("find-missing", "shift_counters", "monitor", "tick", "ticks")
RETRY_S, RETRY_CAP_S = 0.2, 5.0
SUPERVISOR_TIMEOUT_S = 20.0
CHUNK_MAX = 4 << 20
# What a Dask worker does for Dask's own purposes stays; everything that would run or move code and data goes.
KEPT_HANDLERS = {"identity", "ping", "connection_stream"}
KEPT_STREAM_HANDLERS = {"close", "worker-status-change", "remove-worker"}

Answer = dict[str, Any]
Supervise = Callable[[Mapping[str, Any]], Awaitable[Answer]]


class LinkHost:
    """What the link knows of its instance: the units on disk, and the supervisor to give orders to."""

    def __init__(self, bootstrap: Bootstrap, supervise: Supervise, isolation: tuple[str, ...]) -> None:
        self._bootstrap, self._supervise, self._isolation = bootstrap, supervise, isolation
        self._units = UnitDirectories(bootstrap.state_dir)
        self._archives = bootstrap.state_dir / "archives"
        self._archives.mkdir(mode=0o700, exist_ok=True)
        self._ended: dict[str, dict[str, Any]] = {}  # an ended unit never changes: read once

    def report(self) -> dict[str, Any]:
        """Return a WorkerReport on the wire, read from the disk."""
        reports = []
        for unit in self._units:
            known = self._ended.get(unit.id) or unit.report()
            if known["state"] == "ended":
                self._ended[unit.id] = known
            reports.append(known)
        present = {report["id"] for report in reports}
        self._ended = {unit_id: known for unit_id, known in self._ended.items() if unit_id in present}
        return {"units": reports, "isolation": self._isolation, "preempt_at": self.preempt_at()}

    def preempt_at(self) -> float | None:
        """Return when the machine will be preempted, if announced."""
        notice = read_json(Path(self._bootstrap.settings.get("preempt_file", "/nowhere"))) or {}
        told = notice.get("preempt_at")
        return float(told) if told is not None else None

    def live_paths(self) -> list[Path]:
        """Return the directories in which something may still change."""
        return [unit.path for unit in self._units if unit.id not in self._ended]

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
                case "put":
                    return self._put(request)
                case "forget" | "start" | "refuse" | "stop" | "renew" | "resize":
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


class LinkWorker(Worker):
    """A Dask worker reduced to its connection: no tasks, no data, no code from others."""

    def __init__(self, scheduler: str, local: LinkHost, **options: Any) -> None:
        super().__init__(
            scheduler,
            nthreads=1,
            memory_limit=0,
            metrics={},
            startup_information={},
            extensions={},
            executor="offload",
            heartbeat_interval="1d",  # ``report_changes`` speaks often enough
            **options,
        )
        self._local = local
        self._changes = DirectoryWatch(local.units_path)
        self._last: dict[str, Any] | None = None
        self._clock_distance = math.inf
        self.blocked_handlers = sorted(set(self.handlers) - KEPT_HANDLERS)
        for table, kept in ((self.handlers, KEPT_HANDLERS), (self.stream_handlers, KEPT_STREAM_HANDLERS)):
            for name in set(table) - kept:
                del table[name]
        self.stream_handlers = quiet.Tolerant({**self.stream_handlers, "hcloud-call": self._take_call})
        self._calls: set[asyncio.Task[None]] = set()
        self._spoke_s = -math.inf
        for chore in CHORES:
            self.periodic_callbacks.pop(chore, None)

    def start_http_server(self, *_: object, **__: object) -> None:
        """Serve no web page: Dask's would be open to every caller that reaches its port."""

    async def heartbeat(self) -> None:
        """Leave out Dask's own: ``report_changes`` says that we live."""

    async def report_changes(self) -> None:
        """Send a report now, and again whenever something changed; say that we live when nothing did for long."""
        try:
            while True:
                report = self._local.report()
                if report != self._last:
                    self._say({"op": "hcloud-report", "report": report})
                    self._last = report
                await self._next_change(report["preempt_at"])
        finally:
            self._changes.close()

    async def _next_change(self, preempt_at: float | None) -> None:
        live = self._local.live_paths()
        looking = True
        while looking:
            changed = await self._changes.wait(live, POLL_S if live else HEARTBEAT_S)
            if time.monotonic() - self._spoke_s >= HEARTBEAT_S - POLL_S / 2:
                self._say({"op": "hcloud-alive"})
            looking = not (changed or live or self._local.preempt_at() != preempt_at)
        await asyncio.sleep(REPORT_PAUSE_S)

    def _say(self, message: dict[str, Any]) -> None:
        self.batched_send(message)
        self._spoke_s = time.monotonic()

    def _take_call(self, number: int, request: Mapping[str, Any], sent_at: float, timeout_s: float) -> None:
        if self._is_late(sent_at, timeout_s):
            return
        task = asyncio.create_task(self._answer_call(number, request))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _is_late(self, sent_at: float, timeout_s: float) -> bool:
        """Whether this call's answer is no longer awaited: it lay in a buffer while we hung.

        What was reported as unknown must not happen long after. The two clocks are not compared but their distance,
        which is smallest for the message that came fastest.
        """
        distance = time.monotonic() - sent_at
        self._clock_distance = min(distance, self._clock_distance)
        return distance - self._clock_distance > timeout_s

    async def _answer_call(self, number: int, request: Mapping[str, Any]) -> None:
        answer = await self._local.call(request)
        self._changes.wake()
        self.batched_send({"op": "hcloud-answer", "number": number, "answer": answer})


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


async def keep_connected(bootstrap: Bootstrap, host: LinkHost) -> None:
    """Be connected for as long as there is a scheduler; begin anew when there is none."""
    pause_s = RETRY_S
    while True:
        try:
            if await _connected_once(bootstrap, host):
                pause_s = RETRY_S
        except (OSError, ValueError, RuntimeError, ConfigError) as error:
            print(f"hcloud link {bootstrap.instance_id}: {error}; tried again in {pause_s:g} s", file=sys.stderr)
        await asyncio.sleep(pause_s)
        pause_s = min(RETRY_CAP_S, 2 * pause_s)


async def _connected_once(bootstrap: Bootstrap, host: LinkHost) -> bool:
    """Register, and carry messages until the connection is lost; return whether there was one."""
    security = Security(require_encryption=True, **context_files(bootstrap.tls_dir, "worker"))
    worker = LinkWorker(
        bootstrap.scheduler_address,
        host,
        name=bootstrap.instance_id,
        port=bootstrap.worker_port,
        host=bootstrap.settings.get("listen_host"),
        security=security,
        local_directory=str(bootstrap.state_dir / "dask"),
    )
    async with worker:
        reporting = asyncio.create_task(worker.report_changes())
        try:
            await worker.finished()
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting
    return True


async def run(bootstrap: Bootstrap, channel: socket.socket, isolation: tuple[str, ...]) -> None:
    """Run the link until the supervisor is gone."""
    supervisor = SupervisorChannel(channel)
    metadata.watch(bootstrap)
    connection = asyncio.create_task(keep_connected(bootstrap, LinkHost(bootstrap, supervisor.ask, isolation)))
    reading = asyncio.create_task(supervisor.read())
    await asyncio.wait({connection, reading}, return_when=asyncio.FIRST_COMPLETED)
    connection.cancel()


def main() -> None:
    """Entry point: ``python -m hcloud.engine.link BOOTSTRAP DESCRIPTOR``."""
    bootstrap = load_bootstrap(Path(sys.argv[1]))
    channel = socket.socket(fileno=int(sys.argv[2]))
    isolation = json.loads(os.environ.get("HCLOUD_ISOLATION", '{"names": []}'))
    with dask.config.set(quiet.DASK_SETTINGS):
        quiet.reduce_noise()
        asyncio.run(run(bootstrap, channel, tuple(isolation["names"])))
    # Dask's helper threads may hang on a lost connection; nothing here needs a tidy end.
    os._exit(0)


if __name__ == "__main__":
    main()
