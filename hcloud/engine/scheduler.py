"""``hcloud engine``: a Dask scheduler as a switchboard between the daemon and the workers that dialled in.

It keeps no state worth saving: workers report again when they connect again, so it may be restarted at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, Security
from distributed.metrics import time as dask_time

from hcloud import sd_notify
from hcloud.core.errors import ConfigError
from hcloud.engine import quiet
from hcloud.engine.tls import context_files, peer_role

SILENT_AFTER_S = 10.0
"""Workers speak every 4 s at least (``link.HEARTBEAT_S``); one whose connection breaks is noticed at once."""
WATCHDOG_S = 5.0
# Dask's own life needs these; everything that runs, moves or stores others' code and data goes.
KEPT_HANDLERS = {"identity", "register-worker", "unregister", "connection_stream"}
KEPT_STREAM_HANDLERS = {"keep-alive", "worker-status-change", "log-event"}

Answer = dict[str, Any]


class Switchboard(Scheduler):
    """Knows every worker's last report, and passes calls to workers over the connections they opened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(dashboard=False, **options)
        self.blocked_handlers = sorted(set(self.handlers) - KEPT_HANDLERS)
        for table, kept in ((self.handlers, KEPT_HANDLERS), (self.stream_handlers, KEPT_STREAM_HANDLERS)):
            for name in set(table) - kept:
                del table[name]
        self.handlers |= {"hcloud_observe": self._observe, "hcloud_call": self._call}
        self.stream_handlers = quiet.Tolerant(
            {
                **self.stream_handlers,
                "hcloud-alive": self._take_alive,
                "hcloud-report": self._take_report,
                "hcloud-answer": self._take_answer,
            }
        )
        self._epoch = uuid.uuid4().hex
        self._changes = itertools.count(1)
        self._reports: dict[str, tuple[int, dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[str, asyncio.Future[Answer]]] = {}

    def start_http_server(self, *_: object, **__: object) -> None:
        """Serve no web page: Dask's would be open to every caller that reaches its port."""

    # ----------------------------------------------------------------------------------------------- from the workers
    def _take_alive(self, worker: str) -> None:
        if (state := self.workers.get(worker)) is not None:
            state.last_seen = dask_time()

    def _take_report(self, report: dict[str, Any], worker: str) -> None:
        self._take_alive(worker)
        if worker in self.workers:
            self._reports[worker] = (next(self._changes), report)

    def _take_answer(self, number: int, answer: Answer, worker: str) -> None:
        asked, future = self._waiting.get(number, ("", None))
        if future is not None and asked == worker and not future.done():
            future.set_result(answer)

    async def remove_worker(self, address: str, *arguments: Any, **options: Any) -> Any:
        """Forget a worker, and fail the calls that await its answers."""
        self._reports.pop(self.coerce_address(address), None)
        for asked, future in list(self._waiting.values()):
            if asked == address and not future.done():
                future.set_result({"unknown": "the worker's connection was lost"})
        return await super().remove_worker(address, *arguments, **options)

    # ------------------------------------------------------------------------------------------------ from the daemon
    async def _observe(self, comm: Any, epoch: str = "", since: int = 0) -> Answer:
        """Return which workers are connected and answer, and the reports that changed after ``since`` in this epoch."""
        _require_daemon(comm)
        now = dask_time()
        connected: list[str] = []
        silent: list[str] = []
        reports: dict[str, Answer] = {}
        since = since if epoch == self._epoch else 0
        for address, state in self.workers.items():
            change, report = self._reports.get(address, (0, None))
            if report is None:
                continue  # connected just now; its first report is on its way
            name = str(state.name)
            (connected if now - state.last_seen <= SILENT_AFTER_S else silent).append(name)
            if change > since:
                reports[name] = report
        changes = max((change for change, _ in self._reports.values()), default=0)
        return {"epoch": self._epoch, "until": changes, "connected": connected, "silent": silent, "reports": reports}

    async def _call(self, comm: Any, calls: Mapping[str, list[Any]], timeout_s: float) -> dict[str, list[Answer]]:
        """Pass each worker (by name) its list of requests and return the answers that came in time."""
        _require_daemon(comm)
        names = list(calls)
        answers = await asyncio.gather(*(self._call_worker(name, calls[name], timeout_s) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _call_worker(self, name: str, requests: list[Any], timeout_s: float) -> list[Answer]:
        # Resolved at every call: a worker that came back has another connection, perhaps another address.
        address = self.aliases.get(name)
        if address not in self.stream_comms:
            return [{"unknown": "no worker is registered under this name"} for _ in requests]
        futures = [self._send(address, request, timeout_s) for request in requests]
        done = await asyncio.gather(*(_within(future, timeout_s) for _, future in futures))
        for number, _ in futures:
            self._waiting.pop(number, None)
        return list(done)

    def _send(self, address: str, request: Any, timeout_s: float) -> tuple[int, asyncio.Future[Answer]]:
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (address, future)
        call = {"number": number, "request": request, "sent_at": time.monotonic(), "timeout_s": timeout_s}
        self.worker_send(address, {"op": "hcloud-call", **call})
        return number, future


async def _within(future: asyncio.Future[Answer], timeout_s: float) -> Answer:
    try:
        return await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        return {"unknown": f"the worker did not answer within {timeout_s:g} s"}


def _require_daemon(comm: Any) -> None:
    role = peer_role(comm.extra_info.get("peercert"))
    if role != "client":
        raise PermissionError(f"a {role or 'nameless'} certificate gives no orders here")


def serve(listen: str, tls_dir: Path) -> int:
    """Run the engine's scheduler on ``host:port`` until SIGTERM; return the exit code.

    Raises:
        ConfigError: certificates are missing or expired, or the address cannot be listened on.
    """
    host, _, port = listen.rpartition(":")
    files = context_files(tls_dir, "scheduler")
    # Dask makes a directory for what it never writes here; by itself it would leave it in $TMPDIR.
    with tempfile.TemporaryDirectory(prefix="hcloud-engine-") as scratch:
        with dask.config.set({**quiet.DASK_SETTINGS, "temporary-directory": scratch}):
            quiet.reduce_noise()
            asyncio.run(_serve(host.strip("[]"), int(port), files, scratch))
    return 0


async def _serve(host: str, port: int, files: Mapping[str, str], scratch: str) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    security = Security(require_encryption=True, **files)
    switchboard = Switchboard(host=host, port=port, protocol="tls", security=security)
    try:
        await switchboard
    except (OSError, RuntimeError) as error:  # Dask wraps the one into the other
        why = (error.__cause__ or error).args[-1]
        raise ConfigError(f"the engine cannot listen on {host}:{port}: {why}", where="engine.listen") from error
    print(f"hcloud engine: listening on {switchboard.address}", file=sys.stderr)
    sd_notify.ready()
    while not ended.is_set():
        sd_notify.watchdog()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), WATCHDOG_S)
    sd_notify.stopping()
    # Not closed but left: closing would tell the workers to end instead of to come back.
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)
