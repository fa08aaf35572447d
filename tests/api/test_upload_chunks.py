"""Archives put together of chunks that were sent before."""

import hashlib
import os
from pathlib import Path

import pytest

from hcloud.api import upload_chunks
from hcloud.api.upload_chunks import CHUNK_BYTES_MAX
from hcloud.api.uploads import prune
from tests.api.deployment import READER, SUBMITTER, Deployment, sentence

PARTS = [b"first" * 100, b"second" * 100, b"first" * 100]
ARCHIVE = b"".join(PARTS)
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
DIGESTS = [hashlib.sha256(each).hexdigest() for each in PARTS]
ADDRESS = f"/v1/uploads/{SHA256}/chunks"


def _send(deployment: Deployment, *parts: bytes) -> None:
    for each in parts:
        name = hashlib.sha256(each).hexdigest()
        assert deployment.client(SUBMITTER).put(f"/v1/uploads/chunks/{name}", content=each).status_code == 201


def test_only_what_is_missing_is_asked_for_and_the_whole_is_checked(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    _send(deployment, PARTS[0])
    answer = client.post(ADDRESS, json={"chunks": DIGESTS})
    assert answer.json() == {"sha256": SHA256, "bytes": 0, "missing": [DIGESTS[1]]}
    _send(deployment, PARTS[1])
    answer = client.post(ADDRESS, json={"chunks": DIGESTS})
    assert answer.json() == {"sha256": SHA256, "bytes": len(ARCHIVE), "missing": []}
    assert (deployment.home / "uploads" / f"{SHA256}.tar.gz").read_bytes() == ARCHIVE
    assert client.get(f"/v1/uploads/{SHA256}").json()["bytes"] == len(ARCHIVE)


def test_chunks_in_another_order_make_no_archive_of_that_name(deployment: Deployment) -> None:
    _send(deployment, *PARTS)
    answer = deployment.client(SUBMITTER).post(ADDRESS, json={"chunks": [DIGESTS[1], DIGESTS[0]]})
    assert answer.status_code == 400 and f"not {SHA256}" in sentence(answer)
    assert not list((deployment.home / "uploads").glob("*.tar.gz")) + list((deployment.home / "uploads").glob(".part*"))


def test_nobody_uses_or_sees_the_chunks_of_others(deployment: Deployment) -> None:
    _send(deployment, *PARTS)
    folders = [path.name for path in (deployment.home / "uploads").iterdir()]
    assert len(folders) == 1 and folders[0].startswith("chunks-of-")
    (deployment.home / "uploads" / folders[0]).rename(deployment.home / "uploads" / "chunks-of-somebody")
    answer = deployment.client(SUBMITTER).post(ADDRESS, json={"chunks": DIGESTS})
    assert answer.json()["missing"] == DIGESTS[:2]


@pytest.mark.parametrize(
    ("chunks", "code"), [([], 400), (["x"], 400), (["../../../etc/passwd"], 400), (None, 400), (["A" * 64], 400)]
)
def test_what_is_no_list_of_digests_is_refused(deployment: Deployment, chunks: object, code: int) -> None:
    answer = deployment.client(SUBMITTER).post(ADDRESS, json={"chunks": chunks})
    assert answer.status_code == code and len(sentence(answer)) < 300


def test_a_wrong_or_too_large_chunk_is_not_kept_and_readers_send_none(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    assert client.put(f"/v1/uploads/chunks/{DIGESTS[0]}", content=b"other").status_code == 400
    large = bytes(CHUNK_BYTES_MAX + 1)
    address = f"/v1/uploads/chunks/{hashlib.sha256(large).hexdigest()}"
    assert client.put(address, content=large).status_code == 413
    assert deployment.client(READER).put(f"/v1/uploads/chunks/{DIGESTS[0]}", content=PARTS[0]).status_code == 403
    assert not list((deployment.home / "uploads").glob("chunks-of-*/*"))


def test_old_chunks_are_deleted(deployment: Deployment) -> None:
    _send(deployment, *PARTS)
    folder = deployment.home / "uploads"
    old = next(path for path in folder.glob("chunks-of-*/*") if path.name == DIGESTS[0])
    os.utime(old, (100.0, 100.0))
    prune(folder, set(), before=200.0)
    assert [path.name for path in Path(folder).glob("chunks-of-*/*")] == [DIGESTS[1]]


def test_many_small_chunks_are_no_more_files_than_allowed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_chunks, "CHUNKS_KEPT_MOST", 2)
    folder = deployment.home / "uploads"
    for number in range(4):
        _send(deployment, b"%d" % number)
        for path in folder.glob("chunks-of-*/*"):
            state = path.stat()
            os.utime(path, (state.st_mtime - 10.0, state.st_mtime - 10.0))
    wanted = {hashlib.sha256(b"%d" % number).hexdigest() for number in (2, 3)}
    assert {path.name for path in folder.glob("chunks-of-*/*")} == wanted
