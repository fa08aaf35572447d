"""Listing files of a unit, and sending them over real HTTP to stores that check them."""

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from hcloud.buckets.clients import GcsStore, S3Client, SignedUrl
from hcloud.engine.outputs import LISTED_MAX, list_files
from hcloud.engine.uploads import send_files
from tests.buckets.stores import FakeGcs, moto_s3


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("results/a", "results/deep/b", "models/x/best.pt", "log.csv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"content of {name}")
    return tmp_path


def _listed(folder: Path, *patterns: str) -> dict[str, str]:
    made = io.BytesIO()
    manifest = list_files(folder, patterns, made, 1 << 20)
    lines = [json.loads(each) for each in made.getvalue().splitlines()]
    assert manifest.files == len(lines) and manifest.bytes == len(made.getvalue())
    for each in lines:
        content = (folder / each["path"]).read_bytes()
        assert each["bytes"] == len(content) and each["md5"] == hashlib.md5(content).hexdigest()
    return {each["path"]: f"{each['pattern']} {each['name']}" for each in lines}


def test_names_count_from_the_folder_that_is_named_or_before_the_wildcards(job: Path) -> None:
    assert _listed(job, "results/") == {"results/a": "0 a", "results/deep/b": "0 deep/b"}
    assert _listed(job, "results/deep", "models/**/*.pt", "results/a", "*.csv") == {
        "results/deep/b": "0 b",
        "models/x/best.pt": "1 x/best.pt",
        "results/a": "2 a",
        "log.csv": "3 log.csv",
    }


def test_links_and_special_files_are_left_out_and_named(job: Path) -> None:
    (job / "results" / "link").symlink_to("/etc/passwd")
    os.mkfifo(job / "results" / "pipe")
    made = io.BytesIO()
    manifest = list_files(job, ["results", "none/*"], made, 1 << 20)
    assert manifest.files == 2 and "'results/link', 'results/pipe'" in manifest.note
    assert "nothing matched 'none/*'" in manifest.note and LISTED_MAX == 10_000


def _file(path: str, signed: SignedUrl) -> dict[str, Any]:
    return {"path": path, "bytes": Path(path).stat().st_size, "url": signed.url, "headers": dict(signed.headers)}


def _md5(path: str) -> str:
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


def test_files_arrive_in_s3(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with moto_s3() as address:
        plain = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
        plain.create_bucket(Bucket="sent")
        client = S3Client(endpoint=address, region="us-east-1")
        signed = client.sign_put("sent", "out/a", Path("results/a").stat().st_size, _md5("results/a"), 60.0)
        assert "content-length" in signed.url and "content-md5" in signed.url
        assert send_files([_file("results/a", signed)]) == (1, "")
        [stored] = client.list("sent", "out/", 5)
        assert (stored.key, stored.md5) == ("out/a", _md5("results/a"))


def test_files_arrive_in_gcs_and_no_other_content_does(job: Path) -> None:
    gcs = FakeGcs({("sent", "x"): b""})
    with gcs.serve():
        client = GcsStore(endpoint=gcs.address, make=gcs.client)
        size = Path("results/a").stat().st_size
        signed = client.sign_put("sent", "out/a", size, _md5("results/a"), 60.0)
        assert send_files([_file("results/a", signed)]) == (1, "")
        assert gcs.objects["sent", "out/a"] == Path("results/a").read_bytes()
        assert send_files([_file("log.csv", signed)]) == (0, "log.csv: HTTP 400")
        other = SignedUrl(url=signed.url.replace("out/a", "out/b"), headers=signed.headers)
        assert send_files([_file("results/a", other)]) == (0, "results/a: HTTP 403")


@contextmanager
def _busy_store(times: int) -> Iterator[tuple[str, list[bytes]]]:
    got = list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_PUT(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if len(got) <= times else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/o", got
    finally:
        server.shutdown()
        server.server_close()


def test_a_busy_store_is_asked_again_and_a_file_that_changed_is_not_sent(job: Path) -> None:
    with _busy_store(2) as (url, got):
        file = _file("results/a", SignedUrl(url=url))
        assert send_files([file], lambda _: None) == (1, "") and got == [Path("results/a").read_bytes()] * 3
        Path("results/a").write_text("other")
        assert send_files([file], lambda _: None) == (0, "results/a: it changed after its unit had ended")
        Path("results/a").unlink()
        Path("results/a").symlink_to("/etc/passwd")
        assert send_files([file], lambda _: None)[0] == 0 and len(got) == 3
