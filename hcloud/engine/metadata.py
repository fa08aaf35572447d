"""The metadata service of a rented machine, watched by its worker: the first source of preemption notices.

A thread of the link asks; what it receives it writes to the notice file, so that a restarted worker knows it too. The
service that does not answer, or answers nonsense, is no notice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from hcloud.core.clock import Clock, SystemClock
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.unit import write_json

METADATA_URL = "http://169.254.169.254"
LOOK_EVERY_S = 5.0
"""EC2: "we recommend that you check every 5 seconds"."""
TIMEOUT_S = 3.0
TOKEN_TTL_S = 21_600
HANGING_GET_S = 60
GCE_NOTICE_S = 30.0
REBALANCE_S = 600.0
"""A rebalance recommendation names no time: followed, it counts as a preemption after so long."""


class MetadataSource(Protocol):
    """One kind of metadata service."""

    def look(self) -> float | None:
        """Return when the machine is preempted, as far as that is known. Raises OSError, HTTPException, ValueError."""
        ...


class Asker:
    """Asks one metadata service; each request on a connection of its own, through no proxy."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80

    def ask(
        self, path: str, headers: Mapping[str, str], method: str = "GET", timeout_s: float = TIMEOUT_S
    ) -> tuple[int, str, str]:
        """Return status, text and ETag."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(65_536).decode("utf-8", "replace").strip(), answer.headers.get("ETag", "")
        finally:
            connection.close()


class Ec2Metadata:
    """Version 2 only: each question carries a token, asked for by PUT and good for some hours."""

    def __init__(self, asker: Asker, *, heed_rebalance: bool = False) -> None:
        self._asker, self._heed_rebalance = asker, heed_rebalance
        self._token = ""

    def look(self) -> float | None:
        """``spot/instance-action`` has the time; before it there may be a recommendation to go elsewhere."""
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            return _moment(action, "time")
        if not self._heed_rebalance:
            return None
        advice = self._get("/latest/meta-data/events/recommendations/rebalance")
        return _moment(advice, "noticeTime") + REBALANCE_S if advice is not None else None

    def _get(self, path: str) -> str | None:
        """Return a document; None: there is none (404), as long as nothing is planned."""
        for _ in range(2):
            if not self._token:
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
                status, self._token, _ = self._asker.ask("/latest/api/token", ttl, "PUT")
                if status != 200:
                    self._token = ""
                    return None
            status, text, _ = self._asker.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if status != 401:
                return text if status == 200 else None
            self._token = ""  # it has run out
        return None


class GceMetadata:
    """Asks with ``wait_for_change``: the answer comes the moment preemption begins; about 30 s are left then."""

    def __init__(self, asker: Asker, clock: Clock) -> None:
        self._asker, self._clock, self._etag = asker, clock, "0"

    def look(self) -> float | None:
        """Wait up to a minute for a change."""
        path = (
            "/computeMetadata/v1/instance/preempted"
            f"?wait_for_change=true&timeout_sec={HANGING_GET_S}&last_etag={self._etag}"
        )
        status, text, etag = self._asker.ask(path, {"Metadata-Flavor": "Google"}, timeout_s=HANGING_GET_S + 10)
        if status != 200:
            raise OSError(f"the metadata service answered {status}")
        self._etag = etag or "0"
        return self._clock.now() + GCE_NOTICE_S if text == "TRUE" else None


class Watch:
    """Looks again and again, in a thread, until it is ended; GCE's answers come when something changes."""

    def __init__(self, source: MetadataSource, file: Path, pause_s: float) -> None:
        self._source, self._file, self._pause_s = source, file, pause_s
        self._end = threading.Event()
        self._announced_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    def start(self) -> Watch:
        """Begin. The notice file's directory is there from now on, so that others can watch it."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def end(self) -> None:
        """Look no more; a look under way ends by itself."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._note(self._source.look())
                pause_s = self._pause_s
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
                pause_s = LOOK_EVERY_S  # a service that does not answer says nothing
            self._end.wait(pause_s)

    def _note(self, preempt_at: float | None) -> None:
        """Write down a time that is new; on GCE the first stays, since each look would move it."""
        if (
            preempt_at is None
            or preempt_at == self._announced_at
            or (self._announced_at is not None and preempt_at > self._announced_at)
        ):
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, {"preempt_at": preempt_at})
        self._announced_at = preempt_at
        print(f"hcloud worker: this machine is preempted at {preempt_at:.0f}", file=sys.stderr, flush=True)


def watch(bootstrap: Bootstrap, clock: Clock | None = None) -> Watch | None:
    """Watch as the bootstrap file orders (setting ``notice``); None where it orders nothing."""
    settings = bootstrap.settings
    kind, file = settings.get("notice", "none"), settings.get("preempt_file")
    if file is None or kind not in ("ec2", "gce"):
        return None
    asker = Asker(settings.get("metadata_url", METADATA_URL))
    if kind == "ec2":
        heed = settings.get("heed_rebalance") == "yes"
        return Watch(Ec2Metadata(asker, heed_rebalance=heed), Path(file), LOOK_EVERY_S).start()
    return Watch(GceMetadata(asker, clock or SystemClock()), Path(file), 1.0).start()


def _moment(document: str, key: str) -> float:
    """Return a time of a JSON document in Unix seconds. Raises ValueError, KeyError, TypeError."""
    return datetime.fromisoformat(json.loads(document)[key]).timestamp()
