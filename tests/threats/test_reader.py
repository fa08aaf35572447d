"""Attacks of a reader with a read token, or of a stranger at the API's TLS port: others are served all the same."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from hcloud.api import tokens
from hcloud.api.tokens import TokenFile
from hcloud.core.model import EventKind
from tests.threats.served import PATIENCE_S, Served
from tests.waiting import wait_until

SECRET = "do-not-tell"
HALF_OPEN, REPORTS, WAITING = 1050, 120, 60


@pytest.fixture
def eve(served: Served) -> Iterator[httpx2.Client]:
    """A reader."""
    with served.caller("eve") as client:
        yield client


@contextmanager
def plain(served: Served) -> Iterator[socket.socket]:
    """A connection to the TLS port on which nothing was said."""
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as connection:
        yield connection


@contextmanager
def encrypted(served: Served) -> Iterator[ssl.SSLSocket]:
    """A TLS connection on which nothing was said."""
    with plain(served) as connection, served.trusted.wrap_socket(connection, server_hostname="127.0.0.1") as made:
        yield made


def answer(connection: socket.socket, *sent: bytes) -> bytes:
    """Send, and return everything that comes back until the server closes the connection."""
    received = b""
    try:
        for each in sent:
            connection.sendall(each)
        while piece := connection.recv(65536):
            received += piece
    except (ConnectionError, ssl.SSLError):
        pass
    return received


# ------------------------------------------------------------------------------------------- what belongs to others
@pytest.fixture(scope="module")
def job_id(served: Served) -> str:
    """A job of ada's that is full of secrets, and has run: only its name, tags and sizes may be seen."""
    made = served.submitted(
        "ada",
        name="private",
        command=["sleep", "3", SECRET],
        env={"TOKEN": f"{SECRET}-env"},
        setup=f"true {SECRET}-setup",
        image=f"registry.example/{SECRET}:1",
        outputs=[f"{SECRET}-results/"],
        checkpoint={"path": f"{SECRET}-state", "every": "60s"},
        progress={"file": f"{SECRET}-file"},
        metrics={"probe": ["/bin/echo", f"{SECRET}-probe"]},
        target={"best_effort": {}},
    )
    served.deployment.cycle_until(lambda: served.deployment.store.job(made).finished_at)
    return made


@pytest.fixture(scope="module")
def schedule_id(served: Served) -> str:
    """A schedule of ada's that submits such a job."""
    job = {"name": "later", "command": ["sleep", SECRET], "env": {"TOKEN": f"{SECRET}-env"}}
    with served.caller("ada") as ada:
        answer = ada.post("/v1/schedules", json=[{"job": {**job, "schedule": {"cron": "0 3 * * *"}}}])
    assert answer.status_code == 201, answer.text
    return str(answer.json()[0]["id"])


def readable(served: Served, job_id: str, schedule_id: str) -> dict[str, str]:
    """Every path that can be read, from the API's own description, about ada's job, its machine and her schedule."""
    with served.root() as root:
        paths = root.get("/openapi.json").json()["paths"]
        machines = [each["id"] for each in root.get("/v1/instances?ended=true").json()]
    values = {"job_id": job_id, "instance_id": machines[0], "name": "performance", "sha256": "0" * 64}
    values |= {"schedule_id": schedule_id}
    found = {path: path.format(**values) for path, methods in paths.items() if "get" in methods}
    return found | {"/v1/jobs of a user": "/v1/jobs?user=ada", "/v1/events of it": f"/v1/events?job_id={job_id}"}


@pytest.mark.parametrize("name", ["eve", "mallory"])
def test_nobody_else_sees_what_a_job_does_nor_what_it_writes(
    served: Served, job_id: str, schedule_id: str, name: str
) -> None:
    paths = readable(served, job_id, schedule_id)
    assert len(paths) > 12
    with served.caller(name) as other:
        answers = {path: other.get(asked) for path, asked in paths.items()}
        by_image = other.get("/v1/reports/cost?by=image")
    assert [path for path, answer in answers.items() if SECRET in answer.text] == []
    assert answers["/v1/jobs/{job_id}/logs"].status_code == by_image.status_code == 403
    assert "only ada or an admin may read the output of" in answers["/v1/jobs/{job_id}/logs"].text
    shown = answers["/v1/jobs/{job_id}"].json()
    assert (shown["state"], shown["spec"]["name"], shown["spec"]["user"]) == ("succeeded", "private", "ada")
    assert shown["spec"]["resources"]["vcpus"] == 1
    assert shown["spent_usd"] is not None
    assert answers["/v1/schedules/{schedule_id}"].json()["spec"]["name"] == "later"


