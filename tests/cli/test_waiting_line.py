"""What a terminal shows while a command works or waits, and that nothing of it gets into piped output."""

import io
import math
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hcloud.cli.waiting_line import WaitingLine, show_waits_for_answers, working
from hcloud.client.connection import Connection, Endpoint
from tests.waiting import wait_until


class Screen(io.StringIO):
    """Standard error at a terminal."""

    def isatty(self) -> bool:
        return True


class Daemon:
    """Answers about an array, of which a part has ended, and a job that waits."""

    def get(self, path: str) -> dict[str, Any]:
        if path == "/v1/status":
            return {"now": 1000.0, "waits": {"batch": {"p50_s": 3.0, "p90_s": 9.0}}}
        if path == "/v1/jobs/job-2":
            about = {"wait_text": "waiting: no local.large available", "spec": {"target": {"kind": "batch"}}}
            return {"finished_at": None, "attempts_made": 0, "submitted_at": 940.0, "tasks": None, **about}
        tasks = {"total": 8, "waiting": 2, "running": 2, "succeeded": 3, "failed": 1, "cancelled": 0}
        return {"finished_at": None, "attempts_made": 0, "submitted_at": 940.0, "tasks": tasks}


def at_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Make standard error a terminal; called by tests, as pytest replaces it after its fixtures."""
    made = Screen()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr("hcloud.cli.waiting_line._width", lambda: 100)
    return made


def test_long_work_is_shown_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    monkeypatch.setattr("hcloud.cli.waiting_line.BUSY_AFTER_S", 0.0)
    with working("reading the event log"):
        wait_until(lambda: "reading the event log" in screen.getvalue(), 10.0)
    assert screen.getvalue().endswith("\r\x1b[K")


class SlowDaemon(socketserver.BaseRequestHandler):
    """Answers each request once ``may_answer`` says so."""

    may_answer: ClassVar[list[Callable[[], bool]]] = []

    def handle(self) -> None:
        while self.request.recv(65536):
            if self.may_answer:
                wait_until(self.may_answer.pop(0), 10.0)
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_an_answer_that_takes_long_is_awaited_visibly_unless_the_request_waits_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    screen = at_screen(monkeypatch)
    monkeypatch.setattr("hcloud.cli.waiting_line.BUSY_AFTER_S", 0.0)
    monkeypatch.setattr(Connection, "showing_wait", Connection.showing_wait)  # is put back afterwards
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "socket"), SlowDaemon) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        connection = Connection(Endpoint(socket=tmp_path / "socket"))
        show_waits_for_answers()
        connection.get("/v1/jobs/job-1", wait_s=10)
        assert screen.getvalue() == ""
        SlowDaemon.may_answer.append(lambda: "waiting for the daemon's answer" in screen.getvalue())
        connection.get("/v1/forecast")
        assert screen.getvalue().endswith("\r\x1b[K")
        screen.truncate(0)
        with working("computing the report"):
            SlowDaemon.may_answer.append(lambda: "computing the report" in screen.getvalue())
            connection.get("/v1/reports/cost")
        assert "answer" not in screen.getvalue()  # the outer work is shown
        server.shutdown()


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    with working("reading the event log"):
        pass
    assert screen.getvalue() == ""


def test_an_array_is_shown_as_a_bar_of_its_ended_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    line = WaitingLine(Daemon())  # type: ignore[arg-type]
    assert line.refresh("job-1", "2 of 3 ended; ") < 10.0
    assert screen.getvalue().endswith("2 of 3 ended; job-1 [██████████░░░░░░░░░░] 4/8, 2 running, 1 failed 1m00s")
    line.clear()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_nothing_is_drawn_or_asked_where_output_is_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    assert WaitingLine(None).refresh("job-1") == math.inf  # type: ignore[arg-type]
    with working("reading the event log"):
        pass
    assert piped.getvalue() == ""


def test_what_a_job_waits_for_is_shown_first_and_then_how_long_others_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    line = WaitingLine(Daemon())  # type: ignore[arg-type]
    line.refresh("job-2")
    said = "job-2 waits 1m00s: no local.large available"
    assert screen.getvalue().endswith(f"{said} (others waited 3s, 9 in 10 up to 9s)")
    monkeypatch.setattr("hcloud.cli.waiting_line._width", lambda: 50)
    line.refresh("job-2")
    assert screen.getvalue().rpartition("\x1b[K")[2] == f"{said} (oth…"
