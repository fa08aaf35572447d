"""What a terminal shows while a command waits: a line that is gone afterwards; nothing where output is piped."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from hcloud.cli.output import span
from hcloud.client.connection import Connection
from hcloud.core.clock import SystemClock
from hcloud.core.errors import printable

BUSY_AFTER_S = 2.0
"""Work that takes longer shows that it goes on."""
REFRESH_S = 1.0
"""How often the line of a waiting job is drawn again."""
OTHERS_EVERY_S = 15.0
"""How often it is asked how long others waited."""
BAR_WIDTH = 20
_TURNS = "|/-\\"
_CLEAR = "\r\x1b[K"
_at_work = threading.Lock()


class WaitingLine:
    """A line on standard error: what a job waits for, for how long, and how long others waited."""

    def __init__(self, client: Connection) -> None:
        """It is drawn on terminals only."""
        self._client = client
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False
        self._clock = SystemClock()
        self._ahead_s = 0.0
        """By how much the daemon's clock is ahead of ours."""
        self._others: Mapping[str, Any] = {}
        self._others_at = -math.inf

    def refresh(self, job_id: str, ended: str = "") -> float:
        """Draw the line anew if the job has not started, else remove it; return when to do so again, in seconds.

        ``ended``: how many of several jobs have ended.
        """
        if not self._is_terminal:
            return math.inf
        job = self._client.get(f"/v1/jobs/{job_id}")
        if job["finished_at"] is not None or (job["attempts_made"] and not job["tasks"]):
            self.clear()
            return math.inf
        waits_s = self._now() - job["submitted_at"]
        if job["tasks"] is not None:
            self._draw(f"{ended}{job_id} {_bar(job['tasks'])} {span(waits_s)}")
        else:
            self._draw(f"{ended}{job_id} waits {span(waits_s)}{self._what_for(job)}")
        return REFRESH_S

    def clear(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_drawn = False

    def before(self, write: Callable[..., None]) -> Callable[..., None]:
        """Return ``write`` so that the line is gone before any output."""

        def written(stream: str, content: bytes, attempt: int, offset: int) -> None:
            if content:
                self.clear()
            write(stream, content, attempt, offset)

        return written

    def _now(self) -> float:
        now = self._clock.now()
        if now - self._others_at >= OTHERS_EVERY_S:
            status = self._client.get("/v1/status")
            self._others, self._others_at, self._ahead_s = status["waits"], now, status["now"] - now
        return now + self._ahead_s

    def _what_for(self, job: Mapping[str, Any]) -> str:
        text = printable(job["wait_text"].removeprefix("waiting: ") or job["state"].replace("_", " "))
        others = self._others.get(job["spec"]["target"]["kind"])
        if others is None:
            return f": {text}"
        return f": {text} (others waited {span(others['p50_s'])}, 9 in 10 up to {span(others['p90_s'])})"

    def _draw(self, text: str) -> None:
        width = _width()
        sys.stderr.write(_CLEAR + (text if len(text) < width else text[: max(0, width - 2)] + "…"))
        sys.stderr.flush()
        self._is_drawn = True


def _width() -> int:
    """Return the columns of the terminal; 80 of one that does not know its size."""
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80


def _bar(tasks: Mapping[str, int]) -> str:
    """Return how many tasks of an array have ended, as a bar and in numbers."""
    ended, total = tasks["succeeded"] + tasks["failed"] + tasks["cancelled"], max(1, tasks["total"])
    full = BAR_WIDTH * ended // total
    failed = f", {tasks['failed']} failed" if tasks["failed"] else ""
    return f"[{'█' * full}{'░' * (BAR_WIDTH - full)}] {ended}/{tasks['total']}, {tasks['running']} running{failed}"


@contextmanager
def working(what: str | Callable[[], str]) -> Iterator[None]:
    """Show that work goes on, and for how long, if it takes over ``BUSY_AFTER_S``; on terminals only.

    ``what``: what is done; called again each time the line is drawn if it says how far it is. Of work within other work
    only the outer one is shown.
    """
    if not sys.stderr.isatty() or not _at_work.acquire(blocking=False):
        yield
        return
    done = threading.Event()
    drawing = threading.Thread(target=_turn, args=(what, done), daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()
        _at_work.release()


def show_waits_for_answers() -> None:
    """From now on show, on terminals, that an answer of the daemon is awaited, if it takes over ``BUSY_AFTER_S``."""
    Connection.showing_wait = partial(working, "waiting for the daemon's answer")


def _turn(what: str | Callable[[], str], done: threading.Event) -> None:
    elapsed_s, step_s = BUSY_AFTER_S, 0.25
    if done.wait(BUSY_AFTER_S):
        return
    while True:
        turn = _TURNS[round(elapsed_s / step_s) % len(_TURNS)]
        said = what if isinstance(what, str) else what()
        sys.stderr.write(f"{_CLEAR}{turn} {said} {span(elapsed_s)}")
        sys.stderr.flush()
        if done.wait(step_s):
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            return
        elapsed_s += step_s
