"""Files of ended units on their way to buckets: all are there as they were listed, or it is said what is not."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hcloud.buckets import BucketAccess, BucketGrant, StoredObject
from hcloud.buckets.clients import BucketClient, SignedUrl
from hcloud.core.bucket_urls import BucketOutput, parse_bucket_url
from hcloud.core.clock import ManualClock
from hcloud.core.errors import WorkerUnreachable
from hcloud.observe.bucket_outputs import TRIES_MAX, VALID_S, BucketOutputs, Delivery
from hcloud.provider import OutputsManifest, OutputsPiece, UploadState

UNIT = "job-1.1.0_19ab"
FILES = {"results/a": b"first", "results/deep/b": b"second"}


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Site:
    """A machine, a bucket, and what is between them."""

    def __init__(self, folder: Path) -> None:
        self.files, self.objects = dict(FILES), dict[str, bytes]()
        self.lines: list[bytes] | None = None
        self.lists = list[str]()
        self.loses, self.polls, self.is_gone = set[str](), 0, False
        self.folder, self.clock = folder, ManualClock()
        folder.mkdir()
        self.outputs = [BucketOutput(pattern="results", to="s3://data/team/out")]
        self.sent = self.made()

    def made(self) -> BucketOutputs:
        def connect(_: BucketGrant) -> BucketClient:
            return self

        grant = BucketGrant(url=parse_bucket_url("s3://data/team"), may_write=True)
        return BucketOutputs(self.folder, self, BucketAccess([grant], self.clock, connect), self.clock)

    def deliver(self, place: str = "", outputs: list[BucketOutput] | None = None) -> str | None:
        given = Delivery(instance_id="inst-1", user="ann", outputs=outputs or self.outputs, place=place)
        return self.sent.deliver(UNIT, given)

    # the machine
    def read_listing(self, unit: str, instance_id: str, offset: int, limit: int) -> OutputsPiece:
        if self.is_gone:
            raise WorkerUnreachable("gone")
        plain = [
            {"pattern": 0, "path": path, "name": path.removeprefix("results/"), "bytes": len(each), "md5": _md5(each)}
            for path, each in self.files.items()
        ]
        content = b"\n".join(self.lines if self.lines is not None else [json.dumps(each).encode() for each in plain])
        manifest = OutputsManifest(
            files=len(plain), bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), note="left out 'x'"
        )
        return OutputsPiece(content=(content[offset:],), manifest=manifest)

    def send_outputs(self, unit: str, instance_id: str, listed: str) -> UploadState:
        if self.is_gone:
            raise WorkerUnreachable("gone")
        self.polls += 1
        if self.polls % 2:
            return UploadState(sent=None)
        self.lists.append(listed)
        for each in json.loads(Path(listed).read_text())["files"]:
            if each["path"] not in self.loses:
                self.objects[each["url"]] = self.files[each["path"]]
        return UploadState(sent=len(self.files) - len(self.loses), problem="broken pipe" if self.loses else "")

    # the bucket
    def list(self, bucket: str, prefix: str, limit: int) -> list[StoredObject]:
        return [
            StoredObject(key=key, size_bytes=len(each), md5=_md5(each))
            for key, each in sorted(self.objects.items())
            if key.startswith(prefix)
        ]

    def sign_get(self, bucket: str, stored: StoredObject, valid_s: float) -> SignedUrl:
        raise AssertionError

    def sign_put(self, bucket: str, key: str, size_bytes: int, md5: str, valid_s: float) -> SignedUrl:
        return SignedUrl(url=key)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "outputs")


def test_files_go_below_the_folder_and_it_is_said(site: Site) -> None:
    assert site.deliver() == "2 files (11 bytes) went to s3://data/team/out; left out 'x'"
    assert site.objects == {"team/out/a": b"first", "team/out/deep/b": b"second"}
    assert site.deliver() is not None and len(site.lists) == 1
    assert list(site.folder.iterdir()) == []


def test_each_node_or_task_has_a_folder_of_its_own(site: Site) -> None:
    site.deliver("7/1")
    assert sorted(site.objects) == ["team/out/7/1/a", "team/out/7/1/deep/b"]


def test_a_daemon_that_comes_after_goes_on_with_the_same_list(site: Site) -> None:
    site.deliver = lambda: site.sent.deliver(UNIT, given)  # type: ignore[method-assign,misc,assignment]
    given = Delivery(instance_id="inst-1", user="ann", outputs=site.outputs)
    site.send_outputs = _never(site.send_outputs, 3)  # type: ignore[method-assign]
    with pytest.raises(WorkerUnreachable):
        site.deliver()
    site.sent = site.made()
    assert site.deliver() is not None and len(site.objects) == 2


def _never(send: Callable[..., UploadState], until: int) -> Callable[..., UploadState]:
    asked = [0]

    def answer(*given: str) -> UploadState:
        asked[0] += 1
        if asked[0] == until:
            raise WorkerUnreachable("gone")
        return UploadState(sent=None) if asked[0] < until else send(*given)

    return answer


def test_what_did_not_arrive_is_sent_again_and_then_named(site: Site) -> None:
    site.loses = {"results/a"}
    for _ in range(TRIES_MAX - 1):
        assert site.deliver() is None
    assert site.deliver() == "1 of 2 files did not arrive: broken pipe"
    assert len(site.lists) == TRIES_MAX


def test_what_a_store_has_otherwise_than_it_was_listed_counts_as_absent(site: Site) -> None:
    site.objects["team/out/a"], site.loses = b"older", {"results/a"}
    while (told := site.deliver()) is None:
        pass
    assert "1 of 2 files did not arrive" in told


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b'{"pattern": 5, "path": "a", "name": "a", "bytes": 1, "md5": "%s"}' % (b"0" * 32),
        b'{"pattern": 0, "path": "a", "name": "../../other/a", "bytes": 1, "md5": "%s"}' % (b"0" * 32),
        b'{"pattern": 0, "path": "/etc/passwd", "name": "a", "bytes": 1, "md5": "%s"}' % (b"0" * 32),
        b'{"pattern": 0, "path": "a", "name": "a", "bytes": -1, "md5": "%s"}' % (b"0" * 32),
        b'{"pattern": 0, "path": "a", "name": "a", "bytes": 1, "md5": "x"}',
    ],
)
def test_a_machine_that_lies_gets_no_url(site: Site, line: bytes) -> None:
    site.lines = [line]
    while (told := site.deliver()) is None:
        pass
    assert told == "its machine sent a list of files that makes no sense" and site.lists == []


def test_nobody_s_other_folder_is_written(site: Site) -> None:
    while (told := site.deliver(outputs=[BucketOutput(pattern="results", to="s3://data/other")])) is None:
        pass
    assert "s3://data/other/a may not be written for ann" in told and site.lists == []


def test_a_machine_that_sends_for_ever_is_given_up(site: Site) -> None:
    site.send_outputs = lambda *_: UploadState(sent=None)  # type: ignore[method-assign,assignment]
    began = site.clock.now()
    while (told := site.deliver()) is None:
        site.clock.advance(600.0)
    assert told == "not sent to buckets within 6 h" and site.clock.now() > began + VALID_S
