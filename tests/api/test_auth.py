"""Roles: what a caller may not do never reaches a handler."""

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from hcloud.api import Caller, Role, SocketPeer, build_app
from hcloud.api.auth import MAX_BODY_BYTES, AuthMiddleware, caller_of_peer, user_name
from hcloud.api.tokens import TokenFile
from tests.api.deployment import READER, ROOT, STRANGER, SUBMITTER, Deployment, job, sentence

CHANGING = ("post", "put", "patch", "delete")
PLACES = {"job_id": "job-1", "name": "cost", "sha256": "0" * 64, "schedule_id": "sched-1"}


def _changing_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            if method in CHANGING:
                yield method, path.format(**PLACES)


def _answers_to_reader(deployment: Deployment, app: FastAPI) -> dict[tuple[str, str], int]:
    client = deployment.client(READER, app)
    return {
        (method, path): client.request(method, path, json=[job()]).status_code
        for method, path in _changing_routes(app)
    }  # fmt: skip


def test_a_reader_changes_nothing_by_any_route(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    before = deployment.store.events(), deployment.store.live(), deployment.wakes
    answers = _answers_to_reader(deployment, build_app(deployment.context))
    assert len(answers) >= 5
    assert set(answers.values()) == {403}
    assert (deployment.store.events(), deployment.store.live(), deployment.wakes) == before
    assert list((deployment.home / "uploads").iterdir()) == []


def test_the_check_of_readers_sees_a_gate_that_lets_them_pass(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcloud.api.auth.SAFE_METHODS", frozenset({"GET", "POST"}))
    assert set(_answers_to_reader(deployment, build_app(deployment.context)).values()) != {403}


def test_a_reader_may_look_at_everything_but_what_belongs_to_others(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    client = deployment.client(READER)
    for path in ("/v1/jobs", "/v1/jobs/job-1", "/v1/jobs/job-1/explain", "/v1/instances", "/v1/offers", "/v1/events",
                 "/v1/status", "/metrics", "/healthz", "/openapi.json"):  # fmt: skip
        assert client.get(path).status_code == 200, path
    assert client.get("/v1/jobs/job-1/logs").status_code == 403


def test_a_methods_name_in_another_case_does_not_pass_the_gate(deployment: Deployment) -> None:
    client = deployment.client(READER)
    assert client.request("post", "/v1/pause").status_code == 403
    assert client.request("FROBNICATE", "/v1/pause").status_code == 403


@pytest.mark.parametrize("path", ["/v1/pause", "/v1/resume"])
def test_only_an_admin_pauses_and_resumes(deployment: Deployment, path: str) -> None:
    answer = deployment.client(SUBMITTER).post(path, json={"reason": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert deployment.client(ROOT).post(path, json={"reason": "x"}).status_code == 200


def test_nobody_comes_in_without_a_name(deployment: Deployment) -> None:
    client = TestClient(build_app(deployment.context), raise_server_exceptions=False)
    for path in ("/v1/status", "/v1/jobs", "/openapi.json", "/metrics", "/no/such/path"):
        assert client.get(path).status_code == 401
    assert client.get("/healthz").text == "ok\n"


def test_headers_do_not_change_who_calls(deployment: Deployment) -> None:
    spoof = {
        "X-Forwarded-For": "root",
        "X-Remote-User": "root",
        "Authorization": "Bearer root",
        "X-HCloud-User": "root",
    }
    assert deployment.client(STRANGER).get("/v1/status", headers=spoof).json()["you"] == f"uid:{STRANGER}"


def test_tokens_give_name_and_role(deployment: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = [f"{name}:{sha256(name.encode()).hexdigest()}:{role}" for name, role in
             (("eva", "reader"), ("sam", "submitter"), ("ada", "admin"))]  # fmt: skip
    path.write_text("# who may come in\n" + "\n".join(lines) + "\n")
    client = TestClient(build_app(deployment.context, TokenFile(path)), raise_server_exceptions=False)

    def as_(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    assert client.get("/v1/status", headers=as_("eva")).json()["role"] == "reader"
    assert client.post("/v1/jobs", json=[job()], headers=as_("eva")).status_code == 403
    assert client.post("/v1/jobs", json=[job()], headers=as_("sam")).status_code == 201
    assert deployment.store.job("job-1").spec.user == "sam"
    assert client.post("/v1/pause", json={}, headers=as_("sam")).status_code == 403
    assert client.post("/v1/pause", json={}, headers=as_("ada")).status_code == 200
    for wrong in ("", "eve", lines[2].split(":")[1]):
        answer = client.get("/v1/status", headers=as_(wrong))
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("uid", "readers", "admins", "role"),
    [
        (0, frozenset(), frozenset(), Role.ADMIN),
        (SUBMITTER, frozenset(), frozenset(), Role.SUBMITTER),
        (READER, frozenset({user_name(READER)}), frozenset(), Role.READER),
        (READER, frozenset(), frozenset({user_name(READER)}), Role.ADMIN),
        (STRANGER, frozenset({f"uid:{STRANGER}"}), frozenset(), Role.READER),
    ],
)
def test_the_role_of_a_socket_peer(uid: int, readers: frozenset[str], admins: frozenset[str], role: Role) -> None:
    caller = caller_of_peer(SocketPeer(pid=1, uid=uid, gid=uid), readers, admins)
    assert caller == Caller(name=user_name(uid), role=role)


def test_a_body_over_the_limit_is_refused_unread(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    huge = {"Content-Length": str(MAX_BODY_BYTES + 1), "Content-Type": "application/json"}
    answer = client.post("/v1/jobs", content=b"[]", headers=huge)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_a_body_of_unstated_length_is_stopped_at_the_limit(deployment: Deployment) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    answer = deployment.client(SUBMITTER).post("/v1/jobs", content=endless())
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in sentence(answer)


def test_websockets_are_not_spoken(deployment: Deployment) -> None:
    async def never(*arguments: object) -> object:
        raise AssertionError("nothing may be read or sent")

    gate = AuthMiddleware(never, readers=frozenset(), admins=frozenset(), tokens=None, max_upload_bytes=1)  # type: ignore[arg-type]
    asyncio.run(gate({"type": "websocket"}, never, never))  # type: ignore[arg-type]
