"""Serves the application from a thread of the daemon: always on a Unix socket, over TCP only with TLS and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import grp
import logging
import os
import shutil
import socket
import ssl
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import uvicorn
from fastapi import FastAPI

from hcloud.api.app import build_app
from hcloud.api.auth import Pages
from hcloud.api.connections import LimitedListener, PeerProtocol
from hcloud.api.context import ApiContext
from hcloud.api.tokens import TokenFile
from hcloud.api.uploads import remove_parts
from hcloud.config import ApiSettings, Config, TcpSettings
from hcloud.core.errors import ConfigError, HCloudError

STOP_GRACE_S = 2
SOCKET_CHECK_S = 1.0
THREADS_MAX = 100
"""Requests worked on at once, of all callers: more than a few callers may have by themselves."""
_log = logging.getLogger(__name__)


class AlreadyServing(HCloudError):
    """Another daemon holds this socket."""


class ApiServer:
    """A running API."""

    def __init__(
        self,
        context: ApiContext,
        socket_path: Path,
        settings: ApiSettings,
        lock: int,
        listeners: list[tuple[uvicorn.Server, socket.socket]],
    ) -> None:
        """Take over an open socket and lock, and serve until :meth:`stop`. Use :func:`serve` instead."""
        self.socket_path = socket_path
        self._closing = context.closing
        self._closing.clear()
        self._lock = lock
        self._listeners = listeners
        self._settings = settings
        self._inode = socket_path.stat().st_ino
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not all(server.started for server, _ in listeners):
            self._thread.join(timeout=0.005)

    @property
    def tcp_address(self) -> tuple[str, int] | None:
        """Host and port of the TCP listener, or None."""
        tcp = [listener for _, listener in self._listeners if listener.family != socket.AF_UNIX]
        return tcp[0].getsockname()[:2] if tcp else None

    @property
    def alive(self) -> bool:
        """Whether the server is running."""
        return self._thread.is_alive() and all(server.started for server, _ in self._listeners)

    def responds(self, timeout_s: float) -> bool:
        """Return whether the thread that answers all requests takes up new work within ``timeout_s``.

        It is not asked over a connection: callers who use up all of them must not make it look stuck.
        """
        taken_up = threading.Event()
        try:
            if self.alive and self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(taken_up.set)
        except RuntimeError:  # it ended meanwhile
            return False
        return taken_up.wait(timeout_s if self.alive else 0.0)

    def stop(self) -> None:
        """Finish current requests (briefly), remove the socket and release the lock. Repeatable."""
        self._closing.set()
        for server, _ in self._listeners:
            server.should_exit = True
        self._thread.join(timeout=STOP_GRACE_S + 10)
        with contextlib.suppress(FileNotFoundError):
            if self.socket_path.stat().st_ino == self._inode:
                self.socket_path.unlink()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _run(self) -> None:
        try:
            asyncio.run(self._serve_all())
        except BaseException as error:  # noqa: BLE001 uvicorn raises SystemExit if it cannot start
            # The top of this thread: the daemon checks `alive` and exits if it is false.
            _log.critical("the API stopped: %s", error, exc_info=error)

    async def _serve_all(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX
        serving = {asyncio.create_task(server.serve(sockets=[listener])) for server, listener in self._listeners}
        keeper = asyncio.create_task(self._keep_socket(serving))
        try:
            while not all(task.done() for task in serving):
                done, _ = await asyncio.wait(tuple(serving), return_when=asyncio.FIRST_COMPLETED)
                serving -= done
                for task in done:
                    task.result()
        finally:
            keeper.cancel()

    def _keep_lock(self) -> bool:
        """Take the lock again if its file was deleted, since another daemon could start otherwise.

        Returns whether it still existed. Raises AlreadyServing: another daemon was faster; OSError: the
        directory cannot be created.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(_lock_path(self.socket_path)), os.fstat(self._lock)):
                return True
        self.socket_path.parent.mkdir(parents=True, exist_ok=True)
        former, self._lock = self._lock, _take_lock(self.socket_path)
        os.close(former)
        return False

    async def _keep_socket(self, serving: set[asyncio.Task[None]]) -> None:
        """Reopen the Unix socket if it was deleted: the daemon would be unreachable otherwise."""
        while True:
            await asyncio.sleep(SOCKET_CHECK_S)
            try:
                if self._closing.is_set() or (self._keep_lock() and self.socket_path.exists()):
                    continue
                listener = open_unix_socket(self.socket_path, self._settings)
            except AlreadyServing as error:
                _log.critical("%s was deleted, and %s", self.socket_path.parent, error)
                for server, _ in self._listeners:
                    server.should_exit = True
                return
            except (ConfigError, OSError) as error:
                _log.error("the socket was deleted and cannot be reopened: %s", error)
                continue
            _log.warning("%s was deleted; reopened it", self.socket_path)
            former, _ = self._listeners[0]
            server = uvicorn.Server(former.config)
            serving.add(asyncio.create_task(server.serve(sockets=[listener])))
            while not server.started:
                await asyncio.sleep(0.01)
            self._listeners[0], self._inode = (server, listener), self.socket_path.stat().st_ino
            former.should_exit = True


