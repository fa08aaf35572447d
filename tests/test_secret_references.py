"""Secrets that AWS and GCP keep: read at the start of a unit, by allowed references only, and quoted nowhere."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hcloud.core.errors import BadInput, SecretUnreadable
from hcloud.secret_references import (
    GIVE_UP_S,
    KEPT_S,
    AwsSecretManager,
    GcpSecretManager,
    ManagerAway,
    SecretAbsent,
    SecretReference,
    SecretReferences,
)
from hcloud.spec.job_variables import REFERENCE_MARK
from tests.engine.site import PATIENCE_S
from tests.waiting import wait_until

SECRET = "correct-horse"


class ManagerByTable:
    """A secret manager whose answers are a table; an exception in it is raised."""

    def __init__(self, **texts: str | Exception) -> None:
        self.texts, self.reads = texts, list[str]()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self, name: str) -> str:
        """Return what the table has."""
        self.may_answer.wait(PATIENCE_S)
        self.reads.append(name)
        found = self.texts.get(name, SecretAbsent("does not exist"))
        if isinstance(found, Exception):
            raise found
        return found


class Times:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def references(manager: ManagerByTable, now: Callable[[], float] | None = None) -> SecretReferences:
    """References to one manager, for each user below a prefix of its own."""
    return SecretReferences(("aws:shared/", "aws:of/{user}/"), {"aws": manager}, now or Times())


def stored(reference: str) -> dict[str, str]:
    """What the database has for a variable DB, decrypted."""
    return {"DB": f"{REFERENCE_MARK}{reference}", "PLAIN": "value"}


def awaited(read: SecretReferences, user: str, reference: str) -> Any:
    """The values once they are there."""
    return wait_until(lambda: read.resolved(user, stored(reference)), PATIENCE_S)


def test_values_are_read_beside_the_loop_and_once_for_units_that_start_together() -> None:
    manager = ManagerByTable(**{"shared/db": json.dumps({"password": SECRET, "port": 5432})})
    read = references(manager, now := Times())
    manager.may_answer.clear()
    assert read.resolved("ada", stored("aws:shared/db#password")) is None  # does not wait
    manager.may_answer.set()
    assert awaited(read, "ada", "aws:shared/db#password") == {"DB": SECRET, "PLAIN": "value"}
    assert read.resolved("bob", stored("aws:shared/db#password")) and manager.reads == ["shared/db"]
    now.now += KEPT_S + 1  # kept no longer
    assert awaited(read, "ada", "aws:shared/db#password") and len(manager.reads) == 2
    assert awaited(read, "ada", "aws:shared/db#port")["DB"] == "5432"


@pytest.mark.parametrize(
    ("user", "reference", "words"),
    [
        ("ada", "aws:other/db", "is not among the secrets that jobs may name here"),
        ("ada", "aws:of/bob/db", "is not among the secrets that jobs may name here"),
        ("ada", "gcp:projects/p/secrets/s", "is not among the secrets that jobs may name here"),
        ("ada", "aws:shared/none", "aws:shared/none does not exist"),
        ("ada", "aws:shared/text#key", "is no JSON object, so it has no 'key'"),
        ("ada", "aws:shared/json#none", "has no key 'none'"),
        ("ada", "aws:shared/json#list", "has no text or number as 'list'"),
    ],
)
def test_what_cannot_be_had_is_said_at_submission_and_at_the_start(user: str, reference: str, words: str) -> None:
    table = {
        "shared/text": SECRET,
        "shared/json": json.dumps({"list": [SECRET]}),
        "of/bob/db": SECRET,
        "other/db": SECRET,
    }
    read = references(ManagerByTable(**table))
    with pytest.raises(BadInput, match=r"^env\.DB\.secret_from: ") as refused:
        read.check(user, {"DB": reference})
    with pytest.raises(SecretUnreadable) as unreadable:
        awaited(read, user, reference)
    for error in (refused.value, unreadable.value):
        assert words in str(error) and SECRET not in str(error)


def test_a_manager_that_is_away_is_asked_again_and_given_up_after_a_while() -> None:
    manager, now = ManagerByTable(**{"shared/db": OSError(f"sent {SECRET}")}), Times()
    read = references(manager, now)
    with pytest.raises(BadInput, match=r"aws:shared/db cannot be read now \(OSError\); try again$"):
        read.check("ada", {"DB": "aws:shared/db"})
    assert read.resolved("ada", stored("aws:shared/db")) is None
    wait_until(lambda: len(manager.reads) == 2, PATIENCE_S)
    now.now += 3
    assert read.resolved("ada", stored("aws:shared/db")) is None
    wait_until(lambda: len(manager.reads) == 3, PATIENCE_S)
    now.now += GIVE_UP_S

    def given_up() -> bool:
        try:
            read.resolved("ada", stored("aws:shared/db"))
        except SecretUnreadable as error:
            return "could not be read for 60 s (OSError)" in str(error)
        return False

    wait_until(given_up, PATIENCE_S)
    manager.texts["shared/db"] = SECRET
    assert awaited(read, "ada", "aws:shared/db")["DB"] == SECRET


def test_a_request_with_one_reference_in_many_jobs_costs_one_call() -> None:
    read = references(manager := ManagerByTable(**{"shared/db": SECRET}))
    for _ in range(100):
        read.check("ada", {"DB": "aws:shared/db", "AGAIN": "aws:shared/db"})
    assert manager.reads == ["shared/db"]
    with pytest.raises(BadInput, match="at most 20 different references"):
        read.check("ada", {f"V{n}": f"aws:shared/{n}" for n in range(21)})


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto's Secrets Manager over HTTP: its address, and a client that makes secrets."""
    import boto3
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    try:
        yield address, boto3.client("secretsmanager", region_name="eu-west-1", endpoint_url=address)
    finally:
        server.stop()


