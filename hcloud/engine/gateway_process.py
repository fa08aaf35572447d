"""The gateway as a child of the daemon: started with it, started again when it dies, gone when the daemon is."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hcloud.core.errors import ConfigError

_log = logging.getLogger("hcloud")
RESTART_S, RESTART_CAP_S = 0.2, 5.0
STOP_TIMEOUT_S = 5.0
STARTS_MOST, ENDS_WITHIN_S = 3, 1.0
"""So often it is started in a row if it is killed; and how long one that says nothing may take to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where a gateway listens, and what it serves."""

    listen: str
    """``host:port`` for agents."""
    enrolment_listen: str
    """``host:port`` for machines that have no certificate yet."""
    socket: Path
    """Unix socket for the daemon."""
    keys: Path
    """Directory of the authority."""
    archives: Path | None = None
    """Directory of the agent's archives."""
    translated: tuple[str, ...] = ()
    """Addresses and networks of address translation, behind which any new machine may be."""

    def to_json(self) -> str:
        """Return the settings as one argument of a command."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> GatewaySettings:
        """Return the settings again."""
        plain = json.loads(text)
        paths = {name: Path(plain[name]) for name in ("socket", "keys", "archives") if plain[name] is not None}
        return cls(**{**plain, **paths, "translated": tuple(plain["translated"])})


class GatewayProcess:
    """Keeps one gateway running. It ends with this process, however that ends: its standard input is a pipe of ours."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep, name="gateway", daemon=True)

    def start(self) -> None:
        """Start it, and wait until it listens. Raises ConfigError: it cannot."""
        self._spawn()
        self._keeper.start()

    def stop(self) -> None:
        """End it. Agents come back to the next one."""
        self._ending.set()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _spawn(self) -> None:
        """Start it; one that something kills before it listens is started again. Raises ConfigError: it cannot."""
        for _ in range(STARTS_MOST - 1):
            if self._spawned():
                return
            _log.error("the gateway was killed while it started; it is started again")
        if not self._spawned():
            raise ConfigError("the gateway was killed each time it started")

    def _spawned(self) -> bool:
        """Start it once; return whether it listens, and was not killed before it could say anything."""
        command = [sys.executable, "-m", "hcloud.engine.gateway", self._settings.to_json()]
        # A session of its own: Ctrl-C is for the daemon, which ends it in its time.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        assert process.stdout is not None
        answer = process.stdout.readline().decode().strip()
        if answer != "ready":
            with suppress(subprocess.TimeoutExpired):
                if not answer and process.wait(ENDS_WITHIN_S) == -signal.SIGKILL:
                    return False
            process.kill()
            process.wait()
            fault = json.loads(answer) if answer.startswith("{") else {"why": "the gateway ended at once"}
            raise ConfigError(fault["why"], where=fault.get("where", ""))
        self._process = process
        return True

    def _keep(self) -> None:
        pause_s = RESTART_S
        while self._process is not None:
            code = self._process.wait()
            if self._ending.is_set():
                return
            _log.error("the gateway ended with %d; it is started again", code)
            while not self._ending.wait(pause_s):
                try:
                    self._spawn()
                except ConfigError as error:
                    pause_s = min(RESTART_CAP_S, 2 * pause_s)
                    _log.error("the gateway cannot be started: %s", error)
                else:
                    pause_s = RESTART_S
                    break