def serve(context: ApiContext, config: Config, tokens: TokenFile | None, pages: Pages | None = None) -> ApiServer:
    """Open the socket (and TCP, if configured) and serve requests from a thread of this process.

    ``tokens`` are those of callers over TCP; ``pages`` are served to browsers, too. Raises AlreadyServing: another
    daemon holds the socket. Raises ConfigError: the group, TLS files or address are unusable.
    """
    path = config.socket_path
    path.parent.mkdir(parents=True, exist_ok=True)
    for directory in (context.uploads_dir, context.logs_dir):
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    with contextlib.ExitStack() as on_error:
        lock = _take_lock(path)
        on_error.callback(os.close, lock)
        remove_parts(context.uploads_dir)
        tcp = config.api.tcp
        listeners = [_tcp_listener(build_app(context, tokens, pages), tcp)] if tcp is not None else []
        for _, listener in listeners:
            on_error.callback(listener.close)
        unix = open_unix_socket(path, config.api)
        on_error.callback(unix.close)
        app = build_app(context, pages=pages)
        listeners.insert(0, (uvicorn.Server(_uvicorn_config(app)), unix))
        on_error.pop_all()
        return ApiServer(context, path, config.api, lock, listeners)


def _lock_path(socket_path: Path) -> Path:
    return socket_path.with_name(socket_path.name + ".lock")


def _take_lock(path: Path) -> int:
    """Hold ``<socket>.lock`` while this process lives; the kernel releases it however the process ends."""
    lock = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise AlreadyServing(
            f"another daemon serves {path}; stop it, or set another run_dir for a standby on the same database"
        ) from error
    return lock


def open_unix_socket(path: Path, settings: ApiSettings) -> socket.socket:
    """Return a listening socket at ``path`` that is never reachable with wider permissions than configured.

    It is created in a private directory, gets its mode and group, and is then moved to ``path``, replacing the
    socket of a killed daemon. The caller holds the lock. Raises ConfigError.
    """
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it")
    group = _group_id(settings.socket_group)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _private_directory(path.parent) as private:
            # The path via the directory's descriptor stays below the length limit of socket paths.
            listener.bind(f"/proc/self/fd/{private}/s")
            os.chown("s", -1, group, dir_fd=private)
            os.chmod("s", int(settings.socket_mode, 8), dir_fd=private)
            listener.listen(2048)
            os.rename("s", path, src_dir_fd=private)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot open the socket {path}: {error.strerror}") from error
    listener.setblocking(False)
    return LimitedListener(listener)


@contextlib.contextmanager
def _private_directory(parent: Path) -> Iterator[int]:
    made = tempfile.mkdtemp(prefix=".socket-", dir=parent)
    try:
        opened = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield opened
        finally:
            os.close(opened)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _group_id(name: str | None) -> int:
    try:
        return -1 if name is None else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"group {name!r} does not exist on this host", where="api.socket_group") from None


def _tcp_listener(app: FastAPI, tcp: TcpSettings) -> tuple[uvicorn.Server, socket.socket]:
    host, _, port = tcp.listen.rpartition(":")
    settings = _uvicorn_config(app, certificate=tcp.certificate, key=tcp.key)
    try:
        settings.load()
        listener = socket.create_server((host.strip("[]"), int(port)), family=_family(host), backlog=2048)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot listen on {tcp.listen}: {error}", where="api.tcp") from error
    listener.setblocking(False)
    return uvicorn.Server(settings), LimitedListener(listener)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _uvicorn_config(app: FastAPI, *, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,  # clients must not claim another address
        server_header=False,
        limit_concurrency=1000,
        timeout_graceful_shutdown=STOP_GRACE_S,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