def test_aws_secrets_are_read_by_name_and_by_arn(aws: Any) -> None:
    address, client = aws
    arn = client.create_secret(Name="prod/db", SecretString=json.dumps({"password": SECRET}))["ARN"]
    client.create_secret(Name="prod/binary", SecretBinary=b"\xff")
    client.create_secret(Name="prod/gone", SecretString="x")
    client.delete_secret(SecretId="prod/gone")
    read = SecretReferences(("aws:",), {"aws": AwsSecretManager("eu-west-1", address)})
    assert awaited(read, "ada", "aws:prod/db#password")["DB"] == SECRET
    assert SECRET in awaited(read, "ada", f"aws:{arn}")["DB"]
    for name, words in (
        ("none", "does not exist in AWS Secrets Manager"),
        ("prod/binary", "is binary"),
        ("prod/gone", "is marked for deletion"),
    ):
        with pytest.raises(BadInput, match=f"aws:{name} {words}"):
            read.check("ada", {"DB": f"aws:{name}"})


class FakeSecretsApi(BaseHTTPRequestHandler):
    """The one call of GCP's Secret Manager that is used, for one secret, with a token."""

    def do_GET(self) -> None:
        """Answer as the REST API does."""
        known = {
            "/v1/projects/p/secrets/db/versions/latest:access": (200, SECRET.encode()),
            "/v1/projects/p/secrets/db/versions/1:access": (200, b"\xff"),
            "/v1/projects/p/secrets/denied/versions/latest:access": (403, b""),
            "/v1/projects/p/secrets/busy/versions/latest:access": (503, b""),
        }
        status, data = known.get(self.path, (404, b""))
        status = status if self.headers["Authorization"] == "Bearer token" else 401
        body = json.dumps({"payload": {"data": base64.b64encode(data).decode()}} if status == 200 else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def gcp() -> Iterator[str]:
    """Where the fake is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeSecretsApi)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def session(token: str) -> Any:
    """What google-auth sends requests with."""
    from google.auth.transport.requests import AuthorizedSession
    from google.oauth2.credentials import Credentials

    return AuthorizedSession(Credentials(token))


def test_gcp_secrets_are_read_over_rest(gcp: str) -> None:
    manager = GcpSecretManager(gcp, lambda: session("token"))
    assert manager.read("projects/p/secrets/db") == manager.read("projects/p/secrets/db/versions/latest") == SECRET
    for name, words in (("db/versions/1", "is binary"), ("denied", "denies the daemon access"), ("no", "not exist")):
        with pytest.raises(SecretAbsent, match=words):
            manager.read(f"projects/p/secrets/{name}")
    with pytest.raises(ManagerAway, match="status 503"):
        manager.read("projects/p/secrets/busy")


def test_a_reference_is_a_name_with_a_key() -> None:
    assert SecretReference.parsed("aws:arn:aws:secretsmanager:eu-west-1:1:secret:db#a") == SecretReference(
        "aws", "arn:aws:secretsmanager:eu-west-1:1:secret:db", "a"
    )
