"""Put a recorded home (``tests.upgrade.record``) down as if its daemon had just been killed."""

from __future__ import annotations

import re
import shutil
import socket
import sqlite3
from pathlib import Path

from hcloud.core.clock import SystemClock
from hcloud.engine.tls import issue, make_ca
from tests.daemon.home import Home
from tests.upgrade.record import HOME, HOST, KILLED_AT

RECORDED = Path(__file__).parent
SINCE_KILLED_S = 50.0
"""The jobs were submitted 8 to 9 s before the kill, so that what takes 60 s ends a second or two from now."""
WITHIN_S = 86_400.0
_NUMBER = re.compile(r"\b[0-9]{10}(?:\.[0-9]+)?\b")


def restore(recorded: Path, home: Path) -> Home:
    """Copy a recorded home to ``home``: paths and host of this machine, new keys, all times moved to the present."""
    shutil.copytree(recorded, home)
    sql = home / "hcloud.sql"
    killed_at = float((home / KILLED_AT).read_text())
    later_s = round(SystemClock().now() - SINCE_KILLED_S - killed_at)

    def moved(number: re.Match[str]) -> str:
        """Return a time of the recording as one of today; other numbers as they are."""
        text = number[0]
        if abs(float(text) - killed_at) > WITHIN_S:
            return text
        return repr(float(text) + later_s) if "." in text else str(int(text) + later_s)

    for file in [path for path in home.rglob("*") if path.is_file()]:
        text = file.read_text().replace(HOME, str(home)).replace(HOST, socket.gethostname())
        file.write_text(_NUMBER.sub(moved, text))
    database = sqlite3.connect(home / "hcloud.db")
    database.executescript(sql.read_text())
    database.close()
    sql.unlink()
    make_ca(home / "tls")
    for name in ("gateway.pem", "gateway.key", "launch.key"):  # a release before 0.2.0 had other ones
        (home / "tls" / name).unlink()
    for name in ("scheduler", "client", "worker"):
        issue(home / "tls", name)
    for name in ("run", "uploads"):
        (home / name).mkdir()
    for private in (home, home / "run", home / "uploads"):
        private.chmod(0o700)
    return Home(home)
