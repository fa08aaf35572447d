"""Fetching inputs over real HTTP from a server that breaks off, lies and is busy."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import InputsFailed
from hcloud.engine.inputs import TRIES_MAX, fetch_inputs, fetch_listed

CONTENT = bytes(range(256)) * 4096
Behaviour = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def _server(behave: Behaviour) -> Iterator[str]:
    asked = [0]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked[0] += 1
            behave(self, asked[0])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/o"
    finally:
        server.shutdown()
        server.server_close()


def _answer(to: BaseHTTPRequestHandler, content: bytes, *, cut: int | None = None, **headers: str) -> None:
    begin = int(to.headers["Range"][6:-1]) if "Range" in to.headers else 0
    to.send_response(206 if begin else 200)
    for name, value in {"Content-Length": str(len(content) - begin), "ETag": '"e"', **headers}.items():
        to.send_header(name.replace("_", "-"), value)
    to.end_headers()
    to.wfile.write(content[begin : begin + cut if cut is not None else None])


def _file(url: str, path: str = "in/file", **changes: Any) -> dict[str, Any]:
    md5 = hashlib.md5(CONTENT).hexdigest()
    answers = {"ETag": '"e"'}
    return {"path": path, "bytes": len(CONTENT), "url": url, "headers": {}, "answers": answers, "md5": md5,
            "key": "o", **changes}  # fmt: skip


@pytest.fixture(autouse=True)
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _fetch(*files: dict[str, Any], limit: int = 1 << 30) -> None:
    fetch_inputs(list(files), limit, lambda _: None)


def test_a_connection_that_breaks_is_taken_up_where_it_broke() -> None:
    ranges = list[str | None]()

    def behave(to: BaseHTTPRequestHandler, number: int) -> None:
        ranges.append(to.headers.get("Range"))
        if number == 2:
            to.send_error(503)
        else:
            _answer(to, CONTENT, cut=300_000 if number < 4 else None)

    with _server(behave) as url:
        _fetch(_file(url))
    assert Path("in/file").read_bytes() == CONTENT and ranges == [None, *["bytes=300000-"] * 2, "bytes=600000-"]
    assert os.listdir() == ["in"] and os.listdir("in") == ["file"]


def test_a_store_that_does_not_know_ranges_sends_all_again() -> None:
    def behave(to: BaseHTTPRequestHandler, number: int) -> None:
        del to.headers["Range"]
        _answer(to, CONTENT, cut=300_000 if number == 1 else None)

    with _server(behave) as url:
        _fetch(_file(url))
    assert Path("in/file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda to, _: to.send_error(403), "o could not be fetched: HTTP 403"),
        (lambda to, _: to.send_error(412), "o was changed since it was listed"),
        (lambda to, _: _answer(to, CONTENT, ETag='"other"'), "o is not what was listed: ETag is '\"other\"'"),
        (lambda to, _: _answer(to, CONTENT + b"x"), f"o is longer than the {len(CONTENT)} bytes"),
        (lambda to, _: _answer(to, bytes(len(CONTENT))), "o arrived damaged"),
    ],
)
def test_what_comes_otherwise_than_listed_is_not_kept(behave: Behaviour, words: str) -> None:
    with _server(behave) as url, pytest.raises(InputsFailed) as caught:
        _fetch(_file(url))
    assert words in str(caught.value) and not Path("in/file").exists()


def test_an_md5_is_not_compared_with_what_kms_encrypts() -> None:
    kms = {"x_amz_server_side_encryption": "aws:kms"}
    with _server(lambda to, _: _answer(to, CONTENT, **kms)) as url:
        _fetch(_file(url, md5="0" * 32))
    assert Path("in/file").read_bytes() == CONTENT


def test_no_redirect_is_followed() -> None:
    def behave(to: BaseHTTPRequestHandler, _: int) -> None:
        to.send_response(302)
        to.send_header("Location", "http://169.254.169.254/latest/meta-data")
        to.send_header("Content-Length", "0")
        to.end_headers()

    with _server(behave) as url, pytest.raises(InputsFailed, match="HTTP 302"):
        _fetch(_file(url))


def test_a_store_that_stays_busy_is_given_up_after_some_tries() -> None:
    asked = list[int]()

    def behave(to: BaseHTTPRequestHandler, number: int) -> None:
        asked.append(number)
        to.send_error(503)

    with _server(behave) as url, pytest.raises(InputsFailed, match="HTTP 503"):
        _fetch(_file(url))
    assert len(asked) == TRIES_MAX


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "link/x", "a//x"])
def test_nothing_is_written_outside_the_work_directory(path: str, tmp_path: Path) -> None:
    Path("link").symlink_to(tmp_path.parent)
    with _server(lambda to, _: _answer(to, CONTENT)) as url, pytest.raises(InputsFailed):
        _fetch(_file(url, path))
    assert not (tmp_path.parent / "x").exists()


def test_a_full_disk_is_said_at_once_and_what_is_too_large_before() -> None:
    assert "larger than 0 MiB, its disk" in fetch_listed({"files": [_file("http://127.0.0.1:9/")]}, 5)
    assert "makes no sense" in fetch_listed({"files": [{}]}, 5)
    with _server(lambda to, _: _answer(to, CONTENT)) as url:
        Path("in").mkdir()
        Path("in/file").mkdir()
        with pytest.raises(OSError, match="director"):
            _fetch(_file(url))