def test_its_owner_and_an_admin_see_all_of_it(served: Served, job_id: str, schedule_id: str) -> None:
    with served.caller("ada") as ada, served.root() as root:
        for client in (ada, root):
            shown = client.get(f"/v1/jobs/{job_id}").text
            for part in ("", "-env", "-setup", "-file", "-probe"):
                assert f"{SECRET}{part}" in shown
            assert client.get(f"/v1/jobs/{job_id}/logs").status_code == 200
            assert f"{SECRET}-env" in client.get(f"/v1/schedules/{schedule_id}").text


def test_what_was_measured_of_a_job_is_its_owners(served: Served, job_id: str) -> None:
    store = served.deployment.store
    with store.transaction(served.deployment.clock.now()) as txn:
        for kind in (EventKind.SAMPLE, EventKind.JOB_PROFILED):
            txn.emit(kind, job_id=job_id, user="ada", application=SECRET, cpu_s=1.0)
    path = f"/v1/events?job_id={job_id}&kind=sample&kind=job_profiled"
    with served.caller("ada") as ada, served.caller("eve") as eve:
        assert [bool(each["fields"]) for each in ada.get(path).json()] == [True, True]
        assert [each["fields"] for each in eve.get(path).json()] == [{}, {}]
        assert SECRET not in eve.get(f"/v1/jobs/{job_id}/explain").text


def test_a_reader_stops_and_submits_nothing(served: Served, eve: httpx2.Client, job_id: str) -> None:
    for path in (f"/v1/jobs/{job_id}/cancel", "/v1/jobs", "/v1/plan", "/v1/pause", "/v1/drain", "/v1/destroy"):
        assert eve.post(path, json=[]).status_code == 403, path
    assert eve.put(f"/v1/uploads/{'0' * 64}", content=b"x").status_code == 403


# ---------------------------------------------------------------------------------------- what keeps others waiting
def test_120_reports_at_once_keep_nobody_else_from_an_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    done, begun = threading.Event(), threading.Semaphore(0)

    class Table:
        def to_json(self) -> dict[str, Any]:
            return {}

    def endless(*_: object, **__: object) -> Table:
        begun.release()
        assert done.wait(PATIENCE_S)
        return Table()

    monkeypatch.setattr("hcloud.api.operations.build_report", endless)
    monkeypatch.setattr("hcloud.api.connections.HEAD_TIMEOUT_S", PATIENCE_S)  # 120 threads share a processor here
    with ThreadPoolExecutor(REPORTS) as threads, ExitStack() as clients:
        try:
            eves = [clients.enter_context(served.caller("eve", address=f"127.0.1.{n + 1}")) for n in range(REPORTS)]
            reports = [threads.submit(each.get, "/v1/reports/cost") for each in eves]
            begun.acquire()
            served.others_are_served()
            assert [each.result() for each in reports if each.done()] == []
        finally:
            done.set()
        assert {each.result().status_code for each in reports} == {200}


def test_waiting_requests_keep_nobody_from_an_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.api.connections.HEAD_TIMEOUT_S", PATIENCE_S)
    waiting = served.submitted("ada", resources={"vcpus": 64})
    with ThreadPoolExecutor(WAITING) as threads, ExitStack() as clients:
        eves = [clients.enter_context(served.caller("eve")) for _ in range(WAITING)]
        polls = [threads.submit(each.get, f"/v1/jobs/{waiting}", params={"wait_s": 30}) for each in eves]
        with served.caller("eve", address="127.0.0.3") as eve:
            assert eve.get("/v1/status").json()["you"] == "eve"
        served.others_are_served()
        assert not any(each.done() for each in polls)
        served.deployment.context.closing.set()  # as when the server stops: all are answered
        try:
            assert {each.result().status_code for each in polls} == {200}
        finally:
            served.deployment.context.closing.clear()


