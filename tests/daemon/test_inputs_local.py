"""Real jobs find their inputs in their work directory: from the submitter's machine, and from a bucket."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.buckets.stores import moto_s3
from tests.daemon.home import PATIENCE_S, Home

SMALL = ("--memory", "128MiB", "--vcpus", "0.5")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with moto_s3() as address:
        yield address


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, s3: str) -> Iterator[Home]:
    """A daemon that runs real programs on slices of this host, and may read a folder of a bucket."""
    made = Home(tmp_path_factory.mktemp("inputs") / "home")
    made.set_up_local()
    config = made.path / "config.yaml"
    grant = f"{{url: s3://lake/team, endpoint: '{s3}', region: us-east-1}}"
    config.write_text(config.read_text().replace("buckets: []", f"buckets: [{grant}]"))
    made.daemon(**CREDENTIALS)
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def test_inputs_are_there_before_anything_runs(home: Home, s3: str, tmp_path: Path) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id="test",
                          aws_secret_access_key="test")  # fmt: skip
    client.create_bucket(Bucket="lake")
    client.put_object(Bucket="lake", Key="team/set/a", Body=b"from the bucket\n" * 100_000)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "b").write_text("from here\n")
    inputs = ("--input", "s3://lake/team/set=in/set", "--input", f"{tmp_path}/here=in/own")
    script = "cat in/own/b; wc -l < in/set/a; env | grep -c AWS"
    told = home.run(
        "run", "-y", "-q", *inputs, *SMALL, "--setup", "cat in/own/b", "--", "sh", "-c", script, exit_code=1
    )
    assert "from here\nfrom here\n100000\n0\n" in told
    assert "inputs: in/set from s3://lake/team/set" in home.run("explain", "job-1")
    assert not list((home.path / "inputs").iterdir())


def test_outputs_go_to_a_bucket_and_machines_get_no_credential(home: Home, s3: str) -> None:
    script = 'mkdir -p r/deep; echo "$HCLOUD_TASK_ID" > r/id; echo x > r/deep/y; env | grep AWS; exit 3'
    options = ("-y", "-q", "--array", "0-1", "--outputs", "r=s3://lake/team/out", *SMALL)
    job = home.run("submit", *options, "--", "sh", "-c", script).split()[0]
    home.run("wait", job, exit_code=1)
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id="test",
                          aws_secret_access_key="test")  # fmt: skip
    keys = [each["Key"] for each in client.list_objects_v2(Bucket="lake", Prefix="team/out/")["Contents"]]
    assert keys == [f"team/out/{task}/{name}" for task in (0, 1) for name in ("deep/y", "id")]
    assert client.get_object(Bucket="lake", Key="team/out/1/id")["Body"].read() == b"1\n"
    told = home.run("cp", f"{job}[1]", ".", exit_code=2)
    assert "2 files (4 bytes) went to s3://lake/team/out" in told
    assert not list((home.path / "outputs").glob("*.urls"))


def test_what_cannot_be_had_is_one_sentence_before_anything_is_rented(home: Home, tmp_path: Path) -> None:
    for given, words in (
        ("s3://lake/team/missing", "s3://lake/team/missing: there is no such object"),
        ("s3://lake/other", "s3://lake/other may not be read for"),
        ("gs://lake/team/x", "gs://lake/team/x may not be read for"),
        ("s3://lake/team/set=../x", "'../x' leads outside with '..'"),
        ("/no/such/file", "there is no file or folder /no/such/file"),
    ):
        for option in ("--dry-run", "-q"):
            told = home.run("submit", "-y", option, "--input", given, *SMALL, "--", "true", exit_code=2)
            assert words in told and len(told.splitlines()) == 1
    file = tmp_path / "job.yaml"
    file.write_text("name: x\ncommand: 'true'\ninputs:\n  - {from: a, to: c}\n  - {from: b, to: c}\n")
    assert "job.yaml:3: inputs: has two that come to c" in home.run("job", "check", str(file), exit_code=2)
    file.write_text("name: x\ncommand: 'true'\ninputs: [no/such]\n")
    assert "job.yaml:3: inputs[0]" in home.run("job", "check", str(file), exit_code=2)
