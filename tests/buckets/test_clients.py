"""S3 and GCS by their own libraries over real HTTP, and machines that fetch by the URLs that come of it."""

import hashlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.core.authorization import enable_iam_authentication

from hcloud.buckets import BucketAccess, BucketGrant, BucketProblem, InputPreparer
from hcloud.buckets.clients import BucketClient, GcsStore, S3Client
from hcloud.core.bucket_urls import BucketInput, BucketOutput, parse_bucket_url
from hcloud.core.clock import SystemClock
from hcloud.core.model import BestEffortTarget, JobSpec, Resources
from hcloud.engine.inputs import fetch_listed
from tests.buckets.stores import FakeGcs, moto_s3
from tests.waiting import wait_until

CONTENT = b"0123456789" * 1000


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with moto_s3() as address:
            client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
            client.create_bucket(Bucket="data")
            for name in ("team/a", "team/set/x", "team/set/deep/y"):
                client.put_object(Bucket="data", Key=name, Body=CONTENT + name.encode())
            yield address


@pytest.fixture(scope="module")
def gcs() -> Iterator[FakeGcs]:
    fake = FakeGcs({("data", name): CONTENT + name.encode() for name in ("team/a b", "team/set/x")})
    with fake.serve():
        yield fake


def _spec(*inputs: BucketInput) -> JobSpec:
    return JobSpec(
        name="x", user="anna", command=("true",), target=BestEffortTarget(), resources=Resources(), inputs=inputs
    )


def _fetched(preparer: InputPreparer, spec: JobSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have inputs listed and fetched as a machine does it; return why that failed."""
    wait_until(lambda: not preparer.prepared("job-1.1", spec).is_pending, 10.0)
    prepared = preparer.prepared("job-1.1", spec)
    if prepared.path is None:
        return prepared.problem
    assert prepared.path.stat().st_mode & 0o077 == 0
    listed = json.loads(prepared.path.read_text())
    folder.mkdir()
    monkeypatch.chdir(folder)
    return fetch_listed(listed, 1 << 30)


def _s3_access(address: str, *, folder: str = "") -> BucketAccess:
    grant = BucketGrant(url=parse_bucket_url(f"s3://data{folder}"), endpoint=address, region="us-east-1")
    return BucketAccess([grant], SystemClock())


def test_inputs_come_from_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = _spec(
        BucketInput(source="s3://data/team/set", to="d"), BucketInput(source="s3://data/team/a", to="sub/model.bin")
    )
    preparer = InputPreparer(tmp_path / "lists", _s3_access(s3))
    assert _fetched(preparer, spec, tmp_path / "job", monkeypatch) == ""
    found = {str(path.relative_to(tmp_path / "job")): path for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert sorted(found) == ["d/deep/y", "d/x", "sub/model.bin"]
    assert found["sub/model.bin"].read_bytes() == CONTENT + b"team/a"
    preparer.drop("job-1.1")
    assert not list((tmp_path / "lists").iterdir())


def test_what_changed_since_it_was_listed_is_not_taken(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.put_object(Bucket="data", Key="changing", Body=b"old")
    preparer, spec = (
        InputPreparer(tmp_path / "lists", _s3_access(s3)),
        _spec(BucketInput(source="s3://data/changing", to="c")),
    )
    wait_until(lambda: not preparer.prepared("job-1.1", spec).is_pending, 10.0)
    client.put_object(Bucket="data", Key="changing", Body=b"new")
    told = _fetched(preparer, spec, tmp_path / "job", monkeypatch)
    assert told in ("changing was changed since it was listed",)
    assert not (tmp_path / "job" / "c").exists()


def test_a_signed_url_reads_its_object_and_is_shown_nowhere(s3: str) -> None:
    client = S3Client(endpoint=s3, region="us-east-1")
    [stored] = client.list("data", "team/a", 5)
    signed = client.sign_get("data", stored, 60.0)
    assert "X-Amz-Signature" in signed.url and signed.url not in repr(signed)
    request = urllib.request.Request(signed.url, headers=dict(signed.headers))
    assert urllib.request.urlopen(request).read() == CONTENT + b"team/a"


def test_problems_of_s3_are_one_sentence(s3: str) -> None:
    with pytest.raises(BucketProblem, match=r"^s3://absent/x: there is no such bucket$"):
        S3Client(endpoint=s3, region="us-east-1").list("absent", "x", 5)


def test_inputs_come_from_gcs(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GcsStore(endpoint=gcs.address, make=gcs.client)
    access = BucketAccess([BucketGrant(url=parse_bucket_url("gs://data"))], SystemClock(), lambda _: store)
    spec = _spec(
        BucketInput(source="gs://data/team/a b", to="model"), BucketInput(source="gs://data/team/set/", to="set")
    )
    preparer = InputPreparer(tmp_path / "lists", access)
    assert _fetched(preparer, spec, tmp_path / "job", monkeypatch) == ""
    assert (
        hashlib.sha256((tmp_path / "job" / "model").read_bytes()).digest()
        == hashlib.sha256(gcs.objects["data", "team/a b"]).digest()
    )
    assert os.listdir(tmp_path / "job" / "set") == ["x"]
    [stored] = store.list("data", "team/set/x", 5)
    other = store.sign_get("data", stored, 60.0).url.replace("team/set/x", "team/a%20b")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(other)
    with pytest.raises(BucketProblem, match=r"^gs://absent/: there is no such bucket$"):
        store.list("absent", "", 5)


def _check_outputs(store: BucketClient, to: str) -> None:
    grant = BucketGrant(url=parse_bucket_url(to), may_write=True)
    access = BucketAccess([grant], SystemClock(), lambda _: store)
    access.check_outputs([BucketOutput(pattern="r", to=f"{to}/run")], "anna")


def test_a_bucket_that_cannot_be_written_is_known_at_submission(s3: str, gcs: FakeGcs) -> None:
    _check_outputs(S3Client(endpoint=s3, region="us-east-1"), "s3://data/out")
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    assert "Uploads" not in client.list_multipart_uploads(Bucket="data")
    assert "Contents" not in client.list_objects_v2(Bucket="data", Prefix="out")
    iam = boto3.client("iam", endpoint_url=s3, region_name="us-east-1")
    iam.create_user(UserName="lister")
    rights = {"Statement": [{"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*"}], "Version": "2012-10-17"}
    iam.put_user_policy(UserName="lister", PolicyName="lists", PolicyDocument=json.dumps(rights))
    keys = iam.create_access_key(UserName="lister")["AccessKey"]
    with pytest.MonkeyPatch.context() as patch, enable_iam_authentication():
        patch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        words = "^outputs: s3://data/out/run/.hcloud-write-check: the daemon has no permission to write there "
        with pytest.raises(BucketProblem, match=words):
            _check_outputs(S3Client(endpoint=s3, region="us-east-1"), "s3://data/out")

    store = GcsStore(endpoint=gcs.address, make=gcs.client)
    _check_outputs(store, "gs://data/out")
    assert gcs.begun == []
    gcs.is_read_only = True
    with pytest.raises(BucketProblem, match=r"no permission to write there \(HTTP 403"):
        _check_outputs(store, "gs://data/out")
    gcs.is_read_only = False


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(BucketProblem, match="boto3 is not installed; install HCloud with the extra 's3'"):
        S3Client().list("data", "", 1)
    monkeypatch.setitem(__import__("sys").modules, "google.cloud.storage", None)
    monkeypatch.delattr("google.cloud.storage", raising=False)
    with pytest.raises(BucketProblem, match="install HCloud with the extra 'gcs'"):
        GcsStore().list("data", "", 1)