def test_half_open_connections_keep_nobody_else_out(served: Served) -> None:
    with ExitStack() as held:
        for _ in range(HALF_OPEN):
            held.enter_context(plain(served))
        served.others_are_served(anew=True)


def test_a_head_that_does_not_end_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.api.connections.HEAD_TIMEOUT_S", 0.3)
    heads = [b"", b"G", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n"]
    with ExitStack() as held:
        connections = [held.enter_context(encrypted(served)) for _ in heads]
        for connection, head in zip(connections, heads, strict=True):
            connection.sendall(head)
        assert [answer(connection) for connection in connections] == [b""] * len(heads)
    served.others_are_served()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\x00" * 5000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"garbage\r\n" * 5000 + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 1000,
    ],
    ids=["headers", "address", "bytes", "pipeline", "two lengths", "endless body", "HTTP/2"],
)
def test_what_is_no_request_is_refused_and_cut_off(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcloud.api.connections.HEAD_TIMEOUT_S", 0.5)
    with encrypted(served) as connection:
        answers = answer(connection, sent)
    lines = [line for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert all(line.split()[1] in (b"200", b"400", b"401", b"413") for line in lines)
    served.others_are_served()


@pytest.mark.parametrize("token", ["secret of ada", "wrong"])
def test_a_body_that_two_servers_could_read_in_two_ways_is_refused(served: Served, token: str) -> None:
    head = f"POST /v1/plan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    smuggled = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    two_lengths = f"{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
    with encrypted(served) as connection:
        received = answer(connection, two_lengths.encode())
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1 ") == 1
    assert b"both Content-Length and Transfer-Encoding" in received


# ------------------------------------------------------------------------------------------------- who gets in
@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/status", {}),
        ("/v1/status?token=secret of ada&access_token=secret of ada", {}),
        ("/v1/status", {"Cookie": "token=secret of ada"}),
        ("/v1/status", {"X-Forwarded-For": "127.0.0.1", "X-Remote-User": "root"}),
        ("/v1/status", {"Authorization": "Basic YWRhOnNlY3JldCBvZiBhZGE="}),
        ("/v1/status", {"Authorization": "Bearer "}),
        ("/v1/status", {"Authorization": "Bearer " + "x" * 5_000}),
        ("/v1/status", {"Authorization": b"Bearer \xff\xfe"}),
        ("/v1/../healthz", {}),
        ("//healthz", {}),
        ("/healthz/../v1/status", {}),
        ("/HEALTHZ", {}),
        ("/metrics", {}),
        ("/openapi.json", {}),
    ],
)
def test_a_stranger_gets_nothing(served: Served, path: str, headers: dict[str, Any]) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=served.trusted, timeout=PATIENCE_S)
    connection.putrequest("GET", path.replace(" ", "%20"), skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 401
    assert b"you" not in response.read().split(b'"message"')[0]
    connection.close()


def test_wrong_tokens_at_speed_get_nothing_and_leave_no_trace(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="hcloud"), served.caller("eve") as client:
        for number in range(12):
            wrong = {"Authorization": f"Bearer secret-{number}"}
            assert client.get("/v1/status", headers=wrong).status_code == 401
        assert client.get("/v1/status").status_code == 200
    assert "secret" not in caplog.text
    served.others_are_served()


@pytest.mark.parametrize("presented", ["secret of ada", "secret of eve", "secret", ""])
def test_every_token_is_compared_whichever_was_presented(
    served: Served, monkeypatch: pytest.MonkeyPatch, presented: str
) -> None:
    compared: list[str] = []
    honest = tokens.hmac.compare_digest

    def counted(entry: str, digest: str) -> bool:
        compared.append(entry)
        return honest(entry, digest)

    monkeypatch.setattr(tokens.hmac, "compare_digest", counted)
    TokenFile(served.deployment.home / "tokens").find(presented)
    assert len(compared) == 3


def test_the_head_limit_can_be_missed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: without the timer a connection that says nothing stays open."""
    monkeypatch.setattr("hcloud.api.connections.PeerProtocol._await_head", lambda self: None)
    with encrypted(served) as connection:
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    wait_until(lambda: served.server.alive, PATIENCE_S)
