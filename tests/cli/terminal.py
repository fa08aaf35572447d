"""A person at a terminal: a pseudo-terminal of a given size, what it shows, and keys to press."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.conftest import Shell
from tests.waiting import wait_until

PATIENCE_S = 120.0
CONTROL_C = "\x03"
_SPEAKING_OF_SCREENS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()=>][A-Z0-9]?")


class Terminal:
    """One command at a terminal. ``shown`` is everything written so far, without colours and cursor movements."""

    def __init__(self, shell: Shell, arguments: tuple[str, ...], columns: int, rows: int) -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        outside = {name: value for name, value in os.environ.items() if name not in _SPEAKING_OF_SCREENS}
        environment = {**outside, **shell.environment, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hcloud.cli.main", *arguments],
            cwd=shell.directory,
            env=environment,
            stdin=far,
            stdout=far,
            stderr=far,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(far)
        self._raw = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._near, 65536)
            except OSError:  # the last process at the terminal has ended
                return
            if not piece:
                return
            self._raw += piece

    @property
    def raw(self) -> str:
        """Everything written, as it was written."""
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        """What a person could read."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def until(self, words: str) -> None:
        """Wait until these words were shown."""
        wait_until(lambda: words in self.shown or not self._reader.is_alive(), PATIENCE_S)
        assert words in self.shown, self.shown

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._near, keys.encode())

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        os.close(self._near)


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that control-C reaches the command as a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def at_terminal(shell: Shell, *arguments: str, columns: int = 120, rows: int = 40) -> Iterator[Terminal]:
    """Run a command at a terminal for a block."""
    terminal = Terminal(shell, arguments, columns, rows)
    try:
        yield terminal
    finally:
        terminal.close()
