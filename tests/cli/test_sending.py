"""How commands send: in batches, again where a daemon is busy, and for no longer than somebody waits."""

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest

from hcloud.cli.follow import wait_for
from hcloud.cli.submit import PLANS_SHOWN
from hcloud.client.connection import BUSY_PATIENCE_S, WAITING_PATIENCE_S, Connection, Endpoint
from hcloud.client.submission import BATCH, send
from hcloud.core.clock import ManualClock
from hcloud.core.errors import DaemonUnreachable, HCloudError
from hcloud.core.model import JobState
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until


class Takes:
    """A daemon that takes whatever it is sent."""

    def __init__(self) -> None:
        self.bodies: list[list[Mapping[str, Any]]] = []

    def post(self, path: str, body: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Answer for each job."""
        self.bodies.append(body)
        return [{"id": each["job"]["name"]} for each in body]


def test_many_jobs_are_sent_in_batches_each_with_a_token_of_its_own() -> None:
    daemon, names = Takes(), [f"n{number}" for number in range(BATCH + 1)]
    answers = send(cast(Connection, daemon), [{"name": name} for name in names])
    assert [each["id"] for each in answers] == names
    assert [len(body) for body in daemon.bodies] == [BATCH, 1]
    assert len({each["token"] for body in daemon.bodies for each in body}) == len(names)


class Busy(http.server.BaseHTTPRequestHandler):
    """Says that it is busy as often as it is told to, then answers."""

    times, asked = 0, 0

    def do_GET(self) -> None:
        """Count, and answer."""
        Busy.asked += 1
        busy = Busy.asked <= Busy.times
        said = {"error": {"code": "busy", "message": "the database is locked"}} if busy else {"ok": True}
        body = json.dumps(said).encode()
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """A Unix socket's peer has no address."""
        return "somebody"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def busy_daemon(times: int) -> Iterator[Connection]:
    """A client with a clock of its own before a daemon that is busy so often."""
    Busy.times, Busy.asked = times, 0
    with TemporaryDirectory(prefix="hcloud-busy-") as made:
        path = Path(made) / "sock"
        with socketserver.ThreadingUnixStreamServer(str(path), Busy) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield Connection(Endpoint(socket=path), ManualClock(0.0))
            server.shutdown()


def test_a_busy_daemon_is_asked_again_ever_less_often() -> None:
    with busy_daemon(times=5) as client:
        assert client.get("/v1/status") == {"ok": True}
    assert Busy.asked == 6
    assert client.clock.now() == pytest.approx(0.1 + 0.2 + 0.4 + 0.8 + 1.0)


def test_a_daemon_that_stays_busy_is_given_up_in_its_own_words() -> None:
    with busy_daemon(times=1000) as client, pytest.raises(HCloudError, match="the database is locked"):
        client.get("/v1/status")
    assert BUSY_PATIENCE_S <= client.clock.now() < BUSY_PATIENCE_S + 1


def test_waiting_keeps_its_time_also_where_no_daemon_answers_and_says_once_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Connection(Endpoint(socket=tmp_path / "none"), ManualClock(0.0))
    with pytest.raises(DaemonUnreachable, match="no daemon answers on"):
        wait_for(client, ["job-1"], timeout_s=3.0)
    assert client.clock.now() == pytest.approx(3.0)
    assert capsys.readouterr() == ("", f"no daemon answers on {tmp_path / 'none'}; waiting for it\n")


def test_a_daemon_that_hangs_does_not_keep_a_waiting_command_beyond_its_time() -> None:
    with TemporaryDirectory(prefix="hcloud-hangs-") as made, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{made}/sock")
        server.listen()  # and nobody accepts
        client = Connection(Endpoint(socket=Path(made) / "sock"), ManualClock(0.0))
        with pytest.raises(DaemonUnreachable, match="did not answer in time"):
            wait_for(client, ["job-1"], timeout_s=0.0)


def test_what_follows_waits_for_a_restart_and_an_ordinary_command_says_nothing_of_its_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    for patient in (False, True):
        client = Connection(Endpoint(socket=tmp_path / "none"), ManualClock(0.0))
        client.report_waiting = told.append if patient else None
        if patient:
            client.be_patient()
        with pytest.raises(DaemonUnreachable):
            client.get("/v1/status")
        assert client.clock.now() == pytest.approx(WAITING_PATIENCE_S if patient else 1.0, abs=1.0)
    assert (len(told), capsys.readouterr().err) == (1, "")


def test_a_plan_of_many_jobs_is_shown_in_part_and_priced_in_whole(shell: Shell, deployment: Deployment) -> None:
    wait_until(lambda: deployment.controller.offers.all, timeout_s=60)  # the first cycle asks for them
    jobs = "---\n".join(
        f"name: n{at}\ncommand: x\nresources: {{vcpus: {2 + at / 10}}}\n" for at in range(PLANS_SHOWN + 2)
    )
    (shell.directory / "many.yaml").write_text(jobs)
    planned = json.loads(shell.run("submit", "--dry-run", "-o", "json", "many.yaml")[0])
    added = sum(each["price_usd_per_h"] for each in planned)
    lines = shell.run("submit", "--dry-run", "many.yaml")[0].splitlines()
    assert sum(line.startswith("n") for line in lines) == PLANS_SHOWN
    assert lines[-2:] == ["... and 2 more jobs", f"adds ${added:.2f}/h in new machines"]


def test_run_may_return_at_once_or_give_up_and_leaves_the_job_running(shell: Shell, deployment: Deployment) -> None:
    assert shell.run("run", "-q", "--detach", "--", "sleep", "1000000")[0] == "job-1 sleep\n"
    _, err = shell.run("run", "-q", "--timeout", "0.2", "--", "sleep", "1000000", exit_code=1)
    assert "still running: job-2" in err
    (shell.directory / "two.yaml").write_text("name: a\ncommand: sleep 9999\n---\nname: b\ncommand: sleep 9999\n")
    _, err = shell.run("run", "-q", "--timeout", "0.2", "two.yaml", exit_code=1)
    assert "still running: job-3 job-4" in err
    wait_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING, timeout_s=60)


def test_a_secret_that_is_not_set_or_open_to_others_is_refused_before_anything_is_sent(
    shell: Shell, deployment: Deployment
) -> None:
    _, err = shell.run("submit", "-y", "--secret", "NOT_SET", "--", "true", exit_code=2)
    assert "env.NOT_SET.secret_from: env:NOT_SET: is not set in the environment" in err
    key = shell.directory / "key"
    key.write_text("hunter2")
    key.chmod(0o644)
    _, err = shell.run("run", "--dry-run", "--secret", f"KEY=file:{key}", "--", "true", exit_code=2)
    assert "is readable by other users" in err and "hunter2" not in err
    _, err = shell.run("submit", "-y", "--secret", "KEY=hunter2", "--", "true", exit_code=2)
    assert "must be env:NAME, file:/PATH, aws:NAME" in err and "hunter2" not in err
    assert deployment.store.jobs() == ()
