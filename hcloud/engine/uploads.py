"""Files of an ended unit, sent from its machine to a bucket as the unit's user.

``python -m hcloud.engine.uploads`` sends. The daemon's list names files below the work directory, each with a URL that
was signed for one object and this very content (its MD5 and size). An object appears whole or not at all, and a
process that was killed may be begun anew.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hcloud.core.bucket_urls import why_no_path
from hcloud.engine import launch
from hcloud.engine.inputs import AGAIN, PAUSE_CAP_S, PAUSE_S, TRIES_MAX, connection_to
from hcloud.engine.unit import Unit, write_json

AT_ONCE: Final = 4
UPLOADED: Final = "uploaded.json"
"""What became of the last list."""


class UnitUploads:
    """Sends files of ended units, each unit's in a process of its own. For the link's one thread."""

    def __init__(self, *, root: bool) -> None:
        """``root``: whether this process may become the units' users."""
        self._root = root
        self._sending: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        """By unit, the process that sends, and the name of its list."""

    def send(self, unit: Unit, name: str, listed: Path) -> dict[str, Any]:
        """Send what a list names, or say how that goes: ``sent`` is None while it goes on, then the number of files."""
        known = unit.read(UPLOADED)
        if known is not None and known["list"] == name:
            return {"sent": known["sent"], "problem": known["problem"]}
        process, sends = self._sending.get(unit.id, (None, ""))
        if process is not None and sends == name:
            if process.poll() is None:
                return {"sent": None, "problem": ""}
            del self._sending[unit.id]
            found = unit.read(".uploaded.json") if process.returncode == 0 else None
            ended = found or {"sent": 0, "problem": f"sending ended with code {process.returncode}"}
            write_json(unit.path / UPLOADED, {"list": name, **ended}, durable=True)
            return {"sent": ended["sent"], "problem": ended["problem"]}
        self.forget(unit.id)
        self._begin(unit, name, listed)
        return {"sent": None, "problem": ""}

    def _begin(self, unit: Unit, name: str, listed: Path) -> None:
        spec = unit.read("spec.json") or {}
        uid = spec.get("uid") if self._root else None
        asked = {"folder": str(unit.path / "root" / "job"), "uid": uid, **json.loads(listed.read_bytes())}
        without_site = ["-S"] if sys.flags.no_site else []
        command = [sys.executable, *without_site, "-W", "ignore", "-m", "hcloud.engine.uploads"]
        found = unit.path / ".uploaded.json"
        found.unlink(missing_ok=True)
        with os.fdopen(os.open(found, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(asked).encode())
        self._sending[unit.id] = process, name

    def forget(self, unit_id: str) -> None:
        """Forget what is known of a unit."""
        process, _ = self._sending.pop(unit_id, (None, ""))
        if process is not None:
            process.kill()
            process.wait()


def send_files(files: list[Mapping[str, Any]], pause: Callable[[float], object] = time.sleep) -> tuple[int, str]:
    """Send files of the present directory; return how many arrived, and why the first other one did not."""
    trust = ssl.create_default_context()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = list(pool.map(lambda each: _sent(each, trust, pause), files))
    failed = [problem for problem in problems if problem]
    return len(problems) - len(failed), failed[0] if failed else ""


def _sent(file: Mapping[str, Any], trust: ssl.SSLContext, pause: Callable[[float], object]) -> str:
    """Send a file; return why that failed."""
    if problem := why_no_path(file["path"]):
        return f"{file['path']!r} {problem}"
    tries, pause_s = 0, PAUSE_S
    while True:
        try:
            status = _put(file, trust)
            if status in (200, 201):
                return ""
            if status not in AGAIN:
                return f"{file['path']}: HTTP {status}"
            why = f"HTTP {status}"
        except FileNotFoundError:
            return f"{file['path']} is no longer there"
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
        tries += 1
        if tries >= TRIES_MAX:
            return f"{file['path']}: {why}"
        pause(pause_s)
        pause_s = min(PAUSE_CAP_S, 2 * pause_s)


def _put(file: Mapping[str, Any], trust: ssl.SSLContext) -> int:
    """Send a file once; return the status of the answer. Raises OSError, HTTPException, ValueError."""
    url = urlsplit(file["url"])
    handle = os.open(file["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as content:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_size != file["bytes"]:
            raise ValueError("it changed after its unit had ended")
        connection = connection_to(url, trust)
        try:
            headers = {"Content-Length": str(state.st_size), **file["headers"]}
            connection.request("PUT", f"{url.path}?{url.query}", body=content, headers=headers)
            answer = connection.getresponse()
            answer.read(1 << 16)
            return answer.status
        finally:
            connection.close()


def main() -> int:
    """Send what standard input names; what became of it goes to standard output."""
    asked = json.load(sys.stdin)
    os.chdir(asked["folder"])  # the folders above it may be closed to that user
    if asked["uid"] is not None:
        launch.become_user(asked["uid"])
    launch.die_with_parent()  # afterwards: another user takes that back
    sent, problem = send_files(asked["files"])
    json.dump({"sent": sent, "problem": problem[:500]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
