"""Uploads are stored whole or not at all."""

import asyncio
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Message

from hcloud.api import SocketPeer, build_app
from hcloud.api.uploads import PART_PREFIX, prune, remove_parts
from tests.api.deployment import SUBMITTER, Deployment, job, sentence

ARCHIVE = b"0123456789" * 1000
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
ADDRESS = f"/v1/uploads/{SHA256}"


def _stored(deployment: Deployment) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (deployment.home / "uploads").iterdir() if path.is_file()}


def test_an_upload_is_stored_under_its_digest_and_found_again(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    assert client.get(ADDRESS).status_code == 404
    for _ in range(2):  # repeating it is harmless
        answer = client.put(ADDRESS, content=ARCHIVE)
        assert (answer.status_code, answer.json()) == (201, {"sha256": SHA256, "bytes": len(ARCHIVE)})
    assert client.get(ADDRESS).json()["bytes"] == len(ARCHIVE)
    assert _stored(deployment) == {f"{SHA256}.tar.gz": ARCHIVE}
    assert (deployment.home / "uploads" / f"{SHA256}.tar.gz").stat().st_mode & 0o007 == 0


def test_an_upload_is_stored_also_where_somebody_deleted_the_folder(deployment: Deployment) -> None:
    (deployment.home / "uploads").rmdir()
    assert deployment.client(SUBMITTER).put(ADDRESS, content=ARCHIVE).status_code == 201
    assert _stored(deployment) == {f"{SHA256}.tar.gz": ARCHIVE}


def test_bytes_of_another_digest_are_refused_and_leave_nothing(deployment: Deployment) -> None:
    answer = deployment.client(SUBMITTER).put(ADDRESS, content=ARCHIVE + b"x")
    assert answer.status_code == 400
    assert "nothing was stored" in sentence(answer)
    assert _stored(deployment) == {}


@pytest.mark.parametrize("name", ["x", "0" * 63, "0" * 65, "../../etc/passwd", "A" * 64])
def test_a_name_that_is_no_digest_is_refused(deployment: Deployment, name: str) -> None:
    assert deployment.client(SUBMITTER).put(f"/v1/uploads/{name}", content=ARCHIVE).status_code in (400, 404, 405)
    assert _stored(deployment) == {}


def _pieces(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b"x" * 65536


@pytest.mark.parametrize("stated", [True, False], ids=["length stated", "length not stated"])
def test_an_upload_over_the_limit_is_refused_and_leaves_nothing(deployment: Deployment, stated: bool) -> None:
    limit = deployment.context.max_upload_bytes
    content = b"x" * (limit + 1) if stated else _pieces(limit // 65536 + 1)
    answer = deployment.client(SUBMITTER).put(ADDRESS, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert str(limit) in sentence(answer)
    assert _stored(deployment) == {}


def test_an_upload_broken_off_leaves_nothing(deployment: Deployment) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": ARCHIVE[:100], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        assert message.get("status", 400) >= 400

    scope = {
        "type": "http",
        "method": "PUT",
        "path": ADDRESS,
        "query_string": b"",
        "headers": [],
        "state": {"peer": SocketPeer(pid=1, uid=SUBMITTER, gid=1)},
    }
    asyncio.run(build_app(deployment.context)(scope, receive, send))
    assert _stored(deployment) == {}


def test_a_full_disk_is_told_and_leaves_nothing(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hcloud.api.uploads.os.fsync", full)
    answer = deployment.client(SUBMITTER).put(ADDRESS, content=ARCHIVE)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "No space left on device" in sentence(answer)
    assert _stored(deployment) == {}


def test_what_a_killed_daemon_left_half_written_is_removed(tmp_path: Path) -> None:
    for name in (PART_PREFIX + "abc", f"{SHA256}.tar.gz"):
        (tmp_path / name).write_bytes(b"x")
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{SHA256}.tar.gz"]


def test_uploads_nobody_needs_any_more_are_deleted_and_others_stay(deployment: Deployment) -> None:
    folder = deployment.home / "uploads"
    for name in ("old", "used", "young"):
        (folder / f"{name}.tar.gz").write_bytes(b"x")
        os.utime(folder / f"{name}.tar.gz", (10.0, 300.0 if name == "young" else 10.0))
    assert prune(folder, {"used"}, before=100.0) == 1
    assert sorted(_stored(deployment)) == ["used.tar.gz", "young.tar.gz"]


def test_an_upload_that_is_asked_for_again_counts_as_young(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.put(ADDRESS, content=ARCHIVE)
    folder = deployment.home / "uploads"
    for ask in (
        lambda: client.get(ADDRESS),
        lambda: client.post("/v1/jobs", json=[job(workdir_sha256=SHA256)]),
    ):
        os.utime(folder / f"{SHA256}.tar.gz", (10.0, 10.0))
        ask()
        assert prune(folder, (), before=100.0) == 0
